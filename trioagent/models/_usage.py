"""Numbers that providers report, read with care: any may be missing, or null."""

from __future__ import annotations

from typing import Any


def details(raw: dict[str, Any], name: str) -> dict[str, Any]:
    """The object of that name; an empty one where there is none."""
    value = raw.get(name)
    return value if isinstance(value, dict) else {}


def count(*values: Any) -> int | None:
    """The first of them that is a number."""
    for value in values:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
    return None


def cost(value: Any) -> float | None:
    """US dollars, where the server says what it took."""
    if isinstance(value, dict):  # Perplexity
        value = value.get("total_cost")
    return float(value) if isinstance(value, int | float) else None
