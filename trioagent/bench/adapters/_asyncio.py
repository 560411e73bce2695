"""What adapters on asyncio share: the loop, and the means of its tools.

A framework on asyncio is stopped by cancelling the task that awaits it, unless it has a
way of its own.
"""
# ruff: noqa: TID251, ASYNC  # this is the other library

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from trioagent.bench._probe import Probe, now
from trioagent.bench._protocol import Handle
from trioagent.bench._scenarios import Scene
from trioagent.bench._work import Work

HOLD_SECONDS = 0.02  # until another run has the connection


class AsyncioHandle(Handle):
    """A run on asyncio."""

    def __init__(
        self, scene: Scene, probe: Probe, due: int, work: Work, loop: Any
    ) -> None:
        super().__init__(scene, probe, due)
        self.work = work
        self.loop = loop
        self.outer: asyncio.Task[None] | None = None
        self.done = threading.Event()
        self.tasks_before = 0

    def tasks_left(self) -> int:
        """See `Handle`."""
        asked = asyncio.run_coroutine_threadsafe(_count_tasks(), self.loop)
        return asked.result(10) - 1 - self.tasks_before  # one of them counts

    def cancel_outer(self) -> None:
        """See `Handle`."""
        if self.outer is not None:
            self.outer.cancel()


class AsyncioBench:
    """An adapter on asyncio: say `run`, and what it needs in `prepare`."""

    name = ""
    packages: tuple[str, ...] = ()

    def versions(self) -> dict[str, str]:
        """See `Adapter`."""
        return {name: version(name) for name in self.packages}

    def setup(self, scene: Scene) -> None:
        """See `Adapter`."""
        self.scene = scene
        asked = asyncio.run_coroutine_threadsafe(self.prepare(scene), self._loop)
        asked.result(60)

    async def prepare(self, scene: Scene) -> None:
        """Make what a run needs, once for a scenario."""

    async def run(self, handle: AsyncioHandle) -> None:
        """One run: set `handle.said`, return when it is over.

        It is cancelled as a task, unless it calls `handle.stoppable` with another way.
        """
        raise NotImplementedError

    def start(self, probe: Probe, scene: Scene, due: int) -> AsyncioHandle:
        """See `Adapter`."""
        self.work = Work(scene, probe, self, self.check)
        handle = AsyncioHandle(scene, probe, due, self.work, self._loop)
        self._loop.call_soon_threadsafe(self._begin, handle)
        return handle

    def check(self) -> None:
        """In a thread of a tool: raise where the run is being stopped. Here: never."""

    def stop(self, handle: AsyncioHandle) -> None:
        """See `Adapter`."""
        if handle.scene.source == "signal":
            self._stopping = handle
            signal.raise_signal(signal.SIGUSR1)
        else:
            self._loop.call_soon_threadsafe(handle.stop_now)

    def join(self, handle: AsyncioHandle, seconds: float) -> bool:
        """See `Adapter`."""
        return handle.done.wait(seconds)

    def serve(self, control: Callable[[], None]) -> None:
        """Run the loop in this thread, and `control` in another, until that ends."""
        asyncio.run(self._serve(control))

    async def _serve(self, control: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._keep: set[Any] = set()
        over = asyncio.Event()
        self._loop.add_signal_handler(signal.SIGUSR1, lambda: self._stopping.stop_now())

        def commands() -> None:
            try:
                control()
            finally:
                self._loop.call_soon_threadsafe(over.set)

        # Not in the loop's own pool of threads: that is for the tools.
        threading.Thread(target=commands, name="control", daemon=True).start()
        await over.wait()

    def _begin(self, handle: AsyncioHandle) -> None:
        task = self._loop.create_task(self._one(handle))
        self._keep.add(task)
        task.add_done_callback(self._keep.discard)

    async def _one(self, handle: AsyncioHandle) -> None:
        holder = None
        if handle.scene.mode == "contended":
            holder = asyncio.create_task(self._hold(handle))
            await asyncio.sleep(HOLD_SECONDS)
        handle.tasks_before = len(asyncio.all_tasks())
        handle.outer = asyncio.create_task(self.run(handle))
        await asyncio.sleep(0)  # it gets its first step, and may have a stop of its own
        if not handle.has_stop:
            handle.stoppable(handle.outer.cancel)
        try:
            await handle.outer
        except asyncio.CancelledError:
            handle.said = handle.said or self.on_cancelled(handle)
        except Exception as error:  # noqa: BLE001 - it is reported, with its sample
            handle.problem = f"{type(error).__name__}: {error}"
        finally:
            left = len(asyncio.all_tasks()) - handle.tasks_before
            handle.probe.note_return(lambda: left)
            if holder is not None:
                holder.cancel()
            handle.done.set()

    def on_cancelled(self, handle: AsyncioHandle) -> Any:
        """What the caller knows where the run ended by raising CancelledError."""
        from trioagent.bench._probe import Said

        return Said(status="stopped", said="CancelledError")

    async def _hold(self, handle: AsyncioHandle) -> None:
        other = AsyncioHandle(
            handle.scene, Probe(0), now() + 60_000_000_000, handle.work, self._loop
        )
        await self.run(other)

    # The means of the tools

    async def sleep(self, seconds: float) -> None:
        """See `Means`."""
        await asyncio.sleep(seconds)

    async def clean_up(self, seconds: float) -> None:
        """See `Means`."""
        await asyncio.sleep(seconds)

    async def run_child(self, argv: list[str], probe: Probe) -> None:
        """See `Means`. As its documentation shows it: nobody ends it on a cancel."""
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.PIPE
        )
        probe.children.append(process.pid)
        assert process.stdout is not None
        await process.stdout.readline()
        probe.reach()
        await process.communicate()

    async def post(self, url: str) -> None:
        """See `Means`."""
        import httpx

        async with httpx.AsyncClient(verify=False, timeout=None) as client:
            await client.post(url)


async def _count_tasks() -> int:
    return len(asyncio.all_tasks())
