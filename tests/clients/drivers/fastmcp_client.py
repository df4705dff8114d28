"""The fastmcp client; the URL is the only argument."""
import asyncio
import sys

import lines
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult


async def elicit(message, _type, _params, _context):
    action, content = lines.content(message)
    return ElicitResult(action=action, content=content)


async def main(url):
    extra = {"elicitation_handler": elicit} if lines.CONFIRM else {}
    async with Client(url, timeout=20, **extra) as client:
        async def listed():
            found = await client.list_tools()
            return {"tools": {tool.name: tool.model_dump(by_alias=True)["inputSchema"] for tool in found},
                    "protocol": None}

        async def call(name, arguments, meta):
            result = await client.call_tool(name, arguments, meta=meta, raise_on_error=False)
            return lines.answer(result.content, result.is_error, result.meta)

        await lines.serve(listed, call)


asyncio.run(main(sys.argv[1]))
