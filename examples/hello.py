"""An agent with one tool, on a scripted model: `python -m examples.hello`."""

import trio

from trioagent import Agent, Limits, step_count_is, tool
from trioagent.testing import ScriptedModel, call


@tool(effect="read", seconds=5)
async def weather(city: str) -> str:
    """Current weather.

    Args:
        city: name of the city.
    """
    await trio.sleep(0.1)
    return f"It is sunny in {city}."


def make_agent() -> Agent:
    return Agent(
        # "openai:gpt-5.5" or "local" in real life
        ScriptedModel([call("weather", city="Porto"), "It is sunny in Porto."]),
        instructions="Answer in one sentence.",
        tools=[weather],
        limits=Limits(seconds=30, turns=8),
        stop_when=[step_count_is(6)],
    )


def main() -> None:
    outcome = make_agent().run_sync("Weather in Porto?")
    print(outcome.status, outcome.stop_reason, outcome.output)


if __name__ == "__main__":
    main()
