"""The stop contract, checked at every point where a run can be stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import msgspec
import pytest
import trio

from trioagent import (
    Agent,
    KeptEvent,
    Limits,
    Status,
    ToolContext,
    ToolError,
    ToolStarted,
    tool,
)
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
