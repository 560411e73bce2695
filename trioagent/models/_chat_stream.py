"""One reply, put together from what a server sends. No I/O in here."""

from __future__ import annotations

from typing import Any

import msgspec

from trioagent._errors import ModelError
from trioagent._events import (
    FinishReason,
    ReasoningDelta,
    Reply,
    ReplyOpened,
    ReplyPart,
    TextDelta,
    Usage,
    UsageReported,
)

from ._chat_pieces import Calls, Details
from ._chat_wire import (
    WIRE_NAME,
    CallDelta,
    Choice,
    Chunk,
    Delta,
    merge_usage,
    read_content,
    read_finish_reason,
    read_usage,
)
from ._problems import Reporter
from ._sse import ErrorLine, Event, Item

_CHUNK = msgspec.json.Decoder(Chunk)
_LEGACY = -1  # the index of a `function_call`, which has none
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError)


class ChatStream:
    """Feed it events; it gives the pieces to show, and at the end the whole reply.

    Feeding raises nothing: an error comes out of `finish`, after what came before it.
    """

    def __init__(self, reporter: Reporter, *, host: str = "") -> None:
        self.done = False  # nothing more comes, or counts
        self._error: ModelError | None = None
        self._answered = False  # a [DONE] alone is no reply
        self._report = reporter
        self._host = host
        self._finish_reason = ""
        self._native_finish_reason = ""
        self._id = ""
        self._model = ""
        self._usage = Usage()
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: list[str] = []
        self._thoughts: list[str] = []  # that part of it some servers want back
        self._details = Details()
        self._calls = Calls()

    @property
    def is_finished(self) -> bool:
        """Whether the reply is over; its usage may still come."""
        return self.done or bool(self._finish_reason or self._native_finish_reason)

    def feed(self, item: Item) -> list[ReplyPart]:
        """Take one item of the stream."""
        parts: list[ReplyPart] = []
        try:
            if isinstance(item, Event):
                self._read_event(item, parts)
            elif isinstance(item, ErrorLine):
                raise self._broke_off(item.data)
        except ModelError as error:
            self._error = error
            self.done = True
        return parts

    def _read_event(self, event: Event, parts: list[ReplyPart]) -> None:
        if event.data == b"[DONE]":
            self.done = True
        elif event.event == "error":
            raise self._broke_off(event.data)
        else:
            self._read_chunk(event.data, parts)

    def _read_chunk(self, data: bytes, parts: list[ReplyPart]) -> None:
        try:
            chunk = _CHUNK.decode(data)
        except _BAD_JSON as error:
            what = "sent something that is no chunk of a chat completion"
            raise self.unusable(what, "bad_chunk") from error
        # One check for each thing that most chunks do not bring.
        if not (self._id and self._model):
            self._read_names(chunk, parts)
        spent = chunk.usage is not None or chunk.x_groq is not None
        for choice in chunk.choices or ():
            spent = spent or choice.usage is not None
            if not choice.index:  # the others were not asked for
                self._read_choice(choice, parts)
        if spent:
            self._read_usages(chunk, parts)
        if (chunk.error or not chunk.choices) and chunk.is_error:
            raise self._broke_off(data)

    def _read_usages(self, chunk: Chunk, parts: list[ReplyPart]) -> None:
        for raw in chunk.usages():
            usage = merge_usage(self._usage, read_usage(raw))
            if usage != self._usage:
                self._usage = usage
                parts.append(UsageReported(usage))

    def finish(self) -> Reply:
        """The whole reply, or `ModelError` if an error came, or no end."""
        if self._error is not None:
            raise self._error
        if not (self.is_finished and self._answered):
            what = "ended its answer before the reply was over"
            raise self.unusable(what, "incomplete_stream")
        text = "".join(self._text)
        refusal = "".join(self._refusal)
        reason = self._read_finish(bool(text), bool(refusal))
        calls = self._calls.finish(cut=reason == "length")
        if calls is None:
            raise self.unusable("sent a tool call without a name", "protocol_error")
        return Reply(
            text=text,
            tool_calls=calls,
            finish_reason=reason,
            raw_finish_reason=self._finish_reason or self._native_finish_reason,
            reasoning="".join(self._reasoning),
            refusal=refusal,
            usage=self._usage,
            model=self._model,
            request_id=self._report.request_id,
            response_id=self._id,
            provider=WIRE_NAME,
            carry=self._carry(bool(calls)),
        )

    def fail(self, error: ModelError) -> None:
        """The rest of the stream is lost: an error, unless the reply was over."""
        if not self.is_finished:
            error.usage = self._usage
            error.request_id = self._report.request_id
            error.response_id = self._id
            self._error = error
        self.done = True

    def unusable(self, what: str, kind: str) -> ModelError:
        """The error for an answer that is no reply, with what is known of it so far."""
        return self._report.unusable(
            what, kind, usage=self._usage, response_id=self._id
        )

    def _broke_off(self, data: bytes) -> ModelError:
        try:
            body = msgspec.json.decode(data)
        except _BAD_JSON:
            body = data.decode("utf-8", "replace")
        return self._report.broke_off(body, usage=self._usage, response_id=self._id)

    def _read_names(self, chunk: Chunk, parts: list[ReplyPart]) -> None:
        if chunk.model and not self._model:
            self._model = chunk.model
        if chunk.id and not self._id:
            self._id = chunk.id
            parts.append(ReplyOpened(self._report.request_id, self._id))

    def _read_choice(self, choice: Choice, parts: list[ReplyPart]) -> None:
        self._answered = True
        delta = choice.delta or choice.message
        if delta is not None and delta.content and delta.is_plain:  # nearly all of them
            self._text.append(delta.content)
            parts.append(TextDelta(delta.content))
        elif delta is not None:
            self._read_delta(delta, parts)
        if choice.finish_reason:
            self._finish_reason = choice.finish_reason
        if choice.native_finish_reason:
            self._native_finish_reason = choice.native_finish_reason

    def _read_delta(self, delta: Delta, parts: list[ReplyPart]) -> None:
        self._read_texts(delta, parts)
        for call in delta.tool_calls or ():
            self._read_call(call, parts)
        if delta.function_call is not None:
            self._read_call(CallDelta(_LEGACY, None, delta.function_call), parts)

    def _read_texts(self, delta: Delta, parts: list[ReplyPart]) -> None:
        text, reasoning = read_content(delta.content)
        if isinstance(delta.reasoning_content, str):
            reasoning = reasoning or delta.reasoning_content
            self._thoughts.append(delta.reasoning_content)
        if isinstance(delta.reasoning, str):
            reasoning = reasoning or delta.reasoning
        if delta.reasoning_details:
            reasoning = reasoning or self._details.text_of(delta.reasoning_details)
            self._details.add(delta.reasoning_details)
        if reasoning:
            self._reasoning.append(reasoning)
            parts.append(ReasoningDelta(reasoning))
        if text:
            self._text.append(text)
            parts.append(TextDelta(text))
        if isinstance(delta.refusal, str) and delta.refusal:
            self._refusal.append(delta.refusal)

    def _read_call(self, delta: CallDelta, parts: list[ReplyPart]) -> None:
        part = self._calls.add(delta)
        if part is None:
            raise self.unusable(
                "sent a piece of a tool call that it never began", "protocol_error"
            )
        if part.name or part.arguments:
            parts.append(part)

    def _read_finish(self, has_text: bool, has_refusal: bool) -> FinishReason:
        raw, native = self._finish_reason, self._native_finish_reason
        reason = read_finish_reason(raw, native) if raw or native else "stop"
        if reason != "stop":
            return reason
        if self._calls:  # some say stop, some say nothing
            return "tool_calls"
        return "refusal" if has_refusal and not has_text else "stop"

    def _carry(self, has_calls: bool) -> dict[str, Any]:
        """What the server wants to see again with the results of these calls."""
        carry: dict[str, Any] = {}
        if has_calls and any(self._thoughts):
            carry["reasoning_content"] = "".join(self._thoughts)
        if details := self._details.finish():
            carry["reasoning_details"] = details
        return carry and {"host": self._host, **carry}
