"""Retries, fallbacks and the breaker: rules 73 to 78, 88, 98 to 104; B31 and B32."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trioagent import (
    Again,
    Agent,
    AnyEvent,
    CircuitBreaker,
    Failure,
    KeptEvent,
    Limits,
    ModelAsked,
    ModelCut,
    ModelError,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    Reply,
    Status,
    TextDelta,
    UsageReported,
    max_cost,
    max_tokens_used,
    retries,
    tool,
)
from trioagent._events import Usage
from trioagent.testing import BlockingModel, Hang, MemoryStore, ScriptedModel, call

DOWN = ModelUnavailable("down", status=503, kind="overloaded")
SLOW = ModelTimeout("slow", scope="reply")
QUOTA = ModelRefused("no money", status=429, kind="insufficient_quota")


def agent(*steps: Any, **options: Any) -> Agent:
    options.setdefault("store", MemoryStore())
    return Agent(ScriptedModel(steps), **options)


def journal(a: Agent) -> list[KeptEvent]:
    assert isinstance(a.store, MemoryStore)
    return a.store.events


def asked(model: Any) -> int:
    assert isinstance(model, ScriptedModel)
    return len(model.requests)


def attempts(a: Agent) -> list[tuple[int, int, str, str, bool]]:
    return [
        (e.turn, e.attempt, e.model, e.why, e.restarts)
        for e in journal(a)
        if isinstance(e, ModelAsked)
    ]


@pytest.mark.parametrize("error", [DOWN, SLOW])
async def test_a_passing_failure_is_tried_once_more(
    autojump_clock: MockClock, error: ModelError
) -> None:
    a = agent(error, "fine")
    assert (await a.run("go")).unwrap() == "fine"
    assert trio.current_time() <= 0.5
    assert attempts(a) == [
        (1, 1, "scripted:model", "", False),
        (1, 2, "scripted:model", error.kind or "llm_timeout", False),
    ]


async def test_a_second_failure_is_the_end(autojump_clock: MockClock) -> None:
    # Rule 98: not three tries of ten minutes.
    a = agent(DOWN, DOWN, "never")
    outcome = await a.run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "llm_unavailable")
    assert asked(a.model) == 2
    assert outcome.billed == "unknown"


async def test_each_turn_has_its_own_attempts(autojump_clock: MockClock) -> None:
    @tool(effect="read")
    async def look() -> str:
        await trio.lowlevel.checkpoint()
        return "seen"

    a = agent(DOWN, call("look"), DOWN, "done", tools=[look])
    assert (await a.run("go")).unwrap() == "done"
    assert [(turn, n) for turn, n, *_ in attempts(a)] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    ]


@pytest.mark.parametrize("error", [QUOTA, ModelRefused("bad key", status=401)])
async def test_what_will_not_help_is_never_tried_again(error: ModelError) -> None:
    # Rule 101: fail closed, also with a policy that always says yes and a fallback.
    other = ScriptedModel(["never"])
    a = agent(error, "never", retry=lambda failure: Again(), fallback=[other])
    outcome = await a.run("go")
    assert outcome.stop_reason == "llm_refused"
    assert (asked(a.model), asked(other)) == (1, 0)


async def test_a_stop_is_never_tried_again(autojump_clock: MockClock) -> None:
    # Rule 99, B32: no further attempt, and the fallback gets no request.
    hang, other = Hang(), ScriptedModel(["never"])
    policy_asked: list[Failure] = []

    def eager(failure: Failure) -> Again:
        policy_asked.append(failure)
        return Again()

    a = agent([hang], "never", retry=eager, fallback=[other])
    async with a.open("go") as run:
        await hang.reached.wait()
        run.cancel()
    assert run.outcome.status is Status.CANCELLED
    assert (asked(a.model), asked(other), policy_asked) == (1, 0, [])


async def test_a_stop_during_the_pause_ends_it(autojump_clock: MockClock) -> None:
    # B55 (d): the same kind of end as everywhere.
    a = agent(DOWN, "never", retry=lambda failure: Again(seconds=100))
    async with a.open("go") as run:
        await trio.sleep(1)
        run.cancel("enough")
    assert trio.current_time() == 1
    assert run.outcome.stop_reason == "user"
    assert asked(a.model) == 1


async def test_nothing_is_asked_after_visible_output(autojump_clock: MockClock) -> None:
    # B31
    a = agent(["Half an", DOWN], "never")
    outcome = await a.run("go")
    assert (outcome.status, outcome.text) == (Status.FAILED, "Half an")
    assert asked(a.model) == 1
    cut = next(e for e in journal(a) if isinstance(e, ModelCut))
    assert cut.shown


async def test_a_restart_is_an_event_and_nothing_is_glued(
    autojump_clock: MockClock,
) -> None:
    # B31
    a = agent(["Half an", DOWN], "A whole answer", retry=retries(restart=True))
    seen: list[AnyEvent] = []
    async with a.open("go") as run:
        seen.extend([event async for event in run])
    assert run.outcome.unwrap() == "A whole answer"
    again = next(e for e in seen if isinstance(e, ModelAsked) and e.attempt == 2)
    after = seen[seen.index(again) :]
    text = "".join(e.text for e in after if isinstance(e, TextDelta))
    assert (again.restarts, text) == (True, "A whole answer")
    assert [type(m).__name__ for m in run.outcome.history] == ["UserMessage", "Reply"]


async def test_usage_alone_is_not_visible(autojump_clock: MockClock) -> None:
    usage = Usage(input_tokens=7)
    a = agent([UsageReported(usage), DOWN], "fine")
    outcome = await a.run("go")
    assert outcome.unwrap() == "fine"
    assert outcome.usage.input_tokens == 7 + 1  # what was cut was billed as well


async def test_the_provider_says_how_long_to_wait(autojump_clock: MockClock) -> None:
    wait = ModelUnavailable("later", status=429, retry_after=20)
    assert (await agent(wait, "fine").run("go")).unwrap() == "fine"
    assert trio.current_time() == 20


async def test_a_wait_that_does_not_fit_fails_now(autojump_clock: MockClock) -> None:
    wait = ModelUnavailable("later", status=429, retry_after=20)
    a = agent(wait, "never", limits=Limits(seconds=15))
    outcome = await a.run("go")
    assert (outcome.status, trio.current_time()) == (Status.FAILED, 0)
    # A policy of one's own cannot overrun the time either.
    a = agent(
        DOWN, "never", retry=lambda f: Again(seconds=99), limits=Limits(seconds=9)
    )
    assert (await a.run("go")).status is Status.FAILED


async def test_attempts_and_pauses_are_inside_the_deadline(
    autojump_clock: MockClock,
) -> None:
    a = Agent(
        BlockingModel(),
        retry=retries(99),
        limits=Limits(seconds=100, first_token_seconds=30),
    )
    outcome = await a.run("go")
    assert (outcome.status, trio.current_time()) == (Status.TIMED_OUT, 100)


def test_the_pause_doubles_and_is_random() -> None:
    policy = retries(9, chance=random.Random(1))
    pauses: list[float] = []
    for attempt in range(1, 10):
        failure = Failure(error=DOWN, attempt=attempt, shown=False, seconds_left=60)
        again = policy(failure)
        assert again
        assert again.seconds <= min(8, 0.5 * 2 ** (attempt - 1))
        pauses.append(again.seconds)
    assert len(set(pauses)) == 9
    last = Failure(error=DOWN, attempt=10, shown=False, seconds_left=60)
    assert policy(last) is None
    with pytest.raises(ValueError, match="times"):
        retries(-1)


def test_an_error_may_know_better_than_its_kind() -> None:
    assert ModelUnavailable("down").may_retry
    assert not ModelUnavailable("down", may_retry=False).may_retry


# Fallbacks


async def test_a_fallback_answers_and_says_why(autojump_clock: MockClock) -> None:
    other = ScriptedModel(["from the other"])
    a = agent(DOWN, DOWN, fallback=[other])
    assert (await a.run("go")).unwrap() == "from the other"
    assert [(n, why) for _, n, _, why, _ in attempts(a)] == [
        (1, ""),
        (2, "overloaded"),
        (3, "overloaded"),
    ]


async def test_the_next_turn_begins_with_the_first_again(
    autojump_clock: MockClock,
) -> None:
    @tool(effect="read")
    async def look() -> str:
        await trio.lowlevel.checkpoint()
        return "seen"

    other = ScriptedModel([call("look")])
    a = agent(DOWN, "done", fallback=[other], retry=retries(0), tools=[look])
    assert (await a.run("go")).unwrap() == "done"
    assert asked(other) == 1


async def test_fallbacks_run_out(autojump_clock: MockClock) -> None:
    a = agent(DOWN, DOWN, fallback=[ScriptedModel([SLOW, SLOW])])
    outcome = await a.run("go")
    assert outcome.stop_reason == "llm_timeout"


def test_a_fallback_is_checked_like_a_model() -> None:
    with pytest.raises(ValueError, match="no provider 'nobody'"):
        agent("x", fallback=["nobody:x"])
    with pytest.raises(TypeError, match="or a model, not 7"):
        agent("x", fallback=[7])


# The breaker


async def test_five_failures_in_a_row_open_it(autojump_clock: MockClock) -> None:
    # Rule 103
    breaker = CircuitBreaker()
    a = agent(*[DOWN] * 5, "fine", retry=retries(0), breaker=breaker, store=None)
    endpoint = a.model.endpoint  # type: ignore[union-attr]
    for _ in range(5):
        assert breaker.state(endpoint) == "closed"
        await a.run("go")
    assert breaker.state(endpoint) == "open"
    outcome = await a.run("go")
    assert outcome.stop
    assert "left alone for another 30 s" in outcome.stop.detail
    assert (asked(a.model), outcome.billed) == (5, "known")
    await trio.sleep(30)
    assert breaker.state(endpoint) == "half_open"
    assert (await a.run("go")).unwrap() == "fine"
    assert breaker.state(endpoint) == "closed"


async def test_only_one_request_probes_and_its_failure_opens_it_again(
    autojump_clock: MockClock,
) -> None:
    breaker = CircuitBreaker(failures=1, open_seconds=10)
    breaker.note("x", SLOW)
    await trio.sleep(10)
    assert breaker.refuses("x") is None
    assert breaker.refuses("x") == 10
    breaker.note("x", DOWN)
    assert breaker.refuses("x") == 10
    await trio.sleep(10)
    assert breaker.refuses("x") is None  # and this one is never heard of again
    await trio.sleep(10)
    assert breaker.refuses("x") is None


@pytest.mark.parametrize(
    "error",
    [
        ModelRefused("bad key", status=401),
        ModelUnavailable("too many", status=429),
        ModelUnavailable("conflict", status=409),
        ModelError("odd"),
    ],
)
async def test_what_a_client_did_does_not_open_it(error: ModelError) -> None:
    breaker = CircuitBreaker(failures=1)
    breaker.note("x", error)
    assert breaker.state("x") == "closed"


async def test_a_user_stop_does_not_feed_it(autojump_clock: MockClock) -> None:
    # Rule 104
    breaker = CircuitBreaker(failures=1)
    hang = Hang()
    a = agent([hang], breaker=breaker)
    async with a.open("go") as run:
        await hang.reached.wait()
        run.cancel()
    assert breaker.state(a.model.endpoint) == "closed"  # type: ignore[union-attr]


async def test_a_success_in_between_starts_the_count_again() -> None:
    breaker = CircuitBreaker(failures=2)
    breaker.note("x", DOWN)
    breaker.note("x", None)
    breaker.note("x", DOWN)
    assert breaker.refuses("x") is None


async def test_an_open_breaker_leads_to_the_fallback_at_once(
    autojump_clock: MockClock,
) -> None:
    breaker = CircuitBreaker(failures=1)
    other = ScriptedModel(["a", "b"])
    a = agent(DOWN, retry=retries(0), breaker=breaker, fallback=[other])
    await a.run("go", run_id="one")
    assert (await a.run("go", run_id="two")).unwrap() == "b"
    assert asked(a.model) == 1
    store = a.store
    assert isinstance(store, MemoryStore)
    (only,) = (e for e in await store.load("two") if isinstance(e, ModelAsked))
    assert (only.attempt, only.why) == (2, "breaker_open")


def test_a_breaker_takes_bounds_that_make_sense() -> None:
    with pytest.raises(ValueError, match="above 0"):
        CircuitBreaker(failures=0)


# Money


def price(model: str, usage: Usage) -> float:
    return ((usage.input_tokens or 0) + 10 * (usage.output_tokens or 0)) / 1_000_000


async def test_a_cost_limit_caps_the_next_request() -> None:
    a = agent("ok", price=price, stop_when=[max_cost(0.002)])
    await a.run("go")
    assert isinstance(a.model, ScriptedModel)
    assert a.model.requests[0].max_output_tokens == 200


async def test_a_reply_that_passes_the_cost_limit_is_cut() -> None:
    steps = ["a", UsageReported(Usage(input_tokens=5, output_tokens=500)), Hang()]
    limits = [max_tokens_used(10_000), max_cost(0.002)]
    outcome = await agent(steps, price=price, stop_when=limits).run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.STOPPED, "max_cost:0.002")
    assert outcome.usage.output_tokens == 500


async def test_each_model_is_priced_by_its_own_name(autojump_clock: MockClock) -> None:
    class Dear(ScriptedModel):
        def __init__(self, steps: Any) -> None:
            super().__init__(steps)
            self.name = "dear:model"

    names: list[str] = []

    def note(model: str, usage: Usage) -> float:
        names.append(model)
        return 1.0

    a = agent(DOWN, price=note, fallback=[Dear(["ok"])], retry=retries(0))
    outcome = await a.run("go")
    assert names[-1] == "dear:model"
    assert outcome.usage.cost == 1.0
    with pytest.raises(ValueError, match="no price is known for dear:model"):
        await agent(
            "never",
            price=lambda model, usage: None if model == "dear:model" else 0.0,
            fallback=[Dear([])],
        ).run("go", stop_when=[max_cost(1)])


async def test_one_connection_serves_a_fallback_for_the_whole_run(
    autojump_clock: MockClock,
) -> None:
    class Entered(ScriptedModel):
        entered = left = 0

        async def __aenter__(self) -> Entered:
            self.entered += 1
            await trio.lowlevel.checkpoint()
            return self

        async def __aexit__(self, *error: object) -> None:
            self.left += 1
            await trio.lowlevel.checkpoint()

    @tool(effect="read")
    async def look() -> str:
        await trio.lowlevel.checkpoint()
        return "seen"

    first, other = Entered([DOWN, DOWN]), Entered([call("look"), Reply(text="ok")])
    a = Agent(first, fallback=[other], retry=retries(0), tools=[look])
    assert (await a.run("go")).unwrap() == "ok"
    assert (first.entered, first.left) == (1, 1)
    assert (other.entered, other.left) == (1, 1)
