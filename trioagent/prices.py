"""What replies cost, by the tables of `genai-prices` (extra `cost`); no network."""

from __future__ import annotations

from ._events import Usage

# Our names of providers where theirs differ.
_PROVIDERS = {"openai-responses": "openai", "gemini": "google"}


def genai_price(model: str, usage: Usage) -> float | None:
    """The price of `usage` in US dollars, or None where the tables do not know it.

    For `Agent(price=genai_price)`. `model` is `provider:model`. Cached and
    cache-written tokens are priced apart, reasoning is part of the output. Unknown
    usage has no price. Raises ImportError, with the remedy, where the package is
    missing.
    """
    try:
        from genai_prices import Usage as Counts, calc_price
    except ImportError:
        raise ImportError(
            "genai_price needs the package genai-prices: pip install 'trioagent[cost]'"
        ) from None
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    provider, _, name = model.partition(":")
    counts = Counts(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        found = calc_price(
            counts, model_ref=name, provider_id=_PROVIDERS.get(provider, provider)
        )
    except LookupError:
        return None
    return float(found.total_price)
