"""Models for tests: one that follows a script, and one that never answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import trio

from trioagent._errors import ModelError
from trioagent._events import (
    ReasoningDelta,
    Reply,
    ReplyOpened,
    ReplyPart,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from trioagent._ports import ModelRequest


@dataclass(frozen=True)
class Pause:
    """In a script: so many seconds in which nothing comes."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """In a script: here nothing comes any more. A test can wait until it is reached."""

    reached: trio.Event

    def __init__(self) -> None:
        object.__setattr__(self, "reached", trio.Event())


Piece = ReplyPart | ToolCall | Pause | Hang | ModelError | str
Step = Piece | Sequence[Piece] | Callable[[ModelRequest], Any]


def call(name: str, **arguments: Any) -> ToolCall:
    """A tool call as a model writes it: `call("weather", city="Porto")`."""
    return ToolCall(name, msgspec.json.encode(arguments).decode(), id=f"call_{name}")


class ScriptedModel:
    """Answers with the given steps, one for each request, in order.

    A step is a `Reply`; a text, which is one; a `ToolCall` or several, which make one;
    a `ModelError`, which is raised; or a list of pieces that come one after the other:
    deltas, `Pause(seconds)`, `Hang()`, and a `Reply` at the end. The pieces of a reply
    are worked out where they are not given: its text comes word by word. A step may
    also be a function of the request that returns any of these.

    `requests` are what it was asked, with the messages as they were then. Asked once
    more than it has steps it raises AssertionError; `check_used` tells of steps that
    are left over.
    """

    def __init__(self, steps: Sequence[Step], *, seconds: float = 0.0) -> None:
        self.name = "scripted:model"
        self.endpoint = f"scripted:{id(self)}"
        self.requests: list[ModelRequest] = []
        self.closed = 0  # replies that are over, in whatever way
        self._steps = list(steps)
        self._seconds = seconds

    @asynccontextmanager
    async def open_reply(
        self, request: ModelRequest
    ) -> AsyncGenerator[AsyncIterator[ReplyPart]]:
        """Play the next step."""
        number = len(self.requests)
        self.requests.append(_as_it_was(request))
        if number >= len(self._steps):
            raise AssertionError(
                f"the script has {len(self._steps)} steps and was asked once more"
            )
        step = self._steps[number]
        try:
            async with aclosing(self._play(step, request)) as parts:
                yield parts
        finally:
            self.closed += 1

    async def _play(
        self, step: Any, request: ModelRequest
    ) -> AsyncGenerator[ReplyPart]:
        await trio.sleep(self._seconds)
        request_id = f"req_{len(self.requests)}"
        yield ReplyOpened(request_id=request_id)
        for piece in _pieces(step(request) if callable(step) else step):
            match piece:
                case Pause(seconds):
                    await trio.sleep(seconds)
                case Hang():
                    piece.reached.set()
                    await trio.sleep_forever()
                case ModelError():
                    raise piece
                case Reply(request_id=""):
                    await trio.lowlevel.checkpoint()
                    yield msgspec.structs.replace(piece, request_id=request_id)
                case _:
                    await trio.lowlevel.checkpoint()
                    yield piece

    def check_used(self) -> None:
        """Raise AssertionError if the script has steps that nobody asked for."""
        left = len(self._steps) - len(self.requests)
        assert left <= 0, f"{left} of {len(self._steps)} steps were not asked for"


def _as_it_was(request: ModelRequest) -> ModelRequest:
    """A copy whose messages do not grow with the run."""
    return msgspec.structs.replace(request, messages=tuple(request.messages))


def _pieces(step: Any) -> list[Any]:
    """A step as the pieces that come, the reply last."""
    if isinstance(step, str):
        step = Reply(text=step, usage=Usage(input_tokens=1, output_tokens=1))
    if isinstance(step, ToolCall):
        step = [step]
    if isinstance(step, Reply):
        return [*_deltas(step), step]
    if isinstance(step, (list, tuple)):
        if step and all(isinstance(part, ToolCall) for part in step):
            usage = Usage(input_tokens=1, output_tokens=1)
            calls = tuple(
                msgspec.structs.replace(c, id=f"{c.id}_{i}") for i, c in enumerate(step)
            )
            return _pieces(
                Reply(tool_calls=calls, finish_reason="tool_calls", usage=usage)
            )
        return [TextDelta(p) if isinstance(p, str) else p for p in step]
    return [step]


def _deltas(reply: Reply) -> list[ReplyPart]:
    parts: list[ReplyPart] = []
    if reply.reasoning:
        parts.append(ReasoningDelta(reply.reasoning))
    parts.extend(TextDelta(word) for word in _words(reply.text))
    parts.extend(
        ToolCallDelta(position, c.name, c.arguments)
        for position, c in enumerate(reply.tool_calls)
    )
    return parts


def _words(text: str) -> list[str]:
    words = text.split(" ")
    return [w + " " for w in words[:-1]] + [w for w in words[-1:] if w]


class BlockingModel:
    """Never answers. `asked` is set once it was asked, `closed` once it was let go."""

    def __init__(self) -> None:
        self.name = "blocking:model"
        self.asked = trio.Event()
        self.closed = trio.Event()

    @asynccontextmanager
    async def open_reply(
        self, request: ModelRequest
    ) -> AsyncGenerator[AsyncIterator[ReplyPart]]:
        """Block until cancelled."""
        await trio.lowlevel.checkpoint()
        self.asked.set()
        try:
            yield _Nothing()
        finally:
            self.closed.set()


class _Nothing:
    """A stream in which nothing ever comes."""

    def __aiter__(self) -> _Nothing:
        return self

    async def __anext__(self) -> ReplyPart:
        await trio.sleep_forever()
