"""Decoding a stream and building a request, without a network."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import msgspec

from trioagent import (
    Message,
    ModelRequest,
    Reply,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolSpec,
    UserMessage,
)
from trioagent.models._body import Body
from trioagent.models._chat_request import encode_request
from trioagent.models._chat_stream import ChatStream
from trioagent.models._chat_wire import Chunk
from trioagent.models._problems import Reporter
from trioagent.models._sse import Event, SSEDecoder

_TYPED = msgspec.json.Decoder(Chunk)

CHUNK = {
    "id": "chatcmpl-0123456789abcdefghijklmnopqrst",
    "object": "chat.completion.chunk",
    "created": 1796055955,
    "model": "gpt-5.5-2026-04-01",
    "service_tier": "default",
    "system_fingerprint": "fp_0123456789",
    "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
    "usage": None,
    "obfuscation": "0123456789abcdef",
}
EVENT = b"data: " + json.dumps(CHUNK, separators=(",", ":")).encode() + b"\n\n"
END = EVENT.replace(b'"finish_reason":null', b'"finish_reason":"stop"')


def stream(events: int, per_chunk: int) -> list[bytes]:
    """A stream of so many text deltas, cut into network chunks."""
    whole = [EVENT * per_chunk] * (events // per_chunk)
    return [*whole, END, b"data: [DONE]\n\n"]


def ours(chunks: list[bytes]) -> int:
    """Bytes to pieces to one whole reply."""
    reply = ChatStream(Reporter("bench:model"))
    body = Body(reply)
    count = 0
    for chunk in chunks:
        count += sum(isinstance(part, TextDelta) for part in body.feed(chunk))
    assert reply.finish().finish_reason == "stop"
    return count


def decoded(chunks: list[bytes]) -> int:
    """Bytes to typed chunks, and no further: what httpx-sse and json do."""
    decoder = SSEDecoder()
    count = 0
    for data in chunks:
        for event in decoder.feed(data):
            if isinstance(event, Event) and event.data != b"[DONE]":
                chunk = _TYPED.decode(event.data)
                count += bool(chunk.choices and chunk.choices[0].delta)
    return count


def httpx_sse(chunks: list[bytes]) -> int:
    """The same bytes with httpx-sse and json, to dictionaries."""
    from httpx_sse import EventSource

    headers = {"content-type": "text/event-stream"}
    response = httpx.Response(200, headers=headers, content=iter(chunks))
    events = (e.data for e in EventSource(response).iter_sse())
    read = [json.loads(data) for data in events if data != "[DONE]"]
    return sum(bool(chunk["choices"][0]["delta"]) for chunk in read)


def seconds(*sides: Callable[[], Any], rounds: int = 9) -> list[float]:
    """The median of each side. They take turns; the first round is dropped."""
    samples: list[list[float]] = []
    for _ in range(rounds + 1):
        samples.append([])
        for side in sides:
            began = time.perf_counter()
            side()
            samples[-1].append(time.perf_counter() - began)
    return [statistics.median(column) for column in zip(*samples[1:], strict=True)]


def decode_against_httpx_sse() -> dict[str, float]:
    """20,000 text deltas, decoded: in MB/s, and as a ratio to httpx-sse + json.

    `decode` is bytes to typed chunks; `reply` goes on to the pieces and one reply.
    """
    figures: dict[str, float] = {}
    for per_chunk in (1, 40):
        chunks = stream(20_000, per_chunk)
        size = sum(map(len, chunks)) / 1e6
        assert ours(chunks) == httpx_sse(chunks) == decoded(chunks) == 20_001
        decode, reply, theirs = seconds(
            partial(decoded, chunks), partial(ours, chunks), partial(httpx_sse, chunks)
        )
        figures[f"decode_mb_s_{per_chunk}"] = size / decode
        figures[f"reply_mb_s_{per_chunk}"] = size / reply
        figures[f"httpx_sse_mb_s_{per_chunk}"] = size / theirs
        figures[f"decode_ratio_{per_chunk}"] = theirs / decode
        figures[f"reply_ratio_{per_chunk}"] = theirs / reply
    return figures


def conversation(turns: int) -> Iterator[Message]:
    """A history of tool calls and their results, two kilobytes a turn."""
    yield UserMessage("go")
    for turn in range(1, turns + 1):
        arguments = json.dumps({"query": "x" * 500})
        call = ToolCall("search", arguments, f"call_{turn}", turn)
        yield Reply(text="y" * 500, tool_calls=(call,), finish_reason="tool_calls")
        yield ToolResult("search", "z" * 1000, f"call_{turn}")


def request_building() -> dict[str, float]:
    """Building the request of a turn after 10 and after 1,000 messages of history."""
    tools = [ToolSpec(name="search", description="Search.", parameters={})]
    figures: dict[str, float] = {}
    sizes: dict[int, int] = {}
    for count in (10, 1_000):
        messages = list(conversation(count // 2))[:count]
        request = ModelRequest(messages=messages, tools=tools)

        def build() -> bytes:
            return encode_request(
                request,  # noqa: B023
                model="gpt-5.5",
                host="api.openai.com",
                max_tokens_field="max_completion_tokens",
                stream_usage=True,
                extra_body={},
            )

        sizes[count] = len(build())  # and from here on what is kept is kept
        figures[f"us_at_{count}"] = seconds(build, rounds=51)[0] * 1e6
    body = b"x" * sizes[1_000]
    copy = seconds(partial(bytearray, body), rounds=51)[0]
    figures["us_to_copy_it_once"] = copy * 1e6
    figures["ratio_1000_to_10"] = figures["us_at_1000"] / figures["us_at_10"]
    return figures
