"""The tree of a run, as people see it."""

from __future__ import annotations

import io
import math

from trioagent import Agent, FromChild, ToolContext, ToolOutput, tool
from trioagent.observe.console import open_console
from trioagent.observe.tree import RunTree
from trioagent.testing import ScriptedModel, call


def drawn(tree: RunTree) -> list[str]:
    shown = io.StringIO()
    open_console(shown, width=80).print(tree)
    return shown.getvalue().splitlines()


async def test_a_run_that_works_on_a_call_is_shown_below_it() -> None:
    @tool(effect="read")
    async def look() -> str:
        return "seen"

    deep = Agent(ScriptedModel([call("look"), "deep"]), name="deep", tools=[look])
    middle = Agent(
        ScriptedModel([call("deep", prompt="go"), "middle"]),
        name="middle",
        tools=[deep.as_tool()],
    )
    calls = [call("middle", prompt="go"), call("look")]
    root = Agent(ScriptedModel([calls, "top"]), tools=[middle.as_tool(), look])
    tree = RunTree(lambda: math.inf)
    async with root.open("go") as run:
        children = 0
        async for event in run:
            tree.see(event)
            children += isinstance(event, FromChild)
    assert children
    tools = [
        (line.index("✓"), line.split("✓")[1].split()[0])
        for line in drawn(tree)
        if "✓" in line and "reply" not in line
    ]
    names = [name for _, name in tools]
    assert names == ["middle", "deep", "look", "look"]
    outer, inner, innermost, beside = [depth for depth, _ in tools]
    assert outer < inner < innermost
    assert beside == outer


async def test_the_last_line_of_a_tools_output_is_beside_it() -> None:
    @tool(effect="read")
    async def build(ctx: ToolContext) -> str:
        await ctx.show("step one\nstep \x1b[31mtwo\n")
        return "built"

    agent = Agent(ScriptedModel([call("build"), "ok"]), tools=[build])
    tree, lines = RunTree(lambda: math.inf), []
    async with agent.open("go") as run:
        async for event in run:
            tree.see(event)
            if isinstance(event, ToolOutput):
                lines = drawn(tree)
    (line,) = (line for line in lines if "build" in line)
    assert line.rstrip().endswith("step [31mtwo"), "and it commands no terminal"
