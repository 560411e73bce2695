"""Recorded answers of Messages servers give what was worked out for them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests import recordings
from tests.asking import Asked, ask_for_reply
from tests.loopback import Answer, open_loopback
from tests.recordings import parsed, play
from tests.wire import needs_recordings, read_body, read_cases
from trioagent._events import ToolCall, ToolResult, UsageReported, UserMessage
from trioagent._ports import ModelRequest
from trioagent.models.anthropic import AnthropicMessages

pytestmark = needs_recordings

CASES = [
    pytest.param(case, id=case["file"]) for case in read_cases("anthropic-messages")
]
STREAMS = [c for c in CASES if not c.values[0]["expected"]["error"]]  # type: ignore[index]
SMALL = 6_000  # bytes; one chunk a byte, each a system call or two


def claude(url: str) -> AnthropicMessages:
    return AnthropicMessages("m", base_url=url)


def check(case: dict[str, Any], asked: Asked) -> None:
    """As for every API, and what only this one has."""
    case = copy.deepcopy(case)
    expected = case["expected"]
    written = (expected["usage"] or {}).pop("cache_write", 0)
    recordings.check(case, asked)
    if asked.error is not None:
        told = expected.get("request_id_in_body", "")
        assert asked.error.request_id == case["headers"].get("request-id", told)
        return
    assert asked.reply is not None
    assert (asked.reply.usage.cache_write_tokens or 0) == written
    reported = [p.usage for p in asked.parts if isinstance(p, UsageReported)]
    assert reported[-1] == asked.reply.usage
    carried = [block["type"] for block in asked.reply.carry.get("content", ())]
    server_side = expected.get("server_side_items", [])
    assert [k for k in carried if "server_tool" in k or "result" in k] == server_side


@pytest.mark.parametrize("case", CASES)
async def test_a_recorded_answer_is_read_right(case: dict[str, Any]) -> None:
    check(case, await play(case, claude))


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if len(read_body(c.values[0])) <= SMALL],  # type: ignore[arg-type]
)
async def test_a_recorded_answer_is_read_right_byte_by_byte(
    case: dict[str, Any],
) -> None:
    check(case, await play(case, claude, one_byte_a_chunk=True))


@pytest.mark.parametrize("case", STREAMS)
async def test_a_recorded_turn_goes_back_as_it_came(case: dict[str, Any]) -> None:
    """Nothing is lost on the way, and the same turn is sent the same way again."""
    async with open_loopback(Answer([read_body(case)])) as server:
        model = claude(server.url)
        reply = await ask_for_reply(model)
        results = [ToolResult(c.name, "x", c.id) for c in reply.tool_calls]
        history = ModelRequest(messages=[UserMessage("go"), reply, *results])
        await ask_for_reply(model, history)
        sent = server.requests[1].json()["messages"]
    assert [m["role"] for m in sent[:1]] == ["user"]
    blocks = sent[1]["content"] if len(sent) > 1 else []
    came = blocks_of(case)
    assert [b["type"] for b in blocks] == [b["type"] for b in came]
    for block, right in zip(blocks, came, strict=True):
        for name in ("text", "thinking", "signature", "data", "content", "citations"):
            assert block.get(name) == right.get(name), name
        if reply.finish_reason != "length":
            assert block.get("input") == right.get("input")


def blocks_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The content of a recorded answer, put together here in the plainest way."""
    body = read_body(case)
    if body.startswith(b"{"):
        content: list[dict[str, Any]] = json.loads(body)["content"]
        return content
    blocks: dict[int, dict[str, Any]] = {}
    lines = [x[5:].strip() for x in body.split(b"\n") if x.startswith(b"data:")]
    for event in (json.loads(x) for x in lines if x != b"[DONE]"):
        if event["type"] == "content_block_start":
            blocks[event["index"]] = dict(event["content_block"])
        elif event["type"] == "content_block_delta":
            add(blocks[event["index"]], event["delta"])
    for block in blocks.values():
        if text := block.pop("partial_json", ""):
            block["input"] = parsed(ToolCall("x", text))
        if not block.get("citations"):
            block.pop("citations", None)
    return [b for b in blocks.values() if b["type"] != "text" or b["text"].strip()]


def add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    for name in ("text", "thinking", "partial_json", "signature"):
        if name in delta:
            block[name] = block.get(name, "") + delta[name]
    if "citation" in delta:
        block["citations"] = [*(block.get("citations") or ()), delta["citation"]]


def test_all_recordings_are_played() -> None:
    assert len(CASES) >= 38
