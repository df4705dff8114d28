"""Real MCP clients against a real MCP server through a sidecar, each in the place that it was installed in."""
import contextlib
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import sidecar
import story
from driver import MODULES, NODE, Driver, Inspector, python, script

SERVER = MODULES / "@modelcontextprotocol/server-everything/dist/index.js"

# Name, command, whether its caller can send `_meta`, whether it can be asked.
CLIENTS = [
    ("python mcp 1", python("venv-older", "older.py"), True, True),
    ("python mcp 2", python("venv", "newer.py"), True, True),
    ("fastmcp", python("venv", "fastmcp_client.py"), True, True),
    ("typescript sdk 1", [NODE, "drivers/sdk.mjs", "v1"], True, True),
    ("typescript sdk 2", [NODE, "drivers/sdk.mjs", "v2"], True, True),
    ("openai-agents", python("venv-older", "openai_agent.py"), False, False),
    ("langchain-mcp-adapters", python("venv-older", "langchain_tools.py"), False, False),
    ("inspector", None, True, False),
]


@contextlib.contextmanager
def sidecar_for(port):
    # Each on a ledger of its own: what one confirmed is no repeat of another's.
    with sidecar.sidecar(sidecar.HERE / "policy", port) as (url, _, folder):
        yield f"{url}/mcp", f"{folder}/client.log"


def run(command, sends_meta, can_be_asked, port):
    if command is None:
        with sidecar_for(port) as (url, _), Inspector(url) as client:
            story.asked(client, sends_meta, keeps_connection=False)
        return
    command = [script(part) if part.endswith(".mjs") else part for part in command]
    with sidecar_for(port) as (url, log), Driver(command, url, log) as client:
        story.asked(client, sends_meta, keeps_connection=True)
    if can_be_asked:
        with sidecar_for(port) as (url, log), Driver(command, url, log, "decline,accept") as client:
            story.in_the_protocol(client)


def tried(name, command, sends_meta, can_be_asked, port):
    """What went wrong with a client, if anything."""
    began = time.monotonic()
    try:
        run(command, sends_meta, can_be_asked, port)
    except AssertionError as error:
        return f"{name}: {error}"
    print(f"-- {name}: ok, {time.monotonic() - began:.0f} s", flush=True)
    return None


def main():
    port = sidecar.free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [NODE, str(SERVER), "streamableHttp"]
        with sidecar.program(command, {"PORT": str(port)}, f"{folder}/server.log"):
            sidecar.wait("the MCP server listens", lambda: sidecar.answers(port))
            # Two at a time: most of a client's time is its start.
            with ThreadPoolExecutor(max_workers=2) as pool:
                results = list(pool.map(lambda client: tried(*client, port), CLIENTS))
    failed = [result for result in results if result]
    sys.exit("failed: " + "\n".join(failed) if failed else 0)


if __name__ == "__main__":
    assert os.environ.get("PROGRAM"), "PROGRAM names the takeback to test"
    main()
