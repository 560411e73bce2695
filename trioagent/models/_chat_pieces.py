"""Tool calls and reasoning details come in pieces; here they become whole again."""

from __future__ import annotations

from typing import Any

from trioagent._events import ToolCall, ToolCallDelta

from ._arguments import arguments_text, whole_arguments
from ._chat_wire import CallDelta


class _Call:
    """A tool call that is still coming in."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


class Calls:
    """Sorts the pieces of tool calls to the call they belong to."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, int] = {}  # the latest call of that index

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, delta: CallDelta) -> ToolCallDelta | None:
        """What is new in this piece; None if it belongs to no call."""
        call_id = "" if delta.id is None else str(delta.id)
        name = delta.function.name or "" if delta.function else ""
        arguments = arguments_text(delta.function.arguments if delta.function else None)
        if not (call_id or name or arguments):
            return ToolCallDelta(0)  # a placeholder, empty in every respect
        position = self._find(delta.index, call_id, name)
        if position is None:
            if not (call_id or name):
                return None
            position = self._begin(delta.index)
        call = self._calls[position]
        shown = "" if call.name else name
        call.id = call.id or call_id
        call.name = call.name or name
        if arguments:
            call.arguments.append(arguments)
        return ToolCallDelta(position, shown, arguments)

    def finish(self, *, cut: bool) -> tuple[ToolCall, ...] | None:
        """The whole calls, or None if one of them has no name.

        Where the reply was cut, a name that had not come yet is no fault.
        """
        calls = [call for call in self._calls if call.name or not cut]
        if not all(call.name for call in calls):
            return None
        return tuple(
            ToolCall(
                name=call.name,
                arguments=whole_arguments("".join(call.arguments), cut=cut),
                id=call.id,
                position=position,
            )
            for position, call in enumerate(calls)
        )

    def _begin(self, index: int | None) -> int:
        self._calls.append(_Call())
        position = len(self._calls) - 1
        if index is not None:
            self._by_index[index] = position
        return position

    def _find(self, index: int | None, call_id: str, name: str) -> int | None:
        """The call that a piece goes on with; None if it begins one."""
        if index is not None:
            position = self._by_index.get(index)
        elif call_id:
            ids = [call.id for call in self._calls]
            return ids.index(call_id) if call_id in ids else None
        else:  # no index and no id: a name begins a call, anything else goes on
            position = len(self._calls) - 1 if self._calls and not name else None
        if position is None:
            return None
        call = self._calls[position]
        if call_id and call.id:
            return position if call_id == call.id else None
        return position if name in ("", call.name) or not call.name else None


class Details:
    """OpenRouter's `reasoning_details`, which go back in whole pieces."""

    def __init__(self) -> None:
        self._items: list[tuple[dict[str, Any], dict[str, list[str]]]] = []

    def add(self, details: list[Any]) -> None:
        """Take the next pieces; those of one block follow each other."""
        for piece in details:
            if isinstance(piece, dict):
                self._add(piece)

    def _add(self, piece: dict[str, Any]) -> None:
        last = self._items[-1][0] if self._items else None
        key = piece.get("type"), piece.get("index")
        if last is None or key != (last.get("type"), last.get("index")):
            self._items.append(({}, {}))
        head, texts = self._items[-1]
        for name, value in piece.items():
            if name in ("text", "summary", "data") and isinstance(value, str):
                head.setdefault(name, "")
                texts.setdefault(name, []).append(value)
            elif value is not None or name not in head:
                head[name] = value

    def finish(self) -> list[dict[str, Any]]:
        """The whole blocks, in their order."""
        return [
            head | {name: "".join(pieces) for name, pieces in texts.items()}
            for head, texts in self._items
        ]

    @staticmethod
    def text_of(details: list[Any]) -> str:
        """What a person can read of these pieces."""
        pieces = [d for d in details if isinstance(d, dict)]
        texts = (d.get("text") or d.get("summary") for d in pieces)
        return "".join(text for text in texts if isinstance(text, str))
