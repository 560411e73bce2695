"""The words of the OpenAI Responses API, and what they are called here.

Several servers speak it, each with an accent. So nothing is required, and what nobody
needs is not read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from trioagent._events import FinishReason, Usage

from ._usage import cost, count, details

WIRE_NAME = (
    "openai-responses"  # what `Reply.provider` says; its `carry` is for us alone
)
CALLS = ("function_call", "custom_tool_call")  # the items that ask us for something


class StreamEvent(msgspec.Struct, gc=False):
    """An event of the stream, a whole response, or an error."""

    type: str | None = None
    output_index: int | None = None  # which item
    item_id: str | None = None  # the same; it changes on the way through some proxies
    content_index: int | None = None  # which part of the item
    summary_index: int | None = None
    delta: Any = None
    item: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    output: Any = None  # of a whole response
    error: Any = None
    message: Any = None
    detail: Any = None

    @property
    def is_response(self) -> bool:
        """Whether this is no event, but all there is to come."""
        return not self.type and self.output is not None

    @property
    def is_error(self) -> bool:
        """Whether this is an error, in one of the ways servers write it."""
        if self.type == "error":
            return True
        return not self.type and bool(self.error or self.message or self.detail)


def read_usage(raw: dict[str, Any]) -> Usage:
    """What a usage object says; what it leaves out is unknown."""
    reads = details(raw, "input_tokens_details")
    writes = details(raw, "output_tokens_details")
    return Usage(
        input_tokens=count(raw.get("input_tokens")),
        output_tokens=count(raw.get("output_tokens")),
        cached_tokens=count(reads.get("cached_tokens")),
        cache_write_tokens=count(reads.get("cache_write_tokens")),
        reasoning_tokens=count(writes.get("reasoning_tokens")),
        cost=cost(raw.get("cost")),
    )


_INCOMPLETE: dict[str, FinishReason] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}


def read_incomplete(response: dict[str, Any]) -> tuple[FinishReason, str]:
    """Our word for why a response was cut, and the provider's."""
    reason = details(response, "incomplete_details").get("reason") or "unknown"
    return _INCOMPLETE.get(reason, "other"), f"incomplete:{reason}"
