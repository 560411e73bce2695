"""What a run is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime

import msgspec

from ._events import Message, RunStarted
from ._limits import Condition, Limits, Price, StopCondition
from ._ports import Approve, Breaker, Guard, Model, Observer, OnUncertain, Retry, Store
from ._schema import AnswerType
from ._tools import Tool, Toolset


def now() -> str:
    """The clock on the wall, for people."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is made from: the agent's description and the call's, as one."""

    agent: str
    models: tuple[Model, ...]  # the agent's own, then its fallbacks
    retry: Retry
    breaker: Breaker
    instructions: str
    messages: tuple[Message, ...]
    tools: Mapping[str, Tool]
    toolsets: tuple[Toolset, ...]
    limits: Limits
    conditions: tuple[StopCondition, ...]
    answer: AnswerType | None
    store: Store | None
    price: Price | None
    on_uncertain: OnUncertain
    approve: Approve | None
    input_guards: tuple[Guard, ...]
    output_guards: tuple[Guard, ...]
    tool_guards: tuple[Guard, ...]
    handoffs: Mapping[str, Callable[[Plan], Plan]]  # who may take over, and with what
    observers: tuple[Observer, ...]
    own_conditions: tuple[StopCondition, ...]  # of the call

    def started(self, run_id: str, works_on: object) -> RunStarted:
        """The first event of a run, with all that somebody needs to resume it."""
        return RunStarted(
            run_id=run_id,
            agent=self.agent,
            model=self.models[0].name,
            instructions=self.instructions,
            messages=self.messages,
            created=now(),
            parent=str(works_on or ""),
            limits={f.name: getattr(self.limits, f.name) for f in fields(self.limits)},
            stop_when=tuple(
                (c.code, c.bound)
                for c in self.own_conditions
                if isinstance(c, Condition)
            ),
        )
