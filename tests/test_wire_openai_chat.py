"""Recorded answers of Chat Completions servers give what was worked out for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.asking import Asked, ask
from tests.loopback import Answer, open_loopback
from tests.wire import needs_recordings, read_body, read_cases
from trioagent._errors import ModelError, ModelRefused, ModelUnavailable
from trioagent._events import (
    Reply,
    ReplyOpened,
    ReplyPart,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from trioagent.models.openai_chat import OpenAIChat

pytestmark = needs_recordings

CASES = [pytest.param(case, id=case["file"]) for case in read_cases("openai-chat")]
SMALL = 6_000  # bytes; one chunk a byte, each a system call or two


async def play(case: dict[str, Any], *, one_byte_a_chunk: bool = False) -> Asked:
    body = read_body(case)
    size = 1 if one_byte_a_chunk else max(len(body), 1)
    steps = [body[i : i + size] for i in range(0, len(body), size)]
    own = {"transfer-encoding", "content-length", "connection"}
    headers = {k: v for k, v in (case["headers"] or {}).items() if k not in own}
    answer = Answer(steps, status=case["status"], headers=headers)
    with trio.fail_after(30):
        async with open_loopback(answer) as server:
            return await ask(OpenAIChat("m", base_url=server.url))


def check(case: dict[str, Any], asked: Asked) -> None:
    expected = case["expected"]
    if expected["error"]:
        assert asked.reply is None
        assert asked.text == expected["text"]
        assert asked.reasoning == (expected["reasoning"] or "")
        check_error(case, asked.error)
        return
    assert asked.error is None
    reply = asked.reply
    assert reply is not None
    assert reply.text == asked.text == expected["text"]
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
        if right["arguments_raw"] not in ("", "null"):
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


@pytest.mark.parametrize("case", CASES)
async def test_a_recorded_answer_is_read_right(case: dict[str, Any]) -> None:
    check(case, await play(case))


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if len(read_body(c.values[0])) <= SMALL],  # type: ignore[arg-type]
)
async def test_a_recorded_answer_is_read_right_byte_by_byte(
    case: dict[str, Any],
) -> None:
    check(case, await play(case, one_byte_a_chunk=True))


def test_all_recordings_are_played() -> None:
    assert len(CASES) >= 57
