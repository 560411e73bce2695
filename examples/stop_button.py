"""A stop button in another thread: `python -m examples.stop_button`.

The write it interrupts is reported as uncertain, the read beside it as nothing.
"""

import threading

import trio

from trioagent import Agent, EffectStatus, ToolStarted, tool
from trioagent.testing import ScriptedModel, call


@tool(effect="read")
async def search(query: str) -> str:
    """Search the archive."""
    await trio.sleep(60)
    return "found"


@tool(effect="once", grace_seconds=0.1)
async def charge(cents: int) -> str:
    """Charge the card."""
    await trio.sleep(60)
    return "charged"


async def main() -> None:
    calls = [call("search", query="Porto"), call("charge", cents=900)]
    agent = Agent(ScriptedModel([calls]), tools=[search, charge])
    async with agent.open("Find it and pay for it") as run:
        button = threading.Timer(0.3, run.handle.cancel, ["user_clicked_stop"])
        button.start()
        async for event in run:
            if isinstance(event, ToolStarted):
                print(f"{event.call.name} has begun")
    outcome = run.outcome
    assert outcome.stop is not None
    print(f"{outcome.status}: {outcome.stop} ({outcome.stop.detail})")
    for report in outcome.tools:
        print(f"  {report.name:8} {report.ended:12} effect {report.effect_status}")
    for child in outcome.cleanup:
        print(f"  {child.name}: {child.ended} after {child.seconds * 1000:.0f} ms")
    assert [r.effect_status for r in outcome.tools] == [
        EffectStatus.NONE,
        EffectStatus.UNCERTAIN,
    ]


if __name__ == "__main__":
    trio.run(main)
