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

import effects
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
                effects.told(f"{url}/mcp", port, stories)


if __name__ == "__main__":
    assert os.environ.get("PROGRAM"), "PROGRAM names the takeback to test"
    sys.exit(main())
