"""How functions of the user's are called, and what may come out of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import trio

T = TypeVar("T")
logger = logging.getLogger("trioagent")


def clean(text: str) -> str:
    """The text as it can be sent and kept: without lone surrogates."""
    return text.encode(errors="replace").decode()


class only_cancels:  # noqa: N801 - it is called like a function
    """Let a cancel out of a group in which errors came along, as its cleanup has them.

    Such a group is no `Exception`, and would pass all who handle what a function of the
    user's raises; its errors would then end the run in place of the cancel.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, BaseExceptionGroup):
            cancels = cancels_of(error)
            if cancels is not error:
                raise cancels from None


def cancels_of(error: BaseExceptionGroup[Any]) -> BaseExceptionGroup[Any]:
    """See `only_cancels`."""
    cancelled, rest = error.split(trio.Cancelled)
    if cancelled is None or not isinstance(rest, ExceptionGroup):
        return error
    logger.warning("in a cleanup: %s", ", ".join(_types(rest)))
    return cancelled


def _types(group: BaseExceptionGroup[Any]) -> Iterator[str]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _types(error)
        else:
            yield type(error).__name__


def check() -> None:
    """In a tool with `threads="cooperative"`: end here, if the run or the call is over.

    Call it where the tool can stop safely, some twenty times a second. Raises
    `trio.Cancelled`, which passes through `except Exception`.
    """
    try:
        trio.from_thread.check_cancelled()
    except RuntimeError:
        raise RuntimeError(
            "check() is for tools that are plain functions; an async one is cancelled"
            " at its next await"
        ) from None


left_behind: ContextVar[Callable[[str, Callable[[], bool]], None]] = ContextVar(
    "left_behind"
)
"""Whom to tell of a thread that nobody waits for: its name, and whether it is alive."""


async def call_in_thread(
    name: str, body: Callable[[], T], *, abandon: bool = False, bounded: bool = True
) -> T:
    """Run `body` in a thread, and wait for it, also when cancelled.

    With `abandon` a cancel leaves it behind: whoever set `left_behind` is told. If such
    threads are `bounded` there may be 40 at a time; the others have no limit.
    """
    began, over = threading.Event(), threading.Event()

    def work() -> T:
        began.set()
        try:
            return body()
        finally:
            over.set()

    limiter = None if abandon and bounded else trio.CapacityLimiter(1)
    try:
        return await trio.to_thread.run_sync(
            work, abandon_on_cancel=abandon, limiter=limiter
        )
    finally:
        if abandon and not over.is_set() and (tell := left_behind.get(None)):
            tell(f"thread of {name}", lambda: began.is_set() and not over.is_set())
