"""asyncio with nothing on top: a TaskGroup for the calls, a timeout for each limit."""
# ruff: noqa: TID251, ASYNC  # this is the other library

from __future__ import annotations

import asyncio
import platform
from importlib.metadata import version
from typing import Any

import httpx

from trioagent.bench._probe import Said
from trioagent.bench._protocol import NotSupported
from trioagent.bench._scenarios import Scene

from ._asyncio import AsyncioBench, AsyncioHandle
from .bare_trio import CHAT, HEADERS, base_url


class Bench(AsyncioBench):
    """A loop of turns, written by hand."""

    name = "bare-asyncio"

    def versions(self) -> dict[str, str]:
        """See `Adapter`."""
        return {"python": platform.python_version(), "httpx": version("httpx")}

    async def prepare(self, scene: Scene) -> None:
        """Nothing is made ahead but the tool."""
        if scene.body == "mcp":
            raise NotSupported("a bare loop has no MCP")
        limits = httpx.Limits(max_connections=1)
        self.client = httpx.AsyncClient(verify=False, timeout=None, limits=limits)

    async def run(self, handle: AsyncioHandle) -> None:
        """Ask, call the tools in a group, and ask again."""
        scene, status = handle.scene, "stopped"
        calls: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(handle.seconds):
                if scene.wire and not scene.body:
                    await self._ask_server(handle)
                else:
                    await self._turns(handle, calls)
            status = "completed"
        except TimeoutError:
            status = "timed_out"
        finally:
            writes = calls if scene.effects else []
            handle.said = Said(
                status=status,
                said=status,
                confirmed=sum(c["done"] for c in writes),
                uncertain=sum(not c["done"] for c in writes),
            )

    async def _turns(self, handle: AsyncioHandle, calls: list[dict[str, Any]]) -> None:
        while True:
            await asyncio.sleep(0)  # a model would take a while
            if not (wanted := handle.work.next_calls()):
                return
            async with asyncio.TaskGroup() as group:
                for name in wanted:
                    what = self._turns if name == "ask" else self._call
                    group.create_task(what(handle, calls))

    async def _call(self, handle: AsyncioHandle, calls: list[dict[str, Any]]) -> None:
        call = {"done": False}
        calls.append(call)
        async with asyncio.timeout(30):
            if handle.scene.body == "thread":
                await asyncio.to_thread(handle.work.thread_tool)
            else:
                await handle.work.tool()
        call["done"] = True

    async def _ask_server(self, handle: AsyncioHandle) -> None:
        if handle.scene.mode == "contended":
            await self._ask(self.client, handle)
        else:
            async with httpx.AsyncClient(verify=False, timeout=None) as client:
                await self._ask(client, handle)

    async def _ask(self, client: httpx.AsyncClient, handle: AsyncioHandle) -> None:
        url = f"{base_url(handle.scene)}/chat/completions"
        while True:
            async with client.stream("POST", url, json=CHAT, headers=HEADERS) as reply:
                if reply.status_code < 300:
                    async for _ in reply.aiter_lines():
                        handle.probe.show()
                    return
                wait = float(reply.headers["retry-after"])
            await asyncio.sleep(wait)
