"""The journal: what a durable event costs, against bare SQLite commits.

Rows of the floor are those of the store, and so are its pragmas. Both sides write to
the same disk in the same run, in turns. What an fsync costs is the disk's affair.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import trio

from trioagent import (
    Agent,
    KeptEvent,
    Limits,
    ModelAsked,
    ModelReplied,
    Reply,
    RunEnded,
    RunStarted,
    Status,
    ToolCall,
    ToolEnded,
    ToolStarted,
    Usage,
    UserMessage,
    tool,
)
from trioagent._events import Effect, EffectStatus
from trioagent._state import RunState
from trioagent.stores.sqlite import SqliteStore
from trioagent.testing import ScriptedModel, call

EVENT = ModelReplied(Reply(text="x" * 500, usage=Usage(input_tokens=1)))
PAGE = 4096 + 24  # of the WAL: a page and its header


@contextmanager
def folder() -> Iterator[Path]:
    """On the disk that the tests use."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


async def ours(path: Path, writers: int, each: int) -> list[float]:
    """Seconds of each append, of so many runs at once."""
    seconds: list[float] = []

    async def write(run_id: str) -> None:
        await store.append(run_id, RunStarted(run_id=run_id), claim=1)
        for _ in range(each):
            began = time.perf_counter()
            await store.append(run_id, EVENT, claim=1)
            seconds.append(time.perf_counter() - began)

    async with SqliteStore(path) as store:
        async with trio.open_nursery() as nursery:
            for n in range(writers):
                nursery.start_soon(write, f"run_{n}")
    return seconds


async def floor(path: Path, writers: int, each: int) -> list[float]:
    """The same in the trio thread: `writers` tasks that block everybody in turn."""
    seconds: list[float] = []
    insert = "INSERT INTO events VALUES (?, ?, ?)"
    encode = msgspec.json.Encoder().encode

    async def write(run: int) -> None:
        for seq in range(each):
            began = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(insert, (run, seq, encode(EVENT).decode()))
            connection.execute("COMMIT")
            seconds.append(time.perf_counter() - began)
            await trio.lowlevel.checkpoint()

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(
            "CREATE TABLE events (run INTEGER, seq INTEGER, event TEXT, "
            "PRIMARY KEY (run, seq))"
        )
        async with trio.open_nursery() as nursery:
            for n in range(writers):
                nursery.start_soon(write, n)
    return seconds


def append_against_floor() -> dict[str, float]:
    """Durable appends, 1 and 32 writers, against commits in the trio thread."""
    figures: dict[str, float] = {}
    for writers, each in ((1, 300), (32, 100)):
        sides = {"ours": ours, "floor": floor}
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(7):
            for name, side in sides.items():
                with folder() as path:
                    began = time.perf_counter()
                    seconds[name] += trio.run(side, path / "j.db", writers, each)
                    spent = time.perf_counter() - began
                    rates[name].append(writers * each / spent)
        for name in sides:
            cuts = statistics.quantiles(seconds[name], n=100)
            figures[f"{name}_p50_us_{writers}"] = cuts[49] * 1e6
            figures[f"{name}_p99_us_{writers}"] = cuts[98] * 1e6
            figures[f"{name}_per_s_{writers}"] = statistics.median(rates[name])
        figures[f"p50_ratio_{writers}"] = (
            figures[f"ours_p50_us_{writers}"] / figures[f"floor_p50_us_{writers}"]
        )
        figures[f"rate_ratio_{writers}"] = (
            figures[f"ours_per_s_{writers}"] / figures[f"floor_per_s_{writers}"]
        )
    return figures


def event_10_against_10000() -> dict[str, float]:
    """An event early and late in a run of 10,100: pages written, and microseconds."""
    spent: list[float] = []
    pages: list[int] = []

    async def write(path: Path) -> None:
        async with SqliteStore(path) as store:
            await store.append("run", RunStarted(run_id="run"), claim=1)
            connection = store._journal.connection  # noqa: SLF001 - no checkpoints, so
            assert (
                connection is not None
            )  # that the WAL tells each page that is written
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            for _ in range(10_100):
                began = time.perf_counter()
                await store.append("run", EVENT, claim=1)
                spent.append(time.perf_counter() - began)
                pages.append(os.stat(f"{path}-wal").st_size // PAGE)

    with folder() as path:
        trio.run(write, path / "j.db")
    early, late = slice(10, 110), slice(10_000, 10_099)
    return {
        "us_at_10": statistics.median(spent[early]) * 1e6,
        "us_at_10000": statistics.median(spent[late]) * 1e6,
        "us_ratio": statistics.median(spent[late]) / statistics.median(spent[early]),
        "pages_at_10": (pages[110] - pages[10]) / 100,
        "pages_at_10000": (pages[10_099] - pages[9_999]) / 100,
    }


def a_run(turns: int) -> list[KeptEvent]:
    """The journal of a run with so many turns of one call, two kilobytes a turn."""
    events: list[KeptEvent] = [
        RunStarted(run_id="run", messages=(UserMessage("go"),), limits={"turns": 9_999})
    ]
    for turn in range(1, turns + 1):
        asked = ToolCall("look", '{"q":"' + "x" * 500 + '"}', f"c{turn}", turn=turn)
        usage = Usage(input_tokens=1, output_tokens=1)
        reply = Reply(text="y" * 500, tool_calls=(asked,), usage=usage)
        status = EffectStatus.NONE
        events += [
            ModelAsked(turn),
            ModelReplied(reply),
            ToolStarted(asked, Effect.READ),
            ToolEnded(call=asked, content="z" * 1_000, effect_status=status),
        ]
    return [*events, RunEnded(Status.MAX_TURNS)]


def commits_of_a_turn() -> dict[str, float]:
    """Commits and pages of a turn that calls one tool with an effect, and all of it."""

    @tool(effect="once")
    async def pay() -> str:
        await trio.lowlevel.checkpoint()
        return "paid"

    async def run(path: Path) -> tuple[int, int, float]:
        async with SqliteStore(path) as store:
            await store.append("other", RunStarted(run_id="other"), claim=1)
            before = wal(path)
            began = time.perf_counter()
            model = ScriptedModel([call("pay")] * 100 + ["done"])
            limits = Limits(turns=200, tool_calls=200)
            await Agent(model, tools=[pay], store=store, limits=limits).run("go")
            spent = time.perf_counter() - began
            after = wal(path)
        return after[0] - before[0], after[1] - before[1], spent

    with folder() as path:
        commits, pages, spent = trio.run(run, path / "j.db")
    return {
        "commits_a_turn": commits / 101,
        "pages_a_turn": pages / 101,
        "ms_a_turn": spent / 101 * 1e3,
    }


def a_hundred_runs_against_one() -> dict[str, float]:
    """Turns a second of 100 runs with one journal, against those of a single run."""
    turns = 20

    @tool(effect="once")
    async def pay() -> str:
        await trio.lowlevel.checkpoint()
        return "paid"

    async def one(store: SqliteStore) -> None:
        model = ScriptedModel([call("pay")] * turns + ["done"])
        limits = Limits(turns=200, tool_calls=200)
        await Agent(model, tools=[pay], store=store, limits=limits).run("go")

    async def run(path: Path, runs: int) -> float:
        async with SqliteStore(path) as store:
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(runs):
                    nursery.start_soon(one, store)
            return runs * (turns + 1) / (time.perf_counter() - began)

    with folder() as path:
        samples = [
            [trio.run(run, path / f"{n}_{runs}.db", runs) for runs in (1, 100)]
            for n in range(5)
        ]
    alone, many = (statistics.median(side) for side in zip(*samples, strict=True))
    return {
        "turns_s_of_1": alone,
        "turns_s_of_100": many,
        "throughput_ratio": many / alone,
    }


def wal(path: Path) -> tuple[int, int]:
    """Commits and frames in the WAL: the last frame of a commit carries a size."""
    data = Path(f"{path}-wal").read_bytes()
    frames = range(32, len(data), PAGE)
    sizes = (struct.unpack_from(">4xI", data, at)[0] for at in frames)
    return sum(map(bool, sizes)), len(frames)


def resume_a_long_run() -> dict[str, float]:
    """Load and replay the journal of 1,000 turns: 4,002 events, 2 MB."""
    events = a_run(1_000)

    async def both(path: Path) -> tuple[float, float]:
        async with SqliteStore(path) as store:
            for event in events:
                last = isinstance(event, RunEnded)
                await store.append("run", event, claim=1, durable=last)
            samples = [await self_timed(store) for _ in range(8)][1:]
        load, replay = zip(*samples, strict=True)
        return statistics.median(load), statistics.median(replay)

    async def self_timed(store: SqliteStore) -> tuple[float, float]:
        began = time.perf_counter()
        loaded = await store.load("run")
        middle = time.perf_counter()
        assert len(loaded) == len(events)
        assert RunState.replay(loaded).step_count == 1_000
        return middle - began, time.perf_counter() - middle

    with folder() as path:
        load, replay = trio.run(both, path / "j.db")
    return {"load_ms": load * 1e3, "replay_ms": replay * 1e3}
