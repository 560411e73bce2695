"""The loop: what a turn, a call, an event, a delta and a parked run cost."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import trio

from benchmarks import _floor
from trioagent import (
    Agent,
    Limits,
    ModelRequest,
    Reply,
    TextDelta,
    Tool,
    ToolCall,
    Usage,
    tool,
)
from trioagent.testing import MemoryStore

USAGE = Usage(input_tokens=1, output_tokens=1)
LONG = Limits(turns=10_000, tool_calls=10_000)
CALL = Reply(tool_calls=(ToolCall("noop"),), finish_reason="tool_calls", usage=USAGE)
DONE = Reply(text="ok")


@tool(effect="read")
async def noop() -> str:
    """Do nothing."""
    await trio.lowlevel.checkpoint()
    return "ok"


@tool(effect="read")
async def park() -> str:
    """Wait until cancelled."""
    await trio.sleep_forever()


class Noops:
    """A model that calls `noop` for so many turns; it notes when it was asked."""

    name = "bench:noops"

    def __init__(self, turns: int, reply: Reply = CALL) -> None:
        self.left = turns
        self.reply = reply
        self.asked: list[int] = []

    @asynccontextmanager
    async def open_reply(self, request: ModelRequest) -> Any:
        """One reply, at once."""
        self.asked.append(time.perf_counter_ns())
        self.left -= 1
        async with aclosing(_one(self.reply if self.left >= 0 else DONE)) as it:
            yield it


async def _one(reply: Reply) -> Any:
    await trio.lowlevel.checkpoint()
    yield reply


class Deltas:
    """A model that answers with `n` deltas of one character."""

    name = "bench:deltas"

    def __init__(self, n: int) -> None:
        self.n = n

    @asynccontextmanager
    async def open_reply(self, request: ModelRequest) -> Any:
        """All deltas, then the reply."""
        async with aclosing(self._stream()) as it:
            yield it

    async def _stream(self) -> Any:
        delta = TextDelta("x")
        for n in range(self.n):
            if n % 100 == 0:
                await trio.lowlevel.checkpoint()
            yield delta
        yield Reply(text="x" * self.n, usage=USAGE)


def timed(run: Callable[[], Awaitable[Any]]) -> float:
    """Seconds one trio run takes, without its start."""

    async def main() -> float:
        gc.collect()
        began = time.perf_counter()
        await run()
        return time.perf_counter() - began

    return trio.run(main)


def medians(rounds: int, *sides: Callable[[], Awaitable[Any]]) -> Iterator[float]:
    """The median seconds of each side; they take turns, the first round is dropped."""
    samples = [[timed(side) for side in sides] for _ in range(rounds + 1)][1:]
    return (statistics.median(column) for column in zip(*samples, strict=True))


def turn_against_floor() -> dict[str, float]:
    """A no-op turn, all events recorded in memory, against bare trio."""
    turns = 300

    async def ours() -> None:
        agent = Agent(Noops(turns), tools=[noop], limits=LONG, store=MemoryStore())
        outcome = await agent.run("go")
        assert outcome.turns == turns + 1

    async def floor() -> None:
        assert await _floor.noop_turns(turns, noop) == 4 * turns

    mine, bare = medians(7, ours, floor)
    return {
        "turn_us": mine / turns * 1e6,
        "floor_us": bare / turns * 1e6,
        "ratio": mine / bare,
    }


def parts_of_a_turn() -> dict[str, float]:
    """What a turn, one more call in it, and one more kept event cost."""
    turns = 200

    def run_of(calls: int, *, kept: bool) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            reply = msgspec.structs.replace(CALL, tool_calls=CALL.tool_calls * calls)
            store = MemoryStore() if kept else None
            agent = Agent(Noops(turns, reply), tools=[noop], limits=LONG, store=store)
            await agent.run("go")

        return run

    one, many, unkept = medians(
        5, run_of(1, kept=True), run_of(11, kept=True), run_of(1, kept=False)
    )
    return {
        "us_per_turn": one / turns * 1e6,
        "us_per_further_call": (many - one) / turns / 10 * 1e6,
        "us_per_event_kept_in_memory": (one - unkept) / turns / 4 * 1e6,
        "call_to_turn": (many - one) / 10 / one,
    }


def a_thousand_tools_against_one() -> dict[str, float]:
    """A turn of an agent with 1,000 tools, against one that has a single tool."""
    turns = 200
    crowd = [tool(noop.fn, name=f"noop_{n}", effect="read") for n in range(999)]

    def run_of(tools: list[Tool]) -> Callable[[], Awaitable[None]]:
        agent = Agent(Noops(0), tools=tools, limits=LONG)

        async def run() -> None:
            agent.model.left = turns  # type: ignore[union-attr]  # it is a Noops
            await agent.run("go")

        return run

    many, one = medians(7, run_of([noop, *crowd]), run_of([noop]))
    return {"us_with_1000": many / turns * 1e6, "ratio": many / one}


def late_turn_against_early() -> dict[str, float]:
    """Turns 500 and 1,000 of a run against turn 10; medians of 50 turns around."""
    early, middle, late = [], [], []
    for _ in range(5):
        model = Noops(1_000)
        agent = Agent(model, tools=[noop], limits=LONG)
        trio.run(agent.run, "go")
        steps = [b - a for a, b in zip(model.asked, model.asked[1:], strict=False)]
        early.append(statistics.median(steps[10:60]))
        middle.append(statistics.median(steps[475:525]))
        late.append(statistics.median(steps[940:990]))
    a, b, c = (statistics.median(each) for each in (early, middle, late))
    return {
        "turn_10_us": a / 1e3,
        "turn_500_us": b / 1e3,
        "ratio_500": b / a,
        "ratio_1000": c / a,
    }


def deltas_in_linear_time() -> dict[str, float]:
    """100,000 one-character deltas, against half as many; read by a reader."""

    def watch(n: int) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            async with Agent(Deltas(n)).open("go") as running:
                count = 0
                async for event in running:
                    count += isinstance(event, TextDelta)
            assert count == n

        return run

    full, half = medians(5, watch(100_000), watch(50_000))
    return {"us_per_delta": full / 100_000 * 1e6, "ratio_2n_to_n": full / half}


def many_runs_at_once() -> dict[str, float]:
    """1,000 and 10,000 runs at once: a turn against one run, memory of a parked one."""
    turns, runs = 10, 1_000

    async def one() -> None:
        await Agent(Noops(turns), tools=[noop]).run("go")

    async def all_at_once(runs: int = runs) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(runs):
                nursery.start_soon(one)

    async def one_by_one() -> None:
        for _ in range(runs):
            await one()

    crowd, alone = medians(3, all_at_once, one_by_one)
    multitude = timed(lambda: all_at_once(10_000))
    agents = trio.run(_memory_of_parked, runs, _park_agent)
    floor = trio.run(_memory_of_parked, runs, _floor.parked)
    return {
        "us_per_turn": crowd / runs / (turns + 1) * 1e6,
        "ratio_to_one_run": crowd / alone,
        "ratio_of_10000": multitude / 10 / alone,
        "kib_per_parked_run": agents / 1024,
        "floor_kib": floor / 1024,
    }


class _Parking:
    name = "bench:parking"

    def __init__(self, started: trio.Semaphore) -> None:
        self.started = started

    @asynccontextmanager
    async def open_reply(self, request: ModelRequest) -> Any:
        async with aclosing(
            _one(msgspec.structs.replace(CALL, tool_calls=(ToolCall("park"),)))
        ) as it:
            yield it
        self.started.release()


async def _park_agent(started: trio.Semaphore) -> None:
    await Agent(_Parking(started), tools=[park]).run("go")


async def _memory_of_parked(
    runs: int, park_one: Callable[[trio.Semaphore], Awaitable[None]]
) -> float:
    started = trio.Semaphore(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(park_one, started)  # what is made once is not counted
        await started.acquire()
        gc.collect()
        tracemalloc.start()
        for _ in range(runs):
            nursery.start_soon(park_one, started)
        for _ in range(runs):
            await started.acquire()
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        nursery.cancel_scope.cancel()
    return used / runs


def import_against_floor() -> dict[str, float]:
    """`import trioagent` against `import trio, msgspec`, each in a new process."""

    # Installed packages are compiled; so are we, after the first time.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def one(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=env)
        return time.perf_counter() - began

    sides = ["import trioagent", "import trio, msgspec", "pass"]
    samples = [[one(code) for code in sides] for _ in range(16)][1:]
    ours, floor, nothing = (
        statistics.median(column) for column in zip(*samples, strict=True)
    )
    return {
        "import_ms": (ours - nothing) * 1e3,
        "floor_ms": (floor - nothing) * 1e3,
        "ratio": (ours - nothing) / (floor - nothing),
    }
