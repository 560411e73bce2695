"""One reply of the model, under its clocks."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import trio

from ._errors import ModelError, ModelTimeout, ModelUnavailable
from ._events import (
    KeepAlive,
    ModelCut,
    ReasoningDelta,
    Reply,
    ReplyOpened,
    ReplyPart,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageReported,
)
from ._ports import ModelRequest
from ._scopes import end_if_cancelled

if TYPE_CHECKING:  # the loop calls this file, and this file reports to the run
    from ._run import Run


class Clocks:
    """Three scopes around one request, outermost first: reply, first token, silence.

    They measure the provider: while a slow reader holds us up, they stand still.
    Silence begins to count with the first byte, for until then it is the first token
    that we wait for.
    """

    def __init__(self, run: Run) -> None:
        self._limits = {
            "reply": run.limits.reply_seconds,
            "first_token": run.limits.first_token_seconds,
            "silence": run.limits.silence_seconds,
        }
        self.reply = trio.CancelScope(relative_deadline=self._limits["reply"])
        self.first_token = trio.CancelScope(
            relative_deadline=self._limits["first_token"]
        )
        self.silence = trio.CancelScope()

    def hear(self, part: ReplyPart) -> None:
        """Something came: the silence is over, and with content the wait as well."""
        self.silence.deadline = trio.current_time() + self._limits["silence"]
        if not isinstance(part, (ReplyOpened, KeepAlive, UsageReported)):
            self.first_token.deadline = math.inf

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """While the body runs nobody reads from the provider, and no clock goes."""
        then = trio.current_time()
        clocks = (self.reply, self.first_token, self.silence)
        deadlines = [clock.deadline for clock in clocks]
        for clock in clocks:
            clock.deadline = math.inf
        yield
        for clock, deadline in zip(clocks, deadlines, strict=True):
            clock.deadline = deadline + trio.current_time() - then

    def check(self) -> None:
        """Raise `ModelTimeout`, naming the limit, if one of the clocks ran out."""
        for name, seconds in self._limits.items():
            if getattr(self, name).cancelled_caught:
                raise ModelTimeout(
                    f"{_SAID[name]} within {seconds:g} s (Limits.{name}_seconds)",
                    scope=name,
                )


_SAID = {
    "reply": "the model did not finish its reply",
    "first_token": "the model said nothing",
    "silence": "the model broke off: no byte came",
}


class Heard:
    """What has come of a reply so far. If it is cut, this is what is kept."""

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.asked = False  # whether the request may have been sent
        self.reply: Reply | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._usage: Usage | None = None
        self._opened = ReplyOpened()

    def take(self, part: ReplyPart) -> None:
        """Keep what one part says."""
        match part:
            case TextDelta(text=text):
                self._text.append(text)
            case ReasoningDelta(text=text):
                self._reasoning.append(text)
            case UsageReported(usage=usage):
                self._usage = usage
            case ReplyOpened(request_id=request_id, response_id=response_id):
                self._opened = ReplyOpened(
                    request_id or self._opened.request_id,
                    response_id or self._opened.response_id,
                )
            case Reply():
                self.reply = msgspec.structs.replace(
                    part,
                    request_id=part.request_id or self._opened.request_id,
                    response_id=part.response_id or self._opened.response_id,
                )
            case KeepAlive() | ToolCallDelta():
                pass

    def cut(self, error: BaseException | None) -> ModelCut:
        """The end of a request that got no whole reply."""
        known = error if isinstance(error, ModelError) else None
        code = known.code if known else "llm_aborted"
        usage = self._usage or (known.usage if known else None)
        billed = known.billed if known else "unknown"
        if not self.asked:
            usage, billed = Usage(input_tokens=0, output_tokens=0), "known"
        return ModelCut(
            turn=self.turn,
            code=code,
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            usage=usage or Usage(),
            billed=billed,
            request_id=self._opened.request_id or (known.request_id if known else ""),
            response_id=self._opened.response_id
            or (known.response_id if known else ""),
        )


async def read_reply(run: Run, request: ModelRequest) -> Reply:
    """Ask, and show the pieces as they come. Every way out is recorded.

    Raises `ModelError`; with it, or with a cancel, the connection is closed and what
    has come so far stands in a `ModelCut`.
    """
    heard = Heard(request.turn)
    try:
        await end_if_cancelled()
        heard.asked = True
        clocks = Clocks(run)
        with run.child("reply"), clocks.reply, clocks.first_token, clocks.silence:
            await _listen(run, request, clocks, heard)
        clocks.check()
        if heard.reply is None:
            raise ModelUnavailable(
                "the stream ended before the reply did", kind="incomplete_stream"
            )
        return heard.reply
    finally:
        if heard.reply is None:
            # `record` brings its own bounded shield.
            await run.record(heard.cut(sys.exception()))  # noqa: ASYNC102


async def _listen(
    run: Run, request: ModelRequest, clocks: Clocks, heard: Heard
) -> None:
    async with run.plan.model.open_reply(request) as parts:
        async for part in parts:
            clocks.hear(part)
            heard.take(part)
            if isinstance(part, UsageReported):
                run.watch_budget(part.usage)
            if isinstance(part, (Reply, KeepAlive)) or run.publish_nowait(part):
                continue
            with clocks.standing_still():
                await run.publish(part)
