"""Agents that work for agents: one tree, one budget, one stop."""

from __future__ import annotations

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
    ChildSpent,
    FromChild,
    KeptEvent,
    Limits,
    ModelAsked,
    ModelReplied,
    ModelRequest,
    Reply,
    RunEnded,
    RunStarted,
    Status,
    StoreError,
    TextDelta,
    ToolContext,
    ToolResult,
    ToolStarted,
    Usage,
    UsageReported,
    max_cost,
    max_tokens_used,
    retries,
    tool,
)
from trioagent._turn import check_history
from trioagent.testing import (
    BlockingModel,
    CancelPoint,
    Hang,
    MemoryStore,
    Pause,
    ScriptedModel,
    call,
    sweep_cancels,
)


def agent(*steps: Any, **options: Any) -> Agent:
    options.setdefault("retry", retries(0))
    return Agent(ScriptedModel(steps), **options)


def ask(name: str = "child", prompt: str = "do it") -> Any:
    return call(name, prompt=prompt)


def costs(tokens: int, *steps: Any) -> Reply:
    """A reply that uses so many tokens, and asks for what follows."""
    usage = Usage(input_tokens=0, output_tokens=tokens)
    if steps:
        return Reply(tool_calls=tuple(steps), finish_reason="tool_calls", usage=usage)
    return Reply(text="done", usage=usage)


@tool(effect="read")
async def look() -> str:
    return "seen"


async def test_a_sub_agent_is_a_tool_with_a_run_of_its_own() -> None:
    store = MemoryStore()
    child = agent("the answer", name="child", instructions="Be a child.")
    root = agent(ask(), "well done", tools=[child.as_tool()], store=store)
    async with root.open("go") as run:
        events = [e async for e in run]
    assert run.outcome.output == "well done"
    (result,) = (m for m in run.outcome.history if isinstance(m, ToolResult))
    assert result.content == "the answer"
    child_run = f"{run.id}-1.0"
    assert await store.runs() == [child_run, run.id]
    (started, *_) = await store.load(child_run)
    assert isinstance(started, RunStarted)
    assert started.parent == f"{run.id}:1.0"
    assert started.agent == "child"
    shown = [e for e in events if isinstance(e, FromChild)]
    assert {(e.path, e.run_id) for e in shown} == {(("child",), child_run)}
    assert "".join(e.event.text for e in shown if isinstance(e.event, TextDelta)) == (
        "the answer"
    )
    assert isinstance(events[-1], RunEnded)
    assert sum(isinstance(e, RunEnded) for e in events) == 1
    model: Any = child.model
    assert model.requests[0].instructions == "Be a child."
    assert run.outcome.usage.total_tokens == 6, "two turns of its own, one of the child"


async def test_the_path_names_all_who_are_between() -> None:
    grandchild = agent("deep", name="grandchild")
    child = agent(
        ask("grandchild"), "middle", name="child", tools=[grandchild.as_tool()]
    )
    root = agent(ask(), "top", tools=[child.as_tool()])
    async with root.open("go") as run:
        paths = {e.path async for e in run if isinstance(e, FromChild)}
    assert paths == {("child",), ("child", "grandchild")}


async def test_a_stop_of_the_root_ends_all_and_names_them(
    autojump_clock: MockClock,
) -> None:
    # B21; on sockets in test_stops_on_the_wire.
    grandchild = Agent(BlockingModel(), name="grandchild")
    child = agent(ask("grandchild"), name="child", tools=[grandchild.as_tool()])
    store = MemoryStore()
    root = agent(ask(), tools=[child.as_tool()], store=store)
    async with root.open("go") as run:
        model: Any = grandchild.model
        await model.asked.wait()
        began = trio.current_time()
        run.cancel("enough")
    assert trio.current_time() - began < 0.2
    assert model.closed.is_set()
    named = {c.name for c in run.outcome.cleanup}
    assert {"tool child", "child: tool grandchild", "child: grandchild: reply"} <= named
    ends = {}
    for run_id in await store.runs():
        ends[run_id] = (await store.load(run_id))[-1]
    assert all(isinstance(end, RunEnded) for end in ends.values())
    statuses = {end.status for end in ends.values()}  # type: ignore[union-attr]
    assert statuses == {Status.CANCELLED}, "the reason of the root is the reason of all"
    for run_id, end in ends.items():
        assert isinstance(end, RunEnded)
        assert end.stop is not None
        assert str(end.stop) == "user"
        assert end.stop.scope == ("run" if run_id == run.id else "parent")


async def test_the_deadline_of_the_root_is_the_deadline_of_all(
    autojump_clock: MockClock,
) -> None:
    child = Agent(BlockingModel(), name="child", limits=Limits(seconds=100))
    root = agent(ask(), tools=[child.as_tool()], limits=Limits(seconds=10))
    outcome = await root.run("go")
    assert outcome.status is Status.TIMED_OUT
    assert trio.current_time() == pytest.approx(10)


async def test_a_child_has_limits_of_its_own_too(autojump_clock: MockClock) -> None:
    child = Agent(BlockingModel(), name="child", limits=Limits(seconds=2))
    root = agent(ask(), "then not", tools=[child.as_tool()])
    outcome = await root.run("go")
    assert outcome.output == "then not"
    (result,) = (m for m in outcome.history if isinstance(m, ToolResult))
    assert result.content == "child ended as timed_out: deadline."
    assert [t.ended for t in outcome.tools] == ["failed"]


async def test_children_side_by_side_spend_from_one_budget() -> None:
    # B23: each would use 80 tokens in two turns; the limit is 100.
    turns: list[str] = []

    def child(name: str) -> Any:
        def turn(request: ModelRequest) -> Any:
            turns.append(name)
            tokens = min(40, request.max_output_tokens or 40)  # as a provider does
            return [Pause(0.01), costs(tokens, call("look"))]

        return agent(turn, turn, turn, name=name, tools=[look]).as_tool()

    store = MemoryStore()
    root = agent(
        costs(0, ask("a"), ask("b")),
        tools=[child("a"), child("b")],
        stop_when=[max_tokens_used(100)],
        store=store,
    )
    outcome = await root.run("go")
    assert outcome.stop_reason == "max_tokens:100"
    assert outcome.usage.total_tokens == 100
    assert sorted(turns) == ["a", "a", "b", "b"]
    for run_id in await store.runs():
        end = (await store.load(run_id))[-1]
        assert isinstance(end, RunEnded)
        assert str(end.stop) == "max_tokens:100", run_id


async def test_what_is_out_is_reserved_and_what_is_left_is_shared() -> None:
    caps: dict[str, list[int | None]] = {"a": [], "b": []}

    def child(name: str) -> Any:
        def turn(request: ModelRequest) -> Any:
            caps[name].append(request.max_output_tokens)
            return [Reply(text="done", usage=Usage(input_tokens=0, output_tokens=10))]

        return agent(turn, name=name, tools=[]).as_tool()

    root = agent(
        costs(0, ask("a"), ask("b")),
        costs(5),
        tools=[child("a"), child("b")],
        stop_when=[max_tokens_used(1_000)],
    )
    outcome = await root.run("go")
    assert outcome.status is Status.COMPLETED
    assert caps == {"a": [500], "b": [500]}


async def test_where_all_is_reserved_the_next_one_waits(
    autojump_clock: MockClock,
) -> None:
    asked: list[float] = []

    def slow(request: ModelRequest) -> Any:
        asked.append(trio.current_time())
        return [Pause(1), costs(1)]

    workers = [agent(slow, name=n).as_tool() for n in "ab"]
    calls = [ask("a"), ask("b")]
    root = agent(
        costs(0, *calls), costs(0), tools=workers, stop_when=[max_tokens_used(1)]
    )
    outcome = await root.run("go")
    assert asked == [0.0], "and when its turn comes, nothing is left"
    assert outcome.stop_reason == "max_tokens:1"


async def test_turns_of_children_are_turns_of_the_root() -> None:
    child = agent(*[call("look")] * 9, name="child", tools=[look])
    store = MemoryStore()
    root = agent(ask(), tools=[child.as_tool()], limits=Limits(turns=4), store=store)
    outcome = await root.run("go")
    assert (outcome.status, str(outcome.stop)) == (Status.MAX_TURNS, "max_turns")
    end = (await store.load(f"{outcome.run_id}-1.0"))[-1]
    assert isinstance(end, RunEnded)
    assert end.status is Status.MAX_TURNS
    model: Any = child.model
    assert len(model.requests) == 3


async def test_a_running_child_is_cut_by_the_limit_of_its_root() -> None:
    reached = Hang()
    child = agent(
        [UsageReported(Usage(input_tokens=0, output_tokens=150)), reached], name="child"
    )
    root = agent(ask(), tools=[child.as_tool()], stop_when=[max_tokens_used(100)])
    outcome = await root.run("go")
    assert outcome.stop_reason == "max_tokens:100"
    assert not reached.reached.is_set() or outcome.status is Status.STOPPED


async def test_money_is_counted_with_the_prices_of_the_root() -> None:
    def price(_: str, usage: Usage) -> float:
        return (usage.output_tokens or 0) / 1_000

    child = agent(costs(50, call("look")), costs(50), name="child", tools=[look])
    root = agent(
        costs(0, ask()),
        tools=[child.as_tool()],
        price=price,
        stop_when=[max_cost(0.09)],
    )
    outcome = await root.run("go")
    assert outcome.stop_reason == "max_cost:0.09"
    assert outcome.usage.cost == pytest.approx(0.1)


async def test_the_journal_of_the_root_tells_what_its_children_used() -> None:
    store = MemoryStore()
    child = agent(costs(7), name="child")
    root = agent(costs(1, ask()), costs(2), tools=[child.as_tool()], store=store)
    outcome = await root.run("go")
    spent = [e for e in await store.load(outcome.run_id) if isinstance(e, ChildSpent)]
    assert [e.usage.output_tokens for e in spent] == [7]
    assert outcome.usage.output_tokens == 10


async def test_a_child_that_fails_is_told_to_the_model() -> None:
    child = agent([Hang()], name="child", limits=Limits(reply_seconds=0.05))
    root = agent(ask(), "I see", tools=[child.as_tool()])
    outcome = await root.run("go")
    assert outcome.output == "I see"
    (result,) = (m for m in outcome.history if isinstance(m, ToolResult))
    assert result.content.startswith("child ended as failed: llm_timeout")


# A child that acts, and is cut


class World:
    def __init__(self) -> None:
        self.done: list[str] = []

    @property
    def tools(self) -> list[Any]:
        @tool(effect="once", grace_seconds=0)
        async def send(ctx: ToolContext) -> str:
            self.done.append(ctx.idempotency_key)
            await trio.sleep(0.001)
            return "sent"

        @tool(effect="keyed", grace_seconds=0)
        async def book(ctx: ToolContext) -> str:
            if ctx.idempotency_key not in self.done:
                self.done.append(ctx.idempotency_key)
            await trio.sleep(0.001)
            return "booked"

        return [send, book]


def by_turn(*turns: Any) -> list[Any]:
    return [lambda request: turns[request.turn - 1]] * 20


def family(world: World, store: Any, *, approve: Any = None) -> Agent:
    child = agent(
        *by_turn(call("book"), call("send"), "acted"),
        name="child",
        tools=world.tools,
        approve=approve,
    )
    return agent(
        *by_turn([ask(), call("look")], "well done"),
        tools=[child.as_tool(), look],
        store=store,
    )


async def test_an_uncertain_effect_of_a_child_is_one_of_the_root() -> None:
    @tool(effect="once")
    async def send() -> str:
        raise OSError("cut")

    store = MemoryStore()
    child = agent(*by_turn(call("send"), "acted"), name="child", tools=[send])
    root = agent(*by_turn(ask(), "done"), tools=[child.as_tool()], store=store)
    outcome = await root.run("go")
    assert outcome.stop_reason == "effect_uncertain"
    (report,) = outcome.uncertain
    assert report.name == "child"
    assert f"Uncertain in run {outcome.run_id}-1.0: send" in report.problem


@pytest.mark.parametrize("stop", ["user", "deadline", "host"])
def test_stopped_at_any_step_a_family_can_go_on(stop: Any) -> None:
    world, root = World(), agent()

    def fresh() -> Agent:
        nonlocal world, root
        world = World()
        root = family(world, MemoryStore())
        return root

    def check(point: CancelPoint) -> None:
        if point.outcome.status is Status.COMPLETED:
            assert len(world.done) == 2
            return
        clock = MockClock(autojump_threshold=0)

        async def go_on() -> Any:
            return await root.resume(point.outcome.run_id, limits=Limits(seconds=300))

        outcome = trio.run(go_on, clock=clock)
        check_history(outcome.history)
        assert len(set(world.done)) == len(world.done) <= 2
        if outcome.status is not Status.COMPLETED:
            assert outcome.stop_reason == "effect_uncertain"
            assert [t.name for t in outcome.uncertain] == ["child"]
        else:
            assert len(world.done) == 2

    assert sweep_cancels(fresh, stop=stop, check=check) > 60


async def test_a_child_that_waits_for_a_person_pauses_the_root() -> None:
    world, store = World(), MemoryStore()
    root = family(world, store, approve="ask")
    outcome = await root.run("go")
    assert (outcome.status, str(outcome.stop)) == (Status.PAUSED, "approval")
    assert world.done == []
    child_run = f"{outcome.run_id}-1.0"
    for expected in (1, 2):
        asked = [e for e in await store.load(child_run) if isinstance(e, ApprovalAsked)]
        await say_yes(store, child_run, asked[-1])
        outcome = await root.resume(outcome.run_id)
        assert len(world.done) == expected
    assert outcome.output == "well done"
    check_history(outcome.history)


async def say_yes(store: MemoryStore, run_id: str, asked: ApprovalAsked) -> None:
    claim = await store.claim(run_id)
    digest = asked.call.digest
    event = ApprovalGiven(call=asked.call, granted=True, by="person", digest=digest)
    await store.append(run_id, event, claim=claim)
    store.release(run_id, claim)


async def test_without_a_journal_a_child_that_acts_is_not_begun_twice() -> None:
    world = World()
    ran = 0

    @tool(effect="once")
    async def send() -> str:
        nonlocal ran
        ran += 1
        raise OSError("cut")

    child = agent(*by_turn(call("send"), "acted"), name="child", tools=[send])
    root = agent(*by_turn(ask(), "done"), tools=[child.as_tool()])
    outcome = await root.run("go")
    assert ran == 1
    assert outcome.stop_reason == "effect_uncertain"
    assert world.done == []


async def test_a_child_that_only_reads_is_a_read() -> None:
    assert agent(name="c", tools=[look]).as_tool().effect == "read"
    assert agent(name="c", tools=World().tools).as_tool().effect == "keyed"
    named = agent(name="c").as_tool("helper", "Helps.")
    assert (named.name, named.description) == ("helper", "Helps.")


async def test_observers_of_the_root_see_its_children() -> None:
    seen: list[str] = []

    def observe(run_id: str, event: KeptEvent) -> None:
        if isinstance(event, ModelReplied):
            seen.append(run_id)

    child = agent("fine", name="child")
    root = agent(ask(), "ok", tools=[child.as_tool()], observers=[observe])
    outcome = await root.run("go")
    assert seen == [outcome.run_id, f"{outcome.run_id}-1.0", outcome.run_id]


# Handoffs


async def test_a_handoff_moves_the_conversation_to_another_agent() -> None:
    store = MemoryStore()
    expert = agent(
        "I am the expert.", name="expert", instructions="Know.", tools=[look]
    )
    clerk = agent(
        [call("handoff_to_expert", reason="hard"), call("look")],
        name="clerk",
        tools=[look],
        handoff_to=[expert],
        store=store,
    )
    outcome = await clerk.run("a hard question")
    assert outcome.output == "I am the expert."
    assert await store.runs() == [outcome.run_id], "it is one run"
    model: Any = expert.model
    request = model.requests[0]
    assert request.instructions == "Know."
    assert [t.name for t in request.tools] == ["look"]
    told = [m.content for m in request.messages if isinstance(m, ToolResult)]
    assert told == ["expert has taken over.", "seen"]
    check_history(outcome.history)


async def test_after_a_handoff_a_resume_goes_on_with_the_one_who_took_over() -> None:
    store = MemoryStore()
    expert = agent([Hang()], "later", name="expert", instructions="Know.")
    clerk = agent(
        call("handoff_to_expert"), name="clerk", handoff_to=[expert], store=store
    )
    outcome = await clerk.run("go", limits=Limits(reply_seconds=0.05))
    assert outcome.status is Status.FAILED
    outcome = await clerk.resume(outcome.run_id, limits=Limits(reply_seconds=60))
    assert outcome.output == "later"
    model: Any = expert.model
    assert model.requests[-1].instructions == "Know."


async def test_one_handoff_at_a_time_and_back_again() -> None:
    second = agent("never", name="second")
    first = agent(call("handoff_to_clerk"), name="first")
    clerk = agent(
        [call("handoff_to_first"), call("handoff_to_second")],
        "back here",
        name="clerk",
        handoff_to=[first, second],
    )
    first = replace(first, handoff_to=(clerk,))
    clerk = replace(clerk, handoff_to=(first, second))
    outcome = await clerk.run("go")
    assert outcome.output == "back here"
    failed = [t for t in outcome.tools if t.ended == "failed"]
    assert len(failed) == 1
    assert "goes to" in failed[0].problem


@pytest.mark.parametrize("stop", ["user", "deadline", "host"])
def test_stopped_at_any_step_a_handoff_tells_the_truth(stop: Any) -> None:
    def fresh() -> Agent:
        expert = agent(*by_turn("", "expert"), name="expert")
        steps = by_turn([call("handoff_to_expert"), call("look")])
        return agent(*steps, tools=[look], handoff_to=[expert], store=MemoryStore())

    def check(point: CancelPoint) -> None:
        asked = [e for e in point.events if isinstance(e, ModelAsked)]
        assert len(asked) <= 2

    assert sweep_cancels(fresh, stop=stop, check=check) > 30


async def test_a_repeated_name_is_refused() -> None:
    expert = agent(name="expert")
    with pytest.raises(ValueError, match="handoff_to_expert is there twice"):
        agent(handoff_to=[expert, expert])


def test_kept_events_of_children_come_back_as_they_were() -> None:
    event = ChildSpent(call=ask(), run_id="r", usage=Usage(output_tokens=1), turns=1)
    data = msgspec.json.encode(event)
    assert msgspec.json.decode(data, type=KeptEvent) == event


async def begun_and_lost(world: World, store: MemoryStore, kinds: int) -> str:
    """A family whose processes died when the child had kept so many events."""
    outcome = await family(world, store).run("go")
    child_run = f"{outcome.run_id}-1.0"
    dead = MemoryStore()
    for event in await store.load(child_run):
        if kinds > 0:
            await dead.append(child_run, event, claim=1)
        kinds -= 1
    for event in await store.load(outcome.run_id):
        await dead.append(outcome.run_id, event, claim=1)
        if isinstance(event, ToolStarted):
            break
    store.__dict__.update(dead.__dict__)
    for run_id in await store.runs():
        store.release(run_id, 1)
    return outcome.run_id


@pytest.mark.parametrize(("kinds", "asked"), [(0, 3), (1, 3), (3, 2), (99, 0)])
async def test_a_resumed_root_goes_on_with_its_child(kinds: int, asked: int) -> None:
    world, store = World(), MemoryStore()
    run_id = await begun_and_lost(world, store, kinds)
    world.done.clear()
    root = family(world, store)
    outcome = await root.resume(run_id)
    assert outcome.status is Status.COMPLETED
    (child,) = (t for t in root.tools if t.sub_agent)  # type: ignore[union-attr]
    model: Any = child.fn.args[0].model  # type: ignore[union-attr]
    assert len(model.requests) == asked
    told = [m.content for m in outcome.history if isinstance(m, ToolResult)]
    assert told == ["acted", "seen"]


async def test_a_child_whose_journal_cannot_be_read_is_left_uncertain() -> None:
    class Broken(MemoryStore):
        async def load(self, run_id: str) -> list[KeptEvent]:
            if run_id.endswith("-1.0"):
                raise StoreError("half a file", code="corrupt")
            return await super().load(run_id)

    world = World()
    outcome = await family(world, Broken()).run("go")
    assert outcome.stop_reason == "effect_uncertain"
    assert world.done == []


async def test_a_child_that_acted_and_was_stopped_by_a_limit_says_what_it_did() -> None:
    world = World()
    child = agent(
        *by_turn(call("book"), call("book")),
        name="child",
        tools=world.tools,
        limits=Limits(turns=1),
    )
    root = agent(*by_turn(ask(), "I see"), tools=[child.as_tool()])
    outcome = await root.run("go")
    (report,) = outcome.tools
    assert report.effect_status == "confirmed"
    (result,) = (m for m in outcome.history if isinstance(m, ToolResult))
    assert result.content == "child ended as max_turns: max_turns."


async def test_without_a_journal_a_stopped_child_stays_uncertain(
    autojump_clock: MockClock,
) -> None:
    hang = Hang()
    child = agent(*by_turn([hang]), name="child", tools=World().tools)
    root = agent(*by_turn(ask()), tools=[child.as_tool()])
    async with root.open("go") as run:
        await hang.reached.wait()
        run.cancel("enough")
    (report,) = run.outcome.tools
    assert report.effect_status == "not_started", "it had not acted yet"


async def test_a_sequential_tool_alone_in_its_turn_runs() -> None:
    @tool(effect="read", sequential=True)
    async def step() -> str:
        return "done"

    outcome = await agent(call("step"), "ok", tools=[step]).run("go")
    assert outcome.status is Status.COMPLETED


async def test_a_child_that_could_not_begin_has_done_nothing() -> None:
    child = agent(name="child", tools=World().tools, stop_when=[max_cost(1)])
    root = agent(ask(), "I see", tools=[child.as_tool()])
    outcome = await root.run("go")
    assert outcome.output == "I see"
    assert [t.effect_status for t in outcome.tools] == ["not_started"]


async def test_of_two_agents_of_one_name_the_first_one_takes_over() -> None:
    other = agent(name="expert")
    expert = agent("the first", name="expert", handoff_to=[agent(name="clerk")])
    middle = agent(name="middle", handoff_to=[other])
    clerk = agent(call("handoff_to_expert"), name="clerk", handoff_to=[middle, expert])
    outcome = await clerk.run("go")
    assert outcome.output == "the first"


async def test_a_slow_reader_of_the_root_slows_its_children(
    autojump_clock: MockClock,
) -> None:
    child = agent("word " * 100, name="child")
    root = agent(ask(), "done", tools=[child.as_tool()])
    words = 0
    async with root.open("go") as run:
        async for event in run:
            await trio.sleep(0.1)
            words += isinstance(event, FromChild) and isinstance(event.event, TextDelta)
    assert run.outcome.status is Status.COMPLETED
    assert words == 100


async def test_a_child_that_was_done_when_all_was_lost_is_not_asked_again() -> None:
    store, lost = MemoryStore(), MemoryStore()

    @tool(effect="once")
    async def send() -> str:
        return "sent"

    def family_of_two() -> Agent:
        child = agent(*by_turn(call("send"), "the answer"), name="child", tools=[send])
        return agent(*by_turn(ask(), "well done"), tools=[child.as_tool()], store=lost)

    first = replace(family_of_two(), store=store)
    outcome = await first.run("go")
    child_run = f"{outcome.run_id}-1.0"
    for event in await store.load(child_run):
        await lost.append(child_run, event, claim=1)
    for event in await store.load(outcome.run_id):
        await lost.append(outcome.run_id, event, claim=1)
        if isinstance(event, ToolStarted):
            break  # and never the end of the call
    lost.release(outcome.run_id, 1)
    again = family_of_two()
    after = await again.resume(outcome.run_id)
    assert after.status is Status.COMPLETED
    [result] = [m for m in after.history if isinstance(m, ToolResult)]
    assert result.content == "the answer"
    assert len(await lost.load(child_run)) == len(await store.load(child_run))
