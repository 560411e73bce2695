"""The bytes of an answer, whatever they turn out to be: events, JSON, a web page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from trioagent._errors import ModelError
from trioagent._events import Reply, ReplyPart

from ._sse import Event, Item, SSEDecoder

MAX_BODY_BYTES = 64 * 1024 * 1024


class Stream(Protocol):
    """One reply of one wire format, put together from events. No I/O in it.

    Feeding raises nothing: an error comes out of `finish`, after what came before it.
    """

    done: bool  # nothing more comes, or counts

    @property
    def is_finished(self) -> bool:
        """Whether the reply is over; its usage may still come."""
        ...

    def feed(self, item: Item) -> list[ReplyPart]:
        """Take one item of the stream; a whole JSON body counts as one."""
        ...

    def fail(self, error: ModelError) -> None:
        """The rest of the stream is lost: an error, unless the reply was over."""
        ...

    def finish(self) -> Reply:
        """The whole reply, or `ModelError` if an error came, or no end."""
        ...

    def unusable(self, what: str, kind: str) -> ModelError:
        """The error for an answer that is no reply, with what is known of it so far."""
        ...


class Body:
    """Feed it bytes; it gives the pieces they bring. `stream` has the reply at the end.

    What the content type says is not asked: servers ignore `stream`, and proxies label
    as they like. The first byte tells.
    """

    def __init__(self, stream: Stream, *, max_bytes: int = MAX_BODY_BYTES) -> None:
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
