"""HTTP for the models: an answer that can be left at any time, with nothing left open.

httpx is imported here and nowhere else. Its own timeouts are off: a read timeout starts
again with each byte, so it bounds nothing. The clocks are cancel scopes; the one for
the connection is here, the others belong to the run.
"""

from __future__ import annotations

import functools
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx  # noqa: ASYNC127 - the project is built on httpx; only this line knows
import trio

from trioagent._errors import ModelError, ModelUnavailable

from ._connect import ConnectClock
from ._http_errors import translate

KEEP_ALIVE_SECONDS = 30.0  # how long an idle connection is kept for the next turn
DRAIN_SECONDS = 0.1  # after the last word of a reply, until the body ends
DRAIN_BYTES = 64 * 1024
PROBLEM_SECONDS = 2.0  # for the body of an error answer: its status is known already
PROBLEM_BYTES = 64 * 1024
CLOSE_SECONDS = 2.0  # for closing idle connections

_FOREIGN = (  # what httpx lets out
    httpx.HTTPError,
    httpx.InvalidURL,
    OSError,  # ssl.SSLError too
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    zlib.error,
)


class Answer:
    """The answer to one request: an async iterator over the bytes of its body."""

    def __init__(self, response: httpx.Response, host: str) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        # Set by the reader when it has all it wanted: then the rest of the body is
        # awaited for a moment, so that the connection can be used again.
        self.complete = False
        self._host = host
        # Raw, because httpx's own decompression can fail half-way up its generators,
        # and leaves those below to the garbage collector.
        self._chunks = response.aiter_raw()
        self._decode = _decoder(response.headers.get("content-encoding", ""))
        self._cut = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._cut:  # httpx would say that the body ended, as if all had come
            raise ModelUnavailable(
                f"reading the answer of {self._host} was cut before its end",
                kind="incomplete_stream",
            )
        try:
            return self._decode(await anext(self._chunks))
        except StopAsyncIteration:
            raise
        except _FOREIGN as error:
            problem = translate(error, self._host)
        except BaseException:
            self._cut = True
            raise
        self._cut = True
        raise problem  # outside of `except`, where the original would be its context

    async def read_problem(self) -> bytes:
        """The start of the body of an error answer, as far as it comes in time."""
        return await self._read_on(PROBLEM_SECONDS, PROBLEM_BYTES)

    async def drain(self) -> None:
        """Read on to the end of the body, if it is near."""
        await self._read_on(DRAIN_SECONDS, DRAIN_BYTES)

    async def _read_on(self, seconds: float, limit: int) -> bytes:
        read = b""
        with trio.move_on_after(seconds):
            await trio.lowlevel.checkpoint()
            try:
                async for chunk in self:
                    read += chunk
                    if len(read) > limit:
                        break
            except ModelError:  # what was asked for is known already
                pass
        return read[:limit]

    # The first checkpoint is inside httpx: one before it would leave its generators.
    async def unwind(self) -> None:  # noqa: ASYNC910
        """In a cancelled scope: end httpx's generators, which closes the socket.

        Leaving them by `break` would leave that to the garbage collector. A read that
        is cancelled at once does it here.
        """
        with suppress(Exception):  # nobody wants this answer any more
            _ = [None async for _ in self._chunks]


class HttpClient:
    """Connections to a provider, shared by all that have entered it.

    Each `trio.run` has its own, for sockets belong to an event loop; the last to leave
    closes them. At most `connections` requests are open at a time, the others wait.
    """

    def __init__(self, *, connections: int = 100) -> None:
        if connections < 1:
            raise ValueError(f"connections must be 1 or more, not {connections}")
        self._connections = connections
        self._here: trio.lowlevel.RunVar[_Pool | None] = trio.lowlevel.RunVar(
            "trioagent connections", None
        )

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        pool = self._here.get()
        if pool is None:
            pool = _Pool(self._connections)
            self._here.set(pool)
        pool.users += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pool = self._here.get()
        assert pool is not None
        pool.users -= 1
        last = not pool.users
        if last:  # before the first await: whoever comes now makes a new one
            self._here.set(None)
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            if last and "client" in pool.__dict__:
                await pool.client.aclose()
            await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def open_stream(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes,
        connect_seconds: float,
    ) -> AsyncIterator[Answer]:
        """POST `body`; the block has its answer as soon as the headers are there.

        Waits its turn among `connections`, then for a connection up to
        `connect_seconds`, then for as long as it takes.
        On every way out the connection is closed, or kept for the next request if the
        body was read to its end. Raises `ModelError`.
        """
        host = urlsplit(url).hostname or url
        async with self:
            pool = self._here.get()
            assert pool is not None
            async with pool.slots:
                clock = ConnectClock(host, connect_seconds)
                response = await pool.send(clock, url, headers, body)
                answer = Answer(response, host)
                try:
                    yield answer
                    if answer.complete:
                        await answer.drain()
                finally:
                    with trio.move_on_after(0, shield=True):
                        await answer.unwind()


class _Pool:
    """What one trio run has of a client."""

    def __init__(self, connections: int) -> None:
        self.users = 0
        self._connections = connections
        # httpx counts connections too, but loses count for good when a request is
        # cancelled while it waits for one (encode/httpcore#1093). So it is told that
        # there is no limit, and the limit is kept in front of it.
        self.slots = trio.Semaphore(connections)

    @functools.cached_property
    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(
            max_connections=None,
            max_keepalive_connections=self._connections,
            keepalive_expiry=KEEP_ALIVE_SECONDS,
        )
        return httpx.AsyncClient(verify=_ssl_context(), limits=limits, timeout=None)

    async def send(
        self, clock: ConnectClock, url: str, headers: Mapping[str, str], body: bytes
    ) -> httpx.Response:
        problem: ModelError | None = None
        with clock.scope:
            try:
                request = self.client.build_request(
                    "POST", url, headers=headers, content=body
                )
                request.stream = _Body(body)
                request.extensions["trace"] = clock.trace
                return await self.client.send(request, stream=True)
            except _FOREIGN as error:
                problem = translate(error, clock.host)
            finally:
                if clock.stray is not None:
                    with trio.move_on_after(CLOSE_SECONDS, shield=True):
                        await clock.stray.aclose()
        # Outside of `except`: the original would be its context, and may quote a key.
        raise problem or clock.timeout(f"no connection to {clock.host}")


class _Body(httpx.AsyncByteStream):
    """What is sent. httpx's own is a generator, left half-way by a cancelled send."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._pieces: Iterator[bytes] = iter(())

    def __aiter__(self) -> Self:
        self._pieces = iter((self._body,))
        return self

    async def __anext__(self) -> bytes:
        for piece in self._pieces:
            return piece  # noqa: ASYNC910 - there is nothing to wait for
        raise StopAsyncIteration


def _decoder(encoding: str) -> Callable[[bytes], bytes]:
    """None is asked for; some servers compress all the same."""
    if encoding in ("", "identity"):
        return bytes
    return zlib.decompressobj(wbits=47).decompress  # gzip or zlib, by its first bytes


@functools.lru_cache(maxsize=1)
def _ssl_context() -> ssl.SSLContext:
    """Made once for the process: reading the certificates takes 25 ms."""
    return httpx.create_ssl_context()
