"""What every driver speaks with its test: one JSON line for a step, one JSON line for what came of it.

    {"do": "list"}                               -> {"tools": {name: input schema}, "protocol": "2025-11-25"}
    {"do": "call", "name", "arguments", "meta"}  -> {"text", "is_error", "meta"}, or {"failed": "..."}

CONFIRM declares elicitation and says how it is answered, `decline` and `accept` one after the other with a
comma between; a question then comes before the answer of its call as {"asked": "..."}.
"""
import asyncio
import json
import os
import sys

CONFIRM = os.environ.get("CONFIRM")
ANSWERS = iter((CONFIRM or "").split(","))


def say(**line):
    print(json.dumps(line), flush=True)


async def steps():
    """The steps as they come; ends with the input."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield json.loads(line)


async def serve(listed, call):
    """Does each step: `listed()` gives what is said of the tools, `call(name, arguments, meta)` of one call."""
    async for step in steps():
        try:
            if step["do"] == "list":
                say(**await listed())
            else:
                say(**await call(step["name"], step["arguments"], step.get("meta")))
        except Exception as error:
            say(failed=f"{type(error).__name__}: {error}")


def content(message):
    """What the person in front of the client says to a question: the action, and the form's content."""
    say(asked=message)
    return ("accept", {"confirm": True}) if next(ANSWERS) == "accept" else ("decline", None)


def answer(blocks, is_error, meta):
    text = "\n".join(block.text for block in blocks if block.type == "text")
    return {"text": text, "is_error": bool(is_error), "meta": meta}
