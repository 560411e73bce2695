"""What a run keeps of its conversation is what would be made of it anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from trioagent import Message, ModelRequest, Reply, ToolCall, ToolResult, UserMessage
from trioagent.models import (
    _anthropic_request,
    _chat_request,
    _gemini_request,
    _responses_request,
)

Encode = Callable[[ModelRequest], bytes]
ENCODERS: list[Encode] = [
    partial(
        _chat_request.encode_request,
        model="m",
        host="h",
        max_tokens_field="max_tokens",
        stream_usage=True,
        extra_body={},
    ),
    partial(_responses_request.encode_request, model="m", host="h", extra_body={}),
    partial(
        _anthropic_request.encode_request,
        model="m",
        host="h",
        max_tokens=100,
        extra_body={},
    ),
    partial(_gemini_request.encode_request, host="h", extra_body={}),
]
NAMES = ["chat", "responses", "anthropic", "gemini"]


def two_calls(turn: int, call_id: str) -> Reply:
    calls = (
        ToolCall("look", '{"n": 1}', call_id, turn, 0),
        ToolCall("look", "{}", call_id, turn, 1),  # the same id again
    )
    return Reply(text="hm", tool_calls=calls, finish_reason="tool_calls")


TURNS: list[list[Message]] = [
    [UserMessage("go"), UserMessage("on")],
    [two_calls(1, "a"), ToolResult("look", "1", "a"), ToolResult("look", "2", "a")],
    [],  # the same request again: a retry
    [two_calls(2, ""), ToolResult("look", "x"), ToolResult("look", "y", failed=True)],
    [Reply(text="wait", finish_reason="pause")],
    [Reply(text="a moment", finish_reason="pause")],
    [Reply(text="{"), UserMessage("That is no answer.")],
    [two_calls(6, "a"), ToolResult("look", "1", "a"), ToolResult("look", "2", "a")],
]


@pytest.mark.parametrize("encode", ENCODERS, ids=NAMES)
def test_each_request_of_a_run_is_as_if_it_were_the_first(encode: Encode) -> None:
    kept: dict[str, Any] = {}
    messages: list[Message] = []
    for turn in TURNS:
        messages += turn
        grown = encode(ModelRequest(messages=messages, kept=kept))
        anew = encode(ModelRequest(messages=list(messages)))
        assert json.loads(grown) == json.loads(anew)


@pytest.mark.parametrize("encode", ENCODERS, ids=NAMES)
def test_two_runs_keep_nothing_of_each_other(encode: Encode) -> None:
    one = encode(ModelRequest(messages=[UserMessage("one")]))
    two = encode(ModelRequest(messages=[UserMessage("two")]))
    assert b"one" in one
    assert b"one" not in two
