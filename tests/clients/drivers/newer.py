"""The Python MCP client that asks for 2026-07-28 first and falls back; the URL is the only argument."""
import asyncio
import sys

import lines
from mcp import Client, types


async def elicit(_context, params):
    action, content = lines.content(params.message)
    return types.ElicitResult(action=action, content=content)


async def main(url):
    extra = {"elicitation_callback": elicit} if lines.CONFIRM else {}
    async with Client(url, read_timeout_seconds=20, **extra) as client:
        async def listed():
            found = (await client.list_tools()).tools
            return {"tools": {tool.name: tool.input_schema for tool in found},
                    "protocol": client.protocol_version}

        async def call(name, arguments, meta):
            extra = {} if meta is None else {"meta": meta}
            result = await client.call_tool(name, arguments, **extra)
            return lines.answer(result.content, result.is_error, result.meta)

        await lines.serve(listed, call)


asyncio.run(main(sys.argv[1]))
