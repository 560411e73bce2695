"""From `run.cancel()` until all is over, against bare trio.

The bench measures the same from outside, with a thread that stops the run; here there
is no thread and no waking up, so what we add to trio shows larger.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from trioagent import Agent, Limits, ModelRequest, Reply, ToolCall, tool
from trioagent.testing import MemoryStore


class Gate:
    """Opens when so many tools wait."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.open = trio.Event()

    def enter(self) -> None:
        self.left -= 1
        if not self.left:
            self.open.set()


async def timed_stop(
    size: int, run: Callable[[Gate, Callable[[Any], None]], Awaitable[None]]
) -> int:
    """Nanoseconds from the cancel until `run` has returned."""
    gate, stamps = Gate(size), [0]

    async def stop(cancel: Callable[[], Any]) -> None:
        await gate.open.wait()
        await trio.testing.wait_all_tasks_blocked()
        stamps[0] = time.perf_counter_ns()
        cancel()

    async with trio.open_nursery() as nursery:
        await run(gate, lambda cancel: nursery.start_soon(stop, cancel))
        return time.perf_counter_ns() - stamps[0]


def ours(size: int) -> Callable[[Gate, Callable[[Any], None]], Awaitable[None]]:
    """A run with so many tools that wait, and a journal in memory."""

    @tool(effect="read")
    async def park() -> str:
        gates[-1].enter()
        await trio.sleep_forever()

    gates: list[Gate] = []
    limits = Limits(parallel_tools=size, tool_calls=size)
    agent = Agent(Calls(size), tools=[park], limits=limits, store=MemoryStore())

    async def run(gate: Gate, stop_later: Callable[[Any], None]) -> None:
        gates.append(gate)
        async with agent.open("go") as running:
            stop_later(running.cancel)
            async for _ in running:
                pass
        assert len(running.outcome.tools) == size

    return run


class Calls:
    """A model that calls `park` so many times at once."""

    name = "bench:calls"

    def __init__(self, size: int) -> None:
        self.reply = Reply(
            tool_calls=(ToolCall("park"),) * size, finish_reason="tool_calls"
        )

    @asynccontextmanager
    async def open_reply(self, request: ModelRequest) -> AsyncGenerator[Any]:
        """One reply."""
        yield self._parts()

    async def _parts(self) -> AsyncGenerator[Reply]:
        await trio.lowlevel.checkpoint()
        yield self.reply


def bare(size: int) -> Callable[[Gate, Callable[[Any], None]], Awaitable[None]]:
    """The same by hand: a scope, a nursery, a deadline and a note for each."""

    async def one(gate: Gate, notes: list[tuple[str, float]]) -> None:
        with trio.move_on_after(30):
            try:
                gate.enter()
                await trio.sleep_forever()
            finally:
                notes.append(("lost", trio.current_time()))

    async def run(gate: Gate, stop_later: Callable[[Any], None]) -> None:
        notes: list[tuple[str, float]] = []
        with trio.CancelScope() as scope:
            stop_later(scope.cancel)
            async with trio.open_nursery() as nursery:
                for _ in range(size):
                    nursery.start_soon(one, gate, notes)
        assert len(notes) == size

    return run


def stop_against_floor() -> dict[str, float]:
    """Cancel to the end of the run, with 1 to 1,000 tools that wait."""
    found: dict[str, float] = {}
    for size, rounds in ((1, 300), (10, 300), (100, 200), (1_000, 40)):
        mine, floor = ours(size), bare(size)
        samples: list[tuple[int, int]] = []

        async def main(
            mine: Any = mine,
            floor: Any = floor,
            samples: Any = samples,
            rounds: int = rounds,
            size: int = size,
        ) -> None:
            for _ in range(rounds + 5):
                samples.append(
                    (await timed_stop(size, mine), await timed_stop(size, floor))
                )

        trio.run(main)
        a, b = (statistics.median(side) for side in zip(*samples[5:], strict=True))
        found[f"us_{size}"] = a / 1e3
        found[f"ratio_{size}"] = a / b
    return found
