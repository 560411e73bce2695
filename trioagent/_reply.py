"""One reply of the model, under its clocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from ._errors import ModelAborted, ModelError, ModelTimeout, ModelUnavailable
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
from ._limits import Limits
from ._ports import Model, ModelRequest
from ._scopes import end_if_cancelled, flat_errors

if TYPE_CHECKING:  # the loop calls this file, and this file reports to the run
    from ._run import Run


class Clocks:
    """Three clocks around one request, in one scope: reply, first token, silence.

    They measure the provider: while a slow reader holds us up, they stand still.
    Silence begins to count with the first byte, for until then it is the first token
    that we wait for. Where two run out at once the outer one is named.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        now = trio.current_time()
        self._ends = {
            "reply": now + limits.reply_seconds,
            "first_token": now + limits.first_token_seconds,
            "silence": math.inf,
        }
        self.scope = trio.CancelScope(deadline=min(self._ends.values()))

    def hear(self, part: ReplyPart) -> None:
        """Something came: the silence is over, and with content the wait as well."""
        ends = self._ends
        ends["silence"] = trio.current_time() + self._limits.silence_seconds
        if type(part) in _ANSWERS:
            ends["first_token"] = math.inf
        self.scope.deadline = min(ends.values())

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """While the body runs nobody reads from the provider, and no clock goes."""
        then = trio.current_time()
        self.scope.deadline = math.inf
        yield
        for name in self._ends:
            self._ends[name] += trio.current_time() - then
        self.scope.deadline = min(self._ends.values())

    def check(self) -> None:
        """Raise `ModelTimeout`, naming the limit, if one of the clocks ran out."""
        if self.scope.cancelled_caught:
            name = next(
                n for n, end in self._ends.items() if end <= self.scope.deadline
            )
            seconds = getattr(self._limits, f"{name}_seconds")
            said = f"{_SAID[name]} within {seconds:g} s (Limits.{name}_seconds)"
            raise ModelTimeout(said, scope=name)


_CONTENT = (TextDelta, ReasoningDelta, ToolCallDelta)
_ANSWERS = {*_CONTENT, Reply}
_SAID = {
    "reply": "the model did not finish its reply",
    "first_token": "the model said nothing",
    "silence": "the model broke off: no byte came",
}


async def read_reply(run: Run, model: Model, request: ModelRequest) -> Reply:
    """Ask, and show the pieces as they come. Every way out is recorded.

    Raises `ModelError`; with it, or with a cancel, the connection is closed and what
    has come so far stands in a `ModelCut`.
    """
    heard: list[ReplyPart] = []
    asked = whole = False
    failure: ModelError | None = None
    try:
        await end_if_cancelled()
        asked = True
        clocks = Clocks(run.limits)
        with flat_errors(), run.child("reply"), clocks.scope:
            await _listen(run, model, request, clocks, heard)
        if heard and type(heard[-1]) is Reply:
            whole = True
            return heard[-1]
        clocks.check()
        raise ModelUnavailable("the stream ended too soon", kind="incomplete_stream")
    except ModelError as error:
        failure = error
        raise
    finally:
        if not whole:
            # `record` brings its own bounded shield.
            cut = _cut(request.turn, heard, asked, failure or ModelAborted(""))
            await run.record(cut)  # noqa: ASYNC102


async def _listen(
    run: Run,
    model: Model,
    request: ModelRequest,
    clocks: Clocks,
    heard: list[ReplyPart],
) -> None:
    async with model.open_reply(request) as parts:
        async for part in parts:
            clocks.hear(part)
            if isinstance(part, KeepAlive):
                continue
            heard.append(part)
            if type(part) is UsageReported:
                run.budget.watch(model, part.usage)
            if isinstance(part, Reply) or run.publish_nowait(part):
                continue
            with clocks.standing_still():
                await run.publish(part)


def _cut(turn: int, heard: list[ReplyPart], asked: bool, known: ModelError) -> ModelCut:
    """What is kept of a request whose reply did not come whole, or came too late."""
    spoke = [p for p in heard if isinstance(p, UsageReported | Reply)]
    usage, billed = (spoke[-1].usage if spoke else known.usage), known.billed
    if not asked:
        usage = Usage(input_tokens=0, output_tokens=0)
    if not asked or (spoke and isinstance(spoke[-1], Reply)):
        billed = "known"
    ids = [*(p for p in heard if isinstance(p, ReplyOpened | Reply)), known]
    return ModelCut(
        turn=turn,
        code=known.code,
        text="".join(p.text for p in heard if isinstance(p, TextDelta)),
        reasoning="".join(p.text for p in heard if isinstance(p, ReasoningDelta)),
        usage=usage,
        billed=billed,
        shown=any(isinstance(p, _CONTENT) for p in heard),
        request_id=next((i.request_id for i in ids if i.request_id), ""),
        response_id=next((i.response_id for i in ids if i.response_id), ""),
    )
