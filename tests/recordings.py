"""Playing recorded answers, and comparing what an adapter makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import trio

from tests.asking import Asked, ask
from tests.loopback import Answer, open_loopback
from tests.wire import read_body
from trioagent._errors import ModelError, ModelRefused, ModelUnavailable
from trioagent._events import (
    Reply,
    ReplyOpened,
    ReplyPart,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from trioagent._ports import Model

# Its publisher left out pieces: together they are not what the whole item says.
ABRIDGED = {"openai-shell-container.sse"}


async def play(
    case: dict[str, Any],
    make_model: Callable[[str], Model],
    *,
    one_byte_a_chunk: bool = False,
) -> Asked:
    """Ask a server that answers as the recorded one; `make_model` gets its address."""
    body = read_body(case)
    size = 1 if one_byte_a_chunk else max(len(body), 1)
    steps = [body[i : i + size] for i in range(0, len(body), size)]
    own = {"transfer-encoding", "content-length", "connection"}
    headers = {k: v for k, v in (case["headers"] or {}).items() if k not in own}
    answer = Answer(steps, status=case["status"], headers=headers)
    with trio.fail_after(30):
        async with open_loopback(answer) as server:
            return await ask(make_model(server.url))


def check(case: dict[str, Any], asked: Asked) -> None:
    """What came is what was worked out by hand."""
    expected = case["expected"]
    if expected["error"]:
        assert asked.reply is None
        assert asked.text == expected["text"]
        assert asked.reasoning == (expected["reasoning"] or "")
        check_error(case, asked.error)
        return
    if expected["finish_reason"] is None:
        check_unfinished(case, asked)
        return
    assert asked.error is None
    reply = asked.reply
    assert reply is not None
    assert reply.text == expected["text"]
    assert asked.text == reply.text or case["file"] in ABRIDGED
    assert reply.reasoning == asked.reasoning == (expected["reasoning"] or "")
    assert reply.refusal == (expected["refusal"] or "")
    assert reply.response_id in (
        expected["response_id"] or "",
        *also(case, "response_id"),
    )
    assert reply.model == (expected["model"] or "")
    reasons = [expected["finish_reason"], *also(case, "finish_reason")]
    assert reply.finish_reason in reasons
    assert reply.raw_finish_reason == (expected["raw_finish_reason"] or "")
    usages = [expected["usage"], *also(case, "usage")]
    assert as_expected(reply.usage) in usages
    check_calls(expected["tool_calls"], reply)
    check_deltas(asked.parts, reply)


def check_unfinished(case: dict[str, Any], asked: Asked) -> None:
    """The work goes on without us: no reply, and no error of the server's either."""
    expected = case["expected"]
    assert asked.reply is None
    assert isinstance(asked.error, ModelUnavailable)
    assert asked.error.kind == expected["raw_finish_reason"]
    assert asked.error.response_id == expected["response_id"]


def also(case: dict[str, Any], name: str) -> list[Any]:
    return list(case.get(f"{name}_also_ok", []))


def as_expected(usage: Usage) -> dict[str, int] | None:
    if usage == Usage():
        return None
    return {
        "input": usage.input_tokens or 0,
        "output": usage.output_tokens or 0,
        "cached": usage.cached_tokens or 0,
        "reasoning": usage.reasoning_tokens or 0,
    }


def check_calls(expected: list[dict[str, Any]], reply: Reply) -> None:
    assert len(reply.tool_calls) == len(expected)
    for position, (call, right) in enumerate(
        zip(reply.tool_calls, expected, strict=True)
    ):
        assert (call.name, call.id) == (right["name"], right["id"] or "")
        assert call.position == position
        assert parsed(call) == right["arguments"]
        if right["arguments_raw"] not in (None, "", "null"):
            assert call.arguments == right["arguments_raw"]


def parsed(call: ToolCall) -> Any:
    try:
        return json.loads(call.arguments)
    except ValueError:
        return None


def check_deltas(parts: list[ReplyPart], reply: Reply) -> None:
    """What was shown is what the reply holds."""
    assert [p for p in parts if isinstance(p, Reply)] == [reply]
    assert isinstance(parts[0], ReplyOpened)
    for call in reply.tool_calls:
        mine = [
            p
            for p in parts
            if isinstance(p, ToolCallDelta) and p.position == call.position
        ]
        assert "".join(p.name for p in mine) == call.name
        shown = "".join(p.arguments for p in mine)
        assert shown == call.arguments or shown in ("", "null")


def check_error(case: dict[str, Any], error: ModelError | None) -> None:
    right = case["expected"]["error"]
    assert error is not None
    retry = right["suggested_retryable"]
    assert isinstance(error, ModelUnavailable if retry else ModelRefused)
    assert error.may_retry is retry
    if right["message"]:
        assert right["message"] in str(error)
    if right["suggested_kind"] == "incomplete_stream":
        assert error.kind == "incomplete_stream"
    for word in (right["code"], right["type"]):
        if isinstance(word, str):
            assert error.kind == word
            break
    if right["source"] == "body" and right["status"] != 200:
        assert error.status == right["status"]
    assert error.retry_after == right.get("retry_after_s")
    assert error.response_id == (case["expected"]["response_id"] or "")
    ids = [
        v
        for k, v in case["headers"].items()
        if k.endswith(("request-id", "correlation-id"))
    ]
    assert not ids or error.request_id in ids
    if case["expected"]["usage"]:
        assert as_expected(error.usage) == case["expected"]["usage"]
