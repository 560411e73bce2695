"""The words of the Anthropic Messages API, and what they are called here.

What is not known is skipped: an event is read as what its type says, and one of another
type is left alone.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from trioagent._events import FinishReason, Usage

from ._usage import cost, count, details

WIRE_NAME = "anthropic-messages"  # what `Reply.provider` says; its `carry` is for us


class Named(msgspec.Struct, gc=False):
    """Any event: what it is, and whether it is an error."""

    type: str | None = None
    error: Any = None
    message: Any = None
    detail: Any = None

    @property
    def is_error(self) -> bool:
        """Whether this is an error, in one of the ways servers write it."""
        if self.type == "error" or self.error:
            return True
        return self.type is None and bool(self.message or self.detail)


class Message(msgspec.Struct, gc=False, tag="message"):
    """A message: as yet empty where a stream starts, or a whole answer."""

    id: str | None = None
    model: str | None = None
    content: list[dict[str, Any]] | None = None
    stop_reason: str | None = None
    usage: dict[str, Any] | None = None


class MessageStart(msgspec.Struct, gc=False, tag="message_start"):
    """The first event."""

    message: Message


class BlockStart(msgspec.Struct, gc=False, tag="content_block_start"):
    """A block begins. It may be whole already."""

    content_block: dict[str, Any]
    index: int = 0


class Delta(msgspec.Struct, gc=False):
    """A piece of a block. Which field it has depends on its type."""

    type: str = ""
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    signature: Any = None
    citation: Any = None
    content: Any = None
    encrypted_content: Any = None


class BlockDelta(msgspec.Struct, gc=False, tag="content_block_delta"):
    """A block goes on."""

    delta: Delta
    index: int = 0


class BlockStop(msgspec.Struct, gc=False, tag="content_block_stop"):
    """A block is whole."""

    index: int = 0


class End(msgspec.Struct, gc=False):
    """What a message gets at its end."""

    stop_reason: str | None = None


class MessageDelta(msgspec.Struct, gc=False, tag="message_delta"):
    """The message is about to end."""

    delta: End | None = None
    usage: dict[str, Any] | None = None


class MessageStop(msgspec.Struct, gc=False, tag="message_stop"):
    """The last event."""


KnownEvent = (
    Message
    | MessageStart
    | BlockStart
    | BlockDelta
    | BlockStop
    | MessageDelta
    | MessageStop
)
# Others are skipped: pings, and what the API learns to say.
KNOWN_TYPES = {str(kind.__struct_config__.tag) for kind in get_args(KnownEvent)}


_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
    "compaction": "pause",  # the turn goes on when it is sent back
}


def read_finish_reason(raw: str) -> FinishReason:
    """Our word for theirs."""
    return _FINISH_REASONS.get(raw, "other")


def merge_usage(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The same reply, reported again: the later word counts, silence does not."""
    return old | {name: value for name, value in new.items() if value is not None}


def read_usage(raw: dict[str, Any]) -> Usage:
    """What a merged usage object says. `input_tokens` there is without the cache."""
    cached = count(raw.get("cache_read_input_tokens"))
    written = count(raw.get("cache_creation_input_tokens"))
    parts = (count(raw.get("input_tokens")), cached, written)
    known = [part for part in parts if part is not None]
    thinking = details(raw, "output_tokens_details").get("thinking_tokens")
    return Usage(
        input_tokens=sum(known) if known else None,
        output_tokens=count(raw.get("output_tokens")),
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=count(thinking),
        cost=cost(raw.get("cost")),  # OpenRouter's
    )
