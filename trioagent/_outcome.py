"""How a run ended, and what is certain about it."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from ._errors import RunNotCompleted
from ._events import (
    Child,
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
)
from ._state import Phase, RunState, Turn


class ToolReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one call."""

    name: str
    turn: int
    position: int
    ended: str  # done, failed, timeout, not_run, lost, or interrupted
    effect_status: EffectStatus
    late: bool = False  # it returned after a stop or after its own limit
    problem: str = ""

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
        elif isinstance(end, ToolLost) and end.code != "stopped":
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
    resumable: bool = False  # no store can hand a run on yet
    history: tuple[Message, ...] = ()  # to be given to the next run

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
    def of(cls, state: RunState, output: Any = None) -> Self:
        """The outcome as the journal tells it; a run without an end was interrupted."""
        end = state.ended or RunEnded(Status.INTERRUPTED, Stop("host", source="host"))
        tools = tuple(
            ToolReport.of(turn, call)
            for turn in state.turns
            for call in turn.tool_calls
        )
        asking = state.phase is Phase.ASKING
        return cls(
            run_id=state.started.run_id if state.started else "",
            status=end.status,
            stop=end.stop,
            output=end.output if output is None else output,
            text=state.text,
            usage=state.usage,
            billed="unknown" if asking else state.billed,
            turns=len(state.turns),
            tools=tools,
            uncertain=tuple(
                t for t in tools if t.effect_status is EffectStatus.UNCERTAIN
            ),
            cleanup=end.cleanup,
            reached=end.reached,
            history=state.history(),
        )
