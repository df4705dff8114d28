"""The tools that langchain-mcp-adapters makes of an MCP server; the URL is the only argument.

One session for all calls. What is said of a call is what a model reads, an error like any other text.
"""
import asyncio
import sys

import lines
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools


async def main(url):
    client = MultiServerMCPClient({"gateway": {"url": url, "transport": "streamable_http"}})
    async with client.session("gateway") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session)}

        async def listed():
            return {"tools": {name: tool.args_schema for name, tool in tools.items()}, "protocol": None}

        async def call(name, arguments, meta):
            assert meta is None, "there is no way to send _meta"
            said = await tools[name].ainvoke(arguments)
            if not isinstance(said, str):
                said = "\n".join(block["text"] for block in said if block["type"] == "text")
            return {"text": said, "is_error": None, "meta": None}

        await lines.serve(listed, call)


asyncio.run(main(sys.argv[1]))
