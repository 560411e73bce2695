"""Server-sent events from bytes, cut anywhere.

By the WHATWG rules, on bytes: only CR, LF and CRLF end a line, so a line separator of
Unicode inside a JSON string stays where it is. Beyond them, as model servers need it:
comments come out (they are signs of life), so does the `error:` field that llama.cpp
invented, and an error that Google writes between the events as plain JSON; and an event
that is whole JSON counts although its blank line never came.
"""

from __future__ import annotations

import msgspec

from trioagent._errors import ModelUnavailable

MAX_EVENT_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event. `data` is not decoded, its lines are joined by LF."""

    data: bytes
    event: str = "message"
    id: str = ""  # the last one seen
    retry: int | None = None


class Comment(msgspec.Struct, frozen=True, gc=False):
    """A line that carries nothing, but shows that the server lives."""

    text: bytes


class ErrorLine(msgspec.Struct, frozen=True, gc=False):
    """A line `error: …`, or JSON with an error in it; neither is in the standard."""

    data: bytes


Item = Event | Comment | ErrorLine


class SSEDecoder:
    """Feed it bytes as they come; it gives what they complete. The work is linear.

    An event of more than `max_event_bytes` raises `ModelUnavailable`.
    """

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        # The unfinished line, in the pieces it came in: joined once, when it ends, so
        # that a long line in small pieces is not copied again and again.
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._stray: list[bytes] = []  # lines of JSON that stand between the events
        self._size = 0  # bytes held in the two
        self._event = ""
        self._id = ""
        self._retry: int | None = None
        self._at_start = True  # no line has been read yet: a BOM may come
        self._after_cr = False  # the last byte was CR: an LF now belongs to it

    def feed(self, data: bytes) -> list[Item]:
        """The items that these bytes complete."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if not data:
            return []
        # The line is over at CR; waiting for its LF would hold back a whole event.
        self._after_cr = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *rest = data.split(b"\n")
        self._line.append(first)
        self._hold(len(first))
        if not rest:
            return []
        found: list[Item] = []
        self._read_line(self._take_line(), found)
        last = rest.pop()
        self._read_lines(rest, found)
        if last:
            self._line.append(last)
            self._hold(len(last))
        return found

    def end(self) -> list[Item]:
        """The stream ended as it should: the last event counts if it is whole JSON."""
        found: list[Item] = []
        if self._line:
            self._read_line(self._take_line(), found)
        if not _is_whole(b"\n".join(self._data)):
            self._data.clear()
        self._dispatch(found)
        return found

    def _take_line(self) -> bytes:
        line = b"".join(self._line)
        self._line.clear()
        self._size -= len(line)
        return line

    def _hold(self, size: int) -> None:
        self._size += size
        if self._size > self._max:
            raise ModelUnavailable(
                f"an event of the stream is larger than {self._max} bytes",
                kind="event_too_large",
                may_retry=False,
            )

    def _read_lines(self, lines: list[bytes], found: list[Item]) -> None:
        """Whole lines. Nearly all are data, or end an event of one line: no calls."""
        data = self._data
        for line in lines:
            if line.startswith(b"data: ") and not self._at_start:
                data.append(line[6:])
                self._hold(len(line))
            elif line or len(data) != 1 or self._event or self._stray:
                self._read_line(line, found)
            else:
                found.append(Event(data.pop(), "message", self._id, self._retry))
                self._size = 0
                self._retry = None

    def _read_line(self, line: bytes, found: list[Item]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if line.startswith(b"data:"):  # nearly all of them
            value = line[6:] if line[5:6] == b" " else line[5:]
            self._data.append(value)
            self._hold(len(value))
        elif line:
            self._read_field(line, found)
        else:
            self._dispatch(found)

    def _read_field(self, line: bytes, found: list[Item]) -> None:
        if self._stray or line[0] in b"{[":
            self._stray.append(line)
            self._hold(len(line))
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not name:
            found.append(Comment(value))
        elif name == b"data":  # a line without a colon
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"error":
            found.append(ErrorLine(value))
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            self._retry = int(value)

    def _dispatch(self, found: list[Item]) -> None:
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            found.append(Event(data, self._event or "message", self._id, self._retry))
            self._data.clear()
        if self._stray:
            stray = b"\n".join(self._stray)
            if _is_error(stray):
                found.append(ErrorLine(stray))
            self._stray.clear()
        self._size = 0
        self._event = ""
        self._retry = None


def _is_whole(data: bytes) -> bool:
    if data == b"[DONE]":
        return True
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


def _is_error(data: bytes) -> bool:
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    if isinstance(body, list) and body:
        body = body[0]
    return isinstance(body, dict) and bool(body.get("error"))
