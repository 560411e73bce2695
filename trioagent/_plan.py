"""What a run is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ._events import Message
from ._limits import Limits, Price, StopCondition
from ._ports import Breaker, Model, Retry, Store
from ._schema import AnswerType
from ._tools import Tool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is made from: the agent's description and the call's, as one."""

    agent: str
    models: tuple[Model, ...]  # the agent's own, then its fallbacks
    retry: Retry
    breaker: Breaker
    instructions: str
    messages: tuple[Message, ...]
    tools: Mapping[str, Tool]
    limits: Limits
    conditions: tuple[StopCondition, ...]
    answer: AnswerType | None
    store: Store | None
    price: Price | None
