"""The words of the Chat Completions API, and what they are called here.

Many servers speak it, each with an accent. So nothing is required, what is known to
come in several shapes is `Any`, and what nobody needs is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from trioagent._events import FinishReason, Usage

from ._usage import cost, count, details

WIRE_NAME = "openai-chat"  # what `Reply.provider` says; its `carry` is for us alone


class Function(msgspec.Struct, gc=False):
    """The name and the arguments of a call, or a piece of them."""

    name: str | None = None
    arguments: Any = None  # JSON text; an object from some


class CallDelta(msgspec.Struct, gc=False):
    """A piece of a tool call."""

    index: int | None = None
    id: str | int | None = None
    function: Function | None = None


class Delta(msgspec.Struct, gc=False):
    """A piece of a message, or a whole one."""

    content: Any = None  # text, or a list of typed parts
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: list[Any] | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: Function | None = None  # what calls were before there were several

    @property
    def is_plain(self) -> bool:
        """Whether it is text and nothing else."""
        return isinstance(self.content, str) and (
            self.tool_calls
            is self.reasoning_content
            is self.reasoning
            is self.reasoning_details
            is self.refusal
            is self.function_call
            is None
        )


class Choice(msgspec.Struct, gc=False):
    """One of the answers; only the first is asked for."""

    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    usage: Any = None


class Chunk(msgspec.Struct, gc=False):
    """A `chat.completion.chunk`, a whole `chat.completion`, or an error."""

    id: str | None = None
    model: str | None = None
    choices: list[Choice] | None = None
    usage: Any = None
    x_groq: Any = None
    error: Any = None
    message: Any = None  # these two stand for an error where there are no choices
    detail: Any = None

    @property
    def is_error(self) -> bool:
        """Whether this is an error, in one of the ways servers write it."""
        if self.error:
            return True
        return self.choices is None and bool(self.message or self.detail)

    def usages(self) -> Iterator[dict[str, Any]]:
        """Everything that is called usage in here."""
        if isinstance(self.x_groq, dict):
            yield from _objects(self.x_groq.get("usage"))
        for choice in self.choices or ():
            yield from _objects(choice.usage)
        yield from _objects(self.usage)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value


def read_usage(raw: dict[str, Any]) -> Usage:
    """What one usage object says; what it leaves out is unknown."""
    reads = details(raw, "prompt_tokens_details")
    writes = details(raw, "completion_tokens_details")
    output = count(raw.get("completion_tokens"))
    reasoning = count(writes.get("reasoning_tokens"), raw.get("reasoning_tokens"))
    prompt = count(raw.get("prompt_tokens"))
    # xAI leaves the reasoning out of the output, and only the total shows it.
    parts = (prompt or 0) + (output or 0) + (reasoning or 0)
    if output is not None and reasoning and raw.get("total_tokens") == parts:
        output += reasoning
    return Usage(
        input_tokens=prompt,
        output_tokens=output,
        cached_tokens=count(
            reads.get("cached_tokens"),
            raw.get("prompt_cache_hit_tokens"),
            raw.get("cached_tokens"),
            raw.get("cache_read_input_tokens"),
        ),
        cache_write_tokens=count(
            reads.get("cache_write_tokens"), raw.get("cache_creation_input_tokens")
        ),
        reasoning_tokens=reasoning,
        cost=cost(raw.get("cost")),
    )


def merge_usage(old: Usage, new: Usage) -> Usage:
    """The same reply, reported again: the later word counts, silence does not."""
    said = {
        name: value
        for name in new.__struct_fields__
        if (value := getattr(new, name)) is not None
    }
    return msgspec.structs.replace(old, **said)


_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "tool_calls": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "recitation": "content_filter",
    "refusal": "refusal",
    "pause_turn": "pause",
    "error": "error",
    "network_error": "error",
    "insufficient_system_resource": "error",
}


def read_finish_reason(raw: str, native: str) -> FinishReason:
    """Our word for the provider's, or for the one of the provider behind it."""
    for word in (raw, native):
        if known := _FINISH_REASONS.get(word.lower()):
            return known
    return "other"


def read_content(content: Any) -> tuple[str, str]:
    """The text and the reasoning in a message's content: text, or a list of parts."""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        return "", ""
    text, reasoning = [], []
    for part in content:
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, dict) and part.get("type") == "thinking":
            reasoning.append(read_content(part.get("thinking"))[0])
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            text.append(part["text"])
    return "".join(text), "".join(reasoning)
