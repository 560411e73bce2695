"""What a run needs from outside: a model to ask, and a store to keep its events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from ._events import KeptEvent, Message, ReplyPart, Usage


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """What a model is told of a tool."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema of an object


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """What a final answer must look like."""

    name: str
    schema: dict[str, Any]  # JSON Schema of an object


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One question to a model. `messages` grows from turn to turn: do not keep it."""

    messages: Sequence[Message]
    instructions: str = ""
    tools: Sequence[ToolSpec] = ()
    output: OutputSpec | None = None
    max_output_tokens: int | None = None  # what is left of a token limit
    connect_seconds: float = 5.0  # until there is a connection to send the request on
    run_id: str = ""
    turn: int = 1


Price = Callable[[str, Usage], float | None]
"""`price(model, usage)` in US dollars, or None where it is unknown."""


class Model(Protocol):
    """Who answers. A model that holds connections is an async context manager too.

    A run enters the model when it starts and leaves it at its end; entering it around
    several runs (`async with model:`) lets them share its connections. It must allow
    being entered by many runs at once.
    """

    @property
    def name(self) -> str:
        """`provider:model`, as people type it."""
        ...

    def open_reply(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ReplyPart]]:
        """Ask once. Pieces as they come, then one whole `Reply`, then the end.

        Entering sends the request; there is no retry in here. `ReplyOpened` comes with
        the first bytes of an answer, `KeepAlive` for bytes that carry nothing. Raises
        `ModelError`: `ModelUnavailable` when the stream ends before the reply did.
        When it is cancelled, and on every other way out, the connection is closed
        before the block is left, unless the answer was read to its end.
        """
        ...


class Store(Protocol):
    """Where the events of runs are kept: the journal."""

    async def append(self, run_id: str, event: KeptEvent) -> None:
        """Return only when `event` would survive a crash; raise `StoreError` if not.

        Calls for one run may overlap: keep the events in the order of the calls. A run
        calls it inside a bounded shield, so a cancel here means that time is up.
        """
        ...

    async def load(self, run_id: str) -> list[KeptEvent]:
        """The events of a run, in order; `StoreError` for a run that is not there."""
        ...
