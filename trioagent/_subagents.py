"""Agents that work for an agent: as a tool of its own, or by taking over."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ._budget import WorksOn
from ._errors import StoreError, ToolError
from ._events import Effect, EffectStatus, HandedOff, Status, ToolCall
from ._outcome import Outcome
from ._ports import DidNotHappen, Finding, Happened, Unknown
from ._run import CURRENT, Run
from ._state import RunState
from ._tools import SubAgentLeft, Tool, ToolContext

if TYPE_CHECKING:  # it makes tools of itself here
    from ._agent import Agent


HARMLESS = (EffectStatus.NONE, EffectStatus.NOT_STARTED)


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a sub-agent is asked."""

    prompt: str


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a conversation is handed on."""

    reason: str = ""


def agent_tool(agent: Agent, name: str, description: str) -> Tool:
    """The agent as a tool. See `Agent.as_tool`."""
    reads = all(
        isinstance(t, Tool) and t.effect is Effect.READ
        for member in team_of(agent).values()
        for t in member.tools
    )
    limits = agent.limits
    return Tool(
        name,
        partial(_work, agent),
        description=description,
        arguments=Task,
        # Its own run is known by the call, so a repeat goes on where it was.
        effect=Effect.READ if reads else Effect.KEYED,
        # Its run keeps its own time and its own graces.
        seconds=limits.seconds + 2 * limits.grace_seconds,
        grace_seconds=0,
        reconcile=None if reads else partial(_look_up, agent),
        context="ctx",
        sub_agent=agent.name,
    )


def team_of(agent: Agent) -> dict[str, Agent]:
    """All the agents that a conversation may come to, by name; this one is first."""
    found: dict[str, Agent] = {agent.name: agent}
    queue: list[Agent] = [agent]
    for member in queue:  # which grows on the way
        new = {a.name: a for a in member.handoff_to if a.name not in found}
        found |= new
        queue += new.values()
    return found


def child_id(run_id: str, call: ToolCall) -> str:
    """The id of the run that works on a call."""
    return f"{run_id}-{call.turn}.{call.position}"


async def _work(agent: Agent, prompt: str, ctx: ToolContext) -> Any:
    """Carry the child's run, or go on with it where it was left."""
    parent = CURRENT.get()
    found = await _open(agent, parent, ctx.call, prompt)
    if isinstance(found, Run):
        parent.children[ctx.call.place] = found
        found.leave()  # what it shows is shown by its parent
        try:
            await found.main()
        finally:
            for line in found.state.ended.cleanup if found.state.ended else ():
                parent.ending.adopt(agent.name, line)
        found = found.outcome
    return _result(agent, found)


async def _open(
    agent: Agent, parent: Run, call: ToolCall, prompt: str
) -> Run | Outcome:
    works_on, run_id = WorksOn(parent, call), child_id(parent.id, call)
    own = replace(
        agent,
        store=agent.store or parent.plan.store,
        observers=(*agent.observers, *parent.plan.observers),
        approve=agent.approve or parent.plan.approve,
        tool_guards=(*agent.tool_guards, *parent.plan.tool_guards),
        price=agent.price or parent.budget.price,
    )
    parent.budget.check_prices(own.price, own.model)
    begun_before = parent.state.attempts.get(call.place, 0) > 1
    if own.store is None:
        if begun_before:
            raise RuntimeError(f"{agent.name} has no journal to go on from")
        return own.prepare(prompt, run_id=run_id, works_on=works_on)
    try:
        kept = await own.store.load(run_id)
    except StoreError as error:
        if error.code != "unknown_run":
            raise
        return own.prepare(prompt, run_id=run_id, works_on=works_on)
    state = RunState.replay(kept)
    if not _is_of(state, works_on):
        raise ToolError(f"the run {run_id} is there, and works on something else")
    if state.ended and state.ended.status is Status.COMPLETED:
        return Outcome.of(state)
    # Whoever has the parent has its children too, whatever became of the one before.
    return await own.reopen(run_id, take_over=True, works_on=works_on)


def _result(agent: Agent, outcome: Outcome) -> Any:
    """What the parent's model is told; raises where nobody knows what happened."""
    acted = any(t.effect_status not in HARMLESS for t in outcome.tools)
    if outcome.status is Status.PAUSED:
        why = f"{agent.name} waits for a person (run {outcome.run_id})"
        raise SubAgentLeft(why, code="paused", acted=acted)
    done = outcome.status is Status.COMPLETED
    if done and not outcome.uncertain:
        return outcome.output
    why = f"{agent.name} ended as {outcome.status}: {outcome.stop_reason}"
    why = f"{agent.name} has ended" if done else why
    said = f"{why}. So far it said: {outcome.text}" if outcome.text else f"{why}."
    if outcome.uncertain:
        names = ", ".join(report.name for report in outcome.uncertain)
        said = f"{said} Uncertain in run {outcome.run_id}: {names}"
        code = "child" if outcome.resumable else "review"
        raise SubAgentLeft(said, code=code, acted=True)
    if acted:
        return said  # something has happened, so it is no ToolError
    raise ToolError(said)


async def _look_up(agent: Agent, call: ToolCall, _: str) -> Finding:
    """What became of a call whose end is not known, by the journal of its run."""
    parent = CURRENT.get()
    child = parent.children.get(call.place)
    if child is not None:
        state = child.state
    else:
        store = agent.store or parent.plan.store
        if store is None:  # then no run was begun
            return DidNotHappen()
        try:
            state = RunState.replay(await store.load(child_id(parent.id, call)))
        except StoreError as error:
            return (
                DidNotHappen() if error.code == "unknown_run" else Unknown(error.code)
            )
    if not _is_of(state, WorksOn(parent, call)):
        return DidNotHappen()
    outcome = Outcome.of(state)
    if outcome.status is Status.COMPLETED and not outcome.uncertain:
        return Happened(outcome.output)
    if all(t.effect_status in HARMLESS for t in outcome.tools):
        return DidNotHappen()
    return Unknown(f"run {outcome.run_id} has begun to act, and was not finished")


def _is_of(state: RunState, works_on: WorksOn) -> bool:
    """Whether a run works on that call: its id may be somebody else's."""
    return state.started is not None and state.started.parent == str(works_on)


def handoff_tool(agent: Agent) -> Tool:
    """Hands the conversation on to `agent`."""
    return Tool(
        f"handoff_to_{agent.name}",
        partial(_hand_off, agent),
        description=f"Hand the conversation over to {agent.name}.",
        arguments=Reason,
        effect=Effect.READ,
        context="ctx",
    )


async def _hand_off(agent: Agent, reason: str, ctx: ToolContext) -> str:
    run = CURRENT.get()
    if run.state.next_agent:
        raise ToolError(f"the conversation goes to {run.state.next_agent} already")
    await run.record(HandedOff(ctx.call, agent.name))
    return f"{agent.name} has taken over."
