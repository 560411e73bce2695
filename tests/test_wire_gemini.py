"""Recorded answers of Gemini give what was worked out for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.asking import Asked
from tests.recordings import play
from tests.wire import needs_recordings, read_body, read_cases
from trioagent._errors import ModelError, ModelRefused, ModelUnavailable
from trioagent._events import (
    Reply,
    ReplyOpened,
    ReplyPart,
    ToolCallDelta,
    Usage,
    UsageReported,
)
from trioagent._ports import Model
from trioagent.models.gemini import Gemini

pytestmark = needs_recordings

CASES = [
    pytest.param(case, id=case["file"])
    for case in read_cases("gemini-generate-content")
]
SMALL = 6_000  # bytes; one chunk a byte, each a system call or two


def model_at(url: str) -> Model:
    return Gemini("m", base_url=url)


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
    assert reply.refusal == ""
    assert reply.response_id == (expected["response_id"] or "")
    assert reply.model == (expected["model"] or "")
    reasons = [expected["finish_reason"], *case.get("finish_reason_also_ok", [])]
    assert reply.finish_reason in reasons
    assert reply.raw_finish_reason == (expected["raw_finish_reason"] or "")
    check_usage(expected["usage"], reply.usage)
    check_calls(expected["tool_calls"], reply)
    check_parts(asked.parts, reply)
    check_carried(case, reply)


def check_usage(expected: dict[str, int] | None, usage: Usage) -> None:
    """What is unknown to us is 0 in the recordings."""
    assert {
        "input": usage.input_tokens or 0,
        "output": usage.output_tokens or 0,
        "cached": usage.cached_tokens or 0,
        "reasoning": usage.reasoning_tokens or 0,
    } == (expected or {"input": 0, "output": 0, "cached": 0, "reasoning": 0})
    assert usage == Usage() or expected is not None


def check_calls(expected: list[dict[str, Any]], reply: Reply) -> None:
    found = [(c.name, c.id, json.loads(c.arguments)) for c in reply.tool_calls]
    assert found == [(c["name"], c["id"] or "", c["arguments"]) for c in expected]
    assert [c.position for c in reply.tool_calls] == list(range(len(found)))


def check_parts(parts: list[ReplyPart], reply: Reply) -> None:
    """What was shown is what the reply holds."""
    assert [p for p in parts if isinstance(p, Reply)] == [reply]
    assert isinstance(parts[0], ReplyOpened)
    reports = [p.usage for p in parts if isinstance(p, UsageReported)]
    assert reports[-1:] == [reply.usage] or reply.usage == Usage()
    deltas = [p for p in parts if isinstance(p, ToolCallDelta)]
    for call in reply.tool_calls:
        mine = [d for d in deltas if d.position == call.position]
        assert "".join(d.name for d in mine) == call.name
        assert "".join(d.arguments for d in mine) == call.arguments


def check_carried(case: dict[str, Any], reply: Reply) -> None:
    """Every signature and every part that is not ours to read goes back."""
    recorded, carried = signatures(read_body(case)), json.dumps(reply.carry)
    assert [s for s in recorded if s not in carried] == []
    kinds = [kind for part in reply.carry.get("parts", []) for kind in part]
    others = case["expected"].get("server_side_items", [])
    assert [k for k in kinds if k in others] == others


def signatures(body: bytes) -> list[str]:
    return [
        piece.partition('"')[2].partition('"')[0]
        for piece in body.decode().split('"thoughtSignature":')[1:]
    ]


def check_error(case: dict[str, Any], error: ModelError | None) -> None:
    right = case["expected"]["error"]
    assert error is not None
    retry = right["suggested_retryable"]
    assert isinstance(error, ModelUnavailable if retry else ModelRefused)
    assert error.may_retry is retry
    if right["message"]:
        assert right["message"][:400] in str(error)
    if right["suggested_kind"] == "incomplete_stream":
        assert error.kind == "incomplete_stream"
    if right["type"]:  # a finer word is better
        finer = right["suggested_kind"] in ("auth", "permission", "rate_limit")
        assert right["type"] == error.kind or finer
        assert right["type"] in str(error) or finer
    if right["source"] == "body":
        assert error.status == right["status"]
    assert error.retry_after == right.get("retry_after_s")
    assert error.response_id == (case["expected"]["response_id"] or "")
    check_usage(case["expected"]["usage"], error.usage)


@pytest.mark.parametrize("case", CASES)
async def test_a_recorded_answer_is_read_right(case: dict[str, Any]) -> None:
    check(case, await play(case, model_at))


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if len(read_body(c.values[0])) <= SMALL],  # type: ignore[arg-type]
)
async def test_a_recorded_answer_is_read_right_byte_by_byte(
    case: dict[str, Any],
) -> None:
    check(case, await play(case, model_at, one_byte_a_chunk=True))


def test_all_recordings_are_played() -> None:
    assert len(CASES) >= 35
