"""The bytes of an answer, whatever they turn out to be: events, JSON, a web page."""

from __future__ import annotations

from collections.abc import Callable

from trioagent._events import ReplyPart

from ._chat_stream import ChatStream
from ._sse import Event, SSEDecoder

MAX_BODY_BYTES = 64 * 1024 * 1024


class ChatBody:
    """Feed it bytes; it gives the pieces they bring. `stream` has the reply at the end.

    What the content type says is not asked: servers ignore `stream`, and proxies label
    as they like. The first byte tells.
    """

    def __init__(self, stream: ChatStream, *, max_bytes: int = MAX_BODY_BYTES) -> None:
        self.stream = stream
        self._max = max_bytes
        self._decoder = SSEDecoder()
        self._whole: list[bytes] = []
        self._size = 0
        self._read: Callable[[bytes], list[ReplyPart]] = self._read_start

    def feed(self, data: bytes) -> list[ReplyPart]:
        """What these bytes bring."""
        return self._read(data)

    def end(self) -> list[ReplyPart]:
        """What the end of the body brings."""
        if self._whole:
            parts = self.stream.feed(Event(b"".join(self._whole)))
            self.stream.done = True  # it is whole, whatever its finish reason
            return parts
        return [part for item in self._decoder.end() for part in self.stream.feed(item)]

    def _read_start(self, data: bytes) -> list[ReplyPart]:
        data = data.lstrip(b"\xef\xbb\xbf \t\r\n")  # a BOM; keep-alives before JSON
        if not data:
            return []
        if data.startswith(b"<"):
            what = "answered with a web page; is base_url right?"
            raise self.stream.unusable(what, "not_json")
        self._read = self._read_json if data[:1] in (b"{", b"[") else self._read_events
        return self._read(data)

    def _read_json(self, data: bytes) -> list[ReplyPart]:
        self._whole.append(data)
        self._size += len(data)
        if self._size > self._max:
            what = f"sent an answer of more than {self._max} bytes"
            raise self.stream.unusable(what, "body_too_large")
        return []

    def _read_events(self, data: bytes) -> list[ReplyPart]:
        parts: list[ReplyPart] = []
        for item in self._decoder.feed(data):
            if self.stream.done:
                break
            parts += self.stream.feed(item)
        return parts
