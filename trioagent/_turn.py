"""One round of a run: what is certain about each call, and what the model is told.

Rule: nothing marks an effect as uncertain. An effect is uncertain while it has a start
and no end, so a `kill -9` and a clean cancel leave the same truth behind.
"""

from __future__ import annotations

from collections.abc import Iterable

from ._events import (
    Effect,
    EffectStatus,
    Message,
    Reply,
    ToolCall,
    ToolEnded,
    ToolLost,
    ToolNotRun,
    ToolResult,
    ToolStarted,
)

# A call that did not begin for one of these reasons may begin later, in a resumed run.
MAY_BEGIN_LATER = ("stopped", "budget", "did_not_happen", "paused")

NEVER_STARTED = "Not started: the run was stopped before this call began."
STOPPED_READ = "Stopped before any effect: the call only reads, and was cut short."
UNKNOWN_EFFECT = (
    "Outcome unknown: the call had begun, and its effect may or may not have happened."
    " Do not repeat it."
)
DID_NOT_HAPPEN = "Not started: somebody looked, and its effect had not happened."
UNDONE = "It was undone: whatever had happened of it was taken back."


class Turn:
    """One round: a reply, and what became of the calls it asked for."""

    __slots__ = ("doubts", "ends", "rejected", "reply", "starts")

    def __init__(self, reply: Reply, rejected: str = "") -> None:
        self.reply = reply
        self.rejected = rejected  # why this answer was not accepted
        self.starts: dict[int, ToolStarted] = {}  # the last attempt of each call
        # Invariant: what is in `ends` is over. A ToolLost is in there and its effect
        # still counts as uncertain, for the call is over and the effect is not.
        self.ends: dict[int, ToolEnded | ToolLost | ToolNotRun] = {}
        # Calls that began again while nobody knew what had become of the attempt
        # before, and that attempt: only success of the same tool clears it up.
        self.doubts: dict[int, ToolStarted] = {}

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls the model asked for, in its order."""
        return self.reply.tool_calls

    @property
    def finish_reason(self) -> str:
        """Why the model stopped talking."""
        return self.reply.finish_reason

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """What the model is told of each call, in the order of the calls."""
        return tuple(self._told(call) for call in self.tool_calls)

    def effect_status(self, call: ToolCall) -> EffectStatus:
        """What is certain about the effect of a call."""
        start, end = self.starts.get(call.position), self.ends.get(call.position)
        if type(end) is ToolEnded:
            return end.effect_status
        if call.position in self.doubts:
            return EffectStatus.UNCERTAIN
        if start is None or type(end) is ToolNotRun:
            return EffectStatus.NOT_STARTED
        if start.effect is Effect.READ:
            return EffectStatus.NONE
        return EffectStatus.UNCERTAIN

    def may_begin(self, call: ToolCall) -> bool:
        """Whether a call may begin, or begin again: it is what is left to do."""
        start, end = self.starts.get(call.position), self.ends.get(call.position)
        if type(end) is ToolNotRun:
            return end.code in MAY_BEGIN_LATER
        if start is None:
            return end is None
        start = self.doubts.get(call.position, start)
        return type(end) is ToolLost and start.effect is not Effect.ONCE

    def in_doubt(
        self, end: ToolEnded | ToolLost | ToolNotRun
    ) -> ToolEnded | ToolLost | ToolNotRun:
        """The end as it counts: what a later attempt says of itself clears up nothing.

        Only where it succeeded, with the same key, is the effect known to be there.
        """
        position = end.call.position
        if position not in self.doubts or isinstance(end, ToolLost):
            return end
        if isinstance(end, ToolNotRun):
            return ToolLost(call=end.call, problem=end.problem, code=end.code)
        first, last = self.doubts[position], self.starts[position]
        same = (first.tool, first.key) == (last.tool, last.key)
        if end.effect_status is EffectStatus.CONFIRMED and same:
            del self.doubts[position]
            return end
        return ToolLost(call=end.call, problem=end.content, code=end.code)

    def _told(self, call: ToolCall) -> ToolResult:
        status, end = self.effect_status(call), self.ends.get(call.position)
        if isinstance(end, ToolEnded):
            return ToolResult(call.name, end.content, call.id, end.failed)
        if isinstance(end, ToolNotRun):
            return ToolResult(call.name, end.problem, call.id, failed=True)
        uncertain = status is EffectStatus.UNCERTAIN
        if uncertain:
            start = self.starts[call.position]
            text = UNKNOWN_EFFECT + (f" Its key is {start.key}." if start.key else "")
            if end and end.problem:
                text = f"{text} What is known: {end.problem}."
        else:
            text = STOPPED_READ if status is EffectStatus.NONE else NEVER_STARTED
        return ToolResult(call.name, text, call.id, failed=True, uncertain=uncertain)


def check_history(messages: Iterable[Message]) -> None:
    """Raise ValueError unless each call is followed by its result, in order."""
    awaited: list[ToolCall] = []
    for message in messages:
        if not isinstance(message, Message):
            raise TypeError(
                "history takes messages, as outcome.history, not "
                + type(message).__name__
            )
        if isinstance(message, ToolResult):
            if not awaited or awaited[0].name != message.name:
                raise ValueError(
                    f"history: a result of {message.name!r} without a call"
                )
            awaited.pop(0)
        elif awaited:
            break
        elif isinstance(message, Reply):
            awaited = list(message.tool_calls)
    if awaited:
        raise ValueError(
            f"history: the call {awaited[0].name!r} has no result, and no provider"
            " accepts that; use `outcome.history`, where each call has one"
        )
