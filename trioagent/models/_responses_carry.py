"""The items of a reply that its server wants to see again, as they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trioagent._events import Reply, ToolCall

from ._responses_wire import CALLS, WIRE_NAME

_OURS = ("message", *CALLS)  # the items that need nothing of what is kept at the server
_MARKS = ("phase", "namespace", "caller")  # what our own words have no place for


def make_carry(items: Sequence[dict[str, Any] | None], host: str) -> dict[str, Any]:
    """What `Reply.carry` keeps, if text and calls alone would not say it all.

    The items go back in their order: reasoning is read only where it stood, in front of
    what followed from it.
    """
    whole = [item for item in items if item is not None]
    if len(whole) < len(items):  # a cut reply: its reasoning would point at a stump
        return {}
    if any(map(_is_bare, whole)):
        # Kept at the server, or nowhere. What goes with it is refused without it,
        # unless it comes without an id too.
        ours = (item for item in whole if item.get("type") in _OURS)
        whole = [{k: v for k, v in i.items() if k != "id"} for i in ours]
    while whole and whole[-1].get("type") == "reasoning":
        whole.pop()  # refused without something that follows
    return {"host": host, "items": whole} if any(map(_says_more, whole)) else {}


def replay(
    reply: Reply, ids: Sequence[str], host: str
) -> Iterator[tuple[dict[str, Any], ToolCall | None]]:
    """The carried items, each call with the id it goes by; none if not for `host`.

    Only the server that wrote them can read them; another may refuse the request.
    """
    if reply.provider != WIRE_NAME or reply.carry.get("host", host) != host:
        return
    calls = iter(zip(ids, reply.tool_calls, strict=True))
    for item in reply.carry.get("items", ()):
        if item.get("type") not in CALLS:
            yield item, None
        elif (pair := next(calls, None)) is not None:
            yield item | {"call_id": pair[0]}, pair[1]


def _is_bare(item: dict[str, Any]) -> bool:
    kept = item.get("encrypted_content") or item.get("content")
    return item.get("type") == "reasoning" and not kept


def _says_more(item: dict[str, Any]) -> bool:
    if item.get("type") not in ("message", "function_call"):
        return True
    parts = item.get("content") or ()
    refuses = any(isinstance(p, dict) and p.get("type") == "refusal" for p in parts)
    return refuses or any(item.get(mark) for mark in _MARKS)
