"""How a run goes and how it ends. Numbers in brackets are rules of the contract."""

from __future__ import annotations

import random
import threading
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from trioagent import (
    Agent,
    AnyEvent,
    CleanupOverrun,
    EffectStatus,
    KeptEvent,
    Limits,
    ModelAsked,
    ModelCut,
    ModelRefused,
    ModelReplied,
    ModelRequest,
    ModelUnavailable,
    Reply,
    Run,
    RunEnded,
    RunNotCompleted,
    RunStarted,
    RunState,
    Status,
    Stop,
    StoreError,
    TextDelta,
    ToolCall,
    ToolContext,
    ToolEnded,
    ToolError,
    ToolLost,
    ToolNotRun,
    ToolStarted,
    Usage,
    UsageReported,
    max_tokens_used,
    retries,
    step_count_is,
    tool,
)
from trioagent.testing import (
    BlockingModel,
    Hang,
    MemoryStore,
    Pause,
    ScriptedModel,
    call,
)


@tool(effect="read")
async def look(seconds: float = 10) -> str:
    await trio.sleep(seconds)
    return "seen"


@tool(effect="once", grace_seconds=0)
async def pay(seconds: float = 10) -> str:
    await trio.sleep(seconds)
    return "paid"


def agent(*steps: Any, **options: Any) -> Agent:
    options.setdefault("tools", [look, pay])
    options.setdefault("store", MemoryStore())
    return Agent(ScriptedModel(steps), **options)


def journal(a: Agent) -> list[KeptEvent]:
    assert isinstance(a.store, MemoryStore)
    return a.store.events


def asked(a: Agent) -> int:
    assert isinstance(a.model, ScriptedModel)
    return len(a.model.requests)


async def watch_until(run: Run, kind: type[AnyEvent]) -> list[AnyEvent]:
    """Read events up to and with the first of a kind."""
    seen: list[AnyEvent] = []
    async for event in run:
        seen.append(event)
        if isinstance(event, kind):
            break
    return seen


# The plain course


async def test_tools_of_a_turn_run_side_by_side(autojump_clock: MockClock) -> None:
    a = agent([call("look"), call("look")], "all done")
    outcome = await a.run("go")
    assert (outcome.status, outcome.output) == (Status.COMPLETED, "all done")
    assert trio.current_time() == 10
    assert [type(e).__name__ for e in journal(a)] == [
        "RunStarted",
        "ModelAsked",
        "ModelReplied",
        "ToolStarted",
        "ToolStarted",
        "ToolEnded",
        "ToolEnded",
        "ModelAsked",
        "ModelReplied",
        "RunEnded",
    ]


async def test_results_go_back_in_the_order_of_the_calls(
    autojump_clock: MockClock,
) -> None:
    a = agent([call("look", seconds=9), call("nobody"), call("look", seconds=1)], "ok")
    await a.run("go")
    assert isinstance(a.model, ScriptedModel)
    told = [m.name for m in a.model.requests[1].messages[2:]]  # type: ignore[union-attr]
    assert told == ["look", "nobody", "look"]


async def test_no_more_tools_at_once_than_the_limit(autojump_clock: MockClock) -> None:
    a = agent([call("look")] * 5, "ok", limits=Limits(parallel_tools=2))
    await a.run("go")
    assert trio.current_time() == 30


def test_run_sync_is_run_for_programs_that_are_not_async() -> None:
    assert agent("hello").run_sync("hi").unwrap() == "hello"


async def test_an_error_that_the_caller_is_handling_is_none_of_the_runs(
    autojump_clock: MockClock,
) -> None:
    try:
        raise ValueError("the caller's")
    except ValueError:
        outcome = await agent([call("look")], "fine").run("go")
    assert (outcome.status, outcome.cleanup) == (Status.COMPLETED, ())


async def test_run_sync_inside_trio_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="await run"):
        agent("hello").run_sync("hi")


async def test_a_conversation_goes_on_where_it_was(autojump_clock: MockClock) -> None:
    first = await agent([call("look")], "Hello Ada").run("I am Ada")
    a = agent("You are Ada")
    outcome = await a.run("Who am I?", history=first.history)
    assert isinstance(a.model, ScriptedModel)
    sent = a.model.requests[0].messages
    assert [type(m).__name__ for m in sent] == [
        "UserMessage",
        "Reply",
        "ToolResult",
        "Reply",
        "UserMessage",
    ]
    assert outcome.history[:-1] == tuple(sent)


async def test_instructions_may_be_asked_for_each_run() -> None:
    count = iter("ab")
    a = agent("1", "2", instructions=lambda: next(count))
    await a.run("x", run_id="one")
    await a.run("x", run_id="two")
    assert isinstance(a.model, ScriptedModel)
    assert [r.instructions for r in a.model.requests] == ["a", "b"]


async def test_a_calls_limits_replace_field_by_field_and_its_conditions_add(
    autojump_clock: MockClock,
) -> None:
    a = agent(*[call("look")] * 9, limits=Limits(turns=3, seconds=1000))
    outcome = await a.run("go", limits=Limits(seconds=15), run_id="a")
    assert (outcome.status, outcome.turns) == (Status.TIMED_OUT, 2)
    a = agent(*[call("look")] * 9, limits=Limits(turns=3), stop_when=[step_count_is(2)])
    outcome = await a.run("go", stop_when=[step_count_is(1)])
    assert outcome.stop_reason == "step_count:1"
    outcome = await a.run("go", stop_when=[step_count_is(5)], run_id="b")
    assert outcome.stop_reason == "step_count:2"


async def test_one_agent_runs_many_times_at_once(autojump_clock: MockClock) -> None:
    def answer(request: Any) -> list[Any]:
        return [Pause(1), Reply(text=request.messages[-1].text)]

    a = agent(*[answer] * 20, store=None)
    outputs: list[str] = []

    async def one(n: int) -> None:
        outputs.append((await a.run(str(n))).unwrap())

    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(one, n)
    assert sorted(outputs, key=int) == [str(n) for n in range(20)]
    assert trio.current_time() == 1


# A stop by a user


async def test_a_stop_in_the_middle_of_a_write_leaves_it_uncertain(
    autojump_clock: MockClock,
) -> None:
    a = agent([call("pay"), call("look")])
    async with a.open("go") as run:
        with trio.move_on_after(3):
            await watch_until(run, RunEnded)
        assert run.cancel("user_clicked_stop")
        rest = [event async for event in run]
    outcome = run.outcome
    assert (outcome.status, outcome.stop_reason) == (Status.CANCELLED, "user")  # [49]
    assert outcome.stop == Stop("user", "user_clicked_stop", "run", "user")
    assert [(t.name, t.effect_status, t.ended) for t in outcome.tools] == [
        ("pay", EffectStatus.UNCERTAIN, "interrupted"),
        ("look", EffectStatus.NONE, "interrupted"),
    ]
    assert [t.name for t in outcome.uncertain] == ["pay"]
    assert trio.current_time() == 3
    assert [type(e) for e in rest].count(RunEnded) == 1
    assert asked(a) == 1  # [51]


async def test_the_tool_sees_the_runs_own_reason(autojump_clock: MockClock) -> None:
    # Rule 47: the adapter receives the same signal.
    seen: list[str | None] = []

    @tool(effect="read")
    async def block() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            seen.append(cancelled.reason)
            raise

    async with agent(call("block"), tools=[block]).open("go") as run:
        await watch_until(run, ToolStarted)
        await trio.testing.wait_all_tasks_blocked()
        run.cancel("user_clicked_stop")
    assert seen == ["user_clicked_stop"]


async def test_a_stop_before_the_start_starts_nothing() -> None:
    ran = []

    @tool
    async def mark() -> None:
        ran.append(1)

    a = agent([call("mark")], tools=[mark])
    async with a.open("go") as run:
        assert run.cancel("too late")
    assert run.outcome.status is Status.CANCELLED
    assert (asked(a), ran) == (0, [])
    assert [type(e) for e in journal(a)] == [RunStarted, RunEnded]


async def test_a_tool_that_stops_the_run_starts_no_other(
    autojump_clock: MockClock,
) -> None:
    # B04: the next calls of the batch write their marker before any await.
    marks: list[int] = []

    @tool(effect="read")
    async def stop(ctx: ToolContext) -> str:
        assert ctx.cancel("enough")
        return "asked"

    @tool(effect="once")
    async def mark(n: int) -> None:
        marks.append(n)

    a = agent(
        [call("stop"), call("mark", n=2), call("mark", n=3)],
        tools=[stop, mark],
        limits=Limits(parallel_tools=1),
    )
    outcome = await a.run("go")
    assert outcome.status is Status.CANCELLED
    assert marks == []
    assert [t.ended for t in outcome.tools] == ["done", "not_run", "not_run"]
    assert outcome.uncertain == ()


async def test_calls_that_began_together_see_a_stop_before_their_first_line() -> None:
    # B04 with all three started: the stop comes while their starts are being kept.
    marks: list[int] = []

    class StoppingStore(MemoryStore):
        run: Run

        async def append(self, run_id: str, event: KeptEvent, **how: Any) -> None:
            await super().append(run_id, event, **how)
            if isinstance(event, ToolStarted):
                self.run.cancel("now")

    @tool(effect="once")
    async def mark() -> None:
        marks.append(1)

    store = StoppingStore()
    a = agent([call("mark")] * 3, tools=[mark], store=store)
    async with a.open("go") as run:
        store.run = run
        async for _ in run:
            pass
    assert marks == []
    assert {t.effect_status for t in run.outcome.tools} == {EffectStatus.NOT_STARTED}


async def test_a_tool_that_eats_the_cancel_does_not_make_the_run_go_on(
    autojump_clock: MockClock,
) -> None:
    # B03 (b), B60.
    @tool(effect="read")
    async def greedy() -> str:
        try:
            await trio.sleep_forever()
        except BaseException:
            return "ok"

    a = agent(call("greedy"), "never", tools=[greedy])
    async with a.open("go") as run:
        await watch_until(run, ToolStarted)
        await trio.sleep(1)
        run.cancel()
    assert run.outcome.status is Status.CANCELLED
    assert run.outcome.tools[0].late
    assert asked(a) == 1


async def test_a_tool_that_eats_its_own_limit_is_still_out_of_time(
    autojump_clock: MockClock,
) -> None:
    # B03 (a)
    @tool(effect="read", seconds=0.05)
    async def greedy() -> str:
        try:
            await trio.sleep_forever()
        except BaseException:
            return "ok"

    outcome = await agent(call("greedy"), "done", tools=[greedy]).run("go")
    assert outcome.tools[0].ended == "timeout"
    assert "ok" not in outcome.tools[0].problem


async def test_twice_stopped_the_first_reason_stays(autojump_clock: MockClock) -> None:
    async with agent(call("look")).open("go") as run:
        await watch_until(run, ToolStarted)
        assert run.cancel("first")
        assert not run.cancel("second")
        assert not run.finish_turn("third")
    assert run.outcome.stop and run.outcome.stop.detail == "first"


async def test_stopped_from_a_thread() -> None:
    async with Agent(BlockingModel()).open("go") as run:
        handle = run.handle
        thread = threading.Thread(target=handle.cancel, args=["from a thread"])
        await watch_until(run, ModelAsked)
        thread.start()
        async for _ in run:
            pass
    await trio.to_thread.run_sync(thread.join)
    assert run.outcome.stop == Stop("user", "from a thread", "run", "user")


def test_a_handle_outlives_its_trio_run() -> None:
    async def main() -> Any:
        async with agent("hello").open("go") as run:
            return run.handle

    handle = trio.run(main)
    handle.cancel("nobody is there")
    handle.finish_turn()


async def test_after_the_end_a_stop_does_nothing() -> None:
    async with agent("hello").open("go") as run:
        await watch_until(run, RunEnded)
        assert not run.cancel("late")
        assert not run.finish_turn("late")
    assert run.outcome.status is Status.COMPLETED


async def test_finish_turn_lets_the_reply_and_its_tools_end(
    autojump_clock: MockClock,
) -> None:
    a = agent(call("look"), "never")
    async with a.open("go") as run:
        await watch_until(run, ToolStarted)
        assert run.finish_turn("after this one")
        assert not run.finish_turn("again")
        async for _ in run:
            pass
    assert run.outcome.status is Status.CANCELLED
    assert run.outcome.stop == Stop("user", "after this one", "turn", "user")
    assert run.outcome.tools[0].ended == "done"
    assert (asked(a), trio.current_time()) == (1, 10)


async def test_finish_turn_then_cancel_keeps_the_first_reason(
    autojump_clock: MockClock,
) -> None:
    async with agent(call("look")).open("go") as run:
        await watch_until(run, ToolStarted)
        await trio.sleep(1)
        run.finish_turn("politely")
        run.cancel("now")
    assert run.outcome.stop == Stop("user", "politely", "run", "user")
    assert trio.current_time() == 1


async def test_finish_turn_on_the_last_turn_is_completed() -> None:
    async with agent(["a ", "b", Reply(text="a b")]).open("go") as run:
        await watch_until(run, TextDelta)
        run.finish_turn()
        await watch_until(run, RunEnded)
    assert run.outcome.output == "a b"


# Grace and cleanup


async def test_grace_lets_a_write_be_confirmed(autojump_clock: MockClock) -> None:
    @tool(effect="once", grace_seconds=8)
    async def slow() -> str:
        await trio.sleep(10)
        return "done"

    async with agent(call("slow"), tools=[slow]).open("go") as run:
        await trio.sleep(3)
        run.cancel("stop")
    assert run.outcome.status is Status.CANCELLED
    assert run.outcome.uncertain == ()
    report = run.outcome.tools[0]
    assert (report.effect_status, report.late) == (EffectStatus.CONFIRMED, True)
    assert trio.current_time() == 10
    assert [(c.name, c.ended, c.seconds) for c in run.outcome.cleanup] == [
        ("tool slow", "finished", 7)
    ]


async def test_grace_has_an_end(autojump_clock: MockClock) -> None:
    @tool(effect="once", grace_seconds=2)
    async def slow() -> str:
        await trio.sleep(10)
        return "done"

    a = agent(call("slow"), tools=[slow])
    async with a.open("go") as run:
        await trio.sleep(3)
        run.cancel("stop")
    assert [t.name for t in run.outcome.uncertain] == ["slow"]
    assert trio.current_time() == 5
    assert any(isinstance(e, ToolLost) and e.code == "stopped" for e in journal(a))


async def test_the_outcome_comes_after_the_cleanup(autojump_clock: MockClock) -> None:
    # Promise 3, rules 54 and 55, B27: an await in a tool's cleanup is not cancelled.
    cleaned: list[float] = []

    @tool(effect="read")
    async def careful(ctx: ToolContext) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with ctx.cleanup(3):
                await trio.sleep(2)
                cleaned.append(trio.current_time())

    async with agent(call("careful"), tools=[careful]).open("go") as run:
        await trio.sleep(1)
        run.cancel()
        run.cancel("again, during the cleanup")
        async for event in run:
            if isinstance(event, RunEnded):
                assert cleaned == [3]
    assert run.outcome.cleanup[0].seconds == 2


async def test_a_cleanup_that_hangs_is_cut_at_its_bound(
    autojump_clock: MockClock,
) -> None:
    @tool(effect="read")
    async def hang(ctx: ToolContext) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with ctx.cleanup(600):
                await trio.sleep_forever()

    async with agent(call("hang"), tools=[hang]).open("go") as run:
        await trio.sleep(1)
        run.cancel()
    assert trio.current_time() == 6  # Limits.grace_seconds bounds it


async def test_a_task_that_shields_itself_is_waited_for_and_named(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    # The contract wins over B28: trio cannot cut it, so it is said.
    @tool(effect="read")
    async def stubborn() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(13)

    async with agent(call("stubborn"), tools=[stubborn]).open("go") as run:
        await trio.sleep(1)
        run.cancel()
        said = [e async for e in run if isinstance(e, CleanupOverrun)]
    assert [e.seconds for e in said] == [5, 10]
    assert said[0].name == "tool stubborn"
    assert "test_run.py" in said[0].where
    assert "stubborn" in said[0].where
    assert "holds its run open" in caplog.text
    assert trio.current_time() == 13


# Deadlines


async def test_nothing_starts_after_the_deadline(autojump_clock: MockClock) -> None:
    a = agent(call("look"), call("look"), "never", limits=Limits(seconds=15))
    outcome = await a.run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.TIMED_OUT, "deadline")
    assert outcome.stop and outcome.stop.scope == "run"
    assert "Limits.seconds" in outcome.stop.detail
    assert trio.current_time() == 15
    assert [type(e) for e in journal(a)][-2:] == [ToolStarted, RunEnded]


async def test_a_slow_read_is_told_to_the_model(autojump_clock: MockClock) -> None:
    @tool(effect="read", seconds=2)
    async def slow() -> None:
        await trio.sleep(10)

    a = agent(call("slow"), "done", tools=[slow])
    outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    (ended,) = (e for e in journal(a) if isinstance(e, ToolEnded))
    assert (ended.code, ended.failed) == ("timeout", True)
    assert "2 s" in ended.content


async def test_a_slow_write_stops_the_run(autojump_clock: MockClock) -> None:
    # Rule 50: a write that becomes effect_uncertain.
    @tool(effect="once", seconds=2)
    async def slow() -> None:
        await trio.sleep(10)

    a = agent(call("slow"), "never", tools=[slow])
    outcome = await a.run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.STOPPED, "effect_uncertain")
    assert outcome.stop and outcome.stop.detail == "slow"
    assert outcome.tools[0].problem == "slow: no result within 2 s"
    assert asked(a) == 1


async def test_a_tool_has_thirty_seconds_by_default(autojump_clock: MockClock) -> None:
    # B72: seven seconds of work are no reason to be cut.
    a = agent(call("look", seconds=7), call("look", seconds=31), "done")
    outcome = await a.run("go")
    assert [t.ended for t in outcome.tools] == ["done", "timeout"]


async def test_user_and_tool_limit_are_not_mixed_up(autojump_clock: MockClock) -> None:
    # B26 (a): the tool's own limit passes while it cleans up after the user's stop.
    @tool(effect="read", seconds=5)
    async def slow(ctx: ToolContext) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with ctx.cleanup():
                await trio.sleep(4)

    a = agent(call("slow"), tools=[slow])
    async with a.open("go") as run:
        await trio.sleep(3)
        run.cancel()
    assert run.outcome.status is Status.CANCELLED
    assert run.outcome.tools[0].ended == "interrupted"


async def test_of_two_equal_deadlines_the_outer_one_wins(
    autojump_clock: MockClock,
) -> None:
    # B26 (b): run and tool; then host and run.
    @tool(effect="read", seconds=5)
    async def slow() -> None:
        await trio.sleep_forever()

    a = agent(call("slow"), tools=[slow], limits=Limits(seconds=5))
    outcome = await a.run("go")
    assert (outcome.status, outcome.tools[0].ended) == (Status.TIMED_OUT, "interrupted")
    a = agent(call("slow"), tools=[slow], limits=Limits(seconds=5))
    with trio.move_on_after(5) as host:
        await a.run("go")
    assert host.cancelled_caught
    assert journal(a)[-1].status is Status.INTERRUPTED  # type: ignore[union-attr]


async def test_a_stop_while_a_tool_fails_keeps_both(autojump_clock: MockClock) -> None:
    # B26 (c)
    @tool(effect="read")
    async def sour() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while leaving")

    async with agent(call("sour"), tools=[sour]).open("go") as run:
        await trio.sleep(1)
        run.cancel("stop")
    assert run.outcome.status is Status.CANCELLED
    assert "while leaving" in run.outcome.tools[0].problem


@pytest.mark.parametrize("seed", range(8))
async def test_when_both_come_at_once_the_user_is_believed(
    autojump_clock: MockClock, seed: int
) -> None:
    async with trio.open_nursery() as nursery:
        async with agent(call("look"), limits=Limits(seconds=3)).open("go") as run:

            async def stop() -> None:
                await trio.sleep_until(3)
                run.cancel("me too")

            nursery.start_soon(stop)
            async for _ in run:
                pass
    assert run.outcome.status is Status.CANCELLED


async def test_the_first_cause_wins_though_a_later_one_reaches_further(
    autojump_clock: MockClock,
) -> None:
    @tool(effect="read")
    async def slow(ctx: ToolContext) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with ctx.cleanup():
                await trio.sleep(4)

    # deadline first, then the user
    a = agent(call("slow"), tools=[slow], limits=Limits(seconds=3))
    async with a.open("go") as run:
        await trio.sleep(4)
        assert not run.cancel("too late")
    assert run.outcome.status is Status.TIMED_OUT
    # the user first, then the scope around it all
    a = agent(call("slow"), tools=[slow])
    with trio.CancelScope() as host:
        async with a.open("go") as run:
            await trio.sleep(1)
            run.cancel("me")
            await trio.sleep(1)
            host.cancel()
            await trio.sleep_forever()
    assert run.outcome.stop == Stop("user", "me", "run", "user")


@pytest.mark.parametrize("seed", range(8))
async def test_each_child_that_is_stopped_is_reported(
    autojump_clock: MockClock, seed: int
) -> None:
    # Whoever wakes first: trio takes the tasks of one tick in any order.
    async with agent([call("look"), call("pay")]).open("go") as run:
        await trio.sleep(1)
        run.cancel()
    reported = sorted((c.name, c.ended, c.seconds) for c in run.outcome.cleanup)
    assert reported == [("tool look", "cancelled", 0), ("tool pay", "cancelled", 0)]


class ModelWithConnections(ScriptedModel):
    """Closes for a second, and can be cancelled while it does."""

    async def __aenter__(self) -> ModelWithConnections:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(self, *error: object) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        await trio.lowlevel.checkpoint()


async def test_a_models_connections_close_before_the_end(
    autojump_clock: MockClock,
) -> None:
    a = Agent(ModelWithConnections([["a", Hang()]]))
    async with a.open("go") as run:
        await trio.sleep(1)
        run.cancel()
    names = [(c.name, c.seconds) for c in run.outcome.cleanup]
    assert names == [("reply", 0), ("model scripted:model", 1)]
    assert trio.current_time() == 2


@pytest.mark.parametrize("who", ["deadline", "host", "user"])
async def test_an_answer_that_is_there_is_not_lost_to_a_later_deadline(
    autojump_clock: MockClock, who: str
) -> None:
    # B30: the answer came at 1 s; the stop hits while the connections close.
    a = Agent(
        ModelWithConnections([[Pause(1), Reply(text="done")]]),
        limits=Limits(seconds=1.5) if who == "deadline" else Limits(),
    )
    with trio.CancelScope() as host:
        async with a.open("go") as run:
            await trio.sleep(1.5)
            accepted = run.cancel("me") if who == "user" else None
            if who == "host":
                host.cancel()
            async for _ in run:
                pass
    if who == "user":
        assert accepted
        assert run.outcome.status is Status.CANCELLED
        assert run.outcome.text == "done"
    else:
        assert run.outcome.unwrap() == "done"


async def test_two_thousand_races_have_one_end_each(autojump_clock: MockClock) -> None:
    # B30: user stop, deadline, last result and answer meet at whole seconds.
    races = random.Random(30)
    store = MemoryStore()
    a = agent(*[_race_step] * 4_000, store=store)

    async def race(limit: float, stop_at: float) -> None:
        accepted = False
        with trio.CancelScope() as reader:
            async with a.open("go", limits=Limits(seconds=limit)) as run:
                await trio.sleep(stop_at)
                accepted = run.cancel("me")
                async for _ in run:
                    pass
        assert not reader.cancelled_caught
        events, outcome = await store.load(run.id), run.outcome
        ends = [e for e in events if isinstance(e, RunEnded)]
        assert ends == events[-1:]
        assert outcome.status == ends[0].status
        assert (outcome.status is Status.CANCELLED) == accepted
        statuses.add(outcome.status)

    statuses: set[Status] = set()
    for _ in range(4):
        async with trio.open_nursery() as nursery:
            for _ in range(500):
                limit, stop_at = races.choice([1, 2, 3, 9]), races.choice([0, 1, 2, 3])
                nursery.start_soon(race, limit, stop_at)
    assert statuses == {Status.CANCELLED, Status.TIMED_OUT, Status.COMPLETED}


def _race_step(request: ModelRequest) -> Any:
    if request.turn == 1:
        return call("look", seconds=1)
    return [Pause(1), Reply(text="done")]


# From outside


async def test_an_enclosing_cancel_flies_through(autojump_clock: MockClock) -> None:
    a = agent(call("look"))
    with trio.move_on_after(4) as around:
        await a.run("go")
        pytest.fail("Cancelled was swallowed")
    assert around.cancelled_caught
    end = journal(a)[-1]
    assert isinstance(end, RunEnded)
    assert (end.status, str(end.stop)) == (Status.INTERRUPTED, "host")


async def test_an_enclosing_cancel_flies_through_an_open_run(
    autojump_clock: MockClock,
) -> None:
    a = agent(call("pay"))
    with trio.CancelScope() as around:
        async with a.open("go") as run:
            await watch_until(run, ToolStarted)
            around.cancel(reason="shutdown")
            async for _ in run:
                pass
        pytest.fail("Cancelled was swallowed")
    assert around.cancelled_caught
    assert run.outcome.status is Status.INTERRUPTED
    assert [t.name for t in run.outcome.uncertain] == ["pay"]


async def test_leaving_the_block_ends_the_run(autojump_clock: MockClock) -> None:
    # B35
    a = agent([call("look")])
    async with a.open("go") as run:
        async for _ in run:
            break
    assert run.outcome.status is Status.CANCELLED
    assert run.outcome.stop and "left" in run.outcome.stop.detail
    assert trio.current_time() == 0
    assert [type(e) async for e in run] == [RunEnded], "the end can be read afterwards"
    assert [type(e) async for e in run] == []


async def test_a_run_that_waits_for_its_reader_ends_when_he_leaves() -> None:
    async with agent("word " * 100).open("go") as run:
        await trio.testing.wait_all_tasks_blocked()  # its buffer is full
    assert run.outcome.status is Status.CANCELLED


async def test_an_agents_block_may_hold_a_model_without_connections() -> None:
    async with agent("hello") as a:
        assert (await a.run("go")).unwrap() == "hello"


def test_a_model_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    model = Agent("openai:gpt-5.5").model
    assert not isinstance(model, str)
    assert model.name == "openai:gpt-5.5"


async def test_an_error_in_the_block_leaves_as_itself(
    autojump_clock: MockClock,
) -> None:
    # B40
    with pytest.raises(ValueError, match="mine"):
        async with agent(call("look")).open("go") as run:
            await trio.sleep(1)
            raise ValueError("mine")
    assert run.outcome.status is Status.INTERRUPTED


@pytest.mark.parametrize("watched", [False, True])
def test_ctrl_c_leaves_as_itself_and_the_run_has_its_end(watched: bool) -> None:
    import signal

    @tool(effect="once", grace_seconds=0)
    async def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()

    a = agent([call("interrupt"), call("look")], tools=[interrupt, look])

    async def main() -> None:
        async with a.open("go") as run:
            async for _ in run:
                pass

    with pytest.raises(KeyboardInterrupt):
        if watched:
            trio.run(main)
        else:
            a.run_sync("go")
    end = journal(a)[-1]
    assert isinstance(end, RunEnded)
    assert end.status is Status.INTERRUPTED


async def test_a_reader_who_never_reads_cannot_outlast_the_deadline(
    autojump_clock: MockClock,
) -> None:
    async with agent("word " * 100, limits=Limits(seconds=5)).open("go") as run:
        await trio.sleep(20)
    assert run.outcome.status is Status.TIMED_OUT


async def test_a_slow_reader_slows_the_run_and_gets_it_all(
    autojump_clock: MockClock,
) -> None:
    # B12 (b): and the clocks of the model stand still meanwhile.
    a = agent("word " * 100, limits=Limits(silence_seconds=1, reply_seconds=5))
    words = 0
    async with a.open("go") as run:
        async for event in run:
            await trio.sleep(2)
            words += isinstance(event, TextDelta)
    assert run.outcome.status is Status.COMPLETED
    assert words == 100


async def test_after_a_stop_come_the_buffered_events_then_one_end() -> None:
    async with agent("word " * 100).open("go") as run:
        await watch_until(run, TextDelta)
        await trio.testing.wait_all_tasks_blocked()
        run.cancel()
        rest = [type(e) async for e in run]
    assert len(rest) <= 16 + 2
    assert rest[-1] is RunEnded
    assert rest.count(RunEnded) == 1


# The model's clocks


@pytest.mark.parametrize(
    ("steps", "scope", "at"),
    [
        (
            [
                Pause(2),
                UsageReported(Usage()),
                Pause(2),
                UsageReported(Usage()),
                Pause(2),
                UsageReported(Usage()),
                Hang(),
            ],
            "first_token",
            7,
        ),
        (["a", Pause(2), "b", Hang()], "silence", 2 + 3),
        (["a", *[Pause(2), "b"] * 50], "reply", 20),
        ([*[Pause(1), UsageReported(Usage())] * 50], "first_token", 7),
    ],
)
async def test_each_clock_has_its_own_name(
    autojump_clock: MockClock, steps: list[Any], scope: str, at: float
) -> None:
    limits = Limits(reply_seconds=20, first_token_seconds=7, silence_seconds=3)
    a = agent(steps, limits=limits, retry=retries(0))
    outcome = await a.run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "llm_timeout")
    assert outcome.stop and outcome.stop.scope == scope
    assert f"Limits.{scope}_seconds" in outcome.stop.detail
    assert trio.current_time() == at
    assert isinstance(a.model, ScriptedModel) and a.model.closed == 1
    assert outcome.billed == "unknown"  # [79, 105]


async def test_a_model_that_never_answers_gives_no_first_token(
    autojump_clock: MockClock,
) -> None:
    outcome = await Agent(BlockingModel(), retry=retries(0)).run("go")
    assert outcome.stop and outcome.stop.scope == "first_token"
    assert trio.current_time() == 60


async def test_a_tool_is_no_silence(autojump_clock: MockClock) -> None:
    # B12 (a)
    a = agent(call("look"), "done", limits=Limits(silence_seconds=1))
    assert (await a.run("go")).status is Status.COMPLETED


async def test_seven_silent_seconds_are_fine_by_default(
    autojump_clock: MockClock,
) -> None:
    # B72
    assert (await agent([Pause(7), Reply(text="ok")]).run("go")).output == "ok"


# What is kept of a cut


async def test_a_cut_reply_keeps_its_text_its_usage_and_its_ids(
    autojump_clock: MockClock,
) -> None:
    # B55 (a), promise 7
    usage = Usage(input_tokens=5)
    a = agent(call("look"), ["Once upon", UsageReported(usage), Hang()])
    async with a.open("go") as run:
        await trio.sleep(11)
        run.cancel()
    outcome = run.outcome
    assert outcome.text == "Once upon"
    assert outcome.usage.input_tokens == 1 + 5
    assert outcome.billed == "unknown"
    assert outcome.history[-1] == Reply(text="Once upon", finish_reason="error")
    cut = next(e for e in journal(a) if isinstance(e, ModelCut))
    assert (cut.code, cut.request_id) == ("llm_aborted", "req_2")


async def test_a_stopped_batch_gives_each_call_one_outcome(
    autojump_clock: MockClock,
) -> None:
    # B05: A done, B interrupted, C not started; the history is fit for any provider.
    a = agent(
        [call("look", seconds=1), call("pay"), call("look")],
        limits=Limits(parallel_tools=2),
    )
    async with a.open("go") as run:
        await trio.sleep(0.5)
        run.cancel()
    # Which two of the three had begun is up to trio.
    begun = {e.call.position for e in journal(a) if isinstance(e, ToolStarted)}
    assert len(begun) == 2
    told = [m.content for m in run.outcome.history[2:]]  # type: ignore[union-attr]
    for position, text in enumerate(told):
        if position not in begun:
            assert text.startswith("Not started")
        elif position == 1:
            assert text.startswith("Outcome unknown")
        else:
            assert text.startswith("Stopped before any effect")
    after = agent("fine")
    await after.run("go on", history=run.outcome.history)


async def test_a_history_with_a_call_and_no_result_is_refused() -> None:
    dangling = [Reply(tool_calls=(ToolCall("pay", id="1"),))]
    a = agent("never")
    with pytest.raises(ValueError, match="'pay' has no result"):
        await a.run("go", history=dangling)
    assert asked(a) == 0


async def test_an_error_of_the_model_is_a_failure_with_its_name() -> None:
    error = ModelRefused("bad key", request_id="req_x", billed="known")
    outcome = await agent(call("look", seconds=0.001), error).run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "llm_refused")
    assert outcome.billed == "known"
    assert len(outcome.history) == 3
    with pytest.raises(RunNotCompleted, match="llm_refused") as info:
        outcome.unwrap()
    assert info.value.outcome is outcome


async def test_a_stream_that_merely_ends_is_no_answer() -> None:
    outcome = await agent(["Hel", "lo"]).run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "llm_unavailable")
    assert outcome.text == "Hello"


async def test_an_error_in_mid_stream_keeps_what_came() -> None:
    broken = ModelUnavailable("broke off", usage=Usage(input_tokens=3))
    outcome = await agent(["Hello", broken]).run("go")
    assert (outcome.text, outcome.usage.input_tokens) == ("Hello", 3)
    assert outcome.stop == Stop("llm_unavailable", "broke off", "reply", "model")


# Endings that are not stops


@pytest.mark.parametrize(
    ("reason", "raw", "printed"),
    [
        ("length", "length", "finish_reason:length"),
        ("content_filter", "", "finish_reason:content_filter"),
        ("refusal", "", "finish_reason:refusal"),
        ("other", "brand_new", "finish_reason:brand_new"),
    ],
)
async def test_only_a_clean_stop_is_an_answer(
    reason: Any, raw: str, printed: str
) -> None:
    # B11
    reply = Reply(text="half", finish_reason=reason, raw_finish_reason=raw)
    outcome = await agent(reply).run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.STOPPED, printed)
    assert (outcome.output, outcome.text) == (None, "half")


async def test_an_empty_answer_is_an_answer() -> None:
    assert (await agent("").run("go")).unwrap() == ""


async def test_a_pause_is_sent_on_a_bounded_number_of_times() -> None:
    pause = Reply(text="…", finish_reason="pause")
    assert (await agent(pause, pause, "done").run("go")).unwrap() == "done"
    a = agent(*[pause] * 9, limits=Limits(pauses=2))
    outcome = await a.run("go")
    assert (outcome.stop_reason, asked(a)) == ("pauses", 3)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_calls_of_a_cut_reply_never_run(reason: Any) -> None:
    # B07: what looks whole may have lost its tail.
    cut = Reply(tool_calls=(ToolCall("pay", '{"seconds": 0}'),), finish_reason=reason)
    a = agent(cut, "sorry")
    outcome = await a.run("go")
    assert not any(isinstance(e, ToolStarted) for e in journal(a))
    assert outcome.tools[0].effect_status is EffectStatus.NOT_STARTED
    assert outcome.status is (
        Status.COMPLETED if reason == "length" else Status.STOPPED
    )


async def test_a_reply_that_used_up_its_limit_is_cut_whatever_it_says() -> None:
    # B07: some routers say tool_calls for length.
    usage = Usage(input_tokens=1, output_tokens=99)
    lying = Reply(
        tool_calls=(ToolCall("pay", '{"seconds": 0}'),),
        finish_reason="tool_calls",
        usage=usage,
    )
    a = agent(lying, "sorry", stop_when=[max_tokens_used(99)])
    outcome = await a.run("go")
    assert isinstance(a.model, ScriptedModel)
    assert a.model.requests[0].max_output_tokens == 99
    assert outcome.tools[0].effect_status is EffectStatus.NOT_STARTED


async def test_calls_with_the_reason_stop_still_run(autojump_clock: MockClock) -> None:
    reply = Reply(tool_calls=(ToolCall("look"),), finish_reason="stop")
    assert (await agent(reply, "done").run("go")).tools[0].ended == "done"


async def test_a_stream_over_its_token_limit_is_cut(autojump_clock: MockClock) -> None:
    steps = ["a", UsageReported(Usage(input_tokens=60, output_tokens=50)), Hang()]
    outcome = await agent(steps, stop_when=[max_tokens_used(100)]).run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.STOPPED, "max_tokens:100")
    assert outcome.text == "a"


# Structured output


class City(msgspec.Struct):
    name: str
    people: int


async def test_the_answer_is_read_as_what_was_asked_for() -> None:
    a = agent('{"name": "Porto", "people": 231800}', output=City)
    outcome = await a.run("go")
    assert outcome.unwrap() == City("Porto", 231800)
    assert isinstance(a.model, ScriptedModel)
    spec = a.model.requests[0].output
    assert spec and spec.schema["properties"]["people"] == {"type": "integer"}
    assert isinstance(journal(a)[-1], RunEnded)


async def test_an_answer_that_does_not_fit_goes_back_to_the_model() -> None:
    a = agent("Porto", '{"name": "Porto"}', '{"name":"Porto","people":1}', output=City)
    assert (await a.run("go")).unwrap() == City("Porto", 1)
    assert isinstance(a.model, ScriptedModel)
    told = a.model.requests[2].messages[-1]
    assert "missing required field `people`" in told.text  # type: ignore[union-attr]


async def test_answers_that_never_fit_fail_after_a_bound() -> None:
    a = agent(*["Porto"] * 9, output=City)
    outcome = await a.run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "bad_answers")
    assert (outcome.text, asked(a)) == ("Porto", 3)


async def test_an_answer_that_is_no_object_is_wrapped() -> None:
    a = agent('{"answer": [1, 2]}', output=list[int])
    assert (await a.run("go")).unwrap() == [1, 2]


# The store


class BrokenStore(MemoryStore):
    async def append(self, run_id: str, event: KeptEvent, **how: Any) -> None:
        if isinstance(event, ToolStarted):
            raise StoreError("disk full")
        await super().append(run_id, event, **how)


async def test_a_broken_store_raises_as_itself_and_runs_nothing() -> None:
    ran: list[int] = []

    @tool
    async def mark() -> None:
        ran.append(1)

    a = agent([call("mark"), call("mark")], tools=[mark], store=BrokenStore())
    with pytest.raises(StoreError, match="disk full"):
        await a.run("go")
    assert ran == []


class HangingStore(MemoryStore):
    hangs_at: type[KeptEvent] = RunEnded

    async def append(self, run_id: str, event: KeptEvent, **how: Any) -> None:
        if isinstance(event, self.hangs_at):
            await trio.sleep_forever()
        await super().append(run_id, event, **how)


async def test_a_store_that_hangs_at_the_end_is_an_error_in_time(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(StoreError, match="did not keep RunEnded within 5 s"):
        await agent("hello", store=HangingStore()).run("go")
    assert trio.current_time() == 5


async def test_a_store_that_hangs_during_a_stop_is_bounded_and_named(
    autojump_clock: MockClock,
) -> None:
    # B28
    store = HangingStore()
    store.hangs_at = ModelAsked
    async with agent("hello", store=store).open("go") as run:
        await trio.sleep(1)
        run.cancel()
    assert trio.current_time() == 6
    assert ("store", "hung") in [(c.name, c.ended) for c in run.outcome.cleanup]
    assert run.outcome.status is Status.CANCELLED


async def test_a_crash_tells_the_same_truth_as_a_cancel(
    autojump_clock: MockClock,
) -> None:
    a = agent([call("pay")])
    async with a.open("go") as run:
        await trio.sleep(1)
        on_disk = msgspec.json.encode(journal(a))  # kill -9 here
    read = msgspec.json.decode(on_disk, type=list[KeptEvent])
    from trioagent import Outcome

    after_crash = Outcome.of(RunState.replay(read))
    assert [t.name for t in after_crash.uncertain] == ["pay"]
    assert after_crash.status is Status.INTERRUPTED
    assert run.outcome.uncertain[0].effect_status is EffectStatus.UNCERTAIN


# Fatal errors


async def test_a_failing_tool_does_not_touch_its_siblings(
    autojump_clock: MockClock,
) -> None:
    # B38, isolate
    @tool(effect="read")
    async def fail() -> None:
        await trio.sleep(0.01)
        raise ValueError("broken")

    a = agent([call("fail"), call("look")], "done", tools=[fail, look])
    outcome = await a.run("go")
    assert [t.ended for t in outcome.tools] == ["failed", "done"]
    assert outcome.status is Status.COMPLETED


async def test_a_fatal_tool_ends_the_run_and_keeps_what_is_done(
    autojump_clock: MockClock,
) -> None:
    # B38, fatal
    @tool(effect="once")
    async def fatal() -> None:
        await trio.sleep(2)
        raise ToolError("no license", fatal=True)

    calls = [call("fatal"), call("look", seconds=1), call("look", seconds=10)]
    a = agent(calls, "never", tools=[fatal, look])
    outcome = await a.run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "tool_failed")
    assert outcome.stop and outcome.stop.detail == "fatal: no license"
    assert [t.ended for t in outcome.tools] == ["failed", "done", "interrupted"]
    assert (trio.current_time(), asked(a)) == (2, 1)


# Misuse


async def _soon(*args: object) -> str:
    return "soon"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "nobody:x"}, "no provider 'nobody'"),
        ({"model": "openai:"}, "names no model"),
        ({"model": 7}, "takes 'provider:model' or a model"),
        ({"limits": {"seconds": 3}}, r"Agent\(limits=…\)"),
        ({"tools": [look, look]}, "look is there twice"),
        ({"stop_when": ["soon"]}, "takes plain functions"),
        ({"retry": 3}, r"Agent\(retry=…\) cannot be 3"),
        ({"store": "file.db"}, r"Agent\(store=…\)"),
        ({"model": ScriptedModel}, "or a model, not"),
        ({"instructions": _soon}, r"Agent\(instructions=…\)"),
        ({"stop_when": [_soon]}, "takes plain functions"),
        ({"output": object()}, "output="),
    ],
)
def test_misuse_is_told_at_once_and_by_name(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Agent(**{"model": ScriptedModel([]), **options})


async def test_a_prompt_is_text() -> None:
    with pytest.raises(TypeError, match="a prompt is text"):
        await agent("x").run(7)  # type: ignore[arg-type]


async def test_there_is_no_outcome_before_the_end() -> None:
    async with agent("hello").open("go") as run:
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = run.outcome
        assert "of agent" in repr(run)


async def test_a_plain_function_becomes_a_tool_that_is_not_repeated() -> None:
    async def greet() -> str:
        return "hi"

    a = agent(call("greet"), "done", tools=[greet])
    assert (await a.run("go")).tools[0].effect_status is EffectStatus.CONFIRMED


async def test_prices_are_asked_for_where_the_provider_tells_none() -> None:
    a = agent("a", price=lambda model, usage: 0.25)
    assert (await a.run("go")).usage.cost == 0.25


async def test_unused_events_are_named() -> None:
    a = agent("hi")
    await a.run("go")
    assert [type(e) for e in journal(a)] == [
        RunStarted,
        ModelAsked,
        ModelReplied,
        RunEnded,
    ]
    assert not any(isinstance(e, ToolNotRun) for e in journal(a))


async def test_a_run_that_never_waits_can_be_stopped_all_the_same() -> None:
    class Eager:
        name = "eager:model"

        @asynccontextmanager
        async def open_reply(self, request: ModelRequest) -> Any:
            yield self._parts()

        async def _parts(self) -> Any:
            reply = Reply(tool_calls=(ToolCall("look"),), finish_reason="tool_calls")
            yield reply

    @tool(effect="read")
    async def look() -> str:
        return "seen"

    limits = Limits(turns=5_000, tool_calls=5_000)
    async with trio.open_nursery() as nursery:
        async with Agent(Eager(), tools=[look], limits=limits).open("go") as run:
            nursery.start_soon(cancel_soon, run)
            async for _ in run:
                pass
    assert run.outcome.status is Status.CANCELLED
    assert run.outcome.turns < 100


async def cancel_soon(run: Run) -> None:
    await trio.lowlevel.checkpoint()
    run.cancel()


SEEN: ContextVar[str] = ContextVar("seen", default="clean")


@pytest.mark.parametrize("calls", [1, 2])
async def test_what_a_tool_sets_in_its_context_stays_with_its_call(calls: int) -> None:
    seen: list[str] = []

    @tool(effect="read")
    async def look() -> str:
        seen.append(SEEN.get())
        SEEN.set("leaked")
        await trio.lowlevel.checkpoint()
        assert SEEN.get() == "leaked"
        return "ok"

    model = ScriptedModel([[call("look")] * calls, [call("look")] * calls, "done"])
    outcome = await Agent(model, tools=[look]).run("go")
    assert outcome.status is Status.COMPLETED
    assert seen == ["clean"] * 2 * calls
    assert SEEN.get() == "clean"
