"""What the tools of a scenario do. It is the same for every adapter.

An adapter brings the means of its event loop (`Means`) and gives the framework under
test a tool that calls `Work.tool`, or `Work.thread_tool` where the scenario wants a
plain function.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol

from ._probe import Probe, now
from ._scenarios import Scene

FOREVER = 3_600.0
_LATER = ("child", "post")  # bodies that are under way only when another process is
# A command that tells when it is there, and obeys a TERM or ignores it.
CHILD = """
import signal, sys, time
if sys.argv[1] == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("there", flush=True)
time.sleep(30)
"""


class Means(Protocol):
    """What the event loop of an adapter can do, in the way people write it there."""

    async def sleep(self, seconds: float) -> None:
        """Wait, and be stopped by a stop."""

    async def clean_up(self, seconds: float) -> None:
        """Wait in a `finally`, as good code of this loop does it."""

    async def run_child(self, argv: list[str], probe: Probe) -> None:
        """Run a command to its end.

        Note its id in `probe.children`, and call `probe.reach` at its first word.
        """

    async def post(self, url: str) -> None:
        """POST to `url` and wait for the answer."""


class Work:
    """The work of one run."""

    def __init__(
        self, scene: Scene, probe: Probe, means: Means, check: Callable[[], None]
    ) -> None:
        self.scene = scene
        self.probe = probe
        self._means = means
        self._check = check  # for a thread: raises where the run is being stopped
        self._body = {
            "block": self._block,
            "swallow": self._swallow,
            "cpu": self._hog,
            "child": self._child,
            "post": self._post,
            "finish": self._finish,
            "approval": self._block,
        }.get(scene.body, self._block)

    def next_calls(self) -> list[str]:
        """The model is asked: which tools it calls, none where it has an answer.

        `ask` is the next agent below, `work` the tool under test.
        """
        level = self.probe.request() + 1
        if level < self.scene.depth:
            return ["ask"]
        return ["work"] * self.scene.tools if level == self.scene.depth else []

    async def tool(self) -> str:
        """One call of the tool under test."""
        probe = self.probe
        probe.begin()
        if self.scene.body not in _LATER:
            probe.reach()
        try:
            await self._body()
            if self.scene.effects and self.scene.body != "post":
                probe.effect()
            probe.finished += 1
        except BaseException:
            probe.observe()
            raise
        finally:
            try:
                if self.scene.cleanup_ms:
                    with probe.cleaning():
                        await self._means.clean_up(self.scene.cleanup_ms / 1e3)
                elif probe.observed is not None:
                    probe.cleaned = now()
            finally:
                probe.end()
        return "done"

    def thread_tool(self) -> str:
        """The same as a plain function: it works on until its effect, or is asked."""
        probe = self.probe
        probe.begin()
        probe.reach()
        try:
            with probe.in_thread():
                end = now() + int(self.scene.body_ms * 1e6)
                while now() < end:
                    time.sleep(0.002)  # this is the work of a thread
                    if self.scene.mode == "cooperative":
                        self._check()
                probe.effect()
            probe.finished += 1
        except BaseException:
            probe.observe()
            raise
        finally:
            probe.end()
        return "done"

    async def _block(self) -> None:
        await self._means.sleep(FOREVER)

    async def _swallow(self) -> None:
        for _ in range(10):
            try:
                await self._means.sleep(FOREVER)
            except BaseException:  # noqa: BLE001 - a tool that does is what is measured
                self.probe.observe()
                time.sleep(self.scene.body_ms / 1e4)  # it is busy

    async def _hog(self) -> None:
        while True:
            end = now() + int(self.scene.body_ms * 1e6)
            while now() < end:
                pass
            await self._means.sleep(0.005)

    async def _child(self) -> None:
        argv = [sys.executable, "-S", "-E", "-c", CHILD, self.scene.mode]
        await self._means.run_child(argv, self.probe)

    async def _post(self) -> None:
        await self._means.post(f"{self.scene.server}/commit")

    async def _finish(self) -> None:
        await self._means.sleep(self.scene.body_ms / 1e3)
