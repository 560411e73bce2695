"""The floor: what somebody who knows trio writes by hand, and nothing more."""

from __future__ import annotations

from typing import Any

import httpx
import trio

from trioagent.bench._probe import Said
from trioagent.bench._protocol import NotSupported
from trioagent.bench._scenarios import Scene

from ._trio import TrioBench, TrioHandle

HEADERS = {"authorization": "Bearer none", "content-type": "application/json"}
CHAT = {"model": "bench", "messages": [{"role": "user", "content": "go"}]}


class Bench(TrioBench):
    """A loop, a nursery for the calls, a scope for each limit."""

    name = "bare-trio"
    packages: tuple[str, ...] = ("trio", "httpx")

    async def prepare(self, scene: Scene) -> None:
        """Nothing is made ahead but the tool."""
        if scene.body == "mcp":
            raise NotSupported("a bare loop has no MCP")
        limits = httpx.Limits(max_connections=1)
        self.client = httpx.AsyncClient(verify=False, timeout=None, limits=limits)
        self.call = self._in_thread if scene.body == "thread" else self._work

    async def run(self, handle: TrioHandle) -> None:
        """Ask, call the tools in a nursery, and ask again."""
        scene = handle.scene
        calls: list[dict[str, Any]] = []
        stop, deadline = trio.CancelScope(), trio.CancelScope()
        handle.stoppable(stop.cancel)
        status = "stopped"
        try:
            with stop, deadline:
                deadline.deadline = trio.current_time() + handle.seconds
                if scene.wire and not scene.body:
                    await self._ask_server(handle)
                else:
                    await self._turns(handle, calls)
                status = "completed"
            if deadline.cancelled_caught:
                status = "timed_out"
        finally:
            self._say(handle, status, calls)

    def _say(self, handle: TrioHandle, status: str, calls: list[Any]) -> None:
        writes = calls if handle.scene.effects else []
        handle.said = Said(
            status=status,
            said=status,
            confirmed=sum(c["done"] for c in writes),
            uncertain=sum(not c["done"] for c in writes),
        )

    async def _turns(self, handle: TrioHandle, calls: list[dict[str, Any]]) -> None:
        while True:
            await trio.lowlevel.checkpoint()  # a model would take a while
            if not (wanted := handle.work.next_calls()):
                return
            async with trio.open_nursery() as nursery:
                for name in wanted:
                    what = self._turns if name == "ask" else self._call
                    nursery.start_soon(what, handle, calls)

    async def _call(self, handle: TrioHandle, calls: list[dict[str, Any]]) -> None:
        call = {"done": False}
        calls.append(call)
        with trio.move_on_after(30):
            await self.call(handle)
            call["done"] = True

    def check(self) -> None:
        """In a thread of a tool: raise where the run is being stopped."""
        trio.from_thread.check_cancelled()

    async def _work(self, handle: TrioHandle) -> None:
        await handle.work.tool()

    async def _in_thread(self, handle: TrioHandle) -> None:
        await trio.to_thread.run_sync(handle.work.thread_tool)

    async def _ask_server(self, handle: TrioHandle) -> None:
        if handle.scene.mode == "contended":  # all runs have one client
            await self._ask(self.client, handle)
        else:
            async with httpx.AsyncClient(verify=False, timeout=None) as client:
                await self._ask(client, handle)

    async def _ask(self, client: httpx.AsyncClient, handle: TrioHandle) -> None:
        url = f"{base_url(handle.scene)}/chat/completions"
        while True:
            async with client.stream("POST", url, json=CHAT, headers=HEADERS) as reply:
                if reply.status_code < 300:
                    async for _ in reply.aiter_lines():
                        handle.probe.show()
                    return
                wait = float(reply.headers["retry-after"])
            await trio.sleep(wait)


def base_url(scene: Scene) -> str:
    """Where a client of the Chat Completions API finds the scene's model."""
    size = f"/{scene.payload}" if scene.wire == "stream" else ""
    return f"{scene.server}/{scene.wire}{size}/v1"
