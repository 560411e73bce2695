"""A scripted HTTP/1.1 server on loopback, for tests that need a real socket.

    async with open_loopback(Answer([b"data: …\n\n", HANG])) as server:
        ...                               # ask something of server.url
        await server.connections[0].closed.wait()
        assert server.connections[0].closed_at - stopped_at < 0.1

Each request is played the next answer; the last one is played again and again. An
answer is a list of steps:

    bytes         send them (as one chunk of a chunked body)
    float         wait so many seconds
    HANG          send nothing more, until the client closes the connection
    CUT           close the connection in the middle
    Drip(b, s)    send `b` every `s` seconds, until the client closes the connection

The server knows what came in (`requests`), how many connections there were, and *when*
it saw each client close: `closed_at` is a `trio.current_time()`. It must run in the
trio run of its clients.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio


class Marker:
    """A step that is nothing but its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


HANG: Final = Marker("HANG")
CUT: Final = Marker("CUT")


@dataclass(frozen=True)
class Drip:
    data: bytes
    seconds: float


Step = bytes | float | Marker | Drip


@dataclass(frozen=True)
class Answer:
    """One answer. With `raw` the steps are the whole of it, status line and all."""

    steps: Sequence[Step] = ()
    status: int = 200
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"content-type": "text/event-stream"}
    )
    before: Sequence[Step] = ()  # played before the head
    raw: bool = False


@dataclass
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float  # when it was read whole
    connection: Connection

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(eq=False)
class Connection:
    """One TCP connection, as the server saw it."""

    closed: trio.Event = field(default_factory=trio.Event)  # by the client
    closed_at: float | None = None
    requests: int = 0

    def note_close(self) -> None:
        if self.closed_at is None:
            self.closed_at = trio.current_time()
        self.closed.set()


@dataclass(eq=False)
class Loopback:
    """The server: what to play, and what it saw."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    tls: ssl.SSLContext | None = None
    _changed: trio.Event = field(default_factory=trio.Event)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until the condition holds; looked at when a request or a connection came."""
        while not condition():
            await self._changed.wait()

    async def wait_for_requests(self, count: int) -> None:
        await self.wait_until(lambda: len(self.requests) >= count)

    async def _handle(self, socket_stream: trio.SocketStream) -> None:
        stream: trio.abc.Stream = socket_stream
        if self.tls is not None:
            stream = trio.SSLStream(
                socket_stream, self.tls, server_side=True, https_compatible=True
            )
        connection = Connection()
        self.connections.append(connection)
        self._note()
        incoming = _Incoming(stream, connection)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(incoming.pump, nursery.cancel_scope)
            while (request := await incoming.read_request()) is not None:
                self.requests.append(request)
                connection.requests += 1
                answer = self.answers[0]
                if len(self.answers) > 1:
                    del self.answers[0]
                self._note()
                if not await _play(stream, answer, connection):
                    break
            nursery.cancel_scope.cancel()
        await trio.aclose_forcefully(stream)

    def _note(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class _Incoming:
    """Reads all the time, so that a close is seen while an answer is played."""

    def __init__(self, stream: trio.abc.Stream, connection: Connection) -> None:
        self._stream = stream
        self._connection = connection
        self._buffer = b""
        self._more = trio.Event()
        self._over = False

    async def pump(self, answering: trio.CancelScope) -> None:
        try:
            while data := await self._stream.receive_some():
                self._buffer += data
                self._wake()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self._connection.note_close()
        self._over = True
        self._wake()
        answering.cancel()

    async def read_request(self) -> Request | None:
        while b"\r\n\r\n" not in self._buffer:
            if not await self._wait():
                return None
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        length = int(headers.get("content-length", 0))
        while len(self._buffer) < length:
            if not await self._wait():
                return None
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        method, path, _ = first.split(" ")
        now = trio.current_time()
        return Request(method, path, headers, body, now, self._connection)

    async def _wait(self) -> bool:
        if not self._over:
            await self._more.wait()
        return not self._over

    def _wake(self) -> None:
        self._more.set()
        self._more = trio.Event()


async def _play(
    stream: trio.abc.Stream, answer: Answer, connection: Connection
) -> bool:
    """Play one answer; whether the connection can be used for another."""
    try:
        if not await _play_steps(stream, answer.before, chunked=False):
            return False
        if answer.raw:
            await _play_steps(stream, answer.steps, chunked=False)
            return False
        await stream.send_all(_head(answer))
        if not await _play_steps(stream, answer.steps, chunked=True):
            return False
        await stream.send_all(b"0\r\n\r\n")
    except trio.BrokenResourceError:  # the client left, and `pump` did not see it yet
        connection.note_close()
        return False
    return True


async def _play_steps(
    stream: trio.abc.Stream, steps: Sequence[Step], *, chunked: bool
) -> bool:
    """Whether they were played to their end."""
    for step in steps:
        if step is CUT:
            return False
        if step is HANG:
            await trio.sleep_forever()
        elif isinstance(step, bytes):
            await stream.send_all(_frame(step) if chunked else step)
        elif isinstance(step, Drip):
            while True:
                await stream.send_all(_frame(step.data) if chunked else step.data)
                await trio.sleep(step.seconds)
        elif isinstance(step, int | float):
            await trio.sleep(step)
    return True


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


def _head(answer: Answer) -> bytes:
    headers = {"transfer-encoding": "chunked", **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} As Scripted"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@asynccontextmanager
async def open_loopback(
    *answers: Answer, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Loopback]:
    """Run a server for as long as the block."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        server = Loopback(url=url, answers=list(answers), tls=tls)
        nursery.start_soon(  # noqa: ASYNC113 - they listen already
            trio.serve_listeners, server._handle, listeners
        )
        try:
            yield server
        finally:
            nursery.cancel_scope.cancel()
