"""Content blocks come in pieces; here they become whole again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from trioagent._events import (
    ReasoningDelta,
    ReplyPart,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)

from ._anthropic_wire import Delta
from ._arguments import arguments_text, whole_arguments

_KINDS = {
    *("text_delta", "thinking_delta", "signature_delta", "input_json_delta"),
    *("citations_delta", "compaction_delta"),
}
_INPUT = "partial_json"  # where the pieces of a block's `input` are kept
# Fields of a delta whose pieces make up the field of the same name in its block.
_PIECES = ("text", "thinking", _INPUT)
# Fields that come whole, in one delta.
_WHOLE = ("signature", "content", "encrypted_content")
# What a text and a tool call are made of. A block with more than that is carried.
_PLAIN = {"text": {"type", "text"}, "tool_use": {"type", "id", "name", "input"}}


class Block:
    """A content block that is still coming in."""

    def __init__(self, head: dict[str, Any], position: int) -> None:
        self.kind = head.get("type")
        self._position = position  # among the tool calls; without meaning for others
        self._closed = False
        found = head.get("citations")
        self._citations = found if isinstance(found, list) else []
        self._head = {k: v for k, v in head.items() if k not in ("text", "thinking")}
        self._pieces = {
            name: [value] if (value := head.get(name)) else []
            for name in ("text", "thinking")
            if isinstance(head.get(name), str)
        }

    def begin(self) -> Iterator[ReplyPart]:
        """What its head has to show."""
        if self.kind == "tool_use":
            yield ToolCallDelta(self._position, self._text("name"))
        for name, pieces in self._pieces.items():
            yield from self._show(name, "".join(pieces))

    def add(self, delta: Delta) -> Iterator[ReplyPart]:
        """Take the next piece; one of an unknown kind is left alone."""
        if delta.type not in _KINDS:
            return
        for name in _PIECES:
            piece = getattr(delta, name)
            if isinstance(piece, str) and piece:
                self._pieces.setdefault(name, []).append(piece)
                yield from self._show(name, piece)
        for name in _WHOLE:
            if (value := getattr(delta, name)) is not None:
                self._head[name] = value
        if delta.citation is not None:
            self._citations.append(delta.citation)

    def close(self) -> None:
        """Nothing more comes."""
        self._closed = True

    def take_whole(self) -> Iterator[ReplyPart]:
        """The block was whole from the start: show its input too."""
        if self.kind == "tool_use":
            yield ToolCallDelta(self._position, "", self._head_input())
        self.close()

    def text_of(self, kind: str) -> str:
        """Its text, if it is a block of that kind: text or thinking."""
        return "".join(self._pieces.get(kind, ())) if self.kind == kind else ""

    def call(self, *, cut: bool) -> ToolCall:
        """The tool call that it is. No input means no arguments; if cut, a cut."""
        arguments = "".join(self._pieces.get(_INPUT, ())) or self._head_input()
        return ToolCall(
            name=self._text("name"),
            arguments=whole_arguments(arguments, cut=cut),
            id=self._text("id"),
            position=self._position,
        )

    @property
    def is_plain(self) -> bool:
        """Whether a text or a tool call says all that is in it."""
        said = {name for name, value in self._head.items() if value not in (None, [])}
        plain = _PLAIN.get(str(self.kind))
        return plain is not None and said <= plain and not self._citations

    def carried(self, *, cut: bool) -> dict[str, Any] | None:
        """What the API wants to see again; None if it would refuse it.

        The input of a tool call is left out: it stands in the call itself.
        """
        block = dict(self._head)
        for name in ("text", "thinking"):
            if name in self._pieces:
                block[name] = "".join(self._pieces[name])
        if self.kind == "text":
            block.pop("citations", None)
            if self._citations:
                block["citations"] = self._citations
        if self.kind == "tool_use":
            block.pop("input", None)
        elif _INPUT in self._pieces:
            block["input"] = _parse("".join(self._pieces[_INPUT]))
        unsigned = self.kind == "thinking" and not block.get("signature")
        half = unsigned and (cut or not self._closed)
        return None if half or block.get("input", {}) is None else block

    def _show(self, name: str, piece: str) -> Iterator[ReplyPart]:
        if not piece:
            return
        if (self.kind, name) == ("text", "text"):
            yield TextDelta(piece)
        elif (self.kind, name) == ("thinking", "thinking"):
            yield ReasoningDelta(piece)
        elif (self.kind, name) == ("tool_use", _INPUT):
            yield ToolCallDelta(self._position, "", piece)

    def _head_input(self) -> str:
        return arguments_text(self._head.get("input") or None)

    def _text(self, name: str) -> str:
        value = self._head.get(name)
        return value if isinstance(value, str) else ""


def _parse(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
