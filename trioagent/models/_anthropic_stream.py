"""One reply of the Messages API, put together from its events. No I/O in here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from trioagent._errors import ModelError
from trioagent._events import (
    FinishReason,
    Reply,
    ReplyOpened,
    ReplyPart,
    ToolCall,
    Usage,
    UsageReported,
)

from ._anthropic_blocks import Block
from ._anthropic_wire import (
    KNOWN_TYPES,
    WIRE_NAME,
    BlockDelta,
    BlockStart,
    BlockStop,
    KnownEvent,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    Named,
    merge_usage,
    read_finish_reason,
    read_usage,
)
from ._problems import Reporter
from ._sse import ErrorLine, Event, Item

_NAMED = msgspec.json.Decoder(Named)
_KNOWN: msgspec.json.Decoder[KnownEvent] = msgspec.json.Decoder(KnownEvent)
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError)


class AnthropicStream:
    """Feed it events; it gives the pieces to show, and at the end the whole reply.

    Feeding raises nothing: an error comes out of `finish`, after what came before it.
    """

    def __init__(self, reporter: Reporter, *, host: str = "") -> None:
        self.done = False  # nothing more comes, or counts
        self._started = False
        self._stopped = False  # the server said that the message is over
        self._error: ModelError | None = None
        self._report = reporter
        self._host = host
        self._id = ""
        self._model = ""
        self._stop_reason = ""
        self._raw_usage: dict[str, Any] = {}
        self._usage = Usage()
        self._blocks: list[Block] = []
        self._by_index: dict[int, Block] = {}
        self._calls = 0

    @property
    def is_finished(self) -> bool:
        """Whether the reply is over; its usage may still come."""
        return self._stopped or bool(self._stop_reason)

    def feed(self, item: Item) -> list[ReplyPart]:
        """Take one item of the stream; a whole JSON body counts as one."""
        parts: list[ReplyPart] = []
        try:
            if isinstance(item, Event):
                for part in self._read_event(item):
                    parts.append(part)  # noqa: PERF402 - those before an error count
            elif isinstance(item, ErrorLine):
                raise self._broke_off(item.data)
        except ModelError as error:
            self._error = error
            self.done = True
        return parts

    def fail(self, error: ModelError) -> None:
        """The rest of the stream is lost: an error, unless the reply was over."""
        if not self.is_finished:
            error.usage = self._usage
            error.request_id = self._report.request_id
            error.response_id = self._id
            self._error = error
        self.done = True

    def finish(self) -> Reply:
        """The whole reply, or `ModelError` if an error came, or no end."""
        if self._error is not None:
            raise self._error
        if not self.is_finished:
            what = "ended its answer before the reply was over"
            raise self.unusable(what, "incomplete_stream")
        reason = self._read_finish()
        calls = self._read_calls(cut=reason == "length")
        return Reply(
            text=self._join("text"),
            tool_calls=calls,
            finish_reason=reason,
            raw_finish_reason=self._stop_reason,
            reasoning=self._join("thinking"),
            usage=self._usage,
            model=self._model,
            request_id=self._report.request_id,
            response_id=self._id,
            provider=WIRE_NAME,
            carry=self._carry(cut=reason == "length"),
        )

    def unusable(self, what: str, kind: str) -> ModelError:
        """The error for an answer that is no reply, with what is known of it so far."""
        return self._report.unusable(
            what, kind, usage=self._usage, response_id=self._id
        )

    def _read_event(self, event: Event) -> Iterator[ReplyPart]:
        if event.data == b"[DONE]":  # OpenRouter's last word; it ends no message
            self.done = True
            return
        try:
            named = _NAMED.decode(event.data)
            known = None if named.is_error else _decode_known(named, event.data)
        except _BAD_JSON as error:
            if event.event == "error":
                raise self._broke_off(event.data) from error
            what = "sent something that is no event of a message"
            raise self.unusable(what, "bad_chunk") from error
        if named.is_error or event.event == "error":
            raise self._broke_off(event.data)
        if known is not None:
            yield from self._read_known(known)

    def _read_known(self, event: KnownEvent) -> Iterator[ReplyPart]:
        match event:
            case MessageStart():
                yield from self._read_start(event.message)
            case BlockStart():
                yield from self._read_block(event.content_block, event.index)
            case BlockDelta():
                yield from self._find(event.index).add(event.delta)
            case BlockStop():
                self._find(event.index).close()
            case MessageDelta():
                yield from self._read_end(event)
            case MessageStop():
                self._stopped = self.done = True
            case Message():
                yield from self._read_whole(event)

    def _read_start(self, message: Message) -> Iterator[ReplyPart]:
        if self._started:
            if (message.id or self._id) == self._id:  # a gateway said it twice
                return
            what = "began a second message inside the first"
            raise self.unusable(what, "protocol_error")
        self._started = True
        self._id = message.id or ""
        self._model = message.model or ""
        if self._id:
            yield ReplyOpened(self._report.request_id, self._id)
        yield from self._read_usage(message.usage)

    def _read_block(self, head: dict[str, Any], index: int) -> Iterator[ReplyPart]:
        block = Block(head, self._calls)
        self._calls += block.kind == "tool_use"
        self._blocks.append(block)
        self._by_index[index] = block
        return block.begin()

    def _read_end(self, event: MessageDelta) -> Iterator[ReplyPart]:
        if event.delta is not None and event.delta.stop_reason:
            self._stop_reason = event.delta.stop_reason
        yield from self._read_usage(event.usage)

    def _read_whole(self, message: Message) -> Iterator[ReplyPart]:
        if message.content is None:
            return
        yield from self._read_start(message)
        for index, head in enumerate(message.content):
            yield from self._read_block(head, index)
            yield from self._find(index).take_whole()
        self._stop_reason = message.stop_reason or ""
        self._stopped = True

    def _read_usage(self, raw: dict[str, Any] | None) -> Iterator[ReplyPart]:
        self._raw_usage = merge_usage(self._raw_usage, raw or {})
        usage = read_usage(self._raw_usage)
        if usage != self._usage:
            self._usage = usage
            yield UsageReported(usage)

    def _find(self, index: int) -> Block:
        block = self._by_index.get(index)
        if block is None:
            what = "sent a piece of a content block that it never began"
            raise self.unusable(what, "protocol_error")
        return block

    def _read_finish(self) -> FinishReason:
        raw = self._stop_reason
        reason = read_finish_reason(raw) if raw else "stop"
        return "tool_calls" if reason == "stop" and self._calls else reason

    def _read_calls(self, *, cut: bool) -> tuple[ToolCall, ...]:
        blocks = [block for block in self._blocks if block.kind == "tool_use"]
        calls = tuple(block.call(cut=cut) for block in blocks)
        if not all(call.name for call in calls):
            raise self.unusable("sent a tool call without a name", "protocol_error")
        return calls

    def _join(self, kind: str) -> str:
        return "".join(block.text_of(kind) for block in self._blocks)

    def _carry(self, *, cut: bool) -> dict[str, Any]:
        """The blocks, where the text and the calls do not say all that is in them."""
        kinds = [block.kind for block in self._blocks]
        expected = ["text"] * (kinds[:1] == ["text"]) + ["tool_use"] * self._calls
        if kinds == expected and all(block.is_plain for block in self._blocks):
            return {}
        carried = (block.carried(cut=cut) for block in self._blocks)
        content = [block for block in carried if block is not None]
        return {"host": self._host, "content": content}

    def _broke_off(self, data: bytes) -> ModelError:
        try:
            body = msgspec.json.decode(data)
        except _BAD_JSON:
            body = data.decode("utf-8", "replace")
        return self._report.broke_off(body, usage=self._usage, response_id=self._id)


def _decode_known(named: Named, data: bytes) -> KnownEvent | None:
    return _KNOWN.decode(data) if named.type in KNOWN_TYPES else None
