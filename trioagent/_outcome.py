"""How a run ended, and what is certain about it."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from ._errors import RunNotCompleted
from ._events import (
    Child,
    Effect,
    EffectStatus,
    Message,
    RunEnded,
    Status,
    Stop,
    ToolCall,
    ToolEnded,
    ToolLost,
    ToolNotRun,
    Usage,
    quiet_repr,
)
from ._phase import Phase
from ._state import RunState
from ._turn import Turn


class ToolReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one call."""

    name: str
    turn: int
    position: int
    ended: str  # done, failed, timeout, not_run, lost, or interrupted
    effect_status: EffectStatus
    late: bool = False  # it returned after a stop or after its own limit
    problem: str = ""

    __repr__ = quiet_repr

    @classmethod
    def of(cls, turn: Turn, call: ToolCall) -> Self:
        """The report of one call of a turn."""
        end = turn.ends.get(call.position)
        ended, problem = "interrupted", getattr(end, "problem", "")
        if isinstance(end, ToolNotRun) or call.position not in turn.starts:
            ended = "not_run"
        elif isinstance(end, ToolEnded):
            failed = "timeout" if end.code == "timeout" else "failed"
            ended, problem = (failed, end.content) if end.failed else ("done", "")
        elif isinstance(end, ToolLost) and end.code not in {"stopped", "interrupted"}:
            ended = "lost"
        return cls(
            name=call.name,
            turn=call.turn,
            position=call.position,
            ended=ended,
            effect_status=turn.effect_status(call),
            late=isinstance(end, ToolEnded) and end.late,
            problem=problem,
        )


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. There is exactly one, and only after everything has ended."""

    run_id: str
    status: Status
    stop: Stop | None = None
    output: Any = None  # the answer: text, or what `output=` asked for
    text: str = ""  # the answer as text, or the last reply as far as it came
    usage: Usage = Usage()
    billed: str = "known"  # unknown: the provider may bill more than `usage`
    turns: int = 0
    tools: tuple[ToolReport, ...] = ()
    uncertain: tuple[ToolReport, ...] = ()  # effects that may or may not have happened
    cleanup: tuple[Child, ...] = ()  # what was still going at the stop, how it ended
    reached: tuple[str, ...] = ()  # limits that a final answer reached as well
    resumable: bool = False  # `resume` would go on; see `Run.resume_decision`
    history: tuple[Message, ...] = ()  # to be given to the next run

    __repr__ = quiet_repr

    @property
    def stop_reason(self) -> str | None:
        """Why it ended: `user`, `deadline`, `step_count:12`…, None when completed."""
        return None if self.stop is None else str(self.stop)

    def unwrap(self) -> Any:
        """The answer; raises `RunNotCompleted` if the run ended in any other way."""
        if self.status is not Status.COMPLETED:
            raise RunNotCompleted(self)
        return self.output

    @classmethod
    def of(cls, state: RunState, output: Any = None, *, kept: bool = True) -> Self:
        """The outcome as the journal tells it; a run without an end was interrupted.

        `kept` says whether there is a journal to resume it from.
        """
        end = state.ended or RunEnded(Status.INTERRUPTED, Stop("host", source="host"))
        tools = tuple(
            ToolReport.of(turn, call)
            for turn in state.turns
            for call in turn.tool_calls
        )
        # Who was lost may have had a request out: nobody waits to keep that he asks.
        unknown = state.phase is Phase.ASKING or state.ended is None
        return cls(
            run_id=state.started.run_id if state.started else "",
            status=end.status,
            stop=end.stop,
            output=end.output if output is None else output,
            text=state.text,
            usage=state.usage,
            billed="unknown" if unknown else state.billed,
            turns=len(state.turns),
            tools=tools,
            uncertain=tuple(
                t for t in tools if t.effect_status is EffectStatus.UNCERTAIN
            ),
            cleanup=end.cleanup,
            reached=end.reached,
            resumable=kept and resume_decision(state).action == "resume",
            history=state.history(),
        )


class ResumeDecision(msgspec.Struct, frozen=True):
    """Whether a run can go on, as its journal tells."""

    action: str  # resume, review (a person has to settle something), stop (for good)
    reason: str


def resume_decision(state: RunState) -> ResumeDecision:
    """What `Agent.resume` would come to, without more time or money than there was."""
    end = state.ended
    if end and end.status is Status.COMPLETED:
        return ResumeDecision("stop", "the run is completed")
    for_people = [
        _named(call) for call in state.in_review if not _can_be_cleared_up(state, call)
    ]
    if for_people:
        names = ", ".join(for_people)
        return ResumeDecision("review", f"nobody knows whether this happened: {names}")
    if end and end.status is Status.PAUSED:
        names = ", ".join(_named(call) for call in state.paused)
        return ResumeDecision("review", f"this waits to be approved: {names}")
    if end and end.status is Status.TIMED_OUT:
        return ResumeDecision("stop", "its time is used up: it needs more seconds")
    if end and end.stop and end.stop.source == "condition":
        return ResumeDecision("stop", f"its stop condition holds: {end.stop}")
    if state.pending:
        names = ", ".join(call.name for call in state.pending)
        return ResumeDecision("resume", f"calls to finish: {names}")
    return ResumeDecision("resume", f"turn {len(state.turns) + 1} comes next")


def _named(call: ToolCall) -> str:
    return f"{call.name} (call {call.turn}.{call.position})"


def _can_be_cleared_up(state: RunState, call: ToolCall) -> bool:
    start, turn = state.start_of(call), state.turns[call.turn - 1]
    end = turn.ends.get(call.position)
    if not state.may_compensate(call) or getattr(end, "code", "") == "review":
        return False
    first = turn.doubts.get(call.position, start)
    return first.effect is Effect.KEYED or bool(start.recovery)
