"""Ends a pod of topology gateway in the order that the manifests ask for, with writes in flight: no outcome
is unknown. In the other order some are, so the order matters and this test can see it.

The kubelet is played: it signals the proxy, and the gateway when the proxy has ended."""
import http.client
import http.server
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import renders
import serves

sys.path.insert(0, str(renders.TOP / "tests/clients"))
import sidecar  # noqa: E402

ROUNDS = 3
AGENTS = 8
# How long the gateway takes over a write.
SLOW = 0.3
COMMENTS = "/repos/octo/hello/issues/1/comments"


class Gateway(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        time.sleep(SLOW)
        body = b'{"id":1}'
        self.send_response(201)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def agent(port, number, answers, is_over):
    """Writes, one after the other, until it is turned away."""
    for index in range(10_000):
        if is_over.is_set():
            return
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=sidecar.PATIENCE)
        try:
            body = json.dumps({"body": f"{number}-{index}"})
            connection.request("POST", COMMENTS, body, {"content-type": "application/json"})
            answers.append(connection.getresponse().status)
        except OSError:
            answers.append(None)
            return
        finally:
            connection.close()


def entries(program, ledger, *more):
    command = [program, "ledger", "list", "--ledger", ledger, "--format", "json", "--limit", "100000", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def end_pod(program, config, policy, is_gateway_first):
    """Starts the pod, loads it, ends it; how many writes were answered, and how many are unknown."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        for name in ("state", "policy", "secret"):
            (place / name).mkdir()
        for name, text in policy.items():
            (place / "policy" / name).write_text(text)
        upstream = sidecar.free_port()
        text, telemetry = serves.moved(config, folder)
        text = text.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{upstream}")
        text = text.replace("min_ms: 0", "min_ms: 500")
        data = int(renders.yaml.safe_load(text)["listen"].split(":")[1])
        (place / "config.yaml").write_text(text)
        gateway = subprocess.Popen([sys.executable, __file__, "gateway", str(upstream)])
        proxy = subprocess.Popen([program, "run", f"--config={folder}/config.yaml"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        answers, is_over = [], threading.Event()
        try:
            sidecar.wait("the gateway listens", lambda: sidecar.answers(upstream))
            ready = f"http://127.0.0.1:{telemetry}/readyz"
            sidecar.wait("the proxy is ready", lambda: (sidecar.get(ready) or (0,))[0] == 200)
            agents = [threading.Thread(target=agent, args=(data, each, answers, is_over))
                      for each in range(AGENTS)]
            for each in agents:
                each.start()
            sidecar.wait("every agent writes", lambda: len(answers) >= 2 * AGENTS)
            if is_gateway_first:
                gateway.send_signal(signal.SIGTERM)
                gateway.wait(sidecar.PATIENCE)
            proxy.send_signal(signal.SIGTERM)
            code = proxy.wait(sidecar.PATIENCE)
            assert code == 0, f"the proxy ended with {code}"
        finally:
            is_over.set()
            proxy.kill()
            gateway.kill()
        for each in agents:
            each.join()
        ledger = f"{folder}/state/ledger.db"
        unknown = entries(program, ledger, "--state", "unknown")
        accepted = entries(program, ledger, "--state", "accepted")
        answered = answers.count(201)
        # An agent may have hung up over an answer, so there can be more entries than answers.
        assert len(accepted) >= answered, f"{answered} answers, {len(accepted)} entries"
        return answered, len(unknown)


def main():
    program = sys.argv[1]
    text = renders.kustomize(renders.EXAMPLES / "gateway")
    config, policy = serves.settings(renders.objects(text))
    total = 0
    for _ in range(ROUNDS):
        answered, unknown = end_pod(program, config, policy, is_gateway_first=False)
        assert unknown == 0, f"{unknown} writes of {answered} are unknown"
        total += answered
    _, lost = end_pod(program, config, policy, is_gateway_first=True)
    assert lost > 0, "a gateway that ends first loses nothing, so this test sees nothing"
    print(f"{ROUNDS} ends, {total} writes, none unknown; {lost} when the gateway ends first")


if __name__ == "__main__":
    if sys.argv[1] == "gateway":
        http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Gateway).serve_forever()
    else:
        main()
