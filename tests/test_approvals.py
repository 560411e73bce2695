"""Calls that somebody has to approve."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from trioagent import (
    Agent,
    ApprovalAsked,
    ApprovalGiven,
    Denied,
    EffectStatus,
    ImpossibleEvent,
    KeptEvent,
    Limits,
    ModelAsked,
    ModelReplied,
    ModelRequest,
    Reply,
    RunEnded,
    RunStarted,
    Status,
    ToolCall,
    ToolNotRun,
    ToolResult,
    ToolStarted,
    max_duration,
    tool,
)
from trioagent._state import RunState
from trioagent._turn import check_history
from trioagent.testing import MemoryStore, ScriptedModel, call, sweep_cancels
from trioagent.testing._sweep import CancelPoint


def tools(ran: list[str], approve: Any) -> list[Any]:
    @tool(effect="once", approve=approve)
    async def pay(amount: int) -> str:
        ran.append(f"pay {amount}")
        return "paid"

    @tool(effect="read")
    async def look() -> str:
        ran.append("look")
        return "seen"

    return [pay, look]


def agent(*steps: Any, **options: Any) -> Agent:
    options.setdefault("store", MemoryStore())
    return Agent(ScriptedModel(steps), **options)


def kept(a: Agent) -> list[KeptEvent]:
    assert isinstance(a.store, MemoryStore)
    return a.store.events


async def say(a: Agent, run_id: str, *, granted: bool, **changed: Any) -> None:
    """What a person says, from another process for all the run knows."""
    store = a.store
    assert store is not None
    (asked,) = (e for e in await store.load(run_id) if isinstance(e, ApprovalAsked))
    event = ApprovalGiven(
        call=asked.call, granted=granted, by="person", digest=asked.call.digest
    )
    claim = await store.claim(run_id)
    await store.append(run_id, msgspec.structs.replace(event, **changed), claim=claim)
    store.release(run_id, claim)


PAY = call("pay", amount=10)


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_call_begins_when_it_is_approved(in_thread: bool) -> None:
    ran: list[str] = []
    asked: list[ToolCall] = []

    def approve(found: ToolCall) -> bool:
        assert ran == []
        asked.append(found)
        return True

    async def approve_in_a_task(found: ToolCall) -> bool:
        await trio.lowlevel.checkpoint()
        return approve(found)

    ways = tools(ran, approve if in_thread else approve_in_a_task)
    a = agent(PAY, "done", tools=ways)
    outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    assert ran == ["pay 10"]
    assert [found.place for found in asked] == [(1, 0)]
    kinds = [type(e) for e in kept(a)]
    assert kinds.index(ApprovalAsked) < kinds.index(ApprovalGiven)
    assert kinds.index(ApprovalGiven) < kinds.index(ToolStarted)


def _raises(_: ToolCall) -> bool:
    raise OSError("sk-secret")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda _: False, "Not started: it was not approved: the policy said no."),
        (lambda _: Denied("too much"), "Not started: it was not approved: too much."),
        (_raises, "Not started: it was not approved: approve failed: OSError."),
        (
            lambda _: "yes",
            "Not started: it was not approved: approve returned str, not True, False"
            " or Denied.",
        ),
        (
            lambda _: 1,
            "Not started: it was not approved: approve returned int, not True, False"
            " or Denied.",
        ),
    ],
)
async def test_what_is_not_approved_does_not_begin_and_the_model_is_told(
    answer: Any, told: str
) -> None:
    ran: list[str] = []
    a = agent(PAY, "done", tools=tools(ran, answer))
    outcome = await a.run("go")
    assert ran == []
    assert outcome.status is Status.COMPLETED
    assert [t.effect_status for t in outcome.tools] == [EffectStatus.NOT_STARTED]
    (result,) = (m for m in outcome.history if isinstance(m, ToolResult))
    assert result.content == told
    (not_run,) = (e for e in kept(a) if isinstance(e, ToolNotRun))
    assert not_run.code == "denied"


async def test_an_agent_asks_for_all_calls_but_reads() -> None:
    ran: list[str] = []
    asked: list[str] = []

    def approve(found: ToolCall) -> bool:
        asked.append(found.name)
        return True

    a = agent([PAY, call("look")], "done", tools=tools(ran, None), approve=approve)
    await a.run("go")
    assert asked == ["pay"]
    assert sorted(ran) == ["look", "pay 10"]


async def test_a_run_that_waits_for_a_person_pauses_and_goes_on() -> None:
    # B48: the other call of the batch is done, and is not done again.
    ran: list[str] = []
    steps: list[Any] = [[PAY, call("look")], "done"]

    def by_turn(request: ModelRequest) -> Any:
        return steps[request.turn - 1]

    a = agent(*[by_turn] * 5, tools=tools(ran, "ask"))
    async with a.open("go") as run:
        async for _ in run:
            pass
    outcome = run.outcome
    assert (outcome.status, str(outcome.stop)) == (Status.PAUSED, "approval")
    assert outcome.stop is not None
    assert outcome.stop.detail == "pay"
    assert ran == ["look"]
    assert run.resume_decision.action == "review"
    assert run.resume_decision.reason == "this waits to be approved: pay (call 1.0)"
    assert not outcome.resumable
    check_history(outcome.history)

    again = await a.resume(run.id)
    assert again.status is Status.PAUSED, "nobody has said anything"
    assert ran == ["look"]
    assert len([e for e in kept(a) if isinstance(e, ApprovalAsked)]) == 1

    await say(a, run.id, granted=True)
    b = replace(a, tools=tools(ran, "ask"))  # another object, as in a new process
    outcome = await b.resume(run.id)
    assert outcome.status is Status.COMPLETED
    assert ran == ["look", "pay 10"]
    told = [m.content for m in outcome.history if isinstance(m, ToolResult)]
    assert told == ["paid", "seen"]
    check_history(outcome.history)


async def test_what_a_person_denies_does_not_begin() -> None:
    ran: list[str] = []
    a = agent(PAY, "then not", tools=tools(ran, "ask"))
    outcome = await a.run("go")
    await say(a, outcome.run_id, granted=False, reason="over the limit")
    outcome = await a.resume(outcome.run_id)
    assert ran == []
    assert outcome.output == "then not"
    (result,) = (m for m in outcome.history if isinstance(m, ToolResult))
    assert result.content == "Not started: it was not approved: over the limit."


async def test_an_approval_is_for_these_arguments_only() -> None:
    ran: list[str] = []
    a = agent(PAY, "done", tools=tools(ran, "ask"))
    outcome = await a.run("go")
    other = ToolCall("pay", '{"amount":1000}').digest
    await say(a, outcome.run_id, granted=True, digest=other)
    outcome = await a.resume(outcome.run_id)
    assert ran == []
    assert [t.ended for t in outcome.tools] == ["not_run"]


@pytest.mark.parametrize("stop", ["user", "deadline"])
async def test_waiting_for_an_approval_ends_with_the_run(
    autojump_clock: MockClock, stop: str
) -> None:
    ran: list[str] = []

    async def approve(_: ToolCall) -> bool:
        await trio.sleep_forever()

    a = agent(PAY, "done", tools=tools(ran, approve), limits=Limits(seconds=10))
    async with a.open("go") as run:
        async for event in run:
            if isinstance(event, ApprovalAsked) and stop == "user":
                run.cancel("no patience")
    assert trio.current_time() == pytest.approx(
        10 if stop == "deadline" else 0, abs=0.1
    )
    expected = Status.TIMED_OUT if stop == "deadline" else Status.CANCELLED
    assert run.outcome.status is expected
    assert ran == []
    assert [t.effect_status for t in run.outcome.tools] == [EffectStatus.NOT_STARTED]

    async def yes(_: ToolCall) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    b = replace(a, tools=tools(ran, yes), model=ScriptedModel(["done"]))
    outcome = await b.resume(run.id, limits=Limits(seconds=100))
    assert ran == ["pay 10"], "whoever was asked then is asked again"
    assert outcome.status is Status.COMPLETED


async def test_a_thread_that_asks_somebody_is_left_behind_and_named() -> None:
    release, reached = threading.Event(), threading.Event()

    def approve(_: ToolCall) -> bool:
        reached.set()
        return release.wait(20)

    ran: list[str] = []
    a = agent(PAY, tools=tools(ran, approve))
    try:
        async with a.open("go") as run:
            async for event in run:
                if isinstance(event, ApprovalAsked):
                    break
            await trio.to_thread.run_sync(reached.wait)
    finally:
        release.set()
    assert ran == []
    assert ("thread of approve pay", "abandoned") in [
        (c.name, c.ended) for c in run.outcome.cleanup
    ]


async def test_waiting_for_a_person_does_not_count_into_max_duration(
    autojump_clock: MockClock,
) -> None:
    ran: list[str] = []

    async def slow(_: ToolCall) -> bool:
        await trio.sleep(100)
        return True

    a = agent(PAY, call("look"), "done", tools=tools(ran, slow))
    outcome = await a.run("go", stop_when=[max_duration(50_000)])
    assert outcome.status is Status.COMPLETED
    a = agent(PAY, "done", tools=tools(ran, "ask"))
    outcome = await a.run("go", stop_when=[max_duration(50_000)])
    await trio.sleep(1000)
    await say(a, outcome.run_id, granted=True)
    outcome = await a.resume(outcome.run_id)
    assert outcome.status is Status.COMPLETED


@pytest.mark.parametrize("wrong", ["yes", 1, True])
def test_who_cannot_be_asked_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"Agent\(approve=…\) takes"):
        agent(approve=wrong)
    with pytest.raises(TypeError, match="@tool pay: approve takes"):
        tools([], wrong)


@pytest.mark.parametrize("stop", ["user", "deadline", "host"])
def test_stopped_at_any_step_an_approval_begins_nothing(stop: Any) -> None:
    ran: list[str] = []

    def fresh() -> Agent:
        ran.clear()

        async def approve(_: ToolCall) -> bool:
            await trio.sleep(1)
            return True

        return agent([PAY, call("look")], "done", tools=tools(ran, approve))

    def check(point: CancelPoint) -> None:
        started = {e.call.name for e in point.events if isinstance(e, ToolStarted)}
        assert {name.split()[0] for name in ran} <= started
        assert isinstance(point.events[-1], RunEnded)

    assert sweep_cancels(fresh, stop=stop, check=check) > 30


def test_an_approval_that_nobody_asked_for_is_impossible() -> None:
    pay = ToolCall("pay", turn=1)
    state = RunState.replay(
        [RunStarted(run_id="r"), ModelAsked(1), ModelReplied(Reply(tool_calls=(pay,)))]
    )
    given = ApprovalGiven(call=pay, granted=True, by="person")
    with pytest.raises(ImpossibleEvent, match="waits for nobody"):
        state.apply(given)
    state.apply(ApprovalAsked(pay))
    state.apply(given)
    with pytest.raises(ImpossibleEvent, match="needs no approval"):
        state.apply(ApprovalAsked(pay))
