"""What /metrics serves, seen by a real Prometheus.

It is clean by promtool, its families are those of tests/golden/metrics.txt, names that callers make up add
no series, and with deploy/observability/rules.yaml loaded an alert fires when the ledger is lost.

    metrics.py             all of it
    metrics.py renew       writes the golden file anew; then read the difference
    NAMES=1000000 metrics.py    with more made-up names than the 100,000 of CI
"""
import contextlib
import http.server
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request

import sidecar

TOP = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = TOP / "tests/golden/metrics.txt"
RULES = TOP / "deploy/observability/rules.yaml"
POLICIES = TOP / "policies/github-mini"

# Labels whose values belong to the policy or the build, and not to the contract.
OPEN = {"operation", "revision", "rustc", "version"}
# Labels that a scrape adds.
SCRAPED = {"__name__", "instance", "job"}


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self):
        body = b'{"id":1}'
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def prometheus(telemetry, folder):
    """A Prometheus that scrapes the sidecar each second and has the rules; a function that asks its API."""
    port = sidecar.free_port()
    config = pathlib.Path(folder) / "prometheus.yml"
    config.write_text(json.dumps({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{
            "job_name": "takeback",
            "static_configs": [{"targets": [urllib.parse.urlsplit(telemetry).netloc]}],
        }],
    }))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/prometheus",
               f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with sidecar.program(command, {}, f"{folder}/prometheus.log"):
        def ask(path, **query):
            url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query, doseq=True)}"
            found = sidecar.get(url)
            return json.loads(found[1])["data"] if found and found[0] == 200 else None

        sidecar.wait("Prometheus has scraped", lambda: ask("query", query="up == 1") and
                     ask("query", query="up == 1")["result"])
        yield ask


def shape(types, series):
    """One line for each family: its type, how many series it has, and each label with its values."""
    families = {}
    for labels in series:
        name = labels["__name__"]
        if name not in types:
            name = re.sub("_(bucket|count|sum)$", "", name)
        if name in types:
            families.setdefault(name, []).append(
                {key: value for key, value in labels.items() if key not in SCRAPED})
    lines = []
    for name in sorted(families):
        values = {}
        for labels in families[name]:
            for label, value in labels.items():
                values.setdefault(label, set()).add(value)
        shown = ""
        for label in sorted(values):
            order = float if label == "le" else str
            known = "*" if label in OPEN else "|".join(sorted(values[label], key=order))
            shown += f" {label}={known}"
        lines.append(f"{name} {types[name]} {len(families[name])}{shown}")
    return "\n".join(lines) + "\n"


def served(telemetry):
    """The exposition, once the first sample of the process is in it."""
    def level():
        status, text = sidecar.get(f"{telemetry}/metrics")
        assert status == 200, status
        return text if "takeback_ledger_volume_free_bytes" in text else None

    return sidecar.wait("the process is sampled", level)


def series_of(text):
    return {line.rsplit(" ", 1)[0] for line in text.splitlines() if line and line[0] != "#"}


def made_up(count):
    """Requests whose names nobody declared, each with about ten: path, query, method or tool, headers."""
    dice = random.Random(7)
    odd = ['"', "\\", "{", "}", "\u00e9", "'", "$", ",", "=", "\n", "%00", "/", " "]

    def word():
        return f"{dice.getrandbits(64):016x}"

    while count > 0:
        names = [f"X-{word()}: {word()}" for _ in range(6)]
        names += [f"Idempotency-Key: {word()}", f"Authorization: Bearer {word()}"]
        if dice.random() < 0.5:
            call = {"jsonrpc": "2.0", "id": word(), "method": "tools/call",
                    "params": {"name": word() + dice.choice(odd), "arguments": {word(): word()}}}
            line, body = "POST /mcp", json.dumps(call).encode()
            names.append("Accept: application/json, text/event-stream")
        else:
            method = dice.choice(["POST", "DELETE", word().upper()[:12]])
            line, body = f"{method} /{word()}/{word()}?{word()}={word()}", b"{}"
        head = "\r\n".join([f"{line} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json",
                            f"Content-Length: {len(body)}", *names])
        yield head.encode() + b"\r\n\r\n" + body
        count -= 10


def send(url, requests):
    """Sends each request, and reads each answer; how many of which status."""
    place = urllib.parse.urlsplit(url)
    statuses = {}
    with socket.create_connection((place.hostname, place.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = connection.makefile("rb")
        for request in requests:
            connection.sendall(request)
            status = int(answers.readline().split()[1])
            length = 0
            while (line := answers.readline().strip().lower()):
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            assert length, "each refusal has a body"
            answers.read(length)
            statuses[status] = statuses.get(status, 0) + 1
    return statuses


def check_exposition(text):
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True)
    assert done.returncode == 0, "promtool finds fault with /metrics"


def check_golden(ask, is_renewed):
    found = ask("targets/metadata", match_target='{job="takeback"}')
    types = {each["metric"]: each["type"] for each in found}
    assert all(each["help"] for each in found), "each family has its help"
    made = shape(types, ask("series", **{"match[]": '{job="takeback",__name__=~"takeback_.+|process_.+"}'}))
    if is_renewed:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(made)
    golden = set(GOLDEN.read_text().splitlines())
    lines = set(made.splitlines())
    for line in sorted(golden - lines):
        print(f"- {line}")
    for line in sorted(lines - golden):
        print(f"+ {line}")
    assert golden == lines, "not as tests/golden/metrics.txt; `tests/clients/metrics.py renew` renews it"
    print(f"{len(lines)} families are those of the golden file")


def check_cardinality(url, telemetry):
    count = int(os.environ.get("NAMES", "100000"))
    before = series_of(served(telemetry))
    statuses = send(url, made_up(count))
    text = served(telemetry)
    check_exposition(text)
    after = series_of(text)
    assert after == before, f"{len(after - before)} new series: {sorted(after - before)[:5]}"
    assert len(statuses) > 1 and all(status >= 200 for status in statuses), statuses
    print(f"{count} made-up names, {sum(statuses.values())} calls {statuses}: {len(after)} series as before")


def check_alert(url, telemetry, folder, ask):
    """The ledger's file goes away: writes are refused, and the alert that says so fires."""
    def firing():
        alerts = sidecar.wait("Prometheus tells its alerts", lambda: ask("alerts"))["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    assert not firing(), firing()
    groups = ask("rules")["groups"]
    bad = [rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"]
    assert not bad, f"rules that cannot be evaluated: {bad}"
    os.remove(f"{folder}/ledger.db")
    sidecar.wait("the alert fires", lambda: "TakebackLedgerWriteErrors" in firing())
    status, body = sidecar.get(f"{telemetry}/readyz")
    assert status == 503 and not json.loads(body)["checks"]["ledger"]["ok"], body
    call = urllib.request.Request(f"{url}/repos/octo/hello/issues/1/comments", data=b'{"body":"x"}',
                                  headers={"content-type": "application/json"}, method="POST")
    try:
        urllib.request.urlopen(call, timeout=10)
        raise AssertionError("a write was sent without a ledger")
    except urllib.error.HTTPError as error:
        assert error.code == 503, error.code
    print(f"firing: {', '.join(sorted(firing()))}")


def main():
    is_renewed = sys.argv[1:] == ["renew"]
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    with sidecar.sidecar(POLICIES, upstream.server_port) as (url, telemetry, folder), \
            tempfile.TemporaryDirectory() as other:
        check_exposition(served(telemetry))
        with prometheus(telemetry, other) as ask:
            check_golden(ask, is_renewed)
            if not is_renewed:
                assert sidecar.get(f"{url}/repos/octo/hello/issues/1")[0] == 200
                check_cardinality(url, telemetry)
                check_alert(url, telemetry, folder, ask)
    upstream.shutdown()


if __name__ == "__main__":
    assert os.environ.get("PROGRAM"), "PROGRAM names the takeback to test"
    main()
