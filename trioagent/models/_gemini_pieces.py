"""The model's turn comes in pieces; here calls, and what goes back, become whole."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import msgspec

from trioagent._events import ToolCall, ToolCallDelta

from ._arguments import whole_arguments
from ._gemini_wire import FunctionCall, PartialArg

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,9})\]|\['([^']*)'\]|\["([^"]*)"\]""")
_DEEPEST = 64  # steps of a path; JSON that is nested much deeper nobody can read


class _Arguments:
    """Arguments that come value by value, each with the path to its place."""

    def __init__(self) -> None:
        self._root: dict[str, Any] = {}
        # Strings come in pieces, which are joined once.
        self._strings: dict[str, tuple[Any, str | int, list[str]]] = {}

    def add(self, piece: PartialArg) -> None:
        """Put one value, or a piece of a string, in its place; ValueError if none."""
        value = piece.value
        if value is msgspec.UNSET:
            return
        known = self._strings.get(piece.json_path)
        if known is not None and isinstance(value, str):
            known[2].append(value)
            return
        node, last = self._find(_read_path(piece.json_path))
        _child(node, last, value)
        node[last] = value
        if isinstance(value, str):
            self._strings[piece.json_path] = node, last, [value]

    def finish(self, whole: str) -> str:
        """All of it as JSON text; `whole` is what came as an object."""
        if not self._root:
            return whole_arguments(whole, cut=False)
        for node, last, pieces in self._strings.values():
            node[last] = "".join(pieces)
        base = msgspec.json.decode(whole if whole.startswith("{") else "{}")
        return msgspec.json.encode(base | self._root).decode()

    def _find(self, path: list[str | int]) -> tuple[Any, str | int]:
        node: Any = self._root
        for step, following in pairwise(path):
            node = _child(node, step, [] if isinstance(following, int) else {})
        return node, path[-1]


def _read_path(path: str) -> list[str | int]:
    """`$.a[0]['b']` as the steps a, 0 and b."""
    steps: list[str | int] = []
    at = 1
    while path[:1] == "$" and (match := _STEP.match(path, at)):
        name, index, *quoted = match.groups()
        steps.append(int(index) if index else name or quoted[0] or quoted[1] or "")
        at = match.end()
    if at != len(path) or not 0 < len(steps) <= _DEEPEST:
        raise ValueError("a path that cannot be read")
    return steps


def _child(node: Any, step: str | int, new: Any) -> Any:
    """What stands at that place; `new` from now on, if nothing did."""
    if isinstance(node, dict) and isinstance(step, str):
        return node.setdefault(step, new)
    if isinstance(node, list) and isinstance(step, int) and step <= len(node):
        if step == len(node):
            node.append(new)
        return node[step]
    raise ValueError("a path that leads nowhere")


class _Call:
    """A tool call that may still be coming in."""

    def __init__(self, call: FunctionCall, position: int) -> None:
        self.name = call.name or ""
        self.id = call.id or ""
        self.position = position
        self.is_open = False
        self._whole = ""
        self._pieces = _Arguments()

    def add(self, call: FunctionCall) -> None:
        self.is_open = bool(call.will_continue)
        self._whole = bytes(call.args).decode() or self._whole
        for piece in call.partial_args or ():
            self._pieces.add(piece)

    def arguments(self) -> str:
        return self._pieces.finish(self._whole)

    def finish(self, *, cut: bool) -> ToolCall:
        text = self.arguments()
        if cut and self.is_open:
            text = text[:-1]  # so that nobody takes it for whole
        return ToolCall(self.name, text, self.id, position=self.position)


class Calls:
    """The tool calls of a reply: whole ones, and one that comes in pieces."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._open: _Call | None = None

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, call: FunctionCall) -> tuple[ToolCallDelta, bool]:
        """What is new in this piece, and whether it begins a call.

        Raises ValueError for one that belongs to no call, or has no place in it.
        """
        current = self._open
        begins = bool(call.name) and not (current and call.id and current.id == call.id)
        if begins:
            current = _Call(call, len(self._calls))
            self._calls.append(current)
        if current is None:
            if call.id or call.args or call.partial_args:
                raise ValueError("a piece of no call")
            return ToolCallDelta(0), False  # the end of what had ended already
        current.add(call)
        if current.is_open:
            self._open = current
        elif current is self._open:
            self._open = None
        name = current.name if begins else ""
        arguments = "" if current.is_open else current.arguments()
        return ToolCallDelta(current.position, name, arguments), begins

    def finish(self, *, cut: bool) -> tuple[ToolCall, ...]:
        """The calls. One that is still open ends with the reply, or is cut with it."""
        return tuple(call.finish(cut=cut) for call in self._calls)


class Turn:
    """The model's turn as it goes back: each signature on the part that carried it.

    Arguments are left out: the tool calls have them.
    """

    def __init__(self) -> None:
        self._parts: list[dict[str, Any]] = []
        self._text: list[str] | None = None  # of the last part, while more may follow
        self._matters = False

    def add_text(self, text: str, *, thought: bool, signature: str) -> None:
        """Text without a signature goes on the last part, if that is of its kind."""
        if not text and not signature:
            return
        last = self._parts[-1] if self._parts else {}
        if signature or self._text is None or last.get("thought", False) != thought:
            self._close()
            self._parts.append({"thought": True} if thought else {})
            self._text = []
        self._text.append(text)
        if signature:
            self._sign(signature)
            self._close()

    def add_call(self, call: FunctionCall, *, signature: str) -> None:
        """A call begins."""
        self._close()
        function = {"name": call.name, "id": call.id}
        said = {name: value for name, value in function.items() if value}
        self._parts.append({"functionCall": said})
        self._sign(signature)

    def add_other(self, part: dict[str, Any]) -> None:
        """What only the provider understands."""
        self._close()
        self._parts.append(part)
        self._matters = True

    def finish(self) -> list[dict[str, Any]]:
        """The parts, if more of them must go back than text and calls."""
        self._close()
        return self._parts if self._matters else []

    def _sign(self, signature: str) -> None:
        if signature:
            self._parts[-1]["thoughtSignature"] = signature
            self._matters = True

    def _close(self) -> None:
        if self._text is not None:
            self._parts[-1]["text"] = "".join(self._text)
            self._text = None
