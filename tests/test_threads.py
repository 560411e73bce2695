"""Tools in threads, and which calls run side by side."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import trioagent
from trioagent import (
    Agent,
    EffectStatus,
    Limits,
    Status,
    ToolContext,
    ToolNotRun,
    ToolOutput,
    ToolStarted,
    tool,
)
from trioagent.testing import MemoryStore, ScriptedModel, call

PATIENCE_SECONDS = 20


def agent(*steps: Any, **options: Any) -> Agent:
    options.setdefault("store", MemoryStore())
    return Agent(ScriptedModel(steps), **options)


async def stopped_in(a: Agent, reached: threading.Event) -> Any:
    """The run after a stop that came when a thread had been reached."""
    async with a.open("go") as run:
        await trio.to_thread.run_sync(reached.wait, PATIENCE_SECONDS)
        run.cancel("enough")
    return run


async def gone(run: Any) -> None:
    """No thread is left; nobody is told when that is so."""
    with trio.fail_after(PATIENCE_SECONDS):
        while run.alive:  # noqa: ASYNC110
            await trio.sleep(0.001)


@pytest.mark.parametrize("effect", ["read", "once"])
async def test_a_cooperative_thread_ends_where_it_looks(effect: str) -> None:
    reached = threading.Event()
    ended: list[BaseException] = []

    @tool(effect=effect, threads="cooperative")
    def count(ctx: ToolContext) -> str:
        reached.set()
        try:
            while True:
                ctx.check()
                time.sleep(0.01)  # noqa: TID251 - a thread may
        except BaseException as error:
            ended.append(error)
            raise

    began = trio.current_time()
    run = await stopped_in(agent(call("count"), tools=[count]), reached)
    assert trio.current_time() - began < 1, "it does not get the grace of a write"
    assert [type(error) for error in ended] == [trio.Cancelled]
    assert run.outcome.status is Status.CANCELLED
    expected = EffectStatus.NONE if effect == "read" else EffectStatus.UNCERTAIN
    assert [t.effect_status for t in run.outcome.tools] == [expected]
    assert run.alive == []


async def test_a_cooperative_thread_ends_at_its_own_limit() -> None:
    @tool(effect="read", threads="cooperative", seconds=0.05)
    def count() -> str:
        while True:
            trioagent.check()
            time.sleep(0.01)  # noqa: TID251 - a thread may

    outcome = await agent(call("count"), "done", tools=[count]).run("go")
    assert [t.ended for t in outcome.tools] == ["timeout"]
    assert outcome.status is Status.COMPLETED


async def test_a_thread_that_nobody_waits_for_is_named_while_it_lives() -> None:
    # B06, the abandoned half.
    reached, release, over = threading.Event(), threading.Event(), threading.Event()

    @tool(effect="read", threads="abandon")
    def look() -> str:
        reached.set()
        release.wait(PATIENCE_SECONDS)
        over.set()
        return "too late"

    run = await stopped_in(agent(call("look"), tools=[look]), reached)
    assert [t.effect_status for t in run.outcome.tools] == [EffectStatus.NONE]
    assert ("thread of look", "abandoned") in [
        (c.name, c.ended) for c in run.outcome.cleanup
    ]
    assert run.alive == ["thread of look"]
    release.set()
    await trio.to_thread.run_sync(over.wait, PATIENCE_SECONDS)
    await gone(run)


async def test_an_abandoned_thread_that_ended_before_the_run_is_not_named() -> None:
    over = threading.Event()

    @tool(effect="read", threads="abandon", seconds=0.05)
    def look() -> str:
        over.wait(PATIENCE_SECONDS)
        return "too late"

    @tool(effect="read")
    async def wait_for_it() -> str:
        over.set()
        await gone(run)
        return "it is over"

    a = agent(call("look"), call("wait_for_it"), "done", tools=[look, wait_for_it])
    async with a.open("go") as run:
        async for _ in run:
            pass
    assert [t.ended for t in run.outcome.tools] == ["timeout", "done"]
    assert run.outcome.cleanup == ()


async def test_abandoned_threads_do_not_starve_the_others() -> None:
    release = threading.Event()

    @tool(effect="read", threads="abandon", seconds=0.02)
    def hang() -> str:
        release.wait(PATIENCE_SECONDS)
        return ""

    @tool(effect="read")
    def look() -> str:
        return "seen"

    a = agent(
        [call("hang")] * 45,
        call("look"),
        "done",
        tools=[hang, look],
        limits=Limits(tool_seconds=2),
    )
    try:
        outcome = await a.run("go")
    finally:
        release.set()
    assert outcome.tools[-1].ended == "done"
    assert outcome.status is Status.COMPLETED


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"threads": "abandon"}, "a write cannot be abandoned"),
        ({"threads": "abandon", "effect": "keyed"}, "a write cannot be abandoned"),
        ({"threads": "kill"}, "threads is wait, cooperative or abandon, not 'kill'"),
        ({"most_calls": 0}, "most_calls takes a finite number of at least 1"),
    ],
)
def test_what_a_thread_cannot_do_is_refused(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):

        @tool(**options)
        def pay() -> str:
            return ""


def test_only_plain_functions_have_threads() -> None:
    with pytest.raises(ValueError, match="'cooperative' is for plain functions"):

        @tool(threads="cooperative")
        async def pay() -> str:
            return ""


async def test_check_says_where_it_belongs() -> None:
    with pytest.raises(RuntimeError, match="cancelled at its next await"):
        trioagent.check()


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_tool_shows_what_it_is_doing(in_thread: bool) -> None:
    @tool(effect="read", name="work")
    async def work(ctx: ToolContext) -> str:
        await ctx.show("half")
        await ctx.show("all")
        return "done"

    @tool(effect="read", name="work")
    def work_in_a_thread(ctx: ToolContext) -> str:
        ctx.show("half")
        ctx.show("all")
        return "done"

    a = agent(call("work"), "done", tools=[work_in_a_thread if in_thread else work])
    async with a.open("go") as run:
        shown = [e async for e in run if isinstance(e, ToolOutput)]
    assert [(e.call.name, e.text) for e in shown] == [("work", "half"), ("work", "all")]


# Batches


async def test_a_sequential_tool_is_a_barrier(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    def make(name: str, **options: Any) -> Any:
        @tool(name=name, effect="read", **options)
        async def step(seconds: float) -> str:
            seen.append(f"{name} begins")
            await trio.sleep(seconds)
            seen.append(f"{name} ends")
            return name

        return step

    steps = [make("a"), make("b", sequential=True), make("c"), make("d")]
    calls = [call(n, seconds=s) for n, s in zip("abcd", (3, 1, 1, 2), strict=True)]
    outcome = await agent(calls, "done", tools=steps).run("go")
    assert seen[:4] == ["a begins", "a ends", "b begins", "b ends"]
    assert sorted(seen[4:6]) == ["c begins", "d begins"]
    assert [t.name for t in outcome.tools] == ["a", "b", "c", "d"]
    assert trio.current_time() == pytest.approx(6)


async def test_which_calls_are_too_many_is_decided_in_their_order() -> None:
    ran: list[int] = []

    @tool(effect="read")
    async def look(n: int) -> str:
        ran.append(n)
        return "seen"

    calls = [call("look", n=n) for n in range(5)]
    a = agent(calls[:1], calls, tools=[look], limits=Limits(tool_calls=4))
    outcome = await a.run("go")
    assert sorted(ran) == [0, 0, 1, 2]
    assert [t.ended for t in outcome.tools[1:]] == ["done"] * 3 + ["not_run"] * 2
    assert outcome.stop_reason == "tool_calls"
    assert outcome.stop is not None
    assert outcome.stop.detail == "4 (Limits.tool_calls)"


async def test_a_tool_may_have_a_limit_of_its_own() -> None:
    @tool(effect="read", most_calls=2)
    async def look() -> str:
        return "seen"

    a = agent([call("look")] * 3, call("look"), "done", tools=[look])
    outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    assert [t.ended for t in outcome.tools] == ["done", "done", "not_run", "not_run"]
    store: Any = a.store
    refused = [e for e in store.events if isinstance(e, ToolNotRun)]
    assert {e.code for e in refused} == {"too_many"}
    assert "look may be called 2 times in a run" in refused[0].problem
    assert len([e for e in store.events if isinstance(e, ToolStarted)]) == 2
