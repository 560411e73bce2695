"""What happened in one sample, noted by the tools themselves."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

now = time.monotonic_ns  # CLOCK_MONOTONIC: one clock for all processes of a machine


class Said(msgspec.Struct, kw_only=True):
    """How a run says that it ended.

    `confirmed` are effects it says have happened, `uncertain` those it says may have.
    """

    status: str  # completed, stopped, timed_out, or failed
    said: str = ""  # in the framework's own words
    confirmed: int = 0
    uncertain: int = 0


class Left(msgspec.Struct):
    """What is there of a run."""

    tasks: int = 0
    threads: int = 0
    processes: int = 0
    bodies: int = 0

    def __bool__(self) -> bool:
        return bool(self.tasks or self.threads or self.processes or self.bodies)


class Probe:
    """The stamps and counts of one run. May be used by several threads."""

    def __init__(self, bodies: int) -> None:
        self.ready = threading.Event()  # all that is to be stopped has begun
        self.ready_at: int | None = None
        self.observed: int | None = None
        self.cleaned: int | None = None
        self.ended: int | None = None  # the last body
        self.started = now()
        self.called: int | None = None  # the framework was told to stop
        self.returned: int | None = None
        self.left = Left()  # when it returned
        self.begun = 0
        self.active = 0
        self.threads = 0  # bodies in threads that go on
        self.finished = 0  # bodies that were not cut
        self.cleanups = 0  # begun and not done
        self.effects: list[int] = []
        self.requests: list[int] = []  # to a model that the adapter plays
        self.shown: list[int] = []  # pieces of a streamed reply, as they come out
        self.children: list[int] = []  # processes that a tool has started
        self._bodies = bodies
        self._lock = threading.Lock()

    def begin(self) -> None:
        """A tool begins."""
        with self._lock:
            self.active += 1

    def reach(self) -> None:
        """A tool is where it is to be stopped."""
        with self._lock:
            self.begun += 1
            if self.begun == self._bodies:
                self.set_ready()

    def set_ready(self) -> None:
        """The work that is to be stopped has begun."""
        if self.ready_at is None:
            self.ready_at = now()
            self.ready.set()

    def observe(self) -> None:
        """A tool sees the stop."""
        if self.observed is None:
            self.observed = now()

    def end(self) -> None:
        """A tool is over, in whatever way."""
        with self._lock:
            self.active -= 1
            self.ended = now()

    def note_return(self, count_tasks: Callable[[], int]) -> None:
        """The run has returned: stamp it, and then count what is left. Once."""
        if self.returned is not None:
            return
        self.returned = now()
        self.left = self.look(count_tasks())

    def look(self, tasks: int) -> Left:
        """What there is of the run now; the loop's tasks are counted by the adapter."""
        alive = sum(map(is_alive, self.children))
        return Left(max(0, tasks), self.threads, alive, self.active)

    @contextmanager
    def cleaning(self) -> Iterator[None]:
        """A cleanup. One that is cut counts as begun and never done."""
        self.cleanups += 1
        yield
        self.cleanups -= 1
        self.cleaned = now()

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """A thread works for the run."""
        with self._lock:
            self.threads += 1
        try:
            yield
        finally:
            with self._lock:
                self.threads -= 1

    def effect(self) -> None:
        """The world is changed."""
        self.effects.append(now())

    def request(self) -> int:
        """The model is asked; which request this is, from 0."""
        self.requests.append(now())
        return len(self.requests) - 1

    def show(self) -> None:
        """A piece of a reply is shown to who reads the run."""
        self.shown.append(now())
        self.set_ready()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return sys.platform != "linux"
    return stat.rpartition(")")[2].split()[0] != "Z"
