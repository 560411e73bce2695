"""What an interrupted call needs, and how the truth about its effect is found."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from ._ending import logger
from ._events import (
    CompensationStarted,
    Effect,
    EffectJudged,
    EffectStatus,
    ToolCall,
    Verdict,
)
from ._foreign import call_in_thread, clean, only_cancels
from ._ports import DidNotHappen, Finding, Happened, Unknown
from ._scopes import open_flat_nursery
from ._tools import Tool, as_content

if TYPE_CHECKING:  # the loop calls this file, and this file reports to the run
    from ._run import Run

ATTEMPTS = 2  # to begin a call, in one call of run or resume


class Action(Enum):
    """What the runtime does by itself about a call that was interrupted."""

    KEEP = auto()  # nothing: it is as it should be, or will not get better
    BEGIN = auto()  # begin it, or begin it again
    RECONCILE = auto()
    COMPENSATE = auto()
    REVIEW = auto()  # a person has to settle it


def decide(
    effect: Effect,
    status: EffectStatus,
    *,
    attempts: int = 0,
    begun: bool = True,
    retries: int = 0,
    reconcile: bool = False,
    compensate: bool = False,
    waiting: bool = False,
    stopping: bool = False,
) -> Action:
    """What comes next for a call that is not running and may not be done.

    `attempts` were made to begin it since the run began or was resumed; `begun` says
    whether it ever began. `retries` is how often a read may be repeated; `reconcile`
    and `compensate` say whether that is still open. Nothing begins while it is
    `waiting` to be approved, or the run is `stopping`.
    """
    if waiting:
        return Action.KEEP
    if status is EffectStatus.UNCERTAIN:
        if reconcile:
            return Action.RECONCILE
        if effect is Effect.KEYED and attempts < ATTEMPTS and not stopping:
            return Action.BEGIN
        return Action.COMPENSATE if compensate else Action.REVIEW
    most = {
        EffectStatus.CONFIRMED: 0,
        EffectStatus.NONE: 1 + retries,
        EffectStatus.NOT_STARTED: ATTEMPTS if begun else 1,
    }
    over = stopping or attempts >= most[status]
    return Action.KEEP if over else Action.BEGIN


async def settle(run: Run, *, ending: bool = False) -> tuple[ToolCall, ...]:
    """Find out what became of uncertain effects; the calls that may begin after that.

    None may while another waits for a person. It is shielded: a stop leaves it the
    cleanup's grace. With `ending` nothing begins any more and no person is asked.
    """
    state = run.state
    unknown = [
        call
        for call in state.uncertain
        if call.place not in state.judged and call.place not in run.paused
        if not (ending and call.place in run.asked)  # the stop cut the answer short
    ]
    if unknown:
        with run.ending.graces.shield(run.limits.grace_seconds):
            async with open_flat_nursery() as nursery:
                for call in unknown:
                    nursery.start_soon(_clear_up, run, call, ending)
    if ending:
        return ()
    begin = [c for c in state.pending if _next(run, c, ending) is Action.BEGIN]
    waiting = any(call not in begin for call in state.in_review)
    return () if waiting else tuple(begin)


def _next(run: Run, call: ToolCall, ending: bool) -> Action:
    tool, state = tool_of(run, call), run.state
    turn = state.turns[call.turn - 1]
    start, end = turn.starts.get(call.position), turn.ends.get(call.position)
    # Once somebody has begun to undo it, only a person can say what is there. And what
    # cannot begin, or was left by a sub-agent that has said its say, is not repeated.
    fresh = state.may_compensate(call)
    attempts = state.attempts.get(call.place, 0)
    over = not fresh or call not in state.pending
    if over or (attempts and getattr(end, "code", "") in {"child", "review"}):
        attempts = ATTEMPTS
    asked = call.place in state.judged
    return decide(
        start.effect if start else Effect.READ,
        state.effect_status(call),
        attempts=attempts,
        begun=start is not None,
        retries=tool.retries if tool else 0,
        reconcile=bool(tool and tool.reconcile and fresh and not asked),
        compensate=bool(tool and tool.compensate and fresh),
        waiting=call.place in run.paused,
        stopping=ending or run.ending.stopping or run.remaining() <= 0,
    )


def tool_of(run: Run, call: ToolCall) -> Tool | None:
    """The tool that runs a call: where it began before, the one that ran it then."""
    tool = run.tools.get(call.name)
    start = run.state.turns[call.turn - 1].starts.get(call.position)
    if tool and start and start.tool:
        other = tool.fallback
        return other if other and other.name == start.tool else None
    return tool


async def _clear_up(run: Run, call: ToolCall, ending: bool) -> None:
    tool = tool_of(run, call)
    action = _next(run, call, ending)
    while tool and (step := _STEPS.get(action)):
        await step(run, call, tool)
        action = _next(run, call, ending)
    if action is Action.REVIEW and not ending and not run.ending.stopping:
        await _review(run, call)


async def _reconcile(run: Run, call: ToolCall, tool: Tool) -> None:
    assert tool.reconcile
    run.asked.add(call.place)
    found = await _ask(run, call, tool.reconcile, "reconcile")
    await _judge(run, call, found, "reconcile")


async def _compensate(run: Run, call: ToolCall, tool: Tool) -> None:
    assert tool.compensate
    await run.record(CompensationStarted(call))
    found = await _ask(run, call, tool.compensate, "compensate")
    await _judge(run, call, found, "compensate")


_STEPS = {Action.RECONCILE: _reconcile, Action.COMPENSATE: _compensate}


async def _review(run: Run, call: ToolCall) -> None:
    policy: Any = run.plan.on_uncertain
    if callable(policy):
        policy = await _ask(run, call, policy, "on_uncertain")
    if policy != "review":  # which is what happens where nothing is recorded
        await _judge(run, call, policy, "policy")


async def _judge(run: Run, call: ToolCall, found: Any, by: str) -> None:
    verdict, content = Verdict.UNKNOWN, ""
    match found:
        case Happened(result):
            verdict = Verdict.HAPPENED
            try:
                content = as_content(result)
            except Exception as error:  # noqa: BLE001 - a value may be anything
                content = f"done, but its result cannot be shown: {error}"
        case DidNotHappen():
            verdict = Verdict.DID_NOT_HAPPEN
        case Unknown(why):
            content = clean(why)
        case word:
            verdict = {"tell": Verdict.TOLD, "undone": Verdict.UNDONE}[word]
    await run.record(EffectJudged(call=call, verdict=verdict, by=by, content=content))


async def _ask(run: Run, call: ToolCall, fn: Callable[..., Any], what: str) -> Any:
    """What a function of the user's says of a call: a `Finding`, or a word."""
    key, tool = run.state.start_of(call).key, tool_of(run, call)
    seconds = (tool and tool.seconds) or run.limits.tool_seconds
    if what == "on_uncertain":  # it may wait for a person
        seconds = math.inf
    undo, name = what == "compensate", f"{what} {call.name}"
    ask = partial(ask_user, run, name, fn, call, key)
    try:
        answer = await ask(seconds=seconds, abandon=not undo)
    except trio.TooSlowError:
        return Unknown(f"{what} gave no answer within {seconds:g} s")
    except Exception as error:  # noqa: BLE001 - it may raise anything
        problem = f"{what} failed: {type(error).__name__}"
        logger.warning("%s: %s", call.name, problem)
        return Unknown(problem)
    return "undone" if undo else _finding(answer, what)


async def ask_user(
    run: Run,
    name: str,
    fn: Callable[..., Any],
    *args: Any,
    seconds: float = math.inf,
    abandon: bool = True,
) -> Any:
    """As `call_user`, for `seconds` at most, and named in the cleanup report.

    Raises what it raises, and `trio.TooSlowError`. The name stands outside all scopes
    but the run's: a child that was cancelled says that the run was.
    """
    with run.child(name), trio.fail_after(seconds):
        return await call_user(name, fn, *args, abandon=abandon)


async def call_user(
    name: str, fn: Callable[..., Any], *args: Any, abandon: bool = True
) -> Any:
    """Call a function of the user's, in the run's own task or in a thread."""
    if not _is_async(fn):
        return await call_in_thread(
            name, partial(fn, *args), abandon=abandon, bounded=False
        )
    with only_cancels():
        return await fn(*args)


def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004 - of an object, where it is one
    )


def _finding(answer: Any, what: str) -> Any:
    if isinstance(answer, type) and issubclass(answer, Finding):
        answer = answer()
    if isinstance(answer, Finding):
        return answer
    if what == "on_uncertain" and answer in ("tell", "review"):
        return answer
    return Unknown(f"{what} returned {type(answer).__name__}, which is no finding")
