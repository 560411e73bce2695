"""A conversation in one wire format, each message encoded once.

A run asks again and again, each time with all that was said. What was said does not
change, so its bytes are kept for the run, and the next request copies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from trioagent._events import Message, Reply
from trioagent._ports import ModelRequest

Make = Callable[[Sequence[Message]], Iterable[Any]]
"""Makes the wire's items of some messages; it may remember those before."""


class KeptMessages:
    """What has been made of the messages so far.

    A request ends with what the user's side says and the next one goes on with a reply,
    so items that were made are whole. Where one side follows itself (a reply after one
    that paused) a wire may put the two into one item: then all is made anew.
    """

    def __init__(self, start: Callable[[], Make]) -> None:
        self._start = start
        self._make = start()
        self._made: list[msgspec.Raw] = []
        self._count = 0

    def upto(self, messages: Sequence[Message]) -> list[msgspec.Raw]:
        """All items of these messages, which begin with those of the last time."""
        done = self._count
        if done and messages[done:] and _same_side(messages[done - 1], messages[done]):
            self._make, self._made, done = self._start(), [], 0
        self._made += map(_encode, self._make(messages[done:]))
        self._count = len(messages)
        return self._made


def kept_items(
    request: ModelRequest, name: str, start: Callable[[], Make]
) -> list[msgspec.Raw]:
    """The items of a request's messages. `name` is the wire's and the server's."""
    kept = request.kept.get(name)
    if kept is None:
        kept = request.kept[name] = KeptMessages(start)
    items: list[msgspec.Raw] = kept.upto(request.messages)
    return items


def _same_side(one: Message, other: Message) -> bool:
    return isinstance(one, Reply) == isinstance(other, Reply)


def _encode(item: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(item))
