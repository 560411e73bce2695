"""What becomes of interrupted effects, and how a run goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trioagent import (
    Agent,
    CompensationStarted,
    DidNotHappen,
    Effect,
    EffectJudged,
    EffectStatus,
    Happened,
    ImpossibleEvent,
    KeptEvent,
    Limits,
    ModelAsked,
    ModelReplied,
    Outcome,
    Reply,
    RunEnded,
    RunResumed,
    RunStarted,
    Status,
    StoreError,
    ToolCall,
    ToolContext,
    ToolEnded,
    ToolError,
    ToolLost,
    ToolNotRun,
    ToolResult,
    ToolStarted,
    Unknown,
    Usage,
    UserMessage,
    Verdict,
    max_duration,
    max_tokens_used,
    retries,
    step_count_is,
    tool,
)
from trioagent._effects import Action, decide
from trioagent._state import RunState
from trioagent._turn import check_history
from trioagent.testing import Hang, MemoryStore, ScriptedModel, call

NONE, NOT_STARTED = EffectStatus.NONE, EffectStatus.NOT_STARTED
CONFIRMED, UNCERTAIN = EffectStatus.CONFIRMED, EffectStatus.UNCERTAIN


class Ledger:
    """The world outside: what really happened, by key."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.looked_up: list[str] = []
        self.undone: list[str] = []

    def reconcile(self, _: ToolCall, key: str) -> Any:
        self.looked_up.append(key)
        return Happened("paid") if key in self.charges else DidNotHappen()


def a_tool(
    ledger: Ledger, *, charges: bool = True, answers_at: int = 99, **options: Any
) -> Any:
    """A payment whose answer is lost, until the attempt `answers_at`."""
    attempts = 0

    @tool(name="pay", seconds=1, **options)
    async def pay(amount: int, ctx: ToolContext) -> str:
        nonlocal attempts
        attempts += 1
        if charges and ctx.idempotency_key not in ledger.charges:
            ledger.charges.append(ctx.idempotency_key)
        if attempts < answers_at:
            await trio.sleep_forever()
        return "paid"

    return pay


def agent(*steps: Any, **options: Any) -> Agent:
    options.setdefault("store", MemoryStore())
    options.setdefault("retry", retries(0))
    return Agent(ScriptedModel(steps), **options)


def kept(a: Agent) -> list[KeptEvent]:
    assert isinstance(a.store, MemoryStore)
    return a.store.events


def last_told(a: Agent) -> ToolResult:
    """What the model was told of the last call."""
    model: Any = a.model
    found = [m for m in model.requests[-1].messages if isinstance(m, ToolResult)]
    return found[-1]


PAY = call("pay", amount=10)


# The decision table, row by row


@pytest.mark.parametrize(
    ("effect", "status", "facts", "action"),
    [
        # bad arguments, unknown tool: told to the model, and that is all
        (Effect.ONCE, NOT_STARTED, {"attempts": 1, "begun": False}, Action.KEEP),
        # tool not started yet: may run on resume
        (Effect.ONCE, NOT_STARTED, {"attempts": 0, "begun": False}, Action.BEGIN),
        (Effect.ONCE, NOT_STARTED, {"attempts": 0, "stopping": True}, Action.KEEP),
        # read, timeout: repeated if asked for
        (Effect.READ, NONE, {"attempts": 1}, Action.KEEP),
        (Effect.READ, NONE, {"attempts": 1, "retries": 2}, Action.BEGIN),
        (Effect.READ, NONE, {"attempts": 3, "retries": 2}, Action.KEEP),
        # read, user stop: end
        (
            Effect.READ,
            NONE,
            {"attempts": 1, "retries": 2, "stopping": True},
            Action.KEEP,
        ),
        # keyed write: looked up by key, else repeated once with the same key
        (Effect.KEYED, UNCERTAIN, {"attempts": 1, "reconcile": True}, Action.RECONCILE),
        (Effect.KEYED, UNCERTAIN, {"attempts": 1}, Action.BEGIN),
        (Effect.KEYED, UNCERTAIN, {"attempts": 2}, Action.REVIEW),
        (Effect.KEYED, UNCERTAIN, {"attempts": 0, "stopping": True}, Action.REVIEW),
        (
            Effect.KEYED,
            UNCERTAIN,
            {"attempts": 2, "compensate": True},
            Action.COMPENSATE,
        ),
        # once write, reconcile given: ask it, also while stopping
        (Effect.ONCE, UNCERTAIN, {"attempts": 1, "reconcile": True}, Action.RECONCILE),
        (
            Effect.ONCE,
            UNCERTAIN,
            {"reconcile": True, "stopping": True},
            Action.RECONCILE,
        ),
        # … did not happen: may run; again once, not for ever
        (Effect.ONCE, NOT_STARTED, {"attempts": 1}, Action.BEGIN),
        (Effect.ONCE, NOT_STARTED, {"attempts": 2}, Action.KEEP),
        # once write, compensate given
        (Effect.ONCE, UNCERTAIN, {"compensate": True}, Action.COMPENSATE),
        # once write, neither: a person settles it
        (Effect.ONCE, UNCERTAIN, {"attempts": 1}, Action.REVIEW),
        # write confirmed before the stop: kept, never run again
        (Effect.ONCE, CONFIRMED, {"attempts": 0}, Action.KEEP),
        (Effect.KEYED, CONFIRMED, {"attempts": 0}, Action.KEEP),
    ],
)
def test_the_decision_table(
    effect: Effect, status: EffectStatus, facts: dict[str, Any], action: Action
) -> None:
    assert decide(effect, status, **facts) is action


def test_no_write_that_is_uncertain_is_ever_repeated_without_its_key() -> None:
    for attempts in range(4):
        for reconcile in (False, True):
            for compensate in (False, True):
                found = decide(
                    Effect.ONCE,
                    UNCERTAIN,
                    attempts=attempts,
                    reconcile=reconcile,
                    compensate=compensate,
                )
                assert found is not Action.BEGIN


# In the run


async def test_a_keyed_write_is_repeated_once_with_the_same_key(
    autojump_clock: MockClock,
) -> None:
    # B65
    ledger = Ledger()
    a = agent(PAY, "done", tools=[a_tool(ledger, effect="keyed", answers_at=2)])
    outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    assert len(ledger.charges) == 1, "one key, one effect"
    starts = [e for e in kept(a) if isinstance(e, ToolStarted)]
    assert [s.attempt for s in starts] == [1, 2]
    assert {s.key for s in starts} == set(ledger.charges)
    assert outcome.uncertain == ()
    assert last_told(a).content == "paid"


async def test_a_keyed_write_that_is_lost_twice_waits_for_a_person(
    autojump_clock: MockClock,
) -> None:
    ledger = Ledger()
    a = agent(PAY, tools=[a_tool(ledger, effect="keyed")])
    outcome = await a.run("go")
    assert str(outcome.stop) == "effect_uncertain"
    assert len([e for e in kept(a) if isinstance(e, ToolStarted)]) == 2
    assert outcome.uncertain[0].name == "pay"
    assert outcome.resumable, "the key may be tried again by who resumes it"


@pytest.mark.parametrize("then", ["error", "tool_error", "timeout"])
async def test_a_repeat_that_fails_does_not_clear_up_the_first_attempt(
    autojump_clock: MockClock, then: str
) -> None:
    attempts = 0

    @tool(effect="keyed", seconds=1)
    async def pay(amount: int) -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 2 and then == "tool_error":
            raise ToolError("nothing happened, this time")
        if attempts == 2 and then == "error":
            raise OSError("no network")
        await trio.sleep_forever()

    outcome = await agent(PAY, tools=[pay]).run("go")
    assert attempts == 2
    assert [t.effect_status for t in outcome.tools] == [UNCERTAIN]
    assert str(outcome.stop) == "effect_uncertain"


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("effect", ["once", "keyed"])
async def test_what_reconcile_finds_is_what_happened(
    autojump_clock: MockClock, effect: str, happened: bool
) -> None:
    ledger = Ledger()
    pay = a_tool(
        ledger,
        effect=effect,
        charges=happened,
        answers_at=2,
        reconcile=_async(ledger.reconcile),
    )
    a = agent(PAY, "done", tools=[pay])
    outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    assert [t.effect_status for t in outcome.tools] == [CONFIRMED]
    assert last_told(a).content == "paid"
    starts = [e for e in kept(a) if isinstance(e, ToolStarted)]
    assert len(starts) == (1 if happened else 2), "what did not happen may run"
    (judged,) = (e for e in kept(a) if isinstance(e, EffectJudged))
    expected = Verdict.HAPPENED if happened else Verdict.DID_NOT_HAPPEN
    assert (judged.verdict, judged.by) == (expected, "reconcile")


def _async(fn: Callable[..., Any]) -> Callable[..., Any]:
    async def in_a_task(found: ToolCall, key: str) -> Any:
        await trio.sleep(0.1)
        return fn(found, key)

    return in_a_task


async def test_what_never_happens_is_begun_twice_at_most(
    autojump_clock: MockClock,
) -> None:
    ledger = Ledger()
    pay = a_tool(
        ledger, effect="once", charges=False, reconcile=_async(ledger.reconcile)
    )
    a = agent(PAY, "done", tools=[pay])
    outcome = await a.run("go")
    assert len([e for e in kept(a) if isinstance(e, ToolStarted)]) == 2
    assert [t.effect_status for t in outcome.tools] == [NOT_STARTED]
    assert outcome.status is Status.COMPLETED, "the model knows that nothing happened"
    assert last_told(a).content.startswith("Not started")


def _raises(_: ToolCall, __: str) -> Any:
    raise ConnectionError("sk-secret in the text")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda *_: Unknown("no such key yet"), "no such key yet"),
        (lambda *_: Unknown, ""),
        (lambda *_: True, "reconcile returned bool, which is no finding"),
        (lambda *_: "tell", "reconcile returned str, which is no finding"),
        (_raises, "reconcile failed: ConnectionError"),
    ],
)
async def test_who_cannot_tell_leaves_it_to_a_person(
    answer: Callable[..., Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(effect="once", reconcile=answer)
    async def pay(amount: int) -> str:
        raise OSError("cut")

    a = agent(PAY, tools=[pay])
    outcome = await a.run("go")
    assert str(outcome.stop) == "effect_uncertain"
    (judged,) = (e for e in kept(a) if isinstance(e, EffectJudged))
    assert (judged.verdict, judged.content) == (Verdict.UNKNOWN, said)
    assert "sk-secret" not in caplog.text
    assert outcome.resumable, "it may be asked again"


async def test_reconcile_has_the_tools_own_limit(autojump_clock: MockClock) -> None:
    async def hangs(_: ToolCall, __: str) -> None:
        await trio.sleep_forever()

    a = agent(PAY, tools=[a_tool(Ledger(), effect="once", reconcile=hangs)])
    outcome = await a.run("go")
    assert trio.current_time() == pytest.approx(2, abs=0.1)
    assert str(outcome.stop) == "effect_uncertain"


async def test_a_result_that_cannot_be_shown_does_not_lose_what_was_found() -> None:
    @tool(effect="once", reconcile=lambda *_: Happened(object()))
    async def pay(amount: int) -> str:
        raise OSError("cut")

    a = agent(PAY, "done", tools=[pay])
    outcome = await a.run("go")
    assert [t.effect_status for t in outcome.tools] == [CONFIRMED]
    assert "cannot be shown" in last_told(a).content


async def test_a_stop_leaves_reconcile_the_grace_of_the_cleanup(
    autojump_clock: MockClock,
) -> None:
    ledger = Ledger()
    pay = a_tool(ledger, effect="once", reconcile=_async(ledger.reconcile))
    a = agent(PAY, tools=[replace(pay, grace_seconds=0)])
    async with a.open("go") as run:
        await _until(run, ToolStarted)
        run.cancel("enough")
    assert run.outcome.status is Status.CANCELLED
    assert [t.effect_status for t in run.outcome.tools] == [CONFIRMED]
    assert ("reconcile pay", "finished") in [
        (c.name, c.ended) for c in run.outcome.cleanup
    ]


async def test_a_reconcile_that_hangs_during_a_stop_is_bounded_and_named(
    autojump_clock: MockClock,
) -> None:
    async def hangs(_: ToolCall, __: str) -> None:
        await trio.sleep_forever()

    pay = a_tool(Ledger(), effect="once", reconcile=hangs, grace_seconds=0)
    a = agent(PAY, tools=[pay], limits=Limits(grace_seconds=0.5))
    async with a.open("go") as run:
        await _until(run, ToolStarted)
        began = trio.current_time()
        run.cancel("enough")
    assert trio.current_time() - began < 1
    assert [t.effect_status for t in run.outcome.tools] == [UNCERTAIN]
    assert ("reconcile pay", "cancelled") in [
        (c.name, c.ended) for c in run.outcome.cleanup
    ]


async def test_a_thread_that_only_looks_is_left_behind_and_named() -> None:
    release, reached = threading.Event(), threading.Event()

    def hangs(_: ToolCall, __: str) -> None:
        reached.set()
        release.wait(20)

    @tool(effect="once", grace_seconds=0, reconcile=hangs)
    async def pay(amount: int) -> str:
        await trio.sleep_forever()

    a = agent(PAY, tools=[pay], limits=Limits(grace_seconds=0.2))
    try:
        async with a.open("go") as run:
            await _until(run, ToolStarted)
            run.cancel("enough")
    finally:
        release.set()
    assert reached.is_set()
    assert ("thread of reconcile pay", "abandoned") in [
        (c.name, c.ended) for c in run.outcome.cleanup
    ]


async def _until(run: Any, kind: type[KeptEvent]) -> None:
    async for event in run:
        if isinstance(event, kind):
            return


@pytest.mark.parametrize("in_thread", [False, True])
async def test_what_can_be_undone_is_undone_once_and_ends_the_run(
    in_thread: bool,
) -> None:
    ledger = Ledger()

    def undo(_: ToolCall, key: str) -> None:
        ledger.undone.append(key)

    @tool(effect="once", compensate=undo if in_thread else _async(undo))
    async def pay(amount: int, ctx: ToolContext) -> str:
        ledger.charges.append(ctx.idempotency_key)
        raise OSError("cut")

    a = agent(PAY, tools=[pay])
    outcome = await a.run("go")
    assert ledger.undone == ledger.charges
    assert (outcome.status, str(outcome.stop)) == (Status.STOPPED, "compensated")
    assert [t.effect_status for t in outcome.tools] == [NONE]
    events = [type(e) for e in kept(a)]
    assert events.index(CompensationStarted) < events.index(EffectJudged)
    check_history(outcome.history)

    b = replace(a, model=ScriptedModel(["so be it"]))
    outcome = await b.resume(outcome.run_id)
    assert outcome.output == "so be it"
    assert last_told(b).content.startswith("It was undone")
    assert len(ledger.undone) == 1


async def test_an_undo_that_fails_leaves_it_uncertain_and_is_not_tried_again() -> None:
    tries = 0

    def undo(_: ToolCall, __: str) -> None:
        nonlocal tries
        tries += 1
        raise OSError("cut too")

    @tool(effect="once", compensate=undo)
    async def pay(amount: int) -> str:
        raise OSError("cut")

    a = agent(PAY, tools=[pay])
    outcome = await a.run("go")
    assert str(outcome.stop) == "effect_uncertain"
    assert not outcome.resumable
    outcome = await a.resume(outcome.run_id)
    assert str(outcome.stop) == "effect_uncertain"
    assert tries == 1


async def test_a_read_is_repeated_only_if_asked_for(autojump_clock: MockClock) -> None:
    # Rule 59.
    tries = {"once": 0, "thrice": 0}

    @tool(effect="read", seconds=1)
    async def once() -> str:
        tries["once"] += 1
        await trio.sleep_forever()

    @tool(effect="read", seconds=1, retries=2)
    async def thrice() -> str:
        tries["thrice"] += 1
        if tries["thrice"] < 3:
            await trio.sleep_forever()
        return "there"

    a = agent([call("once"), call("thrice")], "done", tools=[once, thrice])
    outcome = await a.run("go")
    assert tries == {"once": 1, "thrice": 3}
    assert [t.ended for t in outcome.tools] == ["timeout", "done"]
    assert outcome.status is Status.COMPLETED


async def test_a_read_that_never_answers_is_a_failed_call(
    autojump_clock: MockClock,
) -> None:
    @tool(effect="read", seconds=1, retries=1)
    async def look() -> str:
        await trio.sleep_forever()

    outcome = await agent(call("look"), "done", tools=[look]).run("go")
    assert [t.ended for t in outcome.tools] == ["timeout"]
    assert outcome.status is Status.COMPLETED


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"effect": "read", "reconcile": print}, "reconcile does not go with"),
        ({"effect": "read", "compensate": print}, "compensate does not go with"),
        ({"effect": "once", "retries": 1}, "retries does not go with effect=once"),
        ({"effect": "read", "retries": -1}, "retries takes a finite number"),
        ({"effect": "once", "reconcile": "bank"}, "reconcile takes a function"),
    ],
)
def test_what_does_not_fit_the_effect_is_refused(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):

        @tool(**options)
        async def pay(amount: int) -> str:
            return ""


# What to do about what stays uncertain


async def test_told_that_it_is_unknown_the_model_cannot_repeat_it() -> None:
    ran = 0

    @tool(effect="once")
    async def pay(amount: int) -> str:
        nonlocal ran
        ran += 1
        if ran > 1:
            return "paid"
        raise OSError("cut")

    again = ToolCall("pay", '{ "amount" : 10 }', id="x")
    a = agent(PAY, again, call("pay", amount=11), "done", tools=[pay])
    a = replace(a, on_uncertain="tell")
    outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    assert ran == 2, "the same call was held, another amount is another payment"
    assert [t.ended for t in outcome.tools] == ["lost", "not_run", "done"]
    assert [t.name for t in outcome.uncertain] == ["pay"]
    told = [m for m in outcome.history if isinstance(m, ToolResult)]
    (start, *_) = (e for e in kept(a) if isinstance(e, ToolStarted))
    assert told[0].content.startswith("Outcome unknown")
    assert start.key in told[0].content
    assert "Do not repeat" in told[0].content
    assert "not repeated until somebody has looked" in told[1].content
    assert start.key not in repr(start)


async def test_a_new_run_with_the_old_history_does_not_repeat_it_either() -> None:
    @tool(effect="once")
    async def pay(amount: int) -> str:
        raise OSError("cut")

    first = await agent(PAY, tools=[pay]).run("go")
    ran: list[int] = []

    @tool(effect="once", name="pay")
    async def pay_again(amount: int) -> str:
        ran.append(amount)
        return "paid"

    a = agent(
        [call("pay", amount=1), PAY, call("pay", amount=2)], "done", tools=[pay_again]
    )
    outcome = await a.run("and now?", history=first.history)
    assert sorted(ran) == [1, 2]
    assert [t.ended for t in outcome.tools] == ["done", "not_run", "done"]


@pytest.mark.parametrize(
    ("answer", "status", "stop"),
    [
        (Happened("paid by hand"), CONFIRMED, None),
        (DidNotHappen(), CONFIRMED, None),  # it runs again, and this time it works
        (Unknown("ask again"), UNCERTAIN, "effect_uncertain"),
        ("review", UNCERTAIN, "effect_uncertain"),
        ("tell", UNCERTAIN, None),
        ("what?", UNCERTAIN, "effect_uncertain"),
    ],
)
async def test_a_policy_of_your_own_decides(
    answer: Any, status: EffectStatus, stop: str | None
) -> None:
    asked: list[str] = []
    ran = 0

    async def policy(found: ToolCall, key: str) -> Any:
        asked.append(found.name)
        await trio.lowlevel.checkpoint()
        return answer

    @tool(effect="once")
    async def pay(amount: int) -> str:
        nonlocal ran
        ran += 1
        if ran == 1:
            raise OSError("cut")
        return "paid"

    a = agent(PAY, "done", tools=[pay], on_uncertain=policy)
    outcome = await a.run("go")
    assert asked == ["pay"]
    assert outcome.stop_reason == stop
    assert [t.effect_status for t in outcome.tools] == [status]


async def test_a_policy_that_waits_for_a_person_ends_with_the_run(
    autojump_clock: MockClock,
) -> None:
    async def ask_somebody(_: ToolCall, __: str) -> str:
        await trio.sleep(100)
        return "tell"

    @tool(effect="once")
    async def pay(amount: int) -> str:
        raise OSError("cut")

    a = agent(PAY, "done", tools=[pay], on_uncertain=ask_somebody)
    assert (await a.run("go")).status is Status.COMPLETED
    a = agent(PAY, tools=[pay], on_uncertain=ask_somebody)
    outcome = await a.run("go", limits=Limits(seconds=10))
    assert outcome.status is Status.TIMED_OUT
    assert [t.effect_status for t in outcome.tools] == [UNCERTAIN]


@pytest.mark.parametrize("policy", ["maybe", None, 3])
def test_a_policy_that_is_none_is_refused(policy: Any) -> None:
    with pytest.raises(TypeError, match=r"Agent\(on_uncertain=…\)"):
        agent(on_uncertain=policy)


# Going on


async def crashed(a: Agent, at: type[KeptEvent]) -> str:
    """A run whose journal ends after the first event of a kind, as after a kill -9."""
    store = a.store
    assert isinstance(store, MemoryStore)
    dead = MemoryStore()
    outcome = await a.run("go")
    claim = 1
    for event in await store.load(outcome.run_id):
        await dead.append(outcome.run_id, event, claim=claim)
        if isinstance(event, at):
            break
    dead.release(outcome.run_id, claim)
    object.__setattr__(a, "store", dead)
    return outcome.run_id


def counting() -> tuple[list[str], list[Any]]:
    ran: list[str] = []

    @tool(effect="read")
    async def look() -> str:
        ran.append("look")
        return "seen"

    @tool(effect="keyed")
    async def book() -> str:
        ran.append("book")
        return "booked"

    @tool(effect="once")
    async def pay() -> str:
        ran.append("pay")
        return "paid"

    return ran, [look, book, pay]


@pytest.mark.parametrize(
    ("name", "at", "runs", "stop"),
    [
        ("pay", RunStarted, 1, None),
        ("pay", ModelAsked, 1, None),
        ("pay", ToolEnded, 0, None),  # confirmed: never again
        ("pay", ToolStarted, 0, "effect_uncertain"),
        ("book", ToolStarted, 1, None),  # again, with its key
        ("look", ToolStarted, 1, None),
        ("book", ToolEnded, 0, None),
    ],
)
async def test_a_resumed_run_does_what_is_left(
    name: str, at: type[KeptEvent], runs: int, stop: str | None
) -> None:
    # B24
    ran, tools = counting()
    a = agent(call(name), "done", tools=tools)
    run_id = await crashed(a, at)
    ran.clear()
    steps: list[Any] = (
        ["done"] if at in (ToolStarted, ToolEnded) else [call(name), "done"]
    )
    outcome = await replace(a, model=ScriptedModel(steps)).resume(run_id)
    assert ran == [name] * runs
    assert outcome.stop_reason == stop
    check_history(outcome.history)
    assert isinstance(a.store, MemoryStore)
    kinds = [type(e) for e in await a.store.load(run_id)]
    assert kinds.count(RunResumed) == 1
    assert kinds[-1] is RunEnded
    assert outcome.billed == "unknown", "whoever was lost may have had a request out"


async def test_nothing_begins_while_a_person_has_to_look() -> None:
    # B05: A done, B interrupted, C not started.
    ran, tools = counting()
    a = agent([call("look"), call("pay"), call("book")], "done", tools=tools)
    run_id = await crashed(a, RunStarted)
    store = a.store
    assert isinstance(store, MemoryStore)
    claim = await store.claim(run_id)
    calls = tuple(
        ToolCall(name, "{}", id=name, turn=1, position=position)
        for position, name in enumerate(("look", "pay", "book"))
    )
    for event in (
        RunResumed(claim=claim),
        ModelAsked(1),
        ModelReplied(Reply(tool_calls=calls, finish_reason="tool_calls")),
        ToolStarted(calls[0], Effect.READ),
        ToolStarted(calls[1], Effect.ONCE),
        ToolEnded(call=calls[0], content="seen"),
    ):
        await store.append(run_id, event, claim=claim)
    store.release(run_id, claim)
    ran.clear()
    b = replace(a, model=ScriptedModel(["done"]))
    outcome = await b.resume(run_id)
    assert ran == []
    assert [t.ended for t in outcome.tools] == ["done", "interrupted", "not_run"]
    check_history(outcome.history)
    assert not outcome.resumable

    claim = await store.claim(run_id)
    happened = EffectJudged(
        call=calls[1], verdict=Verdict.HAPPENED, by="person", content="it was paid"
    )
    await store.append(run_id, happened, claim=claim)
    store.release(run_id, claim)
    outcome = await b.resume(run_id)
    assert ran == ["book"], "what was left"
    assert outcome.status is Status.COMPLETED
    told = [m.content for m in outcome.history if isinstance(m, ToolResult)]
    assert told == ["seen", "it was paid", "booked"]
    check_history(outcome.history)


async def test_an_effect_settled_later_is_news_for_the_model() -> None:
    @tool(effect="once")
    async def pay(amount: int) -> str:
        raise OSError("cut")

    a = agent(PAY, [Hang()], tools=[pay], on_uncertain="tell")
    async with a.open("go") as run:
        async for event in run:
            if isinstance(event, ModelAsked) and event.turn == 2:
                break
    store = a.store
    assert isinstance(store, MemoryStore)
    (lost,) = (e.call for e in store.events if isinstance(e, ToolLost))
    claim = await store.claim(run.id)
    for verdict in (Verdict.UNKNOWN, Verdict.HAPPENED):
        event = EffectJudged(call=lost, verdict=verdict, by="person", content="by hand")
        await store.append(run.id, event, claim=claim)
    store.release(run.id, claim)
    b = replace(a, model=ScriptedModel(["fine"]))
    outcome = await b.resume(run.id)
    assert outcome.uncertain == ()
    model: Any = b.model
    news = model.requests[0].messages[-1]
    assert isinstance(news, UserMessage)
    assert news.text.endswith("Now it is known: by hand")
    check_history(outcome.history)


async def test_a_completed_run_refuses_to_be_resumed() -> None:
    a = agent("done")
    outcome = await a.run("go")
    assert not outcome.resumable
    with pytest.raises(ValueError, match="is completed, there is nothing left to do"):
        await a.resume(outcome.run_id)
    with pytest.raises(ValueError, match="is completed"):
        async with a.open(resume=outcome.run_id):
            pass


async def test_a_run_is_resumed_by_its_own_agent_only() -> None:
    a = agent([Hang()], name="payer")
    outcome = await a.run("go", limits=Limits(reply_seconds=0.01))
    assert outcome.status is Status.FAILED
    with pytest.raises(ValueError, match="of the agent 'payer', not of 'other'"):
        await replace(a, name="other").resume(outcome.run_id)
    assert (await replace(a, model=ScriptedModel(["ok"])).resume(outcome.run_id)).output


async def test_what_cannot_be_resumed_says_why() -> None:
    with pytest.raises(ValueError, match=r"give Agent\(store=…\)"):
        await agent(store=None).resume("x")
    with pytest.raises(StoreError, match="no run 'x'") as found:
        await agent().resume("x")
    assert found.value.code == "unknown_run"
    for wrong in ({}, {"prompt": "go", "resume": "x"}):
        with pytest.raises(TypeError, match="open takes a prompt, or resume="):
            async with agent().open(**wrong):
                pass


async def test_a_journal_that_cannot_be_is_corrupt() -> None:
    a = agent("done")
    store = a.store
    assert isinstance(store, MemoryStore)
    await store.append("r", RunStarted(run_id="r", agent="agent"), claim=1)
    await store.append("r", ToolLost(call=PAY, problem=""), claim=1)
    store.release("r", 1)
    with pytest.raises(StoreError, match="the journal of the run r cannot be") as found:
        await a.resume("r")
    assert found.value.code == "corrupt"
    assert await store.claim("r"), "and it is free again"


async def test_one_resumes_and_the_other_is_told() -> None:
    a = agent([Hang()])
    outcome = await a.run("go", limits=Limits(reply_seconds=0.01))
    hang, more = Hang(), Limits(reply_seconds=60)
    b = replace(a, model=ScriptedModel([[hang], "done"]))
    with pytest.raises(StoreError, match="taken over") as fenced:
        async with b.open(resume=outcome.run_id, limits=more) as run:
            await hang.reached.wait()
            with pytest.raises(StoreError) as found:
                await b.resume(outcome.run_id)
            assert found.value.code == "owned"
            taken = await b.resume(outcome.run_id, take_over=True, limits=more)
            assert taken.output == "done"
            run.cancel()
            await trio.sleep_forever()
    assert fenced.value.code == "fenced"
    assert isinstance(a.store, MemoryStore)
    ends = [e for e in a.store.events if isinstance(e, RunEnded)]
    assert [e.status for e in ends] == [Status.FAILED, Status.COMPLETED]


async def test_a_resumed_run_has_only_the_time_that_was_left(
    autojump_clock: MockClock,
) -> None:
    # B42: 0.6 s, five seconds of rest, and 0.4 s more.
    hang, limits = [Hang()], Limits(seconds=1, reply_seconds=0.6)
    a = agent(hang, [Hang()], limits=limits)
    outcome = await a.run("go")
    assert outcome.status is Status.FAILED
    assert trio.current_time() == pytest.approx(0.6)
    await trio.sleep(5)
    began = trio.current_time()
    outcome = await a.resume(outcome.run_id)
    assert outcome.status is Status.TIMED_OUT
    assert trio.current_time() - began == pytest.approx(0.4)
    assert not outcome.resumable
    model: Any = a.model
    asked = len(model.requests)
    outcome = await a.resume(outcome.run_id)
    assert outcome.status is Status.TIMED_OUT
    assert len(model.requests) == asked, "nothing left, no request"
    b = replace(a, model=ScriptedModel(["in time"]))
    outcome = await b.resume(outcome.run_id, limits=Limits(seconds=10))
    assert outcome.output == "in time"


async def test_no_time_is_left_and_still_reconcile_is_asked(
    autojump_clock: MockClock,
) -> None:
    ledger = Ledger()
    pay = a_tool(ledger, effect="once", grace_seconds=0)
    a = agent(PAY, tools=[pay])
    outcome = await a.run("go", limits=Limits(seconds=0.5))
    assert outcome.uncertain
    pay = replace(pay, reconcile=_async(ledger.reconcile))
    b = replace(a, model=ScriptedModel([]), tools=[pay])
    outcome = await b.resume(outcome.run_id)
    assert outcome.status is Status.TIMED_OUT
    assert outcome.uncertain == ()


async def test_limits_and_conditions_of_the_call_go_on(
    autojump_clock: MockClock,
) -> None:
    _, tools = counting()
    a = agent(call("look"), call("look"), [Hang()], tools=tools)
    outcome = await a.run(
        "go",
        limits=Limits(reply_seconds=1, turns=7),
        stop_when=[step_count_is(4), max_tokens_used(100), max_duration(9_000)],
    )
    assert outcome.status is Status.FAILED
    b = replace(a, model=ScriptedModel([call("look"), call("look")]))
    async with b.open(resume=outcome.run_id) as run:
        assert run.limits.turns == 7
        assert run.limits.reply_seconds == 1
    outcome = await b.resume(outcome.run_id)
    assert outcome.stop_reason == "step_count:4"
    assert not outcome.resumable
    used = outcome.usage
    outcome = await replace(a, model=ScriptedModel([])).resume(outcome.run_id)
    assert outcome.stop_reason == "step_count:4"
    assert outcome.usage == used


async def test_the_turn_limit_counts_anew_in_each_call() -> None:
    _, tools = counting()
    a = agent(*[call("look")] * 4, "done", tools=tools, limits=Limits(turns=2))
    outcome = await a.run("go")
    assert (outcome.status, outcome.turns) == (Status.MAX_TURNS, 2)
    outcome = await a.resume(outcome.run_id)
    assert (outcome.status, outcome.turns) == (Status.MAX_TURNS, 4)
    assert outcome.resumable
    outcome = await a.resume(outcome.run_id)
    assert (outcome.status, outcome.output) == (Status.COMPLETED, "done")


async def test_an_answer_that_was_there_is_not_asked_for_again() -> None:
    a = agent("the answer")
    run_id = await crashed(a, RunStarted)
    store = a.store
    assert isinstance(store, MemoryStore)
    claim = await store.claim(run_id)
    for event in (
        RunResumed(claim=claim),
        ModelAsked(1),
        ModelReplied(Reply(text="the answer", usage=Usage(input_tokens=1))),
    ):
        await store.append(run_id, event, claim=claim)
    store.release(run_id, claim)
    outcome = await replace(a, model=ScriptedModel([])).resume(run_id)
    assert outcome.output == "the answer"
    assert outcome.status is Status.COMPLETED


async def test_a_call_stopped_before_its_first_line_runs_after_a_resume() -> None:
    ran, tools = counting()

    class Stopping(MemoryStore):
        async def append(self, run_id: str, event: KeptEvent, **how: Any) -> None:
            await super().append(run_id, event, **how)
            if isinstance(event, ToolStarted) and event.attempt == 1:
                run.cancel("now")

    a = agent(call("pay"), "done", tools=tools, store=Stopping())
    async with a.open("go") as run:
        async for _ in run:
            pass
    assert ran == []
    assert [t.effect_status for t in run.outcome.tools] == [NOT_STARTED]
    assert run.resume_decision.reason == "calls to finish: pay"
    first = run
    async with a.open(resume=first.id) as run:
        async for _ in run:
            pass
    assert run.outcome.status is Status.CANCELLED, "stopped at the same place"
    b = replace(a, store=_without_stops(a.store))
    outcome = await b.resume(first.id)
    assert ran == ["pay"]
    assert outcome.status is Status.COMPLETED


def _without_stops(store: Any) -> MemoryStore:
    store.__class__ = MemoryStore
    assert isinstance(store, MemoryStore)
    return store


@pytest.mark.parametrize("missing", [True, False])
async def test_a_tool_that_is_gone_leaves_its_effect_to_a_person(missing: bool) -> None:
    _, tools = counting()
    a = agent(call("book"), "done", tools=tools)
    run_id = await crashed(a, ToolStarted)

    @tool(name="book", effect="keyed")
    async def book_by_date(date: str) -> str:
        return "booked"

    left = [] if missing else [book_by_date]
    b = replace(a, tools=left, model=ScriptedModel([]))
    outcome = await b.resume(run_id)
    assert outcome.stop_reason == "effect_uncertain"
    assert [t.effect_status for t in outcome.tools] == [UNCERTAIN]


async def test_a_fallback_that_was_cut_is_looked_up_as_itself() -> None:
    ledger = Ledger()

    @tool(effect="once", reconcile=lambda *_: Happened("by the fallback"))
    async def cheap(amount: int) -> str:
        raise OSError("cut")

    @tool(effect="once", needs_seconds=1_000, fallback=cheap)
    async def pay(amount: int) -> str:
        ledger.charges.append("never")
        return ""

    a = agent(PAY, "done", tools=[pay])
    outcome = await a.run("go")
    assert ledger.charges == []
    assert last_told(a).content == "by the fallback"
    assert outcome.status is Status.COMPLETED


async def test_what_the_journal_tells_is_what_the_run_knew() -> None:
    ran, tools = counting()
    a = agent([call("look"), call("pay")], call("book"), "done", tools=tools)
    async with a.open("go") as run:
        async for _ in run:
            pass
    state = RunState.replay(kept(a))
    assert state.messages == run.state.messages
    assert state.usage == run.state.usage
    assert state.elapsed_ms == run.state.elapsed_ms
    model: Any = a.model
    assert tuple(state.messages[:-1]) == model.requests[-1].messages
    assert ran == ["look", "pay", "book"]


# Observers


async def test_observers_see_what_is_kept_and_cannot_break_a_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[tuple[str, KeptEvent]] = []

    def bad(_: str, event: KeptEvent) -> None:
        raise RuntimeError("oops")

    a = agent("done", observers=[bad, lambda run_id, e: seen.append((run_id, e))])
    outcome = await a.run("go")
    assert [e for _, e in seen] == kept(a)
    assert {run_id for run_id, _ in seen} == {outcome.run_id}
    assert "an observer failed at RunStarted" in caplog.text
    with pytest.raises(TypeError, match=r"Agent\(observers=…\)"):
        agent(observers=["print"])


async def test_the_decision_to_resume_is_told_with_its_reason() -> None:
    @tool(effect="once")
    async def pay(amount: int) -> str:
        raise OSError("cut")

    async with agent(PAY, tools=[pay]).open("go") as run:
        async for _ in run:
            pass
    assert run.resume_decision.action == "review"
    assert "pay (call 1.0)" in run.resume_decision.reason
    async with agent("x", store=None).open("go") as run:
        pass
    assert run.resume_decision.action == "stop"
    async with agent([Hang()]).open("go") as run:
        pass
    assert run.resume_decision.action == "resume"
    assert run.outcome.resumable


async def test_tool_not_run_is_no_end_of_an_effect_in_doubt() -> None:
    _, tools = counting()
    a = agent(call("book"), "done", tools=tools)
    run_id = await crashed(a, ToolStarted)
    needy = [replace(t, needs_seconds=10_000) for t in tools]
    outcome = await replace(a, tools=needy, model=ScriptedModel([])).resume(run_id)
    assert [t.effect_status for t in outcome.tools] == [UNCERTAIN]
    events = await a.store.load(run_id)  # type: ignore[union-attr]
    assert any(isinstance(e, ToolNotRun) and e.code == "budget" for e in events)


# A store that fails


@pytest.mark.parametrize("fails_at", range(1, 14))
async def test_where_the_disk_is_full_nothing_begins_and_a_resume_goes_on(
    fails_at: int,
) -> None:
    ran, tools = counting()
    left = fails_at

    class Full(MemoryStore):
        async def append(self, run_id: str, event: KeptEvent, **how: Any) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                raise StoreError("no space is left", code="full")
            await super().append(run_id, event, **how)

    steps = [[call("look"), call("pay")], call("book"), "done"]

    def by_turn(request: Any) -> Any:
        return steps[request.turn - 1]

    a = agent(*[by_turn] * 9, tools=tools, store=Full())
    with pytest.raises(StoreError, match="no space is left"):
        await a.run("go", run_id="r")
    a = replace(a, store=_without_stops(a.store))
    assert a.store is not None
    if fails_at == 1:
        assert await a.store.runs() == []
        return
    events = await a.store.load("r")
    begun = {e.call.name for e in events if isinstance(e, ToolStarted)}
    assert set(ran) <= begun, "nothing runs whose start was not kept"
    outcome = await a.resume("r")
    if outcome.uncertain:
        assert outcome.stop_reason == "effect_uncertain"
    else:
        assert outcome.status is Status.COMPLETED
    assert ran.count("pay") <= 1


async def test_a_store_that_hangs_when_a_run_goes_on_is_bounded(
    autojump_clock: MockClock,
) -> None:
    class Hanging(MemoryStore):
        async def append(self, run_id: str, event: KeptEvent, **how: Any) -> None:
            if isinstance(event, RunResumed):
                await trio.sleep_forever()
            await super().append(run_id, event, **how)

    a = agent([Hang()], store=Hanging())
    outcome = await a.run("go", limits=Limits(reply_seconds=1))
    with pytest.raises(StoreError, match="did not keep RunResumed") as found:
        await a.resume(outcome.run_id)
    assert found.value.code == "hung"
    b = replace(a, store=_without_stops(a.store), model=ScriptedModel(["done"]))
    assert (await b.resume(outcome.run_id)).output == "done"


def test_what_cannot_be_judged_is_impossible() -> None:
    state = RunState.replay(
        [
            RunStarted(run_id="r"),
            ModelAsked(1),
            ModelReplied(Reply(tool_calls=(ToolCall("look", turn=1),))),
        ]
    )
    look = ToolCall("look", turn=1)
    judged = EffectJudged(call=look, verdict=Verdict.HAPPENED, by="person")
    with pytest.raises(ImpossibleEvent, match="is not uncertain"):
        state.apply(judged)
    state.apply(RunEnded(Status.COMPLETED))
    with pytest.raises(ImpossibleEvent, match="a completed run was resumed"):
        state.apply(RunResumed(claim=2))


async def test_arguments_that_are_no_json_are_no_repeat() -> None:
    @tool(effect="once")
    async def pay(amount: int) -> str:
        raise OSError("cut")

    a = agent(PAY, ToolCall("pay", "{"), "done", tools=[pay], on_uncertain="tell")
    outcome = await a.run("go")
    assert outcome.tools[1].problem.startswith("Not started: the arguments")


async def test_what_a_write_depends_on_must_last_and_a_read_waits_for_nobody() -> None:
    lasts: dict[str, set[bool]] = {}

    class Noting(MemoryStore):
        async def append(self, run_id: str, event: KeptEvent, **how: Any) -> None:
            name = type(event).__name__
            if isinstance(event, ToolStarted | ToolEnded):
                name = f"{name} {event.call.name}"
            lasts.setdefault(name, set()).add(how["durable"])
            await super().append(run_id, event, **how)

    @tool(effect="once", compensate=lambda *_: None)
    async def lose() -> str:
        raise OSError("cut")

    _, tools = counting()
    calls = [call("look"), call("pay"), call("nobody")]
    a = agent(calls, call("lose"), tools=[*tools, lose], store=Noting())
    await a.run("go")
    waits = {name for name, durable in lasts.items() if durable == {True}}
    lingers = {name for name, durable in lasts.items() if durable == {False}}
    assert waits == {
        "RunStarted",
        "ToolStarted pay",
        "ToolEnded pay",
        "ToolStarted lose",
        "ToolLost",
        "CompensationStarted",
        "EffectJudged",
        "RunEnded",
    }
    assert lingers == {
        "ModelAsked",
        "ModelReplied",
        "ToolStarted look",
        "ToolEnded look",
        "ToolNotRun",
    }


async def test_who_could_not_tell_is_asked_again_by_a_resume() -> None:
    answers: list[Any] = [Unknown("not yet"), Happened("there it is")]

    @tool(effect="once", reconcile=lambda *_: answers.pop(0))
    async def pay(amount: int) -> str:
        raise OSError("cut")

    a = agent(PAY, "done", tools=[pay])
    outcome = await a.run("go")
    assert outcome.stop_reason == "effect_uncertain"
    outcome = await a.resume(outcome.run_id)
    assert outcome.output == "done"
    assert last_told(a).content == "there it is"


async def test_of_a_run_without_an_end_nobody_knows_the_bill() -> None:
    a = agent(call("pay"), "done", tools=counting()[1])
    run_id = await crashed(a, ToolEnded)
    assert a.store is not None
    outcome = Outcome.of(RunState.replay(await a.store.load(run_id)))
    assert (outcome.status, outcome.billed) == (Status.INTERRUPTED, "unknown")
    assert outcome.resumable
