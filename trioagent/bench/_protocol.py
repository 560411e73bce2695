"""What the bench and an adapter's process say to each other: JSON, a line each.

The bench writes a `Command` to the adapter's stdin and reads an `Answer` from its
stdout, one for each; docs/bench-adapters.md says it in full, for any language.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ._probe import Probe, Said, now
from ._results import Sample
from ._scenarios import Scene

PROTOCOL = 1


class NotSupported(Exception):
    """The framework under test has nothing for this scenario."""


class Command(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line from the bench.

    `versions`: what is measured. `setup`: get ready for `scene`, as often as wanted.
    `start`: begin a run that is to be stopped `delay_ns` after its work is under way.
    `stop`: stop it now, whatever the plan was. `join`: wait until it is over.
    """

    method: str
    scene: Scene | None = None
    delay_ns: int = 0


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line from the adapter."""

    protocol: int = PROTOCOL
    versions: dict[str, str] = {}
    sample: Sample | None = None
    skipped: str = ""  # why this scenario cannot be had
    problem: str = ""  # what went wrong


class Handle:
    """One run, for as long as it lasts: what adapters in Python have of it."""

    def __init__(self, scene: Scene, probe: Probe, due: int) -> None:
        self.scene = scene
        self.probe = probe
        self.said: Said | None = None  # how it ended, set by the adapter
        self.problem = ""  # what it raised that is no way to stop
        self.stopped = scene.when == "before"
        self._due = due
        self._cancel: Callable[[], object] | None = None

    @property
    def seconds(self) -> float:
        """What the run may take: until its deadline, where that is what stops it."""
        if self.scene.source != "deadline":
            return 300
        return max(1e-4, (self._due - now()) / 1e9)

    @property
    def has_stop(self) -> bool:
        """Whether the run has told how to stop it."""
        return self._cancel is not None

    def stoppable(self, cancel: Callable[[], object]) -> None:
        """The run is there: this is its framework's own way to stop it, in the loop."""
        self._cancel = cancel
        if self.stopped:
            self.stop_now()

    def stop_now(self) -> None:
        """In the loop: stop the run, or remember to, where it is not yet that far."""
        self.stopped = True
        if self.probe.called is None:
            self.probe.called = now()
        if self.scene.source == "outer":
            self.cancel_outer()
        elif self._cancel is not None:
            self._cancel()

    def tasks_left(self) -> int:
        """Tasks of the loop that were not there before the run. From any thread."""
        raise NotImplementedError

    def cancel_outer(self) -> None:
        """Cancel what is around the run, and knows nothing of it."""
        raise NotImplementedError


class Adapter(Protocol):
    """A framework under test: five methods, called by one thread, one after the other.

    `stop` comes from that thread, as a button or a signal handler would; the run is on
    the event loop of another.
    """

    name: str

    def versions(self) -> dict[str, str]:
        """The packages that are measured. Raises ImportError where one is missing."""

    def setup(self, scene: Scene) -> None:
        """Make what a run needs. Raises `NotSupported`."""

    def start(self, probe: Probe, scene: Scene, due: int) -> Handle:
        """Begin a run and return at once; its tools tell `probe` how it goes.

        `due` is its deadline, on the bench's clock, where that is what stops it.
        """

    def stop(self, handle: Handle) -> None:
        """Ask the run to stop, and return at once."""

    def join(self, handle: Handle, seconds: float) -> bool:
        """Wait until the run has returned; False where it does not in this time."""
