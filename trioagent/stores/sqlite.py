"""A journal in a file: what was acknowledged survives a `kill -9` and a power cut.

The file is a SQLite database in WAL mode with `synchronous=FULL`. Events are only ever
added. Many stores, in many processes, may use one file at once.
"""

from __future__ import annotations

import atexit
import errno
import math
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Self

import trio

from trioagent._errors import StoreError
from trioagent._events import KeptEvent, RunEnded, RunStarted

from ._owner import OwnerLock, holder
from ._place import Place, default_path
from ._rows import decode, encode
from ._schema import (
    ADD_EVENT,
    APPLICATION,
    BEGIN_RUN,
    CARRIED_BY,
    CLAIM,
    FREE,
    LOAD,
    RUNS,
    STEPS,
    WHOSE,
)
from ._writer import Item, Writer

CODES = {
    sqlite3.SQLITE_ERROR: "error",
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
}


class SqliteStore:
    """Keeps runs in the database file `path`, by default one for all of the user.

    The default is `journal.db` in `$TRIOAGENT_HOME`, or else where the system wants a
    user's data; that directory is made when needed, and any other must be there.
    Nothing is read or written before it is used. `busy_seconds` is how long to wait for
    others who write; with `create=False` a file that is not there is an error.

    One store may be used by several `trio.run`, also of several threads. `close` it or
    enter it; one that is used again opens anew, as somebody else.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        busy_seconds: float = 3.0,
        create: bool = True,
    ) -> None:
        if path is not None and os.fspath(path) in {"", ":memory:"}:
            raise ValueError(f"path={path!r} is no file: use MemoryStore")
        if not 0 < busy_seconds < math.inf:
            raise ValueError(f"busy_seconds={busy_seconds!r} must be above 0, finite")
        self.path = Path(path) if path is not None else default_path()
        place = Place(self.path, may_create=create, make_folder=path is None)
        self._journal = _Journal(_File(place, busy_seconds))
        weakref.finalize(self, _let_go, self._journal).atexit = False

    async def append(
        self, run_id: str, event: KeptEvent, *, claim: int, durable: bool = True
    ) -> None:
        """Keep one event; see `Store`. Its place is taken before the first checkpoint.

        Who is cancelled while waiting leaves at once. An event whose commit had not
        begun is withdrawn then; one in the middle of it may be kept or not. With
        `durable=False` it is committed 0.05 s later at the latest; when that fails,
        this and every later append under the same claim raises, so that a journal never
        has a hole.
        """
        began = isinstance(event, RunStarted)
        work = partial(self._journal.add, run_id, claim, type(event), encode(event))
        item = Item(work, durable=durable, key=(run_id, claim))
        fresh = began and self._journal.carry(run_id, claim)
        try:
            await self._journal.writer.do(item)
        except BaseException:
            if fresh:
                self.release(run_id, claim)
            raise

    def append_nowait(
        self, run_id: str, event: KeptEvent, *, claim: int, durable: bool = True
    ) -> bool:
        """Keep one event that need not last yet, as `append` does with durable=False.

        All others wait for the disk, and so does the first event of a run.
        """
        if durable or isinstance(event, RunStarted):
            return False
        work = partial(self._journal.add, run_id, claim, type(event), encode(event))
        self._journal.writer.put(Item(work, durable=False, key=(run_id, claim)))
        return True

    async def claim(self, run_id: str, *, take_over: bool = False) -> int:
        """Become the one who may append; see `Store`.

        Whether an owner lives is known at once, from a lock that goes with its process.
        """
        item = Item(partial(self._journal.claim, run_id, take_over))
        try:
            claim: int = await self._journal.writer.do(item)
        except StoreError:
            raise
        except BaseException:  # in the middle of a commit: it may be ours, unbeknown
            self._journal.later(lambda c: self._journal.free(run_id, item.result, c))
            raise
        return claim

    def release(self, run_id: str, claim: int) -> None:
        """Done with it; see `Store`. Others learn of it with the next commit."""
        if self._journal.drop(run_id, claim):
            self._journal.later(partial(self._journal.free, run_id, claim))

    async def carried_by(self, run_id: str) -> str:
        """Who carries a run; see `Store`. A cancel leaves at once."""
        await self._journal.writer.flush()
        return await trio.to_thread.run_sync(
            self._journal.carrier, run_id, abandon_on_cancel=True, limiter=_alone()
        )

    async def load(self, run_id: str) -> list[KeptEvent]:
        """The events of a run, in order. A cancel leaves at once."""
        await self._journal.writer.flush()
        return await trio.to_thread.run_sync(
            _load, self._journal.file, run_id, abandon_on_cancel=True, limiter=_alone()
        )

    async def runs(self) -> list[str]:
        """The ids of all runs, the one that began last first."""
        await self._journal.writer.flush()
        return await trio.to_thread.run_sync(
            _runs, self._journal.file, abandon_on_cancel=True, limiter=_alone()
        )

    async def close(self) -> None:
        """Return when all is kept and the file is closed; runs of ours are free then.

        A cancel does not stop it. Raises what went wrong with an event that nobody
        waited for, and `hung` when the disk does not answer.
        """
        with trio.CancelScope(shield=True):  # the journal bounds it
            await trio.to_thread.run_sync(self._journal.close, limiter=_alone())

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()  # noqa: ASYNC102 - it is shielded, and the journal bounds it


def _alone() -> trio.CapacityLimiter:
    """Room for one more thread, whatever trio's own limit is used up by."""
    return trio.CapacityLimiter(1)


class _Journal:
    """What lives as long as there is something to write, also without its store."""

    def __init__(self, file: _File) -> None:
        self.file, self.place = file, file.place
        self.writer = Writer(self._commit)
        self.connection: sqlite3.Connection | None = None
        self._lock: OwnerLock | None = None
        self._inode = 0
        self._carried: set[tuple[str, int]] = set()  # claims that somebody is at
        atexit.register(self.close)  # what lingers is not lost with the process

    # What somebody who has the store may call

    def carry(self, run_id: str, claim: int) -> bool:
        """Somebody here is at that run now; False if somebody was before."""
        fresh = (run_id, claim) not in self._carried
        self._carried.add((run_id, claim))
        return fresh

    def drop(self, run_id: str, claim: int) -> bool:
        """Nobody is, any more; False if nobody was before."""
        was = (run_id, claim) in self._carried
        self._carried.discard((run_id, claim))
        return was

    def later(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Do it with the next commit. Nobody waits for it, and it may fail."""
        self.writer.put(Item(work, durable=False))

    def close(self) -> None:
        """Write all there is and close. It blocks."""
        try:
            # Time for a commit that has begun, and for the one after it.
            self.writer.close(2 * self.file.busy_seconds + 2.0, self._close)
        except TimeoutError:
            raise self.place.problem("hung", "a commit does not end") from None
        except (sqlite3.Error, OSError) as error:
            raise self.file.translate(error) from error

    def forget(self) -> None:
        """It will not be used any more."""
        atexit.unregister(self.close)

    def _close(self) -> None:
        self._carried.clear()
        connection, lock = self.connection, self._lock
        self.connection = self._lock = None
        if lock is not None:
            lock.release()
        if connection is not None:
            connection.close()

    # What the writer's thread does

    def _commit(self, items: list[Item]) -> None:
        try:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            for item in items:
                try:
                    item.result = item.work(connection)
                except (sqlite3.Error, OSError):
                    raise  # the commit cannot be trusted any more
                except Exception as error:  # noqa: BLE001 - its own: the others are kept
                    item.error = self.file.translate(error)
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - whoever waits must be told
            for item in items:
                item.error = self.file.translate(error)
            if self.connection is not None and self.connection.in_transaction:
                with suppress(sqlite3.Error):
                    self.connection.rollback()

    def _opened(self) -> sqlite3.Connection:
        if self.connection is None:
            path = self.place.create()
            connection = self.file.connect()
            try:
                self.file.prepare(connection)
                self._lock = OwnerLock(path)
            except BaseException:
                connection.close()
                raise
            self.connection, self._inode = connection, os.stat(path).st_ino
        elif not self.place.is_there(self._inode):
            what = "was removed or replaced while it was open"
            raise self.place.problem("missing", what, "close the store")
        return self.connection

    @property
    def _owner(self) -> str:
        assert self._lock is not None  # made with the connection
        return self._lock.owner

    def add(
        self, run_id: str, claim: int, kind: type, text: str, c: sqlite3.Connection
    ) -> None:
        """Add one event; the first makes the run, and the last frees it."""
        begin = kind is RunStarted and claim == 1
        if begin and not c.execute(BEGIN_RUN, (run_id, self._owner)).rowcount:
            raise self.place.problem("exists", f"there is a run {run_id!r}")
        if not c.execute(ADD_EVENT, (run_id, text, claim)).rowcount:
            what = f"somebody else has the run {run_id!r}, or nobody claimed it"
            raise self.place.problem("fenced", what)
        if kind is RunEnded:
            c.execute(FREE, (run_id, claim))

    def free(self, run_id: str, claim: int | None, c: sqlite3.Connection) -> None:
        """Nobody has that run now, if the claim on it was made and is the last one."""
        if claim is not None:
            self.drop(run_id, claim)
            c.execute(f"{FREE} AND owner = ?", (run_id, claim, self._owner))

    def claim(self, run_id: str, take_over: bool, c: sqlite3.Connection) -> int:
        """Take the run for this store, unless somebody has it who may be alive."""
        found: tuple[int, str | None] | None
        found = c.execute(CARRIED_BY, (run_id,)).fetchone()
        if found is None:
            raise self.place.problem("unknown_run", f"there is no run {run_id!r}")
        claim, owner = found
        process = self._process_of(run_id, claim, owner)
        if process and not take_over:
            what = f"the run {run_id!r} is carried by {process}"
            raise self.place.problem("owned", what)
        c.execute(CLAIM, (self._owner, claim + 1, run_id))
        self._carried.add((run_id, claim + 1))
        return claim + 1

    def carrier(self, run_id: str) -> str:
        """Who carries the run, as far as this store knows. It blocks."""
        with self.file.reading() as connection:
            found = connection and connection.execute(CARRIED_BY, (run_id,)).fetchone()
            if not found:
                raise self.place.problem("unknown_run", f"there is no run {run_id!r}")
            return self._process_of(run_id, *found, clear=False)  # only looking

    def _process_of(
        self, run_id: str, claim: int, owner: str | None, *, clear: bool = True
    ) -> str:
        """Who carries the run; empty if nobody does."""
        if self._lock is not None and owner == self._owner:
            return "this process" if (run_id, claim) in self._carried else ""
        process = holder(self.place.real, owner, clear=clear) if owner else None
        return f"process {process}" if process else ""


class _File:
    """The database file: how to open it, and how to tell whether it is one of ours."""

    def __init__(self, place: Place, busy_seconds: float) -> None:
        self.place = place
        self.busy_seconds = busy_seconds

    def connect(self, mode: str = "rw") -> sqlite3.Connection:
        """Never makes a file. Any thread may use it, but only one at a time."""
        return sqlite3.connect(
            f"{Path(self.place.real).as_uri()}?mode={mode}",
            uri=True,
            timeout=self.busy_seconds,
            isolation_level=None,
            check_same_thread=False,
        )

    def version(self, connection: sqlite3.Connection) -> int:
        """Which version of a journal it is, 0 where it is empty. Others are refused."""
        application, version, objects = connection.execute(WHOSE).fetchone()
        if application != APPLICATION and (application or version or objects):
            what = "it is the database of another application"
            raise self.place.problem("corrupt", what)
        if version > len(STEPS):
            what = f"it is of version {version}, and we know up to {len(STEPS)}"
            raise self.place.problem("newer", what)
        return int(version)

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Bring an empty or older file up to date, in one transaction."""
        self.version(connection)  # before anything is changed
        self._use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        if self.version(connection) == len(STEPS):
            return
        connection.execute("BEGIN IMMEDIATE")
        for step in STEPS[self.version(connection) :]:  # somebody may have been faster
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {len(STEPS)}")
        connection.execute("COMMIT")

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """SQLite does not wait here when two begin a file at once: so we do."""
        until, pause = monotonic() + self.busy_seconds, threading.Event()
        while True:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as error:
                if _code(error) != "busy" or monotonic() > until:
                    raise
                pause.wait(0.01)
                continue
            if mode != "wal":
                raise self.place.problem("io", f"WAL does not work here, but {mode}")
            return

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """A connection that only reads, or None where nothing was ever written."""
        try:
            if not self.place.look():
                yield None
                return
            with closing(self.connect("ro")) as connection:
                version = self.version(connection)
                if 0 < version < len(STEPS):
                    with closing(self.connect()) as writing:
                        self.prepare(writing)
                yield connection if version else None
        except (sqlite3.Error, OSError) as error:
            raise self.translate(error) from error

    def translate(self, error: Exception) -> StoreError:
        """A new error of ours for one of SQLite's or the system's."""
        if isinstance(error, StoreError):
            ours = StoreError(str(error), code=error.code)
        else:
            ours = self.place.problem(_code(error), str(error) or type(error).__name__)
        ours.__cause__ = error
        return ours


def _code(error: Exception) -> str:
    if isinstance(error, OSError):
        return "full" if error.errno in {errno.ENOSPC, errno.EDQUOT} else "io"
    code = getattr(error, "sqlite_errorcode", None)  # not on those of Python's module
    return "error" if code is None else CODES.get(code & 0xFF, "io")


def _load(file: _File, run_id: str) -> list[KeptEvent]:
    with file.reading() as connection:
        rows = connection.execute(LOAD, (run_id,)).fetchall() if connection else []
    if not rows:
        raise file.place.problem("unknown_run", f"there is no run {run_id!r}")
    return decode(rows, file.place, run_id)


def _runs(file: _File) -> list[str]:
    with file.reading() as connection:
        if connection is None:
            return []
        return [run_id for (run_id,) in connection.execute(RUNS)]


def _let_go(journal: _Journal) -> None:
    """The store is gone. This may be called from anywhere: not the place to wait."""
    if journal.connection is not None or journal.writer.busy:
        trio.lowlevel.start_thread_soon(journal.close, lambda _: journal.forget())
    else:
        journal.forget()
