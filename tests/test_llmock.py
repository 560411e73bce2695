"""A chaos server plays its faults: each gives a right answer or a typed error in time.

llmock keeps a journal and judges the client by it: what was retried, how soon, and what
was taken for an answer. The adapter does not retry, so the test plays the caller that
does what the error says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
import trio

from tests.asking import HELLO, Asked, ask
from trioagent._errors import ModelError, ModelRefused, ModelUnavailable
from trioagent._events import Reply, UserMessage
from trioagent._ports import ModelRequest, ToolSpec
from trioagent.models.openai_chat import OpenAIChat

pytest.importorskip("llmock", reason="llmock is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

# Started by a small program, because only a socket that is bound before the server
# starts has a port that nobody else can take.
SERVE = """
import socket, sys, uvicorn
from llmock.main import app
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(app, log_level="critical", lifespan="off")
uvicorn.Server(config).run(sockets=[listener])
"""
LOOK = ToolSpec(
    name="look",
    description="Looks.",
    parameters={"type": "object", "properties": {"q": {"type": "string"}}},
)
WITH_TOOLS = ModelRequest(messages=[UserMessage("look up the weather")], tools=[LOOK])


class LLMock:
    """The server's own API, to set up a fault and to hear the verdict."""

    def __init__(self, port: int) -> None:
        self._port = port

    def call(self, method: str, path: str, body: Any = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, f"/_llmock/{path}", data)
            response = connection.getresponse()
            assert response.status < 300
            return json.loads(response.read())
        finally:
            connection.close()

    def play(self, *behaviors: dict[str, Any]) -> None:
        self.call("POST", "reset")
        if behaviors:
            self.call("POST", "scenario", {"behaviors": behaviors})

    def attempts(self) -> int:
        count: int = self.call("GET", "requests")["count"]
        return count

    def findings(self) -> list[Any]:
        found: list[Any] = self.call("GET", "verdict")["findings"]
        return found

    def model(self) -> OpenAIChat:
        return OpenAIChat("gpt-4o", base_url=f"http://127.0.0.1:{self._port}/v1")


@pytest.fixture(scope="module")
def llmock() -> Iterator[LLMock]:
    # A stream that is sent in one go is over before we can object to a piece of it, and
    # is then put down as one that we took.
    environment = {**os.environ, "LLMOCK_STREAM_CHUNK_DELAY_MS": "30"}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert server.stdout is not None
        yield LLMock(int(server.stdout.readline()))
    finally:
        server.kill()
        server.communicate()


async def ask_as_told(model: OpenAIChat, request: ModelRequest = HELLO) -> list[Asked]:
    """Ask, and ask once more if the error says that it may help."""
    tries: list[Asked] = []
    with trio.fail_after(15):
        for _ in range(2):
            tries.append(await ask(model, request))
            error = tries[-1].error
            if error is None or not error.may_retry:
                break
            await trio.sleep(0.1 if error.retry_after is None else error.retry_after)
    return tries


async def test_an_answer_without_faults(llmock: LLMock) -> None:
    llmock.play({"type": "reply", "text": "Hello there, friend."})
    [asked] = await ask_as_told(llmock.model())
    assert asked.reply is not None
    assert asked.reply.text == asked.text == "Hello there, friend."
    assert asked.reply.finish_reason == "stop"
    assert asked.reply.usage.total_tokens
    assert llmock.findings() == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refusal_is_not_repeated(llmock: LLMock, status: int) -> None:
    llmock.play({"type": "fail", "status": status, "times": None})
    [asked] = await ask_as_told(llmock.model())
    assert isinstance(asked.error, ModelRefused)
    assert asked.error.status == status
    assert llmock.attempts() == 1
    assert llmock.findings() == []


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_a_passing_failure_may_be_tried_again(
    llmock: LLMock, status: int
) -> None:
    llmock.play({"type": "fail", "status": status})
    first, second = await ask_as_told(llmock.model())
    assert isinstance(first.error, ModelUnavailable)
    assert first.error.status == status
    assert second.reply is not None
    assert llmock.findings() == []


async def test_the_wait_that_was_asked_for_is_told(llmock: LLMock) -> None:
    llmock.play({"type": "fail", "status": 429, "retry_after": 1})
    first, second = await ask_as_told(llmock.model())
    assert first.error is not None
    assert first.error.retry_after == 1.0
    assert second.reply is not None
    assert llmock.findings() == []


async def test_a_quota_is_no_reason_to_try_again(llmock: LLMock) -> None:
    fault = {"type": "fail", "status": 429, "code": "insufficient_quota"}
    llmock.play(fault)
    [asked] = await ask_as_told(llmock.model())
    assert isinstance(asked.error, ModelRefused)
    assert asked.error.kind == "insufficient_quota"


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("kind", ["disconnect", "truncate", "malformed"])
async def test_a_broken_stream_is_never_an_answer(
    llmock: LLMock, kind: str, after: int
) -> None:
    reply = {"type": "reply", "text": "one two three four five", "times": None}
    llmock.play(reply, {"type": "stream_fault", "kind": kind, "after_chunks": after})
    first, second = await ask_as_told(llmock.model())
    assert isinstance(first.error, ModelUnavailable)
    assert "one two three four five".startswith(first.text)
    assert second.reply is not None
    assert second.reply.text == "one two three four five"
    assert llmock.attempts() == 2
    assert llmock.findings() == []


@pytest.mark.parametrize("kind", ["disconnect", "truncate", "malformed"])
async def test_a_call_in_a_broken_stream_never_comes_out(
    llmock: LLMock, kind: str
) -> None:
    calls = [{"name": "look", "arguments": {"q": "the weather in Paris"}}]
    reply = {"type": "reply", "tool_calls": calls, "times": None}
    llmock.play(reply, {"type": "stream_fault", "kind": kind, "after_chunks": 3})
    first, second = await ask_as_told(llmock.model(), WITH_TOOLS)
    assert isinstance(first.error, ModelUnavailable)
    assert not any(isinstance(part, Reply) for part in first.parts)
    assert second.reply is not None
    [call] = second.reply.tool_calls
    assert json.loads(call.arguments) == {"q": "the weather in Paris"}
    assert llmock.findings() == []


async def test_a_stall_ends_when_the_caller_says_so(llmock: LLMock) -> None:
    stall = {"type": "stream_fault", "kind": "stall", "stall_seconds": 30}
    llmock.play({**stall, "after_chunks": 2})
    started_at = trio.current_time()
    with trio.move_on_after(0.3) as silence:
        await ask(llmock.model())
    assert silence.cancelled_caught
    assert trio.current_time() - started_at < 0.5
    assert llmock.findings() == []


@pytest.mark.parametrize(
    "fault",
    [
        {"type": "delay", "seconds": 0.3},
        {"type": "slow_first_token", "seconds": 0.3},
        {
            "type": "stream_fault",
            "kind": "stall",
            "stall_seconds": 0.3,
            "after_chunks": 2,
        },
    ],
    ids=["delay", "slow_first_token", "short_stall"],
)
async def test_a_slow_answer_is_a_right_one(
    llmock: LLMock, fault: dict[str, Any]
) -> None:
    llmock.play({"type": "reply", "text": "one two three"}, fault)
    [asked] = await ask_as_told(llmock.model())
    assert asked.reply is not None
    assert asked.reply.text == "one two three"
    assert llmock.findings() == []


@pytest.mark.parametrize("kind", ["malformed_arguments", "unknown_tool"])
async def test_a_bad_call_is_handed_on_as_it_is(llmock: LLMock, kind: str) -> None:
    llmock.play({"type": "tool_fault", "kind": kind})
    [asked] = await ask_as_told(llmock.model(), WITH_TOOLS)
    assert asked.reply is not None
    [call] = asked.reply.tool_calls
    if kind == "unknown_tool":
        assert call.name != "look"
    else:
        with pytest.raises(json.JSONDecodeError):
            json.loads(call.arguments)
    assert llmock.findings() == []


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
async def test_a_finish_reason_is_kept(llmock: LLMock, reason: str) -> None:
    llmock.play({"type": "reply", "text": "one", "finish_reason": reason})
    [asked] = await ask_as_told(llmock.model())
    assert asked.reply is not None
    assert asked.reply.finish_reason == reason


async def test_every_fault_at_once_is_still_bounded(llmock: LLMock) -> None:
    llmock.play(
        *(
            {"type": "stream_fault", "kind": kind, "after_chunks": after}
            for kind in ("disconnect", "truncate", "malformed")
            for after in (0, 1, 2, 4)
        )
    )
    async with llmock.model() as model:
        outcomes: list[Asked] = []

        async def one(number: int) -> None:
            request = ModelRequest(messages=[UserMessage(f"number {number}")])
            outcomes.append(await ask(model, request))

        with trio.fail_after(15):
            async with trio.open_nursery() as nursery:
                for number in range(24):
                    nursery.start_soon(one, number)
    errors = [asked.error for asked in outcomes if asked.error is not None]
    assert len(errors) == 12
    assert all(isinstance(error, ModelError) for error in errors)
    assert sum(asked.reply is not None for asked in outcomes) == 12
