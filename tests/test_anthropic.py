"""What the Messages adapter sends, what it reads, and how it lets go."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
import trio

from tests.asking import HELLO, Asked, ask, ask_for_error, ask_for_reply
from tests.loopback import CUT, HANG, Answer, Drip, Loopback, open_loopback
from trioagent import Agent, EffectStatus, Limits, retries, tool
from trioagent._errors import ModelError, ModelRefused, ModelUnavailable
from trioagent._events import (
    KeepAlive,
    Message,
    ReasoningDelta,
    Reply,
    ReplyOpened,
    ReplyPart,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    Usage,
    UsageReported,
    UserMessage,
)
from trioagent._ports import Model, ModelRequest, OutputSpec, ToolSpec
from trioagent._schema import schema_of
from trioagent.models import find_model
from trioagent.models._anthropic_stream import AnthropicStream
from trioagent.models._body import Body
from trioagent.models._problems import Reporter
from trioagent.models.anthropic import AnthropicMessages

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
KEY = "sk-ant-DO-NOT-LOG-0123456789"
SOON = 0.1  # seconds until the server must have seen a close

Body_ = dict[str, Any]


def sse(*events: Body_) -> bytes:
    texts = (f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
    return "".join(texts).encode()


def start(id: str = "msg_1", **usage: Any) -> Body_:
    usage = usage or {"input_tokens": 3, "output_tokens": 1}
    message = {"id": id, "type": "message", "model": "fake-1", "content": []}
    return {"type": "message_start", "message": {**message, "usage": usage}}


def begin(index: int, **block: Any) -> Body_:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **piece: Any) -> Body_:
    return {"type": "content_block_delta", "index": index, "delta": piece}


def close(index: int) -> Body_:
    return {"type": "content_block_stop", "index": index}


def end(reason: str | None, **usage: Any) -> list[Body_]:
    last = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}
    return [last, {"type": "message_stop"}]


def text(index: int, *pieces: str) -> list[Body_]:
    deltas = [delta(index, type="text_delta", text=piece) for piece in pieces]
    return [begin(index, type="text", text=""), *deltas, close(index)]


def call(index: int, id: str, name: str, *pieces: str) -> list[Body_]:
    deltas = [delta(index, type="input_json_delta", partial_json=p) for p in pieces]
    head = begin(index, type="tool_use", id=id, name=name, input={})
    return [head, *deltas, close(index)]


def thought(index: int, said: str, signature: str) -> list[Body_]:
    return [
        begin(index, type="thinking", thinking="", signature=""),
        *(delta(index, type="thinking_delta", thinking=c) for c in said),
        delta(index, type="signature_delta", signature=signature),
        close(index),
    ]


PING: Body_ = {"type": "ping"}
OK = sse(start(), *text(0, "ok"), *end("end_turn", output_tokens=2))


def claude(server: Loopback, **options: Any) -> AnthropicMessages:
    return AnthropicMessages("fake", base_url=server.url, **options)


async def play(*steps: Any, **options: Any) -> Asked:
    """Ask a server that plays these steps."""
    with trio.fail_after(10):
        async with open_loopback(Answer(steps, **options)) as server:
            return await ask(claude(server))


async def play_reply(*steps: Any, **options: Any) -> Reply:
    asked = await play(*steps, **options)
    assert asked.error is None
    assert asked.reply is not None
    return asked.reply


async def play_error(*steps: Any, **options: Any) -> ModelError:
    asked = await play(*steps, **options)
    assert asked.reply is None
    assert asked.error is not None
    return asked.error


async def sent(
    *messages: Message, options: dict[str, Any] | None = None, **request: Any
) -> Body_:
    """The body that these messages and options become."""
    async with open_loopback(Answer([OK])) as server:
        asked = ModelRequest(messages=messages or [UserMessage("hello")], **request)
        await ask_for_reply(claude(server, **(options or {})), asked)
        body: Body_ = server.requests[0].json()
        return body


def said(words: str) -> list[Body_]:
    return [{"type": "text", "text": words}]


def test_it_is_a_model() -> None:
    model: Model = AnthropicMessages("claude-opus-4-6", api_key=KEY)
    assert model.name == "anthropic:claude-opus-4-6"
    assert AnthropicMessages("x", api_key=KEY, provider="kimi").name == "kimi:x"


def test_a_string_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    model = find_model("anthropic:claude-opus-4-6")
    assert isinstance(model, AnthropicMessages)
    assert KEY not in repr(model)


def test_importing_it_loads_no_http_library() -> None:
    code = (
        "import sys, trioagent.models.anthropic\n"
        "assert not {'httpx', 'httpcore', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# What is sent


async def test_nothing_is_sent_that_was_not_asked_for() -> None:
    assert await sent() == {
        "model": "fake",
        "max_tokens": 32_000,
        "messages": [{"role": "user", "content": said("hello")}],
        "stream": True,
    }


async def test_the_options_go_into_the_body() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = await sent(
        instructions="Be brief.",
        options={"max_tokens": 2048, "extra_body": {"thinking": thinking}},
    )
    assert (body["system"], body["max_tokens"]) == ("Be brief.", 2048)
    assert body["thinking"] == thinking


@pytest.mark.parametrize(("left", "expected"), [(None, 100), (7, 7), (1000, 100)])
async def test_a_reply_is_bounded_by_what_is_left(
    left: int | None, expected: int
) -> None:
    body = await sent(max_output_tokens=left, options={"max_tokens": 100})
    assert body["max_tokens"] == expected


async def test_tools_are_told_and_server_tools_stand_beside_them() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    spec = ToolSpec(name="look", description="Looks.", parameters=schema)
    mine = {"name": "look", "description": "Looks.", "input_schema": schema}
    assert (await sent(tools=[spec]))["tools"] == [mine]
    search = {"type": "web_search_20250305", "name": "web_search"}
    options = {"extra_body": {"tools": [search], "tool_choice": {"type": "any"}}}
    body = await sent(tools=[spec], options=options)
    assert body["tools"] == [mine, search]
    assert body["tool_choice"] == {"type": "any"}
    assert (await sent(options=options))["tools"] == [search]


async def test_a_history_is_sent_as_the_api_wants_it() -> None:
    body = await sent(
        UserMessage("look twice"),
        Reply(
            text="I look.",
            tool_calls=(
                ToolCall("look", '{"q":"a"}', "id_a", 1, 0),
                ToolCall("look", '{"q":"b"}', "id_b", 1, 1),
            ),
        ),
        ToolResult("look", "B", "id_b", failed=True),
        UserMessage("hurry"),
        ToolResult("look", "A", "id_a"),
        UserMessage("up"),
        Reply(text="A and B"),
        UserMessage("why"),
        Reply(refusal="I would rather not."),
        UserMessage("ok"),
    )

    def use(id: str, q: str) -> Body_:
        return {"type": "tool_use", "id": id, "name": "look", "input": {"q": q}}

    def result(id: str, content: str, **more: Any) -> Body_:
        return {"type": "tool_result", "tool_use_id": id, "content": content, **more}

    assert body["messages"] == [
        {"role": "user", "content": said("look twice")},
        {
            "role": "assistant",
            "content": [*said("I look."), use("id_a", "a"), use("id_b", "b")],
        },
        {
            "role": "user",
            "content": [
                result("id_a", "A"),
                result("id_b", "B", is_error=True),
                *said("hurry"),
                *said("up"),
            ],
        },
        {"role": "assistant", "content": said("A and B")},
        {"role": "user", "content": said("why")},
        {"role": "assistant", "content": said("I would rather not.")},
        {"role": "user", "content": said("ok")},
    ]


async def test_what_says_nothing_is_left_out() -> None:
    body = await sent(UserMessage("a"), Reply(), Reply(text=" \n"), UserMessage("b"))
    content = [*said("a"), *said("b")]
    assert body["messages"] == [{"role": "user", "content": content}]
    calling = Reply(text="\n", tool_calls=(ToolCall("x", id="1"),))
    body = await sent(calling, ToolResult("x", "", "1", failed=True), UserMessage(""))
    use = {"type": "tool_use", "id": "1", "name": "x", "input": {}}
    failed = {"content": "failed", "is_error": True}
    result = {"type": "tool_result", "tool_use_id": "1", **failed}
    assert [m["content"] for m in body["messages"]] == [[use], [result]]


def ids_of(body: Body_) -> tuple[list[str], list[str]]:
    """The ids of all calls, and those of all results."""
    blocks = [block for m in body["messages"] for block in m["content"]]
    calls = [b["id"] for b in blocks if b["type"] == "tool_use"]
    results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
    return calls, results


async def test_calls_of_another_provider_get_ids_that_the_api_takes() -> None:
    foreign = Reply(
        text="So.",
        reasoning="Hm.",
        provider="gemini",
        carry={"content": [{"type": "mystery"}]},
        tool_calls=(
            ToolCall("a", turn=1, position=0),
            ToolCall("b", id="fc:1/x", turn=1, position=1),
            ToolCall("c", id="0", turn=1, position=2),
            ToolCall("d", id="0", turn=1, position=3),
        ),
    )
    results = [ToolResult(c.name, c.name, c.id) for c in foreign.tool_calls]
    history: list[Message] = [UserMessage("go"), foreign, *reversed(results)]
    body = await sent(*history)
    calls, answered = ids_of(body)
    assert calls == answered == ["call_1_0", "call_1_1", "0", "call_1_3"]
    blocks = body["messages"][2]["content"]
    assert [b["content"] for b in blocks] == ["a", "b", "c", "d"]
    assert body["messages"][1]["content"][0] == said("So.")[0]
    longer = await sent(*history, foreign, *results, UserMessage("x"))
    assert ids_of(longer)[0][:4] == calls  # stable: a prompt cache still hits
    assert len(set(ids_of(longer)[0])) == 8


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"b": 1.0, "a": [2e3]}', '{"b": 1.0, "a": [2e3]}'),
        ("", "{}"),
        ('{"path": "/s', '{"INVALID_JSON":"{\\"path\\": \\"/s"}'),
        ("[1]", '{"INVALID_JSON":"[1]"}'),
    ],
)
async def test_arguments_go_back_as_they_came_and_always_in_an_object(
    arguments: str, expected: str
) -> None:
    reply = Reply(tool_calls=(ToolCall("a", arguments, "1"),))
    async with open_loopback(Answer([OK])) as server:
        request = ModelRequest(messages=[reply, ToolResult("a", "x", "1")])
        await ask_for_reply(claude(server), request)
        assert f'"input":{expected}' in server.requests[0].body.decode()


REDACTED: Body_ = {"type": "redacted_thinking", "data": "RWFz+/="}
CITED: Body_ = {"type": "char_location", "cited_text": "x", "document_index": 0}
TURN = [
    start(),
    PING,
    *thought(0, "Hm\u2028 é😀.", "sig+/=="),
    begin(1, **REDACTED),
    close(1),
    *text(2, "I ", "look."),
    begin(3, type="server_tool_use", id="srv_1", name="web_search", input={}),
    delta(3, type="input_json_delta", partial_json=""),
    delta(3, type="input_json_delta", partial_json='{"query": "x'),
    delta(3, type="input_json_delta", partial_json='"}'),
    close(3),
    begin(4, type="web_search_tool_result", tool_use_id="srv_1", content=[{"a": 1}]),
    close(4),
    *text(5, ""),
    begin(6, type="text", text="", citations=[]),
    delta(6, type="citations_delta", citation=CITED),
    delta(6, type="text_delta", text="Found."),
    close(6),
    *call(7, "toolu_a", "look", '{"q": ', "1.50}"),
    *text(8, "Wait."),
]
USE: Body_ = {"type": "tool_use", "id": "toolu_a", "name": "look", "input": {"q": 1.5}}
CARRIED = [
    {"type": "thinking", "thinking": "Hm\u2028 é😀.", "signature": "sig+/=="},
    REDACTED,
    *said("I look."),
    {
        "type": "server_tool_use",
        "id": "srv_1",
        "name": "web_search",
        "input": {"query": "x"},
    },
    {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"a": 1}]},
    {"type": "text", "text": "Found.", "citations": [CITED]},
    USE,
    *said("Wait."),
]
RESULT = ToolResult("look", "1", "toolu_a")


@pytest.mark.parametrize("kept", [False, True], ids=["at once", "from a journal"])
async def test_a_turn_goes_back_unchanged_to_the_server_it_came_from(
    kept: bool,
) -> None:
    body = sse(*TURN, *end("tool_use"))
    async with open_loopback(Answer([body])) as server:
        model = claude(server)
        reply = await ask_for_reply(model)
        assert reply.reasoning == "Hm\u2028 é😀."
        assert reply.text == "I look.Found.Wait."
        if kept:
            reply = msgspec.json.decode(msgspec.json.encode(reply), type=Reply)
        history: list[Message] = [UserMessage("x"), reply, RESULT]
        await ask_for_reply(model, ModelRequest(messages=history))
        assert server.requests[1].json()["messages"][1]["content"] == CARRIED
        assert b'{"q": 1.50}' in server.requests[1].body
    plain = [*said("I look.Found.Wait."), USE]
    async with open_loopback(Answer([OK])) as other:
        await ask_for_reply(claude(other), ModelRequest(messages=history))
        assert other.requests[0].json()["messages"][1]["content"] == plain


async def test_carried_calls_get_new_ids_too_where_ids_come_again() -> None:
    async with open_loopback(Answer([sse(*TURN, *end("tool_use"))])) as server:
        model = claude(server)
        reply = await ask_for_reply(model)
        history: list[Message] = [UserMessage("x"), reply, RESULT, reply, RESULT]
        await ask_for_reply(model, ModelRequest(messages=history))
        calls, results = ids_of(server.requests[1].json())
    assert calls == results == ["toolu_a", "call_2_0"]


async def test_a_plain_turn_carries_nothing() -> None:
    reply = await play_reply(
        sse(start(), *text(0, "a"), *call(1, "t", "x"), *end("tool_use"))
    )
    assert reply.carry == {}


async def test_a_call_with_more_to_it_is_carried() -> None:
    head = begin(0, type="tool_use", id="t", name="x", input={}, caller={"type": "c"})
    reply = await play_reply(sse(start(), head, close(0), *end("tool_use")))
    [block] = reply.carry["content"]
    assert block == {
        "type": "tool_use",
        "id": "t",
        "name": "x",
        "caller": {"type": "c"},
    }


async def test_half_a_thought_is_not_sent_back() -> None:
    """Without its signature the API refuses it, and with it the whole request."""
    pieces = [begin(0, type="thinking", thinking="", signature="")]
    pieces += [delta(0, type="thinking_delta", thinking="Hm")]
    half = begin(1, type="server_tool_use", id="s", name="n", input={})
    json_half = delta(1, type="input_json_delta", partial_json='{"a')
    answer = Answer([sse(start(), *pieces, half, json_half, *end("max_tokens"))])
    async with open_loopback(answer) as server:
        model = claude(server)
        reply = await ask_for_reply(model)
        assert reply.reasoning == "Hm"
        history: list[Message] = [UserMessage("x"), reply, UserMessage("y")]
        await ask_for_reply(model, ModelRequest(messages=history))
        [message] = server.requests[1].json()["messages"]
    assert message["content"] == [*said("x"), *said("y")]


class Inner(msgspec.Struct):
    day: Literal["mon", "tue"]


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    age: Annotated[int, msgspec.Meta(ge=1, description="In years.")]
    when: list[Inner]
    note: str | None = None


class Loop(msgspec.Struct):
    next: Loop | None = None


async def test_an_answer_is_asked_for_in_a_schema_that_the_api_takes() -> None:
    spec = OutputSpec(name="wanted", schema=schema_of(Wanted))
    effort = {"extra_body": {"output_config": {"effort": "high"}}}
    body = await sent(output=spec, options=effort)
    assert "system" not in body
    assert body["output_config"]["effort"] == "high"
    wanted = body["output_config"]["format"]
    assert wanted["type"] == "json_schema"
    assert wanted["schema"] == {
        "type": "object",
        "properties": {
            "age": {"type": "integer", "description": 'In years.\n\n{"minimum":1}'},
            "when": {"type": "array", "items": {"$ref": "#/$defs/Inner"}},
            "note": {
                "anyOf": [{"type": "string"}, {"type": "null"}],
                "description": '{"default":null}',
            },
        },
        "required": ["age", "when"],
        "additionalProperties": False,
        "$defs": {
            "Inner": {
                "title": "Inner",
                "type": "object",
                "properties": {"day": {"enum": ["mon", "tue"]}},
                "required": ["day"],
                "additionalProperties": False,
            }
        },
    }


@pytest.mark.parametrize("kind", [Loop, dict[str, int], tuple[int, str], Any], ids=str)
async def test_an_answer_beyond_the_apis_schemas_is_asked_for_in_words(
    kind: Any,
) -> None:
    field = msgspec.defstruct("Answer", [("answer", kind)])
    schema = schema_of(field)
    spec = OutputSpec(name="answer", schema=schema)
    body = await sent(output=spec, instructions="Be brief.")
    assert "output_config" not in body
    before, _, told = body["system"].partition("schema: ")
    assert before.startswith("Be brief.\n\n")
    assert json.loads(told) == schema


async def test_headers_and_address() -> None:
    async with open_loopback(Answer([OK])) as server:
        for path in ("", "/", "/v1", "/v1/", "/proxy", "/proxy/v1?x=1"):
            model = AnthropicMessages(
                "m",
                base_url=server.url + path,
                api_key=KEY,
                version="2026-10-21",
                headers={"Anthropic-Beta": "b-1"},
            )
            await ask_for_reply(model)
    assert [r.path for r in server.requests] == [
        *["/v1/messages"] * 4,
        "/proxy/v1/messages",
        "/proxy/v1/messages?x=1",
    ]
    headers = server.requests[0].headers
    for name, value in (
        ("x-api-key", KEY),
        ("anthropic-version", "2026-10-21"),
        ("anthropic-beta", "b-1"),
        ("content-type", "application/json"),
    ):
        assert headers[name] == value
    assert "authorization" not in headers


@pytest.mark.parametrize(
    ("options", "env", "expected"),
    [
        ({"api_key": KEY}, {}, {"x-api-key": KEY}),
        ({"api_key": KEY}, {"AUTH_TOKEN": "t"}, {"x-api-key": KEY}),
        ({"auth_token": KEY}, {"API_KEY": "k"}, {"authorization": f"Bearer {KEY}"}),
        (
            {"api_key": "k", "auth_token": KEY},
            {},
            {"x-api-key": "k", "authorization": f"Bearer {KEY}"},
        ),
        ({}, {"API_KEY": KEY, "AUTH_TOKEN": "t"}, {"x-api-key": KEY}),
        ({}, {"AUTH_TOKEN": KEY}, {"authorization": f"Bearer {KEY}"}),
        ({"api_key": ""}, {"API_KEY": KEY, "AUTH_TOKEN": KEY}, {}),
        ({"auth_token": ""}, {"API_KEY": KEY}, {}),
        ({}, {}, {}),
    ],
)
async def test_a_key_and_a_token_each_have_their_header(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    env: dict[str, str],
    expected: dict[str, str],
) -> None:
    for name in ("API_KEY", "AUTH_TOKEN", "BASE_URL"):
        monkeypatch.delenv(f"ANTHROPIC_{name}", raising=False)
    async with open_loopback(Answer([OK])) as server:
        for name, value in {"BASE_URL": server.url, **env}.items():
            monkeypatch.setenv(f"ANTHROPIC_{name}", value)
        await ask_for_reply(AnthropicMessages("m", **options))
        headers = server.requests[0].headers
    names = ("x-api-key", "authorization")
    assert {n: headers[n] for n in names if n in headers} == expected


# Keys


def test_a_missing_key_is_told_with_the_way_to_give_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("API_KEY", "AUTH_TOKEN", "BASE_URL"):
        monkeypatch.delenv(f"ANTHROPIC_{name}", raising=False)
    with pytest.raises(ValueError, match=r"api_key=.*ANTHROPIC_API_KEY"):
        AnthropicMessages("m")
    AnthropicMessages("m", auth_token=KEY)
    AnthropicMessages("m", base_url="http://localhost:8080")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"api_key": f"{KEY}\n"}, "api_key"),
        ({"auth_token": f"{KEY}\n"}, "auth_token"),
        ({"headers": {"x-key": f"{KEY}\r\n"}}, "headers"),
        ({"version": f"{KEY}\n"}, "anthropic-version"),
        ({"base_url": f"https://user:{KEY}@example.com"}, "base_url"),
        ({"base_url": "localhost:80"}, "base_url"),
        ({"connections": 0}, "connections"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_misuse_is_told_at_once_and_names_the_option(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        AnthropicMessages("m", **({"api_key": KEY} | options))
    assert KEY not in everything_said(caught.value)


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
def test_a_bad_key_of_the_environment_is_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv(name, f"{KEY}\n")
    with pytest.raises(ValueError, match=name) as caught:
        AnthropicMessages("m")
    assert KEY not in everything_said(caught.value)


def everything_said(error: BaseException) -> str:
    """All that a log or a traceback could show of an error, and of what caused it."""
    texts = [str(error), repr(error), repr(vars(error))]
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.format_exception_only(cause)
        texts += [str(cause), repr(cause), *frames]
        cause = cause.__cause__ or cause.__context__
    return "\n".join(texts)


def echo() -> bytes:
    """What a server says that quotes all it was sent."""
    quoted = f"you sent {KEY} and Bearer {KEY} and tell me the launch code"
    return json.dumps(
        {"type": "error", "error": {"type": KEY, "message": quoted}}
    ).encode()


@pytest.mark.parametrize("option", ["api_key", "auth_token"])
@pytest.mark.parametrize(
    "answer",
    [
        Answer([echo()], status=401),
        Answer([echo()], status=529),
        Answer([echo()]),
        Answer([sse(start()), b"event: error\ndata: " + echo() + b"\n\n"]),
        Answer([b"event: error\ndata: Bearer " + KEY.encode() + b"\n\n"]),
        Answer([b"error: " + echo() + b"\n"]),
    ],
    ids=str,
)
async def test_neither_key_nor_prompt_is_ever_shown(
    answer: Answer, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_loopback(answer) as server:
        model = claude(server, **{option: KEY})
        prompt = ModelRequest(messages=[UserMessage("tell me the launch code")])
        asked = await ask(model, prompt)
    assert asked.error is not None
    shown = everything_said(asked.error) + repr(asked.parts) + repr(model)
    for secret in (KEY, "launch code"):
        assert secret not in shown
    # httpcore shows, for debugging, what the server sent; that is not ours to hide.
    logged = [r for r in caplog.records if not r.name.startswith("httpcore")]
    assert KEY not in repr([r.getMessage() for r in logged])


# What is read


CASES: list[tuple[str, dict[str, Any]]] = [
    (
        "anth_usage_cumulative",
        {
            "text": "ok",
            "usage": Usage(
                input_tokens=1312,
                output_tokens=40,
                cached_tokens=900,
                cache_write_tokens=400,
            ),
        },
    ),
    (
        "anth_pause_turn",
        {
            "text": "Looking",
            "finish_reason": "pause",
            "raw_finish_reason": "pause_turn",
        },
    ),
    ("anth_refusal", {"text": "I", "finish_reason": "refusal"}),
    (
        "anth_empty_end_turn",
        {
            "text": "",
            "finish_reason": "stop",
            "usage": Usage(input_tokens=10, output_tokens=1),
        },
    ),
    (
        "anth_empty_input",
        {"finish_reason": "tool_calls", "tool_calls": [("now", "toolu_a", "{}")]},
    ),
    (
        "anth_max_tokens_valid_json",
        {
            "finish_reason": "length",
            "tool_calls": [("delete_tree", "toolu_a", '{"path":"/srv/app"}')],
        },
    ),
    ("anth_long_think_ok", {"text": "ok", "finish_reason": "stop"}),
]


@pytest.mark.parametrize("size", [1, 10_000], ids=["byte_by_byte", "whole"])
@pytest.mark.parametrize(("file", "expected"), CASES, ids=[c[0] for c in CASES])
async def test_a_case_gives_its_reply(
    file: str, expected: dict[str, Any], size: int
) -> None:
    body = (DATA / f"{file}.sse").read_bytes()
    reply = await play_reply(*(body[i : i + size] for i in range(0, len(body), size)))
    found = {name: getattr(reply, name) for name in expected}
    if "tool_calls" in found:
        found["tool_calls"] = calls_of(reply)
    assert found == expected


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("anth_error_after_text", "First, the invoice is"),
        ("anth_error_before_content", ""),
    ],
)
async def test_a_case_gives_its_error(file: str, shown: str) -> None:
    asked = await play((DATA / f"{file}.sse").read_bytes())
    assert (asked.reply, asked.text) == (None, shown)
    error = asked.error
    assert isinstance(error, ModelUnavailable)
    assert (error.kind, error.response_id) == ("overloaded_error", "msg_1")
    assert error.usage == Usage(input_tokens=10, output_tokens=1)
    assert error.billed == "unknown"


@pytest.mark.machine
async def test_a_hundred_thousand_deltas_take_linear_time() -> None:
    async def seconds(count: int, kind: str, field: str, block: str) -> float:
        letter = sse(delta(0, type=kind, **{field: "x"})) * 100
        head = begin(0, type=block, id="t", name="f", input={})
        letters = [sse(delta(0, type=kind, **{field: '{"a":"'}))]
        letters += [letter] * (count // 100)
        letters += [sse(delta(0, type=kind, **{field: '"}'}))]
        began = time.process_time()
        last = sse(close(0), *end("end_turn"))
        reply = await play_reply(sse(start(), head), *letters, last)
        spent = time.process_time() - began
        whole = {"text": reply.text, "thinking": reply.reasoning}.get(field)
        whole = whole or reply.tool_calls[0].arguments
        assert json.loads(whole) == {"a": "x" * count}
        return spent

    slower = 1 if sys.gettrace() is None else 4  # by a coverage tool
    for kind, field, block in (
        ("text_delta", "text", "text"),
        ("thinking_delta", "thinking", "thinking"),
        ("input_json_delta", "partial_json", "tool_use"),
    ):
        part = await seconds(25_000, kind, field, block)
        whole = await seconds(100_000, kind, field, block)
        assert whole < 3.0 * slower  # server and client together
        assert whole / part < 9  # linear work gives 4, quadratic 16


async def test_the_pieces_come_in_order_and_the_reply_is_last() -> None:
    parts = (
        await play(
            sse(start(input_tokens=3, cache_read_input_tokens=4, output_tokens=1)),
            sse(PING),
            sse(*thought(0, "Hm", "s")),
            sse(*text(1, "He", "llo")),
            sse(*call(2, "a", "look", "", "{", "}")),
            sse(*end("tool_use", output_tokens=5, input_tokens=None)),
            headers={"request-id": "req_1"},
        )
    ).parts
    first = Usage(input_tokens=7, cached_tokens=4, output_tokens=1)
    last = Usage(input_tokens=7, cached_tokens=4, output_tokens=5)
    thinking = {"type": "thinking", "thinking": "Hm", "signature": "s"}
    reply = parts[-1]
    assert isinstance(reply, Reply)
    assert [block["type"] for block in reply.carry["content"]] == [
        "thinking",
        "text",
        "tool_use",
    ]
    assert reply.carry["content"][0] == thinking
    assert parts == [
        ReplyOpened("req_1"),
        ReplyOpened("req_1", "msg_1"),
        UsageReported(first),  # a partial bill is known from here on
        KeepAlive(),
        ReasoningDelta("H"),
        ReasoningDelta("m"),
        TextDelta("He"),
        TextDelta("llo"),
        ToolCallDelta(0, "look"),
        ToolCallDelta(0, "", "{"),
        ToolCallDelta(0, "", "}"),
        UsageReported(last),
        Reply(
            text="Hello",
            tool_calls=(ToolCall("look", "{}", "a"),),
            finish_reason="tool_calls",
            raw_finish_reason="tool_use",
            reasoning="Hm",
            usage=last,
            model="fake-1",
            request_id="req_1",
            response_id="msg_1",
            provider="anthropic-messages",
            carry=reply.carry,
        ),
    ]


def calls_of(reply: Reply) -> list[tuple[str, str, str]]:
    return [(c.name, c.id, c.arguments) for c in reply.tool_calls]


async def test_pieces_of_blocks_find_their_block() -> None:
    mixed = [
        begin(0, type="tool_use", id="1", name="a", input={}),
        begin(1, type="tool_use", id="2", name="b", input={}),
        delta(1, type="input_json_delta", partial_json='{"x":'),
        delta(0, type="input_json_delta", partial_json='{"y":1}'),
        delta(1, type="input_json_delta", partial_json="2}"),
    ]
    reply = await play_reply(sse(start(), *mixed, *end("tool_use")))
    assert calls_of(reply) == [("a", "1", '{"y":1}'), ("b", "2", '{"x":2}')]
    assert [c.position for c in reply.tool_calls] == [0, 1]


@pytest.mark.parametrize("pieces", [[], [""], ["null"]])
async def test_no_input_is_an_empty_object_unless_it_was_cut(pieces: list[str]) -> None:
    reply = await play_reply(
        sse(start(), *call(0, "1", "a", *pieces), *end("tool_use"))
    )
    assert calls_of(reply) == [("a", "1", "{}")]
    cut = sse(start(), *call(0, "1", "a", *pieces), *end("max_tokens"))
    assert (await play_reply(cut)).tool_calls[0].arguments != "{}"


async def test_a_call_may_be_whole_at_its_start() -> None:
    head = begin(0, type="tool_use", id="1", name="a", input={"x": [1]})
    empty = delta(0, type="input_json_delta", partial_json="")
    reply = await play_reply(sse(start(), head, empty, close(0), *end("tool_use")))
    assert calls_of(reply) == [("a", "1", '{"x":[1]}')]


async def test_a_call_without_a_name_is_an_error() -> None:
    head = begin(0, type="tool_use", id="1", input={})
    error = await play_error(sse(start(), head, close(0), *end("tool_use")))
    assert error.kind == "protocol_error"


@pytest.mark.parametrize("piece", [delta(1, type="text_delta", text="x"), close(1)])
async def test_a_piece_of_no_block_is_an_error(piece: Body_) -> None:
    asked = await play(sse(start(), *text(0, "a"), piece, *end("end_turn")))
    assert asked.error is not None
    assert (asked.text, asked.error.kind) == ("a", "protocol_error")


async def test_what_is_not_known_is_skipped() -> None:
    events = [
        start(),
        {"type": "brand_new", "index": {}, "delta": "?"},
        begin(0, type="text", text=""),
        delta(0, type="text_delta", text="a"),
        delta(0, type="brand_new_delta", text="b", content="c"),
        close(0),
        begin(1, type="brand_new_block", secret={"x": 1}),
        delta(1, type="brand_new_delta", text={"not": "a text"}),
        delta(1, type="text_delta", text="not shown"),
        close(1),
        begin(2, type="compaction", content=None),
        delta(2, type="compaction_delta", content="So far.", encrypted_content="e"),
        close(2),
    ]
    reply = await play_reply(sse(*events, *end("end_turn")))
    assert reply.text == "a"
    assert reply.carry["content"][0] == said("a")[0]
    assert reply.carry["content"][1]["secret"] == {"x": 1}
    compaction = {"type": "compaction", "content": "So far.", "encrypted_content": "e"}
    assert reply.carry["content"][2] == compaction


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause"),
        ("brand_new_reason", "other"),
    ],
)
async def test_finish_reasons(raw: str, expected: str) -> None:
    reply = await play_reply(sse(start(), *text(0, "x"), *end(raw)))
    assert (reply.finish_reason, reply.raw_finish_reason) == (expected, raw)


async def test_calls_are_calls_whatever_the_reason_says() -> None:
    reply = await play_reply(sse(start(), *call(0, "1", "a"), *end("end_turn")))
    assert (reply.finish_reason, reply.raw_finish_reason) == ("tool_calls", "end_turn")


async def test_either_end_ends_a_reply() -> None:
    [reason, stop] = end("end_turn")
    for last in (sse(reason), sse(stop)):
        for tail in ([], [CUT]):
            reply = await play_reply(sse(start(), *text(0, "4")) + last, *tail)
            assert (reply.text, reply.finish_reason) == ("4", "stop")


async def test_the_last_word_of_a_gateway_ends_no_message() -> None:
    done = b"event: data\ndata: [DONE]\n\n"
    assert (await play_reply(OK + done)).text == "ok"
    assert (await play_reply(sse(start(), end("end_turn")[0]) + done)).text == ""
    error = await play_error(sse(start(), *text(0, "a")) + done)
    assert error.kind == "incomplete_stream"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n\n",
        b": ping\n\n",
        b"upstream timed out",
        sse(PING),
        sse(start()),
        sse(start(), *text(0, "a")),
        sse(start(), *call(0, "1", "a", "{}")),
        b'{"id": "x"}',
        b'{"choices": []}',
        b'{"type": "message"}',
    ],
)
async def test_an_answer_without_its_end_is_incomplete(body: bytes) -> None:
    error = await play_error(body)
    assert isinstance(error, ModelUnavailable)
    assert error.kind == "incomplete_stream"


async def test_a_connection_that_breaks_is_an_error_with_what_is_known() -> None:
    body = sse(start(), *text(0, "a"))
    error = await play_error(body, CUT, headers={"request-id": "req_1"})
    assert isinstance(error, ModelUnavailable)
    assert error.may_retry
    assert (error.request_id, error.response_id) == ("req_1", "msg_1")
    assert error.usage == Usage(input_tokens=3, output_tokens=1)
    assert error.billed == "unknown"


async def test_a_message_that_starts_twice_is_one_and_two_are_an_error() -> None:
    again = start("msg_1", input_tokens=99)
    reply = await play_reply(sse(start(), again, *text(0, "a"), *end("end_turn")))
    assert (reply.text, reply.usage.input_tokens) == ("a", 3)
    error = await play_error(sse(start(), start("msg_2"), *end("end_turn")))
    assert (error.kind, error.response_id) == ("protocol_error", "msg_1")


@pytest.mark.parametrize(
    "data",
    ["{", "[]", "7", '{"type": "message_start"}', '{"type": 7}', '"\xff', "hello"],
)
async def test_an_event_that_is_none_is_an_error_and_not_skipped(data: str) -> None:
    bad = f"data: {data}\n\n".encode()
    asked = await play(sse(start(), *text(0, "a")) + bad + sse(*end("end_turn")))
    assert isinstance(asked.error, ModelUnavailable)
    assert (asked.text, asked.error.kind) == ("a", "bad_chunk")


async def test_usage_is_what_the_server_says_and_else_unknown() -> None:
    async def usage(first: Body_, last: Body_) -> Usage:
        events = [start(**first), *text(0, "x"), *end("end_turn", **last)]
        return (await play_reply(sse(*events))).usage

    nothing = {"input_tokens": None}
    assert await usage(nothing, {}) == Usage()
    assert await usage(nothing, {"output_tokens": 2}) == Usage(output_tokens=2)
    details = {"output_tokens_details": {"thinking_tokens": 4}}
    assert await usage({"input_tokens": 0}, {"input_tokens": 9, **details}) == Usage(
        input_tokens=9, reasoning_tokens=4
    )
    router = {"input_tokens": 9, "cost": 0.25, "is_byok": False}
    assert await usage(nothing, router) == Usage(input_tokens=9, cost=0.25)
    cached = {"input_tokens": 1, "cache_creation_input_tokens": 2}
    assert await usage(cached, {"cache_read_input_tokens": 4}) == Usage(
        input_tokens=7, cached_tokens=4, cache_write_tokens=2
    )


WHOLE: Body_ = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "fake-1",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "1", "name": "a", "input": {"x": 1}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 3, "output_tokens": 5},
}


async def test_a_whole_json_answer_is_a_reply() -> None:
    body = json.dumps(WHOLE, indent=1).encode()
    asked = await play(b" \n" + body[:9], 0.01, body[9:])
    reply = asked.reply
    assert reply is not None
    assert (reply.text, asked.text) == ("Hello", "Hello")
    assert (reply.reasoning, asked.reasoning) == ("Hm.", "Hm.")
    assert calls_of(reply) == [("a", "1", '{"x":1}')]
    assert reply.usage == Usage(input_tokens=3, output_tokens=5)
    assert reply.carry["content"][0] == WHOLE["content"][0]
    deltas = [p for p in asked.parts if isinstance(p, ToolCallDelta)]
    assert deltas == [ToolCallDelta(0, "a"), ToolCallDelta(0, "", '{"x":1}')]


def test_a_reply_is_put_together_without_any_io() -> None:
    body = Body(AnthropicStream(Reporter("m", request_id="req_1")))
    assert body.feed(sse(start()))[:1] == [ReplyOpened("req_1", "msg_1")]
    assert body.feed(sse(*text(0, "a"))) == [TextDelta("a")]
    assert body.feed(sse(*end("end_turn"))) == body.end() == []
    assert body.stream.finish().text == "a"


# Errors


STATUS = [
    (400, "invalid_request_error", ModelRefused),  # the spend limit too
    (401, "authentication_error", ModelRefused),
    (402, "billing_error", ModelRefused),
    (403, "permission_error", ModelRefused),
    (404, "not_found_error", ModelRefused),
    (409, "conflict_error", ModelUnavailable),
    (413, "request_too_large", ModelRefused),
    (429, "rate_limit_error", ModelUnavailable),
    (500, "api_error", ModelUnavailable),
    (504, "timeout_error", ModelUnavailable),
    (529, "overloaded_error", ModelUnavailable),
]


def problem(kind: str) -> Body_:
    error = {"type": kind, "message": "because", "details": None}
    return {"type": "error", "error": error, "request_id": "req_body"}


@pytest.mark.parametrize(("status", "kind", "expected"), STATUS)
async def test_the_status_says_whether_to_ask_again(
    status: int, kind: str, expected: type[ModelError]
) -> None:
    body = json.dumps(problem(kind)).encode()
    headers = {"request-id": "req_1", "retry-after": "7"}
    error = await play_error(body, status=status, headers=headers)
    assert type(error) is expected
    assert error.may_retry is (expected is ModelUnavailable)
    assert (error.status, error.kind) == (status, kind)
    assert (error.request_id, error.retry_after) == ("req_1", 7.0)
    assert error.billed == ("known" if status < 500 else "unknown")
    for word in ("because", "anthropic:fake"):
        assert word in str(error)
    assert (await play_error(body, status=status)).request_id == "req_body"


@pytest.mark.parametrize(("status", "kind", "expected"), STATUS)
async def test_an_error_in_a_200_is_judged_like_its_status(
    status: int, kind: str, expected: type[ModelError]
) -> None:
    event = sse(problem(kind))
    for body in (event, sse(start(), *text(0, "Hel")) + event + OK):
        error = await play_error(body)
        assert type(error) is expected
        assert (error.kind, error.request_id) == (kind, "req_body")
    whole = await play_error(json.dumps(problem(kind)).encode())
    assert type(whole) is expected


async def test_a_server_may_forbid_another_try() -> None:
    headers = {"x-should-retry": "false"}
    body = json.dumps(problem("rate_limit_error")).encode()
    error = await play_error(body, status=429, headers=headers)
    assert not error.may_retry


@pytest.mark.parametrize(
    "body",
    [
        b"event: error\ndata: because\n\n",
        b'event: error\ndata: {"message": "because"}\n\n',
        b'data: {"error": {"message": "because"}}\n\n',
        b'error: {"message": "because"}\n\n',
        b'{"error": "because"}',
        b'{"detail": "because"}',
    ],
)
async def test_an_error_is_told_in_any_shape(body: bytes) -> None:
    assert "because" in str(await play_error(body))


async def test_a_web_page_is_no_answer() -> None:
    error = await play_error(b"<!DOCTYPE html><html>Sign in</html>")
    assert isinstance(error, ModelUnavailable)
    assert "web page" in str(error)


# Letting go


PLACES = {
    "in_the_headers": Answer(before=[HANG]),
    "before_the_first_byte": Answer([HANG]),
    "in_the_thinking": Answer([sse(start(), *thought(0, "Hm", "s")[:3]), HANG]),
    "in_the_text": Answer([sse(start(), *text(0, "a")), HANG]),
    "in_the_arguments": Answer([sse(start(), *call(0, "1", "a", '{"x')), HANG]),
    "between_pings": Answer([sse(start()), Drip(sse(PING), 0.01)]),
    "after_the_reason": Answer([sse(start(), end("end_turn")[0]), HANG]),
}
AFTER: dict[str, type[ReplyPart]] = {  # a piece that shows that the place was reached
    "before_the_first_byte": ReplyOpened,
    "in_the_thinking": ReasoningDelta,
    "in_the_text": TextDelta,
    "in_the_arguments": ToolCallDelta,
    "between_pings": KeepAlive,
    "after_the_reason": UsageReported,
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_cancel_closes_the_connection(place: str) -> None:
    async def read_on(there: trio.Event) -> None:
        async with model.open_reply(HELLO) as parts:
            async for part in parts:
                if isinstance(part, AFTER[place]):
                    there.set()

    with trio.fail_after(10):
        async with open_loopback(PLACES[place]) as server, claude(server) as model:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    there = trio.Event()
                    nursery.start_soon(read_on, there)
                    await server.wait_for_requests(1)
                    if place in AFTER:
                        await there.wait()
                    stopped_at = trio.current_time()
                    scope.cancel()
            await closed_soon(server, stopped_at)


@pytest.mark.parametrize("place", AFTER)
async def test_leaving_the_block_closes_the_connection(place: str) -> None:
    with trio.fail_after(10):
        async with open_loopback(PLACES[place]) as server, claude(server) as model:
            async with model.open_reply(HELLO) as parts:
                async for part in parts:
                    if isinstance(part, AFTER[place]):
                        break
                stopped_at = trio.current_time()
            await closed_soon(server, stopped_at)


async def closed_soon(server: Loopback, since: float) -> None:
    """The server saw every client close, soon after the stop."""
    with trio.fail_after(1):
        for connection in server.connections:
            await connection.closed.wait()
            assert connection.closed_at is not None
            assert connection.closed_at - since < SOON


async def test_ten_turns_take_one_connection() -> None:
    answer = Answer([OK, 0.02])  # the body ends 20 ms after message_stop
    async with open_loopback(answer) as server, claude(server) as model:
        for _ in range(10):
            assert (await ask_for_reply(model)).text == "ok"
        assert len(server.connections) == 1


async def test_an_error_in_the_stream_closes_the_connection() -> None:
    async with open_loopback(Answer([sse(problem("x")), HANG])) as server:
        async with claude(server) as model:
            with trio.fail_after(5):
                await ask_for_error(model)
                await server.connections[0].closed.wait()


# In a run


@asynccontextmanager
async def served(*answers: Answer) -> AsyncIterator[tuple[Loopback, AnthropicMessages]]:
    async with open_loopback(*answers) as server:
        yield server, claude(server)


def replay(name: str, *more: Any) -> Answer:
    return Answer([(DATA / f"{name}.sse").read_bytes(), *more])


async def test_pings_for_ever_hold_no_run_open() -> None:
    # B12, B20: they are signs of life, and no words.
    pings = Drip(sse(PING), 0.05)
    for limits, scope in (
        (Limits(seconds=0.3), "run"),
        (Limits(reply_seconds=0.3, silence_seconds=0.2), "reply"),
        (Limits(first_token_seconds=0.3, silence_seconds=0.2), "first_token"),
    ):
        async with served(replay("anth_pings_forever", pings)) as (server, model):
            began = trio.current_time()
            agent = Agent(model, limits=limits, retry=retries(0))
            outcome = await agent.run("go")
            ended = trio.current_time()
            assert outcome.stop is not None
            assert outcome.stop.scope == scope
            assert 0.3 <= ended - began < 0.55
            assert outcome.billed == "unknown"
            assert outcome.usage.input_tokens == 10  # known from the start
            await closed_soon(server, ended)


async def test_a_long_thought_with_pings_is_no_silence() -> None:
    # B12
    events = (DATA / "anth_long_think_ok.sse").read_bytes().split(b"\n\n")[:-1]
    steps = [step for event in events for step in (event + b"\n\n", 0.06)]
    async with served(Answer(steps)) as (_, model):
        outcome = await Agent(model, limits=Limits(silence_seconds=0.1)).run("go")
    assert (outcome.status, outcome.output) == ("completed", "ok")


async def test_a_paused_turn_is_sent_back_unchanged_and_goes_on() -> None:
    # B11
    async with served(replay("anth_pause_turn"), Answer([OK])) as (server, model):
        outcome = await Agent(model).run("go")
        assert (outcome.status, outcome.turns) == ("completed", 2)
        assert server.requests[1].json()["messages"] == [
            {"role": "user", "content": said("go")},
            {"role": "assistant", "content": said("Looking")},
        ]


async def test_a_cut_call_never_runs() -> None:
    # B07
    ran: list[str] = []

    @tool(name="delete_tree")
    async def delete_tree(path: str) -> None:
        ran.append(path)

    answers = replay("anth_max_tokens_valid_json"), Answer([OK])
    async with served(*answers) as (server, model):
        outcome = await Agent(model, tools=[delete_tree]).run("go")
        assert (outcome.status, ran) == ("completed", [])
        assert outcome.tools[0].effect_status is EffectStatus.NOT_STARTED
        [result] = server.requests[1].json()["messages"][2]["content"]
        assert (result["tool_use_id"], result["is_error"]) == ("toolu_a", True)
        assert "cut by its length limit" in result["content"]


async def test_a_call_without_input_runs() -> None:
    # B45
    @tool(effect="read")
    async def now() -> str:
        await trio.lowlevel.checkpoint()
        return "noon"

    async with served(replay("anth_empty_input"), Answer([OK])) as (_, model):
        outcome = await Agent(model, tools=[now]).run("go")
        assert [t.ended for t in outcome.tools] == ["done"]


async def test_a_refusal_is_an_end_that_says_so() -> None:
    # B11
    async with served(replay("anth_refusal")) as (server, model):
        outcome = await Agent(model).run("go")
        assert outcome.status != "completed"
        assert outcome.stop is not None
        assert "refusal" in f"{outcome.stop} {outcome.stop.detail}"
        assert len(server.requests) == 1


async def test_an_answer_may_be_empty() -> None:
    async with served(replay("anth_empty_end_turn")) as (_, model):
        outcome = await Agent(model).run("go")
        assert (outcome.status, outcome.output) == ("completed", "")


async def test_an_error_keeps_the_text_and_the_bill_so_far() -> None:
    # B10
    async with served(replay("anth_error_after_text"), Answer([OK])) as (server, model):
        outcome = await Agent(model).run("go")
        assert (outcome.status, outcome.text) == ("failed", "First, the invoice is")
        assert outcome.usage.input_tokens == 10
        assert outcome.billed == "unknown"
        assert len(server.requests) == 1


async def test_an_error_before_any_content_may_be_asked_again() -> None:
    answers = replay("anth_error_before_content"), Answer([OK])
    async with served(*answers) as (server, model):
        outcome = await Agent(model).run("go")
        assert (outcome.status, outcome.output) == ("completed", "ok")
        assert len(server.requests) == 2
