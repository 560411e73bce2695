"""This project itself."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import trio

import trioagent
from trioagent import Agent, Limits, Model, Outcome, Reply, Status, TextDelta, ToolCall
from trioagent.bench._probe import Said
from trioagent.bench._protocol import NotSupported
from trioagent.bench._scenarios import Scene
from trioagent.models.openai_chat import OpenAIChat
from trioagent.testing import MemoryStore

from ._trio import TrioBench, TrioHandle
from .bare_trio import base_url

MCP_SERVER = str(Path(__file__).with_name("mcp_server.py"))
STATUS = {
    Status.COMPLETED: "completed",
    Status.CANCELLED: "stopped",
    Status.INTERRUPTED: "stopped",  # what an enclosing scope is called
    Status.TIMED_OUT: "timed_out",
}


class Bench(TrioBench):
    """An agent with a journal in memory, stopped by `run.cancel`."""

    name = "trioagent"
    packages: tuple[str, ...] = ("trio", "msgspec", "httpx")

    def versions(self) -> dict[str, str]:
        """See `Adapter`."""
        try:
            own = version("trioagent")
        except ImportError:
            own = "from source"
        return {"trioagent": own, **super().versions()}

    async def prepare(self, scene: Scene) -> None:
        """Make the agent."""
        self.store = MemoryStore()
        played: Model = Played(self)
        model = played
        if scene.wire and not scene.body:
            model = OpenAIChat(
                "bench",
                base_url=base_url(scene),
                api_key="none",
                connections=1 if scene.mode == "contended" else 100,
            )
        agent = Agent(
            model,
            tools=[self._tool(scene)],
            store=self.store,
            approve=self._approve if scene.body == "approval" else None,
            limits=Limits(parallel_tools=scene.tools, tool_calls=scene.tools + 10),
        )
        for level in range(1, scene.depth):
            tool = agent.as_tool("ask", f"An agent of level {level}.")
            agent = Agent(played, tools=[tool], store=self.store)
        self.agent = agent

    def _tool(self, scene: Scene) -> Any:
        effect = "once" if scene.effects or scene.body == "approval" else "read"
        if scene.body == "mcp":
            try:
                from trioagent.mcp import MCPServer
            except ImportError as error:
                raise NotSupported(str(error)) from None
            return MCPServer.stdio([sys.executable, MCP_SERVER, scene.server])
        if scene.body == "thread":
            mode = "cooperative" if scene.mode == "cooperative" else "wait"
            return trioagent.tool(self._plain, effect=effect, threads=mode, name="work")
        return trioagent.tool(self._work, effect=effect, name="work")

    async def _work(self) -> str:
        """The work."""
        return await self.work.tool()

    def _plain(self) -> str:
        """The work."""
        return self.work.thread_tool()

    async def _approve(self, *_: Any) -> bool:
        await self.work.tool()
        return True

    def check(self) -> None:
        """In a thread of a tool: raise where the run is being stopped."""
        trioagent.check()

    async def run(self, handle: TrioHandle) -> None:
        """Open a run, and read its events to the end."""
        run = None
        try:
            limits = Limits(seconds=handle.seconds)
            async with self.agent.open("go", limits=limits) as run:
                handle.stoppable(run.cancel)
                async for event in run:
                    if isinstance(event, TextDelta):
                        handle.probe.show()
        finally:
            if run is not None:
                handle.said = said(run.outcome, handle.scene)


class Played:
    """A model that the work plays: it calls what is to be called, then it answers."""

    name = "bench:played"

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @asynccontextmanager
    async def open_reply(self, request: Any) -> AsyncGenerator[AsyncIterator[Any]]:
        """See `Model`."""
        await trio.lowlevel.checkpoint()
        calls = self._bench.work.next_calls()
        reply = Reply(
            text="" if calls else "done",
            tool_calls=tuple(
                ToolCall(name, '{"prompt": "go"}') if name == "ask" else ToolCall(name)
                for name in calls
            ),
            finish_reason="tool_calls" if calls else "stop",
        )
        async with aclosing(_parts(reply)) as parts:
            yield parts


async def _parts(reply: Reply) -> AsyncGenerator[Any]:
    yield reply


def said(outcome: Outcome, scene: Scene) -> Said:
    """The outcome in the bench's words."""
    writes = scene.effects
    done = sum(c.effect_status.name == "CONFIRMED" for c in outcome.tools)
    return Said(
        status=STATUS.get(outcome.status, "failed"),
        said=f"{outcome.status.value}: {outcome.stop_reason}",
        confirmed=done if writes else 0,
        uncertain=len(outcome.uncertain) if writes else 0,
    )
