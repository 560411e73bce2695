"""What trioagent adds to trio: shields with a grace, and a nursery without groups."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from types import TracebackType

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
            task = trio.lowlevel.current_task()

            def note(_: object) -> trio.lowlevel.Abort:
                # Within the cancel itself: nobody sees it before we do.
                if not over:
                    self.note_cancel()
                trio.lowlevel.reschedule(task)
                return trio.lowlevel.Abort.FAILED

            await trio.lowlevel.wait_task_rescheduled(note)
            if not cancelled.cancel_called:  # a body that ends at once goes first
                await trio.lowlevel.cancel_shielded_checkpoint()
            if not cancelled.cancel_called:
                with cancelled:  # bounded by the body, which ends it through this
                    await overrun()

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

    def shield(self, seconds: float) -> Shield:
        """Keep an enclosing cancel out, for `seconds` after it came at most.

        Where the cancel has come already, and outside `watch`, the clock starts now. It
        does not look whether a body should begin at all: ask `is_cancelled` first.
        """
        return Shield(self, seconds)

    def open(self, scope: trio.CancelScope, seconds: float) -> None:
        """A shield is held up: its clock starts with the cancel, or now if it came."""
        if self.cancelled_at is not None or not self._watching:
            scope.deadline = trio.current_time() + seconds
        self._open[scope] = seconds

    def close(self, scope: trio.CancelScope) -> None:
        """A shield is down."""
        del self._open[scope]


class Shield:
    """What `GracePeriods.shield` gives: a scope, for a `with` block.

    A class and no generator, as are its neighbours: each turn passes a dozen of them.
    """

    __slots__ = ("_graces", "_scope", "_seconds")

    def __init__(self, graces: GracePeriods, seconds: float) -> None:
        self._graces = graces
        self._seconds = seconds
        self._scope = trio.CancelScope(shield=True)

    def __enter__(self) -> trio.CancelScope:
        self._scope.__enter__()
        self._graces.open(self._scope, self._seconds)
        return self._scope

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._graces.close(self._scope)
        return self._scope.__exit__(kind, error, traceback)


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


class FlatNursery:
    """What `open_flat_nursery` gives, for an `async with` block."""

    __slots__ = ("_manager",)

    async def __aenter__(self) -> trio.Nursery:
        self._manager = trio.open_nursery()
        return await self._manager.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        with flat_errors():
            # A nursery waits for its tasks here, and lets a cancel reach them.
            return await self._manager.__aexit__(kind, error, traceback)  # noqa: ASYNC102


def open_flat_nursery() -> FlatNursery:
    """Like `trio.open_nursery`, but its errors leave it as `flat_errors` says."""
    return FlatNursery()


class flat_errors:  # noqa: N801 - it is called like a function
    """Let one error out of a group, as itself.

    Of several, Ctrl-C goes first, then the first one; the others stand in its notes. A
    cancel that came along is delivered again by the next checkpoint; where there is
    nothing else, one of the cancels stands for all.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, BaseExceptionGroup):
            return
        leaves = list(_leaves(error))
        others = [leaf for leaf in leaves if not isinstance(leaf, trio.Cancelled)]
        first, *others = sorted(
            others or leaves[:1], key=lambda e: isinstance(e, Exception)
        )
        for other in others:
            first.add_note(f"At the same time: {other!r}")
        first.__suppress_context__ = True  # the group would only be noise
        raise first


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
