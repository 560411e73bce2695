"""A child process that ends with its block, with all that came of it.

This file knows nothing of tools: whoever needs a program at the other end of a pipe (a
worker, a command, a server on stdio) uses it.

    async with open_supervised(["mcp-server"]) as process:
        await process.stdin.send_all(b"hello")
        answer = await process.stdout.receive_some()

Leaving the block, in whatever way, sends TERM to the program and to every descendant,
and KILL after `grace_seconds`; it waits until none is left. When the owner dies, be it
by `kill -9`, they get KILL at once. What came on stderr last is in `stderr_tail`.

A warden does this, a small process between the owner and the program: see `_warden`. It
costs 30 to 40 ms at the start, and 7 MB. Linux has the whole promise. On macOS a
descendant that leaves the process group is not found. On Windows there is no warden
yet (a job object is what it needs): starting anything raises `NotImplementedError`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from logging import getLogger
from typing import Literal, NamedTuple, Self

import trio

from . import _warden

OVERRUN_SECONDS = 5.0  # beyond the grace: then the warden itself is killed
TAIL_BYTES = 64_000  # of stderr

logger = getLogger("trioagent")

_STREAMS = {
    "pipe": subprocess.PIPE,
    "tail": subprocess.PIPE,
    "stdout": subprocess.STDOUT,
    "inherit": None,
    "nothing": subprocess.DEVNULL,
}
In = Literal["pipe", "nothing", "inherit"]
Out = Literal["pipe", "nothing", "inherit"]
Err = Literal["tail", "pipe", "stdout", "nothing", "inherit"]


class Exit(NamedTuple):
    """How a process ended. `str(exit)` says it in words."""

    returncode: int | None  # as in subprocess: -9 is signal 9. None: nobody saw it

    @property
    def signal(self) -> str:
        """The signal that ended it, such as SIGKILL; empty if none did."""
        if self.returncode is None or self.returncode >= 0:
            return ""
        try:
            return signal.Signals(-self.returncode).name
        except ValueError:
            return f"signal {-self.returncode}"

    def __str__(self) -> str:
        if self.returncode is None:
            return "an unknown exit code"
        return self.signal or f"exit code {self.returncode}"


class Supervised:
    """A running program. Made by `open_supervised`.

    Whoever makes it by `start` must end it by `stop`.
    """

    pid = 0  # of the program itself

    def __init__(
        self, warden: trio.Process, control: socket.socket, grace: float
    ) -> None:
        self.grace_seconds = grace
        self.exit: Exit | None = None  # once nothing is left of it
        self._warden = warden
        self._control = control  # non-blocking, for orders
        self._answers = trio.socket.from_stdlib_socket(control)
        self._reports = b""
        self._reading = trio.Lock()
        self._tail = bytearray()
        self._cut = 0
        self._keeping_tail: trio.Event | None = None  # set when all of it is there

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: In = "pipe",
        stdout: Out = "pipe",
        stderr: Err = "inherit",
        grace_seconds: float = 2.0,
    ) -> Self:
        """Return once the program runs; on every other way out nothing is left of it.

        Takes what `open_supervised` takes, and empties no stderr by itself. Needs no
        nursery, so another task may end what this one has started.
        """
        if isinstance(command, str) or not command:
            raise TypeError(f"a command is a list of strings, not {command!r}")
        check_platform()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            environment = dict(os.environ if env is None else env)
            options = (theirs.fileno(), os.getpid(), grace_seconds)
            argv = [sys.executable, "-I", "-S", _warden.__file__, *map(str, options)]
            try:
                warden = await trio.lowlevel.open_process(
                    [*argv, str(int("LC_CTYPE" in environment)), *command],
                    stdin=_STREAMS[stdin],
                    stdout=_STREAMS[stdout],
                    stderr=_STREAMS[stderr],
                    cwd=cwd,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # a Ctrl-C in the terminal is for us
                )
            except BaseException:
                ours.close()
                raise
        process = cls(warden, ours, grace_seconds)
        try:
            await process._wait_started(command[0])
        except BaseException:
            await process.stop()  # noqa: ASYNC102 - it brings its own bounded shield
            raise
        return process

    async def _wait_started(self, program: str) -> None:
        word, number = await self._report()
        if word == "failed" and number:
            raise OSError(number, os.strerror(number), program)
        if word != "started":
            raise RuntimeError(f"the warden of {program!r} did not start")
        self.pid = number

    @property
    def stdin(self) -> trio.abc.SendStream:
        """To the program. For stdin="pipe", the default."""
        assert self._warden.stdin is not None, 'start it with stdin="pipe"'
        return self._warden.stdin

    @property
    def stdout(self) -> trio.abc.ReceiveStream:
        """From the program. For stdout="pipe", the default."""
        assert self._warden.stdout is not None, 'start it with stdout="pipe"'
        return self._warden.stdout

    @property
    def stderr(self) -> trio.abc.ReceiveStream:
        """From the program. For stderr="pipe" only."""
        assert self._warden.stderr is not None, 'start it with stderr="pipe"'
        return self._warden.stderr

    @property
    def stderr_tail(self) -> str:
        """What came on stderr last; it can be read after the end, too."""
        text = self._tail.decode(errors="replace")
        return f"… {self._cut} bytes left out …\n{text}" if self._cut else text

    async def wait(self) -> Exit:
        """Wait until nothing is left of it; how the program ended.

        What the program leaves behind at its own end is ended first, in the same way as
        by `terminate`. May be called by several tasks at once, and be cancelled.
        """
        async with self._reading:
            while self.exit is None:
                word, number = await self._report()
                if word != "started":
                    self.exit = Exit(number if word == "ended" else None)
        await self._warden.wait()
        return self.exit

    async def _report(self) -> tuple[str, int]:
        """The warden's next line; nothing if there is none."""
        while b"\n" not in self._reports:
            try:
                received = await self._answers.recv(512)
            except OSError:
                received = b""
            self._reports += received
            if not received:
                return "", 0
        line, _, self._reports = self._reports.partition(b"\n")
        word, number = line.decode().split()
        return word, int(number)

    def terminate(self) -> None:
        """Send TERM to the whole tree, and KILL after its grace. Returns at once."""
        self._order(b"T")

    def kill(self) -> None:
        """Send KILL to the whole tree. Returns at once."""
        self._order(b"K")

    def _order(self, order: bytes) -> None:
        if self.exit is None:
            try:
                self._control.send(order)
            except OSError:  # the warden has ended, and so has the tree
                pass

    async def stop(self) -> None:
        """End the whole tree, in the grace and a moment, also when cancelled."""
        self.terminate()
        with trio.move_on_after(self.grace_seconds + OVERRUN_SECONDS, shield=True):
            async with trio.open_nursery() as nursery:
                for stream in (self._warden.stdout, self._warden.stderr):
                    if stream is not None:
                        nursery.start_soon(_drain, stream)
                if self._keeping_tail is not None:
                    nursery.start_soon(self._keeping_tail.wait)
                if self._warden.stdin is not None:
                    await self._warden.stdin.aclose()
                await self.wait()
        if self.exit is None:
            with trio.move_on_after(1, shield=True):
                await self._give_up()
        for stream in (self._warden.stdout, self._warden.stderr):
            if stream is not None:
                with trio.move_on_after(0, shield=True):
                    await stream.aclose()
        self._answers.close()

    async def _give_up(self) -> None:
        """Kill the wardens, and with them the program; the rest is out of reach."""
        said = "the process %d did not end in time, and its warden was killed"
        logger.warning(said, self.pid)
        self.exit = Exit(None)
        with suppress(OSError):
            os.killpg(self._warden.pid, signal.SIGKILL)
        await self._warden.wait()

    async def keep_tail(self) -> None:
        """Read stderr to its end, and keep the last of it."""
        self._keeping_tail = trio.Event()
        try:
            with trio.CancelScope(shield=True):  # `stop` ends it
                async for part in self.stderr:
                    self._tail += part
                    if (over := len(self._tail) - TAIL_BYTES) > 0:
                        del self._tail[:over]
                        self._cut += over
        except _GONE:
            pass
        finally:
            self._keeping_tail.set()


def check_platform() -> None:
    """Raise NotImplementedError where there is no warden."""
    if sys.platform == "win32":
        raise NotImplementedError(
            "processes that end with their owner are not supported on Windows yet"
        )


_GONE = (
    OSError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.BusyResourceError,  # somebody else reads it
)


async def _drain(stream: trio.abc.ReceiveStream) -> None:
    """Read to the end, so that nobody is stopped by a full pipe on the way out."""
    try:
        async for _ in stream:
            pass
    except _GONE:
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_supervised(
    command: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: In = "pipe",
    stdout: Out = "pipe",
    stderr: Err = "tail",
    grace_seconds: float = 2.0,
) -> AsyncGenerator[Supervised]:
    """Run a program for as long as the block lasts. An error leaves it as itself.

    Args:
        command: the program, found by PATH, and its arguments.
        cwd: where it runs.
        env: its whole environment; None is that of the owner.
        stdin: "pipe", "nothing" (it is at its end) or "inherit".
        stdout: "pipe", "nothing" (it is thrown away) or "inherit".
        stderr: "tail" (always read, the last of it is kept in `stderr_tail`), "pipe",
            "stdout" (goes the same way), "nothing" or "inherit".
        grace_seconds: from TERM to KILL.

    Raises:
        OSError: the program cannot be run; nothing has happened then.
        NotImplementedError: this system cannot keep the promise.
    """
    process = await Supervised.start(
        command,
        cwd=cwd,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        grace_seconds=grace_seconds,
    )
    problem: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                if stderr == "tail":
                    nursery.start_soon(process.keep_tail)
                yield process
            finally:
                await process.stop()  # noqa: ASYNC102 - it brings its own shield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        (problem,) = group.exceptions  # of the block: the other task raises none
    if problem is not None:  # outside of `except`, where the group would be its context
        raise problem
