"""A turn over a real socket, against httpx by hand; the server is a process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any

import httpx
import trio

from trioagent import (
    Agent,
    KeptEvent,
    Limits,
    Message,
    ModelAsked,
    Reply,
    UserMessage,
    tool,
)
from trioagent.models.openai_chat import OpenAIChat

HISTORY = 1_000
SERVER = """
import asyncio, sys

EVENT = (b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
         b'"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}\\n\\n')
CALL = (b'{"tool_calls":[{"index":0,"id":"c1","type":"function",'
        b'"function":{"name":"noop","arguments":"{}"}}]}')
BODY = (EVENT % (b'{"content":"word"}', b"null") * 20 + EVENT % (CALL, b"null")
        + EVENT % (b"{}", b'"tool_calls"') + b"data: [DONE]\\n\\n")
HEAD = (b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\n"
        b"content-length: %d\\r\\n\\r\\n" % len(BODY))

async def handle(reader, writer):
    try:
        while head := await reader.readuntil(b"\\r\\n\\r\\n"):
            size = int(head.lower().partition(b"content-length: ")[2].split()[0])
            await reader.readexactly(size)
            writer.write(HEAD + BODY)
    except asyncio.IncompleteReadError:
        writer.close()

async def main():
    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=2**24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server that ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.stdin.close()


@tool(effect="read")
async def noop() -> str:
    """Do nothing."""
    await trio.lowlevel.checkpoint()
    return "ok"


async def ours(address: str, turns: int) -> list[float]:
    """Seconds of each turn of a run: ask, read the pieces, call a tool."""
    history: list[Message] = []
    for n in range(HISTORY // 2):
        history += [UserMessage(f"question {n}"), Reply(text=f"answer {n} " * 10)]
    limits = Limits(turns=turns, tool_calls=turns)
    stamps: list[float] = []

    def note(_: str, event: KeptEvent) -> None:
        if isinstance(event, ModelAsked):
            stamps.append(time.perf_counter())

    model = OpenAIChat("m", base_url=address, api_key="none")
    agent = Agent(model, tools=[noop], limits=limits, observers=[note])
    outcome = await agent.run("go", history=history)
    assert outcome.turns == turns
    return [b - a for a, b in pairwise(stamps)]


async def floor(address: str, turns: int) -> list[float]:
    """The same by hand."""
    messages: list[dict[str, Any]] = []
    for n in range(HISTORY // 2):
        messages += [
            {"role": "user", "content": f"question {n}"},
            {"role": "assistant", "content": f"answer {n} " * 10},
        ]
    messages.append({"role": "user", "content": "go"})
    stamps = []
    async with httpx.AsyncClient() as client:
        for _ in range(turns):
            stamps.append(time.perf_counter())
            text, calls = "", []
            body = {"model": "m", "messages": messages, "stream": True}
            async with client.stream(
                "POST", f"{address}/chat/completions", json=body
            ) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        [choice] = json.loads(line[6:])["choices"]
                        text += choice["delta"].get("content", "")
                        calls += choice["delta"].get("tool_calls", [])
            assert text == "word" * 20
            messages.append({"role": "assistant", "content": text, "tool_calls": calls})
            async with trio.open_nursery() as nursery:
                for call in calls:
                    nursery.start_soon(_call, call["id"], messages)
    return [b - a for a, b in pairwise(stamps)]


async def _call(call_id: str, messages: list[dict[str, Any]]) -> None:
    with trio.move_on_after(30):
        content = await noop.fn()
        messages.append({"role": "tool", "tool_call_id": call_id, "content": content})


def turn_over_http() -> dict[str, float]:
    """A turn after 1,000 messages of history over loopback HTTP, against httpx."""
    mine, bare = [], []
    with serving() as address:
        for _ in range(5):
            mine += trio.run(ours, address, 52)[1:]
            bare += trio.run(floor, address, 52)[1:]
    a, b = median(mine), median(bare)
    return {"turn_ms": a * 1e3, "floor_ms": b * 1e3, "ratio": a / b}
