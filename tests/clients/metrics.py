"""`promtool check metrics` on a live sidecar's /metrics, after a read, a refusal and an unknown path."""
import http.server
import os
import pathlib
import subprocess
import sys
import threading
import urllib.request

import sidecar


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = b'{"id":1}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    policies = pathlib.Path(__file__).resolve().parents[2] / "policies" / "github-mini"
    with sidecar.sidecar(policies, upstream.server_port) as (url, telemetry, _):
        status, _ = sidecar.get(f"{url}/repos/octo/hello/issues/1")
        assert status == 200, status
        refused = urllib.request.Request(f"{url}/elsewhere", data=b"{}", method="POST")
        try:
            urllib.request.urlopen(refused, timeout=10)
            raise AssertionError("an undeclared write was sent")
        except urllib.error.HTTPError as error:
            assert error.code == 428, error.code
        status, text = sidecar.get(f"{telemetry}/metrics")
        assert status == 200, status
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True)
        names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[:1] != "#"}
        print(f"{len(text.splitlines())} lines, {len(names)} names")
        assert names, "there are metrics"
    upstream.shutdown()
    sys.exit(checked.returncode)


if __name__ == "__main__":
    assert os.environ.get("PROGRAM"), "PROGRAM names the takeback to test"
    main()
