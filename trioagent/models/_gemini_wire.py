"""The words of the Gemini API, and what they are called here."""

from __future__ import annotations

from typing import Any

import msgspec

from trioagent._events import FinishReason, Usage

WIRE_NAME = "gemini"  # what `Reply.provider` says; its `carry` is for us alone


class PartialArg(msgspec.Struct, rename="camel", gc=False):
    """A piece of a call's arguments: a value, or a piece of one, and where it goes."""

    json_path: str = ""
    string_value: str | None = None
    number_value: int | float | None = None
    bool_value: bool | None = None
    null_value: Any = msgspec.UNSET  # there, whatever it is, means null

    @property
    def value(self) -> Any:
        """What it says; UNSET if nothing."""
        for value in (self.string_value, self.number_value, self.bool_value):
            if value is not None:
                return value
        return self.null_value if self.null_value is msgspec.UNSET else None


class FunctionCall(msgspec.Struct, rename="camel"):
    """A tool call, or, where `will_continue` says so, a piece of one."""

    id: str | None = None
    name: str | None = None
    args: msgspec.Raw = msgspec.Raw()  # an object, as the model wrote it
    partial_args: list[PartialArg] | None = None
    will_continue: bool | None = None


class Part(msgspec.Struct, rename="camel"):
    """What is read of a part; what else is in it is only carried."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None


class Content(msgspec.Struct):
    """The new parts of the model's turn, not yet read: some only go back."""

    parts: list[msgspec.Raw] | None = None


class Candidate(msgspec.Struct, rename="camel"):
    """One of the answers; only the first is asked for."""

    index: int | None = None
    content: Content | None = None
    finish_reason: str | None = None


class PromptFeedback(msgspec.Struct, rename="camel"):
    """What was thought of the prompt."""

    block_reason: str | None = None


class Chunk(msgspec.Struct, rename="camel"):
    """A GenerateContentResponse, or an error."""

    candidates: list[Candidate] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: dict[str, Any] | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: Any = None


def merge_counts(old: dict[str, int], raw: dict[str, Any]) -> dict[str, int]:
    """The counts so far: the later word counts, silence does not."""
    said = {name: value for name, value in raw.items() if type(value) is int}
    return old | said


def read_usage(counts: dict[str, int]) -> Usage:
    """Gemini counts thoughts apart from the output, and its tools from the prompt."""
    return Usage(
        input_tokens=_sum(counts, "promptTokenCount", "toolUsePromptTokenCount"),
        output_tokens=_sum(counts, "candidatesTokenCount", "thoughtsTokenCount"),
        cached_tokens=counts.get("cachedContentTokenCount"),
        reasoning_tokens=counts.get("thoughtsTokenCount"),
    )


def _sum(counts: dict[str, int], *names: str) -> int | None:
    found = [counts[name] for name in names if name in counts]
    return sum(found) if found else None


_FINISH_REASONS: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "LANGUAGE": "content_filter",
    "MODEL_ARMOR": "content_filter",
    "MALFORMED_FUNCTION_CALL": "error",
    "UNEXPECTED_TOOL_CALL": "error",
    "TOO_MANY_TOOL_CALLS": "error",
    "MISSING_THOUGHT_SIGNATURE": "error",
    "MALFORMED_RESPONSE": "error",
}


def read_finish_reason(raw: str) -> FinishReason:
    """Our word for Gemini's."""
    if raw.startswith("IMAGE_"):
        return "content_filter"
    return _FINISH_REASONS.get(raw, "other")
