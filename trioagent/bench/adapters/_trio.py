"""What adapters on trio share: the loop, and the means of its tools."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import trio

from trioagent.bench._probe import Probe, now
from trioagent.bench._protocol import Handle
from trioagent.bench._scenarios import Scene
from trioagent.bench._work import Work

HOLD_SECONDS = 0.02  # until another run has the connection
HOLDS_NS = 60_000_000_000


class TrioHandle(Handle):
    """A run on trio."""

    def __init__(self, scene: Scene, probe: Probe, due: int, work: Work) -> None:
        super().__init__(scene, probe, due)
        self.work = work
        self.outer = trio.CancelScope()
        self.done = trio.Event()
        self.tasks_before = 0

    def tasks_left(self) -> int:
        """See `Handle`."""
        return trio.from_thread.run_sync(self._tasks_more) + 1  # its own is over

    def note_return(self) -> None:
        """In the loop: control is back with who awaited the run."""
        self.probe.note_return(self._tasks_more)

    def _tasks_more(self) -> int:
        return count_tasks() - self.tasks_before

    def cancel_outer(self) -> None:
        """See `Handle`."""
        self.outer.cancel()


class TrioBench:
    """An adapter on trio: say `run`, and what it needs in `prepare`."""

    name = ""
    packages: tuple[str, ...] = ("trio",)

    def versions(self) -> dict[str, str]:
        """See `Adapter`."""
        return {name: version(name) for name in self.packages}

    def setup(self, scene: Scene) -> None:
        """See `Adapter`."""
        self.scene = scene
        trio.from_thread.run(self.prepare, scene)

    async def prepare(self, scene: Scene) -> None:
        """Make what a run needs, once for a scenario."""

    async def run(self, handle: TrioHandle) -> None:
        """One run: tell how to stop it (`handle.stoppable`), and what it said."""
        raise NotImplementedError

    def start(self, probe: Probe, scene: Scene, due: int) -> TrioHandle:
        """See `Adapter`."""
        self.work = Work(scene, probe, self, self.check)
        handle = TrioHandle(scene, probe, due, self.work)
        trio.from_thread.run_sync(self._nursery.start_soon, self._one, handle)
        return handle

    def check(self) -> None:
        """In a thread of a tool: raise where the run is being stopped."""

    def stop(self, handle: TrioHandle) -> None:
        """See `Adapter`."""
        if handle.scene.source == "signal":
            self._stopping = handle
            signal.raise_signal(signal.SIGUSR1)
        else:
            self._token.run_sync_soon(handle.stop_now)

    def join(self, handle: TrioHandle, seconds: float) -> bool:
        """See `Adapter`."""
        over: bool = trio.from_thread.run(self._wait, handle, seconds)
        return over

    def serve(self, control: Callable[[], None]) -> None:
        """Run the loop in this thread, and `control` in another, until that ends."""
        trio.run(self._serve, control)

    async def _serve(self, control: Callable[[], None]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            with trio.open_signal_receiver(signal.SIGUSR1) as signals:
                self._nursery.start_soon(self._obey, signals)
                await trio.to_thread.run_sync(control)
                self._nursery.cancel_scope.cancel()

    async def _obey(self, signals: Any) -> None:
        async for _ in signals:
            self._stopping.stop_now()

    async def _one(self, handle: TrioHandle) -> None:
        handle.tasks_before = count_tasks()
        try:
            async with trio.open_nursery() as nursery:
                if handle.scene.mode == "contended":
                    await self._hold(nursery, handle)
                with handle.outer:
                    await self.run(handle)
                handle.note_return()
                nursery.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - it is reported, with its sample
            handle.problem = f"{type(error).__name__}: {error}"
        finally:
            handle.note_return()
            handle.done.set()

    async def _hold(self, nursery: trio.Nursery, handle: TrioHandle) -> None:
        """Another run, which has the only connection until this one has returned."""
        scene, probe = handle.scene, Probe(0)
        other = TrioHandle(scene, probe, now() + HOLDS_NS, handle.work)
        nursery.start_soon(self.run, other)
        await trio.sleep(HOLD_SECONDS)
        handle.tasks_before = count_tasks()

    async def _wait(self, handle: TrioHandle, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await handle.done.wait()
        return handle.done.is_set()

    # The means of the tools

    async def sleep(self, seconds: float) -> None:
        """See `Means`."""
        await trio.sleep(seconds)

    async def clean_up(self, seconds: float) -> None:
        """See `Means`."""
        with trio.move_on_after(seconds + 1, shield=True):
            await trio.sleep(seconds)

    async def run_child(self, argv: list[str], probe: Probe) -> None:
        """See `Means`."""
        process = await trio.lowlevel.open_process(argv, stdout=subprocess.PIPE)
        probe.children.append(process.pid)
        assert process.stdout is not None
        try:
            async for _ in process.stdout:
                probe.reach()
            await process.wait()
        finally:
            # As trio.run_process does it: TERM, and KILL where that does not help.
            with trio.CancelScope(shield=True):
                process.terminate()
                with trio.move_on_after(0.5):
                    await process.wait()
                process.kill()
                await process.wait()
                await process.stdout.aclose()

    async def post(self, url: str) -> None:
        """See `Means`."""
        import httpx

        async with httpx.AsyncClient(verify=False, timeout=None) as client:
            await client.post(url)


def count_tasks() -> int:
    """The tasks of this loop."""
    root = trio.lowlevel.current_root_task()
    tasks = [root] if root else []
    for task in tasks:  # which grows on the way
        for nursery in task.child_nurseries:
            tasks += nursery.child_tasks
    return len(tasks)
