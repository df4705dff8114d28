"""Driver on the Python SDK (mcp==2.3.0). One JSON line per step: {"step", "text", "isError", "_meta"} or {"step", "error"}.

    URL=http://127.0.0.1:3905/mcp MODE=auto|legacy|2026-07-28 CONFIRM=accept|decline python client26.py [list] [tool[=JSON]] ...
MODE auto (default) asks `server/discover` first. Without CONFIRM the client declares no elicitation at all.
META='{"k":1}' is sent as _meta of every call; PROGRESS=1 asks for progress events; TIMEOUT seconds (10).
"""
import asyncio
import json
import os
import sys

from mcp import Client, types
from mcp.shared.exceptions import MCPError

ENV = os.environ.get
STEPS = sys.argv[1:] or ["list", 'get_thing={"id":"t1"}', 'counter_add={"n":1}']

def say(**line):
    print(json.dumps(line), flush=True)

def fill(schema):
    def one(p):
        kind = p.get("type")
        return p.get("default", (p.get("enum") or [None])[0] if "enum" in p else
                     {"boolean": True, "integer": 1, "number": 1, "array": []}.get(kind, "x"))
    return {k: one(p) for k, p in (schema.get("properties") or {}).items()}

async def elicit(_ctx, params):
    schema = getattr(params, "requested_schema", None) or {}
    say(step="elicited", message=params.message, schema=schema, answer=ENV("CONFIRM"))
    if ENV("CONFIRM") == "accept":
        return types.ElicitResult(action="accept", content={**fill(schema), **({"confirm": True} if "confirm" in schema.get("properties", {}) else {})})
    return types.ElicitResult(action="decline")

async def progress(done, total, message):
    say(step="progress", progress=done, total=total, message=message)

async def run(c, step):
    if step == "list":
        return say(step="list", tools=[t.name for t in (await c.list_tools()).tools], protocol=c.protocol_version)
    name, _, args = step.partition("=")
    kw = {"meta": json.loads(ENV("META"))} if ENV("META") else {}
    r = await c.call_tool(name, json.loads(args or "{}"), progress_callback=progress if ENV("PROGRESS") else None, **kw)
    say(step=name, text=[b.text for b in r.content if b.type == "text"], isError=bool(r.is_error), _meta=r.meta,
        **({"structured": r.structured_content} if r.structured_content is not None else {}))

def root(e):     # task groups wrap what happened
    while isinstance(e, BaseExceptionGroup) and e.exceptions:
        e = e.exceptions[0]
    return e

def failed(step, e):
    e = root(e)
    say(step=step, error={"type": type(e).__name__, "message": str(e)[:300],
                          **({"code": e.code, "data": e.data} if isinstance(e, MCPError) else {})})

async def main():
    kw = {"elicitation_callback": elicit} if ENV("CONFIRM") else {}
    try:
        async with Client(ENV("URL", "http://127.0.0.1:3905/mcp"), mode=ENV("MODE", "auto"),
                          read_timeout_seconds=float(ENV("TIMEOUT", "10")), **kw) as c:
            for step in STEPS:
                try:
                    await run(c, step)
                except Exception as e:
                    failed(step.partition("=")[0], e)
    except BaseException as e:
        failed("session", e)

asyncio.run(main())
