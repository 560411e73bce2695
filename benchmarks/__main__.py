"""Measure the core: `python -m benchmarks [--json FILE]`.

Each figure is a ratio to a floor, or to itself at another size, in the same run: so it
says something on any machine. The two sides take turns, and the medians are compared.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from benchmarks import _floor, _isolate, _journal, _wire
from trioagent import (
    Agent,
    Limits,
    ModelRequest,
    Reply,
    TextDelta,
    ToolCall,
    Usage,
    tool,
)
from trioagent.testing import MemoryStore

USAGE = Usage(input_tokens=1, output_tokens=1)
LONG = Limits(turns=10_000, tool_calls=10_000)
CALL = Reply(tool_calls=(ToolCall("noop"),), finish_reason="tool_calls", usage=USAGE)


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

    def __init__(self, turns: int) -> None:
        self.left = turns
        self.asked: list[int] = []

    @asynccontextmanager
    async def open_reply(self, request: ModelRequest) -> Any:
        """One reply, at once."""
        self.asked.append(time.perf_counter_ns())
        self.left -= 1
        async with aclosing(_one(CALL if self.left >= 0 else Reply(text="ok"))) as it:
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


def late_turn_against_early() -> dict[str, float]:
    """Turns 990 to 1,000 of one run against turns 10 to 20."""
    early, late = [], []
    for _ in range(5):
        model = Noops(1_000)
        agent = Agent(model, tools=[noop], limits=LONG)
        trio.run(agent.run, "go")
        steps = [b - a for a, b in zip(model.asked, model.asked[1:], strict=False)]
        early.append(statistics.median(steps[10:60]))
        late.append(statistics.median(steps[940:990]))
    a, b = statistics.median(early), statistics.median(late)
    return {"turn_10_us": a / 1e3, "turn_1000_us": b / 1e3, "ratio": b / a}


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
    """1,000 runs at once: CPU per turn against one run, memory of a parked one."""
    turns, runs = 10, 1_000

    async def one() -> None:
        await Agent(Noops(turns), tools=[noop]).run("go")

    async def all_at_once() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(runs):
                nursery.start_soon(one)

    async def one_by_one() -> None:
        for _ in range(runs):
            await one()

    crowd, alone = medians(3, all_at_once, one_by_one)
    agents = trio.run(_memory_of_parked, runs, _park_agent)
    floor = trio.run(_memory_of_parked, runs, _floor.parked)
    return {
        "us_per_turn": crowd / runs / (turns + 1) * 1e6,
        "ratio_to_one_run": crowd / alone,
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

    def one(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
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


BENCHMARKS = [
    turn_against_floor,
    late_turn_against_early,
    deltas_in_linear_time,
    many_runs_at_once,
    import_against_floor,
    _wire.decode_against_httpx_sse,
    _wire.request_building,
    _journal.append_against_floor,
    _journal.event_10_against_10000,
    _journal.commits_of_a_turn,
    _journal.resume_a_long_run,
    _isolate.isolated_against_floor,
]


def environment() -> dict[str, Any]:
    """Where and of what the figures are."""
    root = Path(__file__).parent.parent
    git = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "trio": trio.__version__,
        "msgspec": msgspec.__version__,
    }


def main() -> None:
    """Run them all, and print one line for each figure."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("names", nargs="*", help="only these")
    options = parser.parse_args()
    results: dict[str, Any] = {"environment": environment()}
    for benchmark in BENCHMARKS:
        if options.names and benchmark.__name__ not in options.names:
            continue
        about = (benchmark.__doc__ or "").splitlines()[0]
        print(f"{benchmark.__name__}: {about}")
        figures = benchmark()
        results[benchmark.__name__] = figures
        for name, value in figures.items():
            print(f"    {name:22} {value:10.2f}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
