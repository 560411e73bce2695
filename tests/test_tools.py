"""What a tool is made from, what a call may be, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest
import trio
from msgspec import Meta
from trio.testing import MockClock

from trioagent import (
    Agent,
    Effect,
    EffectStatus,
    Limits,
    Reply,
    Tool,
    ToolCall,
    ToolContext,
    ToolEnded,
    ToolError,
    ToolLost,
    ToolNotRun,
    ToolStarted,
    tool,
)
from trioagent.testing import MemoryStore, ScriptedModel, call


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Tree(msgspec.Struct):
    children: list[Tree] = []


def agent(*steps: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(steps), store=MemoryStore(), **options)


async def results(a: Agent) -> list[str]:
    """What the model was told of its calls in the first turn."""
    outcome = await a.run("go")
    told = outcome.history[2 : 2 + len(outcome.tools)]
    return [result.content for result in told]  # type: ignore[union-attr]


# Schemas


@tool(effect="read")
async def search(
    query: str,
    limit: Annotated[int, Meta(ge=1, le=50)] = 10,
    order: Literal["new", "old"] = "new",
    near: Point | None = None,
    tags: list[str] = [],  # noqa: B006 - copied for each call
) -> str:
    """Search the archive.

    Looks at titles too.

    Args:
        query: what to look for.
        limit: how many at most.
    """
    await trio.lowlevel.checkpoint()
    tags.append(query)
    return f"{query} {limit} {order} {near} {tags}"


def test_hints_and_docstring_become_the_schema() -> None:
    spec = search.spec
    assert spec.name == "search"
    assert spec.description == "Search the archive.\n\nLooks at titles too."
    schema = spec.parameters
    assert schema["required"] == ["query"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["query"] == {
        "type": "string",
        "description": "what to look for.",
    }
    assert schema["properties"]["limit"]["maximum"] == 50
    assert schema["properties"]["limit"]["description"] == "how many at most."
    assert schema["properties"]["order"]["enum"] == ["new", "old"]
    assert "#/$defs/Point" in str(schema["properties"]["near"])
    assert schema["$defs"]["Point"]["required"] == ["x"]


def test_a_tool_can_be_called_as_the_function_it_is() -> None:
    assert "ada 3 new" in trio.run(lambda: search("ada", limit=3))


def test_options_count_also_where_the_function_stands_beside_them() -> None:
    async def look() -> str:
        return ""

    made = tool(look, effect="read", name="find")
    assert (made.name, made.effect) == ("find", Effect.READ)


async def test_defaults_are_filled_in_and_not_shared() -> None:
    a = agent(
        [call("search", query="a"), call("search", query="b")], "ok", tools=[search]
    )
    assert await results(a) == ["a 10 new None ['a']", "b 10 new None ['b']"]


def test_a_type_that_refers_to_itself_can_be_taken() -> None:
    @tool
    async def plant(tree: Tree) -> None: ...

    assert "#/$defs/Tree" in str(plant.spec.parameters)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tool(_untyped), "parameter 'x' needs a type hint"),
        (lambda: tool(_variadic), r"cannot fill \*rest"),
        (lambda: tool(_unusable), "@tool _unusable"),
        (lambda: tool(_lost), "module level"),
        (lambda: tool(effect="maybe")(_fine), "effect is read, keyed or once"),
        (lambda: tool(seconds=0)(_fine), "@tool _fine: seconds takes"),
        (lambda: tool(seconds=float("inf"))(_fine), "@tool _fine: seconds takes"),
        (lambda: tool(grace_seconds=-1)(_fine), "@tool _fine: grace_seconds takes"),
        (lambda: tool(secs=3)(_fine), "secs"),  # type: ignore[call-overload]
    ],
)
def test_what_cannot_be_a_tool_says_why(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


async def _fine() -> None: ...
async def _untyped(x) -> None: ...  # type: ignore[no-untyped-def]
async def _variadic(*rest: int) -> None: ...
async def _unusable(x: int | float | Point | Tree) -> None: ...
async def _lost(x: NotAnywhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


# Arguments


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"limit": 3}', "missing required field `query`"),
        ('{"query": 7}', "Expected `str`, got `int` - at `$.query`"),
        ('{"query": "a", "limit": 99}', "Expected `int` <= 50"),
        ('{"query": "a", "colour": 1}', "unknown field `colour`"),
        ('["a"]', "Expected `object`, got `array`"),
        ('{"query": "a", ', "not whole JSON"),
    ],
)
async def test_bad_arguments_go_back_to_the_model_and_nothing_runs(
    arguments: str, said: str
) -> None:
    # B45, rule 58
    reply = Reply(tool_calls=(ToolCall("search", arguments),))
    a = agent(reply, "sorry", tools=[search])
    (told,) = await results(a)
    assert said in told
    assert "It takes query, limit (optional)" in told
    kinds = [type(e) for e in a.store.events]  # type: ignore[union-attr]
    assert ToolStarted not in kinds


async def test_an_unknown_tool_is_told_what_there_is() -> None:
    # Rule 34
    a = agent(call("find"), "sorry", tools=[search])
    assert await results(a) == [
        "Not started: there is no tool 'find'. There are: search."
    ]
    assert "There are: none." in (await results(agent(call("find"), "sorry")))[0]


async def test_bad_calls_are_bounded_in_a_row() -> None:
    a = agent(*[call("nobody")] * 9, tools=[search])
    outcome = await a.run("go")
    assert (outcome.status, outcome.stop_reason) == ("stopped", "bad_calls")
    assert outcome.turns == 3
    good = call("search", query="x")
    a = agent(*[call("nobody"), call("nobody"), good] * 3, "done", tools=[search])
    assert (await a.run("go")).status == "completed"


async def test_a_tool_without_arguments_says_so() -> None:
    a = agent(call("_fine", x=1), "sorry", tools=[tool(_fine)])
    assert "It takes no arguments." in (await results(a))[0]


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/any"}, "y": {}},
    "required": ["x"],
}


async def _foreign(arguments: dict[str, Any]) -> str:
    await trio.lowlevel.checkpoint()
    return f"got {arguments}"


foreign = Tool("foreign", _foreign, schema=SCHEMA)


async def test_a_foreign_schema_is_shown_as_it_is_and_takes_one_dict() -> None:
    assert foreign.spec.parameters is SCHEMA
    asked = ToolCall("foreign", '{"x": [1], "z": null}', id="1")
    assert await results(agent(asked, "ok", tools=[foreign])) == [
        "got {'x': [1], 'z': None}"
    ]
    assert hash(foreign) == hash(foreign)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"x": ', "the arguments for foreign are not whole JSON"),
        ("[1]", "bad arguments for foreign: Expected `object`, got `array`"),
    ],
)
async def test_arguments_for_a_foreign_schema_are_an_object(
    arguments: str, problem: str
) -> None:
    asked = ToolCall("foreign", arguments, id="1")
    (told,) = await results(agent(asked, "ok", tools=[foreign]))
    assert told == f"Not started: {problem}. It takes x, y (optional)."


# Results


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("text", "text"),
        (None, "null"),
        ({"a": [1, 2.5]}, '{"a":[1,2.5]}'),
        (Point(1), '{"x":1,"y":0}'),
        (datetime(2026, 11, 30, tzinfo=UTC), '"2026-11-30T00:00:00Z"'),
    ],
)
async def test_a_result_may_be_anything_that_can_be_written(
    value: Any, told: str
) -> None:
    @tool(effect="read")
    async def give() -> Any:
        await trio.lowlevel.checkpoint()
        return value

    assert await results(agent(call("give"), "ok", tools=[give])) == [told]


@pytest.mark.parametrize("effect", ["read", "once"])
async def test_a_result_that_cannot_be_written_does_not_undo_the_effect(
    effect: Any,
) -> None:
    @tool(effect=effect)
    async def give() -> Any:
        await trio.lowlevel.checkpoint()
        return object()

    outcome = await agent(call("give"), "ok", tools=[give]).run("go")
    assert outcome.status == "completed"
    assert outcome.tools[0].ended == ("failed" if effect == "read" else "done")
    assert outcome.uncertain == ()


# Effects


@pytest.mark.parametrize(
    ("effect", "error", "status", "ended"),
    [
        ("read", ValueError("x"), EffectStatus.NONE, "failed"),
        ("read", ToolError("x"), EffectStatus.NONE, "failed"),
        ("once", ToolError("x"), EffectStatus.NONE, "failed"),
        ("once", ValueError("x"), EffectStatus.UNCERTAIN, "lost"),
        ("keyed", ExceptionGroup("g", [ToolError("x")]), EffectStatus.NONE, "failed"),
        ("keyed", OSError(), EffectStatus.UNCERTAIN, "lost"),
    ],
)
async def test_only_a_tool_error_says_that_nothing_happened(
    effect: Any, error: Exception, status: EffectStatus, ended: str
) -> None:
    @tool(effect=effect)
    async def act() -> None:
        await trio.lowlevel.checkpoint()
        raise error

    outcome = await agent(call("act"), "ok", tools=[act]).run("go")
    report = outcome.tools[0]
    assert (report.effect_status, report.ended) == (status, ended)
    uncertain = status is EffectStatus.UNCERTAIN
    assert (outcome.stop_reason == "effect_uncertain") == uncertain


async def test_a_write_that_comes_back_after_its_limit_is_confirmed_and_late(
    autojump_clock: MockClock,
) -> None:
    @tool(effect="once", seconds=1)
    async def act() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        return "done after all"

    a = agent(call("act"), "ok", tools=[act])
    outcome = await a.run("go")
    report = outcome.tools[0]
    assert (report.effect_status, report.late) == (EffectStatus.CONFIRMED, True)
    assert outcome.status == "completed"


def test_an_undeclared_tool_is_not_repeated() -> None:
    assert tool(_fine).effect == "once"


# Time left


async def test_a_tool_that_needs_more_time_than_is_left_is_not_started(
    autojump_clock: MockClock,
) -> None:
    # Rule 38
    @tool(effect="read", needs_seconds=2)
    async def slow() -> None: ...

    a = agent(call("slow"), "ok", tools=[slow], limits=Limits(seconds=1.5))
    (told,) = await results(a)
    assert told == "Not started: slow needs 2 s, and 1.5 s are left."
    not_run = [e for e in a.store.events if isinstance(e, ToolNotRun)]  # type: ignore[union-attr]
    assert [e.code for e in not_run] == ["budget"]


async def test_its_fallback_runs_instead(autojump_clock: MockClock) -> None:
    @tool(effect="read")
    async def cached(query: str) -> str:
        await trio.lowlevel.checkpoint()
        return f"cached {query}"

    @tool(effect="read", needs_seconds=2, fallback=cached)
    async def fresh(query: str) -> str:
        await trio.lowlevel.checkpoint()
        return f"fresh {query}"

    a = agent(call("fresh", query="x"), "ok", tools=[fresh])
    assert await results(a) == ["fresh x"]
    a = agent(call("fresh", query="x"), "ok", tools=[fresh], limits=Limits(seconds=1))
    assert await results(a) == ["cached x"]
    started = [e for e in a.store.events if isinstance(e, ToolStarted)]  # type: ignore[union-attr]
    assert (started[0].call.name, started[0].tool) == ("fresh", "cached")


async def test_the_context_knows_the_time_the_ids_and_the_key(
    autojump_clock: MockClock,
) -> None:
    seen: list[ToolContext] = []
    left: list[float] = []

    @tool(effect="keyed", seconds=8)
    async def act(ctx: ToolContext, n: int) -> None:
        await trio.sleep(1)
        seen.append(ctx)
        left.append(ctx.remaining())

    a = agent([call("act", n=1), call("act", n=2)], call("act", n=1), "ok", tools=[act])
    await a.run("go", run_id="run_1")
    assert "ctx" not in act.spec.parameters["properties"]
    assert sorted(ctx.call_id for ctx in seen) == ["1.0", "1.1", "2.0"]
    assert {ctx.run_id for ctx in seen} == {"run_1"}
    assert left == [7, 7, 7]
    keys = {ctx.call_id: ctx.idempotency_key for ctx in seen}
    assert len(set(keys.values())) == 3
    assert all(key not in repr(seen) for key in keys.values())  # never logged
    again = agent([call("act", n=9)], "ok", tools=[act])
    seen.clear()
    await again.run("go", run_id="run_1")
    assert seen[0].idempotency_key == keys["1.0"]  # B65: of the place, not of chance


@pytest.mark.parametrize(
    ("limits", "around", "left"),
    [(Limits(seconds=4), 99.0, 4), (Limits(seconds=50), 3.0, 3), (Limits(), 99.0, 30)],
)
async def test_the_time_left_is_that_of_the_first_deadline(
    autojump_clock: MockClock, limits: Limits, around: float, left: float
) -> None:
    # Rule 37, also inside a write's grace, which hides the deadlines around it
    seen: list[float] = []

    @tool(effect="once")
    async def act(ctx: ToolContext) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(ctx.remaining())

    with trio.move_on_after(around):
        await agent(call("act"), "ok", tools=[act], limits=limits).run("go")
    assert seen == [left]


# def tools


async def test_a_plain_function_runs_in_a_thread_and_is_waited_for() -> None:
    entered, leave = threading.Event(), threading.Event()
    names: list[str] = []

    @tool(effect="once")
    def act(n: int) -> str:
        names.append(threading.current_thread().name)
        entered.set()
        leave.wait(10)
        return f"done {n}"

    a = agent(call("act", n=1), "never", tools=[act])
    async with a.open("go") as run:
        await trio.to_thread.run_sync(entered.wait)
        run.cancel()
        leave.set()
    assert names != [threading.main_thread().name]
    report = run.outcome.tools[0]
    assert (report.effect_status, report.late) == (EffectStatus.CONFIRMED, True)
    ended = [e for e in a.store.events if isinstance(e, ToolEnded)]  # type: ignore[union-attr]
    assert ended[0].content == "done 1"
    assert not any(isinstance(e, ToolLost) for e in a.store.events)  # type: ignore[union-attr]


async def test_a_plain_function_holds_up_nobody_else() -> None:
    # B70: it waits for what the async tool does, so the loop must go on.
    freed = threading.Event()

    @tool(effect="read")
    def wait() -> str:
        assert freed.wait(10)
        return "waited"

    @tool(effect="read")
    async def free() -> str:
        await trio.sleep(0.01)
        freed.set()
        return "freed"

    a = agent([call("wait"), call("free")], "ok", tools=[wait, free])
    assert await results(a) == ["waited", "freed"]


async def test_a_plain_function_that_outlasts_its_limit_is_waited_for() -> None:
    # B06: a thread cannot be cut, so its effect is known, and nothing runs on.
    ended: list[int] = []

    @tool(effect="once", seconds=0.05)
    def slow() -> str:
        threading.Event().wait(0.2)
        ended.append(1)
        return "done"

    outcome = await agent(call("slow"), "ok", tools=[slow]).run("go")
    assert ended == [1]
    report = outcome.tools[0]
    assert (report.effect_status, report.late) == (EffectStatus.CONFIRMED, True)


def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


def test_a_tool_in_a_process_brings_what_it_needs() -> None:
    isolated = tool(effect="read", isolate="process")(double)
    assert isolated.needs is not None
    assert isolated.description == "Twice as much."
