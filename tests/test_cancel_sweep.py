"""The stop contract, checked at every point where a run can be stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import msgspec
import pytest
import trio
from trio.testing import MockClock

from trioagent import (
    Agent,
    DidNotHappen,
    EffectStatus,
    Happened,
    KeptEvent,
    Limits,
    ModelRequest,
    Status,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolStarted,
    tool,
)
from trioagent._turn import check_history
from trioagent.stores.sqlite import SqliteStore
from trioagent.testing import (
    CancelPoint,
    MemoryStore,
    ScriptedModel,
    call,
    sweep_cancels,
)

Stop = Literal["user", "deadline", "host"]
STOPS: list[Stop] = ["user", "deadline", "host"]


class SlowStore(MemoryStore):
    """Takes a while to keep an event, as a disk does."""

    async def append(self, run_id: str, event: KeptEvent, **how: Any) -> None:
        await trio.sleep(0.1)
        await super().append(run_id, event, **how)


@tool(effect="read")
async def look(seconds: float = 1.0) -> str:
    await trio.sleep(seconds)
    return "seen"


@tool(effect="once")
async def pay(ctx: ToolContext, seconds: float = 1.0) -> str:
    try:
        await trio.sleep(seconds)
    finally:
        with ctx.cleanup(0.5):
            await trio.sleep(0.1)
    return "paid"


@tool(effect="once", grace_seconds=0)
async def pay_without_grace() -> str:
    await trio.sleep(1)
    return "paid"


@tool(effect="read")
async def fail() -> str:
    await trio.sleep(0.2)
    raise ToolError("no luck")


class Answer(msgspec.Struct):
    city: str


def text() -> Agent:
    return Agent(ScriptedModel(["a few words of text"]))


def one_tool() -> Agent:
    return Agent(ScriptedModel([call("look"), "done"]), tools=[look])


def parallel_tools() -> Agent:
    calls = [call("look"), call("pay"), call("pay_without_grace"), call("nobody")]
    return Agent(
        ScriptedModel([calls, "done"]),
        tools=[look, pay, pay_without_grace],
        limits=Limits(parallel_tools=2),
    )


def failing_tool() -> Agent:
    model = ScriptedModel([[call("fail"), call("look")], call("fail", x=1), "done"])
    return Agent(model, tools=[fail, look])


def structured_output() -> Agent:
    return Agent(ScriptedModel(["Porto", '{"city": "Porto"}']), output=Answer)


AGENTS = [text, one_tool, parallel_tools, failing_tool, structured_output]


def tells_the_truth(point: CancelPoint) -> None:
    """What each call's report says agrees with what the tool did."""
    begun = {
        event.call.place: event
        for event in point.events
        if isinstance(event, ToolStarted)
    }
    for report in point.outcome.tools:
        if (report.turn, report.position) not in begun:
            assert report.effect_status == "not_started"
    if point.outcome.status is Status.CANCELLED:
        assert point.outcome.stop_reason == "user"
    assert point.seconds <= 2 + 0.1 + 0.1 * 5, "grace, cleanup, and a few slow appends"


# Effects that were cut: looked up, repeated with their key, undone, left; and then
# the run goes on.


class World:
    """What really happened outside, by key."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def tools(self) -> list[Tool]:
        async def act(key: str) -> str:
            await trio.sleep(0.001)
            self.done.append(key)
            await trio.sleep(0.001)
            return "done"

        async def reconcile(_: ToolCall, key: str) -> Happened | DidNotHappen:
            await trio.sleep(0.001)
            return Happened("looked up") if key in self.done else DidNotHappen()

        async def undo(_: ToolCall, key: str) -> None:
            await trio.sleep(0.001)
            if key in self.done:
                self.done.remove(key)

        @tool(effect="keyed", grace_seconds=0)
        async def book(ctx: ToolContext) -> str:
            if ctx.idempotency_key in self.done:
                return "done before"
            return await act(ctx.idempotency_key)

        @tool(effect="once", grace_seconds=0, reconcile=reconcile)
        async def pay(ctx: ToolContext) -> str:
            return await act(ctx.idempotency_key)

        @tool(effect="once", grace_seconds=0, compensate=undo)
        async def reserve(ctx: ToolContext) -> str:
            return await act(ctx.idempotency_key)

        @tool(effect="once", grace_seconds=0)
        async def send(ctx: ToolContext) -> str:
            return await act(ctx.idempotency_key)

        @tool(effect="read", retries=1)
        async def read() -> str:
            await trio.sleep(0.001)
            return "read"

        return [book, pay, reserve, send, read]


def by_turn(request: ModelRequest) -> object:
    """A script that a resumed run can go on with."""
    turns = [
        [call("book"), call("pay"), call("read")],
        [call("reserve"), call("send")],
        [call("pay")],
        "done",
    ]
    return turns[request.turn - 1]


def goes_on(point: CancelPoint, world: World, agent: Agent) -> None:
    """A resume leads to a right end, and no effect is there twice."""
    tells_the_truth(point)
    if point.outcome.status is Status.COMPLETED:
        return
    clock = MockClock(autojump_threshold=0)
    virtual = isinstance(agent.store, MemoryStore)
    resume = partial(agent.resume, point.outcome.run_id, limits=Limits(seconds=300))
    outcome = trio.run(resume, clock=clock if virtual else None)
    check_history(outcome.history)
    if outcome.stop_reason == "compensated":
        outcome = trio.run(resume, clock=clock if virtual else None)
    if outcome.uncertain:
        assert {t.name for t in outcome.uncertain} == {"send"}
        assert outcome.stop_reason == "effect_uncertain"
    else:
        assert outcome.status is Status.COMPLETED, outcome
    assert len(set(world.done)) == len(world.done), "no key twice"
    sure = [t for t in outcome.tools if t.effect_status is EffectStatus.CONFIRMED]
    assert len(sure) <= len(world.done) <= len(sure) + len(outcome.uncertain)


@pytest.mark.parametrize("stop", STOPS)
def test_after_a_stop_at_any_step_a_resume_leads_to_a_right_end(stop: Stop) -> None:
    world, agent = World(), text()

    def fresh() -> Agent:
        nonlocal world, agent
        world = World()
        model = ScriptedModel([by_turn] * 20)
        agent = Agent(model, tools=world.tools(), store=MemoryStore())
        return agent

    steps = sweep_cancels(
        fresh, stop=stop, check=lambda point: goes_on(point, world, agent)
    )
    assert steps > 50


@pytest.mark.parametrize("stop", STOPS)
def test_and_so_it_is_with_a_journal_on_disk(stop: Stop, tmp_path: Path) -> None:
    world, agent = World(), text()
    stores: list[SqliteStore] = []

    def fresh() -> Agent:
        nonlocal world, agent
        for old in stores:
            trio.run(old.close)
        world = World()
        stores[:] = [SqliteStore(tmp_path / f"{uuid4()}.db")]
        model = ScriptedModel([by_turn] * 20)
        agent = Agent(model, tools=world.tools(), store=stores[0])
        return agent

    steps = sweep_cancels(
        fresh,
        stop=stop,
        check=lambda point: goes_on(point, world, agent),
        virtual=False,
    )
    assert steps > 50


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("make_store", [MemoryStore, SlowStore])
@pytest.mark.parametrize("make", AGENTS, ids=lambda f: f.__name__)
def test_stopped_at_any_step_a_run_tells_the_truth(
    make: Callable[[], Agent], make_store: type[MemoryStore], stop: Stop
) -> None:
    def fresh() -> Agent:
        return replace(make(), store=make_store())

    steps = sweep_cancels(fresh, stop=stop, check=tells_the_truth)
    assert steps > 10
