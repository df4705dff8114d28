"""An agent of openai-agents whose model is the test's script; the URL is the only argument.

Each call is what the model asks for next, and what is said of it is what the model reads before it goes
on: the output of the call, word for word. One run of the agent for all calls.
"""
import asyncio
import itertools
import sys

import lines
from agents import Agent, Runner, set_tracing_disabled
from agents.items import ModelResponse
from agents.mcp import MCPServerStreamableHttp
from agents.models.interface import Model
from agents.usage import Usage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

set_tracing_disabled(True)


def text(output):
    """An output as a model reads it: a text, or parts with a text."""
    if isinstance(output, str):
        return output
    parts = output if isinstance(output, list) else [output]
    return "\n".join(part["text"] for part in parts)


class Scripted(Model):
    def __init__(self, server):
        self.server = server
        self.steps = lines.steps()
        self.numbers = itertools.count()
        self.asked = None

    async def get_response(self, *_arguments, input, **_settings):
        if self.asked is not None:
            outputs = [item for item in input if item.get("type") == "function_call_output"]
            assert outputs[-1]["call_id"] == self.asked, outputs[-1]
            lines.say(text=text(outputs[-1]["output"]), is_error=None, meta=None)
        async for step in self.steps:
            if step["do"] == "list":
                found = await self.server.list_tools()
                lines.say(tools={tool.name: tool.inputSchema for tool in found}, protocol=None)
                continue
            return self.response(self.called(step))
        done = ResponseOutputText(type="output_text", text="done", annotations=[])
        message = ResponseOutputMessage(
            id="m", type="message", role="assistant", status="completed", content=[done]
        )
        return self.response(message)

    def called(self, step):
        assert step.get("meta") is None, "a model cannot send _meta"
        self.asked = f"call-{next(self.numbers)}"
        return ResponseFunctionToolCall(
            type="function_call",
            name=step["name"],
            arguments=lines.json.dumps(step["arguments"]),
            call_id=self.asked,
        )

    @staticmethod
    def response(item):
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *_arguments, **_settings):
        raise NotImplementedError


async def main(url):
    async with MCPServerStreamableHttp(params={"url": url}, client_session_timeout_seconds=20) as server:
        agent = Agent(name="scripted", mcp_servers=[server], model=Scripted(server))
        await Runner.run(agent, "go", max_turns=100)


asyncio.run(main(sys.argv[1]))
