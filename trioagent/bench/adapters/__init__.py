"""The frameworks that are measured: a file each, with one class `Bench`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# By name: the module, the packages it measures, and the version it was written for.
ADAPTERS: dict[str, tuple[str, dict[str, str]]] = {
    "bare-trio": ("bare_trio", {"trio": ""}),
    "bare-asyncio": ("bare_asyncio", {}),
    "trioagent": ("trioagent", {"trioagent": ""}),
    "openai-agents": ("openai_agents", {"openai-agents": "0.24.0"}),
    "pydantic-ai": ("pydantic_ai", {"pydantic-ai-slim": "2.68.0"}),
    "langgraph": ("langgraph", {"langgraph": "1.2.24", "langchain-openai": "1.7.4"}),
}
FLOOR = "bare-trio"


def load(name: str) -> Any:
    """The adapter, made. Raises ImportError where what it measures is missing."""
    module, _ = ADAPTERS[name]
    return import_module(f"{__name__}.{module}").Bench()
