"""Tools that need something held open, for a run or for several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio

from trioagent import Agent, Status, Tool, ToolCall, ToolError, ToolResult, tool
from trioagent.testing import Hang, MemoryStore, ScriptedModel, call, sweep_cancels


@tool(effect="read")
async def look() -> str:
    return "seen"


class Held:
    """Something held open; it counts who has entered it."""

    def __init__(self, *tools: Tool, problem: str = "", seconds: float = 0) -> None:
        self.name = "held"
        self.tools = tools
        self.problem = problem
        self.seconds = seconds
        self.inside = self.entered = 0

    async def __aenter__(self) -> Sequence[Tool]:
        await trio.sleep(self.seconds)
        if self.problem:
            raise ToolError(self.problem)
        self.inside += 1
        self.entered += 1
        return self.tools

    async def __aexit__(self, *error: object) -> None:
        self.inside -= 1


def agent(*steps: Any, **options: Any) -> Agent:
    options.setdefault("store", MemoryStore())
    return Agent(ScriptedModel(steps), **options)


async def test_a_toolset_is_open_for_a_run_and_its_tools_are_there() -> None:
    held = Held(look)
    hang = Hang()
    a = agent(call("look"), [hang], tools=[held])
    async with a.open("go") as run:
        await hang.reached.wait()
        assert held.inside == 1
    assert held.inside == 0
    assert [t.ended for t in run.outcome.tools] == ["done"]
    model: Any = a.model
    assert [t.name for t in model.requests[0].tools] == ["look"]


async def test_an_agents_block_holds_it_open_around_its_runs() -> None:
    held = Held(look)
    a = agent("one", "two", tools=[held])
    async with a:
        assert held.inside == 1
        await a.run("go")
        assert held.inside == 1
        await a.run("go")
    assert (held.inside, held.entered) == (0, 3)
    broken = agent(tools=[held, Held(problem="no server")])
    with pytest.raises(ToolError, match="no server"):
        async with broken:
            pass
    assert held.inside == 0


async def test_where_there_are_no_tools_a_run_fails_before_its_first_request() -> None:
    held = Held(look)
    a = agent("never", tools=[held, Held(problem="no server at this address")])
    outcome = await a.run("go")
    assert (outcome.status, str(outcome.stop)) == (Status.FAILED, "no_tools")
    assert outcome.stop is not None
    assert outcome.stop.detail == "no server at this address"
    model: Any = a.model
    assert model.requests == []
    assert held.inside == 0


async def test_a_tool_whose_name_is_taken_is_named_after_its_toolset() -> None:
    a = agent([call("look"), call("held__look")], "ok", tools=[look, Held(look)])
    outcome = await a.run("go")
    assert [t.ended for t in outcome.tools] == ["done", "done"]
    model: Any = a.model
    assert [t.name for t in model.requests[0].tools] == ["look", "held__look"]


async def test_two_tools_of_one_name_fail_the_run() -> None:
    outcome = await agent("never", tools=[look, Held(look), Held(look)]).run("go")
    assert outcome.stop_reason == "no_tools"
    assert outcome.stop is not None
    assert "two tools are named 'held__look'" in outcome.stop.detail


async def test_what_a_tool_needs_is_held_once_for_all_that_need_it() -> None:
    pool = Held()
    first = replace(look, needs=pool)
    second = replace(look, name="second", needs=pool)
    a = agent([call("look"), call("second")], "ok", tools=[first, second])
    outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    assert (pool.inside, pool.entered) == (0, 1)
    async with a:
        assert pool.inside == 1


@pytest.mark.parametrize("stop", ["user", "deadline", "host"])
def test_stopped_at_any_step_nothing_stays_open(stop: Any) -> None:
    held = Held(look)

    def fresh() -> Agent:
        nonlocal held
        held = Held(look, seconds=1)
        return agent(call("look"), "ok", tools=[held])

    def check(_: Any) -> None:
        assert held.inside == 0

    assert sweep_cancels(fresh, stop=stop, check=check) > 20


async def test_a_foreign_schema_goes_to_the_model_as_it_is() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    got: list[Any] = []

    async def fn(arguments: dict[str, Any]) -> str:
        got.append(arguments)
        return "ok"

    foreign = Tool("foreign", fn, schema=schema)
    a = agent(
        ToolCall("foreign", '{"n": 1, "more": [2]}'),
        ToolCall("foreign", "[1]"),
        "done",
        tools=[foreign],
    )
    outcome = await a.run("go")
    model: Any = a.model
    assert model.requests[0].tools[0].parameters is schema
    assert got == [{"n": 1, "more": [2]}]
    told = [m.content for m in outcome.history if isinstance(m, ToolResult)]
    assert told[1].endswith("It takes n (optional).")
