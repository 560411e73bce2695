"""The loopback server that the bench's models and writes talk to, and its own witness.

A process of its own, so that it sees a close as a provider does, and its load is not on
the loop under test. The first word of a path says how it answers:

    /silent/…   reads the request and never answers
    /stream/N/… a Chat Completions reply that goes on, N characters every 5 ms
    /busy/…     503, to be asked again after 30 s
    /commit     has its effect, and never answers
    /log        what it has seen since `/reset`; /wait waits until it has seen a request
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial

import msgspec
import trio

PIECE_SECONDS = 0.005
OWN = {"log", "reset", "wait"}  # what the bench asks itself


class Seen(msgspec.Struct, kw_only=True):
    """One request, as the server saw it; stamps as in `Sample`."""

    path: str
    begun: int
    closed: int | None = None  # the answer was over, or the client was gone
    pieces: list[int] = []  # when each was sent


class Witness:
    """All requests since the last reset."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.arrived = trio.Event()

    def reset(self) -> None:
        self.seen = []
        self.arrived = trio.Event()

    def note(self, path: str) -> Seen:
        seen = Seen(path=path, begun=time.monotonic_ns())
        self.seen.append(seen)
        self.arrived.set()
        return seen


async def serve(witness: Witness) -> None:
    """Serve on a free port, whose number goes to stdout, until stdin ends."""
    async with trio.open_nursery() as nursery:
        handler = partial(handle, witness)
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(partial(trio.serve_listeners, handler, [listener]))
        print(listener.socket.getsockname()[1], flush=True)  # noqa: T201 - the protocol
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


async def handle(witness: Witness, stream: trio.SocketStream) -> None:
    """One connection: request after request, until it is closed."""
    async with stream:
        try:
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    part = await stream.receive_some()
                    if not part:
                        return
                    data += part
                head, _, data = data.partition(b"\r\n\r\n")
                length = _length(head)
                while len(data) < length:
                    data += await stream.receive_some()
                data = data[length:]
                path = head.split(b" ", 2)[1].decode()
                await answer(witness, path, stream)
        except trio.BrokenResourceError:
            pass  # gone; what there was to note is noted


async def answer(witness: Witness, path: str, stream: trio.SocketStream) -> None:
    """One request, as its path wants it."""
    kind, *more = path.strip("/").split("/")
    if kind in OWN:
        await stream.send_all(_response(await own(witness, kind)))
        return
    seen = witness.note(path)
    try:
        if kind == "busy":
            body = b'{"error":{"message":"overloaded","type":"overloaded_error"}}'
            await stream.send_all(_response(body, "503 Busy", "Retry-After: 30\r\n"))
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_wait_closed, stream, nursery.cancel_scope)
                if kind == "stream":
                    await _send_pieces(stream, seen, "x" * int(more[0]))
                await trio.sleep_forever()
    except* trio.BrokenResourceError:
        pass  # the client went while a piece was on its way
    finally:
        seen.closed = time.monotonic_ns()


async def own(witness: Witness, kind: str) -> bytes:
    if kind == "reset":
        witness.reset()
    elif kind == "wait":
        await witness.arrived.wait()
    return msgspec.json.encode(witness.seen)


async def _wait_closed(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass
    scope.cancel()


async def _send_pieces(stream: trio.SocketStream, seen: Seen, text: str) -> None:
    await stream.send_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    piece = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "bench",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}],
    }
    line = f"data: {json.dumps(piece)}\n\n".encode()
    chunk = b"%x\r\n%b\r\n" % (len(line), line)
    while True:
        await stream.send_all(chunk)
        seen.pieces.append(time.monotonic_ns())
        await trio.sleep(PIECE_SECONDS)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _response(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def read_seen(body: bytes) -> list[Seen]:
    """What `/log` answers."""
    return msgspec.json.decode(body, type=list[Seen])


if __name__ == "__main__":
    trio.run(serve, Witness())
