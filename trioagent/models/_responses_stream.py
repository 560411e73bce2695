"""One reply of the Responses API, put together from its events. No I/O in here."""

from __future__ import annotations

from typing import Any

import msgspec

from trioagent._errors import ModelError
from trioagent._events import (
    FinishReason,
    Reply,
    ReplyOpened,
    ReplyPart,
    Usage,
    UsageReported,
)

from ._problems import Reporter
from ._responses_carry import make_carry
from ._responses_items import Items
from ._responses_wire import WIRE_NAME, StreamEvent, read_incomplete, read_usage
from ._sse import ErrorLine, Event, Item

_EVENT = msgspec.json.Decoder(StreamEvent)
_RESPONSE = msgspec.json.Decoder(dict[str, Any])
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError)
_ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}


class ResponsesStream:
    """Feed it events; it gives the pieces to show, and at the end the whole reply.

    Feeding raises nothing: an error comes out of `finish`, after what came before it.
    """

    def __init__(self, reporter: Reporter, *, host: str = "") -> None:
        self.done = False  # nothing more comes, or counts
        self._error: ModelError | None = None
        self._report = reporter
        self._host = host
        self._end: tuple[FinishReason, str] | None = None  # ours, the provider's
        self._id = ""
        self._model = ""
        self._usage = Usage()
        self._items = Items()

    @property
    def is_finished(self) -> bool:
        """Whether the reply is over."""
        return self._end is not None

    def feed(self, item: Item) -> list[ReplyPart]:
        """Take one item of the stream; a whole response counts as one."""
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

    def finish(self) -> Reply:
        """The whole reply, or `ModelError` if an error came, or no end."""
        if self._error is not None:
            raise self._error
        if self._end is None:
            what = "ended its answer before the reply was over"
            raise self.unusable(what, "incomplete_stream")
        reason, raw = self._end
        calls = self._items.calls(cut=reason == "length")
        if calls is None:
            raise self.unusable("sent a tool call without a name", "protocol_error")
        text, refusal = self._items.text("text"), self._items.text("refusal")
        if reason == "stop" and calls:
            reason = "tool_calls"
        elif reason == "stop" and refusal and not text:
            reason = "refusal"
        return Reply(
            text=text,
            tool_calls=calls,
            finish_reason=reason,
            raw_finish_reason=raw,
            reasoning="".join(self._items.reasoning),
            refusal=refusal,
            usage=self._usage,
            model=self._model,
            request_id=self._report.request_id,
            response_id=self._id,
            provider=WIRE_NAME,
            carry=make_carry([item.whole for item in self._items.all], self._host),
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

    def _read_event(self, event: Event, parts: list[ReplyPart]) -> None:
        if event.data == b"[DONE]":
            self.done = True
            return
        try:
            known = _EVENT.decode(event.data)
            whole = _RESPONSE.decode(event.data) if known.is_response else None
        except _BAD_JSON as error:
            if event.event == "error":
                raise self._broke_off(event.data) from None
            what = "sent something that is no event of a response"
            raise self.unusable(what, "bad_chunk") from error
        if whole is not None:  # the server does not stream
            self._read_response(whole, parts)
            self._read_end(str(whole.get("status")), whole, parts)
        elif known.is_error or (event.event == "error" and not known.type):
            raise self._broke_off(event.data)
        else:
            self._read_known(known, parts)

    def _read_known(self, event: StreamEvent, parts: list[ReplyPart]) -> None:
        if event.response is not None:
            self._read_response(event.response, parts)
            if (name := event.type or "") in _ENDS:
                # The response may say less than its event does: complete, but cut.
                said = str(event.response.get("status"))
                status = said if said in _ENDS.values() else _ENDS[name]
                self._read_end(status, event.response, parts)
        else:
            parts += self._items.read(event)

    def _read_response(self, response: dict[str, Any], parts: list[ReplyPart]) -> None:
        model, name, usage = map(response.get, ("model", "id", "usage"))
        if isinstance(model, str) and not self._model:
            self._model = model
        if isinstance(name, str) and name and not self._id:
            self._id = name
            parts.append(ReplyOpened(self._report.request_id, self._id))
        if isinstance(usage, dict) and read_usage(usage) != self._usage:
            self._usage = read_usage(usage)
            parts.append(UsageReported(self._usage))

    def _read_end(
        self, status: str, response: dict[str, Any], parts: list[ReplyPart]
    ) -> None:
        output = response.get("output")
        if isinstance(output, list):
            parts += self._items.read_output(output)
        if status == "completed":
            self._end = "stop", status
        elif status == "incomplete":
            self._end = read_incomplete(response)
        elif status == "failed":
            error = response.get("error") or {"code": status}
            raise self._report.broke_off({"error": error}, **self._known())
        else:  # cancelled; or queued, and nobody will come back for it
            raise self.unusable(f"gave no reply: it is {status}", status)
        self.done = True

    def _broke_off(self, data: bytes) -> ModelError:
        try:
            body = msgspec.json.decode(data)
        except _BAD_JSON:
            body = data.decode("utf-8", "replace")
        return self._report.broke_off(body, **self._known())

    def _known(self) -> dict[str, Any]:
        return {"usage": self._usage, "response_id": self._id}
