"""A chaos server, its faults, and the adapters that meet them.

llmock plays the providers' faults and keeps a journal, by which it judges the client:
what was retried, how soon, and what was taken for an answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import trio

from tests.asking import HELLO, Asked, ask
from trioagent._events import UserMessage
from trioagent._ports import Model, ModelRequest, ToolSpec
from trioagent.models.anthropic import AnthropicMessages
from trioagent.models.gemini import Gemini
from trioagent.models.openai_chat import OpenAIChat
from trioagent.models.openai_responses import OpenAIResponses

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
WORDS = "one two three four five six seven"
PARIS = {"q": "the weather in Paris"}
BREAKS = ("disconnect", "truncate", "malformed")


class LLMock:
    """The server's own API, to set up a fault and to hear the verdict."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = f"http://127.0.0.1:{port}"

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


@contextmanager
def open_llmock() -> Iterator[LLMock]:
    """Run the server for as long as the block."""
    # A stream that is sent in one go is over before we can object to a piece of it, and
    # is then put down as one that we took.
    environment = {**os.environ, "LLMOCK_STREAM_CHUNK_DELAY_MS": "20"}
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


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One of ours, and how the server speaks its language."""

    name: str
    make: Callable[[str], Model]
    whole_calls: bool = False  # a call comes in one piece, and cannot be broken
    # What becomes of the server's word; Responses has none for a filter.
    filtered: str = "content_filter"


ADAPTERS = [
    Adapter(name="Chat", make=lambda u: OpenAIChat("gpt-4o", base_url=f"{u}/v1")),
    Adapter(
        name="Responses",
        make=lambda u: OpenAIResponses("gpt-4o", base_url=f"{u}/v1"),
        filtered="stop",
    ),
    Adapter(
        name="Anthropic",
        make=lambda u: AnthropicMessages("claude", base_url=f"{u}/anthropic"),
        filtered="refusal",
    ),
    Adapter(
        name="Gemini",
        make=lambda u: Gemini("gemini", base_url=f"{u}/gemini/v1beta"),
        whole_calls=True,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What the server is told to do, and what kind of end it may have.

    `ends` is answer, refused (asked once) or again (an error, and then an answer).
    """

    name: str
    behaviors: list[dict[str, Any]]
    ends: str
    request: ModelRequest = HELLO


def fail(status: int, **more: Any) -> dict[str, Any]:
    return {"type": "fail", "status": status, **more}


def say(**more: Any) -> dict[str, Any]:
    return {"type": "reply", "times": None, **more}


def breaks(kind: str, after: int) -> dict[str, Any]:
    return {"type": "stream_fault", "kind": kind, "after_chunks": after}


REFUSALS = [400, 401, 403, 404, 422]
FAILURES = [408, 409, 429, 500, 502, 503, 504, 529]
SLOW = {
    "an answer that begins late": {"type": "delay", "seconds": 0.3},
    "a first token that comes late": {"type": "slow_first_token", "seconds": 0.3},
    "a short stall": breaks("stall", 2) | {"stall_seconds": 0.3},
}
_QUOTA = fail(429, code="insufficient_quota", times=None)
_CALL = say(tool_calls=[{"name": "look", "arguments": PARIS}])
FAULTS = [
    *(
        Fault(name=f"{s} for good", behaviors=[fail(s, times=None)], ends="refused")
        for s in REFUSALS
    ),
    *(
        Fault(name=f"{s} once", behaviors=[fail(s, retry_after=0.1)], ends="again")
        for s in FAILURES
    ),
    Fault(name="429, quota used up", behaviors=[_QUOTA], ends="refused"),
    Fault(
        name="429, retry after 1 s", behaviors=[fail(429, retry_after=1)], ends="again"
    ),
    *(
        Fault(
            name=f"{kind} after {after} events",
            behaviors=[say(text=WORDS), breaks(kind, after)],
            ends="again",
        )
        for kind in BREAKS
        for after in (0, 1, 3)
    ),
    *(
        Fault(
            name=f"{kind} in a tool call",
            behaviors=[_CALL, breaks(kind, 3)],
            ends="again",
            request=WITH_TOOLS,
        )
        for kind in BREAKS
    ),
    *(
        Fault(name=name, behaviors=[say(text=WORDS), fault], ends="answer")
        for name, fault in SLOW.items()
    ),
    *(
        Fault(
            name=f"{kind.replace('_', ' ')} in a call",
            behaviors=[{"type": "tool_fault", "kind": kind}],
            ends="answer",
            request=WITH_TOOLS,
        )
        for kind in ("malformed_arguments", "unknown_tool")
    ),
    *(
        Fault(
            name=f"finish reason {reason}",
            behaviors=[say(text="one", finish_reason=reason)],
            ends="answer",
        )
        for reason in ("stop", "length", "content_filter")
    ),
]


def behaviors_for(fault: Fault, adapter: Adapter) -> list[dict[str, Any]]:
    """A whole call cannot be broken: then the text before it is."""
    if not (adapter.whole_calls and fault.name.endswith("in a tool call")):
        return fault.behaviors
    call, broken = fault.behaviors
    return [call | {"text": WORDS}, broken | {"after_chunks": 2}]


async def ask_as_told(model: Model, request: ModelRequest = HELLO) -> list[Asked]:
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


def in_words(asked: Asked) -> str:
    """What came of one question, for a table."""
    error = asked.error
    if error is not None:
        wait = (
            f", wait {error.retry_after:g} s" if error.retry_after is not None else ""
        )
        return f"{type(error).__name__} {error.kind}{wait}"
    assert asked.reply is not None
    calls = "".join(f" {c.name}({c.arguments})" for c in asked.reply.tool_calls)
    return f"answer, {asked.reply.finish_reason}{calls}"
