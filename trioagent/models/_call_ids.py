"""The ids that tool calls go by on the wire, whoever made the calls."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trioagent._events import ToolCall, ToolResult


class CallIds:
    """The ids that calls and results go by on the wire: each one there, and only once.

    Where a provider gave none, or gave one twice, the id is made from the turn and the
    position. The same history gives the same ids, so that prompt caches hit. An id that
    has not the `form` (a pattern) that the API asks for is as good as none.
    """

    def __init__(self, form: str = ".+") -> None:
        self._form = re.compile(form, re.DOTALL)
        self._used: set[str] = set()
        self._turn = 0
        self._open: list[tuple[ToolCall, str]] = []  # calls without a result so far

    def of_calls(self, calls: Sequence[ToolCall]) -> list[str]:
        self._turn += 1
        if not calls:
            self._open = []
            return []
        ids = [self._id_of(call, position) for position, call in enumerate(calls)]
        self._open = list(zip(calls, ids, strict=True))
        return ids

    def of_result(self, result: ToolResult) -> str:
        """The id of the call that this is the result of, as it was sent."""
        if not self._open:
            return result.call_id
        best = max(self._open, key=lambda pair: _likeness(pair[0], result))
        self._open.remove(best)
        return best[1]

    def _id_of(self, call: ToolCall, position: int) -> str:
        wire_id = call.id
        if not self._form.fullmatch(wire_id) or wire_id in self._used:
            wire_id = f"call_{call.turn or self._turn}_{position}"
        while wire_id in self._used:
            wire_id += "_"
        self._used.add(wire_id)
        return wire_id


def _likeness(call: ToolCall, result: ToolResult) -> int:
    return 2 * (call.id == result.call_id) + (call.name == result.name)
