"""Real MCP servers behind a sidecar with the policies that are shipped for them: what they write is taken back."""
import contextlib
import os
import pathlib
import sys
import tempfile

import sidecar
from driver import MODULES, NODE, Driver, python, script

POLICIES = sidecar.HERE.parents[1] / "policies"


@contextlib.contextmanager
def behind(policy, server, arguments, environment):
    """A client before a sidecar before a server, each a program of its own."""
    port = sidecar.free_port()
    entry = str(MODULES / f"@modelcontextprotocol/{server}/dist/index.js")
    command = [NODE, script("bridge.mjs"), entry, *arguments]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        environment = {"PORT": str(port), **environment}
        stack.enter_context(sidecar.program(command, environment, f"{folder}/server.log"))
        sidecar.wait("the MCP server listens", lambda: sidecar.answers(port))
        url, _, own = stack.enter_context(sidecar.sidecar(POLICIES / policy, port))
        client = Driver(python("venv", "newer.py"), f"{url}/mcp", f"{own}/client.log")
        yield stack.enter_context(client)


def confirmed(client, tool, arguments):
    """A call that is refused, and then made with the token that its refusal gave."""
    refused = client.call(tool, arguments)
    assert refused.error["code"] == "confirmation_required", refused
    assert refused.effect["refused"] == "confirmation_required", refused
    made = client.call(tool, {**arguments, "confirm": refused.token})
    assert made.effect["outcome"] == "accepted", made
    return made


def taken_back(client, answer):
    """The call that the report names for taking back, made as it stands there."""
    undo = answer.effect["undo"]
    assert undo["kind"] == "inverse", answer
    return undo["tool"], undo["arguments"]


def files():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        (root / "a.txt").write_text("first")
        path, other = str(root / "a.txt"), str(root / "b.txt")
        with behind("filesystem", "server-filesystem", [str(root)], {}) as client:
            assert {"move_file", "write_file", "read_text_file"} <= set(client.tools())
            read = client.call("read_text_file", {"path": path})
            assert read.text == "first" and read.effect["class"] == "read", read

            # Moved, and moved back by the report.
            moved = client.call("move_file", {"source": path, "destination": other})
            assert moved.effect["class"] == "reversible", moved
            assert moved.effect["outcome"] == "accepted", moved
            assert moved.effect["verdict"] == "verified", moved
            assert not os.path.exists(path) and os.path.exists(other)
            tool, arguments = taken_back(client, moved)
            assert (tool, arguments) == ("move_file", {"source": other, "destination": path})
            back = client.call(tool, arguments)
            assert back.effect["outcome"] == "accepted", back
            assert os.path.exists(path) and not os.path.exists(other)

            # What the server could not do is said, and there is nothing to take back.
            missing = {"source": str(root / "none"), "destination": other}
            failed = client.call("move_file", missing)
            assert failed.is_error and failed.effect["outcome"] == "rejected", failed
            assert failed.effect["undo"] is None, failed

            # Written only with a confirmation, and what it is bound to is the whole call.
            write = {"path": path, "content": "second"}
            refused = client.call("write_file", write)
            assert refused.effect["refused"] == "confirmation_required", refused
            assert (root / "a.txt").read_text() == "first"
            changed = client.call("write_file", {**write, "content": "x", "confirm": refused.token})
            assert changed.effect["refused"] == "confirmation_mismatch", changed
            assert (root / "a.txt").read_text() == "first"
            written = client.call("write_file", {**write, "confirm": refused.token})
            assert written.effect["outcome"] == "accepted", written
            assert written.effect["verdict"] == "verified", written
            assert written.effect["undo"] is None, written
            assert (root / "a.txt").read_text() == "second"

            # An argument makes it a read: the difference is shown, nothing is written.
            edit = {"path": path, "edits": [{"oldText": "second", "newText": "third"}]}
            shown = client.call("edit_file", {**edit, "dryRun": True})
            assert shown.effect["class"] == "read" and "third" in shown.text, shown
            assert (root / "a.txt").read_text() == "second"
            assert client.call("edit_file", edit).effect["refused"] == "confirmation_required"
            assert (root / "a.txt").read_text() == "second"
    print("-- server-filesystem: moved and moved back, written when confirmed", flush=True)


def memory():
    with tempfile.TemporaryDirectory() as folder:
        environment = {"MEMORY_FILE_PATH": f"{folder}/memory.jsonl"}
        with behind("memory", "server-memory", [], environment) as client:
            def graph():
                read = client.call("read_graph", {})
                assert read.effect["class"] == "read", read
                return read.text

            people = [
                {"name": name, "entityType": "person", "observations": []} for name in ["Ada", "Bob"]
            ]
            confirmed(client, "create_entities", {"entities": people})
            assert "Ada" in graph() and "Bob" in graph()

            relation = {"from": "Ada", "to": "Bob", "relationType": "knows"}
            related = client.call("create_relations", {"relations": [relation]})
            assert related.effect["class"] == "reversible", related
            assert related.effect["outcome"] == "accepted", related
            assert "knows" in graph()

            # Taking back is a call like any other: this one deletes, so it is confirmed.
            tool, arguments = taken_back(client, related)
            assert (tool, arguments) == ("delete_relations", {"relations": [relation]})
            confirmed(client, tool, arguments)
            assert "knows" not in graph() and "Ada" in graph()

            # What was there before is not in the answer, so that an undo takes away only what is new.
            client.call("create_relations", {"relations": [relation]})
            both = [relation, {**relation, "from": "Bob", "to": "Ada"}]
            more = client.call("create_relations", {"relations": both})
            assert taken_back(client, more)[1] == {"relations": both[1:]}, more

            confirmed(client, "delete_entities", {"entityNames": ["Ada", "Bob"]})
            assert "Ada" not in graph() and "Bob" not in graph()
    print("-- server-memory: created, related, and all of it taken back", flush=True)


if __name__ == "__main__":
    assert os.environ.get("PROGRAM"), "PROGRAM names the takeback to test"
    files()
    memory()
    sys.exit(0)
