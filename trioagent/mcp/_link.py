"""A connection to one server: owned by one task, used by any.

The official client is made of scopes and nurseries, which must be entered and left in
one task, the last one first. So it lives in a task of its own, a system task, for no
task of a caller's lives as long as it is used. Whoever is the last to need it asks it
to end, and waits; so connections may be left in any order. Nothing leaves that task,
for an error in a system task would end the whole program: it is kept, and told to those
whose calls it ended.
"""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Self

import mcp_types
import pydantic
import trio
from mcp.client import Client, ClientSession
from mcp.shared.exceptions import MCPError

from trioagent._errors import ToolError
from trioagent.isolate._supervised import OVERRUN_SECONDS

from ._http import HttpWire
from ._stdio import StdioWire
from ._wire import EXCHANGE, Address, Command, Exchange, Wire
from ._words import Scrubber, ServerError, in_words, innermost

CAUSE_SECONDS = 0.5  # until it is known why a connection has ended
PROGRESS_BUFFER = 16  # what comes while a slow reader has so many is left out
MOST_PAGES = 1000  # of tools

# What a server answers to a call that it has not begun.
REFUSED = (
    mcp_types.METHOD_NOT_FOUND,
    mcp_types.INVALID_PARAMS,
    mcp_types.URL_ELICITATION_REQUIRED,
)
OTHER_ERA = (mcp_types.METHOD_NOT_FOUND, mcp_types.UNSUPPORTED_PROTOCOL_VERSION)
REQUEST_TIMEOUT = 408  # some proxies say it of a server that was too slow

NOT_FOUND = 404  # what a server says of a session that it does not know

Show = Callable[[str], Awaitable[None]]

logger = logging.getLogger("trioagent")


class Link:
    """One connection. Made by `open`, and ended by `close`."""

    def __init__(
        self,
        target: Command | Address,
        name: str,
        connect_seconds: float,
        scrub: Scrubber,
    ) -> None:
        self.name = name
        self.tools: dict[str, mcp_types.Tool] = {}
        self.lost = ""  # why it cannot be used any more
        self.calls = 0  # in flight
        self._wire: Wire = (
            StdioWire(target) if isinstance(target, Command) else HttpWire(target)
        )
        self._connect_seconds = connect_seconds
        self._grace_seconds = target.grace_seconds
        self._scrub = scrub
        self._session: ClientSession | None = None
        self._scope = trio.CancelScope()
        self._settled = trio.Event()  # it is open, or never will be
        self._closing = trio.Event()
        self._over = trio.Event()

    @classmethod
    async def open(
        cls,
        target: Command | Address,
        *,
        name: str,
        connect_seconds: float,
        scrub: Scrubber,
    ) -> Self:
        """Connect, and ask for the tools. Raises ToolError; nothing is left then."""
        link = cls(target, name, connect_seconds, scrub)
        trio.lowlevel.spawn_system_task(link._own, name=f"MCP server {name}")
        try:
            await link._settled.wait()
        except BaseException:
            await link.close()  # noqa: ASYNC102 - it brings its own bounded shield
            raise
        if link.lost:
            await link.close()
            raise ToolError(f"MCP server {name}: {link.lost}")
        return link

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of it."""
        return self._over.is_set()

    async def close(self) -> None:
        """End it, and wait, also when cancelled: in its grace and a moment."""
        self._closing.set()
        if not self._settled.is_set():
            self._scope.cancel()
        bound = self._grace_seconds + OVERRUN_SECONDS
        with trio.move_on_after(bound, shield=True):
            await self._over.wait()
        if not self._over.is_set():
            logger.warning("MCP server %s did not end within %g s", self.name, bound)

    def lose(self, why: str) -> None:
        """New calls need another connection; this one ends with the calls it has."""
        self.lost = self.lost or self._scrub(why)
        if not self.calls:
            self._closing.set()

    async def _own(self) -> None:
        deadline = trio.current_time() + self._connect_seconds
        try:
            for era in self._wire.eras:
                self.lost = ""
                if not await self._live(era, deadline):
                    break
        finally:
            self._session = None
            self._settled.set()
            self._over.set()

    async def _live(self, era: str, deadline: float) -> bool:
        """The life of one client; whether the server asks for one of another era."""
        exchange = Exchange(contained=False)
        EXCHANGE.set(exchange)
        problem: BaseException | None = None
        try:
            with trio.CancelScope(deadline=deadline) as self._scope:
                if self._closing.is_set():
                    self._scope.cancel()
                async with Client(
                    self._wire.streams(self.lose),
                    mode=era,
                    cache=None,
                    client_info=mcp_types.Implementation(name="trioagent", version="0"),
                ) as client:
                    await self._list_tools(client)
                    self._session = client.session
                    self._scope.deadline = math.inf
                    self._settled.set()
                    await self._closing.wait()
                    self._session = None
                    # A server that does not answer is left without a goodbye.
                    now = trio.current_time()
                    self._scope.deadline = now + self._grace_seconds
        except* KeyboardInterrupt:
            # A Ctrl-C may hit a task of the client. It is for the main task, and in
            # this one it cannot be raised: trio passes it on.
            signal.raise_signal(signal.SIGINT)
        except* Exception as group:  # noqa: BLE001 - it goes to those who wait for it
            problem = group
        return self._note_end(problem, exchange)

    async def _list_tools(self, client: Client) -> None:
        cursor = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            self.tools |= {tool.name: tool for tool in page.tools}
            cursor = page.next_cursor
            if cursor is None:
                break

    def _note_end(self, problem: BaseException | None, exchange: Exchange) -> bool:
        """Say why it is over; whether another era may be tried."""
        if self._settled.is_set():
            if problem is not None and not self._closing.is_set():
                self.lose(in_words(problem))
            return False
        error = innermost(problem)
        if self._scope.cancelled_caught:
            limit = f"{self._connect_seconds:g}"
            why = f"no tools within {limit} s (connect_seconds={limit})"
            self.lost = self._scrub(why + self._wire.last_words())
        elif not self.lost:
            why = in_words(error) if error else "it was left"
            self.lost = self._scrub(with_status(exchange.status) + why)
        return isinstance(error, MCPError) and error.code in OTHER_ERA

    async def call(
        self, name: str, arguments: dict[str, Any], show: Show
    ) -> mcp_types.CallToolResult:
        """Call a tool, and wait. A cancel is told to the server.

        Raises ToolError where nothing has happened, and ServerError where nobody knows.
        """
        session, lost = self._session, self.lost
        if session is None or lost:
            raise ToolError(f"MCP server {self.name}: not connected: {lost}")
        exchange = Exchange()
        token = EXCHANGE.set(exchange)
        self.calls += 1
        outcome: mcp_types.CallToolResult | Exception | None = None
        try:
            with exchange.scope:
                outcome = await _ask(session, name, arguments, show)
            if isinstance(outcome, mcp_types.CallToolResult):
                return outcome
            if is_closed(outcome) and exchange.status is None and not self.lost:
                with trio.move_on_after(CAUSE_SECONDS):
                    await self._over.wait()
            if exchange.problem or exchange.status == NOT_FOUND:
                self.lose(exchange.problem or "it has forgotten the session (HTTP 404)")
            failed, why = judge(outcome, exchange, self.lost)
            raise failed(f"MCP server {self.name}: {self._scrub(why)}")
        finally:
            self.calls -= 1
            EXCHANGE.reset(token)
            if self.lost and not self.calls:
                self._closing.set()


async def _ask(
    session: ClientSession, name: str, arguments: dict[str, Any], show: Show
) -> mcp_types.CallToolResult | Exception:
    """The answer, or what the client raised. Progress is shown in between.

    The client's own `call_tool` would do more: look at the result, and take back one
    that is not as the server said it would be, though the call is done.
    """
    params = mcp_types.CallToolRequestParams(name=name, arguments=arguments)
    request = mcp_types.CallToolRequest(params=params)
    outcome: mcp_types.CallToolResult | Exception
    send, receive = trio.open_memory_channel[str](PROGRESS_BUFFER)

    async def note(progress: float, total: float | None, message: str | None) -> None:
        done = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
        try:
            send.send_nowait(f"{done} {message}\n" if message else f"{done}\n")
        except (trio.WouldBlock, trio.BrokenResourceError):  # a slow reader, or late
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_show_each, receive, show)
        try:
            outcome = await session.send_request(
                request, mcp_types.CallToolResult, progress_callback=note
            )
        except Exception as error:  # noqa: BLE001 - out of the nursery it would be a group
            outcome = error
        nursery.cancel_scope.cancel()
    return outcome


async def _show_each(progress: trio.MemoryReceiveChannel[str], show: Show) -> None:
    async with progress:
        async for text in progress:
            await show(text)


def judge(
    outcome: Exception | None, exchange: Exchange, lost: str
) -> tuple[type[ToolError | ServerError], str]:
    """What a call without a result means: what is to be raised, in which words."""
    status = exchange.status or 0
    words = in_words(outcome) if outcome else ""
    if isinstance(outcome, MCPError):
        words = outcome.message
    elif isinstance(outcome, pydantic.ValidationError):  # would quote the answer
        words = "its answer does not fit the protocol"
    if exchange.problem:
        return (ServerError if exchange.sent else ToolError), exchange.problem
    if 400 <= status < 500 and status != REQUEST_TIMEOUT:
        return ToolError, with_status(status) + words
    if isinstance(outcome, MCPError) and outcome.code in REFUSED:
        return ToolError, words
    return ServerError, lost or with_status(status) + words


def is_closed(outcome: Exception | None) -> bool:
    """Whether the connection had ended, or did."""
    code = mcp_types.CONNECTION_CLOSED
    return isinstance(outcome, MCPError) and outcome.code == code


def with_status(status: int | None) -> str:
    """The HTTP status, where it says that something is wrong."""
    if not status or status < 400:
        return ""
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}: "
    except ValueError:
        return f"HTTP {status}: "
