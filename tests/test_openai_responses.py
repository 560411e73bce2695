"""What the Responses adapter sends, what it reads, and how it lets go."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.asking import HELLO, Asked, ask, ask_for_reply
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
from trioagent.models import find_model
from trioagent.models._body import Body
from trioagent.models._problems import Reporter
from trioagent.models._responses_stream import ResponsesStream
from trioagent.models.openai_responses import OpenAIResponses

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
KEY = "sk-test-DO-NOT-LOG-0123456789"
SOON = 0.1  # seconds until the server must have seen a close

Item = dict[str, Any]
CREATED = {
    "type": "response.created",
    "response": {"id": "resp_1", "model": "fake-1", "status": "in_progress"},
}


def sse(*events: Item | str) -> bytes:
    texts = (e if isinstance(e, str) else json.dumps(e) for e in events)
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def event(kind: str, index: int | None = 0, **fields: Any) -> Item:
    place = {} if index is None else {"output_index": index}
    return {"type": f"response.{kind}", **place, **fields}


def text(delta: str, index: int = 0, part: int = 0) -> Item:
    return event("output_text.delta", index, content_index=part, delta=delta)


def message(*texts: str, **more: Any) -> Item:
    parts = [{"type": "output_text", "text": t, "annotations": []} for t in texts]
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": parts}
    return item | {"status": "completed"} | more


def call(
    name: str = "look", arguments: Any = "{}", id: str = "c1", **more: Any
) -> Item:
    item = {"type": "function_call", "id": f"fc_{id}", "status": "completed"}
    return item | {"call_id": id, "name": name, "arguments": arguments} | more


def thought(*summary: str, secret: str | None = "gAAA/+==", **more: Any) -> Item:
    parts = [{"type": "summary_text", "text": t} for t in summary]
    item = {"type": "reasoning", "id": "rs_1", "summary": parts}
    return item | {"encrypted_content": secret} | more


def added(item: Item, index: int | None = 0) -> Item:
    return event("output_item.added", index, item=item)


def done(item: Item, index: int | None = 0) -> Item:
    return event("output_item.done", index, item=item)


def end(status: str = "completed", **fields: Any) -> Item:
    response = {"id": "resp_1", "object": "response", "status": status, "output": []}
    return {"type": f"response.{status}", "response": response | fields}


def cut(reason: str | None = "max_output_tokens", **fields: Any) -> Item:
    details = None if reason is None else {"reason": reason}
    return end("incomplete", incomplete_details=details, **fields)


OK = sse(CREATED, text("ok"), end())


def fake(server: Loopback, **options: Any) -> OpenAIResponses:
    return OpenAIResponses("fake", base_url=f"{server.url}/v1", **options)


async def play(*steps: Any, **options: Any) -> Asked:
    """Ask a server that plays these steps."""
    with trio.fail_after(10):
        async with open_loopback(Answer(steps, **options)) as server:
            return await ask(fake(server))


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
        await ask_for_reply(fake(server, **(options or {})), asked)
        body: dict[str, Any] = server.requests[0].json()
        return body


async def sent_back(*output: Item, results: int = 0) -> list[Item]:
    """What a reply of these items is sent back as, with some results behind it."""
    reply_bytes = sse(CREATED, *(done(item, i) for i, item in enumerate(output)), end())
    async with open_loopback(Answer([reply_bytes])) as server:
        reply = await ask_for_reply(fake(server))
        said = [ToolResult(c.name, "seen", c.id) for c in reply.tool_calls[:results]]
        history: list[Message] = [UserMessage("hello"), reply, *said]
        await ask_for_reply(fake(server), ModelRequest(messages=history))
        items: list[Item] = server.requests[1].json()["input"]
        return items[1:]


def test_it_is_a_model() -> None:
    model: Model = OpenAIResponses("gpt-5", api_key=KEY)
    assert model.name == "openai-responses:gpt-5"
    other = OpenAIResponses("x", api_key=KEY, provider="xai")
    assert other.name == "xai:x"


def test_a_string_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = find_model("openai-responses:gpt-5")
    assert isinstance(model, OpenAIResponses)
    assert model.name == "openai-responses:gpt-5"


def test_importing_it_loads_no_http_library() -> None:
    code = (
        "import sys, trioagent.models.openai_responses\n"
        "assert not {'httpx', 'httpcore', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# What is sent

ASKED = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "hello"}],
}


def said(words: str) -> Item:
    part = {"type": "output_text", "text": words, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part]}


async def test_nothing_is_sent_that_was_not_asked_for_and_nothing_is_stored() -> None:
    assert await sent() == {
        "model": "fake",
        "input": [ASKED],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


async def test_the_options_go_into_the_body() -> None:
    extra = {"store": True, "include": [], "reasoning": {"effort": "low"}}
    body = await sent(
        instructions="Be brief.", max_output_tokens=64, options={"extra_body": extra}
    )
    assert body == {
        "model": "fake",
        "input": [ASKED],
        "stream": True,
        "instructions": "Be brief.",
        "max_output_tokens": 64,
        **extra,
    }


async def test_tools_are_told_and_their_schemas_left_as_they_are() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    spec = ToolSpec(name="look", description="Looks.", parameters=schema)
    told = {"name": "look", "description": "Looks.", "parameters": schema}
    body = await sent(tools=[spec])
    assert body["tools"] == [{"type": "function", "strict": False, **told}]


@pytest.mark.parametrize("strict", [True, False])
async def test_the_shape_of_the_answer_is_told(strict: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"] if strict else [],
        "additionalProperties": False,
    }
    body = await sent(output=OutputSpec(name="the answer", schema=schema))
    assert body["text"] == {
        "format": {
            "type": "json_schema",
            "name": "the_answer",
            "schema": schema,
            "strict": strict,
        }
    }


async def test_a_history_is_sent_as_the_api_wants_it() -> None:
    body = await sent(
        UserMessage("hello"),
        Reply(
            text="I look.",
            tool_calls=(
                ToolCall("look", '{"q":"a"}', "id_a", 1, 0),
                ToolCall("look", '{"q":"b"}', "id_b", 1, 1),
            ),
        ),
        ToolResult("look", "B", "id_b"),
        ToolResult("look", "A", "id_a"),
        Reply(text="A and B"),
        UserMessage("hello"),
        Reply(refusal="I would rather not."),
        Reply(),
    )
    assert body["input"] == [
        ASKED,
        said("I look."),
        *(
            {
                "type": "function_call",
                "call_id": id,
                "name": "look",
                "arguments": arguments,
            }
            for id, arguments in (("id_a", '{"q":"a"}'), ("id_b", '{"q":"b"}'))
        ),
        {"type": "function_call_output", "call_id": "id_b", "output": "B"},
        {"type": "function_call_output", "call_id": "id_a", "output": "A"},
        said("A and B"),
        ASKED,
        said("I would rather not."),
    ]


async def test_ids_that_are_missing_repeated_or_too_long_are_replaced() -> None:
    history: list[Message] = []
    for turn in (1, 2):
        ids = ("0", "0", "", "x" * 65)
        calls = tuple(ToolCall("a", "{}", id, turn, n) for n, id in enumerate(ids))
        history += [Reply(tool_calls=calls), *(ToolResult("a", "x", id) for id in ids)]
    items = (await sent(*history))["input"]
    calls_sent = [i["call_id"] for i in items if i["type"] == "function_call"]
    outputs = [i["call_id"] for i in items if i["type"] == "function_call_output"]
    made_up = ["call_1_1", "call_1_2", "call_1_3"]
    assert calls_sent == outputs
    assert calls_sent[:4] == ["0", *made_up]
    assert len(set(calls_sent)) == 8
    first = (await sent(*history[:5]))["input"]
    assert first == items[: len(first)]  # stable: a prompt cache still hits


async def test_reasoning_goes_back_byte_for_byte_in_front_of_its_calls() -> None:
    output = [
        thought("Hm.", id="rs_a", secret="gAAA/\u00fc+=="),
        message("I look.", phase="commentary"),
        call("look", '{"q": 1}', "a"),
        thought(id="rs_b"),
        call("find", "{}", "b"),
    ]
    items = await sent_back(*output, results=2)
    assert items[:5] == output
    assert [i["call_id"] for i in items[5:]] == ["a", "b"]


async def test_reasoning_goes_to_the_server_it_came_from_and_to_no_other() -> None:
    stream = sse(CREATED, done(thought()), done(call("look", "{}", "a"), 1), end())
    async with open_loopback(Answer([stream]), Answer([OK])) as server:
        reply = await ask_for_reply(fake(server))
    plain = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
    assert (await sent(reply))["input"] == [plain]


async def test_what_another_api_wrote_is_sent_as_text_and_calls() -> None:
    foreign = Reply(
        text="x",
        tool_calls=(ToolCall("look", id="toolu_1"),),
        provider="anthropic-messages",
        carry={"items": [thought()]},
    )
    plain = {
        "type": "function_call",
        "call_id": "toolu_1",
        "name": "look",
        "arguments": "{}",
    }
    assert (await sent(foreign))["input"] == [said("x"), plain]


async def test_reasoning_that_nothing_follows_is_not_sent_back() -> None:
    output = [thought(id="rs_a"), call("look", "{}", "a"), thought(id="rs_b")]
    assert await sent_back(*output) == output[:2]
    assert await sent_back(thought()) == []


async def test_reasoning_that_is_kept_nowhere_is_left_out_with_all_that_needs_it() -> (
    None
):
    output = [
        thought("Hm.", secret=None),
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        message("So.", phase="commentary"),
        call("look", "{}", "a"),
    ]
    items = await sent_back(*output)
    assert [i["type"] for i in items] == ["message", "function_call"]
    assert not any("id" in item for item in items)
    assert items[0]["phase"] == "commentary"
    assert await sent_back(thought(secret=""), message("So.")) == [said("So.")]


async def test_raw_reasoning_goes_back() -> None:
    raw = [{"type": "reasoning_text", "text": "Hm."}]
    output = [thought(secret=None, content=raw), call("look", "{}", "a")]
    assert await sent_back(*output) == output


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search"}},
        {"type": "some_new_item", "id": "x_1"},
        message("a") | {"content": [{"type": "refusal", "refusal": "No."}]},
        message("a", phase="final_answer"),
        call("look", "{}", "a", namespace="world"),
    ],
    ids=lambda item: str(item["type"]),
)
async def test_what_our_words_cannot_say_goes_back_as_it_was(item: Item) -> None:
    assert await sent_back(item, message("b")) == [item, message("b")]


async def test_free_text_calls_are_answered_in_their_own_form() -> None:
    item = {"type": "custom_tool_call", "id": "ct_1", "call_id": "a", "name": "sql"}
    item["input"] = "SELECT 1"
    back = await sent_back(item, call("look", "{}", "b"), results=2)
    assert back[:2] == [item, call("look", "{}", "b")]
    assert [(i["type"], i["call_id"]) for i in back[2:]] == [
        ("custom_tool_call_output", "a"),
        ("function_call_output", "b"),
    ]


async def test_calls_that_go_back_have_the_arguments_and_ids_we_know_them_by() -> None:
    stream = sse(CREATED, done(thought()), done(call("look", "null", ""), 1), end())
    async with open_loopback(Answer([stream])) as server:
        reply = await ask_for_reply(fake(server))
        history: list[Message] = [
            reply,
            ToolResult("look", "1"),
            reply,
            ToolResult("look", "2"),
        ]
        await ask_for_reply(fake(server), ModelRequest(messages=history))
        items = server.requests[1].json()["input"]
    assert [i.get("arguments") for i in items if "arguments" in i] == ["{}", "{}"]
    ids = [i["call_id"] for i in items if "call_id" in i]
    assert ids == ["call_1_0", "call_1_0", "call_2_0", "call_2_0"]


async def test_headers_and_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    async with open_loopback(Answer([OK])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/openai/v1/")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        await ask_for_reply(OpenAIResponses("m", headers={"X-Title": "Test"}))
        request = server.requests[0]
    assert (request.method, request.path) == ("POST", "/openai/v1/responses")
    for name, value in (
        ("authorization", f"Bearer {KEY}"),
        ("content-type", "application/json"),
        ("openai-organization", "org-1"),
        ("openai-project", "proj-1"),
        ("x-title", "Test"),
    ):
        assert request.headers[name] == value


# Keys


def test_misuse_is_told_at_once_and_names_the_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ValueError, match=r"api_key=.*OPENAI_API_KEY"):
        OpenAIResponses("m")
    for key in (f"{KEY}\n", f" {KEY}"):
        with pytest.raises(ValueError, match="api_key") as caught:
            OpenAIResponses("m", api_key=key)
        assert KEY not in everything_said(caught.value)


def everything_said(error: BaseException) -> str:
    """All that a log or a traceback could show of an error, and of what caused it."""
    texts = [str(error), repr(error), repr(vars(error))]
    cause: BaseException | None = error
    while cause is not None:
        texts += [str(cause), repr(cause), *traceback.format_exception_only(cause)]
        cause = cause.__cause__ or cause.__context__
    return "\n".join(texts)


QUOTE = f"you sent Bearer {KEY} and title-secret and: tell me the launch code"


@pytest.mark.parametrize(
    "answer",
    [
        Answer([json.dumps({"error": {"message": QUOTE, "code": KEY}}).encode()], 401),
        Answer([json.dumps({"code": KEY, "error": QUOTE}).encode()], 400),
        Answer([json.dumps({"detail": QUOTE}).encode()]),
        Answer([sse({"type": "error", "code": KEY, "message": QUOTE})]),
        Answer([sse(end("failed", error={"code": KEY, "message": QUOTE}))]),
        Answer([b"event: error\ndata: " + QUOTE.encode() + b"\n\n"]),
        Answer([KEY.encode()], 403),
    ],
    ids=["401", "xai", "detail", "error_event", "failed", "text_event", "403"],
)
async def test_neither_key_nor_prompt_is_ever_shown(
    answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_loopback(answer) as server:
        model = fake(server, api_key=KEY, headers={"x-title": "title-secret"})
        prompt = ModelRequest(messages=[UserMessage("tell me the launch code")])
        asked = await ask(model, prompt)
    assert asked.error is not None
    shown = everything_said(asked.error) + repr(asked.parts) + repr(model)
    for secret in (KEY, "title-secret", "launch code"):
        assert secret not in shown
    # httpcore shows, for debugging, what the server sent; that is not ours to hide.
    logged = [r for r in caplog.records if not r.name.startswith("httpcore")]
    assert KEY not in repr([r.getMessage() for r in logged])


# What is read


@pytest.mark.parametrize("size", [1, 10_000], ids=["byte_by_byte", "whole"])
async def test_a_case_that_was_cut_gives_a_reply_that_says_so(size: int) -> None:
    # B07, B11
    body = (DATA / "resp_incomplete.sse").read_bytes()
    reply = await play_reply(*(body[i : i + size] for i in range(0, len(body), size)))
    assert (reply.finish_reason, reply.raw_finish_reason) == (
        "length",
        "incomplete:max_output_tokens",
    )
    arguments = '{"path":"a.txt","content":"par'
    assert calls_of(reply) == [("write_file", "call_a", arguments)]
    assert reply.usage.total_tokens == 46


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("resp_eof_no_terminal", "incomplete_stream"),  # B08
        ("resp_error_event", "rate_limit_exceeded"),  # B10
        ("resp_stall_after_created", "incomplete_stream"),  # B12, as if it had ended
    ],
)
async def test_a_case_gives_its_error(file: str, kind: str) -> None:
    error = await play_error((DATA / f"{file}.sse").read_bytes())
    assert isinstance(error, ModelUnavailable)
    assert error.may_retry
    assert (error.kind, error.response_id) == (kind, "resp_1")
    assert (error.usage, error.billed) == (Usage(), "unknown")


async def test_a_stall_brings_nothing_that_counts_as_content() -> None:
    # B12: so the clock of the first token goes on
    body = (DATA / "resp_stall_after_created.sse").read_bytes()
    seen: list[ReplyPart] = []
    async with open_loopback(Answer([body, HANG])) as server:
        with trio.move_on_after(0.2):
            async with fake(server).open_reply(HELLO) as parts:
                async for part in parts:
                    seen.append(part)  # noqa: PERF401 - it is cut
        await wait_for_close(server, trio.current_time())
    assert {type(part) for part in seen} == {ReplyOpened}


def calls_of(reply: Reply) -> list[tuple[str, str, str]]:
    return [(c.name, c.id, c.arguments) for c in reply.tool_calls]


async def test_the_pieces_come_in_order_and_the_reply_is_last() -> None:
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 5},
        "cost": 0.25,
    }
    summed = event("reasoning_summary_text.delta", summary_index=0, delta="Hm.")
    parts = (
        await play(
            b": hello\n\n",
            sse(CREATED, added(thought(secret=None)), summed, done(thought("Hm."))),
            sse(added(message(), 1), text("He", 1), text("llo", 1)),
            sse(done(message("Hello"), 1)),
            sse(added(call(arguments=""), 2)),
            sse(event("function_call_arguments.delta", 2, delta="{")),
            sse(event("function_call_arguments.delta", 2, delta="}")),
            sse(event("function_call_arguments.done", 2, arguments="{}")),
            sse(done(call(), 2), end(usage=usage)),
            headers={"x-request-id": "req-1"},
        )
    ).parts
    told = Usage(
        input_tokens=9,
        output_tokens=7,
        cached_tokens=4,
        cache_write_tokens=2,
        reasoning_tokens=5,
        cost=0.25,
    )
    shown = [p for p in parts if not isinstance(p, KeepAlive)]
    reply = shown.pop()
    assert shown == [
        ReplyOpened("req-1"),
        ReplyOpened("req-1", "resp_1"),
        ReasoningDelta("Hm."),
        TextDelta("He"),
        TextDelta("llo"),
        ToolCallDelta(0, "look"),
        ToolCallDelta(0, "", "{"),
        ToolCallDelta(0, "", "}"),
        UsageReported(told),
    ]
    assert isinstance(reply, Reply)
    assert reply.carry["items"] == [thought("Hm."), message("Hello"), call()]
    assert reply == Reply(
        text="Hello",
        tool_calls=(ToolCall("look", "{}", "c1"),),
        finish_reason="tool_calls",
        raw_finish_reason="completed",
        reasoning="Hm.",
        usage=told,
        model="fake-1",
        request_id="req-1",
        response_id="resp_1",
        provider="openai-responses",
        carry=reply.carry,
    )


async def test_usage_that_is_told_again_is_shown_once() -> None:
    usage = {"input_tokens": 3}
    created = CREATED | {"response": {"id": "resp_1", "usage": usage}}
    parts = (await play(sse(created, end(usage=usage)))).parts
    assert sum(isinstance(part, UsageReported) for part in parts) == 1


async def test_a_call_that_was_cut_before_its_name_does_not_go_back() -> None:
    nameless = call(name="", arguments="", status="incomplete")
    stream = sse(CREATED, done(thought()), done(call(), 1), done(nameless, 2), cut())
    async with open_loopback(Answer([stream])) as server:
        reply = await ask_for_reply(fake(server))
        await ask_for_reply(fake(server), ModelRequest(messages=[reply]))
        assert server.requests[1].json()["input"] == [thought(), call()]


async def test_a_plain_reply_carries_nothing() -> None:
    reply = await play_reply(sse(done(message("a")), done(call(), 1), end()))
    assert reply.carry == {}


TWO = [("a", "1", '{"x":1}'), ("b", "2", '{"x":2}')]
A, B = call("a", '{"x":1}', "1"), call("b", '{"x":2}', "2")
EMPTY_A, EMPTY_B = A | {"arguments": ""}, B | {"arguments": ""}


def piece(delta: str, index: int | None, **more: Any) -> Item:
    return event("function_call_arguments.delta", index, delta=delta, **more)


@pytest.mark.parametrize(
    "events",
    [
        [
            added(EMPTY_A),
            added(EMPTY_B, 1),
            piece('{"x"', 0),
            piece('{"x":2}', 1),
            piece(":1}", 0),
            cut("x", output=[]),
        ],
        [done(A), done(B, 1), end()],
        [done(A), done(B, 1), end(output=[A, B])],
        [added(EMPTY_A), piece('{"x', 0), done(A), done(B, 1), end()],
        [end(output=[A, B])],
        [done(A), end(output=[A, B])],
        [piece('{"x":1}', 0), piece('{"x":2}', 1), end(output=[A, B])],
        [done(message("Hm.")), end(output=[message("Hm."), A, B])],
        [added(A | {"id": "x"}), done(A | {"id": "y"}), done(B, 1), end()],
        [
            added(EMPTY_A, None),
            added(EMPTY_B, None),
            piece('{"x":1}', None, item_id="fc_1"),
            done(A, None),
            done(B, None),
            end(output=[A, B]),
        ],
        [
            event("output_text.delta", None, delta="Hm."),
            added(EMPTY_A | {"id": None}, None),
            piece('{"x":1}', None),
            done(A | {"id": None}, None),
            done(B | {"id": None}, None),
            end(),
        ],
    ],
    ids=[
        "interleaved_without_whole_items",
        "whole_items_only",
        "whole_items_twice",
        "a_whole_item_has_the_last_word",
        "at_the_end_only",
        "one_at_the_end_only",
        "whole_at_the_end",
        "not_streamed_beside_a_message",
        "ids_change_on_the_way",
        "no_index",
        "no_index_and_no_id",
    ],
)
async def test_pieces_of_calls_find_their_call(events: list[Item]) -> None:
    asked = await play(sse(CREATED, *events))
    reply = asked.reply
    assert reply is not None
    assert calls_of(reply) == TWO
    for position, (name, _, arguments) in enumerate(TWO):
        mine = [
            p
            for p in asked.parts
            if isinstance(p, ToolCallDelta) and p.position == position
        ]
        assert "".join(p.name for p in mine) == name
        assert "".join(p.arguments for p in mine) == arguments


async def test_arguments_may_be_an_object() -> None:
    reply = await play_reply(sse(done(call(arguments={"x": 1})), end()))
    assert calls_of(reply) == [("look", "c1", '{"x":1}')]


@pytest.mark.parametrize("arguments", [None, "", "null", " null "])
async def test_no_arguments_are_an_empty_object(arguments: str | None) -> None:
    reply = await play_reply(sse(done(call(arguments=arguments)), end()))
    assert calls_of(reply) == [("look", "c1", "{}")]


@pytest.mark.parametrize("arguments", ["", '{"x', '{"x":1}'])
async def test_the_arguments_of_a_cut_reply_stay_as_they_are(arguments: str) -> None:
    for last in (cut(), cut(output=[call(arguments=arguments, status="incomplete")])):
        events = [added(call(arguments="")), piece(arguments, 0), last]
        reply = await play_reply(sse(*events))
        assert calls_of(reply) == [("look", "c1", arguments)]
        assert reply.finish_reason == "length"


async def test_a_call_without_a_name_is_an_error_unless_it_was_cut() -> None:
    error = await play_error(sse(piece("{}", 0), end()))
    assert error.kind == "protocol_error"
    assert (await play_reply(sse(piece("{", 0), cut()))).tool_calls == ()


async def test_free_text_calls_keep_their_text() -> None:
    item = {"type": "custom_tool_call", "call_id": "a", "name": "sql", "input": ""}
    events = [
        added(item),
        event("custom_tool_call_input.delta", delta="nul"),
        event("custom_tool_call_input.delta", delta="l"),
        done(item | {"input": "null"}),
    ]
    reply = await play_reply(sse(*events, end()))
    assert calls_of(reply) == [("sql", "a", "null")]
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "events",
    [
        [text("a"), text("b", 0, 1), text("c", 2)],
        [text("a"), text("c", 2), text("b", 0, 1), done(message("a", "b"))],
        [text("a"), done(message("a", "b")), done(message("c"), 2)],
        [text("a"), done(message("a", "b")), end(output=[message("ab"), message("c")])],
        [end(output=[message("ab"), thought(), message("c")])],
        [
            done(message("ab")),
            {"type": "response.brand_new", "output_index": 0},
            {"type": "response.output_text.annotation.added"},
            done(message("c"), 2),
        ],
    ],
)
async def test_text_comes_whole_from_pieces_or_items(events: list[Item]) -> None:
    asked = await play(sse(*events, end()))
    assert asked.reply is not None
    assert asked.reply.text == "abc"
    assert sorted(asked.text) == ["a", "b", "c"]


async def test_a_whole_item_that_differs_from_its_pieces_counts() -> None:
    reply = await play_reply(sse(text("abx"), done(message("abc")), end()))
    assert reply.text == "abc"


def summed(delta: str, part: int = 0, index: int = 0) -> Item:
    return event("reasoning_summary_text.delta", index, summary_index=part, delta=delta)


def raw(delta: str, index: int = 0) -> Item:
    return event("reasoning_text.delta", index, content_index=0, delta=delta)


RAW = [{"type": "reasoning_text", "text": "Hm."}]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([summed("H"), summed("m."), done(thought("Hm."))], "Hm."),
        ([summed("Hm."), summed("So.", 1)], "Hm.\n\nSo."),
        ([summed("Hm."), summed("So.", 0, 1), text("x", 2)], "Hm.\n\nSo."),
        ([raw("H"), raw("m."), done(thought(content=RAW))], "Hm."),
        ([done(thought(content=RAW))], "Hm."),
        ([done(thought("So.", content=RAW))], "So."),
        ([summed("So."), raw("Hm."), done(thought("So.", content=RAW))], "So."),
        ([done(thought("Hm.", "So."))], "Hm.\n\nSo."),
        ([end(output=[thought("Hm.")])], "Hm."),
        ([done(thought())], ""),
    ],
)
async def test_reasoning_is_its_summary_or_where_there_is_none_itself(
    events: list[Item], expected: str
) -> None:
    asked = await play(sse(*events, end()))
    assert asked.reply is not None
    assert asked.reply.reasoning == asked.reasoning == expected


async def test_a_refusal_is_no_text() -> None:
    pieces = [event("refusal.delta", content_index=0, delta=d) for d in ("I ", "won't")]
    reply = await play_reply(sse(*pieces, end()))
    assert (reply.text, reply.refusal) == ("", "I won't")
    assert (reply.finish_reason, reply.raw_finish_reason) == ("refusal", "completed")
    both = await play_reply(sse(text("Well.", 1), *pieces, end()))
    assert (both.text, both.finish_reason) == ("Well.", "stop")


@pytest.mark.parametrize(
    ("last", "expected", "raw"),
    [
        (end(), "stop", "completed"),
        (cut(), "length", "incomplete:max_output_tokens"),
        (cut("content_filter"), "content_filter", "incomplete:content_filter"),
        (cut("max_messages"), "other", "incomplete:max_messages"),
        (cut("steered"), "other", "incomplete:steered"),
        (cut(None), "other", "incomplete:unknown"),
        (
            cut() | {"type": "response.completed"},
            "length",
            "incomplete:max_output_tokens",
        ),
    ],
)
async def test_finish_reasons(last: Item, expected: str, raw: str) -> None:
    reply = await play_reply(sse(CREATED, text("x"), last))
    assert (reply.finish_reason, reply.raw_finish_reason) == (expected, raw)
    reply = await play_reply(json.dumps(last["response"]).encode())
    assert (reply.finish_reason, reply.raw_finish_reason) == (expected, raw)


async def test_an_end_need_not_say_anything() -> None:
    last = {"type": "response.completed", "response": {}}
    assert (await play_reply(sse(text("ok"), last))).text == "ok"


async def test_what_follows_the_end_does_not_count() -> None:
    reply = await play_reply(sse(CREATED, text("ok"), end(), text("no"), "[DONE]"))
    assert reply.text == "ok"
    assert (await play_reply(OK, CUT)).text == "ok"


async def test_a_server_that_holds_the_connection_does_not_hold_the_reply() -> None:
    with trio.fail_after(5):
        assert (await play_reply(OK, HANG)).text == "ok"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b": ping\n\n",
        b"upstream timed out",
        sse("[DONE]"),
        sse(CREATED, "[DONE]"),
        sse(text("x")),
        b'{"id": "x"}',
        sse(done(call())),
    ],
)
async def test_an_answer_without_an_end_is_incomplete(body: bytes) -> None:
    error = await play_error(body)
    assert isinstance(error, ModelUnavailable)
    assert error.kind == "incomplete_stream"


@pytest.mark.parametrize("last", [[], [CUT]], ids=["eof", "cut"])
async def test_a_stream_that_breaks_is_an_error_with_what_is_known(
    last: list[Any],
) -> None:
    usage = {"input_tokens": 3}
    created = CREATED | {"response": {"id": "resp_1", "usage": usage}}
    asked = await play(
        sse(created, text("a")), *last, headers={"x-request-id": "req-1"}
    )
    error = asked.error
    assert isinstance(error, ModelUnavailable)
    assert asked.text == "a"
    assert (error.request_id, error.response_id) == ("req-1", "resp_1")
    assert (error.usage, error.billed) == (Usage(input_tokens=3), "unknown")


@pytest.mark.parametrize("data", ["{", '{"type":', "[]", "7", '{"type": 7}', '"\xff'])
async def test_an_event_that_is_none_is_an_error_and_not_skipped(data: str) -> None:
    asked = await play(sse(CREATED, text("a"), data, text("b"), end()))
    assert isinstance(asked.error, ModelUnavailable)
    assert asked.error.kind == "bad_chunk"
    assert asked.text == "a"


@pytest.mark.parametrize(
    "events",
    [
        [{"type": "response.output_text.delta", "delta": None}],
        [{"type": "response.output_text.delta"}, {"type": None}, {}],
        [event("output_item.done", item={})],
        [done(message() | {"content": None}), done(message() | {"content": [7]}, 1)],
        [end(output=[7, None, {"type": "reasoning", "summary": [{"type": 7}]}])],
        [end(output=[{"type": "reasoning", "summary": [{"type": "summary_text"}]}])],
    ],
)
async def test_events_that_say_nothing_are_skipped(events: list[Item]) -> None:
    assert (await play_reply(sse(text("ok", 9), *events, end()))).text == "ok"


@pytest.mark.machine
async def test_a_hundred_thousand_deltas_take_linear_time() -> None:
    async def seconds(count: int) -> float:
        per_step = 100
        letter = sse(piece("x", 0))
        whole = '{"content":"' + "x" * count + '"}'
        begin = sse(CREATED, added(call(arguments="")), piece('{"content":"', 0))
        last = sse(piece('"}', 0), done(call(arguments=whole)), end())
        start = time.process_time()
        steps = [begin, *[letter * per_step] * (count // per_step), last]
        reply = await play_reply(*steps)
        spent = time.process_time() - start
        assert reply.tool_calls[0].arguments == whole
        return spent

    part, whole = await seconds(25_000), await seconds(100_000)
    slower = 1 if sys.gettrace() is None else 4  # by a coverage tool
    assert whole < 3.0 * slower  # server and client together
    assert whole / part < 9  # linear work gives 4, quadratic 16


# A server that ignores `stream`


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("before", [b"", b"\n   \n", b"\xef\xbb\xbf"])
async def test_a_whole_json_answer_is_a_reply(kind: str, before: bytes) -> None:
    usage = {"input_tokens": 3, "output_tokens": 5}
    whole = end(output=[thought("Hm."), message("Hello"), call()], usage=usage)
    body = before + json.dumps(whole["response"], indent=1).encode()
    asked = await play(body[:9], 0.01, body[9:], headers={"content-type": kind})
    reply = asked.reply
    assert reply is not None
    assert (reply.text, reply.reasoning) == ("Hello", "Hm.")
    assert calls_of(reply) == [("look", "c1", "{}")]
    assert reply.usage == Usage(input_tokens=3, output_tokens=5)
    assert (asked.text, asked.reasoning) == ("Hello", "Hm.")


@pytest.mark.parametrize("status", ["queued", "in_progress", "cancelled"])
async def test_a_response_that_is_not_over_is_no_reply(status: str) -> None:
    body = json.dumps(end(status)["response"]).encode()
    error = await play_error(body)
    assert isinstance(error, ModelUnavailable)
    assert (error.kind, error.response_id) == (status, "resp_1")
    assert f"it is {status}" in str(error)


async def test_a_whole_answer_that_was_cut_is_an_error() -> None:
    body = json.dumps(end()["response"]).encode()[:-20]
    assert isinstance(await play_error(body), ModelUnavailable)
    assert isinstance(await play_error(body, CUT), ModelUnavailable)


def test_a_reply_is_put_together_without_any_io() -> None:
    body = Body(ResponsesStream(Reporter("m", request_id="req-1")))
    assert body.feed(sse(text("a"))) == [TextDelta("a")]
    assert body.feed(sse(end()))[0] == ReplyOpened("req-1", "resp_1")
    assert body.stream.is_finished
    body.stream.fail(ModelUnavailable("the connection broke"))
    assert body.stream.finish().text == "a"


# Errors


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "invalid_request_error", ModelRefused),
        (400, "previous_response_not_found", ModelRefused),
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
        (500, "server_error", ModelUnavailable),
        (503, "", ModelUnavailable),
        (524, "", ModelUnavailable),
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
    assert "openai-responses:fake" in str(error)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "because"}},
        {"code": "invalid-argument", "error": "because"},  # xAI
        {"detail": "because"},  # ChatGPT
        {"type": "error", "code": "x", "message": "because", "param": None},
        {"type": "error", "error": {"type": "x", "code": "x", "message": "because"}},
        end("failed", error={"code": "x", "message": "because"}),
        end("failed", error={"code": "x", "message": "because"})["response"],
    ],
)
async def test_an_error_is_told_in_any_shape(body: Item) -> None:
    data = json.dumps(body).encode()
    for answer in (data, sse(CREATED, body), b"event: error\n" + sse(body)):
        assert "because" in str(await play_error(answer))
    if not str(body.get("type")).startswith("response"):
        assert "because" in str(await play_error(data, status=400))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("server_error", ModelUnavailable),
        ("rate_limit_exceeded", ModelUnavailable),
        ("vector_store_timeout", ModelUnavailable),
        ("something_new", ModelUnavailable),
        ("insufficient_quota", ModelRefused),
        ("invalid_prompt", ModelRefused),
        ("bio_policy", ModelRefused),
        ("misalignment_policy_violation", ModelRefused),
        ("data_residency_mismatch", ModelRefused),
    ],
)
async def test_an_error_in_a_200_is_judged_by_its_code(
    code: str, expected: type[ModelError]
) -> None:
    error = {"code": code, "message": "because"}
    usage = {"input_tokens": 3, "output_tokens": 1}
    flat, nested = {"type": "error", **error}, {"type": "error", "error": error}
    for last in (flat, nested, end("failed", error=error, usage=usage)):
        asked = await play(sse(CREATED, text("Hel"), last))
        found = asked.error
        assert isinstance(found, expected)
        assert (found.kind, found.response_id) == (code, "resp_1")
        assert asked.text == "Hel"
        known = (
            Usage(input_tokens=3, output_tokens=1) if "response" in last else Usage()
        )
        assert found.usage == known


async def test_the_first_error_counts() -> None:
    first = {"type": "error", "error": {"code": "insufficient_quota", "message": "no"}}
    error = await play_error(sse(CREATED, first, end("failed", error=None)))
    assert isinstance(error, ModelRefused)


async def test_a_failure_without_a_reason_is_a_failure() -> None:
    error = await play_error(sse(CREATED, end("failed", error=None)))
    assert isinstance(error, ModelUnavailable)
    assert error.kind == "failed"


async def test_the_error_line_of_llama_cpp_is_an_error() -> None:
    line = b'error: {"code":500,"message":"because","type":"server_error"}\n\n'
    asked = await play(sse(CREATED, text("a")), line)
    assert isinstance(asked.error, ModelUnavailable)
    assert "because" in str(asked.error)
    assert asked.text == "a"


async def test_a_web_page_is_no_answer() -> None:
    error = await play_error(b"<!DOCTYPE html><html>Sign in</html>")
    assert isinstance(error, ModelUnavailable)
    assert "web page" in str(error)


# Letting go


async def wait_for_close(server: Loopback, stopped_at: float) -> None:
    """The server saw every client close, soon after the stop."""
    with trio.fail_after(5):
        for connection in server.connections:
            await connection.closed.wait()
            assert connection.closed_at is not None
            assert connection.closed_at - stopped_at < SOON


PLACES: dict[str, tuple[Answer, type[ReplyPart]]] = {
    "before_the_first_byte": (Answer([HANG]), ReplyOpened),
    "in_the_text": (Answer([sse(CREATED, text("a")), HANG]), TextDelta),
    "in_the_reasoning": (Answer([sse(CREATED, summed("a")), HANG]), ReasoningDelta),
    "in_the_arguments": (
        Answer([sse(CREATED, added(call()), piece('{"x', 0)), HANG]),
        ToolCallDelta,
    ),
    "between_pings": (Answer([Drip(b": keepalive\n\n", 0.01)]), KeepAlive),
    "in_a_flood": (Answer([sse(text("x")) * 200] * 500 + [HANG]), TextDelta),
    "in_a_whole_answer": (Answer([b"{", HANG]), KeepAlive),
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_cancel_closes_the_connection(place: str) -> None:
    answer, kind = PLACES[place]
    with trio.fail_after(10):
        async with open_loopback(answer) as server, fake(server) as model:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    there = trio.Event()
                    nursery.start_soon(read_on, model, kind, there)
                    await there.wait()
                    await trio.testing.wait_all_tasks_blocked()
                    stopped_at = trio.current_time()
                    scope.cancel()
            assert trio.current_time() - stopped_at < SOON
            await wait_for_close(server, stopped_at)


async def read_on(
    model: OpenAIResponses, kind: type[ReplyPart], there: trio.Event
) -> None:
    async with model.open_reply(HELLO) as parts:
        async for part in parts:
            if isinstance(part, kind):
                there.set()


@pytest.mark.parametrize("place", PLACES)
async def test_leaving_the_block_closes_the_connection(place: str) -> None:
    answer, kind = PLACES[place]
    with trio.fail_after(10):
        async with open_loopback(answer) as server, fake(server) as model:
            async with model.open_reply(HELLO) as parts:
                async for part in parts:
                    if isinstance(part, kind):
                        break
                stopped_at = trio.current_time()
            await wait_for_close(server, stopped_at)


async def test_replies_share_a_connection() -> None:
    async with open_loopback(Answer([OK])) as server:
        async with fake(server) as model:
            for _ in range(3):
                await ask_for_reply(model)
    assert len(server.connections) == 1
