"""How to test an agent of your own: `pytest examples/pytest_your_agent.py`."""

import trio
from trio.testing import MockClock

from trioagent import Agent, ToolStarted, tool
from trioagent.testing import (
    CancelPoint,
    MemoryStore,
    ScriptedModel,
    call,
    sweep_cancels,
)

refunds: list[int] = []


@tool(effect="once", grace_seconds=1)
async def refund(order: int) -> str:
    """Refund an order."""
    refunds.append(order)
    await trio.sleep(600)
    return "refunded"


def make_agent() -> Agent:
    refunds.clear()
    model = ScriptedModel([call("refund", order=7), "Done."])
    return Agent(model, tools=[refund], store=MemoryStore())


async def test_ten_minutes_take_no_time(autojump_clock: MockClock) -> None:
    outcome = await make_agent().run("Refund order 7", limits=None)
    assert outcome.tools[0].ended == "lost"  # its limit is 30 seconds
    assert outcome.stop_reason == "effect_uncertain"


async def test_a_stop_in_the_middle_says_what_it_cut(autojump_clock: MockClock) -> None:
    async with make_agent().open("Refund order 7") as run:
        async for event in run:
            if isinstance(event, ToolStarted):
                await trio.sleep(1)
                run.cancel("changed my mind")
    assert [report.name for report in run.outcome.uncertain] == ["refund"]


def test_no_refund_is_ever_hidden() -> None:
    def told(point: CancelPoint) -> None:
        known = len(point.outcome.uncertain)
        assert known == len(refunds), f"step {point.step}"

    sweep_cancels(make_agent, check=told)
