"""What a run needs from outside: a model to ask, and a store to keep its events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import msgspec

from ._errors import ModelError
from ._events import KeptEvent, Message, ReplyPart, ToolCall, quiet_repr


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is told of a tool."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema of an object


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a final answer must look like."""

    name: str
    schema: dict[str, Any]  # JSON Schema of an object


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One question to a model. `messages` grows from turn to turn: do not keep it."""

    messages: Sequence[Message]
    instructions: str = ""
    tools: Sequence[ToolSpec] = ()
    output: OutputSpec | None = None
    max_output_tokens: int | None = None  # what is left of a token limit
    connect_seconds: float = 5.0  # until there is a connection to send the request on
    run_id: str = ""
    turn: int = 1
    # What the adapter wants to remember of this run, under its own name: `messages`
    # only grows, so what it has made of the first ones need not be made again.
    kept: dict[str, Any] = {}

    __repr__ = quiet_repr


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that gave no reply and may be tried again, as a policy sees it."""

    error: ModelError
    attempt: int  # from 1, of this model in this turn
    shown: bool  # whether a reader may have seen some of the reply
    seconds_left: float  # until the first deadline around it


class Again(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's answer: ask the same model once more."""

    seconds: float = 0.0  # to wait before
    restart: bool = False  # also where some of the reply was shown


Retry = Callable[[Failure], Again | None]
"""Says whether to ask again. It is not asked about what must not be tried again."""


class Happened(msgspec.Struct, frozen=True):
    """The effect is there. `result` is what the model is told, as from the tool."""

    result: Any = "done"


class DidNotHappen(msgspec.Struct, frozen=True):
    """The effect is not there, and will not come: the call may begin again."""


class Unknown(msgspec.Struct, frozen=True):
    """Nobody can tell."""

    why: str = ""


Finding = Happened | DidNotHappen | Unknown
Reconcile = Callable[[ToolCall, str], Any]
"""`reconcile(call, key)` looks an uncertain effect up and returns a `Finding`.

It may be `async`; a plain function runs in a thread. What it raises is `Unknown`.
"""


class Denied(msgspec.Struct, frozen=True):
    """The call may not begin; the model is told why."""

    reason: str = ""


Approve = Literal["ask"] | Callable[[ToolCall], Any]
"""Says whether a call may begin: `approve(call)` returns True, False or `Denied(why)`.

It may be `async`; a plain function runs in a thread. What it raises denies the call.
`"ask"` leaves it to a person: the run pauses, and goes on when it is resumed.
"""
Guard = Callable[[Any], Any]
"""Looks at what goes in (the messages), what is called (a `ToolCall`) or what comes out
(the answer's text), and returns nothing, or the reason why not. It may be `async`."""
OnUncertain = Literal["review", "tell"] | Reconcile
"""What a run does about an effect that stays uncertain.

`review`: it ends, and a person settles it. `tell`: it goes on, and the model is told. A
function, called like `Reconcile`, returns one of these words or a `Finding`.
"""
Observer = Callable[[str, KeptEvent], object]
"""`observer(run_id, event)` is told of each event that is kept. It must not block."""


class Breaker(Protocol):
    """Knows which endpoints are down, so that nobody waits for them."""

    def refuses(self, endpoint: str) -> float | None:
        """Seconds until it may be asked again, or None: ask it, and tell `note`."""
        ...

    def note(self, endpoint: str, error: ModelError | None) -> None:
        """How an attempt went. A stop is no answer and is not noted."""
        ...


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
    """Where the events of runs are kept: the journal. Every error is a `StoreError`.

    It may also have an `append_nowait`, which takes what `append` takes and is no
    coroutine: where the event can be kept without waiting, and as `append` says, it
    keeps it and returns True; else it does nothing and returns False. A run asks it
    first, unless a subclass has an `append` of its own and none of this.
    """

    async def append(
        self, run_id: str, event: KeptEvent, *, claim: int, durable: bool = True
    ) -> None:
        """Return only when `event` would survive a crash.

        `RunStarted` makes a new run, whose claim is 1: `exists` where the run is there
        already. Later events are kept only from the one who claimed the run last:
        `fenced` for all others. `RunEnded` gives the run free.

        With `durable=False` it may return at once: the event must be kept by itself
        soon, and at the latest together with the next durable one; what goes wrong is
        raised then. Calls for one run may overlap: events are kept in the order of the
        calls. A run calls it inside a bounded shield, so a cancel here means that time
        is up.
        """
        ...

    async def claim(self, run_id: str, *, take_over: bool = False) -> int:
        """Become the one who may append to a run; the number to give to `append`.

        It grows with each claim. `owned` where somebody carries the run who is not
        known to be dead, unless `take_over`; `unknown_run` where it is not there.
        """
        ...

    async def carried_by(self, run_id: str) -> str:
        """Who carries a run, in words for people; empty where nobody is alive."""
        ...

    def release(self, run_id: str, claim: int) -> None:
        """Whoever claimed the run is done with it, whether its end was kept or not."""
        ...

    async def load(self, run_id: str) -> list[KeptEvent]:
        """The events of a run, in order; `unknown_run` where it is not there."""
        ...

    async def runs(self) -> list[str]:
        """The ids of all runs, the one that began last first."""
        ...


def nowait_of(store: Store | None) -> Callable[..., bool] | None:
    """The store's `append_nowait`, if it has one.

    It is asked before `append`, so it counts only in the class that has that one too: a
    subclass with an `append` of its own would be passed by.
    """
    owner = next((c for c in type(store).__mro__ if "append" in vars(c)), object)
    return getattr(store, "append_nowait") if "append_nowait" in vars(owner) else None  # noqa: B009
