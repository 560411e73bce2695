"""The items of a response come in pieces, and once more whole; here they come together.

The whole item has the last word, but what it adds to its pieces is all that is shown of
it: some servers send no pieces, some no whole items, some both only at the very end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trioagent._events import (
    ReasoningDelta,
    ReplyPart,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)

from ._arguments import arguments_text, whole_arguments
from ._responses_wire import CALLS, StreamEvent

_PIECES = {  # what a piece is, and the type of the item it belongs to
    "response.output_text.delta": ("text", "message"),
    "response.refusal.delta": ("refusal", "message"),
    "response.reasoning_summary_text.delta": ("summary", "reasoning"),
    "response.reasoning_text.delta": ("thought", "reasoning"),
    "response.function_call_arguments.delta": ("arguments", "function_call"),
    "response.custom_tool_call_input.delta": ("arguments", "custom_tool_call"),
}
_BETWEEN_THOUGHTS = "\n\n"


class _Item:
    """An item that is still coming in."""

    def __init__(self, kind: str, position: int) -> None:
        self.kind = kind
        self.position = position  # among the calls, of those that are one
        self.name = ""
        self.call_id = ""
        self.whole: dict[str, Any] | None = None
        self.pieces: dict[str, dict[int, list[str]]] = {}  # by what they are, and part

    def text(self, what: str) -> str:
        """The pieces of that kind, part after part."""
        parts = self.pieces.get(what, {})
        return "".join(piece for _, part in sorted(parts.items()) for piece in part)


class Items:
    """Sorts pieces to their items; `all` has them in their order."""

    def __init__(self) -> None:
        self.all: list[_Item] = []
        self.reasoning: list[str] = []  # as it was shown
        self._by_key: dict[int | str | None, _Item] = {}
        self._calls = 0
        self._thought: tuple[int, str, int] | None = None  # the part last shown

    def read(self, event: StreamEvent) -> Iterator[ReplyPart]:
        """What is new in this event; nothing if it is of no interest."""
        if event.type in _PIECES and isinstance(event.delta, str):
            what, kind = _PIECES[event.type]
            item = self._find(event.output_index, event.item_id, kind)
            index = event.summary_index if what == "summary" else event.content_index
            yield from self._add(item, what, index or 0, event.delta)
        elif event.item is not None and event.type == "response.output_item.added":
            yield from self._name(self._item_of(event, event.item), event.item)
        elif event.item is not None and event.type == "response.output_item.done":
            yield from self._complete(self._item_of(event, event.item), event.item)

    def read_output(self, output: list[Any]) -> Iterator[ReplyPart]:
        """What the items of the whole response add to those that came before.

        Ids and places may differ from those in the stream, or the list be empty. So the
        n-th of a type here is the n-th of that type there.
        """
        mine: dict[str, list[_Item]] = {}
        for item in self.all:
            mine.setdefault(item.kind, []).append(item)
        for raw in output:
            if not isinstance(raw, dict):
                continue
            same = mine.get(_kind(raw))
            item = same.pop(0) if same else self._begin(_kind(raw))
            if item.whole is None:
                yield from self._complete(item, raw)

    def text(self, what: str) -> str:
        """All text of that kind, item after item."""
        return "".join(item.text(what) for item in self.all)

    def calls(self, *, cut: bool) -> tuple[ToolCall, ...] | None:
        """The whole calls, or None if one of them has no name.

        Where the reply was cut, a name that had not come yet is no fault.
        """
        calls = [item for item in self.all if item.kind in CALLS]
        named = [item for item in calls if item.name or not cut]
        if not all(item.name for item in named):
            return None
        return tuple(
            ToolCall(
                name=item.name,
                arguments=_arguments(item, cut=cut),
                id=item.call_id,
                position=position,
            )
            for position, item in enumerate(named)
        )

    def _item_of(self, event: StreamEvent, raw: dict[str, Any]) -> _Item:
        return self._find(event.output_index, raw.get("id"), _kind(raw))

    def _find(self, index: int | None, item_id: str | None, kind: str) -> _Item:
        key = item_id if index is None else index  # llama.cpp sends no index
        item = self._by_key.get(key)
        # With neither, one item follows the other.
        over = key is None and item and (item.whole is not None or item.kind != kind)
        if item is None or over:
            item = self._by_key[key] = self._begin(kind)
        return item

    def _begin(self, kind: str) -> _Item:
        item = _Item(kind, self._calls)
        self._calls += kind in CALLS
        self.all.append(item)
        return item

    def _name(self, item: _Item, raw: dict[str, Any]) -> Iterator[ReplyPart]:
        if item.kind not in CALLS:
            return
        name, call_id = raw.get("name"), raw.get("call_id")
        item.call_id = str(call_id or "") or item.call_id
        if isinstance(name, str) and name and not item.name:
            item.name = name
            yield ToolCallDelta(item.position, name)

    def _complete(self, item: _Item, raw: dict[str, Any]) -> Iterator[ReplyPart]:
        item.whole = raw
        yield from self._name(item, raw)
        for what, index, text in _contents(raw):
            before = "".join(item.pieces.get(what, {}).get(index, ()))
            if text.startswith(before):
                yield from self._add(item, what, index, text[len(before) :])
            item.pieces.setdefault(what, {})[index] = [text]

    def _add(
        self, item: _Item, what: str, index: int, text: str
    ) -> Iterator[ReplyPart]:
        if not text:
            return
        item.pieces.setdefault(what, {}).setdefault(index, []).append(text)
        if what == "text":
            yield TextDelta(text)
        elif what == "arguments":
            yield ToolCallDelta(item.position, "", text)
        elif what != "refusal" and next(iter(item.pieces)) == what:
            # A summary, or what it sums up: whichever came first, and not both.
            part = id(item), what, index
            if self._thought not in (None, part):
                text = _BETWEEN_THOUGHTS + text
            self._thought = part
            self.reasoning.append(text)
            yield ReasoningDelta(text)


def _kind(raw: dict[str, Any]) -> str:
    return str(raw.get("type") or "")


def _contents(raw: dict[str, Any]) -> Iterator[tuple[str, int, str]]:
    """The texts of a whole item: what each is, which part, and the text."""
    kind = _kind(raw)
    if kind == "function_call":
        yield "arguments", 0, arguments_text(raw.get("arguments"))
    elif kind == "custom_tool_call":
        yield "arguments", 0, arguments_text(raw.get("input"))
    elif kind == "message":
        yield from _texts(raw.get("content"), output_text="text", refusal="refusal")
    elif kind == "reasoning":
        yield from _texts(raw.get("summary"), summary_text="summary")
        yield from _texts(raw.get("content"), reasoning_text="thought")


def _texts(parts: Any, **names: str) -> Iterator[tuple[str, int, str]]:
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, dict) and part.get("type") in names:
            text = part.get("refusal" if part["type"] == "refusal" else "text")
            if isinstance(text, str):
                yield names[part["type"]], index, text


def _arguments(item: _Item, *, cut: bool) -> str:
    text = item.text("arguments")
    if item.kind == "custom_tool_call":  # free text: what it says is what is meant
        return text
    return whole_arguments(text, cut=cut)
