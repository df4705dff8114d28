"""The Python MCP client of the older era (2025-11-25) through a sidecar; URL is the only argument."""
import asyncio
import sys

import expected
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


async def main(url):
    async with streamablehttp_client(url) as (reads, writes, _):
        async with ClientSession(reads, writes) as session:
            await session.initialize()
            listed = await session.list_tools()

            async def call(name, arguments, meta=None):
                result = await session.call_tool(name, arguments, meta=meta)
                text = "\n".join(block.text for block in result.content if block.type == "text")
                return expected.Answer(text, bool(result.isError), result.meta or {})

            await expected.story([tool.name for tool in listed.tools], call)


asyncio.run(main(sys.argv[1]))
