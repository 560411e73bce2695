"""From a stop until the server sees the connection close, against httpx by hand.

The server is a process of its own, and tells when it saw what by the clock of the
machine, which both share.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from statistics import median
from typing import IO, Any

import httpx
import trio

from trioagent import Agent
from trioagent.models.openai_chat import OpenAIChat

SERVER = """
import asyncio, sys, time

HEAD = b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\n\\r\\n"
DELTA = (b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
         b'"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\\n\\n')

async def stream(writer):
    writer.write(HEAD)
    while True:
        writer.write(DELTA)
        await asyncio.sleep(0.002)

async def handle(reader, writer):
    head = await reader.readuntil(b"\\r\\n\\r\\n")
    size = int(head.lower().partition(b"content-length: ")[2].split()[0])
    await reader.readexactly(size)
    talks = head.startswith(b"POST /streaming")
    task = asyncio.create_task(stream(writer)) if talks else None
    print("asked", flush=True)
    try:
        await reader.read()
    except ConnectionError:
        pass
    print(time.monotonic_ns(), flush=True)
    if task:
        task.cancel()
    writer.close()

async def main():
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""

Stop = Callable[[], object]


@contextmanager
def serving() -> Iterator[tuple[str, IO[str]]]:
    """The address of a server that ends with the block, and where it tells."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            port = process.stdout.readline().strip()
            yield f"http://127.0.0.1:{port}", process.stdout
        finally:
            process.stdin.close()


@asynccontextmanager
async def ours(url: str) -> AsyncGenerator[Stop]:
    """A run that asks; how to stop it. Leaving waits for its end."""
    model = OpenAIChat("m", base_url=url, api_key="none")
    async with Agent(model).open("go") as running, trio.open_nursery() as nursery:

        async def read() -> None:
            async for _ in running:
                pass

        nursery.start_soon(read)
        yield lambda: running.cancel("enough")


@asynccontextmanager
async def floor(url: str) -> AsyncGenerator[Stop]:
    """The same by hand."""

    async def ask(scope: trio.CancelScope) -> None:
        with scope:
            async with (
                httpx.AsyncClient() as client,
                client.stream(
                    "POST", f"{url}/chat/completions", json={"stream": True}
                ) as response,
            ):
                async for _ in response.aiter_lines():
                    pass

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, scope)
        yield lambda: scope.cancel("enough")


async def sample(
    side: Callable[[str], AbstractAsyncContextManager[Stop]], url: str, told: IO[str]
) -> float:
    """Milliseconds from one stop until the server saw the close."""
    async with side(url) as stop:
        await trio.to_thread.run_sync(told.readline)  # asked
        await trio.sleep(0.01)  # in the middle, and nobody has just woken up
        began = time.monotonic_ns()
        stop()
    seen = await trio.to_thread.run_sync(told.readline)
    return (int(seen) - began) / 1e6


def close_against_floor() -> dict[str, float]:
    """A stop until the server sees the close, while it streams and while it is silent.

    Here a millisecond is mostly the server's own waking up.
    """
    figures: dict[str, float] = {}

    async def main(url: str, told: IO[str], samples: list[tuple[float, float]]) -> None:
        for _ in range(210):
            mine = await sample(ours, url, told)
            samples.append((mine, await sample(floor, url, told)))

    with serving() as (address, told):
        for kind in ("streaming", "silent"):
            samples: list[tuple[float, float]] = []
            trio.run(main, f"{address}/{kind}", told, samples)
            sides: Any = zip(*samples[10:], strict=True)
            mine, bare = (median(side) for side in sides)
            figures[f"{kind}_ms"] = mine
            figures[f"{kind}_floor_ms"] = bare
            figures[f"{kind}_ratio"] = mine / bare
    return figures
