"""Prices by the tables of genai-prices."""

from __future__ import annotations

import sys

import pytest

from trioagent import Agent, Reply, Usage, max_cost
from trioagent.prices import genai_price
from trioagent.testing import ScriptedModel

HUNDRED = Usage(input_tokens=1000, output_tokens=100, cached_tokens=200)


class Named(ScriptedModel):
    def __init__(self, name: str, usage: Usage) -> None:
        super().__init__([Reply(text="ok", usage=usage)])
        self.name = name


def test_cached_tokens_are_priced_apart() -> None:
    whole = genai_price("openai:gpt-5.5", Usage(input_tokens=1000, output_tokens=100))
    cached = genai_price("openai:gpt-5.5", HUNDRED)
    assert whole is not None
    assert cached is not None
    assert 0 < cached < whole


@pytest.mark.parametrize(
    "name",
    [
        "openai-responses:gpt-5.5",
        "anthropic:claude-sonnet-5",
        "gemini:gemini-3.5-flash",
    ],
)
def test_each_provider_is_known_by_our_name(name: str) -> None:
    assert genai_price(name, HUNDRED)
    assert genai_price(name, Usage(input_tokens=0, output_tokens=0)) == 0


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("openai:of-my-own", HUNDRED),
        ("nobody:gpt-5.5", HUNDRED),
        ("openai:gpt-5.5", Usage(input_tokens=5)),
        ("openai:gpt-5.5", Usage()),
    ],
)
def test_what_is_unknown_has_no_price(name: str, usage: Usage) -> None:
    assert genai_price(name, usage) is None


async def test_a_run_knows_what_it_has_cost() -> None:
    model = Named("openai:gpt-5.5", HUNDRED)
    outcome = await Agent(model, price=genai_price).run("go", stop_when=[max_cost(1)])
    assert outcome.usage.cost == genai_price("openai:gpt-5.5", HUNDRED)


async def test_a_model_without_a_price_is_refused_under_a_cost_limit() -> None:
    model = Named("openai:of-my-own", HUNDRED)
    with pytest.raises(ValueError, match="no price is known for openai:of-my-own"):
        await Agent(model, price=genai_price).run("go", stop_when=[max_cost(1)])
    assert model.requests == []


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(ImportError, match=r"pip install 'trioagent\[cost\]'"):
        genai_price("openai:gpt-5.5", HUNDRED)
