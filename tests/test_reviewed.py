"""Faults that a hostile reading found: ways to lie about an effect, or to hang."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trioagent import (
    Agent,
    ApprovalAsked,
    ApprovalGiven,
    ChildSpent,
    Happened,
    KeptEvent,
    Limits,
    ModelRequest,
    RunStarted,
    Status,
    StoreError,
    ToolCall,
    ToolError,
    ToolResult,
    ToolStarted,
    Unknown,
    UserMessage,
    max_cost,
    max_tokens_used,
    retries,
    tool,
)
from trioagent.stores.sqlite import SqliteStore
from trioagent.testing import Hang, MemoryStore, ScriptedModel, call


def agent(*steps: Any, **options: Any) -> Agent:
    options.setdefault("store", MemoryStore())
    options.setdefault("retry", retries(0))
    return Agent(ScriptedModel(steps), **options)


def by_turn(*turns: Any) -> list[Any]:
    def turn(request: ModelRequest) -> Any:
        return turns[request.turn - 1]

    return [turn] * 20


def statuses(outcome: Any) -> list[str]:
    return [str(report.effect_status) for report in outcome.tools]


PAY = call("pay", x=1)


def losing(world: list[str], effect: str = "once", **options: Any) -> Any:
    @tool(name="pay", effect=effect, seconds=0.05, grace_seconds=0, **options)
    async def pay(x: int) -> str:
        world.append("paid")
        await trio.sleep_forever()

    return pay


# The attempt that is uncertain keeps its tool and its effect


@pytest.mark.parametrize("effect", ["once", "read"])
async def test_no_other_tool_stands_in_for_a_write_that_is_uncertain(
    autojump_clock: MockClock, effect: str
) -> None:
    world: list[str] = []

    @tool(effect=effect, name="other")
    async def other(x: int) -> str:
        world.append("other")
        return "ok"

    pay = replace(
        losing(world, "keyed", needs_seconds=1.5, fallback=other), seconds=1.0
    )
    outcome = await agent(PAY, tools=[pay], limits=Limits(seconds=2)).run("go")
    assert world == ["paid"]
    assert statuses(outcome) == ["uncertain"]


@pytest.mark.parametrize("effect", ["once", "read"])
async def test_a_tool_that_was_declared_anew_does_not_clear_up_what_it_did(
    effect: str,
) -> None:
    world: list[str] = []
    a = agent(PAY, tools=[losing(world, "keyed")])
    outcome = await a.run("go", limits=Limits(tool_seconds=1))

    @tool(name="pay", effect=effect)
    async def pay(x: int) -> str:
        world.append("again")
        return "ok"

    outcome = await replace(a, tools=[pay], model=ScriptedModel([])).resume(
        outcome.run_id
    )
    assert "again" not in world
    assert statuses(outcome) == ["uncertain"]


# Sub-agents


async def test_a_sub_agent_that_may_hand_over_to_one_that_writes_is_no_read() -> None:
    payer = agent(name="payer", tools=[losing([])])
    assert agent(name="c", handoff_to=[payer]).as_tool().effect == "keyed"


async def test_what_a_child_was_told_is_uncertain_is_so_for_its_parent() -> None:
    world: list[str] = []
    child = agent(
        *by_turn(PAY, "I may have paid"),
        name="c",
        tools=[losing(world)],
        on_uncertain="tell",
    )
    root = agent(*by_turn(call("c", prompt="go"), "ok"), tools=[child.as_tool()])
    outcome = await root.run("go")
    assert outcome.stop_reason == "effect_uncertain"
    assert [t.name for t in outcome.uncertain] == ["c"]
    assert "I may have paid" in outcome.tools[0].problem
    assert world == ["paid"]
    assert not outcome.resumable, "a person has to look, in the child's run"


async def test_a_child_that_has_acted_and_pauses_has_begun() -> None:
    @tool(effect="once")
    async def pay(x: int) -> str:
        return "paid"

    @tool(effect="once", approve="ask")
    async def ship(x: int) -> str:
        return "shipped"

    steps = by_turn(PAY, call("ship", x=1), "done")
    child = agent(*steps, name="c", tools=[pay, ship], store=None)
    root = agent(*by_turn(call("c", prompt="go"), "ok"), tools=[child.as_tool()])
    outcome = await root.run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.PAUSED, "approval")
    assert statuses(outcome) == ["uncertain"]
    again = await root.resume(outcome.run_id)
    assert again.status is Status.PAUSED
    store: Any = root.store
    child_run = f"{outcome.run_id}-1.0"
    (asked,) = (e for e in await store.load(child_run) if isinstance(e, ApprovalAsked))
    claim = await store.claim(child_run)
    given = ApprovalGiven(
        call=asked.call, granted=True, by="person", digest=asked.digest
    )
    await store.append(child_run, given, claim=claim)
    store.release(child_run, claim)
    outcome = await root.resume(outcome.run_id)
    assert outcome.output == "ok"
    assert statuses(outcome) == ["confirmed"]


async def test_a_run_of_that_name_that_is_somebody_elses_is_left_alone() -> None:
    store = MemoryStore()
    await agent("foreign", name="x", store=store).run("go", run_id="r-1.0")
    child = agent("mine", name="c", tools=[losing([])], store=None)
    root = agent(*by_turn(call("c", prompt="go"), "ok"), tools=[child.as_tool()])
    outcome = await replace(root, store=store).run("go", run_id="r")
    (result,) = (m for m in outcome.history if isinstance(m, ToolResult))
    assert "foreign" not in result.content
    assert "works on something else" in result.content


async def test_tool_guards_of_a_parent_hold_its_children() -> None:
    world: list[str] = []

    @tool(effect="once")
    async def pay(x: int) -> str:
        world.append("paid")
        return "paid"

    def guard(found: ToolCall) -> str | None:
        return "never" if found.name == "pay" else None

    child = agent(*by_turn(PAY, "ok"), name="c", tools=[pay])
    root = agent(
        *by_turn(call("c", prompt="go"), "ok"),
        tools=[child.as_tool()],
        tool_guards=[guard],
    )
    assert (await root.run("go")).status is Status.COMPLETED
    assert world == []


async def test_a_child_cannot_repeat_what_another_child_left_uncertain() -> None:
    world: list[str] = []
    child = agent(
        *by_turn(PAY, "I may have paid"),
        name="c",
        tools=[losing(world)],
        on_uncertain="tell",
    )
    asks = [call("c", prompt="pay"), call("c", prompt="pay, please")]
    root = agent(*by_turn(*asks, "ok"), tools=[child.as_tool()], on_uncertain="tell")
    await root.run("go")
    assert world == ["paid"]


async def test_a_child_without_a_price_is_not_asked_under_a_cost_limit() -> None:
    child = agent("never", name="c", tools=[losing([])])
    root = agent(
        *by_turn(call("c", prompt="go"), "I see"),
        tools=[child.as_tool()],
        stop_when=[max_cost(1)],
        price=lambda model, _: 0.1 if model == "scripted:model" else None,
    )
    model = ScriptedModel(["never"])
    model.name = "scripted:unpriced"
    child = replace(child, model=model)
    outcome = await replace(root, tools=[child.as_tool()]).run("go")
    assert model.requests == []
    assert "no price is known for scripted:unpriced" in outcome.tools[0].problem


async def test_what_a_child_spends_and_the_journal_cannot_keep_breaks_the_run(
    autojump_clock: MockClock,
) -> None:
    class Busy(MemoryStore):
        async def append(self, run_id: str, event: KeptEvent, **how: Any) -> None:
            if isinstance(event, ChildSpent):
                raise StoreError("busy", code="busy")
            await super().append(run_id, event, **how)

    children = [agent("fine", name=name, tools=[]).as_tool() for name in "abc"]
    root = agent(
        [call(name, prompt="go") for name in "abc"],
        tools=children,
        stop_when=[max_tokens_used(400)],
        store=Busy(),
        limits=Limits(seconds=5),
    )
    with pytest.raises(StoreError, match="busy"):
        await root.run("go")
    assert trio.current_time() < 1, "nobody waits for what was reserved"


# Compensation


async def test_what_somebody_began_to_undo_is_not_repeated() -> None:
    world: list[str] = []

    async def undo(_: ToolCall, __: str) -> None:
        world.append("refunded")
        raise OSError("cut after the refund")

    pay = losing(world, "keyed", compensate=undo)
    a = agent(PAY, tools=[pay])
    outcome = await a.run("go")
    assert world == ["paid", "paid", "refunded"]
    assert not outcome.resumable

    async def look(_: ToolCall, __: str) -> Happened:
        return Happened("the old receipt")

    b = replace(a, tools=[replace(pay, reconcile=look)], model=ScriptedModel([]))
    outcome = await b.resume(outcome.run_id)
    assert outcome.stop_reason == "effect_uncertain"
    assert world == ["paid", "paid", "refunded"]


# Approvals and guards


async def test_a_call_that_is_done_waits_for_nobody() -> None:
    ran: list[str] = []

    @tool(effect="once", name="cheap")
    async def cheap(x: int) -> str:
        ran.append("cheap")
        return "ok"

    @tool(effect="once", approve="ask", needs_seconds=5, fallback=cheap, name="pay")
    async def pay(x: int) -> str:
        ran.append("pay")
        return "ok"

    a = agent(*by_turn(PAY, "done"), tools=[pay])
    outcome = await a.run("go", limits=Limits(seconds=10))
    assert outcome.status is Status.PAUSED
    outcome = await a.resume(outcome.run_id, limits=Limits(seconds=4))
    assert outcome.status is Status.COMPLETED
    assert ran == ["cheap"]


async def test_who_approves_a_tool_does_not_approve_the_one_that_stands_in(
    autojump_clock: MockClock,
) -> None:
    ran: list[str] = []

    @tool(effect="once", approve="ask", name="cheap")
    async def cheap(x: int) -> str:
        ran.append("cheap")
        return "ok"

    async def slow_yes(_: ToolCall) -> bool:
        await trio.sleep(6)
        return True

    @tool(effect="once", approve=slow_yes, needs_seconds=5, fallback=cheap, name="pay")
    async def pay(x: int) -> str:
        ran.append("pay")
        return "ok"

    outcome = await agent(PAY, "done", tools=[pay]).run("go", limits=Limits(seconds=10))
    assert ran == []
    assert outcome.tools[0].problem.endswith("that was another tool.")


async def test_a_stop_while_a_function_is_asked_leaves_a_run_that_can_go_on() -> None:
    asked = trio.Event()

    async def approve(_: ToolCall) -> bool:
        asked.set()
        await trio.sleep_forever()

    @tool(effect="once", approve=approve)
    async def pay(x: int) -> str:
        return "paid"

    a = agent(PAY, tools=[pay])
    async with a.open("go") as run:
        await asked.wait()
        run.cancel("enough")
    assert run.outcome.resumable
    assert run.resume_decision.reason == "calls to finish: pay"


async def test_after_a_handoff_and_a_resume_the_first_agents_guards_still_hold() -> (
    None
):
    world: list[str] = []

    @tool(effect="once")
    async def pay(x: int) -> str:
        world.append("paid")
        return "paid"

    async def objects(_: Any) -> str:
        await trio.sleep(0.05)
        return "no"

    payer = agent(*by_turn("", PAY, "done"), name="payer", tools=[pay])
    clerk = agent(
        call("handoff_to_payer"), handoff_to=[payer], input_guards=[objects], name="c"
    )
    with trio.move_on_after(0.02):
        await clerk.run("go", run_id="r")
    outcome = await clerk.resume("r")
    assert outcome.stop_reason == "guard"
    assert world == []


async def test_after_a_handoff_what_the_run_was_bound_to_still_binds() -> None:
    world: list[str] = []

    @tool(effect="once")
    async def pay(x: int) -> str:
        world.append("paid")
        return "paid"

    payer = agent(*by_turn("", PAY, "done"), name="payer", tools=[pay])
    clerk = agent(
        call("handoff_to_payer"), handoff_to=[payer], approve=lambda _: False, name="c"
    )
    outcome = await clerk.run("go")
    assert outcome.status is Status.COMPLETED
    assert world == []


async def test_a_cost_limit_wants_the_price_of_whoever_may_take_over() -> None:
    model = ScriptedModel([])
    model.name = "scripted:unpriced"
    expert = Agent(model, name="expert")
    clerk = agent(
        handoff_to=[expert],
        price=lambda name, _: None if name == "scripted:unpriced" else 0.1,
    )
    with pytest.raises(ValueError, match="no price is known for scripted:unpriced"):
        await clerk.run("go", stop_when=[max_cost(1)])


async def test_a_run_that_was_handed_to_somebody_unknown_says_so() -> None:
    expert = agent([Hang()], name="expert", limits=Limits())
    clerk = agent(call("handoff_to_expert"), handoff_to=[expert], name="c")
    outcome = await clerk.run("go", limits=Limits(reply_seconds=0.05))
    renamed = replace(clerk, handoff_to=[replace(expert, name="new")])
    with pytest.raises(ValueError, match="was handed over to 'expert'"):
        await renamed.resume(outcome.run_id)


# What is held, and what is not


async def test_a_default_that_is_written_out_makes_no_other_call() -> None:
    ran = 0

    @tool(effect="once")
    async def pay(x: int, currency: str = "EUR") -> str:
        nonlocal ran
        ran += 1
        raise OSError("cut")

    again = call("pay", x=1, currency="EUR")
    await agent(PAY, again, "done", tools=[pay], on_uncertain="tell").run("go")
    assert ran == 1


@pytest.mark.parametrize("kept", [True, False])
async def test_two_equal_calls_of_one_turn_both_run(kept: bool) -> None:
    ran = 0

    @tool(effect="once")
    async def pay(x: int) -> str:
        nonlocal ran
        ran += 1
        await trio.sleep(0.01)
        return "paid"

    class Slow(MemoryStore):
        async def append(self, run_id: str, event: KeptEvent, **how: Any) -> None:
            await trio.sleep(0.005)
            await super().append(run_id, event, **how)

    store = Slow() if kept else None
    outcome = await agent([PAY, PAY], "done", tools=[pay], store=store).run("go")
    assert ran == 2
    assert statuses(outcome) == ["confirmed", "confirmed"]


async def test_what_was_settled_is_not_held_in_a_later_run() -> None:
    from trioagent import EffectJudged, Verdict

    world: list[str] = []
    a = agent(*by_turn(PAY, [Hang()]), tools=[losing(world)], on_uncertain="tell")
    outcome = await a.run("go", limits=Limits(reply_seconds=0.2))
    store: Any = a.store
    claim = await store.claim(outcome.run_id)
    judged = EffectJudged(
        call=ToolCall("pay", '{"x":1}', turn=1),
        verdict=Verdict.DID_NOT_HAPPEN,
        by="person",
    )
    await store.append(outcome.run_id, judged, claim=claim)
    store.release(outcome.run_id, claim)
    b = replace(a, model=ScriptedModel(["fine"]))
    outcome = await b.resume(outcome.run_id, limits=Limits(reply_seconds=60))
    c = agent(PAY, "ok", tools=[losing(world)], on_uncertain="tell")
    outcome = await c.run("and now?", history=outcome.history)
    assert world == ["paid", "paid"]


async def test_a_keyed_write_that_the_model_was_told_of_does_not_stop_a_resume() -> (
    None
):
    a = agent(
        *by_turn(PAY, [Hang()], "done"),
        tools=[losing([], "keyed")],
        on_uncertain="tell",
    )
    outcome = await a.run("go", limits=Limits(reply_seconds=0.2))
    assert outcome.status is Status.FAILED
    b = replace(a, model=ScriptedModel(["done"]))
    outcome = await b.resume(outcome.run_id, limits=Limits(reply_seconds=60))
    assert outcome.output == "done"


async def test_a_later_step_does_not_begin_while_one_before_it_is_uncertain() -> None:
    ran: list[str] = []

    @tool(effect="once", sequential=True)
    async def ship(x: int) -> str:
        ran.append("shipped")
        return "ok"

    a = agent([PAY, call("ship", x=1)], tools=[losing([]), ship])
    outcome = await a.run("go")
    assert ran == []
    assert outcome.stop_reason == "effect_uncertain"
    assert statuses(outcome) == ["uncertain", "not_started"]

    @tool(effect="once", sequential=True, name="lose")
    async def lose(x: int) -> str:
        raise OSError("cut")

    both = [call("lose", x=1), call("ship", x=1)]
    outcome = await agent(both, tools=[lose, ship]).run("go")
    assert statuses(outcome) == ["uncertain", "not_started"]
    again = [call("ship", x=1), PAY, call("ship", x=2)]
    outcome = await agent(again, tools=[losing([]), ship]).run("go")
    assert statuses(outcome) == ["confirmed", "uncertain", "not_started"]


# Errors that come with a cancel


@pytest.mark.parametrize("how", ["limit", "stop"])
async def test_a_cleanup_that_fails_in_a_tools_own_nursery_ends_no_run(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    began = trio.Event()

    @tool(effect="read", seconds=0.05 if how == "limit" else 30)
    async def work() -> str:
        async def bad() -> None:
            try:
                began.set()
                await trio.sleep_forever()
            finally:
                raise ValueError("secret of the cleanup")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            async with trio.open_nursery() as inner:
                inner.start_soon(bad)
        return ""

    a = agent(call("work"), "done", tools=[work])
    async with a.open("go") as run:
        await began.wait()
        if how == "stop":
            run.cancel("enough")
        async for _ in run:
            pass
    expected = Status.CANCELLED if how == "stop" else Status.COMPLETED
    assert run.outcome.status is expected
    assert "in a cleanup: ValueError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_stop_asks_a_reconcile_that_hangs_once(
    autojump_clock: MockClock,
) -> None:
    asked = 0
    began = trio.Event()

    async def hangs(_: ToolCall, __: str) -> None:
        nonlocal asked
        asked += 1
        await trio.sleep_forever()

    @tool(effect="once", grace_seconds=0.2, reconcile=hangs)
    async def pay(x: int) -> str:
        began.set()
        with trio.CancelScope(shield=True):
            await trio.sleep(0.1)
        await trio.sleep_forever()

    a = agent(PAY, tools=[pay], limits=Limits(grace_seconds=1))
    async with a.open("go") as run:
        await began.wait()
        then = trio.current_time()
        run.cancel("enough")
    assert trio.current_time() - then <= 1.3
    assert asked == 1


# Texts that cannot be sent or kept


@pytest.mark.parametrize("where", ["tool", "stop", "unknown"])
async def test_a_text_that_cannot_be_kept_is_kept_as_far_as_it_can(
    where: str, tmp_path: Path
) -> None:
    bad = os.fsdecode(b"\xff")

    @tool(effect="once", reconcile=lambda *_: Unknown(f"why {bad}"))
    async def pay(x: int) -> str:
        if where == "unknown":
            raise OSError(bad)
        raise ToolError(f"no file {bad}")

    async with SqliteStore(tmp_path / "journal.db") as store:
        a = agent(PAY, [Hang()] if where == "stop" else "ok", tools=[pay], store=store)
        async with a.open("go") as run:
            async for event in run:
                if where == "stop" and type(event).__name__ == "ToolEnded":
                    run.cancel(f"stop {bad}")
        assert await store.load(run.id)
    expected = {"tool": "none", "stop": "none", "unknown": "uncertain"}
    assert statuses(run.outcome) == [expected[where]]


@pytest.mark.parametrize("run_id", ["", "run_\udcff", "x" * 201, 7])
async def test_a_run_id_that_cannot_be_is_refused(run_id: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        await agent("x").run("go", run_id=run_id)
    with pytest.raises((ValueError, TypeError)):
        await agent("x").resume(run_id)


async def test_one_bad_run_does_not_take_others_down(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "journal.db") as store:

        async def bad() -> None:
            with pytest.raises(StoreError):
                await store.claim("run_\udcff")

        async def good(number: int) -> None:
            begin = RunStarted(run_id=f"r{number}")
            await store.append(f"r{number}", begin, claim=1)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(good, number)
                nursery.start_soon(bad)
        assert len(await store.runs()) == 5


async def test_threads_that_were_left_behind_block_no_journal_and_no_approval(
    tmp_path: Path,
) -> None:
    release = threading.Event()

    @tool(effect="read", threads="abandon", seconds=0.05)
    def hang() -> str:
        release.wait(20)
        return ""

    @tool(effect="once", approve=lambda _: True)
    async def pay(x: int) -> str:
        return "paid"

    try:
        async with SqliteStore(tmp_path / "journal.db") as store:
            limits = Limits(parallel_tools=50)
            a = agent([call("hang")] * 45, "ok", tools=[hang], limits=limits)
            await a.run("go")
            b = agent(PAY, [Hang()], "ok", tools=[pay], store=store)
            with trio.fail_after(10):
                outcome = await b.run("go", limits=Limits(reply_seconds=0.05))
                outcome = await b.resume(
                    outcome.run_id, limits=Limits(reply_seconds=60)
                )
            assert outcome.output == "ok"
    finally:
        release.set()


async def test_no_content_is_in_an_error_of_ours() -> None:
    secret: Any = ["my secret prompt"]
    for wrong in ({"prompt": secret}, {"prompt": "x", "history": secret}):
        with pytest.raises(TypeError) as found:
            await agent("x").run(**wrong)
        assert "secret" not in str(found.value)
    a = agent(
        call("look", query="my secret"),
        "the secret answer",
        instructions="my secret",
        tools=[losing([])],
    )
    outcome = await a.run("my secret prompt", history=[UserMessage("secret")])
    store: Any = a.store
    model: Any = a.model
    for thing in (a, outcome, store.events, model.requests, outcome.history):
        assert "secret" not in repr(thing), thing


async def left_at(a: Agent, kind: type[KeptEvent], run_id: str) -> Agent:
    """The agent, with a journal as if its process had died after such an event."""
    store: Any = a.store
    await a.run("go", run_id=run_id)
    dead = MemoryStore()
    for other in await store.runs():
        for event in await store.load(other):
            await dead.append(other, event, claim=1)
            if other == run_id and isinstance(event, kind):
                break
        dead.release(other, 1)
    return replace(a, store=dead)


async def test_a_child_that_only_reads_and_is_done_is_not_asked_again() -> None:
    child = agent("the answer", name="c", store=None)
    root = agent(*by_turn(call("c", prompt="go"), "ok"), tools=[child.as_tool()])
    root = await left_at(root, ToolStarted, "r")
    outcome = await root.resume("r")
    assert outcome.output == "ok"
    model: Any = child.model
    assert len(model.requests) == 1
    (result,) = (m for m in outcome.history if isinstance(m, ToolResult))
    assert result.content == "the answer"


async def test_a_foreign_run_of_that_name_says_nothing_of_a_call_that_was_lost() -> (
    None
):
    child = agent("mine", name="c", tools=[losing([])], store=None)
    root = agent(*by_turn(call("c", prompt="go"), "I see"), tools=[child.as_tool()])
    root = await left_at(root, ToolStarted, "r")
    store: Any = MemoryStore()
    await agent("foreign", name="x", store=store).run("go", run_id="r-1.0")
    old: Any = root.store
    for event in await old.load("r"):
        await store.append("r", event, claim=1)
    store.release("r", 1)
    outcome = await replace(root, store=store).resume("r")
    (result,) = (m for m in outcome.history if isinstance(m, ToolResult))
    assert "works on something else" in result.content
    assert statuses(outcome) == ["none"]
