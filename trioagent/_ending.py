"""Why one run ends, who is still going when it does, and how each of them ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec
import trio

from ._events import Child, CleanupOverrun, RunEnded, Status, Stop
from ._foreign import clean
from ._limits import Limits
from ._scopes import GracePeriods, Shield, is_cancelled

logger = logging.getLogger("trioagent")


FIRM = ("user", "guard")  # whose reasons win over an answer that was there before


class Cause(NamedTuple):
    """A reason to end before the work was done, and when it was given."""

    status: Status
    stop: Stop
    at: float


class Ending:
    """Ends a run once, for the first reason that is given, and keeps the report.

    The reason is written down at the moment it is given; the scope only carries the
    cancel to the tasks. So nobody has to guess from an exception who it was.
    """

    def __init__(self, limits: Limits, parent: Ending | None = None) -> None:
        self.parent = parent
        self.scope = trio.CancelScope()
        self.graces = GracePeriods(self._find_cause)
        self.finishing: Stop | None = None  # end after this turn
        self.cause: Cause | None = None
        self.decided = False  # from here on it is too late to cancel
        self.crashed = False
        self._limits = limits
        self._host_deadline = 0.0
        self._children: dict[trio.lowlevel.Task, str] = {}
        self._cleanup: list[Child] = []
        self._left_behind: list[tuple[str, Callable[[], bool]]] = []

    def start_clock(self, used: float) -> None:
        """The run begins now, or goes on after `used` seconds; its deadline counts."""
        self._host_deadline = trio.current_effective_deadline()
        deadline = trio.current_time() + self._limits.seconds - used
        self.scope.deadline = min(self.scope.deadline, deadline)

    def remaining(self) -> float:
        """Seconds until the first deadline around the caller."""
        first = min(
            self.scope.deadline, self._host_deadline, trio.current_effective_deadline()
        )
        return max(0.0, first - trio.current_time())

    def cancel(self, reason: str) -> bool:
        """End now, because a user says so. Whether this is what it ends for."""
        reason = clean(reason)
        if self.finishing:  # said before, more politely: the first reason stays
            reason = self.finishing.detail
        stop = Stop("user", reason, source="user")
        now = trio.current_time()
        # In one tick of the clock, a user comes before the run's own deadline.
        late = self.cause and (self.cause.stop.code, self.cause.at) != ("deadline", now)
        if self.decided or late:
            return False
        self.stop_now(Status.CANCELLED, stop)
        return True

    def finish_turn(self, reason: str) -> bool:
        """End after this turn, because a user says so. False if it is too late."""
        if self.decided or self.cause or self.finishing:
            return False
        self.finishing = Stop("user", clean(reason), scope="turn", source="user")
        return True

    def stop_now(self, status: Status, stop: Stop) -> None:
        """Write the cause down and cancel everything."""
        self.cause = Cause(status, stop, trio.current_time())
        self.scope.cancel(reason=stop.detail or stop.code)

    def _find_cause(self) -> None:
        """A cancel has come. If nobody gave a cause, it is a deadline or the host."""
        if self.cause is None:
            now = trio.current_time()
            by_deadline = self.scope.cancel_called and now < self._host_deadline
            self.cause = self._deadline(now) if by_deadline else self._host(now)

    def _deadline(self, now: float) -> Cause:
        seconds = self._limits.seconds
        detail = f"the run's {seconds:g} s are over (Limits.seconds)"
        return Cause(Status.TIMED_OUT, Stop("deadline", detail), now)

    def _host(self, now: float) -> Cause:
        above = self.parent
        while above:  # whoever it works for ends, and its reason is ours
            if above.cause:
                stop = msgspec.structs.replace(above.cause.stop, scope="parent")
                return Cause(above.cause.status, stop, now)
            above = above.parent
        detail = "a scope around the run was cancelled, or an error passed through"
        stop = Stop("host", detail, scope="host", source="host")
        return Cause(Status.INTERRUPTED, stop, now)

    def note_crash(self, error: Exception) -> None:
        """An error passes through the run: a bug, of ours or of what it was given.

        It takes the place of the cancel that it caused. Only its type is kept, for its
        text may hold anything.
        """
        self.crashed = True
        if self.cause is None or self.cause.stop.code == "host":
            stop = Stop("error", type(error).__name__, scope="host", source="host")
            self.cause = Cause(Status.INTERRUPTED, stop, trio.current_time())

    def verdict(self, end: RunEnded | None, *, in_time: bool) -> RunEnded:
        """How the run has ended: by its cause if there is one, else as it says itself.

        Whoever cancels after this is told that it is too late.
        """
        self.decided = True
        # An answer that was there before a deadline is not lost to it. To a user it is:
        # whoever was told that the run ends for him can rely on it.
        # A guard that objects has the last word as well.
        done = in_time and end is not None and end.status is Status.COMPLETED
        if self.cause and not (done and self.cause.stop.source not in FIRM):
            end = RunEnded(self.cause.status, self.cause.stop)
        assert end is not None
        for name in self.alive():
            self.report(name, "abandoned")
        return msgspec.structs.replace(end, cleanup=tuple(self._cleanup))

    @property
    def stopping(self) -> bool:
        """Whether there is a reason to end, or a cancel has come."""
        return self.cause is not None or self.graces.cancelled_at is not None

    def child(self, name: str, grace_seconds: float = 0.0) -> Working:
        """The current task is working for the run; if it is stopped, report how.

        With a grace it is shielded: a stop leaves it that long to come to its end.
        """
        shield = self.graces.shield(grace_seconds) if grace_seconds else None
        return Working(self, name, shield)

    def begin(self, task: trio.lowlevel.Task, name: str) -> str | None:
        """A task works for the run; what it was doing until now."""
        outer = self._children.get(task)
        self._children[task] = name
        return outer

    def end(
        self, task: trio.lowlevel.Task, name: str, outer: str | None, ended: str
    ) -> None:
        """It does not any more; where the run is being stopped, that is reported."""
        if outer is None:
            del self._children[task]
        else:
            self._children[task] = outer
        if self.graces.cancelled_at is None and ended == "cancelled" and is_cancelled():
            self.graces.note_cancel()
        if self.graces.cancelled_at is not None:
            self.report(name, ended)

    def report(self, name: str, ended: str, where: str = "") -> None:
        """Put a line into the cleanup report."""
        stopped = self.graces.cancelled_at
        seconds = 0.0 if stopped is None else trio.current_time() - stopped
        self._cleanup.append(
            Child(name=name, ended=ended, seconds=seconds, where=where)
        )

    def adopt(self, name: str, line: Child) -> None:
        """Take a line of a child's report over."""
        self._cleanup.append(msgspec.structs.replace(line, name=f"{name}: {line.name}"))

    def leave_behind(self, name: str, is_alive: Callable[[], bool]) -> None:
        """A thread goes on that nobody waits for."""
        self._left_behind.append((name, is_alive))

    def alive(self) -> list[str]:
        """The threads that were left behind and are still going."""
        return [name for name, is_alive in self._left_behind if is_alive()]

    def overruns(self) -> list[CleanupOverrun]:
        """Who still holds the run open, and where each of them stands."""
        assert self.graces.cancelled_at is not None
        seconds = trio.current_time() - self.graces.cancelled_at
        found = [
            CleanupOverrun(name=name, where=_where(task), seconds=seconds)
            for task, name in self._children.items()
        ]
        for late in found:
            said = "%s holds its run open, %.0f s after the stop, at %s"
            logger.warning(said, late.name, seconds, late.where)
        return found


class Working:
    """What `Ending.child` gives, for a `with` block."""

    __slots__ = ("_ending", "_name", "_outer", "_shield", "_task")

    def __init__(self, ending: Ending, name: str, shield: Shield | None) -> None:
        self._ending = ending
        self._name = name
        self._shield = shield

    def __enter__(self) -> None:
        if self._shield:
            self._shield.__enter__()
        self._task = trio.lowlevel.current_task()
        self._outer = self._ending.begin(self._task, self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        failed = "cancelled" if isinstance(error, trio.Cancelled) else "failed"
        ended = "finished" if error is None else failed
        self._ending.end(self._task, self._name, self._outer, ended)
        return bool(self._shield and self._shield.__exit__(kind, error, traceback))


def _where(task: trio.lowlevel.Task) -> str:
    """The innermost line of a task that is not trio's own."""
    ours = Path(trio.__file__).parent
    lines = [
        f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}"
        for frame, line in task.iter_await_frames()
        if ours not in Path(frame.f_code.co_filename).parents
    ]
    return lines[-1] if lines else task.name
