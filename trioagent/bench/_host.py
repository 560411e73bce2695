"""An adapter's process: `python -m trioagent.bench._host NAME`.

The main thread has the event loop of the framework under test, as in a program of its
users. The control thread reads the bench's commands, and issues each stop as a button
or a signal would: from outside the loop, at an instant that was drawn before.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from typing import IO

import msgspec

from ._probe import Probe, now
from ._protocol import Adapter, Answer, Command, Handle, NotSupported
from ._results import Sample
from ._sample import Witness, watch
from ._scenarios import Scene
from .adapters import load

READY_SECONDS = 30.0  # for the work that is to be stopped to get under way
RETURN_SECONDS = 10.0  # after the stop; a run that takes longer has not returned
LEAD_MS = 50.0  # from the start of a run to a deadline, and 1 ms for each tool
PR_SET_TIMERSLACK = 29


class Control:
    """Reads commands, and answers each."""

    scene: Scene
    handle: Handle

    def __init__(self, adapter: Adapter, out: IO[bytes]) -> None:
        self._adapter = adapter
        self._out = out
        self._witness: Witness | None = None
        self._due = 0

    def serve(self) -> None:
        """Until stdin ends."""
        wake_up_sharply()
        for line in sys.stdin.buffer:
            command = msgspec.json.decode(line, type=Command)
            self._out.write(msgspec.json.encode(self.answer(command)) + b"\n")
            self._out.flush()

    def answer(self, command: Command) -> Answer:
        """Do one command. What goes wrong is told, and does not end the process."""
        try:
            match command.method:
                case "versions":
                    return Answer(versions=self._adapter.versions())
                case "setup":
                    return self._setup(command)
                case "start":
                    return self._start(command)
                case "stop":
                    self._adapter.stop(self.handle)
                    return Answer()
                case "join":
                    return Answer(sample=self._join())
                case unknown:
                    return Answer(problem=f"no method {unknown!r}")
        except NotSupported as error:
            return Answer(skipped=str(error))
        except Exception as error:  # noqa: BLE001 - it is told to the bench
            return Answer(problem=f"{type(error).__name__}: {error}")

    def _setup(self, command: Command) -> Answer:
        assert command.scene is not None
        self.scene = command.scene
        if command.scene.server and self._witness is None:
            self._witness = Witness(command.scene.server)
        self._adapter.setup(command.scene)
        gc.collect()  # the last scenario's rubbish is not this one's to clear away
        return Answer()

    def _start(self, command: Command) -> Answer:
        scene, probe = self.scene, Probe(self.scene.bodies)
        if self._witness:
            self._witness.ask("reset")
        self._due = now() + int((LEAD_MS + scene.tools) * 1e6) + command.delay_ns
        self.handle = self._adapter.start(probe, scene, self._due)
        if scene.source == "deadline":
            return Answer()
        if scene.when == "before":
            self._due = probe.started
        elif scene.when == "race":  # around the instant at which the tool is done
            self._wait_ready(scene, probe)
            self._due = now() + command.delay_ns
        else:
            self._wait_ready(scene, probe)
            self._due = (probe.ready_at or now()) + command.delay_ns
        return Answer()

    def _wait_ready(self, scene: Scene, probe: Probe) -> None:
        if scene.wire in ("silent", "busy", "commit") or scene.body == "mcp":
            assert self._witness is not None
            self._witness.ask("wait")
            probe.set_ready()
        if not probe.ready.wait(READY_SECONDS):
            raise TimeoutError(
                f"the work was not under way within {READY_SECONDS:g} s: {probe.begun} "
                f"of {scene.bodies} tools had begun; "
                f"{self.handle.problem or self.handle.said}"
            )

    def _join(self) -> Sample:
        scene, due = self.scene, self._due
        sleep_until(due)
        issued = due
        if scene.source != "deadline" and scene.when != "before":
            issued = now()
            self._adapter.stop(self.handle)
        if scene.again_ms:
            sleep_until(due + int(scene.again_ms * 1e6))
            self._adapter.stop(self.handle)
        self._adapter.join(self.handle, RETURN_SECONDS)
        sample = watch(self.handle, self._witness, issued)
        sample.due = due
        if self.handle.problem:
            raise RuntimeError(self.handle.problem)
        return sample


def wake_up_sharply() -> None:
    """Let this thread's timers fire on time: Linux may delay each by 50 µs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def sleep_until(due: int) -> None:
    """Sleep, to the stamp."""
    while (left := due - now()) > 0:
        time.sleep(left / 1e9)  # a thread of its own, not the loop


class Missing:
    """Answers for an adapter whose framework is not installed here."""

    def __init__(self, why: str) -> None:
        self._why = why

    def serve(self, out: IO[bytes]) -> None:
        """Until stdin ends."""
        for _ in sys.stdin.buffer:
            out.write(msgspec.json.encode(Answer(skipped=self._why)) + b"\n")
            out.flush()


def main(name: str, collect: str, cores: str, out: IO[bytes]) -> None:
    """Answer commands about one adapter until stdin ends."""
    if collect == "off":
        gc.disable()
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    try:
        adapter = load(name)
        adapter.versions()
    except ImportError as error:
        why = f"not installed: {error.name or error}"
        Missing(why).serve(out)
        return
    adapter.serve(Control(adapter, out).serve)


if __name__ == "__main__":
    # Whatever a framework prints goes to stderr: stdout is the protocol's.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    name, collect, cores = sys.argv[1:] + ["on", ""][len(sys.argv) - 2 :]
    main(name, collect, cores, answers)
    os._exit(0)  # threads that a framework has left behind do not hold us up
