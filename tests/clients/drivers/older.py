"""The Python MCP client of the older era (2025-11-25); the URL is the only argument."""
import asyncio
import sys

import lines
from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client


async def elicit(_context, params):
    action, content = lines.content(params.message)
    return types.ElicitResult(action=action, content=content)


async def main(url):
    extra = {"elicitation_callback": elicit} if lines.CONFIRM else {}
    async with streamablehttp_client(url) as (reads, writes, _):
        async with ClientSession(reads, writes, **extra) as session:
            begun = await session.initialize()

            async def listed():
                found = (await session.list_tools()).tools
                return {"tools": {tool.name: tool.inputSchema for tool in found},
                        "protocol": begun.protocolVersion}

            async def call(name, arguments, meta):
                result = await session.call_tool(name, arguments, meta=meta)
                return lines.answer(result.content, result.isError, result.meta)

            await lines.serve(listed, call)


asyncio.run(main(sys.argv[1]))
