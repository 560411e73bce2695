"""The state of a run, and the rules for what may happen next.

Rule 1: no I/O and no trio in this file. The state is a fold over events, so what a live
run knows and what a stored run knows cannot differ.

Rule 2: nothing marks an effect as uncertain. An effect is uncertain while it has a
start and no end, so a `kill -9` and a clean cancel leave the same truth behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, ClassVar, Self

from ._errors import ImpossibleEvent
from ._events import (
    Effect,
    EffectStatus,
    Event,
    KeptEvent,
    Message,
    ModelAsked,
    ModelCut,
    ModelReplied,
    Reply,
    RunEnded,
    RunStarted,
    ToolCall,
    ToolEnded,
    ToolLost,
    ToolNotRun,
    ToolResult,
    ToolStarted,
    Usage,
    UserMessage,
)


class Phase(Enum):
    """Where a run stands."""

    NEW = auto()
    READY = auto()
    ASKING = auto()
    CALLING = auto()
    ENDED = auto()


# The README draws this table, and a test holds the two together.
TRANSITIONS: dict[Phase, dict[type[Event], Phase]] = {
    Phase.NEW: {RunStarted: Phase.READY},
    Phase.READY: {ModelAsked: Phase.ASKING, RunEnded: Phase.ENDED},
    Phase.ASKING: {
        ModelReplied: Phase.CALLING,
        ModelCut: Phase.READY,
        RunEnded: Phase.ENDED,
    },
    Phase.CALLING: {
        ToolStarted: Phase.CALLING,
        ToolEnded: Phase.CALLING,
        ToolLost: Phase.CALLING,
        ToolNotRun: Phase.CALLING,
        ModelAsked: Phase.ASKING,
        RunEnded: Phase.ENDED,
    },
    Phase.ENDED: {},
}

FINAL = ("stop", "pause")  # finish reasons of a reply that asks for nothing
BAD_CALL = ("unknown_tool", "bad_arguments", "cut")

NEVER_STARTED = "Not started: the run was stopped before this call began."
STOPPED_READ = "Stopped before any effect: the call only reads, and was cut short."
UNKNOWN_EFFECT = (
    "Outcome unknown: the call had begun, and its effect may or may not have happened."
    " Do not repeat it."
)


class Turn:
    """One round: a reply, and what became of the calls it asked for."""

    __slots__ = ("ends", "rejected", "reply", "starts")

    def __init__(self, reply: Reply, rejected: str = "") -> None:
        self.reply = reply
        self.rejected = rejected  # why this answer was not accepted
        self.starts: dict[int, ToolStarted] = {}
        # Invariant: what is in `ends` is final. A ToolLost is in there and its effect
        # still counts as uncertain, for the call is over and the effect is not.
        self.ends: dict[int, ToolEnded | ToolLost | ToolNotRun] = {}

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
        if isinstance(end, ToolEnded):
            return end.effect_status
        if start is None or isinstance(end, ToolNotRun):
            return EffectStatus.NOT_STARTED
        if start.effect is Effect.READ:
            return EffectStatus.NONE
        return EffectStatus.UNCERTAIN

    def _told(self, call: ToolCall) -> ToolResult:
        match self.ends.get(call.position):
            case ToolEnded(content=content, failed=failed):
                return ToolResult(call.name, content, call.id, failed)
            case ToolNotRun(problem=problem):
                return ToolResult(call.name, problem, call.id, failed=True)
            case ToolLost(problem=problem):
                text = f"{UNKNOWN_EFFECT} What is known: {problem}."
                return ToolResult(call.name, text, call.id, failed=True)
            case _:
                told = {
                    EffectStatus.NOT_STARTED: NEVER_STARTED,
                    EffectStatus.NONE: STOPPED_READ,
                }.get(self.effect_status(call), UNKNOWN_EFFECT)
                return ToolResult(call.name, told, call.id, failed=True)


def check_history(messages: Iterable[Message]) -> None:
    """Raise ValueError unless each call is followed by its result, in order."""
    awaited: list[ToolCall] = []
    for message in messages:
        if not isinstance(message, Message):
            raise TypeError(f"history takes messages, as outcome.history: {message!r}")
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


class RunState:
    """What is known of a run: for stop conditions, for requests, for the outcome."""

    def __init__(self) -> None:
        self.phase = Phase.NEW
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None
        self.turns: list[Turn] = []
        self.tool_calls: list[ToolCall] = []  # of all turns
        self.usage = Usage()  # of all replies, also of cut ones
        self.billed = "known"  # unknown: a reply was cut, or came without its usage
        self.cost_known = True  # False: a reply came without its price
        self.elapsed_ms = 0.0  # active time, up to the last event
        self.cut: ModelCut | None = None  # the last request, if it got no whole reply
        self.answer: str | None = None  # the final answer, once there is one
        self.answered_at = 0.0  # and when it came, in seconds
        self.bad_calls = 0  # unknown or unusable calls in a row
        self.bad_answers = 0  # answers not accepted, in a row
        self.pauses = 0  # pauses of the model in a row
        # What the next request sends. It grows: read it, do not keep it.
        self.messages: list[Message] = []
        self._told = 0  # turns whose results are among the messages
        self._open: dict[tuple[int, int], ToolStarted] = {}

    @classmethod
    def replay(cls, events: Iterable[KeptEvent]) -> Self:
        """The state after `events`; raises `ImpossibleEvent` if they cannot be."""
        state = cls()
        for event in events:
            state.apply(event)
        return state

    def apply(self, event: KeptEvent) -> None:
        """Fold one event in, or raise `ImpossibleEvent` and change nothing."""
        kind = type(event)
        try:
            phase = TRANSITIONS[self.phase][kind]
        except KeyError:
            raise ImpossibleEvent(
                f"{kind.__name__} in phase {self.phase.name}"
            ) from None
        self._FOLD[kind](self, event)
        self.phase = phase
        self.elapsed_ms = max(self.elapsed_ms, event.at * 1000)

    @property
    def step_count(self) -> int:
        """How many turns have had their reply."""
        return len(self.turns)

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped talking in the last turn."""
        return self.turns[-1].finish_reason if self.turns else None

    @property
    def text(self) -> str:
        """The text of the last reply, as far as it came."""
        if self.cut or not self.turns:
            return self.cut.text if self.cut else ""
        return self.turns[-1].reply.text

    @property
    def uncertain(self) -> tuple[ToolCall, ...]:
        """The calls whose effect may or may not have happened."""
        return tuple(
            start.call
            for start in self._open.values()
            if start.effect is not Effect.READ
        )

    @property
    def unfinished(self) -> str:
        """The last finish reason, if it was neither a clean stop nor calls to run."""
        if not self.turns:
            return ""
        reply = self.turns[-1].reply
        fine = ("stop", "tool_calls", "length") if reply.tool_calls else FINAL
        if reply.finish_reason in fine:
            return ""
        known = reply.finish_reason != "other"
        return reply.finish_reason if known else reply.raw_finish_reason or "other"

    def history(self) -> tuple[Message, ...]:
        """The conversation so far, in a form that every provider accepts.

        Each call has its result, also where the run was stopped in the middle, and the
        text of a reply that was cut is kept as far as it came.
        """
        pending = [r for turn in self.turns[self._told :] for r in turn.results]
        cut = (Reply(text=self.cut.text, finish_reason="error"),) if self.cut else ()
        return (*self.messages, *pending, *(reply for reply in cut if reply.text))

    def _place(self, call: ToolCall) -> Turn:
        try:
            turn = self.turns[call.turn - 1]
            known = turn.tool_calls[call.position].name == call.name
        except IndexError:
            known = False
        if not known:
            raise ImpossibleEvent(f"no call {call.name} at {call.place}")
        return turn

    def _run_started(self, event: RunStarted) -> None:
        self.started = event
        self.messages.extend(event.messages)

    def _model_asked(self, event: ModelAsked) -> None:
        if event.turn != len(self.turns) + 1:
            raise ImpossibleEvent(f"turn {event.turn} after {len(self.turns)}")
        for turn in self.turns[self._told :]:
            self.messages.extend(turn.results)
            if turn.rejected:
                self.messages.append(UserMessage(turn.rejected))
        self._told = len(self.turns)
        self.cut = None

    def _model_replied(self, event: ModelReplied) -> None:
        reply = event.reply
        self.turns.append(Turn(reply, event.rejected))
        self.messages.append(reply)
        self.tool_calls.extend(reply.tool_calls)
        self._spend(reply.usage, reply.usage.total_tokens is not None)
        if reply.is_final and not event.rejected:
            self.answer = reply.text
            self.answered_at = event.at
        self.bad_answers = self.bad_answers + 1 if event.rejected else 0
        self.pauses = self.pauses + 1 if reply.finish_reason == "pause" else 0

    def _model_cut(self, event: ModelCut) -> None:
        self.cut = event
        self._spend(event.usage, event.billed == "known")

    def _spend(self, usage: Usage, known: bool) -> None:
        self.usage += usage
        self.cost_known = self.cost_known and usage.cost is not None
        if not known:
            self.billed = "unknown"

    def _tool_started(self, event: ToolStarted) -> None:
        turn, call = self._place(event.call), event.call
        if call.position in turn.starts or call.position in turn.ends:
            raise ImpossibleEvent(f"{call.name} at {call.place} began twice")
        turn.starts[call.position] = event
        self._open[call.place] = event
        self.bad_calls = 0

    def _tool_over(self, event: ToolEnded | ToolLost | ToolNotRun) -> None:
        turn, call = self._place(event.call), event.call
        begun = call.place in self._open
        if call.position in turn.ends or not (begun or isinstance(event, ToolNotRun)):
            raise ImpossibleEvent(f"{call.name} at {call.place} ended out of turn")
        turn.ends[call.position] = event
        if isinstance(event, ToolNotRun):
            self.bad_calls += event.code in BAD_CALL
        if not isinstance(event, ToolLost):
            self._open.pop(call.place, None)

    def _run_ended(self, event: RunEnded) -> None:
        self.ended = event

    _FOLD: ClassVar[dict[type[Event], Callable[[Any, Any], None]]] = {
        RunStarted: _run_started,
        ModelAsked: _model_asked,
        ModelReplied: _model_replied,
        ModelCut: _model_cut,
        ToolStarted: _tool_started,
        ToolEnded: _tool_over,
        ToolLost: _tool_over,
        ToolNotRun: _tool_over,
        RunEnded: _run_ended,
    }
