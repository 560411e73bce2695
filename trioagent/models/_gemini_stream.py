"""One reply of Gemini, put together from what the server sends. No I/O in here."""

from __future__ import annotations

from collections.abc import Iterable
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

from ._gemini_pieces import Calls, Turn
from ._gemini_wire import (
    WIRE_NAME,
    Candidate,
    Chunk,
    Part,
    merge_counts,
    read_finish_reason,
    read_usage,
)
from ._problems import Reporter
from ._sse import ErrorLine, Event, Item

_CHUNK = msgspec.json.Decoder(Chunk)
_CHUNKS = msgspec.json.Decoder(list[Chunk])  # without `alt=sse`
_PART = msgspec.json.Decoder(Part)
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError)


class GeminiStream:
    """Feed it events; it gives the pieces to show, and at the end the whole reply.

    Feeding raises nothing: an error comes out of `finish`, after what came before it.
    Text may follow a finish reason, so only the end of the body ends a reply.
    """

    def __init__(self, reporter: Reporter, *, host: str = "") -> None:
        self.done = False  # nothing more comes, or counts
        self._error: ModelError | None = None
        self._report = reporter
        self._host = host
        self._finish_reason = ""  # the last one
        self._block_reason = ""
        self._id = ""
        self._model = ""
        self._counts: dict[str, int] = {}
        self._usage = Usage()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = Calls()
        self._turn = Turn()

    @property
    def is_finished(self) -> bool:
        """Whether a reason to end was given, be it not the last."""
        return self.done or bool(self._finish_reason or self._block_reason)

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

    def fail(self, error: ModelError) -> None:
        """The rest is lost. It may have been text, whatever reason was given before."""
        error.usage = self._usage
        error.request_id = self._report.request_id
        error.response_id = self._id
        self._error = error
        self.done = True

    def finish(self) -> Reply:
        """The whole reply, or `ModelError` if an error came, or no end."""
        if self._error is not None:
            raise self._error
        if not (self._finish_reason or self._block_reason):
            what = "ended its answer before the reply was over"
            raise self.unusable(what, "incomplete_stream")
        reason, raw = self._read_finish()
        parts = self._turn.finish()
        return Reply(
            text="".join(self._text),
            tool_calls=self._calls.finish(cut=reason == "length"),
            finish_reason=reason,
            raw_finish_reason=raw,
            reasoning="".join(self._reasoning),
            usage=self._usage,
            model=self._model,
            request_id=self._report.request_id,
            response_id=self._id,
            provider=WIRE_NAME,
            carry={"host": self._host, "parts": parts} if parts else {},
        )

    def unusable(self, what: str, kind: str) -> ModelError:
        """The error for an answer that is no reply, with what is known of it so far."""
        return self._report.unusable(
            what, kind, usage=self._usage, response_id=self._id
        )

    def _broke_off(self, data: bytes | dict[str, Any]) -> ModelError:
        body: Any = data
        if isinstance(data, bytes):
            try:
                body = msgspec.json.decode(data)
            except _BAD_JSON:
                body = data.decode("utf-8", "replace")
        return self._report.broke_off(body, usage=self._usage, response_id=self._id)

    def _read_finish(self) -> tuple[FinishReason, str]:
        raw = self._finish_reason
        if not raw:
            return "content_filter", f"blockReason:{self._block_reason}"
        reason = read_finish_reason(raw)
        return ("tool_calls" if reason == "stop" and self._calls else reason), raw

    def _read_event(self, event: Event, parts: list[ReplyPart]) -> None:
        if event.data == b"[DONE]":  # not Google's, but some in between
            self.done = True
        elif event.event == "error":
            raise self._broke_off(event.data)
        else:
            for chunk in self._decode(event.data):
                self._read_chunk(chunk, parts)

    def _decode(self, data: bytes) -> Iterable[Chunk]:
        try:
            is_list = data.lstrip()[:1] == b"["
            return _CHUNKS.decode(data) if is_list else [_CHUNK.decode(data)]
        except _BAD_JSON as error:
            what = "sent something that is no GenerateContentResponse"
            raise self.unusable(what, "bad_chunk") from error

    def _read_chunk(self, chunk: Chunk, parts: list[ReplyPart]) -> None:
        self._model = self._model or chunk.model_version or ""
        if chunk.response_id and not self._id:
            self._id = chunk.response_id
            parts.append(ReplyOpened(self._report.request_id, self._id))
        for candidate in chunk.candidates or ():
            if not candidate.index:  # the others were not asked for
                self._read_candidate(candidate, parts)
        if chunk.prompt_feedback and chunk.prompt_feedback.block_reason:
            self._block_reason = chunk.prompt_feedback.block_reason
        if chunk.usage_metadata:
            self._read_usage(chunk.usage_metadata, parts)
        if chunk.error:
            raise self._broke_off({"error": chunk.error})

    def _read_usage(self, raw: dict[str, Any], parts: list[ReplyPart]) -> None:
        self._counts = merge_counts(self._counts, raw)
        usage = read_usage(self._counts)
        if usage != self._usage:
            self._usage = usage
            parts.append(UsageReported(usage))

    def _read_candidate(self, candidate: Candidate, parts: list[ReplyPart]) -> None:
        content = candidate.content
        for raw in (content and content.parts) or ():
            self._read_part(raw, parts)
        if candidate.finish_reason:
            self._finish_reason = candidate.finish_reason

    def _read_part(self, raw: msgspec.Raw, parts: list[ReplyPart]) -> None:
        try:
            part = _PART.decode(raw)
            is_ours = part.function_call is not None or part.text is not None
            other = {} if is_ours else msgspec.json.decode(raw)
        except _BAD_JSON as error:
            what = "sent something that is no part of a content"
            raise self.unusable(what, "bad_chunk") from error
        signature = part.thought_signature or ""
        if part.function_call is not None:
            self._read_call(part, signature, parts)
        elif part.text is not None:
            thought = bool(part.thought)
            self._turn.add_text(part.text, thought=thought, signature=signature)
            self._show(part.text, thought=thought, parts=parts)
        elif other:
            self._turn.add_other(other)

    def _show(self, text: str, *, thought: bool, parts: list[ReplyPart]) -> None:
        if not text:
            return
        (self._reasoning if thought else self._text).append(text)
        parts.append(ReasoningDelta(text) if thought else TextDelta(text))

    def _read_call(self, part: Part, signature: str, parts: list[ReplyPart]) -> None:
        call = part.function_call
        assert call is not None
        try:
            delta, begins = self._calls.add(call)
        except ValueError as error:
            what = f"sent a piece of a tool call that cannot be placed: {error}"
            raise self.unusable(what, "protocol_error") from error
        if begins:
            self._turn.add_call(call, signature=signature)
        if delta.name or delta.arguments:
            parts.append(delta)
