"""What it costs to run a tool in a process that can be ended."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from operator import add
from typing import Any

import trio

from trioagent.isolate._supervised import open_supervised
from trioagent.isolate.workers import WorkerPool

ROUNDS, WARM = 15, 20
HANG = [
    sys.executable,
    "-S",
    "-c",
    "import time; print('', flush=True); time.sleep(99)",
]


class Samples:
    """How long each of several things takes, in one trio run and in turns."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    async def note(
        self, name: str, step: Callable[..., Awaitable[Any]], *args: Any
    ) -> None:
        """Do it once."""
        began = time.perf_counter()
        await step(*args)
        took = time.perf_counter() - began
        self.seconds.setdefault(name, []).append(took)

    async def workers(self) -> None:
        """A new worker, and then a warm one; a new Python, and a thread."""
        await self.note("python_floor", spawn, sys.executable, "-c", "import pickle")
        async with WorkerPool() as pool:
            await self.note("cold_start", pool.call, "operator", "add", (1, 2))
            for _ in range(WARM):
                await self.note("thread_floor", trio.to_thread.run_sync, add, 1, 2)
                await self.note("warm_call", pool.call, "operator", "add", (1, 2))

    async def commands(self) -> None:
        """A command, with and without a warden, and the end of one that hangs."""
        await self.note("command_floor", spawn, "true")
        await self.note("command", supervise, "true")
        async with open_supervised(HANG) as process:
            await process.stdout.receive_some()
            await self.note("end", process.stop)

    async def take(self) -> None:
        """All of it, several times."""
        for _ in range(ROUNDS):
            await self.workers()
            await self.commands()


async def spawn(*argv: str) -> None:
    await trio.to_thread.run_sync(lambda: subprocess.run(argv, check=True))


async def supervise(*argv: str) -> None:
    async with open_supervised(argv) as process:
        await process.wait()


def isolated_against_floor() -> dict[str, float]:
    """A worker and a command under a warden, against `subprocess` and `to_thread`."""
    samples = Samples()
    trio.run(samples.take)
    seconds = {name: statistics.median(s) for name, s in samples.seconds.items()}
    return {
        **{f"{name}_ms": median * 1e3 for name, median in seconds.items()},
        "cold_ratio": seconds["cold_start"] / seconds["python_floor"],
        "warm_ratio": seconds["warm_call"] / seconds["thread_floor"],
    }
