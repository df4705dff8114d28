"""schemathesis on the admin API of a live sidecar: each route, with a bounded number of examples."""
import http.server
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request

import sidecar

EXAMPLES = os.environ.get("ADMIN_EXAMPLES", "25")


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b'{"id":1,"number":1}'
        self.send_response(201)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    token = secrets.token_urlsafe(32)
    with tempfile.NamedTemporaryFile("w", suffix=".tokens") as tokens:
        tokens.write(f"tests operate {token}\n")
        tokens.flush()
        os.environ["TAKEBACK_ADMIN_LISTEN"] = admin = f"127.0.0.1:{free_port()}"
        os.environ["TAKEBACK_ADMIN_TOKENS_FILE"] = tokens.name
        policies = root / "policies" / "github-mini"
        with sidecar.sidecar(policies, upstream.server_port) as (url, _, _):
            # Something to list.
            for number in range(3):
                call = urllib.request.Request(
                    f"{url}/repos/octo/hello/issues/{number}/comments", data=b'{"body":"x"}',
                    headers={"content-type": "application/json"}, method="POST")
                assert urllib.request.urlopen(call, timeout=10).status == 201
            checked = subprocess.run([
                str(root / ".tools" / "venv-admin" / "bin" / "schemathesis"), "run",
                f"http://{admin}/api/v1/openapi.json",
                "--header", f"Authorization: Bearer {token}",
                # It would end the sidecar.
                "--exclude-path", "/api/v1/drain",
                # The gate lets so many requests in.
                "--rate-limit", "40/s",
                "--max-examples", EXAMPLES, "--seed", "1", "--suppress-health-check", "all",
                "--generation-database", "none",
            ], timeout=600)
    upstream.shutdown()
    sys.exit(checked.returncode)


if __name__ == "__main__":
    assert os.environ.get("PROGRAM"), "PROGRAM names the takeback to test"
    main()
