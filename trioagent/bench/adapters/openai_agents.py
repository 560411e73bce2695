"""openai-agents: `Runner.run`, stopped by cancelling the task that awaits it.

A streamed run has a stop of its own, `result.cancel()`, and its reader is told which
tools were called. So runs whose tools change the world are streamed too: the other form
would tell a stopped caller nothing.
"""
# ruff: noqa: TID251, ASYNC  # this is the other library

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
from agents import (
    Agent,
    Model,
    ModelResponse,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    Usage,
    function_tool,
)
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from trioagent.bench._probe import Said
from trioagent.bench._protocol import NotSupported
from trioagent.bench._scenarios import Scene

from ._asyncio import AsyncioBench, AsyncioHandle
from .bare_trio import base_url

MCP_SERVER = str(Path(__file__).with_name("mcp_server.py"))
CONFIG = RunConfig(tracing_disabled=True)


class Bench(AsyncioBench):
    """An agent with a function tool; the agents below it are its tools."""

    name = "openai-agents"
    packages: tuple[str, ...] = ("openai-agents", "openai")

    async def prepare(self, scene: Scene) -> None:
        """Make the agent."""
        if scene.body == "approval":
            raise NotSupported("a run that needs an approval ends there: nothing waits")
        wired = scene.wire and not scene.body
        self.agent = Agent(
            name="bench",
            model=_client(scene) if wired else Played(self),
            tools=[] if scene.body == "mcp" else [self._tool(scene)],
        )
        for level in range(1, scene.depth):
            below = self.agent.as_tool(
                "ask", f"An agent of level {level}.", run_config=CONFIG
            )
            self.agent = Agent(name="bench", model=Played(self), tools=[below])

    def _tool(self, scene: Scene) -> Any:
        async def work() -> str:
            """The work."""
            return await self.work.tool()

        def plain() -> str:
            """The work."""
            return self.work.thread_tool()

        body: Any = plain if scene.body == "thread" else work
        return function_tool(body, name_override="work")

    async def run(self, handle: AsyncioHandle) -> None:
        """Run the agent; where it has an MCP server, inside that one's block."""
        scene = handle.scene
        run = self._stream if scene.wire == "stream" or scene.effects else self._run
        try:
            async with asyncio.timeout(handle.seconds), AsyncExitStack() as stack:
                agent = self.agent
                if scene.body == "mcp":
                    argv = {
                        "command": sys.executable,
                        "args": [MCP_SERVER, scene.server],
                    }
                    server = MCPServerStdio(argv)
                    await stack.enter_async_context(server)
                    agent = agent.clone(mcp_servers=[server])
                await run(agent, handle)
        except TimeoutError:
            named = handle.said.uncertain if handle.said else 0
            handle.said = Said(status="timed_out", uncertain=named)

    async def _run(self, agent: Any, handle: AsyncioHandle) -> None:
        result = await Runner.run(agent, "go", run_config=CONFIG)
        handle.said = Said(status="completed", said=str(result.final_output))

    async def _stream(self, agent: Any, handle: AsyncioHandle) -> None:
        result = Runner.run_streamed(agent, "go", run_config=CONFIG)
        handle.stoppable(result.cancel)
        called = done = 0
        try:
            async for event in result.stream_events():
                if event.type == "raw_response_event":
                    if event.data.type == "response.output_text.delta":
                        handle.probe.show()
                elif event.type == "run_item_stream_event":
                    called += event.name == "tool_called"
                    done += event.name == "tool_output"
        finally:
            # There is no status: a run that was cut has no output.
            writes = handle.scene.effects
            handle.said = Said(
                status="stopped" if result.final_output is None else "completed",
                said=f"is_complete={result.is_complete}, {result.final_output=}",
                confirmed=done if writes else 0,
                uncertain=called - done if writes else 0,
            )


class Played(Model):
    """A model that the work plays: it calls what is to be called, then it answers."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._ids = count()

    def _output(self) -> list[Any]:
        calls = [
            ResponseFunctionToolCall(
                type="function_call",
                call_id=f"call_{next(self._ids)}",
                name=name,
                arguments='{"input": "go"}' if name == "ask" else "{}",
            )
            for name in self._bench.work.next_calls()
        ]
        text = ResponseOutputText(type="output_text", text="done", annotations=[])
        answer = ResponseOutputMessage(
            id="answer",
            type="message",
            role="assistant",
            status="completed",
            content=[text],
        )
        return calls or [answer]

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        """See `Model`."""
        await asyncio.sleep(0)  # a model would take a while
        return ModelResponse(output=self._output(), usage=Usage(), response_id=None)

    async def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """See `Model`."""
        await asyncio.sleep(0)  # a model would take a while
        response = Response(
            id="answer",
            object="response",
            created_at=0,
            model="bench",
            output=self._output(),
            tools=[],
            tool_choice="auto",
            parallel_tool_calls=True,
        )
        yield ResponseCompletedEvent(
            type="response.completed", sequence_number=0, response=response
        )


def _client(scene: Scene) -> Model:
    http = None
    if scene.mode == "contended":
        http = DefaultAsyncHttpxClient(limits=httpx2.Limits(max_connections=1))
    client = AsyncOpenAI(base_url=base_url(scene), api_key="none", http_client=http)
    return OpenAIChatCompletionsModel("bench", client)
