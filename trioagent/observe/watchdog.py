"""A watchdog: it names the tool that keeps the event loop from turning."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import trio

logger = logging.getLogger("trioagent")
ENGINE = Path(__file__).parent.parent / "_run.py"


class Hog(NamedTuple):
    """Something that holds the loop, so that nothing else gets a turn."""

    tool: str  # its name; empty where it is no tool
    where: str  # file:line function
    seconds: float  # so far


def log_hog(hog: Hog) -> None:
    """Warn of it through `logging`."""
    what = f"the tool {hog.tool}" if hog.tool else "something"
    logger.warning(
        "%s has held the event loop for %.1f s, at %s", what, hog.seconds, hog.where
    )


@asynccontextmanager
async def watch_loop(
    seconds: float = 0.2, *, tell: Callable[[Hog], None] = log_hog
) -> AsyncGenerator[None]:
    """While the body runs, look from a thread that the loop turns.

    Where it does not for `seconds`, `tell` is called in that thread with who holds it,
    and again each time as much time again has passed. An `async def` tool that computes
    or blocks is the usual cause: make it a plain function, or give it checkpoints. The
    thread ends with the block, which waits for it.
    """
    if seconds <= 0:
        raise ValueError(f"watch_loop takes seconds above 0, not {seconds!r}")
    watch = _Watch(trio.lowlevel.current_trio_token(), seconds, tell)
    thread = threading.Thread(target=watch.keep, name="watchdog of trioagent")
    thread.start()
    try:
        yield
    finally:
        watch.over.set()
        thread.join()  # it looks at `over` all the time, so this takes no time


class _Watch:
    def __init__(
        self,
        token: trio.lowlevel.TrioToken,
        seconds: float,
        tell: Callable[[Hog], None],
    ) -> None:
        self.over = threading.Event()
        self._token = token
        self._seconds = seconds
        self._tell = tell
        self._loop = threading.get_ident()

    def keep(self) -> None:
        while not self.over.is_set():
            turned = threading.Event()
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(turned.set)
            held = 0.0
            while not self._wait(turned):
                held += self._seconds
                if frame := sys._current_frames().get(self._loop):  # noqa: SLF001 - public
                    self._tell(_hog(frame, held))
            self.over.wait(self._seconds)

    def _wait(self, turned: threading.Event) -> bool:
        """Whether the loop has turned in time, or nobody wants to know any more."""
        return turned.wait(self._seconds) or self.over.is_set()


def _hog(frame: FrameType, seconds: float) -> Hog:
    """Who it is, by the stack of the loop's thread: innermost first."""
    where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
    tool = ""
    at: FrameType | None = frame
    while at and not tool:
        if at.f_code.co_name == "call_tool" and Path(at.f_code.co_filename) == ENGINE:
            tool = at.f_locals["call"].name
        at = at.f_back
    return Hog(tool, where, seconds)
