"""From what the model asked for to what became of it: one tool call."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import trio

from ._effects import tool_of
from ._events import (
    Effect,
    EffectStatus,
    Status,
    Stop,
    ToolCall,
    ToolEnded,
    ToolLost,
    ToolNotRun,
    ToolOutput,
    ToolStarted,
)
from ._scopes import is_cancelled, open_flat_nursery
from ._tools import Tool, ToolContext

if TYPE_CHECKING:  # the loop calls this file, and this file reports to the run
    from ._run import Run

KEYS = uuid.UUID("5f2d1c7a-3c1e-4b52-9d0b-2a4f6f1c8e11")  # namespace of our keys


class PreparedCall(NamedTuple):
    """A call that may begin: its tool is there, its arguments fit, time is left."""

    call: ToolCall
    tool: Tool
    arguments: dict[str, Any]
    seconds: float
    start: ToolStarted


def in_batches(run: Run, calls: Sequence[ToolCall]) -> Iterator[Sequence[ToolCall]]:
    """Calls that run side by side; a call of a sequential tool runs alone.

    Which calls are too many is decided here, in the order of the calls, before any of
    them begins.
    """
    _reserve(run, calls)
    together: list[ToolCall] = []
    for call in calls:
        tool = tool_of(run, call)
        alone = tool is not None and tool.sequential
        if alone and together:
            yield together
            if run.state.in_review:  # nothing begins while somebody has to look
                return
            together = []
        together.append(call)
        if alone:
            yield together
            if run.state.in_review:
                return
            together = []
    if together:
        yield together


async def side_by_side(
    run: Run,
    call_tool: Callable[[Run, ToolCall], Awaitable[None]],
    batch: Sequence[ToolCall],
) -> None:
    """Carry a batch out, `Limits.parallel_tools` at a time. They begin in their order.

    A call that is alone needs no task of its own, but lets the others run before it,
    as a task would: nothing else in a turn has to.
    """
    if len(batch) == 1:
        task = trio.lowlevel.current_task()
        around, task.context = task.context, task.context.copy()  # as a task has one
        try:
            await trio.lowlevel.cancel_shielded_checkpoint()
            await call_tool(run, batch[0])
        finally:
            task.context = around
            await trio.lowlevel.cancel_shielded_checkpoint()  # it counts from here on
        return
    slots = trio.Semaphore(run.limits.parallel_tools)

    async def in_turn(run: Run, call: ToolCall) -> None:
        try:
            await call_tool(run, call)
        finally:
            slots.release()

    work = call_tool if len(batch) <= slots.value else in_turn
    async with open_flat_nursery() as nursery:
        for call in batch:
            # Each makes its first step before the next one is there.
            await slots.acquire()
            nursery.start_soon(work, run, call, name=f"tool {call.name}")


def _reserve(run: Run, calls: Sequence[ToolCall]) -> None:
    begun, most = run.state.begun, run.limits.tool_calls
    left, now = most - sum(begun.values()), dict.fromkeys((c.name for c in calls), 0)
    for call in calls:
        if call.position in run.state.turns[call.turn - 1].starts:
            continue  # it began before, and was counted then
        tool, used = tool_of(run, call), begun[call.name] + now[call.name]
        if left <= 0:
            refused = f"the run may make {most} calls, and they are used up."
        elif tool and tool.most_calls and used >= tool.most_calls:
            refused = f"{call.name} may be called {tool.most_calls} times in a run."
        else:
            left -= 1
            now[call.name] += 1
            continue
        run.refused[call.place] = refused


def prepare(run: Run, call: ToolCall) -> PreparedCall | ToolNotRun:
    """Look at everything that can be known before the call begins."""
    tool = tool_of(run, call)
    if tool is None:
        known = ", ".join(run.tools) or "none"
        problem = f"there is no tool {call.name!r}. There are: {known}."
        return not_run(call, "unknown_tool", problem)
    if objection := _objection(run, call):
        return not_run(call, *objection)
    doubtful = run.state.effect_status(call) is EffectStatus.UNCERTAIN
    if doubtful and tool.effect is not Effect.KEYED:
        return not_run(call, "changed", f"{tool.name} is not what it was before.")
    left = run.remaining()
    if tool.needs_seconds > left and tool.fallback and not doubtful:
        tool = tool.fallback
    if tool.needs_seconds > left:
        problem = (
            f"{tool.name} needs {tool.needs_seconds:g} s, and {left:.1f} s are left."
        )
        return not_run(call, "budget", problem)
    try:
        arguments = tool.read_arguments(call)
    except ValueError as error:
        return not_run(call, "bad_arguments", str(error))
    seconds = tool.seconds or run.limits.tool_seconds
    return PreparedCall(call, tool, arguments, seconds, _start(run, call, tool))


def _objection(run: Run, call: ToolCall) -> tuple[str, str] | None:
    """Why a call must not begin, whatever its arguments: a code, and words."""
    reason = run.state.turns[-1].finish_reason
    if reason not in ("stop", "tool_calls"):  # what looks whole may be a cut one
        length = "your reply was cut by its length limit. Ask for less."
        other = f"the reply ended with {reason}."
        return "cut", length if reason == "length" else other
    if refused := run.refused.get(call.place):
        return "too_many", refused
    tool = tool_of(run, call)
    for twin in run.unknown_besides(call):
        if twin.name == call.name and _same(tool, twin, call):
            return "held", (
                f"{call.name} was called with these arguments before, and whether that"
                " happened is unknown. It is not repeated until somebody has looked."
            )
    return None


def _same(tool: Tool | None, one: ToolCall, other: ToolCall) -> bool:
    """Whether they ask for the same, with a default written out or not."""
    try:
        assert tool
        return tool.read_arguments(one) == tool.read_arguments(other)
    except ValueError:
        return one.arguments == other.arguments


def _start(run: Run, call: ToolCall, tool: Tool) -> ToolStarted:
    return ToolStarted(
        call,
        tool.effect,
        tool="" if tool.name == call.name else tool.name,
        attempt=run.state.attempts.get(call.place, 0) + 1,
        key=_key(run, call, tool),
        recovery=tool.recovery,
    )


def _key(run: Run, call: ToolCall, tool: Tool) -> str:
    if tool.effect is Effect.READ and not tool.context:  # nobody would see it
        return ""
    return str(uuid.uuid5(KEYS, f"{run.id}/{call.turn}/{call.position}"))


def not_run(call: ToolCall, code: str, problem: str) -> ToolNotRun:
    """The call does not begin, and why, in words for the model."""
    return ToolNotRun(call=call, problem=f"Not started: {problem}", code=code)


async def perform(run: Run, ready: PreparedCall) -> ToolEnded | ToolLost | ToolNotRun:
    """Run the tool within its limit, its grace and the run.

    From the question whether the run was stopped to the first line of the tool there
    is no await, so nothing begins after a stop.
    """
    call, tool, arguments, seconds, start = ready
    if is_cancelled():
        return not_run(call, "stopped", "the run was stopped.")
    if tool.context:
        arguments[tool.context] = _context(run, ready)
    # If its grace runs out, this is what became of it.
    problem = f"{tool.name}: it did not end within its grace after the stop"
    end: ToolEnded | ToolLost | ToolNotRun = ToolLost(
        call=call, problem=problem, code="stopped"
    )
    with run.ending.child(f"tool {call.name}", _grace(run, tool)):
        end = await tool.call(call, arguments, seconds, start.attempt)
    return end  # noqa: RET504 - the shield may have swallowed the cancel


def _grace(run: Run, tool: Tool) -> float:
    if tool.grace_seconds is not None:
        return tool.grace_seconds
    now = tool.effect is Effect.READ or tool.threads == "cooperative"
    return 0.0 if now else run.limits.write_grace_seconds


def _context(run: Run, ready: PreparedCall) -> ToolContext:
    in_thread = ready.tool.in_thread
    show = partial(_show, run, ready.call)
    from_there = partial(partial, trio.from_thread.run_sync) if in_thread else partial
    return ToolContext(
        run_id=run.id,
        call=ready.call,
        idempotency_key=ready.start.key,
        grace_seconds=run.limits.grace_seconds,
        remaining=from_there(run.remaining),
        cancel=from_there(run.cancel),
        show=partial(trio.from_thread.run, show) if in_thread else show,
        in_thread=in_thread,
    )


async def _show(run: Run, call: ToolCall, text: str) -> None:
    await run.publish(ToolOutput(call, text))


async def conclude(run: Run, end: ToolEnded | ToolLost | ToolNotRun) -> None:
    """Keep what became of a call. A fatal error ends the run, others do not."""
    if type(end) is ToolEnded and (run.ending.stopping or is_cancelled()):
        end = msgspec.structs.replace(end, late=True)
    if run.broken:  # the journal of this run is: that is no failure of the tool
        raise run.broken
    if end.code == "paused" and type(end) is not ToolEnded:
        run.paused.add(end.call.place)
    await run.record(end)
    if end.code == "fatal" and type(end) is ToolEnded and not run.ending.cause:
        detail = f"{end.call.name}: {end.content}"
        stop = Stop("tool_failed", detail, scope="tool", source="tool")
        run.ending.stop_now(Status.FAILED, stop)
