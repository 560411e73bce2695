"""What holds for each adapter alike, over real sockets."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.asking import ask, ask_for_reply
from tests.loopback import HANG, Answer, Loopback, open_loopback
from trioagent import (
    Agent,
    Limits,
    Model,
    ModelAsked,
    ModelCut,
    TextDelta,
    ToolStarted,
    retries,
    tool,
)
from trioagent.models.anthropic import AnthropicMessages
from trioagent.models.gemini import Gemini
from trioagent.models.openai_chat import OpenAIChat
from trioagent.models.openai_responses import OpenAIResponses
from trioagent.testing import MemoryStore, check_model


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events)


def chat(address: str, **options: Any) -> Model:
    return OpenAIChat("m", base_url=address, api_key="", **options)


def responses(address: str, **options: Any) -> Model:
    return OpenAIResponses("m", base_url=address, api_key="", **options)


def anthropic(address: str, **options: Any) -> Model:
    return AnthropicMessages("m", base_url=address, api_key="", **options)


def gemini(address: str, **options: Any) -> Model:
    return Gemini("m", base_url=address, api_key="", **options)


def content(text: str) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}}]}


MESSAGE = {"type": "message", "role": "assistant", "id": "m1", "content": []}
WHOLE = {"type": "output_text", "text": "Hello"}
START = {
    "chat": sse({"id": "c", "choices": [{"index": 0, "delta": {"content": "Hello"}}]}),
    "responses": sse(
        {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": MESSAGE},
        {
            "type": "response.output_text.delta",
            "output_index": 0,
            "content_index": 0,
            "delta": "Hello",
        },
    ),
    "anthropic": sse(
        {"type": "message_start", "message": {"id": "a", "usage": {"input_tokens": 3}}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "Hello"},
        },
    ),
    "gemini": sse(content("Hello")),
}
END = {
    "chat": sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    + b"data: [DONE]\n\n",
    "responses": sse(
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {**MESSAGE, "content": [WHOLE]},
        },
        {
            "type": "response.completed",
            "response": {"id": "r", "status": "completed", "output": []},
        },
    ),
    "anthropic": sse(
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message_stop"},
    ),
    "gemini": sse({"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}),
}
MAKE: dict[str, Callable[..., Model]] = {
    "chat": chat,
    "responses": responses,
    "anthropic": anthropic,
    "gemini": gemini,
}
each_wire = pytest.mark.parametrize("wire", MAKE)


def active(model: Any) -> int:
    """The connections that are not idle."""
    pool = model._endpoint._http._here.get()
    assert pool is not None
    return sum(not c.is_idle() for c in pool.client._transport._pool.connections)


@each_wire
async def test_it_is_a_model_as_the_port_wants_it(wire: str) -> None:
    async with open_loopback(Answer([START[wire], 0.01, END[wire]])) as server:
        await check_model(MAKE[wire](server.url))


@each_wire
async def test_no_connection_is_lost_to_cancelled_callers(wire: str) -> None:
    # B01: twenty callers on five connections, stopped at random moments.
    dice = random.Random(1)
    answer = Answer([START[wire], 0.003, END[wire]], before=[0.002])
    async with open_loopback(answer) as server:
        model: Any = MAKE[wire](server.url, connections=5)
        async with model:
            end = trio.current_time() + 2

            async def churn() -> None:
                while trio.current_time() < end:
                    with trio.move_on_after(dice.uniform(0.0005, 0.2)):
                        await ask(model)

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(churn)
            with trio.fail_after(2):
                assert (await ask_for_reply(model)).text == "Hello"
            assert active(model) == 0
        assert len(server.requests) > 10


@each_wire
@pytest.mark.parametrize("where", ["no headers", "no byte", "after the first token"])
async def test_a_stalled_server_is_left_and_asked_as_often_as_it_is_due(
    wire: str, where: str
) -> None:
    # Rules 78, 113: the socket is closed, and after visible output nobody asks again.
    answer, scope, requests = {
        "no headers": (Answer(before=[HANG]), "first_token", 2),
        "no byte": (Answer([HANG]), "silence", 2),
        "after the first token": (Answer([START[wire], HANG]), "silence", 1),
    }[where]
    limits = Limits(first_token_seconds=0.3, silence_seconds=0.15)
    async with open_loopback(answer) as server:
        agent = Agent(MAKE[wire](server.url), limits=limits)
        outcome = await agent.run("go")
        assert outcome.stop is not None
        assert (outcome.stop.code, outcome.stop.scope) == ("llm_timeout", scope)
        assert len(server.requests) == requests
        await all_closed(server)


async def all_closed(server: Loopback) -> None:
    with trio.fail_after(1):
        for connection in server.connections:
            await connection.closed.wait()


@each_wire
async def test_a_passing_error_is_asked_again_with_its_request_id_kept(
    wire: str,
) -> None:
    down = Answer(
        [b'{"error": {"message": "busy", "status": "UNAVAILABLE"}}'],
        status=503,
        headers={"x-request-id": "req_7", "retry-after-ms": "20"},
    )
    store = MemoryStore()
    async with open_loopback(down, Answer([START[wire], END[wire]])) as server:
        outcome = await Agent(MAKE[wire](server.url), store=store).run("go")
    assert outcome.unwrap() == "Hello"
    cut = next(e for e in store.events if isinstance(e, ModelCut))
    assert (cut.request_id, cut.code) == ("req_7", "llm_unavailable")
    attempts = [e.attempt for e in store.events if isinstance(e, ModelAsked)]
    assert attempts == [1, 2]


@each_wire
async def test_a_fallback_of_another_wire_goes_on_with_the_same_history(
    wire: str,
) -> None:
    @tool(effect="read")
    async def look() -> str:
        await trio.lowlevel.checkpoint()
        return "seen"

    one = {"index": 0, "id": "x", "function": {"name": "look", "arguments": "{}"}}
    delta = {"tool_calls": [one]}
    called = sse(
        {"choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]}
    )
    first = Answer([called + b"data: [DONE]\n\n"])
    down = Answer([b"{}"], status=500)
    async with open_loopback(first, down) as one_server:
        async with open_loopback(Answer([START[wire], END[wire]])) as other:
            agent = Agent(
                chat(one_server.url),
                fallback=[MAKE[wire](other.url)],
                retry=retries(0),
                tools=[look],
            )
            outcome = await agent.run("go")
        assert outcome.unwrap() == "Hello"
        assert b"seen" in other.requests[0].body


@each_wire
async def test_leaving_closes_the_socket_and_no_tool_begins(wire: str) -> None:
    began: list[str] = []
    async with open_loopback(Answer([START[wire], HANG])) as server:
        async with Agent(MAKE[wire](server.url)).open("go") as run:
            async for event in run:
                if isinstance(event, ToolStarted):
                    began.append(event.call.name)
                if isinstance(event, TextDelta):
                    left_at = trio.current_time()
                    break
        await all_closed(server)
        closed_at = server.connections[0].closed_at
        assert closed_at is not None
        assert closed_at - left_at < 0.1
        assert (len(server.requests), began) == (1, [])
