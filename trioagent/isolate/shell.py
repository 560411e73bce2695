"""A ready tool that runs commands, each under a warden."""

from __future__ import annotations

import codecs
import os
from collections.abc import Mapping, Sequence
from typing import Any

from trioagent._errors import ToolError
from trioagent._events import Effect
from trioagent._limits import check_number
from trioagent._ports import Approve
from trioagent._tools import Tool, ToolContext, tool

from ._supervised import Exit, Supervised

INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")
LAST_WORDS = 500  # characters of output in an error


def shell(
    name: str = "shell",
    *,
    effect: Effect | str = Effect.ONCE,
    seconds: float | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    allow: Sequence[str] | None = None,
    use_shell: bool = False,
    output_bytes: int = 64_000,
    grace_seconds: float = 2.0,
    approve: Approve | None = None,
) -> Tool:
    """A tool that runs a command and tells the model its exit code and its output.

    A stop, a deadline and the tool's own limit send TERM to the command and to all that
    it has started, and KILL after `grace_seconds`; the same happens to what a command
    leaves behind when it ends. A command that was cut is uncertain unless `effect` is
    "read", and so is one that a signal ended; any exit code is a result. The output is
    shown while it comes, and stdin is empty.

    Args:
        name: what the model calls it.
        effect: as of `@tool`.
        seconds: as of `@tool`: how long a command may take.
        cwd: where commands run.
        env: what they find in their environment besides PATH, HOME, LANG and TMPDIR,
            which are the owner's. All of it is `env=os.environ`: keys too.
        allow: the programs that may be run, as the model has to write them. It bounds
            what is started, and not what that does: `git` may run what it likes.
        use_shell: one string for `/bin/sh -c`, instead of a list of strings.
        output_bytes: how much is shown and told: its head and its tail.
        grace_seconds: from TERM to KILL.
        approve: as of `@tool`.

    Raises:
        TypeError, ValueError: where an option cannot be used.
    """
    _check(allow, use_shell, output_bytes, grace_seconds)
    kept = {key: os.environ[key] for key in INHERITED if key in os.environ}
    environment = {**kept, **(env or {})}

    async def carry_out(argv: list[str], context: ToolContext) -> str:
        process = await _start(argv, cwd, environment, grace_seconds)
        output = _Output(output_bytes)
        try:
            async for part in process.stdout:
                if text := output.add(part):
                    await context.show(text)
            end = await process.wait()
        finally:
            await process.stop()  # noqa: ASYNC102 - it brings its own bounded shield
        if text := output.end():
            await context.show(text)
        return _result(argv[0], end, output.text)

    async def run_command(command: list[str], context: ToolContext) -> str:
        """Run a program, without a shell. Tells its exit code and its output.

        Args:
            command: the program and its arguments, each a string of its own.
            context: of the call.
        """
        _check_allowed(command, allow)
        return await carry_out(command, context)

    async def run_line(command: str, context: ToolContext) -> str:
        """Run a command line in a shell. Tells its exit code and its output.

        Args:
            command: a line for /bin/sh.
            context: of the call.
        """
        return await carry_out(["/bin/sh", "-c", command], context)

    options: dict[str, Any] = {"seconds": seconds, "approve": approve}
    # Its grace is between TERM and KILL, for a program can make use of that.
    made = tool(name=name, effect=effect, grace_seconds=0, **options)
    return made(run_line if use_shell else run_command)


def _check(
    allow: Sequence[str] | None, use_shell: bool, output_bytes: int, grace: float
) -> None:
    check_number("shell(output_bytes=…)", output_bytes)
    check_number("shell(grace_seconds=…)", grace, least=0)
    if isinstance(allow, str):
        raise TypeError(f"shell(allow=…) takes a list of programs, not {allow!r}")
    if allow is not None and use_shell:
        raise ValueError("shell(allow=…) cannot be kept with use_shell=True")


def _check_allowed(command: list[str], allow: Sequence[str] | None) -> None:
    if not command:
        raise ToolError("an empty command: it takes a program and its arguments")
    if allow is not None and command[0] not in allow:
        known = ", ".join(allow) or "none"
        raise ToolError(f"{command[0]!r} may not be run. Allowed: {known}.")


async def _start(
    argv: list[str],
    cwd: str | os.PathLike[str] | None,
    environment: Mapping[str, str],
    grace: float,
) -> Supervised:
    try:
        return await Supervised.start(
            argv,
            cwd=cwd,
            env=environment,
            stdin="nothing",
            stderr="stdout",
            grace_seconds=grace,
        )
    # A NUL or a lone surrogate is ValueError.
    except (OSError, ValueError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ToolError(f"{argv[0]!r} cannot be run: {reason}") from error


def _result(program: str, end: Exit, text: str) -> str:
    if end.returncode is None or end.signal:
        # Nobody knows how far it came, so it must not look like a result.
        said = f" It said last: …{text[-LAST_WORDS:]}" if text else ""
        raise RuntimeError(f"{program} was ended by {end}.{said}")
    return f"{end}\n{text}" if text else f"{end}, no output"


class _Output:
    """The head and the tail of what came, as text; the middle is only counted.

    What is shown on the way and at the end is `text`, piece by piece.
    """

    def __init__(self, limit: int) -> None:
        self.text = ""
        self._room = limit - limit // 2  # left in the head
        self._tail_bytes = limit // 2
        self._tail = bytearray()
        self._left_out = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, part: bytes | bytearray) -> str:
        """Take what came; what of it can be shown now."""
        head, rest = part[: self._room], part[self._room :]
        self._room -= len(head)
        self._tail += rest
        if (over := len(self._tail) - self._tail_bytes) > 0:
            del self._tail[:over]
            self._left_out += over
        return self._said(self._decoder.decode(head))

    def end(self) -> str:
        """Nothing more comes; what has not been shown yet."""
        if not self._left_out:
            return self._said(self._decoder.decode(bytes(self._tail), final=True))
        self._left_out += len(self._decoder.getstate()[0])  # half a character
        while self._tail and self._tail[0] & 0xC0 == 0x80:  # the rest of a character
            del self._tail[0]
            self._left_out += 1
        tail = self._tail.decode(errors="replace")
        return self._said(f"\n… {self._left_out} bytes left out …\n{tail}")

    def _said(self, text: str) -> str:
        self.text += text
        return text
