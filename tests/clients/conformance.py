"""The MCP conformance suite, direct and through a sidecar: check by check the same, in both eras. Then the
tools with effects: they are gated, confirmed in the protocol, keyed and reported in both eras."""
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import sidecar
from driver import HERE, MODULES, NODE, TOOLS, script

PYTHON = str(TOOLS / "venv/bin/python")
SUITE = str(MODULES / "@modelcontextprotocol/conformance/dist/index.js")
# Revision, and how many checks pass directly: fewer would mean that nothing was compared.
REVISIONS = [("2026-07-28", 196), ("2025-11-25", 84)]


def checks(folder):
    """Each scenario's checks by their outcome."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*/checks.json")):
        scenario = re.sub(r"-\d{4}-\d\d-\d\dT.*$", "", path.parent.name)
        seen = ((check["id"], check["status"]) for check in json.loads(path.read_text()))
        found[scenario] = collections.Counter(seen)
    return found


def run_suite(port, revision, folder):
    url = f"http://localhost:{port}/mcp"
    command = [NODE, SUITE, "server", "--url", url, "--requirements", revision, "-o", folder]
    subprocess.run(command, timeout=300, stdout=subprocess.DEVNULL, check=True)
    return checks(folder)


def compare(port, through, revision, least):
    with tempfile.TemporaryDirectory() as folder:
        direct = run_suite(port, revision, f"{folder}/direct")
        proxied = run_suite(through, revision, f"{folder}/proxied")
    differ = [name for name in {**direct, **proxied} if direct.get(name) != proxied.get(name)]
    for name in differ:
        print("differs", name, direct.get(name), proxied.get(name))
    passed = sum(seen[check] for seen in proxied.values() for check in seen if check[1] == "SUCCESS")
    print(f"-- {revision}: {len(proxied)} scenarios, {passed} checks pass, {len(differ)} differ", flush=True)
    assert not differ and passed >= least, (revision, passed, differ)


def steps(command, url, mode, *calls):
    """What a client saw, one line for each step."""
    environment = {**os.environ, "URL": url, "MODE": mode, "CONFIRM": "accept", "NODE_PATH": str(MODULES)}
    done = subprocess.run([*command, *calls], env=environment, timeout=120, capture_output=True, text=True)
    seen = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, (done.stdout, done.stderr)
    return seen


def effect(seen, step):
    said = [line for line in seen if line["step"] == step]
    assert said, (step, seen)
    return said[-1]["_meta"]["effect"], said[-1]


def story(url, name, command, mode, number):
    thing = f"t{number}"
    seen = steps(
        command, url, mode,
        f'delete_thing={{"id":"{thing}"}}',
        f'asks_first={{"what":"{name}"}}',
        f'send_mail_mirrored={{"to":"{name}","body":"b"}}',
        'counter_get={}',
    )
    asked = [line["message"] for line in seen if line["step"] == "elicited"]
    assert any(thing in message and "thing.delete" in message for message in asked), seen
    assert any("Really do" in message for message in asked), ("the upstream's own question", seen)
    for step in ["delete_thing", "asks_first", "send_mail_mirrored"]:
        report, line = effect(seen, step)
        assert report["outcome"] == "accepted" and not line.get("isError"), line
    assert effect(seen, "send_mail_mirrored")[0]["idempotency_key"], seen
    assert effect(seen, "counter_get")[0]["class"] == "read", seen
    print(f"-- {name}: asked {len(asked)} times, all accepted", flush=True)


def main():
    port = sidecar.free_port()
    with tempfile.TemporaryDirectory() as folder:
        server = [PYTHON, str(HERE / "conformance26.py")]
        with sidecar.program(server, {"PORT": str(port)}, f"{folder}/server.log"):
            sidecar.wait("the MCP server listens", lambda: sidecar.answers(port))
            with sidecar.sidecar(HERE / "policy-conformance", port) as (url, _, _):
                through = int(url.rsplit(":", 1)[1])
                for revision, least in REVISIONS:
                    compare(port, through, revision, least)
                python = [PYTHON, str(HERE / "python26.py")]
                typescript = [NODE, script("typescript26.mjs")]
                stories = [
                    ("python-legacy", python, "legacy"),
                    ("python-modern", python, "2026-07-28"),
                    ("typescript-legacy", typescript, "legacy"),
                    ("typescript-modern", typescript, "modern"),
                ]
                for number, (name, command, mode) in enumerate(stories, start=1):
                    story(f"{url}/mcp", name, command, mode, number)


if __name__ == "__main__":
    assert os.environ.get("PROGRAM"), "PROGRAM names the takeback to test"
    sys.exit(main())
