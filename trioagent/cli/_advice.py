"""What to do about a run now, down to the commands to type."""

from __future__ import annotations

import math
from collections.abc import Iterable

from trioagent import RunState, Status, ToolCall
from trioagent._outcome import resume_decision

Step = tuple[str, list[str]]  # a sentence, and the commands for it
NAMED = "-a MODULE:NAME"


def next_steps(state: RunState, *, how: str = NAMED, where: str = "") -> list[Step]:
    """What is left to do about a run that nobody carries.

    `how` are the words that name its agent, `where` those that lead to its journal.
    """
    assert state.started is not None
    run_id = state.started.run_id
    decision = resume_decision(state)
    steps: list[Step] = []
    clears_up = decision.action == "resume"  # by a look-up, its key, or an undo
    if state.uncertain and not clears_up:
        commands = [
            _command("settle", run_id, f"{call.turn}.{call.position} {said}", where)
            for call in state.uncertain
            for said in ("--happened", "--did-not-happen")
        ]
        steps.append(
            (f"Look whether {_names(state.uncertain)} happened, then:", commands)
        )
    waiting = [asked.call for asked in state.waiting.values()]
    if state.ended and waiting:
        commands = [
            _command(verb, run_id, f"{call.turn}.{call.position}", where)
            for call in waiting
            for verb in ("approve", "deny")
        ]
        steps.append((f"Say whether {_names(waiting)} may run:", commands))
    if state.ended and (inside := [c for c in state.paused if c not in waiting]):
        children = [f"{run_id}-{call.turn}.{call.position}" for call in inside]
        commands = [_command("show", child, "", where) for child in children]
        steps.append((f"{_names(inside)} waits in a run of its own:", commands))
    if state.ended and state.ended.status is Status.COMPLETED:
        return steps
    stop = state.ended.stop if state.ended else None
    if stop and stop.source == "condition":
        return [*steps, (f"It does not go on: its stop condition holds ({stop}).", [])]
    words = f"{how} {_more_time(state)}".strip()
    going_on = "To go on with it:" if not steps else "And to go on with it:"
    if state.uncertain and clears_up:
        going_on = f"To go on with it, which clears up {_names(state.uncertain)} first:"
    return [*steps, (going_on, [_command("resume", run_id, words, where)])]


def _names(calls: Iterable[ToolCall]) -> str:
    return ", ".join(f"{call.name} ({call.turn}.{call.position})" for call in calls)


def _command(verb: str, run_id: str, words: str, where: str) -> str:
    parts = ("trioagent runs", verb, run_id, words, where)
    return " ".join(part for part in parts if part)


def _more_time(state: RunState) -> str:
    """The option for a run whose time is used up: as much again, in total."""
    if state.ended is None or state.ended.status is not Status.TIMED_OUT:
        return ""
    assert state.started is not None
    had = state.started.limits.get("seconds", 300)
    return f"--deadline {math.ceil(max(2 * had, state.active_seconds + had))}s"
