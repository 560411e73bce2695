"""The agent that a command line describes."""

from __future__ import annotations

import dataclasses
import os
from argparse import Namespace
from typing import Any

from trioagent import Agent, Model
from trioagent.models import find_model

from ._options import UsageError, load


def make_agent(options: Namespace) -> Agent:
    """The agent to run. Nothing has been started when this raises `UsageError`."""
    given: dict[str, Any] = {}
    if options.model or not options.agent:
        given["model"] = _model(options.model or os.environ.get("TRIOAGENT_MODEL"))
    if options.instructions is not None:
        given["instructions"] = options.instructions
    tools = [tool for place in options.tools for tool in _tools(place)]
    try:
        if not options.agent:
            return Agent(**given, tools=tools)
        agent = load("--agent", options.agent)
        if not isinstance(agent, Agent):
            raise UsageError(f"--agent {options.agent}: that is no Agent: {agent!r}")
        return dataclasses.replace(agent, tools=(*agent.tools, *tools), **given)
    except (TypeError, ValueError) as error:  # all that is left to be wrong
        raise UsageError(f"--tools: {error}") from error


def named(options: Namespace) -> list[str]:
    """The words that name this agent on another command line."""
    words = ["-a", options.agent] if options.agent else []
    words += ["-m", options.model] if options.model else []
    return words + [word for place in options.tools for word in ("-T", place)]


def _model(text: str | None) -> Model:
    if not text:
        raise UsageError(
            "--model: no model to ask; give one, such as -m openai:gpt-5.5 "
            "or -m local, or set TRIOAGENT_MODEL"
        )
    try:
        return find_model(text)
    except ValueError as error:
        raise UsageError(f"--model {text}: {error}") from error


def _tools(place: str) -> list[Any]:
    found = load("--tools", place)
    tools = list(found) if isinstance(found, (list, tuple)) else [found]
    if strangers := [tool for tool in tools if not callable(tool)]:
        raise UsageError(f"--tools {place}: that is no tool: {strangers[0]!r}")
    return tools
