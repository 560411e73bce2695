"""A server at a URL: the transport of the official package, made to keep its troubles.

Left alone it says nothing of an HTTP status, and an error on one connection ends every
call; so each request goes through a client of ours, which knows whose it is. The clocks
are those of the calls: httpx2's own are off.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx2  # noqa: ASYNC127 - what the official package sends with
import msgspec
import trio
from mcp.client.streamable_http import streamable_http_client

from ._wire import EXCHANGE, MESSAGE_BYTES, Address, Exchange
from ._words import in_words

NOTICE_SECONDS = 2.0  # for telling a server that a call is cancelled
NOT_SENT = (httpx2.ConnectError, httpx2.UnsupportedProtocol)
EVENTS = "text/event-stream"  # in which the package itself looks at each message
# In place of an answer that cannot come: the client hands it to whoever has asked.
NO_ANSWER = b'{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"no answer"}}'


class HttpWire:
    """The connections of one session with a server."""

    eras: tuple[str, ...] = ("auto",)

    def __init__(self, address: Address) -> None:
        self._address = address

    @asynccontextmanager
    async def streams(
        self, lose: Callable[[str], None]
    ) -> AsyncGenerator[tuple[Any, Any]]:
        """See `Wire`."""
        async with trio.open_nursery() as nursery:
            async with _Client(
                nursery,
                headers=dict(self._address.headers),
                timeout=httpx2.Timeout(None),
                # A limit would lose count where a waiting request is cancelled.
                limits=httpx2.Limits(max_connections=None),
            ) as client:
                async with streamable_http_client(
                    self._address.url,
                    http_client=client,
                    max_sse_event_size=MESSAGE_BYTES,
                ) as streams:
                    yield streams
                    await client.wait_notices()

    def last_words(self) -> str:
        """It has no other way to say something."""
        return ""


class _Client(httpx2.AsyncClient):
    """Tells the exchange of each request what became of it."""

    def __init__(self, nursery: trio.Nursery, **options: Any) -> None:
        super().__init__(**options)
        self._nursery = nursery
        self._notices = 0
        self._quiet = trio.Event()

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if _is_cancel_notice(request):
            # The package would send nothing else until that has been answered.
            self._notices += 1
            self._nursery.start_soon(self._send_notice, request, options)
            return httpx2.Response(202, request=request)
        exchange = EXCHANGE.get()
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            if exchange is None or not exchange.contained:
                raise
            exchange.lose(in_words(error), sent=not isinstance(error, NOT_SENT))
            if request.method != "POST":  # it was to go on with a broken answer
                exchange.scope.cancel()
                raise
            headers = {"content-type": "application/json"}
            return httpx2.Response(
                502, headers=headers, content=NO_ANSWER, request=request
            )
        if exchange is not None and request.method == "POST":
            exchange.status = response.status_code
            stream = cast(httpx2.AsyncByteStream, response.stream)
            in_parts = response.headers.get("content-type", "").startswith(EVENTS)
            limit = math.inf if in_parts else MESSAGE_BYTES
            response.stream = _Body(stream, exchange, limit)
        return response

    async def _send_notice(self, request: httpx2.Request, options: Any) -> None:
        try:
            with trio.move_on_after(NOTICE_SECONDS):
                response = await super().send(request, **options)
                await response.aclose()
        except httpx2.HTTPError:  # it is a courtesy
            pass
        finally:
            self._notices -= 1
            if not self._notices:
                self._quiet.set()
                self._quiet = trio.Event()

    async def wait_notices(self) -> None:
        """Until all that were cancelled have been reported, or could not be."""
        while self._notices:
            await self._quiet.wait()


def _is_cancel_notice(request: httpx2.Request) -> bool:
    if request.method != "POST" or len(request.content) > 4096:
        return False
    message = msgspec.json.decode(request.content)
    return bool(message.get("method") == "notifications/cancelled")


class _Body(httpx2.AsyncByteStream):
    """An answer that ends early, or never ends, is the trouble of its call alone."""

    def __init__(
        self, inner: httpx2.AsyncByteStream, exchange: Exchange, limit: float
    ) -> None:
        self._inner = inner
        self._left = limit
        self._chunks: AsyncIterator[bytes] = aiter(inner)
        self._exchange = exchange

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await anext(self._chunks)
        except httpx2.TransportError as error:
            raise self._cut(in_words(error)) from None
        self._left -= len(chunk)
        if self._left < 0:
            raise self._cut(f"it sent more than {MESSAGE_BYTES} bytes in one message")
        return chunk

    def _cut(self, why: str) -> Exception:
        """What the package expects, and hands to whoever has asked."""
        self._exchange.lose(why)
        return httpx2.StreamError("the answer was cut")

    async def aclose(self) -> None:
        await self._inner.aclose()
