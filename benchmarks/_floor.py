"""The floor: the same work in bare trio, with none of what trioagent adds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio


class Noted(msgspec.Struct, frozen=True):
    """An event, as cheap as one can be."""

    name: str
    at: float


async def noop_turns(turns: int, tool: Callable[[], Awaitable[str]]) -> int:
    """Ask, call one tool under a deadline in a nursery, note both, again and again."""
    events: list[Noted] = []
    history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]

    async def ask() -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        return {"tool_calls": [{"name": "noop", "arguments": "{}"}]}

    async def call(request: dict[str, Any]) -> None:
        msgspec.json.decode(request["arguments"])
        with trio.move_on_after(30):
            history.append({"role": "tool", "content": await tool()})
        events.append(Noted("ToolEnded", trio.current_time()))

    with trio.move_on_after(300):
        for _ in range(turns):
            events.append(Noted("ModelAsked", trio.current_time()))
            with trio.move_on_after(120):
                reply = await ask()
            history.append(reply)
            events.append(Noted("ModelReplied", trio.current_time()))
            async with trio.open_nursery() as nursery:
                for request in reply["tool_calls"]:
                    events.append(Noted("ToolStarted", trio.current_time()))
                    nursery.start_soon(call, request)
    return len(events)


async def parked(started: trio.Semaphore) -> None:
    """A run that waits in a tool: a scope, a nursery, a task."""
    with trio.move_on_after(300):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            started.release()
