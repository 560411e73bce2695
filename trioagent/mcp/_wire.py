"""Where a server is, and what its wire has to say about one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import trio

MESSAGE_BYTES = 32 * 1024 * 1024  # of one message; a longer one ends the connection


@dataclass(frozen=True)
class Command:
    """A program that speaks MCP on its stdin and stdout."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    cwd: str | None
    grace_seconds: float

    def __str__(self) -> str:  # arguments may hold keys
        return self.argv[0]


@dataclass(frozen=True)
class Address:
    """A URL that speaks MCP by streamable HTTP."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    shown: str  # the URL without what may be a secret
    grace_seconds: float

    def __str__(self) -> str:
        return self.shown


class Exchange:
    """What the wire has seen of one request. The wire of HTTP fills it in."""

    def __init__(self, *, contained: bool = True) -> None:
        self.contained = contained  # False: what fails is to fail the connection
        self.status: int | None = None  # of the HTTP response
        self.problem = ""  # why no answer can come any more
        self.sent = True  # False: it has not left
        self.scope = trio.CancelScope()  # of whoever waits for the answer

    def lose(self, problem: str, *, sent: bool = True) -> None:
        """There will be no answer."""
        self.problem, self.sent = problem, sent


EXCHANGE: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
"""Of the request that the current task, or the one that asked it, is about.

The official client sends each request in the context of whoever asked for it, so this
tells apart what belongs to which call.
"""


class Wire(Protocol):
    """Carries messages to one server, for one connection."""

    eras: tuple[str, ...]  # modes of the official client, in the order to be tried

    def streams(
        self, lose: Callable[[str], None]
    ) -> AbstractAsyncContextManager[tuple[Any, Any]]:
        """Open it, for the official client; `lose` is told why it broke off."""
        ...

    def last_words(self) -> str:
        """What the server has said besides its messages."""
        ...
