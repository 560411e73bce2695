"""langgraph: `ainvoke` of a prebuilt agent, stopped by cancelling the task.

The stopped caller gets a CancelledError. What the tools have done is in the checkpoint,
so runs whose tools change the world have a checkpointer.
"""
# ruff: noqa: TID251, ASYNC  # this is the other library

from __future__ import annotations

import asyncio
import sys
import warnings
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
from openai import DefaultAsyncHttpxClient

from trioagent.bench._probe import Said
from trioagent.bench._protocol import NotSupported
from trioagent.bench._scenarios import Scene

from ._asyncio import AsyncioBench, AsyncioHandle
from .bare_trio import base_url

MCP_SERVER = str(Path(__file__).with_name("mcp_server.py"))
ASKED = {"messages": [("user", "go")]}


class Bench(AsyncioBench):
    """A prebuilt agent with a tool; the agents below it are invoked by tools."""

    name = "langgraph"
    packages: tuple[str, ...] = ("langgraph", "langchain-core", "langchain-openai")

    async def prepare(self, scene: Scene) -> None:
        """Make the agent."""
        if scene.body == "approval":
            raise NotSupported("an interrupt for approval ends the run: nothing waits")
        warnings.simplefilter("ignore")  # of a newer package that wraps the same agent
        self.threads = count()
        played = Played(bench=self)
        self.model = _client(scene) if scene.wire and not scene.body else played
        tools = [] if scene.body == "mcp" else [self._tool(scene)]
        saver = InMemorySaver() if scene.effects else None
        self.agent = create_react_agent(self.model, tools, checkpointer=saver)
        for _ in range(1, scene.depth):
            ask = StructuredTool.from_function(
                coroutine=_asks(self.agent), name="ask", description="An agent."
            )
            self.agent = create_react_agent(played, [ask])

    def _tool(self, scene: Scene) -> Any:
        async def work() -> str:
            return await self.work.tool()

        def plain() -> str:
            return self.work.thread_tool()

        body: Any = {"func": plain} if scene.body == "thread" else {"coroutine": work}
        return StructuredTool.from_function(
            **body, name="work", description="The work."
        )

    async def run(self, handle: AsyncioHandle) -> None:
        """Invoke the agent, or stream it where its pieces are shown."""
        scene = handle.scene
        config: Any = {"configurable": {"thread_id": str(next(self.threads))}}
        try:
            async with asyncio.timeout(handle.seconds), AsyncExitStack() as stack:
                agent = self.agent
                if scene.body == "mcp":
                    tools = await _mcp_tools(scene, stack)
                    agent = create_react_agent(self.model, tools)
                if scene.wire == "stream":
                    async for _ in agent.astream(ASKED, stream_mode="messages"):
                        handle.probe.show()
                else:
                    await agent.ainvoke(ASKED, config)
            handle.said = self._said("completed", "returned", handle, config)
        except TimeoutError:
            handle.said = self._said("timed_out", "TimeoutError", handle, config)
        except asyncio.CancelledError:
            handle.said = self._said("stopped", "CancelledError", handle, config)
            raise

    def _said(self, status: str, said: str, handle: AsyncioHandle, config: Any) -> Said:
        if not handle.scene.effects:
            return Said(status=status, said=said)
        # Control is back here: to look at the checkpoint is not a part of the stop.
        own = len(asyncio.all_tasks()) - handle.tasks_before - 1
        handle.probe.note_return(lambda: own)
        state = self.agent.get_state(config).values.get("messages", [])
        self.agent.checkpointer.delete_thread(config["configurable"]["thread_id"])
        done = sum(isinstance(message, ToolMessage) for message in state)
        called = sum(len(m.tool_calls) for m in state if isinstance(m, AIMessage))
        return Said(status=status, said=said, confirmed=done, uncertain=called - done)


class Played(BaseChatModel):
    """A model that the work plays: it calls what is to be called, then it answers."""

    bench: Any
    ids: Any = count()

    @property
    def _llm_type(self) -> str:
        return "bench"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """See `BaseChatModel`."""
        return self

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, *_: Any, **__: Any) -> ChatResult:
        await asyncio.sleep(0)  # a model would take a while
        calls = [
            {"name": name, "args": {}, "id": f"call_{next(self.ids)}"}
            for name in self.bench.work.next_calls()
        ]
        message = AIMessage("" if calls else "done", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


async def _mcp_tools(scene: Scene, stack: AsyncExitStack) -> Any:
    try:
        from langchain_mcp_adapters.client import MultiServerMCPClient
        from langchain_mcp_adapters.tools import load_mcp_tools
    except ImportError as error:
        raise NotSupported(str(error)) from None
    server = {
        "command": sys.executable,
        "args": [MCP_SERVER, scene.server],
        "transport": "stdio",
    }
    client = MultiServerMCPClient({"bench": server})
    session = await stack.enter_async_context(client.session("bench"))
    return await load_mcp_tools(session)


def _asks(below: Any) -> Any:
    async def ask() -> str:
        return str((await below.ainvoke(ASKED))["messages"][-1].content)

    return ask


def _client(scene: Scene) -> Any:
    http = None
    if scene.mode == "contended":
        http = DefaultAsyncHttpxClient(limits=httpx2.Limits(max_connections=1))
    return ChatOpenAI(
        model="bench", base_url=base_url(scene), api_key="none", http_async_client=http
    )
