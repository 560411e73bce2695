"""What the Chat Completions adapter sends, what it reads, and how it lets go."""

from __future__ import annotations

import gzip
import json
import logging
import random
import shutil
import ssl
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.asking import HELLO, Asked, ask, ask_for_error, ask_for_reply
from tests.loopback import CUT, HANG, Answer, Drip, Loopback, open_loopback
from trioagent._errors import ModelError, ModelRefused, ModelTimeout, ModelUnavailable
from trioagent._events import (
    KeepAlive,
    Message,
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
from trioagent.models import _http
from trioagent.models._body import Body
from trioagent.models._chat_stream import ChatStream
from trioagent.models._endpoint import split_url
from trioagent.models._problems import Reporter
from trioagent.models.openai_chat import OpenAIChat

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
KEY = "sk-test-DO-NOT-LOG-0123456789"
SOON = 0.1  # seconds until the server must have seen a close


Chunk = dict[str, Any] | str


def sse(*chunks: Chunk) -> bytes:
    texts = (c if isinstance(c, str) else json.dumps(c) for c in chunks)
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "cc-1", "model": "fake-1", "choices": [choice]}


def call(
    index: int | None = None,
    id: str | None = None,
    name: str | None = None,
    arguments: Any = None,
) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    entry = {"index": index, "id": id, "function": function}
    return chunk(tool_calls=[{k: v for k, v in entry.items() if v is not None}])


OK = sse(chunk(content="ok"), chunk("stop"), "[DONE]")


def chat(server: Loopback, **options: Any) -> OpenAIChat:
    return OpenAIChat("fake", base_url=f"{server.url}/v1", **options)


async def play(*steps: Any, **options: Any) -> Asked:
    """Ask a server that plays these steps."""
    with trio.fail_after(10):
        async with open_loopback(Answer(steps, **options)) as server:
            return await ask(chat(server))


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
        await ask_for_reply(chat(server, **(options or {})), asked)
        body: dict[str, Any] = server.requests[0].json()
        return body


def test_it_is_a_model() -> None:
    model: Model = OpenAIChat("gpt-5", api_key=KEY)
    assert model.name == "openai:gpt-5"
    assert OpenAIChat("x", api_key=KEY, provider="deepseek").name == "deepseek:x"


def test_importing_it_loads_no_http_library() -> None:
    code = (
        "import sys, trioagent.models.openai_chat\n"
        "assert not {'httpx', 'httpcore', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# What is sent


async def test_nothing_is_sent_that_was_not_asked_for() -> None:
    assert await sent() == {
        "model": "fake",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_the_options_go_into_the_body() -> None:
    body = await sent(
        instructions="Be brief.",
        max_output_tokens=64,
        options={
            "stream_usage": False,
            "max_tokens_field": "max_tokens",
            "extra_body": {"model": "other", "seed": 7},
        },
    )
    assert body == {
        "model": "other",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hello"},
        ],
        "stream": True,
        "max_tokens": 64,
        "seed": 7,
    }
    assert (await sent(max_output_tokens=1))["max_completion_tokens"] == 1


async def test_tools_are_told() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    spec = ToolSpec(name="look", description="Looks.", parameters=schema)
    function = {"name": "look", "description": "Looks.", "parameters": schema}
    body = await sent(tools=[spec])
    assert body["tools"] == [{"type": "function", "function": function}]


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (closed(a={"type": "string"}), True),
        (closed(a=closed(b={"type": "integer"})), True),
        (closed(required={"type": "string"}), True),
        (closed(a={"type": "array", "items": closed()}), True),
        (closed(a={"$ref": "#/$defs/B"}) | {"$defs": {"B": closed()}}, True),
        (closed(a={"type": "string"}) | {"required": []}, False),
        ({"type": "object", "properties": {}}, False),
        (closed(a={"type": "array", "items": {"type": "object"}}), False),
        (closed(a={"anyOf": [closed(), {"type": "object"}]}), False),
        (closed(a={"$ref": "#/$defs/B"}) | {"$defs": {"B": {"type": "object"}}}, False),
    ],
)
async def test_a_closed_schema_is_strict(schema: dict[str, Any], strict: bool) -> None:
    body = await sent(output=OutputSpec(name="the answer", schema=schema))
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "the_answer", "schema": schema, "strict": strict},
    }


async def test_a_history_is_sent_as_the_api_wants_it() -> None:
    body = await sent(
        UserMessage("look twice"),
        Reply(
            tool_calls=(
                ToolCall("look", '{"q":"a"}', "id_a", 1, 0),
                ToolCall("look", '{"q":"b"}', "id_b", 1, 1),
            )
        ),
        ToolResult("look", "A", "id_a"),
        ToolResult("look", "B", "id_b"),
        Reply(text="A and B"),
        UserMessage("why"),
        Reply(refusal="I would rather not."),
    )
    assert body["messages"] == [
        {"role": "user", "content": "look twice"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": id,
                    "type": "function",
                    "function": {"name": "look", "arguments": arguments},
                }
                for id, arguments in (("id_a", '{"q":"a"}'), ("id_b", '{"q":"b"}'))
            ],
        },
        {"role": "tool", "tool_call_id": "id_a", "content": "A"},
        {"role": "tool", "tool_call_id": "id_b", "content": "B"},
        {"role": "assistant", "content": "A and B"},
        {"role": "user", "content": "why"},
        {"role": "assistant", "content": "I would rather not."},
    ]


def ids_of(body: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The ids of all calls, and those of all results."""
    calls = [c["id"] for m in body["messages"] for c in m.get("tool_calls", ())]
    results = [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"]
    return calls, results


async def test_calls_without_an_id_get_one() -> None:
    calls, results = ids_of(
        await sent(
            Reply(tool_calls=(ToolCall("a", turn=3), ToolCall("b", turn=3))),
            ToolResult("a", "1"),
            ToolResult("b", "2"),
        )
    )
    assert calls == results == ["call_3_0", "call_3_1"]


async def test_ids_that_come_again_are_replaced() -> None:
    history: list[Message] = []
    for turn in (1, 2):
        twins = tuple(ToolCall("a", "{}", "0", turn, place) for place in (0, 1))
        history += [Reply(tool_calls=twins), *[ToolResult("a", "x", "0")] * 2]
    first = ids_of(await sent(*history[:3]))
    calls, results = ids_of(await sent(*history))
    assert calls == results == ["0", "call_1_1", "call_2_0", "call_2_1"]
    assert first == (calls[:2], results[:2])  # stable: a prompt cache still hits


async def test_results_find_their_calls_in_any_order() -> None:
    calls, results = ids_of(
        await sent(
            Reply(tool_calls=(ToolCall("a", id="x"), ToolCall("b"), ToolCall("c"))),
            ToolResult("c", "3"),
            ToolResult("b", "2"),
            ToolResult("a", "1", "x"),
        )
    )
    assert calls == ["x", "call_1_1", "call_1_2"]
    assert results == ["call_1_2", "call_1_1", "x"]


async def test_a_result_of_no_call_is_sent_as_it_is() -> None:
    calls, results = ids_of(await sent(UserMessage("x"), ToolResult("a", "1", "id_a")))
    assert (calls, results) == ([], ["id_a"])


async def test_a_made_up_id_is_never_one_that_is_taken() -> None:
    calls, _ = ids_of(
        await sent(
            Reply(tool_calls=(ToolCall("a", id="call_1_1"), ToolCall("b"))),
            ToolResult("a", "1", "call_1_1"),
            ToolResult("b", "2"),
        )
    )
    assert calls == ["call_1_1", "call_1_1_"]


async def test_reasoning_goes_back_to_the_server_it_came_from() -> None:
    steps: list[Chunk] = [
        chunk(reasoning_content="Hm"),
        chunk(reasoning_content="m."),
        call(0, "id_a", "look", "{}"),
        chunk("tool_calls"),
        "[DONE]",
    ]
    async with open_loopback(Answer([sse(*steps)])) as server:
        model = chat(server)
        reply = await ask_for_reply(model)
        assert reply.reasoning == "Hmm."
        history: list[Message] = [
            UserMessage("x"),
            reply,
            ToolResult("look", "1", "id_a"),
        ]
        await ask_for_reply(model, ModelRequest(messages=history))
        message = server.requests[1].json()["messages"][1]
        assert message["reasoning_content"] == "Hmm."
    async with open_loopback(Answer([OK])) as other:
        await ask_for_reply(chat(other), ModelRequest(messages=history))
        assert "reasoning_content" not in other.requests[0].json()["messages"][1]


async def test_reasoning_details_go_back_whole() -> None:
    def piece(**fields: Any) -> dict[str, Any]:
        return chunk(reasoning_details=[{"index": 0, **fields}])

    steps: list[Chunk] = [
        piece(type="reasoning.text", text="Let me", signature=None),
        piece(type="reasoning.text", text=" see", signature="s1g"),
        piece(type="reasoning.text", text=".", signature=None),
        piece(type="reasoning.encrypted", data="AAAA", id="r1"),
        chunk(reasoning_details=["what is this?"]),
        call(0, "id_a", "look", "{}"),
        chunk("tool_calls"),
        "[DONE]",
    ]
    details = [
        {
            "index": 0,
            "type": "reasoning.text",
            "text": "Let me see.",
            "signature": "s1g",
        },
        {"index": 0, "type": "reasoning.encrypted", "data": "AAAA", "id": "r1"},
    ]
    async with open_loopback(Answer([sse(*steps)])) as server:
        model = chat(server)
        reply = await ask_for_reply(model)
        assert reply.reasoning == "Let me see."
        assert reply.carry["reasoning_details"] == details
        history: list[Message] = [
            UserMessage("x"),
            reply,
            ToolResult("look", "1", "id_a"),
        ]
        await ask_for_reply(model, ModelRequest(messages=history))
        assert server.requests[1].json()["messages"][1]["reasoning_details"] == details


async def test_what_another_api_wrote_is_not_sent() -> None:
    foreign = Reply(text="x", provider="anthropic", carry={"reasoning_content": "y"})
    body = await sent(UserMessage("x"), foreign, UserMessage("z"))
    assert body["messages"][1] == {"role": "assistant", "content": "x"}


async def test_headers_and_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    async with open_loopback(Answer([OK])) as server:
        url = f"{server.url}/openai/?api-version=3"
        await ask_for_reply(
            OpenAIChat("m", base_url=url, api_key=KEY, headers={"X-Title": "Test"})
        )
        request = server.requests[0]
    assert (request.method, request.path) == (
        "POST",
        "/openai/chat/completions?api-version=3",
    )
    for name, value in (
        ("authorization", f"Bearer {KEY}"),
        ("content-type", "application/json"),
        ("openai-organization", "org-1"),
        ("openai-project", "proj-1"),
        ("x-title", "Test"),
    ):
        assert request.headers[name] == value


async def test_the_environment_names_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_loopback(Answer([OK])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        await ask_for_reply(OpenAIChat("m"))
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        await ask_for_reply(OpenAIChat("m", api_key=""))
        assert "authorization" not in server.requests[1].headers


async def test_the_proxy_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with open_loopback(Answer([OK])) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        await ask_for_reply(
            OpenAIChat("m", base_url="http://model.invalid/v1", api_key="")
        )
    assert proxy.requests[0].path == "http://model.invalid/v1/chat/completions"


async def test_a_proxy_that_hangs_is_bounded_by_the_connect_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with open_loopback(Answer(before=[HANG])) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("https_proxy", proxy.url)
        model = OpenAIChat("m", base_url="https://model.invalid/v1", api_key="")
        request = ModelRequest(messages=[UserMessage("x")], connect_seconds=0.2)
        with trio.fail_after(5):
            error = await ask_for_error(model, request)
            await proxy.connections[0].closed.wait()
    assert isinstance(error, ModelTimeout)
    assert proxy.requests[0].method == "CONNECT"


# Keys


def test_a_missing_key_is_told_with_the_way_to_give_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ValueError, match=r"api_key=.*OPENAI_API_KEY"):
        OpenAIChat("m")
    OpenAIChat("m", api_key="")
    OpenAIChat("m", base_url="http://localhost:8080/v1")
    OpenAIChat("m", base_url="http://[::1]:8080/v1")


def test_a_key_that_is_none_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = json.loads((DATA / "api_key_newline.json").read_text())
    for key in (case["api_key"], f" {KEY}", f"{KEY}é", f"{KEY}\x7f", f"{KEY} x"):
        with pytest.raises(ValueError, match="api_key") as caught:
            OpenAIChat("m", api_key=key)
        assert KEY not in everything_said(caught.value)
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with pytest.raises(ValueError, match="OPENAI_API_KEY") as caught:
            OpenAIChat("m", base_url="https://api.example.com/v1")
        assert KEY not in everything_said(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"headers": {"x-key": f"{KEY}\r\n"}}, "headers"),
        ({"headers": {"bad name": "x"}}, "headers"),
        ({"base_url": "localhost:80"}, "base_url"),
        ({"base_url": f"https://user:{KEY}@example.com/v1"}, "base_url"),
        ({"connections": 0}, "connections"),
    ],
)
def test_misuse_is_told_at_once_and_names_the_option(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        OpenAIChat("m", **({"api_key": KEY} | options))
    assert KEY not in everything_said(caught.value)


def everything_said(error: BaseException) -> str:
    """All that a log or a traceback could show of an error, and of what caused it."""
    texts = [str(error), repr(error), repr(vars(error))]
    cause: BaseException | None = error
    while cause is not None:
        # The lines of this file may hold a key, those of the library do not.
        frames = traceback.format_exception_only(cause)
        texts += [str(cause), repr(cause), *frames]
        cause = cause.__cause__ or cause.__context__
    return "\n".join(texts)


def echo(status: int) -> Answer:
    """A server that quotes all it was sent."""
    text = f"you sent Bearer {KEY} and title-secret and: tell me the launch code"
    body = json.dumps({"error": {"message": text, "type": KEY, "code": f"x {KEY}"}})
    return Answer([body.encode()], status=status)


@pytest.mark.parametrize(
    "answer",
    [
        echo(401),
        echo(500),
        echo(200),
        Answer([b"data: " + echo(200).steps[0] + b"\n\n"]),  # type: ignore[operator]
        Answer([b"event: error\ndata: Bearer " + KEY.encode() + b"\n\n"]),
        Answer([b"error: Bearer " + KEY.encode() + b"\n\n"]),
        Answer([KEY.encode()], status=403),
        Answer([b"HTTP/1.1 Bearer " + KEY.encode() + b"\r\n\r\n"], raw=True),
        Answer([b"HTTP/1.1 200 OK\r\nX \xff: " + KEY.encode() + b"\r\n\r\n"], raw=True),
        Answer(
            [b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + KEY.encode()],
            raw=True,
        ),
        Answer(
            [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + KEY.encode()],
            raw=True,
        ),
    ],
    ids=str,
)
async def test_neither_key_nor_prompt_is_ever_shown(
    answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_loopback(answer) as server:
        model = chat(server, api_key=KEY, headers={"x-title": "title-secret"})
        prompt = ModelRequest(messages=[UserMessage("tell me the launch code")])
        asked = await ask(model, prompt)
    assert asked.error is not None
    said = everything_said(asked.error) + repr(asked.parts) + repr(model)
    for secret in (KEY, "title-secret", "launch code"):
        assert secret not in said
    # httpcore shows, for debugging, what the server sent; that is not ours to hide.
    logged = [r for r in caplog.records if not r.name.startswith("httpcore")]
    assert KEY not in repr([r.getMessage() for r in logged])


async def test_a_header_that_cannot_be_sent_is_our_mistake_and_not_shown() -> None:
    async with open_loopback(Answer([OK])) as server:
        model = chat(server, api_key=KEY)
        model._endpoint._headers["authorization"] += (
            "\n"  # past the check, as a bug would be
        )
        error = await ask_for_error(model)
    assert isinstance(error, ModelRefused)
    assert not error.may_retry
    assert error.__cause__ is error.__context__ is None
    assert KEY not in everything_said(error)
    assert server.requests == []


# What is read


CASES: list[tuple[str, dict[str, Any]]] = [
    (
        "chat_truncated_length",
        {
            "finish_reason": "length",
            "tool_calls": [
                ("write_file", "call_a", '{"path":"notes.txt","content":"line one')
            ],
            "usage": Usage(input_tokens=20, output_tokens=32),
        },
    ),
    (
        "chat_truncated_but_tool_calls",
        {
            "finish_reason": "tool_calls",
            "tool_calls": [
                ("write_file", "call_a", '{"path":"notes.txt","content":"line one')
            ],
            "usage": Usage(input_tokens=20, output_tokens=32),
        },
    ),
    (
        "chat_truncated_valid_json",
        {
            "finish_reason": "length",
            "tool_calls": [("delete_tree", "call_a", '{"path":"/srv/app"}')],
        },
    ),
    (
        "chat_two_calls_no_index",
        {
            "finish_reason": "tool_calls",
            "tool_calls": [
                ("lookup", "call_a", '{"q":"ada"}'),
                ("lookup", "call_b", '{"q":"bob"}'),
            ],
        },
    ),
    ("chat_unknown_tool", {"tool_calls": [("no_such_tool", "call_a", "{}")]}),
    ("chat_empty_args", {"tool_calls": [("now", "call_a", "{}")]}),
    (
        "chat_tools_but_stop",
        {
            "finish_reason": "tool_calls",
            "raw_finish_reason": "stop",
            "tool_calls": [("now", "call_a", "{}")],
        },
    ),
    (
        "chat_usage_after_finish",
        {"text": "hi", "usage": Usage(input_tokens=7, output_tokens=1)},
    ),
    ("chat_unicode_separators", {"text": "a\u2028b\u2029c\x85d\x0be"}),
    ("chat_utf8_split", {"text": "naïve 😀 終"}),
    ("chat_done_then_open", {"text": "ok", "finish_reason": "stop"}),
]


@pytest.mark.parametrize("size", [1, 10_000], ids=["byte_by_byte", "whole"])
@pytest.mark.parametrize(("file", "expected"), CASES, ids=[c[0] for c in CASES])
async def test_a_case_gives_its_reply(
    file: str, expected: dict[str, Any], size: int
) -> None:
    body = (DATA / f"{file}.sse").read_bytes()
    asked = await play(*(body[i : i + size] for i in range(0, len(body), size)))
    reply = asked.reply
    assert asked.error is None
    assert reply is not None
    found = {name: getattr(reply, name) for name in expected}
    if "tool_calls" in found:
        found["tool_calls"] = [(c.name, c.id, c.arguments) for c in reply.tool_calls]
    assert found == expected
    assert asked.text == reply.text


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("chat_orphan_fragment", "protocol_error"),
        ("chat_eof_without_finish", "incomplete_stream"),
        ("chat_eof_mid_tool", "incomplete_stream"),
        ("chat_inband_error", "server_error"),
    ],
)
async def test_a_case_gives_its_error(file: str, kind: str) -> None:
    asked = await play((DATA / f"{file}.sse").read_bytes())
    assert asked.reply is None
    error = asked.error
    assert isinstance(error, ModelUnavailable)
    assert error.kind == kind
    assert error.response_id == "cc-1"
    assert (error.usage, error.billed) == (Usage(), "unknown")


async def test_text_before_an_error_is_shown() -> None:
    asked = await play((DATA / "chat_inband_error.sse").read_bytes())
    assert asked.text == "Hel"
    assert "upstream went away" in str(asked.error)


async def test_a_reader_who_goes_on_after_an_error_gets_it_again() -> None:
    async with open_loopback(Answer([sse({"error": {"message": "no"}})])) as server:
        async with chat(server).open_reply(HELLO) as parts:
            for _ in range(2):
                with pytest.raises(ModelUnavailable, match="no"):
                    async for _part in parts:
                        pass


def test_a_raw_json_error_in_a_200_is_an_error() -> None:
    raw = (DATA / "http_200_json_error.http").read_bytes()
    raw = raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")

    async def main() -> ModelError:
        return await play_error(raw, raw=True)

    error = trio.run(main)
    assert isinstance(error, ModelUnavailable)
    assert "model offline" in str(error)
    assert error.kind == "502"


@pytest.mark.machine
async def test_a_hundred_thousand_deltas_take_linear_time() -> None:
    recipe = json.loads((DATA / "chat_big_args_1char.json").read_text())

    async def seconds(count: int) -> float:
        letter = sse(call(0, arguments=recipe["chunk"]))
        per_step = 100
        begin = sse(call(0, "call_a", recipe["tool"], recipe["prefix"]))
        end = sse(call(0, arguments=recipe["suffix"]), chunk("tool_calls"), "[DONE]")
        start = time.process_time()
        reply = await play_reply(begin, *[letter * per_step] * (count // per_step), end)
        spent = time.process_time() - start
        content = json.loads(reply.tool_calls[0].arguments)["content"]
        assert content == recipe["chunk"] * count
        return spent

    part = await seconds(recipe["chunks"] // 4)
    whole = await seconds(recipe["chunks"])
    slower = 1 if sys.gettrace() is None else 4  # by a coverage tool
    assert whole < 3.0 * slower  # server and client together
    assert whole / part < 9  # linear work gives 4, quadratic 16


async def test_the_pieces_come_in_order_and_the_reply_is_last() -> None:
    parts = (
        await play(
            b": hello\n\n",
            sse(chunk(reasoning="Hm.")),
            sse(chunk(content="He")),
            sse(chunk(content="llo") | {"usage": {"prompt_tokens": 3}}),
            sse(call(0, "a", "look", "{")),
            sse(call(0, arguments="}")),
            sse(chunk("tool_calls")),
            sse({"choices": [], "usage": {"completion_tokens": 5}}, "[DONE]"),
            headers={"x-request-id": "req-1"},
        )
    ).parts
    usage = Usage(input_tokens=3, output_tokens=5)
    assert [p for p in parts if not isinstance(p, KeepAlive)][2:] == [
        *parts[3:4],
        TextDelta("He"),
        TextDelta("llo"),
        UsageReported(Usage(input_tokens=3)),
        ToolCallDelta(0, "look", "{"),
        ToolCallDelta(0, "", "}"),
        UsageReported(usage),
        Reply(
            text="Hello",
            tool_calls=(ToolCall("look", "{}", "a"),),
            finish_reason="tool_calls",
            raw_finish_reason="tool_calls",
            reasoning="Hm.",
            usage=usage,
            model="fake-1",
            request_id="req-1",
            response_id="cc-1",
            provider="openai-chat",
        ),
    ]
    # First with what the headers say, again when the server has named its answer.
    opened = [p for p in parts if isinstance(p, ReplyOpened)]
    assert opened == [ReplyOpened("req-1"), ReplyOpened("req-1", "cc-1")]
    assert parts[1] == KeepAlive()  # the comment


def calls_of(reply: Reply) -> list[tuple[str, str, str]]:
    return [(c.name, c.id, c.arguments) for c in reply.tool_calls]


A1 = call(0, "1", "a", '{"x"')
A = call(None, "1", "a", '{"x"')
TWO_CALLS = [("a", "1", '{"x":1}'), ("b", "2", '{"x":2}')]


@pytest.mark.parametrize(
    "chunks",
    [
        [
            A1,
            call(1, "2", "b", '{"x"'),
            call(0, arguments=":1}"),
            call(1, arguments=":2}"),
        ],
        [call(0, "1", "a", '{"x":1}'), call(0, "2", "b", '{"x":2}')],
        [call(1, "1", "a", '{"x":1}'), call(2, "2", "b", '{"x":2}')],
        [A1, call(0, "1", "a", ":1}"), call(1, "2", "b", '{"x":2}')],
        [A1, call(0, "", "", ":1}"), call(1, "2", "b", '{"x":2}')],
        [A, call(None, "1", "a", ":1}"), call(None, "2", "b", '{"x":2}')],
        [A, call(None, arguments=":1}"), call(None, "2", "b", '{"x":2}')],
        [call(0, "1", "a", {"x": 1}), call(1, "2", "b", {"x": 2})],
    ],
    ids=[
        "interleaved",
        "new_id_on_a_used_index",
        "first_index_is_1",
        "id_and_name_repeated",
        "id_and_name_empty_later",
        "no_index",
        "no_index_and_no_id_later",
        "arguments_as_objects",
    ],
)
async def test_pieces_of_calls_find_their_call(chunks: list[dict[str, Any]]) -> None:
    reply = await play_reply(sse(*chunks, chunk("tool_calls"), "[DONE]"))
    assert [c[:2] for c in calls_of(reply)] == [c[:2] for c in TWO_CALLS]
    arguments = [json.loads(c.arguments) for c in reply.tool_calls]
    assert arguments == [{"x": 1}, {"x": 2}]
    assert [c.position for c in reply.tool_calls] == [0, 1]


@pytest.mark.parametrize("arguments", [None, "", "null", " null "])
async def test_no_arguments_are_an_empty_object(arguments: str | None) -> None:
    reply = await play_reply(sse(call(0, "1", "a", arguments), chunk("tool_calls")))
    assert calls_of(reply) == [("a", "1", "{}")]


async def test_no_arguments_in_a_cut_reply_stay_cut() -> None:
    reply = await play_reply(sse(call(0, "1", "a", ""), chunk("length"), "[DONE]"))
    assert calls_of(reply) == [("a", "1", "")]


async def test_a_call_without_a_name_is_an_error() -> None:
    error = await play_error(sse(call(0, "1", arguments="{}"), chunk("tool_calls")))
    assert error.kind == "protocol_error"


async def test_the_old_function_call_is_a_call_without_an_id() -> None:
    pieces = [
        chunk(function_call={"name": "a", "arguments": '{"x"'}),
        chunk(function_call={"arguments": ":1}"}),
        chunk("function_call"),
    ]
    reply = await play_reply(sse(*pieces, "[DONE]"))
    assert calls_of(reply) == [("a", "", '{"x":1}')]
    assert reply.finish_reason == "tool_calls"
    empty = chunk("stop", content="4", function_call={"name": "", "arguments": ""})
    assert (await play_reply(sse(empty, "[DONE]"))).tool_calls == ()


async def test_only_the_first_choice_is_read() -> None:
    other = {"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}
    chunks: list[Chunk] = [
        chunk(content="yes"),
        {"choices": [other]},
        chunk("stop"),
        "[DONE]",
    ]
    assert (await play_reply(sse(*chunks))).text == "yes"


async def test_content_may_be_a_list_of_parts() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    parts = [thinking, {"type": "text", "text": "So: "}, "four", {"type": "reference"}]
    reply = await play_reply(sse(chunk(content=parts), chunk("stop"), "[DONE]"))
    assert (reply.text, reply.reasoning) == ("So: four", "Hm.")


async def test_a_refusal_is_no_text() -> None:
    pieces: list[Chunk] = [
        chunk(refusal="I "),
        chunk(refusal="cannot."),
        chunk("stop"),
        "[DONE]",
    ]
    reply = await play_reply(sse(*pieces))
    assert (reply.text, reply.refusal) == ("", "I cannot.")
    assert (reply.finish_reason, reply.raw_finish_reason) == ("refusal", "stop")


@pytest.mark.parametrize(
    ("raw", "native", "expected"),
    [
        ("stop", None, "stop"),
        ("eos", None, "stop"),
        ("end_turn", None, "stop"),
        ("function_call", None, "tool_calls"),
        ("tool_use", None, "tool_calls"),
        ("length", None, "length"),
        ("model_length", None, "length"),
        ("MAX_TOKENS", None, "length"),
        ("content_filter", None, "content_filter"),
        ("sensitive", None, "content_filter"),
        ("insufficient_system_resource", None, "error"),
        ("error", None, "error"),
        ("pause_turn", None, "pause"),
        ("refusal", None, "refusal"),
        ("brand_new_reason", None, "other"),
        ("brand_new_reason", "max_tokens", "length"),
        (None, "SAFETY", "content_filter"),
    ],
)
async def test_finish_reasons(
    raw: str | None, native: str | None, expected: str
) -> None:
    last = chunk(raw, content="x")
    last["choices"][0]["native_finish_reason"] = native
    reply = await play_reply(sse(last, "[DONE]"))
    assert reply.finish_reason == expected
    assert reply.raw_finish_reason == (raw or native)


async def test_done_ends_a_reply_that_names_no_reason() -> None:
    reply = await play_reply(sse(chunk(content="4"), "[DONE]"))
    assert (reply.finish_reason, reply.raw_finish_reason) == ("stop", "")
    reply = await play_reply(sse(call(0, "1", "a", "{}"), "[DONE]"))
    assert reply.finish_reason == "tool_calls"


async def test_a_reason_ends_a_reply_without_done() -> None:
    assert (await play_reply(sse(chunk("stop", content="4")))).text == "4"
    assert (await play_reply(sse(chunk("stop", content="4")), CUT)).text == "4"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n\n",
        b": ping\n\n",
        b"upstream timed out",
        sse("[DONE]"),
        b'{"id": "x"}',
        b'{"choices": []}',
    ],
)
async def test_an_answer_without_a_reply_is_incomplete(body: bytes) -> None:
    error = await play_error(body)
    assert isinstance(error, ModelUnavailable)
    assert error.kind == "incomplete_stream"


@pytest.mark.parametrize("steps", [[CUT], [sse(chunk(content="a")), CUT]])
async def test_a_connection_that_breaks_is_an_error_with_what_is_known(
    steps: list[Any],
) -> None:
    error = await play_error(*steps, headers={"x-request-id": "req-1"})
    assert isinstance(error, ModelUnavailable)
    assert error.may_retry
    assert error.request_id == "req-1"
    assert error.response_id == ("cc-1" if len(steps) > 1 else "")
    assert error.billed == "unknown"


@pytest.mark.parametrize(
    "data", ["{", '{"choices":', "[]", "7", '{"choices": 7}', '"\xff']
)
async def test_a_chunk_that_is_none_is_an_error_and_not_skipped(data: str) -> None:
    asked = await play(sse(chunk(content="a"), data, chunk(content="b"), chunk("stop")))
    assert isinstance(asked.error, ModelUnavailable)
    assert asked.error.kind == "bad_chunk"
    assert asked.text == "a"


DEEPSEEK = {"prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 1}
THOUGHT = {"total_tokens": 16, "completion_tokens_details": {"reasoning_tokens": 9}}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1},
            },
            Usage(
                input_tokens=5, output_tokens=2, cached_tokens=3, cache_write_tokens=1
            ),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": None, **DEEPSEEK},
            Usage(input_tokens=5, cached_tokens=4),
        ),
        (
            {"prompt_tokens": 5, "prompt_tokens_details": None, "cached_tokens": 0},
            Usage(input_tokens=5, cached_tokens=0),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 2, **THOUGHT},  # xAI
            Usage(input_tokens=5, output_tokens=11, reasoning_tokens=9),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 11, **THOUGHT},
            Usage(input_tokens=5, output_tokens=11, reasoning_tokens=9),
        ),
        ({"cost": 0.25}, Usage(cost=0.25)),
        ({"cost": {"total_cost": 0.5}}, Usage(cost=0.5)),
        ({"cost": 0}, Usage(cost=0.0)),
    ],
)
async def test_usage_is_what_the_server_says_and_else_unknown(
    raw: dict[str, Any], expected: Usage
) -> None:
    for last in (
        chunk("stop", content="x") | {"usage": raw},
        {"choices": [{"index": 0, "usage": raw, "finish_reason": "stop"}]},
        chunk("stop", content="x") | {"x_groq": {"usage": raw}},
    ):
        assert (await play_reply(sse(last, "[DONE]"))).usage == expected


async def test_the_last_word_on_usage_counts_and_silence_does_not() -> None:
    zeros = chunk(content="x") | {"usage": {"prompt_tokens": 0, "completion_tokens": 0}}
    tail: list[dict[str, Any]] = [
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
        {"choices": [], "usage": {"prompt_tokens": None, "completion_tokens": 5}},
        {"choices": [], "usage": {"completion_tokens": 5}},
        {"choices": [], "usage": None},
    ]
    reply = await play_reply(sse(zeros, chunk("stop"), *tail, "[DONE]"))
    assert reply.usage == Usage(input_tokens=9, output_tokens=5)


# A server that ignores `stream`

WHOLE = {
    "id": "cc-1",
    "model": "fake-1",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hello",
                "tool_calls": [
                    {"id": "1", "function": {"name": "a", "arguments": "{}"}}
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5},
}


@pytest.mark.parametrize(
    "kind", ["application/json", "text/event-stream", "text/plain"]
)
@pytest.mark.parametrize("before", [b"", b"\n   \n", b"\xef\xbb\xbf"])
async def test_a_whole_json_answer_is_a_reply(kind: str, before: bytes) -> None:
    body = before + json.dumps(WHOLE, indent=1).encode()
    asked = await play(body[:9], 0.01, body[9:], headers={"content-type": kind})
    reply = asked.reply
    assert reply is not None
    assert (reply.text, calls_of(reply)) == ("Hello", [("a", "1", "{}")])
    assert reply.usage == Usage(input_tokens=3, output_tokens=5)
    assert asked.text == "Hello"


async def test_a_whole_answer_that_was_cut_is_an_error() -> None:
    body = json.dumps(WHOLE).encode()[:-20]
    assert isinstance(await play_error(body), ModelUnavailable)
    assert isinstance(await play_error(body, CUT), ModelUnavailable)


def test_a_whole_answer_is_bounded() -> None:
    body = Body(ChatStream(Reporter("m")), max_bytes=100)
    with pytest.raises(ModelUnavailable, match="more than 100 bytes"):
        for _ in range(20):
            assert body.feed(b'{"a":' + b" " * 10) == []


def test_a_reply_is_put_together_without_any_io() -> None:
    body = Body(ChatStream(Reporter("m", request_id="req-1")))
    assert body.feed(sse(chunk(content="a")))[1:] == [TextDelta("a")]
    assert body.feed(sse(chunk("stop"))) == body.end() == []
    assert body.stream.finish().text == "a"


async def test_events_that_are_called_json_are_events() -> None:
    reply = await play_reply(OK, headers={"content-type": "application/json"})
    assert reply.text == "ok"


async def test_an_answer_may_be_compressed() -> None:
    headers = {"content-encoding": "gzip", "content-type": "text/event-stream"}
    assert (await play_reply(gzip.compress(OK), headers=headers)).text == "ok"


async def test_a_web_page_is_no_answer() -> None:
    error = await play_error(b"<!DOCTYPE html><html>Sign in</html>")
    assert isinstance(error, ModelUnavailable)
    assert "web page" in str(error)
    error = await play_error(b"<html>Bad gateway</html>", status=502)
    assert isinstance(error, ModelUnavailable)
    assert "<html>" not in str(error)


# Errors


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "invalid_request_error", ModelRefused),
        (401, "invalid_api_key", ModelRefused),
        (402, "", ModelRefused),
        (403, "", ModelRefused),
        (404, "model_not_found", ModelRefused),
        (413, "", ModelRefused),
        (422, "", ModelRefused),
        (307, "", ModelRefused),
        (408, "", ModelUnavailable),
        (409, "", ModelUnavailable),
        (429, "rate_limit_exceeded", ModelUnavailable),
        (429, "insufficient_quota", ModelRefused),
        (429, "billing_hard_limit_reached", ModelRefused),
        (400, "tool_use_failed", ModelUnavailable),
        (500, "server_error", ModelUnavailable),
        (503, "", ModelUnavailable),
        (529, "overloaded_error", ModelUnavailable),
    ],
)
async def test_the_status_says_whether_to_ask_again(
    status: int, kind: str, expected: type[ModelError]
) -> None:
    body = json.dumps({"error": {"message": "because", "code": kind or None}})
    headers = {"x-request-id": "req-1", "retry-after": "7"}
    error = await play_error(body.encode(), status=status, headers=headers)
    assert type(error) is expected
    assert error.may_retry is (expected is ModelUnavailable)
    assert (error.status, error.kind) == (status, kind)
    assert (error.request_id, error.retry_after) == ("req-1", 7.0)
    assert "because" in str(error)
    assert "openai:fake" in str(error)


@pytest.mark.parametrize(
    "body",
    [
        {"error": "because"},
        {"error": {"message": "because"}},
        {"detail": "because"},
        {"detail": [{"msg": "because"}]},
        {"object": "error", "message": "because", "type": "x", "code": 400},
        {"error": {"message": "upstream", "metadata": {"raw": "because"}}},
        "because",
    ],
)
async def test_an_error_is_told_in_any_shape(body: Any) -> None:
    data = json.dumps(body).encode()
    assert "because" in str(await play_error(data, status=400))
    if isinstance(body, dict):
        assert "because" in str(await play_error(data))
        assert "because" in str(await play_error(b"data: " + data + b"\n\n"))
        assert "because" in str(
            await play_error(b"event: error\ndata: " + data + b"\n\n")
        )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"code": 400}, ModelRefused),
        ({"code": "429"}, ModelUnavailable),
        ({"code": 502}, ModelUnavailable),
        ({"type": "server_error"}, ModelUnavailable),
        ({"type": "invalid_request_error"}, ModelRefused),
        ({"code": "insufficient_quota", "status": 429}, ModelRefused),
        ({"code": "content_filter"}, ModelRefused),
        ({"type": "something_new"}, ModelUnavailable),
    ],
)
async def test_an_error_in_a_200_is_judged_like_a_status(
    error: dict[str, Any], expected: type[ModelError]
) -> None:
    for start in (b"", sse(chunk(content="Hel"))):
        found = await play_error(start + sse({"error": {"message": "no", **error}}))
        assert type(found) is expected


async def test_an_error_text_is_bounded() -> None:
    error = await play_error(b"x" * 300_000, status=500)
    assert len(str(error)) <= 500


async def test_an_error_body_that_never_ends_does_not_hold_the_error() -> None:
    async with open_loopback(Answer([Drip(b"x", 0.05)], status=503)) as server:
        with trio.fail_after(3):
            error = await ask_for_error(chat(server))
    assert error.status == 503


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "1", "retry-after-ms": "0"}, 0.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
async def test_the_wait_that_the_server_asks_for(
    headers: dict[str, str], expected: float | None
) -> None:
    error = await play_error(b"{}", status=429, headers=headers)
    assert error.retry_after == expected


async def test_a_date_to_wait_for_becomes_seconds() -> None:
    headers = {"retry-after": "Fri, 31 Dec 2999 23:59:59 GMT"}
    error = await play_error(b"{}", status=429, headers=headers)
    assert error.retry_after is not None
    assert error.retry_after > 1e9


async def test_a_server_may_forbid_another_try() -> None:
    error = await play_error(b"{}", status=503, headers={"x-should-retry": "false"})
    assert not error.may_retry


async def test_nobody_there_costs_nothing() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    model = OpenAIChat("m", base_url=f"http://127.0.0.1:{port}")
    error = await ask_for_error(model)
    assert isinstance(error, ModelUnavailable)
    assert (error.kind, error.billed) == ("connect", "known")
    assert "127.0.0.1" in str(error)
    assert error.__cause__ is not None


async def test_a_server_that_speaks_no_tls_cannot_be_connected_to() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(b"no TLS here\r\n")

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(5):
            model = OpenAIChat("m", base_url=f"https://127.0.0.1:{port}")
            error = await ask_for_error(model)
        nursery.cancel_scope.cancel()
    assert isinstance(error, ModelUnavailable)
    assert (error.kind, error.billed) == ("connect", "known")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for this machine, and its key. Nobody trusts it."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    where = ["-out", str(files[0]), "-keyout", str(files[1])]
    openssl = ["openssl", *command.split(), *names, *where]
    subprocess.run(openssl, check=True, capture_output=True)
    return files


@pytest.fixture
def tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


@pytest.fixture
def trusted(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The certificate is trusted, as SSL_CERT_FILE says it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    _http._ssl_context.cache_clear()
    yield
    _http._ssl_context.cache_clear()


async def test_a_certificate_that_is_not_trusted_is_not_tried_again(
    tls: ssl.SSLContext,
) -> None:
    async with open_loopback(Answer([OK]), tls=tls) as server:
        error = await ask_for_error(chat(server))
    assert isinstance(error, ModelRefused)
    assert not error.may_retry
    assert (error.kind, error.billed) == ("certificate", "known")
    assert server.requests == []


@pytest.mark.usefixtures("trusted")
async def test_turns_share_a_connection_over_tls_too(tls: ssl.SSLContext) -> None:
    async with open_loopback(Answer([OK, 0.02]), tls=tls) as server:
        async with chat(server) as model:
            for _ in range(3):
                assert (await ask_for_reply(model)).text == "ok"
    assert len(server.connections) == 1


# Letting go


async def wait_for_close(server: Loopback, stopped_at: float) -> None:
    """The server saw every client close, soon after the stop."""
    with trio.fail_after(5):
        for connection in server.connections:
            await connection.closed.wait()
            assert connection.closed_at is not None
            assert connection.closed_at - stopped_at < SOON


PLACES = {
    "in_the_headers": Answer(before=[HANG]),
    "before_the_first_byte": Answer([HANG]),
    "in_the_text": Answer([sse(chunk(content="a")), HANG]),
    "in_the_arguments": Answer([sse(call(0, "1", "a", '{"x')), HANG]),
    "between_pings": Answer([Drip(b": ping\n\n", 0.01)]),
    "in_a_flood": Answer([sse(chunk(content="x")) * 200] * 500 + [HANG]),
    "in_a_whole_answer": Answer([b"{", HANG]),
    "after_the_reason": Answer([sse(chunk("stop", content="a")), HANG]),
    "in_an_error": Answer([b"x", HANG], status=500),
}
AFTER: dict[str, type[ReplyPart]] = {  # a piece that shows that the place was reached
    "in_the_text": TextDelta,
    "in_the_arguments": ToolCallDelta,
    "between_pings": KeepAlive,
    "in_a_flood": TextDelta,
    "in_a_whole_answer": KeepAlive,
    "after_the_reason": TextDelta,
    "before_the_first_byte": ReplyOpened,
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_cancel_closes_the_connection(place: str) -> None:
    with trio.fail_after(10):
        async with open_loopback(PLACES[place]) as server, chat(server) as model:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    there = trio.Event()
                    nursery.start_soon(read_on, model, AFTER.get(place), there)
                    await server.wait_for_requests(1)
                    if place in AFTER:
                        await there.wait()
                    await trio.testing.wait_all_tasks_blocked()
                    stopped_at = trio.current_time()
                    scope.cancel()
            assert trio.current_time() - stopped_at < SOON
            await wait_for_close(server, stopped_at)
            assert active(model) == 0


async def read_on(
    model: OpenAIChat, kind: type[ReplyPart] | None, there: trio.Event
) -> None:
    async with model.open_reply(HELLO) as parts:
        async for part in parts:
            if kind is not None and isinstance(part, kind):
                there.set()


def active(model: OpenAIChat) -> int:
    """The connections of the pool that are not idle."""
    pool = model._endpoint._http._here.get()
    assert pool is not None
    assert pool.slots.value == pool._connections
    transport: Any = pool.client._transport
    return sum(not c.is_idle() for c in transport._pool.connections)


class CancelBeforeStep(trio.abc.Instrument):
    """Cancels a scope just before a task takes its n-th step."""

    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope, n: int):
        self._task = task
        self._scope = scope
        self._left = n

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if not self._left:
                self._scope.cancel()


async def cancel_before_each_step(server: Loopback, *, warm: bool) -> None:
    """Cancel requests of a model, each one step later; look at the pool each time."""
    async with chat(server) as model:
        steps = 0
        cancelled = True
        while cancelled:
            steps += 1
            if warm:
                await ask_for_reply(model)
            with trio.CancelScope() as scope:
                task = trio.lowlevel.current_task()
                instrument = CancelBeforeStep(task, scope, steps)
                trio.lowlevel.add_instrument(instrument)
                try:
                    await ask(model)
                finally:
                    trio.lowlevel.remove_instrument(instrument)
            cancelled = scope.cancel_called
            assert active(model) == 0, steps
            with trio.fail_after(1):  # one is kept, or none; all others are closed
                for connection in server.connections[:-1]:
                    await connection.closed.wait()
        assert steps > 5


THREE_CHUNKS = Answer([sse(chunk(content="a")), sse(chunk("stop")), sse("[DONE]")])


@pytest.mark.parametrize("warm", [False, True], ids=["new", "used"])
async def test_a_cancel_before_any_step_loses_no_connection(warm: bool) -> None:
    async with open_loopback(THREE_CHUNKS) as server:
        await cancel_before_each_step(server, warm=warm)


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("warm", [False, True], ids=["new", "used"])
async def test_a_cancel_before_any_step_loses_no_connection_over_tls(
    tls: ssl.SSLContext, warm: bool
) -> None:
    async with open_loopback(THREE_CHUNKS, tls=tls) as server:
        await cancel_before_each_step(server, warm=warm)


@pytest.mark.parametrize("place", AFTER)
async def test_leaving_the_block_closes_the_connection(place: str) -> None:
    with trio.fail_after(10):
        async with open_loopback(PLACES[place]) as server, chat(server) as model:
            async with model.open_reply(HELLO) as parts:
                async for part in parts:
                    if isinstance(part, AFTER[place]):
                        break
                stopped_at = trio.current_time()
            assert trio.current_time() - stopped_at < SOON
            await wait_for_close(server, stopped_at)
            with pytest.raises(KeyError, match="ours"):
                async with model.open_reply(HELLO) as parts:
                    async for part in parts:
                        if isinstance(part, AFTER[place]):
                            stopped_at = trio.current_time()
                            raise KeyError("ours")
            await wait_for_close(server, stopped_at)
            async with model.open_reply(HELLO):
                stopped_at = trio.current_time()
            await wait_for_close(server, stopped_at)
            assert active(model) == 0


async def test_an_error_in_the_stream_closes_the_connection() -> None:
    answer = Answer([sse({"error": {"message": "no"}}), HANG])
    async with open_loopback(answer) as server, chat(server) as model:
        with trio.fail_after(5):
            await ask_for_error(model)
            await server.connections[0].closed.wait()


async def test_a_read_that_was_cut_is_never_a_clean_end() -> None:
    answer = Answer([sse(chunk(content="a")), HANG])
    async with open_loopback(answer) as server:
        async with chat(server).open_reply(HELLO) as parts:
            with trio.move_on_after(0.05) as scope:
                async for _ in parts:
                    pass
            assert scope.cancelled_caught
            with pytest.raises(ModelUnavailable, match="cut") as caught:
                async for _ in parts:
                    pass
    assert caught.value.kind == "incomplete_stream"


async def test_no_connection_in_time_is_a_timeout_that_names_its_limit() -> None:
    # A listener with a full backlog: nobody accepts, and nobody refuses.
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    port = listener.getsockname()[1]
    fillers = [trio.socket.socket() for _ in range(4)]
    async with trio.open_nursery() as nursery:
        for filler in fillers:
            nursery.start_soon(filler.connect, ("127.0.0.1", port))
        await trio.sleep(0.05)
        model = OpenAIChat("m", base_url=f"http://127.0.0.1:{port}")
        request = ModelRequest(messages=[UserMessage("x")], connect_seconds=0.2)
        with trio.fail_after(5):
            error = await ask_for_error(model, request)
        nursery.cancel_scope.cancel()
    for sock in (*fillers, listener):
        sock.close()
    assert isinstance(error, ModelTimeout)
    assert (error.scope, error.billed) == ("connect", "known")
    assert "Limits.connect_seconds" in str(error)
    assert "0.2 s" in str(error)


async def test_the_connect_clock_ends_with_the_connection() -> None:
    request = ModelRequest(messages=[UserMessage("x")], connect_seconds=0.1)
    answer = Answer([0.2, OK], before=[0.2])
    async with open_loopback(answer) as server:
        reply = await ask_for_reply(chat(server), request)
    assert reply.text == "ok"


async def test_a_server_that_takes_no_tls_is_bounded_by_the_connect_clock() -> None:
    request = ModelRequest(messages=[UserMessage("x")], connect_seconds=0.2)
    async with open_loopback(Answer(before=[HANG])) as server:
        url = server.url.replace("http:", "https:")
        error = await ask_for_error(OpenAIChat("m", base_url=url), request)
        assert isinstance(error, ModelTimeout)
        with trio.fail_after(1):
            await server.connections[0].closed.wait()


# The pool


async def test_ten_turns_take_one_connection() -> None:
    answer = Answer([OK, 0.02])  # the body ends 20 ms after [DONE]
    async with open_loopback(answer) as server, chat(server) as model:
        for _ in range(10):
            assert (await ask_for_reply(model)).text == "ok"
        assert len(server.connections) == 1
        assert server.connections[0].requests == 10


@pytest.mark.parametrize(
    "last", [HANG, Drip(b": ping\n\n", 0.01), Drip(b"x" * 9000, 0.0)], ids=str
)
async def test_a_body_that_never_ends_does_not_hold_the_turn(last: Any) -> None:
    async with open_loopback(Answer([OK, last])) as server, chat(server) as model:
        started_at = trio.current_time()
        assert (await ask_for_reply(model)).text == "ok"
        assert trio.current_time() - started_at < 0.5
        await server.connections[0].closed.wait()
        assert active(model) == 0


async def test_a_reply_that_is_over_waits_a_bounded_time_for_its_usage() -> None:
    body = sse(chunk("stop", content="a"))
    usage = sse({"choices": [], "usage": {"prompt_tokens": 3}})
    async with open_loopback(Answer([body, 0.1, usage, HANG])) as server:
        with trio.fail_after(4):
            reply = await ask_for_reply(chat(server))
    assert reply.usage == Usage(input_tokens=3)


async def test_the_last_to_leave_closes_the_connections() -> None:
    async with open_loopback(Answer([OK])) as server:
        model = chat(server)
        async with model:
            async with model:
                await ask_for_reply(model)
            await ask_for_reply(model)
            assert len(server.connections) == 1
            assert not server.connections[0].closed.is_set()
        with trio.fail_after(1):
            await server.connections[0].closed.wait()
        await ask_for_reply(model)  # by itself, it enters for as long as it takes
        assert len(server.connections) == 2
        with trio.fail_after(1):
            await server.connections[1].closed.wait()


async def test_a_run_that_leaves_does_not_close_the_stream_of_another() -> None:
    async with open_loopback(Answer([sse(chunk(content="a")), 0.1, OK])) as server:
        model = chat(server)
        async with trio.open_nursery() as nursery:
            await model.__aenter__()
            nursery.start_soon(ask_for_reply, model)
            await server.wait_for_requests(1)
            await model.__aexit__(None, None, None)


def test_two_trio_runs_do_not_share_a_client() -> None:
    model: OpenAIChat | None = None

    async def main() -> None:
        assert model is not None
        async with open_loopback(Answer([OK, 0.02])) as server, model:
            model._endpoint._split = split_url(f"{server.url}/v1")
            for _ in range(3):
                await ask_for_reply(model)

    model = OpenAIChat("m", base_url="http://127.0.0.1:1")
    trio.run(main)
    trio.run(main)


def test_two_threads_do_not_share_a_client() -> None:
    failures: list[Exception] = []
    barrier = threading.Barrier(2)
    models = OpenAIChat("m", base_url="http://127.0.0.1:1")

    async def main() -> None:
        async with models:
            barrier.wait(5)  # both runs are inside at once
            async with open_loopback(Answer([OK])) as server:
                async with models._endpoint._http.open_stream(
                    server.url, headers={}, body=b"{}", connect_seconds=5
                ) as answer:
                    async for _ in answer:
                        pass

    def work() -> None:
        try:
            trio.run(main)
        except Exception as error:  # shown by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


async def test_more_requests_than_connections_wait_their_turn() -> None:
    async with open_loopback(Answer([OK])) as server:
        async with chat(server, connections=2) as model:
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(ask_for_reply, model)
        assert len(server.requests) == 20
        assert len(server.connections) <= 2


async def test_waiting_for_a_turn_is_not_waiting_for_a_connection() -> None:
    request = ModelRequest(messages=[UserMessage("x")], connect_seconds=0.1)
    async with open_loopback(Answer([sse(chunk(content="a")), 0.3, OK])) as server:
        async with chat(server, connections=1) as model:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(ask_for_reply, model, request)
    assert len(server.requests) == 3


async def test_no_connection_is_lost_to_cancelled_requests() -> None:
    """B01: 20 tasks on 5 connections, cancelled at random, for three seconds."""
    dice = random.Random(1)
    answer = Answer([sse(chunk(content="a")), 0.003, OK], before=[0.002])
    async with open_loopback(answer) as server:
        async with chat(server, connections=5) as model:
            end = trio.current_time() + 3
            tries = 0

            async def churn() -> None:
                nonlocal tries
                while trio.current_time() < end:
                    tries += 1
                    with trio.move_on_after(dice.uniform(0.0005, 0.03)):
                        await ask(model)

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(churn)
            with trio.fail_after(2):
                assert (await ask_for_reply(model)).text == "aok"
            assert active(model) == 0
            open_now = sum(not c.closed.is_set() for c in server.connections)
            assert open_now <= 5
    assert tries > 100


def test_nothing_is_left_to_the_garbage_collector() -> None:
    """A warning there is an error of the whole process, so it gets one of its own."""
    code = Path(__file__).with_name("leave_early.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(code)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
