"""The state of a run, and the rules for what may happen next.

Rule: no I/O and no trio in this file. The state is a fold over events, so what a live
run knows and what a stored run knows cannot differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

import msgspec

from ._errors import ImpossibleEvent
from ._events import (
    ApprovalAsked,
    ApprovalGiven,
    ChildSpent,
    CompensationStarted,
    EffectJudged,
    EffectStatus,
    Event,
    HandedOff,
    KeptEvent,
    Message,
    ModelAsked,
    ModelCut,
    ModelReplied,
    Reply,
    RunEnded,
    RunResumed,
    RunStarted,
    Status,
    ToolCall,
    ToolEnded,
    ToolLost,
    ToolNotRun,
    ToolResult,
    ToolStarted,
    Usage,
    UserMessage,
    Verdict,
)
from ._phase import TRANSITIONS, Phase
from ._turn import DID_NOT_HAPPEN, UNDONE, Turn

FINAL = ("stop", "pause")  # finish reasons of a reply that asks for nothing
BAD_CALL = ("unknown_tool", "bad_arguments", "cut")


class RunState:
    """What is known of a run: for stop conditions, for requests, for the outcome."""

    __slots__ = (  # without, each run that waits would take a kilobyte more
        "_before", "_compensating", "_lost", "_news", "_told", "_unsure",
        "active_seconds", "agent", "answer", "answered_at", "approvals", "attempts",
        "bad_answers", "bad_calls", "begun", "billed", "child_turns", "cost_known",
        "cut", "ended", "judged", "messages", "next_agent", "pauses", "phase",
        "started", "too_many", "tool_calls", "turns", "turns_before", "undone", "usage",
        "waited_seconds", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.phase = Phase.NEW
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None
        self.turns: list[Turn] = []
        self.tool_calls: list[ToolCall] = []  # of all turns
        self.usage = Usage()  # of all replies, also of cut ones
        self.billed = "known"  # unknown: a reply was cut, or came without its usage
        self.cost_known = True  # False: a reply came without its price
        self.active_seconds = 0.0  # in which it was running, up to the last event
        self.waited_seconds = 0.0  # of those, in which it waited for a person
        self.cut: ModelCut | None = None  # the last request, if it got no whole reply
        self.answer: str | None = None  # the final answer, once there is one
        self.answered_at = 0.0  # and when it came, in seconds
        self.bad_calls = 0  # unknown or unusable calls in a row
        self.bad_answers = 0  # answers not accepted, in a row
        self.pauses = 0  # pauses of the model in a row
        self.too_many = False  # whether a call was refused because it was one too many
        # Of this call of run or resume, which the turn limit counts for itself:
        self.turns_before = 0
        self.child_turns = 0  # of runs that work for this one
        self.attempts: dict[tuple[int, int], int] = {}  # to begin each call
        self.judged: dict[tuple[int, int], EffectJudged] = {}  # still uncertain ones
        self.undone: list[ToolCall] = []  # compensated for
        # What the next request sends. It grows: read it, do not keep it.
        self.messages: list[Message] = []
        self._told = 0  # turns whose results are among the messages
        # Invariant: these are the calls whose effect is uncertain, in their order…
        self._unsure: dict[tuple[int, int], ToolCall] = {}
        # … and these are the ones among them that are over.
        self._lost: dict[tuple[int, int], ToolCall] = {}
        self.agent = ""  # who was asked last
        self.next_agent = ""  # who takes over with the next turn
        self.begun: Counter[str] = Counter()  # calls that began, by their names
        self.waiting: dict[tuple[int, int], ApprovalAsked] = {}  # for an approval
        self.approvals: dict[tuple[int, int], ApprovalGiven] = {}
        self._compensating: set[tuple[int, int]] = set()  # begun once, never again
        self._before: list[ToolCall] = []  # uncertain calls of earlier runs
        self._news: list[UserMessage] = []  # what became of calls, for the next request

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
        phase = TRANSITIONS[self.phase].get(kind)
        if phase is None:
            raise ImpossibleEvent(f"{kind.__name__} in phase {self.phase.name}")
        waited = max(0.0, event.at - self.active_seconds) if self.waiting else 0.0
        self._FOLD[kind](self, event)
        self.phase = phase
        self.waited_seconds += waited
        self.active_seconds = max(self.active_seconds, event.at)

    @property
    def elapsed_ms(self) -> float:
        """Active time up to the last event, without waiting for people."""
        return (self.active_seconds - self.waited_seconds) * 1000

    @property
    def step_count(self) -> int:
        """How many turns have had their reply."""
        return len(self.turns)

    @property
    def turns_used(self) -> int:
        """Turns since the run began or was resumed, its children's too."""
        return len(self.turns) - self.turns_before + self.child_turns

    @property
    def paused(self) -> tuple[ToolCall, ...]:
        """The calls that wait for a person: to approve them, or something of theirs."""
        ends = self.turns[-1].ends.values() if self.turns else ()
        paused = (end for end in ends if getattr(end, "code", "") == "paused")
        waits = (*self.waiting.values(), *paused)
        return tuple(event.call for event in waits)

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
        return tuple(self._unsure.values())

    @property
    def in_review(self) -> tuple[ToolCall, ...]:
        """The uncertain calls that a run does not go on with."""
        return tuple(
            call
            for call in self.uncertain
            if call not in self.paused
            if call.place not in self.judged
            or self.judged[call.place].verdict is not Verdict.TOLD
        )

    def unknown_besides(self, call: ToolCall) -> list[ToolCall]:
        """Other calls that are not to be repeated, for nobody knows what they did."""
        lost = (other for place, other in self._lost.items() if place != call.place)
        return [*lost, *self._before]

    @property
    def pending(self) -> tuple[ToolCall, ...]:
        """The calls of the last turn that may begin, or begin again."""
        if self._told == len(self.turns):
            return ()
        turn = self.turns[-1]
        return tuple(call for call in turn.tool_calls if turn.may_begin(call))

    def start_of(self, call: ToolCall) -> ToolStarted:
        """The last start of a call that began."""
        return self.turns[call.turn - 1].starts[call.position]

    def effect_status(self, call: ToolCall) -> EffectStatus:
        """What is certain about the effect of a call."""
        return self.turns[call.turn - 1].effect_status(call)

    def may_compensate(self, call: ToolCall) -> bool:
        """Whether nobody has tried to undo it yet: that is done once at most."""
        return call.place not in self._compensating

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
        text = self.cut.text if self.cut else ""
        said = (Reply(text=text, finish_reason="error"),) if text else ()
        return (*self.messages, *pending, *self._news, *said)

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
        self.started, self.agent = event, event.agent
        self.messages.extend(event.messages)
        said: list[ToolCall] = []
        for message in event.messages:
            if isinstance(message, Reply):
                said = list(message.tool_calls)
            elif isinstance(message, ToolResult):
                call = said.pop(0)
                if message.uncertain:
                    self._before.append(call)

    def _run_resumed(self, event: RunResumed) -> None:
        if self.ended and self.ended.status is Status.COMPLETED:
            raise ImpossibleEvent("a completed run was resumed")
        if self.ended is None:  # whoever carried it was lost, maybe with a request out
            self.billed = "unknown"
        for turn in self.turns:
            for start in turn.starts.values():
                lost = ToolLost(call=start.call, problem="", code="interrupted")
                turn.ends.setdefault(start.call.position, lost)
        self._lost = self._unsure.copy()
        self.ended, self.turns_before, self.child_turns = None, len(self.turns), 0
        self.bad_calls = self.bad_answers = self.pauses = 0
        self.attempts, self.undone = {}, []
        self.judged = {  # what the model was told and went on with is not asked again
            place: judged
            for place, judged in self.judged.items()
            if judged.verdict is Verdict.TOLD and place[0] <= self._told
        }

    def _model_asked(self, event: ModelAsked) -> None:
        if event.turn != len(self.turns) + 1:
            raise ImpossibleEvent(f"turn {event.turn} after {len(self.turns)}")
        for turn in self.turns[self._told :]:
            self.messages.extend(turn.results)
            if turn.rejected:
                self.messages.append(UserMessage(turn.rejected))
        self.messages.extend(self._news)
        self._news, self._told = [], len(self.turns)
        self.cut = None
        self.agent, self.next_agent = self.next_agent or self.agent, ""

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
        self.billed = self.billed if known else "unknown"

    def _tool_started(self, event: ToolStarted) -> None:
        turn, call = self._place(event.call), event.call
        if not turn.may_begin(call):
            raise ImpossibleEvent(f"{call.name} at {call.place} began twice")
        if turn.effect_status(call) is EffectStatus.UNCERTAIN:
            turn.doubts.setdefault(call.position, turn.starts[call.position])
        self.begun[call.name] += call.position not in turn.starts
        turn.starts[call.position] = event
        turn.ends.pop(call.position, None)
        self._lost.pop(call.place, None)
        self.judged.pop(call.place, None)
        self.waiting.pop(call.place, None)
        self.attempts[call.place] = self.attempts.get(call.place, 0) + 1
        if turn.effect_status(call) is EffectStatus.UNCERTAIN:
            self._unsure[call.place] = call
        self.bad_calls = 0

    def _tool_over(self, event: ToolEnded | ToolLost | ToolNotRun) -> None:
        turn, call = self._place(event.call), event.call
        running = call.position in turn.starts and call.position not in turn.ends
        may = turn.may_begin(call) if isinstance(event, ToolNotRun) else False
        if not (running or may):
            raise ImpossibleEvent(f"{call.name} at {call.place} ended out of turn")
        if isinstance(event, ToolNotRun):
            self.bad_calls += event.code in BAD_CALL
            self.too_many |= event.code == "too_many"
            self.waiting.pop(call.place, None)
            self.attempts[call.place] = self.attempts.get(call.place, 0) + 1
        if turn.effect_status(call) is EffectStatus.UNCERTAIN and may:
            turn.doubts.setdefault(call.position, turn.starts[call.position])
        turn.ends[call.position] = event = turn.in_doubt(event)
        if not isinstance(event, ToolLost):
            self._unsure.pop(call.place, None)
            self._lost.pop(call.place, None)
        elif call.place in self._unsure:
            self._lost[call.place] = call

    def _approval_asked(self, event: ApprovalAsked) -> None:
        turn, call = self._place(event.call), event.call
        if not turn.may_begin(call) or call.place in self.approvals:
            raise ImpossibleEvent(f"{call.name} at {call.place} needs no approval")
        self.waiting[call.place] = event

    def _approval_given(self, event: ApprovalGiven) -> None:
        if self.waiting.pop(event.call.place, None) is None:
            call = event.call
            raise ImpossibleEvent(f"{call.name} at {call.place} waits for nobody")
        self.approvals[event.call.place] = event

    def _child_spent(self, event: ChildSpent) -> None:
        self.child_turns += event.turns
        self._spend(event.usage, event.billed == "known")

    def _handed_off(self, event: HandedOff) -> None:
        self._place(event.call)
        self.next_agent = event.agent

    def _compensation_started(self, event: CompensationStarted) -> None:
        self._uncertain_turn(event.call)
        self._compensating.add(event.call.place)

    def _effect_judged(self, event: EffectJudged) -> None:
        turn, call, text = self._uncertain_turn(event.call), event.call, event.content
        end: ToolEnded | ToolNotRun | None = None
        if event.verdict is Verdict.HAPPENED:
            status = EffectStatus.CONFIRMED
            end = ToolEnded(call=call, content=text, effect_status=status)
        elif event.verdict is Verdict.DID_NOT_HAPPEN:
            end = ToolNotRun(call=call, problem=DID_NOT_HAPPEN, code=event.verdict)
        elif event.verdict is Verdict.UNDONE:
            end = ToolEnded(call=call, content=UNDONE, failed=True, code="undone")
            self.undone.append(call)
        self.judged[call.place] = event
        if end:
            turn.doubts.pop(call.position, None)
            turn.ends[call.position] = end
            del self._unsure[call.place], self.judged[call.place]
            self._lost.pop(call.place, None)
            if call.turn <= self._told:  # its result was told as unknown
                said = getattr(end, "problem", text) or event.verdict
                was = f"What became of {call.name} was unknown."
                self._news.append(UserMessage(f"{was} Now it is known: {said}"))
                self._settle_told(turn, call)

    def _settle_told(self, turn: Turn, call: ToolCall) -> None:
        """What the model was told of the call as unknown is known now: a later run that
        gets this history must not hold the call for it.
        """
        reply = next(i for i, m in enumerate(self.messages) if m is turn.reply)
        at = reply + 1 + call.position
        told: Any = self.messages[at]
        self.messages[at] = msgspec.structs.replace(told, uncertain=False)

    def _uncertain_turn(self, call: ToolCall) -> Turn:
        turn = self._place(call)
        if turn.effect_status(call) is not EffectStatus.UNCERTAIN:
            raise ImpossibleEvent(f"{call.name} at {call.place} is not uncertain")
        return turn

    def _run_ended(self, event: RunEnded) -> None:
        self.ended = event

    _FOLD: ClassVar[dict[type[Event], Callable[[Any, Any], None]]] = {
        RunStarted: _run_started,
        RunResumed: _run_resumed,
        ModelAsked: _model_asked,
        ModelReplied: _model_replied,
        ModelCut: _model_cut,
        ToolStarted: _tool_started,
        ToolEnded: _tool_over,
        ToolLost: _tool_over,
        ToolNotRun: _tool_over,
        ApprovalAsked: _approval_asked,
        ApprovalGiven: _approval_given,
        ChildSpent: _child_spent,
        HandedOff: _handed_off,
        CompensationStarted: _compensation_started,
        EffectJudged: _effect_judged,
        RunEnded: _run_ended,
    }
