"""pydantic-ai: `agent.run`, stopped by its `CancellationToken`.

The stop raises `RunCancelled`, whose messages say which tools have returned.
"""
# ruff: noqa: TID251, ASYNC  # this is the other library

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx2
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic_ai import Agent, CancellationToken, Tool, capture_run_messages
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.exceptions import RunCancelled, RunTimedOut
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import (
    ModelResponse,
    PartDeltaEvent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from trioagent.bench._probe import Said
from trioagent.bench._scenarios import Scene

from ._asyncio import AsyncioBench, AsyncioHandle
from .bare_trio import base_url

MCP_SERVER = str(Path(__file__).with_name("mcp_server.py"))


class Bench(AsyncioBench):
    """An agent with a tool; the agents below it are run by tools."""

    name = "pydantic-ai"
    packages: tuple[str, ...] = ("pydantic-ai-slim", "openai")

    async def prepare(self, scene: Scene) -> None:
        """Make the agent."""
        played = FunctionModel(self._play)
        model = _client(scene) if scene.wire and not scene.body else played
        if scene.body == "mcp":
            server = {"command": sys.executable, "args": [MCP_SERVER, scene.server]}
            toolset = MCPToolset({"mcpServers": {"bench": server}})
            self.agent = Agent(model, toolsets=[toolset])
        elif scene.body == "approval":
            tool = Tool(self._approved, name="work", requires_approval=True)
            asks = HandleDeferredToolCalls(self._ask_person)
            self.agent = Agent(model, tools=[tool], capabilities=[asks])
        else:
            self.agent = Agent(model, tools=[self._tool(scene)])
        for _ in range(1, scene.depth):
            self.agent = Agent(played, tools=[Tool(_asks(self.agent), name="ask")])

    def _tool(self, scene: Scene) -> Any:
        async def work() -> str:
            """The work."""
            return await self.work.tool()

        def plain() -> str:
            """The work."""
            return self.work.thread_tool()

        return Tool(plain if scene.body == "thread" else work, name="work")

    async def _ask_person(self, _: Any, requests: Any) -> Any:
        await self.work.tool()
        return requests.build_results(approve_all=True)

    async def _approved(self) -> str:
        """The work."""
        return "done"

    async def _play(self, *_: Any) -> ModelResponse:
        """Call what is to be called, then answer."""
        await asyncio.sleep(0)  # a model would take a while
        calls = [ToolCallPart(name, {}) for name in self.work.next_calls()]
        return ModelResponse(parts=calls or [TextPart("done")])

    async def run(self, handle: AsyncioHandle) -> None:
        """Run the agent, with a token that the stop cancels."""
        token = CancellationToken()
        handle.stoppable(token.cancel)
        shown = _shower(handle) if handle.scene.wire == "stream" else None
        limit = handle.seconds if handle.scene.source == "deadline" else None
        with capture_run_messages() as messages:
            try:
                await self.agent.run(
                    "go",
                    cancellation_token=token,
                    timeout=limit,
                    event_stream_handler=shown,
                )
                self._say(handle, "completed", messages)
            except RunTimedOut as error:
                self._say(handle, "timed_out", error.all_messages())
            except RunCancelled as error:
                self._say(handle, "stopped", error.all_messages())
            except asyncio.CancelledError:
                self._say(handle, "stopped", messages)
                raise

    def _say(self, handle: AsyncioHandle, status: str, messages: Iterable[Any]) -> None:
        parts = [part for message in messages for part in message.parts]
        called = sum(isinstance(part, ToolCallPart) for part in parts)
        returned = [part for part in parts if isinstance(part, ToolReturnPart)]
        done = sum(getattr(p, "outcome", "success") == "success" for p in returned)
        writes = handle.scene.effects
        handle.said = Said(
            status=status,
            said=status,
            confirmed=done if writes else 0,
            uncertain=called - done if writes else 0,
        )


def _shower(handle: AsyncioHandle) -> Any:
    async def show(_: Any, events: Any) -> None:
        async for event in events:
            if isinstance(event, PartDeltaEvent):
                handle.probe.show()

    return show


def _asks(below: Any) -> Any:
    async def ask() -> str:
        """An agent."""
        return str((await below.run("go")).output)

    return ask


def _client(scene: Scene) -> Any:
    http = None
    if scene.mode == "contended":
        http = DefaultAsyncHttpxClient(limits=httpx2.Limits(max_connections=1))
    client = AsyncOpenAI(base_url=base_url(scene), api_key="none", http_client=http)
    return OpenAIChatModel("bench", provider=OpenAIProvider(openai_client=client))
