"""What trioagent adds to trio: shields with a grace, and a nursery without groups."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio


class GracePeriods:
    """Shields that hold for a grace after the enclosing cancel, and no longer.

    trio's own shield holds for ever. Here one sleeping task waits for the cancel,
    whoever it comes from, and then starts the clock of every shield that is open. So a
    shield costs no task of its own, and works for a stop, a deadline and an enclosing
    scope alike.
    """

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        self.cancelled_at: float | None = None
        self._on_cancel = on_cancel  # is told once, and must not await
        self._watching = False
        self._open: dict[trio.CancelScope, float] = {}

    def note_cancel(self) -> None:
        """The cancel has come: start the clocks. Whoever sees it first may say so."""
        if self.cancelled_at is None:
            self.cancelled_at = trio.current_time()
            self._on_cancel()
            for shield, seconds in self._open.items():
                shield.deadline = self.cancelled_at + seconds

    @asynccontextmanager
    async def watch(
        self, overrun: Callable[[], Awaitable[None]]
    ) -> AsyncGenerator[None]:
        """Watch over the body: when it is cancelled, start the clocks.

        Then `overrun` runs beside the body, out of reach of the cancel, until the body
        has ended.
        """
        cancelled = trio.CancelScope(shield=True)
        over = False

        async def wait_for_the_cancel() -> None:
            try:
                await trio.sleep_forever()
            finally:
                if not over:
                    self.note_cancel()
                    with cancelled:
                        # Bounded by the body, which ends it through `cancelled`.
                        await overrun()  # noqa: ASYNC102

        async with open_flat_nursery() as nursery:
            nursery.start_soon(wait_for_the_cancel, name="the watcher of a run")
            self._watching = True
            try:
                yield
                over = True
            finally:
                self._watching = False
                cancelled.cancel(reason="the body has ended")
            nursery.cancel_scope.cancel(reason="the body has ended")

    @contextmanager
    def shield(self, seconds: float) -> Iterator[trio.CancelScope]:
        """Keep an enclosing cancel out, for `seconds` after it came at most.

        Where the cancel has come already, and outside `watch`, the clock starts now. It
        does not look whether a body should begin at all: ask `is_cancelled` first.
        """
        with trio.CancelScope(shield=True) as scope:
            if self.cancelled_at is not None or not self._watching:
                scope.deadline = trio.current_time() + seconds
            self._open[scope] = seconds
            try:
                yield scope
            finally:
                del self._open[scope]


def is_cancelled() -> bool:
    """Whether the next checkpoint would be cancelled. Asking is none itself."""
    return trio.current_effective_deadline() <= trio.current_time()


async def end_if_cancelled() -> None:
    """Raise `Cancelled` if it is due, and do nothing otherwise.

    Unlike `trio.lowlevel.checkpoint_if_cancelled` it also looks at the clock: a
    deadline that has just passed counts before trio has noticed it.
    """
    if is_cancelled():
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_flat_nursery() -> AsyncGenerator[trio.Nursery]:
    """Like `trio.open_nursery`, but its errors leave it as `flat_errors` says."""
    with flat_errors():
        async with trio.open_nursery() as nursery:
            yield nursery


@contextmanager
def flat_errors() -> Iterator[None]:
    """Let one error out of a group, as itself.

    Of several, Ctrl-C goes first, then the first one; the others stand in its notes. A
    cancel that came along is delivered again by the next checkpoint.
    """
    first: BaseException | None = None
    try:
        yield
    except BaseExceptionGroup as group:
        _, rest = group.split(trio.Cancelled)
        if rest is None:
            raise
        first, *others = sorted(_leaves(rest), key=lambda e: isinstance(e, Exception))
        for other in others:
            first.add_note(f"At the same time: {other!r}")
    if first is not None:
        first.__suppress_context__ = True  # the group would only be noise
        raise first


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
