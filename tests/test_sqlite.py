"""The journal in a file: real files, real processes, real kills."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

import trioagent
from trioagent import (
    KeptEvent,
    ModelAsked,
    ModelReplied,
    Reply,
    RunEnded,
    RunStarted,
    StoreError,
    ToolCall,
    ToolEnded,
    ToolStarted,
)
from trioagent._events import Effect, EffectStatus, Status, must_last
from trioagent.stores import _schema, sqlite
from trioagent.stores.sqlite import SqliteStore
from trioagent.testing import check_store

ROOT = Path(trioagent.__file__).parent.parent
DATA = Path(__file__).parent / "data"
BEGIN = RunStarted(run_id="run")
END = RunEnded(Status.COMPLETED)
Worker = Callable[..., Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


class Process:
    """Another process with the same journal; see `journal_worker`."""

    def __init__(self, path: Path) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.journal_worker", path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def tell(self, *command: Any) -> None:
        assert self.popen.stdin
        self.popen.stdin.write(json.dumps(command) + "\n")
        self.popen.stdin.flush()

    def answer(self) -> Any:
        assert self.popen.stdout
        line = self.popen.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None

    def ask(self, *command: Any) -> Any:
        self.tell(*command)
        return self.answer()

    def kill(self) -> list[Any]:
        """Without a warning; what it had said before."""
        self.popen.kill()
        assert self.popen.stdout
        lines = self.popen.stdout.readlines()
        self.popen.wait(10)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait(10)
        for stream in (self.popen.stdin, self.popen.stdout):
            assert stream
            try:
                stream.close()
            except BrokenPipeError:
                pass


@pytest.fixture
def start(path: Path) -> Iterator[Callable[..., list[Process]]]:
    """Starts processes, and ends those that it started."""
    started: list[Process] = []

    def start_some(count: int = 1, *, at: Path = path) -> list[Process]:
        new = [Process(at) for _ in range(count)]
        started.extend(new)
        assert [process.answer() for process in new] == ["ready"] * count
        return new

    yield start_some
    for process in started:
        process.close()


async def begin(store: SqliteStore, run_id: str = "run") -> None:
    await store.append(run_id, RunStarted(run_id=run_id), claim=1)


async def ask(store: SqliteStore, turn: int, *, claim: int = 1, **kw: Any) -> None:
    await store.append("run", ModelAsked(turn), claim=claim, **kw)


async def turns(store: SqliteStore, run_id: str = "run") -> list[int]:
    return [e.turn for e in await store.load(run_id) if isinstance(e, ModelAsked)]


async def refused(code: str, attempt: Any) -> str:
    """The message: it names the journal and tells what to do."""
    with pytest.raises(StoreError) as raised:
        await attempt
    assert raised.value.code == code
    assert "; " in str(raised.value)
    return str(raised.value)


def commits(path: Path) -> int:
    """How many there are in the WAL: the last frame of each carries a size."""
    wal = Path(f"{path}-wal").read_bytes()
    page_size, salts = struct.unpack(">8xI4x8s8x", wal[:32])
    frames = range(32, len(wal) - 23, page_size + 24)
    found = (struct.unpack(">4xI8s", wal[at : at + 16]) for at in frames)
    return sum(1 for size, salt in found if size and salt == salts)


def beside(path: Path) -> set[str]:
    """What else lies there."""
    return {name.removeprefix(path.name) for name in names(path.parent)} - {""}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def bytes_written() -> int:
    """By this process, where the system counts them."""
    counters = Path("/proc/self/io")
    if not counters.exists():
        return 0
    lines = counters.read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def size(path: Path) -> int:
    return path.stat().st_size


def wal_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def lock_files(path: Path) -> list[Path]:
    return list(path.parent.glob(f"{path.name}-owner-*"))


class Held:
    """Another connection that is in the middle of a write."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)

    def __enter__(self) -> Held:
        self.connection.execute("BEGIN IMMEDIATE")
        return self

    def let_go(self) -> None:
        self.connection.execute("ROLLBACK")

    def __exit__(self, *error: object) -> None:
        self.connection.close()


# What a store must do


async def test_it_passes_the_check(path: Path) -> None:
    await check_store(lambda: SqliteStore(path))
    assert beside(path) == set()


async def test_another_store_reads_what_this_one_kept(path: Path) -> None:
    async with SqliteStore(path) as store:
        await begin(store)
    reply = ModelReplied(Reply(text="né 😀 \0 \u2028", carry={"a": [None, 1.5]}))
    async with SqliteStore(path) as store:
        claim = await store.claim("run")
        await store.append("run", reply, claim=claim)
    assert await SqliteStore(path).load("run") == [BEGIN, reply]


async def test_what_need_not_last_yet_is_kept_at_once_and_in_its_place(
    path: Path,
) -> None:
    asked, replied = ModelAsked(1), ModelReplied(Reply(text="hello"))
    async with SqliteStore(path) as store:
        await begin(store)
        assert store.append_nowait("run", asked, claim=1, durable=False)
        assert not store.append_nowait("run", replied, claim=1), "it has to last"
        other = RunStarted(run_id="other")
        assert not store.append_nowait("other", other, claim=1, durable=False)
        await store.append("run", replied, claim=1)
    async with SqliteStore(path) as store:
        assert await store.load("run") == [BEGIN, asked, replied]
        assert await store.runs() == ["run"]


async def test_overlapping_appends_are_kept_in_the_order_of_the_calls(
    path: Path,
) -> None:
    async with SqliteStore(path) as store:
        await begin(store)
        order: list[int] = []

        async def append(turn: int) -> None:
            order.append(turn)
            await ask(store, turn, durable=turn % 3 > 0)

        async with trio.open_nursery() as nursery:
            for turn in range(100):
                nursery.start_soon(append, turn)
        assert await turns(store) == order


async def test_it_may_be_used_by_one_trio_run_after_another(path: Path) -> None:
    def in_runs() -> list[int]:
        store = SqliteStore(path)
        trio.run(begin, store)
        for turn in range(5):
            trio.run(lambda n: ask(store, n, durable=n % 2 == 0), turn)
        found = trio.run(turns, store)
        trio.run(store.close)
        return found

    assert await trio.to_thread.run_sync(in_runs) == [0, 1, 2, 3, 4]


async def test_threads_that_each_have_their_own_trio_run_share_a_store(
    path: Path,
) -> None:
    async def write(run_id: str) -> None:
        await begin(store, run_id)
        for turn in range(100):
            event = ModelAsked(turn)
            await store.append(run_id, event, claim=1, durable=turn % 4 == 0)

    store = SqliteStore(path)
    names = ["one", "two", "three"]
    threads = [threading.Thread(target=trio.run, args=(write, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        await trio.to_thread.run_sync(thread.join)
    for name in names:
        assert await turns(store, name) == list(range(100))
    await store.close()


async def test_a_trio_run_that_is_over_does_not_disturb_the_others(path: Path) -> None:
    async with SqliteStore(path, busy_seconds=30) as store:
        await begin(store)
        with Held(path) as held:

            async def leave() -> None:
                with trio.move_on_after(0.05):
                    await ask(store, 1)

            await trio.to_thread.run_sync(trio.run, leave)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, store, 2)
                await trio.testing.wait_all_tasks_blocked()
                held.let_go()
        assert (await turns(store))[-1] == 2


# What nobody waits for


async def test_it_is_there_for_the_next_reader_of_the_same_store(path: Path) -> None:
    async with SqliteStore(path) as store:
        await begin(store)
        await ask(store, 1, durable=False)
        assert await turns(store) == [1]
        await store.append("new", BEGIN, claim=1, durable=False)
        assert await store.runs() == ["new", "run"]
        await store.append("run", END, claim=1, durable=False)
        assert await store.claim("run") == 2


async def test_it_is_kept_by_itself_soon(path: Path) -> None:
    async with SqliteStore(path) as store:
        await begin(store)
        began = time.monotonic()
        await ask(store, 1, durable=False)
        other = SqliteStore(path)
        with trio.fail_after(5):
            while not await turns(other):  # it comes without anybody's doing
                pass
        assert time.monotonic() - began > 0.04


async def test_close_keeps_it(path: Path) -> None:
    store = SqliteStore(path)
    await begin(store)
    await ask(store, 1, durable=False)
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.close()
    assert await turns(SqliteStore(path)) == [1]


@pytest.mark.parametrize("opened", [True, False])
def test_the_end_of_the_process_keeps_it(
    opened: bool, path: Path, start: Callable[..., list[Process]]
) -> None:
    (process,) = start()
    process.ask("start", "run", opened)
    process.ask("append", "run", 1, 1, False)
    process.tell("exit")
    assert process.popen.wait(10) == 0
    assert beside(path) == set()
    assert trio.run(turns, SqliteStore(path)) == [1]


async def test_a_dropped_store_keeps_it_and_leaves_nothing_open(path: Path) -> None:
    store = SqliteStore(path)
    await begin(store)
    await ask(store, 1, durable=False)
    assert len(lock_files(path)) == 1
    del store
    gc.collect()
    with trio.fail_after(5):
        while beside(path):  # a thread sees to it
            await trio.lowlevel.checkpoint()
    assert await turns(SqliteStore(path)) == [1]


async def test_what_goes_wrong_with_it_is_raised_by_the_next_append(path: Path) -> None:
    async with SqliteStore(path, busy_seconds=0.05) as store:
        await begin(store)
        with Held(path):
            await ask(store, 1, durable=False)
            await store.load("run")  # a reader is not told
        for _ in range(2):  # and from then on: what follows would follow a hole
            message = await refused("busy", ask(store, 2))
            assert "an earlier event was not kept" in message
        assert await store.load("run") == [BEGIN]
        assert await store.claim("run", take_over=True) == 2
        await ask(store, 3, claim=2)


async def test_close_raises_what_nobody_was_told(path: Path) -> None:
    store = SqliteStore(path, busy_seconds=0.05)
    await begin(store)
    with Held(path):
        await ask(store, 1, durable=False)
        await refused("busy", store.close())
    assert beside(path) == set()


async def test_nothing_of_a_run_is_kept_after_what_was_lost(path: Path) -> None:
    """Also what was waiting already when it was lost."""
    writing, go_on = threading.Event(), threading.Event()

    def break_it(_: object) -> None:
        writing.set()
        go_on.wait(10)
        raise OSError("the disk is gone")

    async with SqliteStore(path) as store:
        await begin(store)
        await ask(store, 1, durable=False)
        store._journal.later(break_it)  # in the same commit
        await trio.to_thread.run_sync(writing.wait, 10)
        await ask(store, 2, durable=False)
        go_on.set()
        assert await store.load("run") == [BEGIN]
        await refused("io", ask(store, 3))
        assert await store.load("run") == [BEGIN]


# Commits


async def test_those_who_wait_together_share_a_commit(path: Path) -> None:
    async with SqliteStore(path) as store:
        for n in range(32):
            await begin(store, f"run_{n}")
        before = commits(path)
        with Held(path) as held:
            async with trio.open_nursery() as nursery:
                for n in range(32):
                    append = partial(store.append, event=ModelAsked(1), claim=1)
                    nursery.start_soon(append, f"run_{n}")
                await trio.testing.wait_all_tasks_blocked()
                held.let_go()
        assert 1 <= commits(path) - before <= 2


async def test_a_turn_costs_two_commits_at_most(path: Path) -> None:
    async with SqliteStore(path) as store:
        await begin(store)
        before = commits(path)
        for turn in range(1, 21):
            call = ToolCall("pay", turn=turn)
            events: list[KeptEvent] = [
                ModelAsked(turn),
                ModelReplied(Reply(tool_calls=(call,))),
                ToolStarted(call, Effect.ONCE),
                ToolEnded(call=call, content="", effect_status=EffectStatus.CONFIRMED),
            ]
            for event in events:
                await store.append("run", event, claim=1, durable=must_last(event))
        assert commits(path) - before <= 2 * 20


async def test_one_that_is_refused_does_not_spoil_the_others(path: Path) -> None:
    async with SqliteStore(path) as store:
        await begin(store, "mine")
        await begin(store)
        assert await store.claim("run", take_over=True) == 2
        codes: list[str] = []

        async def append(run_id: str) -> None:
            try:
                await store.append(run_id, ModelAsked(1), claim=1)
            except StoreError as error:
                codes.append(error.code)

        before = commits(path)
        with Held(path) as held:
            async with trio.open_nursery() as nursery:
                for run_id in ("mine", "run", "nobody", "mine"):
                    nursery.start_soon(append, run_id)
                await trio.testing.wait_all_tasks_blocked()
                held.let_go()
        assert commits(path) - before <= 2
        assert codes == ["fenced", "fenced"]
        assert await turns(store, "mine") == [1, 1]


async def test_a_thousand_events_of_a_kilobyte_cost_less_than_20_mb(path: Path) -> None:
    """What is written, not what is there: it is copied once from the WAL."""
    event = ModelReplied(Reply(text="x" * 1_000))
    written = Path("/proc/self/io")

    def bytes_written() -> int:
        if not written.exists():
            return 0
        return int(
            dict(x.split(": ") for x in written.read_text().splitlines())["wchar"]
        )

    before = bytes_written()
    async with SqliteStore(path) as store:
        await begin(store)
        for _ in range(1_000):
            await store.append("run", event, claim=1)
        there = size(path) + size(wal_of(path))
    assert bytes_written() - before < 20_000_000
    assert there < 20_000_000


async def test_an_event_costs_as_much_late_as_early(path: Path) -> None:
    """In pages: what fills a page and what it takes to find the place."""
    event = ModelReplied(Reply(text="x" * 500))

    async def pages(store: SqliteStore, count: int, durable: bool) -> float:
        before = size(wal_of(path))
        for _ in range(count):
            await store.append("run", event, claim=1, durable=durable)
        await store.runs()
        return (size(wal_of(path)) - before) / 4_120 / count

    async with SqliteStore(path) as store:
        await begin(store)
        connection = store._journal.connection
        assert connection
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # so the WAL has them all
        await pages(store, 10, True)
        early = await pages(store, 100, True)
        await pages(store, 9_900, False)
        late = await pages(store, 100, True)
    assert late == pytest.approx(early, rel=0.1)


# Cancels


async def test_a_cancelled_append_leaves_at_once_and_is_withdrawn(path: Path) -> None:
    async with SqliteStore(path, busy_seconds=30) as store:
        await begin(store)
        with Held(path) as held:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, store, 1)  # in the middle of its commit
                await trio.testing.wait_all_tasks_blocked(0.05)
                began = time.monotonic()
                with trio.move_on_after(0.05) as scope:
                    await ask(store, 2)
                assert scope.cancelled_caught
                assert time.monotonic() - began < 1
                held.let_go()
        await ask(store, 3)
        assert await turns(store) == [1, 3]


async def test_a_cancelled_append_may_be_kept_if_its_commit_had_begun(
    path: Path,
) -> None:
    async with SqliteStore(path, busy_seconds=30) as store:
        await begin(store)
        with Held(path) as held:
            with trio.move_on_after(0.1) as scope:
                await ask(store, 1)
            assert scope.cancelled_caught
            held.let_go()
        assert await turns(store) == [1]


async def test_a_cancelled_claim_leaves_the_run_free(path: Path) -> None:
    async with SqliteStore(path, busy_seconds=30) as store:
        await begin(store)
        store.release("run", 1)
        with Held(path) as held:
            with trio.move_on_after(0.1) as scope:
                await store.claim("run")
            assert scope.cancelled_caught
            held.let_go()
        async with SqliteStore(path) as other:
            await store.runs()
            await other.claim("run")


async def test_a_cancelled_load_leaves_at_once(path: Path) -> None:
    async with SqliteStore(path, busy_seconds=30) as store:
        await begin(store)
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.load("run")
        assert scope.cancelled_caught


# Errors


async def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "typo" / "journal.db")
    for attempt in (begin(store), store.load("run"), store.claim("run"), store.runs()):
        message = await refused("missing", attempt)
        assert f"no directory {tmp_path / 'typo'}" in message
    assert names(tmp_path) == set()


async def test_a_file_that_is_not_there_and_not_to_be_made(path: Path) -> None:
    store = SqliteStore(path, create=False)
    for attempt in (begin(store), store.load("run"), store.claim("run"), store.runs()):
        assert str(path) in await refused("missing", attempt)
    assert beside(path) == set()


async def test_reading_makes_no_file(path: Path) -> None:
    store = SqliteStore(path)
    assert await store.runs() == []
    await refused("unknown_run", store.load("run"))
    assert names(path.parent) == set()


async def test_an_empty_file_is_a_new_journal(path: Path) -> None:
    await trio.Path(path).touch()
    async with SqliteStore(path, create=False) as store:
        assert await store.runs() == []
        await begin(store)
        assert await store.runs() == ["run"]


async def whole_journal(path: Path) -> None:
    async with SqliteStore(path) as store:
        await begin(store)
        for turn in range(300):
            await ask(store, turn, durable=turn == 299)


def text(path: Path) -> None:
    path.write_text('{"run": 1}')


def cut_short(path: Path) -> None:
    trio.run(whole_journal, path)
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path: Path) -> None:
    trio.run(whole_journal, path)
    with path.open("r+b") as file:
        for page in range(1, path.stat().st_size // 4_096):
            file.seek(page * 4_096)
            file.write(b"\xff" * 100)


def changed(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        trio.run(whole_journal, path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.execute("PRAGMA journal_mode = DELETE")

    return make


def of_another(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return make


BROKEN = {
    "text": (text, "corrupt", "not a database"),
    "cut short": (cut_short, "corrupt", "malformed"),
    "overwritten": (overwritten, "corrupt", "malformed"),
    "torn event": (
        changed("UPDATE events SET event = substr(event, 1, 9) WHERE seq = 7"),
        "corrupt",
        "event 7 of 'run' is broken",
    ),
    "wrong event": (
        changed("""UPDATE events SET event = '{"type":"ModelAsked"}' WHERE seq = 7"""),
        "corrupt",
        "event 7 of 'run' is broken",
    ),
    "lost event": (
        changed("DELETE FROM events WHERE seq = 7"),
        "corrupt",
        "event 7 of the run 'run' is missing",
    ),
    "later event": (
        changed("""UPDATE events SET event = '{"type":"Dreamt"}' WHERE seq = 7"""),
        "newer",
        "is a Dreamt, which we do not know",
    ),
    "later version": (changed("PRAGMA user_version = 99"), "newer", "version 99"),
    "another's tables": (
        of_another("CREATE TABLE runs (id)"),
        "corrupt",
        "another application",
    ),
    "another's id": (
        of_another("PRAGMA application_id = 7"),
        "corrupt",
        "another application",
    ),
    "another's version": (
        of_another("PRAGMA user_version = 1"),
        "corrupt",
        "another application",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_file_is_told_apart_and_left_as_it_is(
    case: str, path: Path
) -> None:
    make, code, words = BROKEN[case]
    await trio.to_thread.run_sync(make, path)
    before = await trio.Path(path).read_bytes()
    async with SqliteStore(path) as store:
        message = await refused(code, store.load("run"))
        assert words in message
        assert str(path) in message
        if "event" not in case:
            await refused(code, begin(store, "new"))
            await refused(code, store.runs())
            await refused(code, store.claim("run"))
    assert await trio.Path(path).read_bytes() == before
    assert beside(path) == set()


async def test_an_event_that_is_no_json(path: Path) -> None:
    async with SqliteStore(path) as store:
        with pytest.raises(StoreError, match="this ModelAsked cannot be written"):
            await store.append("run", ModelAsked(1, model="\ud800"), claim=1)
        assert await store.runs() == []


async def test_a_journal_that_stays_locked_is_busy_in_time(path: Path) -> None:
    async with SqliteStore(path, busy_seconds=0.2) as store:
        await begin(store)
        with Held(path):
            for attempt in (ask(store, 1), store.claim("run"), ask(store, 2)):
                began = time.monotonic()
                assert "busy_seconds" in await refused("busy", attempt)
                assert 0.1 < time.monotonic() - began < 2
            assert await store.load("run") == [BEGIN]  # readers do not wait
        await ask(store, 3)
        assert await turns(store) == [3]


async def test_a_disk_that_does_not_answer_holds_close_up_for_a_while_only(
    path: Path,
) -> None:
    answers = threading.Event()
    store = SqliteStore(path, busy_seconds=0.05)
    await begin(store)
    store._journal.later(lambda _: answers.wait())
    began = time.monotonic()
    assert "may or may not be kept" in await refused("hung", store.close())
    assert time.monotonic() - began < 5
    assert len(lock_files(path)) == 1  # it may still be writing
    answers.set()
    await store.close()
    assert beside(path) == set()


async def test_a_full_disk_loses_nothing_that_was_acknowledged(path: Path) -> None:
    event = ModelReplied(Reply(text="x" * 2_000))
    async with SqliteStore(path) as store:
        await begin(store)
        connection = store._journal.connection
        assert connection
        connection.execute("PRAGMA max_page_count = 20")
        kept: list[KeptEvent] = [BEGIN]
        with pytest.raises(StoreError, match="make room") as raised:
            while len(kept) < 100:
                await store.append("run", event, claim=1)
                kept.append(event)
        assert raised.value.code == "full"
        assert len(kept) > 5
        assert await store.load("run") == kept
        connection.execute("PRAGMA max_page_count = 2000")
        await ask(store, 1)
        assert await store.load("run") == [*kept, ModelAsked(1)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    await trio.Path(tmp_path).chmod(0o500)
    await refused("io", begin(SqliteStore(tmp_path / "journal.db")))


async def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await refused("io", begin(store))
    await refused("io", store.load("run"))


async def test_a_file_that_was_removed_while_it_was_open(path: Path) -> None:
    store = SqliteStore(path)
    await begin(store)
    await trio.Path(path).unlink()
    assert "removed or replaced" in await refused("missing", ask(store, 1))
    await store.close()
    await begin(store)
    assert await store.load("run") == [BEGIN]
    await store.close()


@pytest.mark.parametrize("path", [":memory:", ""])
def test_a_path_that_is_no_file(path: str) -> None:
    with pytest.raises(ValueError, match="MemoryStore"):
        SqliteStore(path)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_seconds_that_are_none(seconds: float) -> None:
    with pytest.raises(ValueError, match="busy_seconds"):
        SqliteStore("journal.db", busy_seconds=seconds)


# Where it is, and who may read it


def test_the_default_is_in_trioagent_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOAGENT_HOME", str(tmp_path / "new" / "home"))
    store = SqliteStore()
    assert store.path == tmp_path / "new" / "home" / "journal.db"
    assert list(tmp_path.iterdir()) == []
    assert trio.run(store.runs) == []
    trio.run(begin, store)
    trio.run(store.close)
    assert store.path.exists()
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_or_else_where_the_system_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIOAGENT_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert SqliteStore().path.parts[-2:] == ("trioagent", "journal.db")


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277])
def test_only_the_user_can_read_it(path: Path, mask: int) -> None:
    async def modes() -> set[int]:
        async with SqliteStore(path) as store:
            await begin(store)
            return {stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}

    before = os.umask(mask)
    try:
        assert trio.run(modes) == {0o600}
    finally:
        os.umask(before)


async def test_links_to_it_lead_to_the_same_journal(path: Path) -> None:
    link = path.with_name("link.db")
    async with SqliteStore(path) as store, SqliteStore(link) as other:
        await begin(store)
        link.symlink_to(path)
        await refused("owned", other.claim("run"))


async def test_a_relative_path_stays_where_it_was(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("what? #1%20.db")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    await begin(store)
    await store.close()
    assert (tmp_path / "what? #1%20.db").exists()


# Claims


async def test_a_store_that_was_closed_owns_nothing(path: Path) -> None:
    store = SqliteStore(path)
    await begin(store)
    await store.close()
    async with SqliteStore(path) as other:
        assert await other.claim("run") == 2
        await refused("fenced", ask(store, 1))
    await store.close()


async def test_who_may_begin_a_run_that_is_there_does_not_free_it(path: Path) -> None:
    async with SqliteStore(path) as store, SqliteStore(path) as other:
        await begin(store)
        await refused("exists", begin(other))
        await other.runs()
        await refused("owned", other.claim("run"))
        await refused("fenced", other.append("new", BEGIN, claim=2))
        await ask(store, 1)


async def test_a_released_run_is_free_for_others_too(path: Path) -> None:
    async with SqliteStore(path) as store, SqliteStore(path) as other:
        await begin(store)
        store.release("run", 1)
        await store.runs()
        assert await other.claim("run") == 2
        await refused("fenced", ask(store, 1))


def test_two_that_claim_at_once_have_one_winner(
    path: Path, start: Callable[..., list[Process]]
) -> None:
    pair = start(2)
    pair[0].ask("start", "run")
    pair[0].ask("release", "run", 1)
    for n in range(50):
        for process in pair:
            process.tell("claim", "run")
        answers = [process.answer() for process in pair]
        assert sorted(answers, key=str) == [n + 2, "owned"]
        winner = pair[answers.index(n + 2)]
        assert winner.ask("append", "run", n, n + 2) is None
        assert pair[answers.index("owned")].ask("append", "run", n, n + 1) == "fenced"
        winner.ask("release", "run", n + 2)
    assert trio.run(turns, SqliteStore(path)) == list(range(50))


async def test_a_killed_owner_is_known_to_be_dead_at_once(
    path: Path, start: Callable[..., list[Process]]
) -> None:
    (process,) = start()
    process.ask("start", "run")
    async with SqliteStore(path) as store:
        message = await refused("owned", store.claim("run"))
        assert f"process {process.popen.pid}" in message
        assert len(lock_files(path)) == 2
        process.kill()
        assert await store.claim("run") == 2
        assert len(lock_files(path)) == 1
        await ask(store, 1, claim=2)


def test_the_locks_of_the_dead_are_cleared_away(
    path: Path, start: Callable[..., list[Process]]
) -> None:
    for process in start(3):
        process.ask("many", f"{process.popen.pid}-", 1, 1)
        process.kill()
    assert len(lock_files(path)) >= 1
    trio.run(begin, store := SqliteStore(path))
    assert len(lock_files(path)) == 1
    trio.run(store.close)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
async def test_a_stopped_owner_can_be_taken_over_and_is_fenced_when_it_wakes(
    path: Path, start: Callable[..., list[Process]]
) -> None:
    (process,) = start()
    process.ask("start", "run")
    process.popen.send_signal(signal.SIGSTOP)
    process.tell("append", "run", 1, 1)  # it reads that when it wakes
    async with SqliteStore(path) as store:
        await refused("owned", store.claim("run"))
        assert await store.claim("run", take_over=True) == 2
        process.popen.send_signal(signal.SIGCONT)
        assert await trio.to_thread.run_sync(process.answer) == "fenced"
        await ask(store, 2, claim=2)
        assert await turns(store) == [2]


# Crashes


@pytest.mark.parametrize("batch", range(6))
def test_what_was_acknowledged_survives_a_kill_at_any_point(
    batch: int, tmp_path: Path, start: Callable[..., list[Process]]
) -> None:
    """Eight writers a time: what is there is what was said, and one more at most."""
    chance = random.Random(batch)
    for n in range(8):
        path = tmp_path / f"{n}.db"
        (process,) = start(at=path)
        process.tell("pour", "run")
        acknowledged = [process.answer() for _ in range(chance.randrange(60))]
        acknowledged += process.kill()
        assert acknowledged == list(range(1, len(acknowledged) + 1))
        found = trio.run(kept_turns, path)
        assert found in (acknowledged, [*acknowledged, len(acknowledged) + 1])


async def kept_turns(path: Path) -> list[int]:
    """Of a journal that is then still good for more."""
    async with SqliteStore(path) as store:
        if "run" not in await store.runs():
            return []
        found = await turns(store)
        claim = await store.claim("run")
        await ask(store, 0, claim=claim)
        assert await turns(store) == [*found, 0]
    return found


def test_a_kill_loses_of_what_nobody_waited_for_only_the_end(
    path: Path, start: Callable[..., list[Process]]
) -> None:
    (process,) = start()
    process.tell("pour", "run", 10)
    said = [process.answer() for _ in range(20)] + process.kill()
    found = trio.run(turns, SqliteStore(path))
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= said[-1] == 10 * len(said)


def test_a_torn_wal_gives_all_events_before_the_tear(
    tmp_path: Path, start: Callable[..., list[Process]]
) -> None:
    path = tmp_path / "whole.db"
    (process,) = start(at=path)
    process.tell("pour", "run")
    for _ in range(30):
        process.answer()
    process.kill()
    wal = Path(f"{path}-wal").read_bytes()
    torn = tmp_path / "torn.db"

    def read(size: int, tail: bytes = b"") -> list[int]:
        shutil.copy(path, torn)
        Path(f"{torn}-wal").write_bytes(wal[:size] + tail)
        Path(f"{torn}-shm").unlink(missing_ok=True)
        return trio.run(kept_turns, torn)

    whole = read(len(wal))
    assert whole == list(range(1, len(whole) + 1))
    frame = 4_096 + 24
    for lost in (1, 24, frame - 1, frame):  # in the last commit
        assert read(len(wal) - lost) == whole[:-1]
    assert read(len(wal) - 5_000, b"\xff" * 5_000) == whole[:-1]
    chance, before = random.Random(1), 0
    for size in sorted(chance.randrange(len(wal)) for _ in range(30)):
        found = read(size)
        assert found == whole[: len(found)]
        assert len(found) >= before
        before = len(found)


def test_many_processes_write_at_once(
    path: Path, start: Callable[..., list[Process]]
) -> None:
    """The file is not there yet: they begin it at once, too."""
    processes = start(6)
    for n, process in enumerate(processes):
        process.tell("many", f"run_{n}_", 4, 25)
    assert [process.answer() for process in processes] == [100] * 6

    async def read() -> None:
        store = SqliteStore(path)
        runs = await store.runs()
        assert sorted(runs) == [f"run_{n}_{m}" for n in range(6) for m in range(4)]
        for run_id in runs:
            assert await turns(store, run_id) == list(range(1, 26))

    trio.run(read)


# Versions


async def test_a_journal_of_version_1_can_be_read_and_written(path: Path) -> None:
    shutil.copy(DATA / "journal_v1.db", path)
    kept = msgspec.json.decode(
        (DATA / "journal_v1.json").read_bytes(), type=dict[str, list[KeptEvent]]
    )
    async with SqliteStore(path) as store:
        assert await store.runs() == list(reversed(kept))
        for run_id, events in kept.items():
            assert await store.load(run_id) == events
        claim = await store.claim("run_b")
        await store.append("run_b", END, claim=claim)
        assert await store.load("run_b") == [*kept["run_b"], END]


NEXT = [*_schema.STEPS, ("ALTER TABLE runs ADD COLUMN title TEXT",)]


@pytest.mark.parametrize("reads", [True, False])
async def test_an_older_journal_is_brought_up_to_date(
    reads: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(DATA / "journal_v1.db", path)
    monkeypatch.setattr(sqlite, "STEPS", NEXT)
    async with SqliteStore(path) as store:
        if not reads:
            await begin(store)
        assert "run_a" in await store.runs()
        assert len(await store.load("run_a")) > 10
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute("SELECT title FROM runs").fetchall()
    monkeypatch.undo()
    await refused("newer", SqliteStore(path).load("run_a"))


async def test_a_step_that_fails_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(DATA / "journal_v1.db", path)
    bad = [*NEXT[:-1], (*NEXT[-1], "ALTER TABLE nothing ADD COLUMN title TEXT")]
    monkeypatch.setattr(sqlite, "STEPS", bad)
    await refused("error", begin(SqliteStore(path)))
    monkeypatch.undo()
    async with SqliteStore(path) as store:
        await begin(store)
        assert await store.runs() == ["run", "run_b", "run_a"]


async def test_five_thousand_events_are_read_in_one_go(path: Path) -> None:
    async with SqliteStore(path) as store:
        await begin(store)
        for turn in range(5_000):
            await ask(store, turn, durable=turn == 4_999)
        await store.load("run")
        began = time.perf_counter()
        assert len(await store.load("run")) == 5_001
        assert time.perf_counter() - began < 1


def test_importing_the_package_loads_none_of_it() -> None:
    code = "import sys, trioagent; print({'sqlite3', 'platformdirs'} & {*sys.modules})"
    run = [sys.executable, "-c", code]
    out = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout == "set()\n"
