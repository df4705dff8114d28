"""Real MCP clients against a real MCP server through a sidecar, each era's client in its own Python."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import sidecar

HERE = pathlib.Path(__file__).resolve().parent
TOOLS = HERE.parents[1] / ".tools"
SERVER = TOOLS / "node/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
CLIENTS = [("venv-older", "older.py"), ("venv", "newer.py")]


def main():
    failed = []
    port = sidecar.free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [shutil.which("node"), str(SERVER), "streamableHttp"]
        with sidecar.program(command, {"PORT": str(port)}, f"{folder}/server.log"):
            sidecar.wait("the MCP server listens", lambda: sidecar.answers(port))
            for place, script in CLIENTS:
                # Each on a ledger of its own: what one confirmed is no repeat of the other's.
                with sidecar.sidecar(HERE / "policy", port) as (url, _, _):
                    print(f"-- {script}", flush=True)
                    client = [str(TOOLS / place / "bin/python"), str(HERE / script), f"{url}/mcp"]
                    if subprocess.run(client, timeout=180).returncode != 0:
                        failed.append(script)
    sys.exit(f"failed: {failed}" if failed else 0)


if __name__ == "__main__":
    assert os.environ.get("PROGRAM"), "PROGRAM names the takeback to test"
    main()
