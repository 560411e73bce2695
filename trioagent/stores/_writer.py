"""One writer for many: what is put while a commit lasts shares the next one.

A commit waits for the disk. With one thread that takes all there is and commits it
once, thirty who wait at the same time wait for two commits and not for thirty. The
thread is there only while there is something to write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import trio

from trioagent._errors import StoreError

LINGER_SECONDS = 0.05  # how long what nobody waits for may wait for company


class Item:
    """A piece of work for the writer, and then what became of it."""

    __slots__ = ("done", "durable", "error", "key", "result", "since", "token", "work")

    def __init__(
        self,
        work: Callable[[Any], Any],
        *,
        durable: bool = True,
        key: tuple[str, int] | None = None,
    ) -> None:
        self.work = work  # given what `commit` works on; a StoreError is its own
        self.durable = durable  # whether somebody waits for the commit
        self.key = key  # of one key nothing is kept after something was lost
        self.since = monotonic()
        self.result: Any = None
        self.error: StoreError | None = None
        self.token = trio.lowlevel.current_trio_token() if durable else None
        self.done = trio.Event()


class Writer:
    """Hands what is put, in order and from any thread, to `commit` in one thread.

    `commit` keeps all of a list of items or none, sets the `result` or `error` of each,
    and does not raise.
    """

    def __init__(self, commit: Callable[[list[Item]], None]) -> None:
        self._commit = commit
        self._wake = threading.Condition(threading.Lock())  # guards what follows
        self._queue: list[Item] = []
        self._running = False  # while it is not, the queue is empty
        self._hurry = False
        self.lost: dict[tuple[str, int], StoreError] = {}  # keys with a hole
        self._untold: dict[tuple[str, int], StoreError] = {}  # …nobody heard of

    @property
    def busy(self) -> bool:
        """Whether there is something that is not kept yet."""
        return self._running

    async def do(self, item: Item) -> Any:
        """Put it, and wait for its commit if it is durable; its result or its error.

        The place in the queue is taken before the first checkpoint. Who is cancelled
        leaves at once: what was not begun yet is withdrawn; of what is in the middle of
        a commit nobody can say whether it will be kept.
        """
        self.put(item)
        try:
            if not item.durable:
                await trio.lowlevel.checkpoint()
                return None
            await item.done.wait()
        except BaseException:
            self._withdraw(item)
            raise
        if item.error is not None:
            raise item.error
        return item.result

    def put(self, item: Item) -> None:
        """Do not wait for it. What was lost of the same key before is raised here."""
        with self._wake:
            if item.key in self.lost:
                raise self._hole(item.key)
            self._queue.append(item)
            if self._running:
                if item.durable:
                    self._wake.notify_all()
                return
            self._start()

    async def flush(self) -> None:
        """Return when what was put before is kept, or has failed."""
        if self.busy:
            with suppress(StoreError):  # who wanted it kept is told
                await self.do(Item(lambda _: None))
        else:
            await trio.lowlevel.checkpoint()

    def close(self, seconds: float, then: Callable[[], None]) -> None:
        """Have all written now, and call `then` while nobody writes. It blocks.

        Raises what was lost and nobody was told of. TimeoutError if a commit lasts
        longer than `seconds`: then `then` is not called.
        """
        with self._wake:
            self._hurry = True
            self._wake.notify_all()
            if not self._wake.wait_for(lambda: not self._running, seconds):
                raise TimeoutError
            self._hurry, self._running = False, True
        try:
            then()
        finally:
            with self._wake:
                self._running = False
                self._wake.notify_all()
                if self._queue:  # put while it closed
                    self._start()
        untold, self._untold = self._untold, {}
        for error in untold.values():  # one of them says what is the matter
            raise error

    def _start(self) -> None:
        self._running = True
        try:
            trio.lowlevel.start_thread_soon(self._write, _finished)
        except BaseException:
            self._running = False
            self._queue.clear()
            raise

    def _write(self) -> None:
        while batch := self._take():
            for item in batch:
                if item.key in self.lost:  # it was in the queue already
                    item.error = self._hole(item.key)
            if todo := [item for item in batch if item.error is None]:
                self._commit(todo)
            self._note_lost(batch)
            _tell(batch)

    def _take(self) -> list[Item]:
        """All there is, once somebody waits for it or it has waited long enough."""
        with self._wake:
            while self._queue and (seconds := self._linger()) > 0:
                self._wake.wait(seconds)
            batch, self._queue = self._queue, []
            if not batch:
                self._running = False
                self._wake.notify_all()
            return batch

    def _linger(self) -> float:
        if self._hurry or any(item.durable for item in self._queue):
            return 0.0
        return self._queue[0].since + LINGER_SECONDS - monotonic()

    def _note_lost(self, batch: list[Item]) -> None:
        """The run has gone on without waiting: there is a hole, so it ends here."""
        for item in batch:
            if item.error is None or item.durable or item.key is None:
                continue
            with self._wake:
                if item.key not in self.lost:
                    self.lost[item.key] = self._untold[item.key] = item.error

    def _hole(self, key: tuple[str, int]) -> StoreError:
        self._untold.pop(key, None)
        first = self.lost[key]
        error = StoreError(f"an earlier event was not kept: {first}", code=first.code)
        error.__cause__ = first
        return error

    def _withdraw(self, item: Item) -> None:
        with self._wake:
            if item in self._queue:
                self._queue.remove(item)


def _tell(batch: list[Item]) -> None:
    """Wake those who wait, each in its own trio run: one call for each run."""
    waiting: dict[trio.lowlevel.TrioToken, list[trio.Event]] = {}
    for item in batch:
        if item.token is not None:
            waiting.setdefault(item.token, []).append(item.done)
    for token, events in waiting.items():
        try:
            token.run_sync_soon(_set_all, events)
        except trio.RunFinishedError:
            pass


def _set_all(events: list[trio.Event]) -> None:
    for event in events:
        event.set()


def _finished(outcome: Any) -> None:
    outcome.unwrap()
