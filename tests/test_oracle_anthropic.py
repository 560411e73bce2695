"""The official SDK sends what we send, and reads what we read."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import pytest
import trio

from tests.asking import ask_for_reply
from tests.loopback import Answer, open_loopback
from tests.test_anthropic import (
    CITED,
    DATA,
    KEY,
    RESULT,
    TURN,
    Wanted,
    call,
    claude,
    end,
    sse,
    start,
    text,
    thought,
)
from trioagent._events import Message, Reply, ToolCall, ToolResult, UserMessage
from trioagent._ports import ModelRequest, OutputSpec, ToolSpec
from trioagent._schema import schema_of
from trioagent.models._anthropic_schema import fit_schema
from trioagent.models.anthropic import AnthropicMessages

anthropic = pytest.importorskip("anthropic", reason="the official SDK is not there")

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


def sdk(url: str) -> Any:
    return anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0)


async def both_send(
    request: ModelRequest, options: dict[str, Any], theirs: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What we send, and what the SDK sends when it is asked with `theirs`."""
    ok = Answer([sse(start(), *text(0, "ok"), *end("end_turn"))])

    def ask_sdk(url: str) -> None:
        with sdk(url) as client, client.messages.stream(**theirs) as stream:
            stream.get_final_message()

    async with open_loopback(ok) as server:
        model = AnthropicMessages("m", base_url=server.url, api_key=KEY, **options)
        await ask_for_reply(model, request)
        await trio.to_thread.run_sync(ask_sdk, server.url)
        ours, other = server.requests
    assert (ours.method, ours.path) == (other.method, other.path)
    # The SDK (2.14) sends a key as a bearer token, and names a newer version of the
    # API. We keep to the header that all servers know, and the version is a setting.
    assert ours.headers["x-api-key"] == KEY
    assert other.headers["authorization"] == f"Bearer {KEY}"
    assert ours.headers["content-type"] == other.headers["content-type"]
    return ours.json(), other.json()


async def test_a_conversation_is_sent_as_the_sdk_sends_it() -> None:
    history: list[Message] = [
        UserMessage("look"),
        Reply(text="I look.", tool_calls=(ToolCall("look", '{"q": "é"}', "toolu_a"),)),
        ToolResult("look", "nothing", "toolu_a", failed=True),
        UserMessage("again"),
    ]
    spec = ToolSpec(name="look", description="Looks.", parameters=SCHEMA)
    request = ModelRequest(
        messages=history, instructions="Be brief.", tools=[spec], max_output_tokens=64
    )
    search = {"type": "web_search_20250305", "name": "web_search"}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    extra = {"thinking": thinking, "tools": [search], "tool_choice": {"type": "auto"}}
    use = {"type": "tool_use", "id": "toolu_a", "name": "look", "input": {"q": "é"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_a",
        "content": "nothing",
        "is_error": True,
    }
    look = {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
    ours, theirs = await both_send(
        request,
        {"extra_body": extra},
        {
            "model": "m",
            "max_tokens": 64,
            "system": "Be brief.",
            "thinking": thinking,
            "tools": [look, search],
            "tool_choice": {"type": "auto"},
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "look"}]},
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "I look."}, use],
                },
                {
                    "role": "user",
                    "content": [result, {"type": "text", "text": "again"}],
                },
            ],
        },
    )
    assert ours == theirs


async def test_a_turn_goes_back_as_the_sdk_sends_it_back() -> None:
    """The SDK reads a turn and is given its own reading to send: the plainest way."""
    body = sse(*TURN, *end("tool_use"))
    [mine, theirs] = await both_read(body)
    result = {"type": "tool_result", "tool_use_id": "toolu_a", "content": "1"}
    content = [block.model_dump(exclude_none=True) for block in theirs.content]
    content = [b for b in content if b != {"type": "text", "text": ""}]
    async with open_loopback(Answer([body])) as server:
        model = claude(server)
        reply = await ask_for_reply(model)
        history: list[Message] = [UserMessage("go"), reply, RESULT]
        await ask_for_reply(model, ModelRequest(messages=history))
        sent = server.requests[1].json()["messages"]
    assert mine.text == reply.text
    assert sent == [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {"role": "assistant", "content": content},
        {"role": "user", "content": [result]},
    ]


async def test_a_schema_is_asked_for_as_the_sdk_asks_for_it() -> None:
    request = ModelRequest(
        messages=[UserMessage("x")],
        output=OutputSpec(name="wanted", schema=schema_of(Wanted)),
        max_output_tokens=64,
    )
    schema = anthropic.transform_schema(schema_of(Wanted))
    ours, theirs = await both_send(
        request,
        {},
        {
            "model": "m",
            "max_tokens": 64,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        },
    )
    assert without_descriptions(ours) == without_descriptions(theirs)


class Odd(msgspec.Struct):
    """As many corners of JSON Schema as a type can have."""

    a: Annotated[list[int], msgspec.Meta(min_length=1, max_length=3)]
    b: Annotated[str, msgspec.Meta(pattern="^x", max_length=9)] | None = None
    c: set[float] | bool = False
    d: msgspec.UnsetType | Wanted = msgspec.UNSET


@pytest.mark.parametrize(
    "schema",
    [
        schema_of(Wanted),
        schema_of(Odd),
        {"type": "string", "format": "date", "examples": ["x"]},
        {"type": "string", "format": "unheard-of"},
        {"type": "array", "items": {"type": "null"}, "minItems": 2},
        {"oneOf": [{"const": 1}, {"enum": ["a", None]}], "description": "d"},
        {"allOf": [{"type": "object", "properties": {}}]},
        {"$ref": "#/$defs/A", "title": "t", "$defs": {"A": {"type": "integer"}}},
    ],
)
def test_the_sdk_fits_schemas_as_we_do(schema: dict[str, Any]) -> None:
    """But for the words: ours keep JSON as JSON."""
    theirs = anthropic.transform_schema(schema)
    assert without_descriptions(fit_schema(schema)) == without_descriptions(theirs)


def without_descriptions(value: Any) -> Any:
    if isinstance(value, list):
        return [without_descriptions(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        name: without_descriptions(part)
        for name, part in value.items()
        if name != "description"
    }


async def both_read(body: bytes) -> tuple[Reply, Any]:
    """What we read in a stream, and what the SDK reads in it."""

    def ask_sdk(url: str) -> Any:
        asked: dict[str, Any] = {"model": "m", "max_tokens": 64}
        asked["messages"] = [{"role": "user", "content": "hello"}]
        with sdk(url) as client, client.messages.stream(**asked) as stream:
            return stream.get_final_message()

    async with open_loopback(Answer([body])) as server:
        ours = await ask_for_reply(claude(server))
        theirs = await trio.to_thread.run_sync(ask_sdk, server.url)
    return ours, theirs


STREAMS = {
    "text": sse(
        start(), *text(0, "Hel", "lo"), *text(1, "!"), *end("end_turn", output_tokens=4)
    ),
    "turn": sse(*TURN, *end("tool_use", output_tokens=40, cache_read_input_tokens=2)),
    "thinking": sse(
        start(),
        *thought(0, "Hm", "s+="),
        *text(1, "x"),
        *end("max_tokens", output_tokens=3),
    ),
    "calls": sse(
        start(),
        *call(0, "t1", "a", '{"x": ["é', '"]}'),
        *call(1, "t2", "b"),
        *call(2, "t3", "c", ""),
        *end("tool_use", output_tokens=9),
    ),
    "cache": sse(
        start(input_tokens=1, cache_creation_input_tokens=2, output_tokens=1),
        *end("refusal", cache_read_input_tokens=4, output_tokens=2),
    ),
} | {
    name: (DATA / f"{name}.sse").read_bytes()
    for name in (
        "anth_usage_cumulative",
        "anth_pause_turn",
        "anth_empty_input",
        "anth_empty_end_turn",
        "anth_max_tokens_valid_json",
        "anth_long_think_ok",
    )
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_is_read_as_the_sdk_reads_it(name: str) -> None:
    ours, theirs = await both_read(STREAMS[name])
    blocks = [block.model_dump() for block in theirs.content]

    def all_of(kind: str, field: str) -> list[Any]:
        return [block[field] for block in blocks if block["type"] == kind]

    assert ours.response_id == theirs.id
    assert ours.model == theirs.model
    assert ours.raw_finish_reason == theirs.stop_reason
    assert ours.text == "".join(all_of("text", "text"))
    assert ours.reasoning == "".join(all_of("thinking", "thinking"))
    assert [c.id for c in ours.tool_calls] == all_of("tool_use", "id")
    assert [c.name for c in ours.tool_calls] == all_of("tool_use", "name")
    inputs = [json.loads(c.arguments) for c in ours.tool_calls]
    assert inputs == all_of("tool_use", "input")
    used = theirs.usage
    cached, written = used.cache_read_input_tokens, used.cache_creation_input_tokens
    assert ours.usage.input_tokens == used.input_tokens + (cached or 0) + (written or 0)
    assert ours.usage.output_tokens == used.output_tokens
    assert (ours.usage.cached_tokens, ours.usage.cache_write_tokens) == (
        cached,
        written,
    )


async def test_citations_are_read_as_the_sdk_reads_them() -> None:
    ours, theirs = await both_read(STREAMS["turn"])
    [mine] = [b for b in ours.carry["content"] if b.get("citations")]
    [other] = [b for b in theirs.content if b.type == "text" and b.citations]
    assert mine["citations"] == [CITED]
    assert other.citations[0].cited_text == CITED["cited_text"]
