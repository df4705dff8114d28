"""The Python MCP client that asks for 2026-07-28 first and falls back; URL is the only argument."""
import asyncio
import sys

import expected
from mcp import Client


async def main(url):
    async with Client(url, read_timeout_seconds=20) as client:
        listed = await client.list_tools()
        print("protocol", client.protocol_version)

        async def call(name, arguments, meta=None):
            extra = {} if meta is None else {"meta": meta}
            result = await client.call_tool(name, arguments, **extra)
            text = "\n".join(block.text for block in result.content if block.type == "text")
            return expected.Answer(text, bool(result.is_error), result.meta or {})

        await expected.story([tool.name for tool in listed.tools], call)


asyncio.run(main(sys.argv[1]))
