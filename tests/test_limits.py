"""Limits and stop conditions: rules 119 to 141, and B14 to B17 of the cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trioagent import (
    Agent,
    Limits,
    Reply,
    RunState,
    Status,
    StopCondition,
    Usage,
    finish_reason_is,
    has_tool_call,
    max_cost,
    max_duration,
    max_tokens_used,
    step_count_is,
    tool,
)
from trioagent.testing import ScriptedModel, call


@tool(effect="read")
async def read(seconds: float = 0.01) -> str:
    await trio.sleep(seconds)
    return "read"


@tool(effect="once")
async def issue_refund() -> str:
    await trio.lowlevel.checkpoint()
    return "refunded"


@tool(effect="read")
async def broken() -> None:
    await trio.lowlevel.checkpoint()
    raise ValueError("no")


def agent(*steps: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(steps), tools=[read, issue_refund, broken], **options)


async def stopped(a: Agent, *conditions: StopCondition) -> tuple[str, str | None, int]:
    """Status, reason and turns, the same at the agent, at the call, and streamed."""
    told: list[tuple[str, str | None, int]] = []
    steps = list(a.model._steps)  # type: ignore[union-attr]

    def fresh(**options: Any) -> Agent:
        return agent(*steps, price=a.price, limits=a.limits, **options)

    for one, given in ((fresh(stop_when=conditions), ()), (fresh(), conditions)):
        outcome = await one.run("go", stop_when=given)
        told.append((outcome.status, outcome.stop_reason, outcome.turns))
        one = fresh(stop_when=conditions[:1])
        async with one.open("go", stop_when=conditions[1:]) as run:
            async for _ in run:
                pass
        again = run.outcome
        told.append((again.status, again.stop_reason, again.turns))
    assert len(set(told)) == 1, told
    return told[0]


READS = [call("read")] * 9


@pytest.mark.parametrize(
    ("condition", "reason", "turns"),
    [
        (lambda: step_count_is(1), "step_count:1", 1),
        (lambda: step_count_is(3), "step_count:3", 3),
        (lambda: max_tokens_used(4), "max_tokens:4", 2),
        (lambda: max_tokens_used(0), "max_tokens:0", 0),
        (lambda: max_cost(2), "max_cost:2", 2),
        (lambda: max_cost(0), "max_cost:0", 0),
        (lambda: max_duration(25), "max_duration:25", 3),
        (lambda: has_tool_call("read"), "tool_call:read", 1),
        (lambda: finish_reason_is("tool_calls"), "finish_reason:tool_calls", 1),
    ],
)
async def test_each_condition_stops_with_its_reason(
    autojump_clock: MockClock,
    condition: Callable[[], StopCondition],
    reason: str,
    turns: int,
) -> None:
    a = agent(*READS, price=lambda model, usage: float(bool(usage.total_tokens)))
    assert await stopped(a, condition()) == ("stopped", reason, turns)


async def test_the_tools_of_the_deciding_turn_run_and_are_kept(
    autojump_clock: MockClock,
) -> None:
    # B57, the row step_count_is(1) of the table
    a = agent(*READS, stop_when=[step_count_is(1)])
    outcome = await a.run("go")
    assert outcome.tools[0].ended == "done"
    assert len(a.model.requests) == 1  # type: ignore[union-attr]
    assert outcome.history[-1].content == "read"  # type: ignore[union-attr]


async def test_has_tool_call_looks_at_the_last_turn_only(
    autojump_clock: MockClock,
) -> None:
    seen: list[bool] = []

    def spy(state: RunState) -> None:
        seen.append(has_tool_call("issue_refund")(state))

    a = agent(call("issue_refund"), call("read"), "done", stop_when=[spy])
    await a.run("go")
    assert seen == [True, False, False]


async def test_the_first_condition_that_holds_names_the_reason(
    autojump_clock: MockClock,
) -> None:
    a = agent(*READS)
    both = has_tool_call("read"), step_count_is(1)
    assert (await stopped(a, *both))[1] == "tool_call:read"
    assert (await stopped(a, *reversed(both)))[1] == "step_count:1"


async def test_a_final_answer_is_completed_and_lists_what_it_reached() -> None:
    a = agent("hi", stop_when=[step_count_is(1), finish_reason_is("stop")])
    outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    assert outcome.reached == ("step_count:1", "finish_reason:stop")
    assert outcome.stop_reason is None


async def test_finish_reason_is_knows_the_providers_own_word() -> None:
    reply = Reply(finish_reason="length", raw_finish_reason="max_output")
    a = agent(reply, stop_when=[finish_reason_is("max_output")])
    assert (await a.run("go")).stop_reason == "finish_reason:max_output"


async def test_custom_conditions_give_a_reason_or_true(
    autojump_clock: MockClock,
) -> None:
    # Rules 137 to 140
    def repeated_tool_errors(state: RunState) -> str | None:
        failed = sum(r.failed for turn in state.turns for r in turn.results)
        return "repeated_tool_errors" if failed >= 2 else None

    def stop_on_refund(state: RunState) -> str | bool:
        names = [c.name for c in state.tool_calls]
        return "refund_requested" if "issue_refund" in names else False

    def enough(state: RunState) -> bool:
        return state.turns[-1].finish_reason == "tool_calls"  # there is always a turn

    errors = await stopped(agent(*[call("broken")] * 9), repeated_tool_errors)
    assert errors == ("stopped", "repeated_tool_errors", 2)
    refund = await stopped(agent(call("read"), call("issue_refund")), stop_on_refund)
    assert refund == ("stopped", "refund_requested", 2)
    assert (await stopped(agent(*READS), enough))[1] == "enough"
    assert (await stopped(agent(*READS), Always()))[1] == "custom_condition"


class Always:
    def __call__(self, state: RunState) -> bool:
        return True


async def test_running_out_of_turns_is_its_own_status_and_keeps_the_work(
    autojump_clock: MockClock,
) -> None:
    outcome = await agent(*READS, limits=Limits(turns=3)).run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.MAX_TURNS, "max_turns")
    assert [t.ended for t in outcome.tools] == ["done"] * 3
    assert (await agent(*[call("read")] * 13).run("go")).turns == 12


async def test_max_duration_looks_between_turns_and_seconds_interrupts(
    autojump_clock: MockClock,
) -> None:
    # The contract wins over the table's row: max_duration is no interruption.
    a = agent(call("read", seconds=10), "done", stop_when=[max_duration(200)])
    outcome = await a.run("go")
    assert outcome.stop_reason == "max_duration:200"
    assert trio.current_time() == 10
    a = agent(call("read", seconds=10), "done", limits=Limits(seconds=0.2))
    assert (await a.run("go")).status is Status.TIMED_OUT
    assert trio.current_time() == 10.2


@pytest.mark.parametrize("price", [None, lambda model, usage: None])
async def test_a_cost_limit_without_a_price_is_refused_before_the_first_request(
    price: Any,
) -> None:
    # B17
    a = agent("hi", price=price)
    with pytest.raises(ValueError, match=r"no price is known for scripted:model"):
        await a.run("go", stop_when=[max_cost(1)])
    assert a.model.requests == []  # type: ignore[union-attr]


async def test_an_unknown_cost_is_never_counted_as_nothing(
    autojump_clock: MockClock,
) -> None:
    def price(model: str, usage: Usage) -> float | None:
        return 0.0 if usage.total_tokens == 0 else None

    a = agent(*READS, price=price, stop_when=[max_cost(1)])
    outcome = await a.run("go")
    assert (outcome.stop_reason, outcome.turns) == ("max_cost:1", 1)
    assert outcome.usage.cost is None


async def test_a_free_model_is_free(autojump_clock: MockClock) -> None:
    a = agent(call("read"), "done", price=lambda m, u: 0.0, stop_when=[max_cost(1)])
    assert (await a.run("go")).status is Status.COMPLETED


async def test_unknown_usage_is_visible_and_the_turn_limit_still_holds(
    autojump_clock: MockClock,
) -> None:
    blind = Reply(tool_calls=(call("read"),), finish_reason="tool_calls")
    a = agent(*[blind] * 9, stop_when=[max_tokens_used(50)], limits=Limits(turns=2))
    outcome = await a.run("go")
    assert (outcome.status, outcome.billed) == (Status.MAX_TURNS, "unknown")


async def test_a_token_limit_caps_the_next_request(autojump_clock: MockClock) -> None:
    a = agent(call("read"), "done", stop_when=[max_tokens_used(50), max_tokens_used(9)])
    await a.run("go")
    caps = [r.max_output_tokens for r in a.model.requests]  # type: ignore[union-attr]
    assert caps == [9, 7]


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan")])
@pytest.mark.parametrize("name", list(Limits.__dataclass_fields__))
def test_limits_are_finite_and_above_zero(name: str, bad: float) -> None:
    # Rule 115
    with pytest.raises((ValueError, TypeError), match=f"Limits.{name}"):
        Limits(**{name: bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", ["30", None, True])
def test_limits_are_numbers(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"Limits\.seconds takes a number"):
        Limits(seconds=bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: step_count_is(0),
        lambda: max_tokens_used(-1),
        lambda: max_cost(-0.1),
        lambda: max_duration(0),
        lambda: max_duration(float("inf")),
    ],
)
def test_bounds_that_make_no_sense_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="takes a finite number"):
        make()


def test_presets_say_what_they_are_for() -> None:
    # Rules 89 to 92
    assert Limits.chat().first_token_seconds == 8
    assert Limits.tools().reply_seconds == 45
    assert Limits.reasoning(reply_seconds=240).silence_seconds == 240
    assert Limits.batch().seconds == 3600


def test_the_defaults_are_those_of_the_documentation() -> None:
    limits = Limits()
    assert (limits.seconds, limits.turns, limits.reply_seconds) == (300, 12, 120)
    assert (limits.first_token_seconds, limits.silence_seconds) == (60, 45)
    assert (limits.connect_seconds, limits.tool_seconds) == (5, 30)
    assert (limits.grace_seconds, limits.write_grace_seconds) == (5, 2)
    assert limits.parallel_tools == 16


def test_only_what_is_written_out_replaces() -> None:
    base = Limits(seconds=1000, turns=3)
    both = Limits(seconds=300).over(base)
    assert (both.seconds, both.turns) == (300, 3)


def test_conditions_say_what_they_are() -> None:
    assert "'max_tokens', bound=40000" in repr(max_tokens_used(40_000))
