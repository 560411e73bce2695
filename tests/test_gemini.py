"""What the Gemini adapter sends, what it reads, and how it lets go."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.asking import HELLO, Asked, ask, ask_for_error, ask_for_reply
from tests.loopback import CUT, HANG, Answer, Drip, Loopback, open_loopback
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
from trioagent.models import find_model, gemini as module
from trioagent.models._gemini_stream import GeminiStream
from trioagent.models._problems import Reporter
from trioagent.models._sse import Event
from trioagent.models.gemini import Gemini

DATA = Path(__file__).parent / "data"
KEY = "AIza-test-DO-NOT-LOG-0123456789"
SOON = 0.1  # seconds until the server must have seen a close

Part = dict[str, Any]


def sse(*chunks: Any) -> bytes:
    texts = (c if isinstance(c, str) else json.dumps(c) for c in chunks)
    return "".join(f"data: {text}\r\n\r\n" for text in texts).encode()


def chunk(*parts: Part, finish: str | None = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0}
    if parts:
        candidate["content"] = {"role": "model", "parts": list(parts)}
    if finish:
        candidate["finishReason"] = finish
    names = {"modelVersion": "fake-1", "responseId": "resp-1"}
    return {"candidates": [candidate], **names, **more}


def text(said: str, **more: Any) -> Part:
    return {"text": said, **more}


def call(name: str, args: Any = None, id: str = "", **more: Any) -> Part:
    function = {"name": name} | ({"id": id} if id else {})
    return {"functionCall": function | {"args": args or {}}, **more}


def piece(*partial: dict[str, Any], go_on: bool = True, **more: Any) -> Part:
    function: dict[str, Any] = {"willContinue": True} if go_on else {}
    if partial:
        function["partialArgs"] = list(partial)
    return {"functionCall": function | more}


OK = sse(chunk(text("ok"), finish="STOP"))


def model_at(server: Loopback, **options: Any) -> Gemini:
    return Gemini("fake", base_url=f"{server.url}/v1beta", **options)


async def play(*steps: Any, **options: Any) -> Asked:
    """Ask a server that plays these steps."""
    with trio.fail_after(10):
        async with open_loopback(Answer(steps, **options)) as server:
            return await ask(model_at(server))


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
) -> dict[str, Any]:
    """The body that these messages and options become."""
    async with open_loopback(Answer([OK])) as server:
        asked = ModelRequest(messages=messages or [UserMessage("hello")], **request)
        await ask_for_reply(model_at(server, **(options or {})), asked)
        body: dict[str, Any] = server.requests[0].json()
        return body


async def replay(reply: Reply, *rest: Message, at: str = "") -> list[dict[str, Any]]:
    """The contents of a request that has this reply in its history."""
    async with open_loopback(Answer([OK])) as server:
        model = model_at(server)
        carry = {**reply.carry, "host": at or model._endpoint.host}
        reply = msgspec.structs.replace(reply, carry=carry)
        messages = [UserMessage("hello"), reply, *rest]
        await ask_for_reply(model, ModelRequest(messages=messages))
        contents: list[dict[str, Any]] = server.requests[0].json()["contents"]
        return contents


# What is sent


def test_it_is_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    model: Model = find_model("gemini:gemini-3.5-flash")
    assert isinstance(model, Gemini)
    assert model.name == "gemini:gemini-3.5-flash"


async def test_nothing_is_sent_that_was_not_asked_for() -> None:
    assert await sent() == {
        "contents": [{"role": "user", "parts": [{"text": "hello"}]}]
    }


async def test_the_request_says_what_it_holds() -> None:
    look = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    body = await sent(
        instructions="be kind",
        tools=[look],
        output=OutputSpec(name="A", schema=schema),
        max_output_tokens=9,
    )
    assert body == {
        "systemInstruction": {"parts": [{"text": "be kind"}]},
        "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "look",
                        "description": "Looks.",
                        "parametersJsonSchema": {"type": "object"},
                    }
                ]
            }
        ],
        "generationConfig": {
            "responseMimeType": "application/json",
            "responseJsonSchema": schema,
            "maxOutputTokens": 9,
        },
    }


async def test_what_the_caller_adds_goes_beside_ours() -> None:
    look = ToolSpec(name="look", description="", parameters={"type": "object"})
    options = {
        "extra_body": {
            "generationConfig": {"temperature": 0, "maxOutputTokens": 3},
            "tools": [{"codeExecution": {}}],
            "serviceTier": "flex",
        }
    }
    body = await sent(tools=[look], max_output_tokens=9, options=options)
    assert body["generationConfig"] == {"temperature": 0, "maxOutputTokens": 3}
    assert [list(tool) for tool in body["tools"]] == [
        ["functionDeclarations"],
        ["codeExecution"],
    ]
    assert body["serviceTier"] == "flex"
    assert (await sent(options=options))["generationConfig"]["temperature"] == 0


async def test_address_and_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", f"{KEY}-2")
    async with open_loopback(Answer([OK])) as server:
        monkeypatch.setenv("GEMINI_BASE_URL", f"{server.url}/v9/")
        await ask_for_reply(Gemini("fake 1", headers={"x-title": "mine"}))
        monkeypatch.setenv("GEMINI_API_KEY", KEY)
        await ask_for_reply(Gemini("tunedModels/mine"))
        await ask_for_reply(Gemini("a", base_url=f"{server.url}/v9?x=1", api_key=""))
    second, first, none = (server.requests[i] for i in (0, 1, 2))
    assert second.path == "/v9/models/fake%201:streamGenerateContent?alt=sse"
    assert first.path == "/v9/tunedModels/mine:streamGenerateContent?alt=sse"
    assert none.path == "/v9/models/a:streamGenerateContent?x=1&alt=sse"
    assert second.headers["x-goog-api-key"] == f"{KEY}-2"
    assert second.headers["x-title"] == "mine"
    assert first.headers["x-goog-api-key"] == KEY
    assert "x-goog-api-key" not in none.headers
    assert not any("authorization" in r.headers for r in server.requests)


async def test_all_results_of_a_turn_go_in_one_content_in_call_order() -> None:
    calls = ToolCall("look", '{"q":1}', "a"), ToolCall("find", "{}", "b")
    body = await sent(
        UserMessage("hello"),
        Reply(text="I will.", tool_calls=calls, provider="elsewhere"),
        ToolResult("find", "boom", "b", failed=True),
        ToolResult("look", "seen", "a"),
        UserMessage("and?"),
    )
    look = {"id": "a", "name": "look", "args": {"q": 1}}
    find = {"id": "b", "name": "find", "args": {}}
    seen = {"id": "a", "name": "look", "response": {"result": "seen"}}
    boom = {"id": "b", "name": "find", "response": {"error": "boom"}}
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "hello"}]},
        {
            "role": "model",
            "parts": [
                {"text": "I will."},
                {"functionCall": look},
                {"functionCall": find},
            ],
        },
        {
            "role": "user",
            "parts": [{"functionResponse": seen}, {"functionResponse": boom}],
        },
        {"role": "user", "parts": [{"text": "and?"}]},
    ]


async def test_calls_without_an_id_get_one_that_stays() -> None:
    history: list[Message] = [
        Reply(tool_calls=(ToolCall("a"), ToolCall("b")), finish_reason="tool_calls"),
        ToolResult("b", "2"),
        ToolResult("a", "1"),
        Reply(tool_calls=(ToolCall("a"),), finish_reason="tool_calls"),
        ToolResult("a", "3"),
    ]
    body = await sent(UserMessage("hello"), *history)
    assert await sent(UserMessage("hello"), *history) == body
    asked = [p["functionCall"] for c in body["contents"][1::2] for p in c["parts"]]
    told = [p["functionResponse"] for c in body["contents"][2::2] for p in c["parts"]]
    assert len({a["id"] for a in asked}) == 3
    assert [(a["id"], a["name"]) for a in asked] == [(t["id"], t["name"]) for t in told]
    assert [t["response"]["result"] for t in told] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"n":123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        ('{"q":"cut', {"INVALID_JSON": '{"q":"cut'}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ("", {}),
    ],
)
async def test_arguments_go_back_as_an_object(arguments: str, expected: Any) -> None:
    body = await sent(
        UserMessage("hello"), Reply(tool_calls=(ToolCall("a", arguments, "1"),))
    )
    assert body["contents"][1]["parts"][0]["functionCall"]["args"] == expected


async def test_a_turn_that_holds_nothing_is_not_sent() -> None:
    blocked = Reply(finish_reason="content_filter")
    refused = Reply(refusal="I cannot.", finish_reason="refusal")
    body = await sent(UserMessage("a"), blocked, UserMessage("b"), refused)
    assert [c["role"] for c in body["contents"]] == ["user", "user", "model"]
    assert body["contents"][2]["parts"] == [{"text": "I cannot."}]


SIGNED = sse(
    chunk(text("Hm. ", thought=True)),
    chunk(text("So.", thought=True)),
    chunk(text("I ")),
    chunk(text("look"), text("", thoughtSignature="c2ln+/=1")),
    chunk(text("ed.")),
    chunk(call("look", {"b": 1, "a": 2}, thoughtSignature="c2ln+/=2"), call("find")),
    chunk({"executableCode": {"code": "1", "language": "PYTHON"}}),
    chunk(text("", thoughtSignature="c2ln+/=3"), finish="STOP"),
)
SIGNED_PARTS: list[Part] = [
    {"thought": True, "text": "Hm. So."},
    {"text": "I look"},
    {"text": "", "thoughtSignature": "c2ln+/=1"},
    {"text": "ed."},
    {
        "functionCall": {"id": "call_1_0", "name": "look", "args": {"b": 1, "a": 2}},
        "thoughtSignature": "c2ln+/=2",
    },
    {"functionCall": {"id": "call_1_1", "name": "find", "args": {}}},
    {"executableCode": {"code": "1", "language": "PYTHON"}},
    {"text": "", "thoughtSignature": "c2ln+/=3"},
]


async def test_a_signature_goes_back_on_the_part_that_carried_it() -> None:
    reply = await play_reply(SIGNED)
    contents = await replay(reply, ToolResult("look", "1"), ToolResult("find", "2"))
    assert contents[1] == {"role": "model", "parts": SIGNED_PARTS}
    assert [p["functionResponse"]["id"] for p in contents[2]["parts"]] == [
        "call_1_0",
        "call_1_1",
    ]


async def test_a_signature_goes_to_no_other_server() -> None:
    reply = await play_reply(SIGNED)
    contents = await replay(reply, at="other.example")
    assert contents[1]["parts"] == [
        {"text": "I looked."},
        {"functionCall": SIGNED_PARTS[4]["functionCall"]},
        {"functionCall": SIGNED_PARTS[5]["functionCall"]},
    ]


async def test_what_another_api_wrote_is_not_sent() -> None:
    carry = {"reasoning_content": "hm", "parts": [{"text": "x"}]}
    reply = Reply(text="Hi.", reasoning="hm", provider="openai-chat", carry=carry)
    assert (await replay(reply))[1] == {"role": "model", "parts": [{"text": "Hi."}]}


async def test_a_turn_of_plain_parts_carries_nothing() -> None:
    reply = await play_reply(sse(chunk(text("a"), call("b"), finish="STOP")))
    assert reply.carry == {}


async def test_the_carry_can_be_kept() -> None:
    big = {"n": 10**30}
    reply = await play_reply(
        sse(chunk(call("a", big, thoughtSignature="x"), finish="STOP"))
    )
    assert "args" not in str(reply.carry)  # the call has them
    contents = await replay(reply)
    assert contents[1]["parts"][0]["functionCall"]["args"] == big


# Keys


def test_a_missing_key_is_told_with_the_way_to_give_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GEMINI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"api_key=.*GEMINI_API_KEY"):
        Gemini("m")
    Gemini("m", api_key="")
    Gemini("m", base_url="http://localhost:8080/v1")


def test_a_key_that_is_none_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        Gemini("m", api_key=f"{KEY}\n")
    assert KEY not in everything_said(caught.value)
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", f"{KEY}\n")
    with pytest.raises(ValueError, match="GOOGLE_API_KEY") as caught:
        Gemini("m", base_url="https://api.example.com")
    assert KEY not in everything_said(caught.value)


def everything_said(error: BaseException) -> str:
    """All that a log or a traceback could show of an error, and of what caused it."""
    texts = [repr(vars(error))]
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.format_exception_only(cause)
        texts += [str(cause), repr(cause), *frames]
        cause = cause.__cause__ or cause.__context__
    return "\n".join(texts)


ECHO = json.dumps(
    {
        "error": {
            "code": 403,
            "message": f"key {KEY} may not ask: tell me the launch code",
            "status": KEY,
            "details": [{"reason": f"BAD {KEY}"}],
        }
    }
).encode()


@pytest.mark.parametrize(
    "answer",
    [
        Answer([ECHO], status=403),
        Answer([b"[" + ECHO + b"]"], status=400),
        Answer([KEY.encode()], status=403),
        Answer([ECHO]),
        Answer([b"data: " + ECHO + b"\n\n"]),
        Answer([sse(chunk(text("a"))) + ECHO + b"\n\n"]),
        Answer([b"data: " + KEY.encode() + b"\n\n"]),
    ],
    ids=str,
)
async def test_neither_key_nor_prompt_is_ever_shown(
    answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_loopback(answer) as server:
        model = model_at(server, api_key=KEY)
        prompt = ModelRequest(messages=[UserMessage("tell me the launch code")])
        asked = await ask(model, prompt)
    assert asked.error is not None
    said = everything_said(asked.error) + repr(asked.parts) + repr(model)
    for secret in (KEY, "launch code"):
        assert secret not in said
    assert KEY not in server.requests[0].path
    logged = [r for r in caplog.records if not r.name.startswith("httpcore")]
    assert KEY not in repr([r.getMessage() for r in logged])


# What is read


CASES: list[tuple[str, dict[str, Any]]] = [
    (
        "gem_usage_cumulative",
        {"text": "abc", "usage": Usage(input_tokens=10, output_tokens=3)},
    ),
    (
        "gem_stop_with_call",
        {
            "tool_calls": (ToolCall("now"),),
            "finish_reason": "tool_calls",
            "raw_finish_reason": "STOP",
        },
    ),
    (
        "gem_malformed_call",
        {"finish_reason": "error", "raw_finish_reason": "MALFORMED_FUNCTION_CALL"},
    ),
    (
        "gem_prompt_blocked",
        {
            "finish_reason": "content_filter",
            "raw_finish_reason": "blockReason:SAFETY",
            "usage": Usage(input_tokens=9),
        },
    ),
]


@pytest.mark.parametrize("size", [1, 10_000], ids=["byte_by_byte", "whole"])
@pytest.mark.parametrize(("file", "expected"), CASES, ids=[c[0] for c in CASES])
async def test_a_case_gives_its_reply(
    file: str, expected: dict[str, Any], size: int
) -> None:
    body = (DATA / f"{file}.sse").read_bytes()
    reply = await play_reply(*(body[i : i + size] for i in range(0, len(body), size)))
    assert {name: getattr(reply, name) for name in expected} == expected


async def test_a_stream_without_an_end_is_an_error_with_what_is_known() -> None:
    asked = await play((DATA / "gem_eof_no_finish.sse").read_bytes())
    error = asked.error
    assert isinstance(error, ModelUnavailable)
    assert (asked.text, error.kind) == ("half", "incomplete_stream")
    assert error.usage == Usage(input_tokens=10, output_tokens=1)
    assert error.billed == "unknown"


async def test_the_pieces_come_in_order_and_the_reply_is_last() -> None:
    counts = {"promptTokenCount": 3, "candidatesTokenCount": None}
    last = {"candidatesTokenCount": 2, "thoughtsTokenCount": 5}
    parts = (
        await play(
            b": hello\n\n",
            sse(chunk(text("Hm.", thought=True))),
            sse(chunk(text("He"))),
            sse(chunk(text("llo"), text(""), usageMetadata=counts)),
            sse(chunk(call("look", {"q": 1}, "a"), finish="STOP", usageMetadata=last)),
        )
    ).parts
    usage = Usage(input_tokens=3, output_tokens=7, reasoning_tokens=5)
    assert parts == [
        ReplyOpened(),
        KeepAlive(),  # the comment
        ReplyOpened("", "resp-1"),
        ReasoningDelta("Hm."),
        TextDelta("He"),
        TextDelta("llo"),
        UsageReported(Usage(input_tokens=3)),
        ToolCallDelta(0, "look", '{"q": 1}'),
        UsageReported(usage),
        Reply(
            text="Hello",
            tool_calls=(ToolCall("look", '{"q": 1}', "a"),),
            finish_reason="tool_calls",
            raw_finish_reason="STOP",
            reasoning="Hm.",
            usage=usage,
            model="fake-1",
            response_id="resp-1",
            provider="gemini",
        ),
    ]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("BLOCKLIST", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("SPII", "content_filter"),
        ("LANGUAGE", "content_filter"),
        ("IMAGE_SAFETY", "content_filter"),
        ("MODEL_ARMOR", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("UNEXPECTED_TOOL_CALL", "error"),
        ("TOO_MANY_TOOL_CALLS", "error"),
        ("MISSING_THOUGHT_SIGNATURE", "error"),
        ("MALFORMED_RESPONSE", "error"),
        ("OTHER", "other"),
        ("SOMETHING_NEW", "other"),
    ],
)
async def test_finish_reasons(raw: str, expected: str) -> None:
    for parts in ([text("a")], [text("a"), call("b")], []):
        reply = await play_reply(sse(chunk(*parts, finish=raw)))
        assert (reply.finish_reason, reply.raw_finish_reason) == (expected, raw)


async def test_a_stop_with_a_call_asks_for_it() -> None:
    reply = await play_reply(sse(chunk(text("a"), finish="STOP")))
    assert (reply.finish_reason, reply.is_final) == ("stop", True)
    reply = await play_reply(sse(chunk(text("a"), call("b"), finish="STOP")))
    assert reply.finish_reason == "tool_calls"


async def test_text_may_follow_a_finish_reason() -> None:
    reply = await play_reply(
        sse(chunk(text("a"), finish="MAX_TOKENS"), chunk(text("b"))),
        sse(chunk(text("c"), finish="STOP")),
    )
    assert (reply.text, reply.finish_reason) == ("abc", "stop")


async def test_only_the_first_candidate_is_read() -> None:
    second = {"index": 1, "content": {"parts": [{"text": "no"}]}}
    first = chunk(text("yes"), finish="STOP")
    reply = await play_reply(
        sse(first | {"candidates": first["candidates"] + [second]})
    )
    assert reply.text == "yes"


async def test_parts_of_the_servers_own_tools_are_carried() -> None:
    own: list[Part] = [
        {"executableCode": {"code": "print(1)", "language": "PYTHON"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
        {"toolCall": {"toolType": "GOOGLE_SEARCH"}, "thoughtSignature": "x"},
    ]
    reply = await play_reply(sse(chunk(*own, {}, text("one"), finish="STOP")))
    assert reply.text == "one"
    assert (await replay(reply))[1]["parts"] == [*own, {"text": "one"}]


@pytest.mark.parametrize("body", ["object", "array"])
async def test_a_whole_json_answer_is_a_reply(body: str) -> None:
    chunks = [chunk(text("He")), chunk(text("llo"), finish="STOP")]
    whole: Any = chunk(text("Hello"), finish="STOP") if body == "object" else chunks
    asked = await play(b" \r\n" + json.dumps(whole, indent=1).encode())
    assert asked.reply is not None
    assert asked.reply.text == asked.text == "Hello"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        sse("[DONE]"),
        sse({}),
        sse(chunk(text("a"))),
        sse(chunk(text("a"))) + b'data: {"candidates": [{"finishReason": "ST',
        json.dumps(chunk(text("a"))).encode(),
    ],
)
async def test_an_answer_without_an_end_is_incomplete(body: bytes) -> None:
    error = await play_error(body)
    assert isinstance(error, ModelUnavailable)
    assert error.kind == "incomplete_stream"


async def test_a_connection_that_breaks_is_an_error_whatever_reason_was_given() -> None:
    counts = {"promptTokenCount": 3}
    begin = sse(chunk(text("a"), finish="STOP", usageMetadata=counts))
    asked = await play(begin, CUT)
    assert asked.text == "a"
    assert isinstance(asked.error, ModelUnavailable)
    assert asked.error.response_id == "resp-1"
    assert asked.error.usage == Usage(input_tokens=3)


@pytest.mark.parametrize(
    "data",
    [
        "no json",
        '{"candidates": 1}',
        '{"candidates": [{"content": {"parts": [1]}}]}',
        '{"candidates": [{"content": {"parts": [{"text": 1}]}}]}',
        '{"candidates": [{"content": {"parts": [{"functionCall": 1}]}}]}',
    ],
)
async def test_a_chunk_that_is_none_is_an_error_and_not_skipped(data: str) -> None:
    asked = await play(sse(chunk(text("a")), data, chunk(finish="STOP")))
    assert isinstance(asked.error, ModelUnavailable)
    assert (asked.text, asked.error.kind) == ("a", "bad_chunk")


# Calls that come in pieces


def arg(path: str, more: bool = False, **value: Any) -> dict[str, Any]:
    return {"jsonPath": path, **value} | ({"willContinue": True} if more else {})


async def test_arguments_that_come_in_pieces_are_put_together() -> None:
    asked = await play(
        sse(
            chunk(piece(name="look") | {"thoughtSignature": "x"}),
            chunk(piece(arg("$.q", True, stringValue="San "))),
            chunk(piece(arg("$.q", stringValue="José"), arg("$.n", numberValue=1.5))),
            chunk(
                piece(
                    arg("$.list[0].ok", boolValue=True),
                    arg("$.list[1]['a b']", nullValue=None),
                    arg('$["x.y"]', stringValue=""),
                    arg("$.nothing"),
                )
            ),
            chunk(piece(go_on=False)),
            chunk(call("find", {"a": 1}), finish="STOP"),
        )
    )
    reply = asked.reply
    assert reply is not None
    look, find = reply.tool_calls
    assert json.loads(look.arguments) == {
        "q": "San José",
        "n": 1.5,
        "list": [{"ok": True}, {"a b": None}],
        "x.y": "",
    }
    assert (look.name, find.name, find.arguments) == ("look", "find", '{"a": 1}')
    assert [p for p in asked.parts if isinstance(p, ToolCallDelta)] == [
        ToolCallDelta(0, "look"),
        ToolCallDelta(0, "", look.arguments),
        ToolCallDelta(1, "find", find.arguments),
    ]
    [first, second] = (await replay(reply))[1]["parts"]
    assert first["thoughtSignature"] == "x"
    assert first["functionCall"]["args"] == json.loads(look.arguments)
    assert second["functionCall"]["name"] == "find"


async def test_a_whole_call_may_come_while_another_is_open() -> None:
    reply = await play_reply(
        sse(
            chunk(piece(name="slow", id="1")),
            chunk(call("fast", {"a": 1}, "2")),
            chunk(piece(arg("$.q", stringValue="x"), id="1", name="slow")),
            chunk(piece(go_on=False), finish="STOP"),
        )
    )
    assert [(c.name, c.id, c.arguments) for c in reply.tool_calls] == [
        ("slow", "1", '{"q":"x"}'),
        ("fast", "2", '{"a": 1}'),
    ]


async def test_pieces_are_added_to_what_came_whole() -> None:
    begin = piece(arg("$.b", stringValue="x"), name="look", args={"a": 10**30})
    reply = await play_reply(sse(chunk(begin, piece(go_on=False), finish="STOP")))
    assert json.loads(reply.tool_calls[0].arguments) == {"a": 10**30, "b": "x"}
    later = piece(name="look"), piece(go_on=False, args={"a": 1})
    reply = await play_reply(sse(chunk(*later, finish="STOP")))
    assert json.loads(reply.tool_calls[0].arguments) == {"a": 1}
    begin = piece(arg("$.b", stringValue="x"), name="look", args=None)
    reply = await play_reply(sse(chunk(begin, finish="STOP")))
    assert json.loads(reply.tool_calls[0].arguments) == {"b": "x"}


async def test_the_end_of_the_reply_ends_an_open_call() -> None:
    reply = await play_reply(
        sse(chunk(piece(arg("$.q", stringValue="x"), name="look"), finish="STOP"))
    )
    assert reply.tool_calls == (ToolCall("look", '{"q":"x"}'),)


async def test_an_open_call_of_a_cut_reply_is_never_whole() -> None:
    begin = piece(arg("$.path", True, stringValue="/srv"), name="delete")
    reply = await play_reply(sse(chunk(begin, finish="MAX_TOKENS")))
    [cut] = reply.tool_calls
    assert cut.arguments == '{"path":"/srv"'
    assert reply.finish_reason == "length"


@pytest.mark.parametrize(
    "part",
    [
        piece(arg("$.q", stringValue="x")),  # of no call
        {"functionCall": {"args": {}}},
        *(
            piece(arg(path, stringValue="x"), name="look")
            for path in ("", "q", "$", "$.", "$.a[1]", "$.a[0", "$[0]", "$" + ".a" * 99)
        ),
        piece(arg("$.a", numberValue=1), arg("$.a.b", numberValue=1), name="look"),
    ],
)
async def test_a_piece_that_cannot_be_placed_is_an_error(part: Part) -> None:
    error = await play_error(sse(chunk(part, finish="STOP")))
    assert isinstance(error, ModelUnavailable)
    assert error.kind == "protocol_error"


@pytest.mark.machine
@pytest.mark.parametrize("kind", ["text", "arguments"])
def test_a_hundred_thousand_pieces_take_linear_time(kind: str) -> None:
    def seconds(count: int) -> float:
        stream = GeminiStream(Reporter("m"))
        stream.feed(Event(json.dumps(chunk(piece(name="write"))).encode()))
        letter = piece(arg("$.text", True, stringValue="x"))
        part = text("x", thoughtSignature="") if kind == "text" else letter
        event = Event(json.dumps(chunk(part)).encode())
        start = time.process_time()
        for _ in range(count):
            stream.feed(event)
        stream.feed(Event(json.dumps(chunk(finish="STOP")).encode()))
        reply = stream.finish()
        spent = time.process_time() - start
        written = reply.text or json.loads(reply.tool_calls[0].arguments)["text"]
        assert written == "x" * count
        return spent

    part, whole = (min(seconds(n) for _ in range(3)) for n in (25_000, 100_000))
    slower = 1 if sys.gettrace() is None else 4  # by a coverage tool
    assert whole < 3.0 * slower
    assert whole / part < 9  # linear work gives 4, quadratic 16


# Errors


def problem(code: int, status: str, *details: dict[str, Any]) -> dict[str, Any]:
    said = {"code": code, "message": "because", "status": status}
    return {"error": said | ({"details": list(details)} if details else {})}


RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "48.9s"}
BAD_KEY = {"reason": "API_KEY_INVALID", "domain": "googleapis.com"}
STATUSES: list[tuple[int, dict[str, Any], type[ModelError], str]] = [
    (400, problem(400, "INVALID_ARGUMENT"), ModelRefused, "INVALID_ARGUMENT"),
    (400, problem(400, "INVALID_ARGUMENT", BAD_KEY), ModelRefused, "API_KEY_INVALID"),
    (400, problem(400, "FAILED_PRECONDITION"), ModelRefused, "FAILED_PRECONDITION"),
    (401, problem(401, "UNAUTHENTICATED"), ModelRefused, "UNAUTHENTICATED"),
    (403, problem(403, "PERMISSION_DENIED"), ModelRefused, "PERMISSION_DENIED"),
    (404, problem(404, "NOT_FOUND"), ModelRefused, "NOT_FOUND"),
    (429, problem(429, "RESOURCE_EXHAUSTED"), ModelUnavailable, "RESOURCE_EXHAUSTED"),
    (499, problem(499, "CANCELLED"), ModelUnavailable, "CANCELLED"),
    (500, problem(500, "INTERNAL"), ModelUnavailable, "INTERNAL"),
    (503, problem(503, "UNAVAILABLE"), ModelUnavailable, "UNAVAILABLE"),
    (504, problem(504, "DEADLINE_EXCEEDED"), ModelUnavailable, "DEADLINE_EXCEEDED"),
]


@pytest.mark.parametrize("shape", ["object", "array"])
@pytest.mark.parametrize(("status", "body", "expected", "kind"), STATUSES)
async def test_the_status_says_whether_to_ask_again(
    status: int, body: dict[str, Any], expected: type[ModelError], kind: str, shape: str
) -> None:
    data = json.dumps(body if shape == "object" else [body], indent=2).encode()
    error = await play_error(data, status=status)
    assert type(error) is expected
    assert error.may_retry is (expected is ModelUnavailable)
    assert (error.status, error.kind) == (status, kind)
    assert "because" in str(error)
    assert "gemini:fake" in str(error)


@pytest.mark.parametrize(("status", "body", "expected", "kind"), STATUSES)
async def test_an_error_in_a_200_is_judged_like_a_status(
    status: int, body: dict[str, Any], expected: type[ModelError], kind: str
) -> None:
    plain = json.dumps(body, indent=2).encode()
    for answer in (
        [plain],
        [b"[", plain, b"]"],
        [sse(chunk(text("Hel")), body)],
        [sse(chunk(text("Hel"), finish="STOP")) + plain + b"\n\n"],
        [sse(chunk(text("Hel"))) + b"[" + plain + b"]"],
        [b"event: error\r\n" + sse(body)],
    ):
        error = await play_error(*answer)
        assert type(error) is expected
        assert (error.status, error.kind) == (
            status if 400 <= status < 600 else None,
            kind,
        )


async def test_text_before_an_error_is_shown() -> None:
    counts = {"promptTokenCount": 3}
    asked = await play(
        sse(chunk(text("Hel"), usageMetadata=counts), problem(503, "UNAVAILABLE"))
    )
    assert asked.text == "Hel"
    assert asked.error is not None
    assert asked.error.usage == Usage(input_tokens=3)
    assert asked.error.response_id == "resp-1"


@pytest.mark.parametrize(
    ("detail", "headers", "expected"),
    [
        (RETRY, {}, 48.9),
        (RETRY, {"retry-after": "7"}, 7.0),
        (RETRY | {"retryDelay": "0s"}, {}, 0.0),
        (RETRY | {"retryDelay": "soon"}, {}, None),
        (RETRY | {"retryDelay": 3}, {}, None),
        ({}, {}, None),
    ],
)
async def test_the_wait_that_the_server_asks_for(
    detail: dict[str, Any], headers: dict[str, str], expected: float | None
) -> None:
    body = problem(429, "RESOURCE_EXHAUSTED", detail)
    error = await play_error(json.dumps(body).encode(), status=429, headers=headers)
    assert error.retry_after == expected
    if not headers:
        assert (await play_error(sse(body))).retry_after == expected


async def test_a_web_page_is_no_answer() -> None:
    error = await play_error(b"<!DOCTYPE html><title>404</title>", status=404)
    assert isinstance(error, ModelRefused)
    assert "<title>" not in str(error)
    error = await play_error(b"<!DOCTYPE html><html>Sign in</html>")
    assert isinstance(error, ModelUnavailable)


# Letting go


PLACES: dict[str, tuple[Answer, type[ReplyPart]]] = {
    "before_the_first_byte": (Answer([HANG]), ReplyOpened),
    "in_the_text": (Answer([sse(chunk(text("a"))), HANG]), TextDelta),
    "in_the_arguments": (Answer([sse(chunk(piece(name="a"))), HANG]), ToolCallDelta),
    "in_a_flood": (Answer([sse(chunk(text("x"))) * 200] * 500 + [HANG]), TextDelta),
    "after_the_reason": (
        Answer([sse(chunk(text("a"), finish="STOP")), HANG]),
        TextDelta,
    ),
    "between_pings": (Answer([Drip(b": ping\n\n", 0.01)]), KeepAlive),
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_cancel_closes_the_connection(place: str) -> None:
    answer, kind = PLACES[place]
    with trio.fail_after(10):
        async with open_loopback(answer) as server, model_at(server) as model:
            there = trio.Event()

            async def read_on() -> None:
                async with model.open_reply(HELLO) as parts:
                    async for part in parts:
                        if isinstance(part, kind):
                            there.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_on)
                await there.wait()
                stopped_at = trio.current_time()
                nursery.cancel_scope.cancel()
            assert trio.current_time() - stopped_at < SOON
            [connection] = server.connections
            await connection.closed.wait()
            assert connection.closed_at is not None
            assert connection.closed_at - stopped_at < SOON


async def test_ten_turns_take_one_connection() -> None:
    async with open_loopback(Answer([OK])) as server, model_at(server) as model:
        for _ in range(10):
            assert (await ask_for_reply(model)).text == "ok"
    assert len(server.connections) == 1


async def test_what_follows_a_reason_is_awaited_for_as_long_as_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_TAIL_SECONDS", 0.3)
    more = [0.2, sse(chunk(text("b"), finish="STOP"))]
    first = sse(chunk(text("a"), finish="STOP"))
    with trio.fail_after(3):
        reply = await play_reply(first, *more, *more, *more, HANG)
    assert reply.text == "abbb"


async def test_an_error_in_the_stream_closes_the_connection() -> None:
    answer = Answer([sse(problem(503, "UNAVAILABLE")), HANG])
    async with open_loopback(answer) as server, model_at(server) as model:
        with trio.fail_after(5):
            await ask_for_error(model)
            await server.connections[0].closed.wait()
