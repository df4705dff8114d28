"""grpcio through a sidecar: unary and streaming reads, a write that is confirmed, its status as the outcome."""
import concurrent.futures
import json
import pathlib
import sys
import tempfile

import grpc

from sidecar import free_port, program, wait, answers

POLICY = """
version: 1
operations:
  things.create:
    match: { http: "POST /test.Things/Create" }
    effect: { class: irreversible, kind: create }
    confirm: caller
  things.get:
    match: { http: "POST /test.Things/Get" }
    effect: { class: read }
  things.watch:
    match: { http: "POST /test.Things/Watch" }
    effect: { class: read }
"""


class Handler(grpc.GenericRpcHandler):
    """Bytes in, bytes out."""

    def __init__(self):
        self.created = []

    def service(self, details):
        name = details.method.rsplit("/", 1)[1]
        if name == "Create":
            return grpc.unary_unary_rpc_method_handler(self.create)
        if name == "Get":
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"got " + request)
        return grpc.stream_stream_rpc_method_handler(self.watch)

    def create(self, request, context):
        self.created.append(request)
        if request == b"taken":
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "it is there")
        if request == b"lost":
            context.abort(grpc.StatusCode.UNAVAILABLE, "nobody knows")
        return b"made " + request

    def watch(self, requests, context):
        # Each answer before the next question: nothing on the way may wait for the end.
        for request in requests:
            yield b"saw " + request


def ask(stub, request, confirm=False):
    """What came: the answer or the error, and the report."""
    metadata = [("effect-confirm", "true")] if confirm else []
    try:
        answer, call = stub.with_call(request, metadata=metadata, timeout=20)
        return answer, json.loads(dict(call.initial_metadata())["x-anvil-effect"])
    except grpc.RpcError as error:
        found = dict(error.initial_metadata() or ()) | dict(error.trailing_metadata() or ())
        report = found.get("x-anvil-effect")
        return (error.code(), error.details()), report and json.loads(report)


def main():
    handler = Handler()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    upstream = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with tempfile.TemporaryDirectory() as folder:
        policies = pathlib.Path(folder, "policies")
        policies.mkdir()
        (policies / "grpc.yaml").write_text(POLICY)
        port = free_port()
        environment = {
            "TAKEBACK_LISTEN": f"127.0.0.1:{port}",
            "TAKEBACK_TELEMETRY_LISTEN": f"127.0.0.1:{free_port()}",
            "TAKEBACK_UPSTREAM_URL": f"h2c://127.0.0.1:{upstream}",
            "TAKEBACK_POLICIES": str(policies),
            "TAKEBACK_LEDGER": str(pathlib.Path(folder, "ledger.db")),
            "TAKEBACK_DRAIN_MIN_MS": "0",
        }
        with program([sys.argv[1], "run"], environment, pathlib.Path(folder, "log")):
            wait("the sidecar", lambda: answers(port))
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                check(channel, handler)
    server.stop(None)
    print("grpcio: a unary and a streaming read, a refusal, a write and its outcomes: as they should be")


def check(channel, handler):
    answer, report = ask(channel.unary_unary("/test.Things/Get"), b"a")
    assert answer == b"got a" and report["class"] == "read", (answer, report)

    questions = iter([b"1", b"2", b"3"])
    stream = channel.stream_stream("/test.Things/Watch")(questions, timeout=20)
    assert list(stream) == [b"saw 1", b"saw 2", b"saw 3"]
    assert stream.code() == grpc.StatusCode.OK

    create = channel.unary_unary("/test.Things/Create")
    (code, details), _ = ask(create, b"thing")
    assert code == grpc.StatusCode.FAILED_PRECONDITION, code
    assert details.startswith("Nothing was sent."), details
    assert handler.created == []

    answer, report = ask(create, b"thing", confirm=True)
    assert answer == b"made thing" and report["outcome"] == "accepted", (answer, report)
    for request, code, outcome in [
        (b"taken", grpc.StatusCode.ALREADY_EXISTS, "rejected"),
        (b"lost", grpc.StatusCode.UNAVAILABLE, "unknown"),
    ]:
        (told, _), report = ask(create, request, confirm=True)
        assert told == code and report["outcome"] == outcome, (told, report)
    assert handler.created == [b"thing", b"taken", b"lost"], handler.created


main()
