"""Stops, seen from the server: the socket closes, and nothing more is asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from tests.loopback import HANG, Answer, Drip, Loopback, open_loopback
from trioagent import (
    Agent,
    EffectStatus,
    FromChild,
    Limits,
    ModelAsked,
    Run,
    TextDelta,
    ToolCallDelta,
    ToolStarted,
    retries,
    tool,
)
from trioagent.models.openai_chat import OpenAIChat

DATA = Path(__file__).parent / "data"
SOON = 0.1  # seconds from a stop to what the server sees of it


def chunk(text: str) -> bytes:
    delta = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(delta).encode() + b"\n\n"


def called(name: str, arguments: str, reason: str | None = "tool_calls") -> bytes:
    function = {"name": name, "arguments": arguments}
    one = {"index": 0, "id": f"call_{name}", "function": function}
    choice = {"index": 0, "delta": {"tool_calls": [one]}, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


FINISH = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)
HALF = Answer([chunk("Once upon a time"), HANG])
WHOLE = Answer([chunk("done"), FINISH])
KEEP_ALIVE = Drip(b": ping\n\n", 0.02)


@asynccontextmanager
async def served(*answers: Answer) -> AsyncIterator[tuple[Loopback, OpenAIChat]]:
    async with open_loopback(*answers) as server:
        yield server, OpenAIChat("fake", base_url=server.url)


async def closed_soon(server: Loopback, since: float, requests: int = 1) -> None:
    """The server saw the close in time, and nothing was asked for afterwards."""
    with trio.fail_after(1):
        while not server.connections:  # noqa: ASYNC110 - on its way to the server
            await trio.sleep(0.01)
        for connection in server.connections:
            await connection.closed.wait()
    closed_at = server.connections[-1].closed_at
    assert closed_at is not None
    assert closed_at - since < SOON
    assert len(server.requests) == requests


async def test_a_user_stop_in_mid_stream_closes_the_socket() -> None:
    async with served(HALF) as (server, model):
        async with Agent(model).open("go") as run:
            async for event in run:
                if isinstance(event, TextDelta):
                    stopped_at = trio.current_time()
                    run.cancel("user_clicked_stop")
        assert run.outcome.status == "cancelled"
        assert run.outcome.text == "Once upon a time"
        assert run.outcome.cleanup[0].name == "reply"
        await closed_soon(server, stopped_at)


async def test_a_stop_from_a_thread_closes_the_socket() -> None:
    async with served(HALF) as (server, model):
        async with Agent(model).open("go") as run:
            handle = run.handle
            async for event in run:
                if isinstance(event, TextDelta):
                    stopped_at = trio.current_time()
                    threading.Thread(target=handle.cancel, args=["thread"]).start()
        assert run.outcome.stop is not None
        assert run.outcome.stop.detail == "thread"
        await closed_soon(server, stopped_at)


@pytest.mark.parametrize(
    ("answer", "limits", "reason", "scope", "at"),
    [
        (HALF, Limits(seconds=0.3), "deadline", "run", 0.3),
        (HALF, Limits(silence_seconds=0.2), "llm_timeout", "silence", 0.2),
        (
            Answer([chunk("a"), Drip(chunk("b"), 0.02)]),
            Limits(reply_seconds=0.3),
            "llm_timeout",
            "reply",
            0.3,
        ),
        (
            Answer(before=[HANG]),
            Limits(first_token_seconds=0.2),
            "llm_timeout",
            "first_token",
            0.2,
        ),
        (
            Answer([KEEP_ALIVE]),
            Limits(first_token_seconds=0.2, silence_seconds=0.1),
            "llm_timeout",
            "first_token",
            0.2,
        ),
        (
            Answer([chunk("a"), KEEP_ALIVE]),
            Limits(reply_seconds=0.3, silence_seconds=0.1),
            "llm_timeout",
            "reply",
            0.3,
        ),
        (
            Answer([called("pay", '{"amount":', None), HANG]),
            Limits(silence_seconds=0.2),
            "llm_timeout",
            "silence",
            0.2,
        ),
    ],
    ids=[
        "deadline",
        "silence",
        "drip",
        "no headers",
        "pings, then nothing",
        "pings for ever",
        "in mid-arguments",
    ],
)
async def test_each_clock_closes_the_socket_under_its_own_name(
    answer: Answer, limits: Limits, reason: str, scope: str, at: float
) -> None:
    # B12, B20
    async with served(answer) as (server, model):
        began = trio.current_time()
        agent = Agent(model, tools=[pay], limits=limits, retry=retries(0))
        outcome = await agent.run("go")
        took = trio.current_time() - began
        assert outcome.stop is not None
        assert (outcome.stop.code, outcome.stop.scope) == (reason, scope)
        assert at <= took < at + 0.25
        assert outcome.tools == ()
        await closed_soon(server, trio.current_time())


async def test_leaving_the_block_closes_the_socket() -> None:
    # B35
    async with served(HALF, WHOLE) as (server, model):
        async with Agent(model, tools=[pay]).open("go") as run:
            async for event in run:
                if isinstance(event, TextDelta):
                    left_at = trio.current_time()
                    break
        await closed_soon(server, left_at)
        assert run.outcome.status == "cancelled"


async def test_an_error_in_the_block_closes_the_socket() -> None:
    async with served(HALF) as (server, model):
        left_at = 0.0
        with pytest.raises(ValueError, match="mine"):
            async with Agent(model).open("go") as run:
                async for event in run:
                    if isinstance(event, TextDelta):
                        left_at = trio.current_time()
                        raise ValueError("mine")
        await closed_soon(server, left_at)


async def test_an_enclosing_scope_closes_the_socket() -> None:
    async with served(HALF) as (server, model):
        with trio.move_on_after(0.3):
            await Agent(model).run("go")
        await closed_soon(server, trio.current_time())


@pytest.mark.parametrize(
    "answer",
    [Answer(before=[HANG]), Answer([HANG]), Answer([called("pay", "{", None), HANG])],
    ids=["before the headers", "before the first byte", "in mid-arguments"],
)
async def test_a_stop_reaches_each_wait_of_a_model_call(answer: Answer) -> None:
    # B61, B55: and each time there is the same kind of end.
    async with served(answer) as (server, model):
        async with Agent(model, tools=[pay]).open("go") as run:
            with trio.fail_after(2):
                await server.wait_for_requests(1)
            if answer.steps and answer.steps[0] is not HANG:
                await first(run, ToolCallDelta)
            stopped_at = trio.current_time()
            run.cancel()
        assert run.outcome.status == "cancelled"
        assert run.outcome.billed == "unknown"
        await closed_soon(server, stopped_at)


async def test_a_stop_reaches_a_wait_for_a_connection_of_the_pool() -> None:
    async with open_loopback(HALF) as server:
        model = OpenAIChat("fake", base_url=server.url, connections=1)
        agent = Agent(model)
        async with agent, agent.open("first") as busy:
            await first(busy, TextDelta)
            async with agent.open("second") as run:
                await first(run, ModelAsked)
                await trio.testing.wait_all_tasks_blocked(0.05)
                stopped_at = trio.current_time()
                run.cancel()
            assert trio.current_time() - stopped_at < SOON
        assert len(server.requests) == 1


async def first(run: Run, kind: type[Any]) -> None:
    async for event in run:
        if isinstance(event, kind):
            return


@tool(effect="once")
async def pay(amount: int) -> str:
    await trio.lowlevel.checkpoint()
    return f"paid {amount}"


async def test_one_run_uses_one_connection_and_closes_it_at_its_end() -> None:
    # B50: and nothing outlives the block.
    turn = Answer([called("pay", '{"amount": 1}'), 0.02, b"data: [DONE]\n\n"])
    async with served(*[turn] * 9, WHOLE) as (server, model):
        outcome = await Agent(model, tools=[pay]).run("go")
        assert (outcome.status, outcome.turns) == ("completed", 10)
        assert len(server.connections) == 1
        await closed_soon(server, trio.current_time(), requests=10)


async def test_runs_share_their_connections_inside_the_agents_block() -> None:
    async with served(WHOLE) as (server, model):
        agent = Agent(model)
        async with agent:
            for _ in range(5):
                await agent.run("go")
            assert len(server.connections) == 1
            assert server.connections[0].closed_at is None
        await closed_soon(server, trio.current_time(), requests=5)


def replay(name: str) -> Answer:
    return Answer([(DATA / f"{name}.sse").read_bytes()])


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("chat_truncated_length", "cut by its length limit"),
        ("chat_truncated_but_tool_calls", "not whole JSON"),
        ("chat_truncated_valid_json", "cut by its length limit"),
        ("chat_unknown_tool", "no tool 'no_such_tool'"),
    ],
)
async def test_calls_that_cannot_be_trusted_never_run(case: str, told: str) -> None:
    # B07, B45
    ran: list[str] = []

    @tool(name="write_file")
    async def write_file(path: str, content: str) -> None:
        ran.append(path)

    @tool(name="delete_tree")
    async def delete_tree(path: str) -> None:
        ran.append(path)

    async with served(replay(case), WHOLE) as (server, model):
        outcome = await Agent(model, tools=[write_file, delete_tree]).run("go")
        assert (outcome.status, outcome.turns, ran) == ("completed", 2, [])
        assert outcome.tools[0].effect_status is EffectStatus.NOT_STARTED
        sent = server.requests[1].json()["messages"][-1]
        assert sent["role"] == "tool"
        assert told in sent["content"]


@pytest.mark.parametrize("case", ["chat_tools_but_stop", "chat_empty_args"])
async def test_odd_but_whole_calls_run(case: str) -> None:
    # B11, B45
    @tool(effect="read")
    async def now() -> str:
        await trio.lowlevel.checkpoint()
        return "noon"

    async with served(replay(case), WHOLE) as (_, model):
        outcome = await Agent(model, tools=[now]).run("go")
        assert [t.ended for t in outcome.tools] == ["done"]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("chat_eof_without_finish", "First, the invoice is"),
        ("chat_eof_mid_tool", ""),
        ("chat_orphan_fragment", ""),
        ("chat_inband_error", "Hel"),
    ],
)
async def test_what_is_no_whole_reply_is_a_failure_with_its_partial(
    case: str, text: str
) -> None:
    # B08, B09, B10
    async with served(replay(case), WHOLE) as (server, model):
        outcome = await Agent(model, tools=[pay]).run("go")
        assert outcome.status == "failed"
        assert (outcome.text, outcome.tools) == (text, ())
        assert len(server.requests) == 1


async def test_usage_that_comes_last_is_counted() -> None:
    # B13
    async with served(replay("chat_usage_after_finish")) as (_, model):
        outcome = await Agent(model).run("go")
        assert outcome.usage.total_tokens == 8
        assert outcome.billed == "known"


async def test_three_runs_stopped_together_close_three_sockets() -> None:
    async def one(agent: Agent) -> None:
        async with agent.open("go") as run:
            await first(run, TextDelta)
            started.release()
            await trio.sleep_forever()

    started = trio.Semaphore(0)
    async with served(HALF) as (server, model):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one, Agent(model))
            for _ in range(3):
                await started.acquire()
            stopped_at = trio.current_time()
            nursery.cancel_scope.cancel()
        await closed_soon(server, stopped_at, requests=3)


async def test_a_stop_of_the_root_closes_the_sockets_of_its_children() -> None:
    # B21
    asks = [
        Answer([called(name, '{"prompt": "go"}'), b"data: [DONE]\n\n"])
        for name in ("child", "grandchild")
    ]
    async with open_loopback(*asks, HALF) as server:
        grandchild = Agent(OpenAIChat("fake", base_url=server.url), name="grandchild")
        child = Agent(
            OpenAIChat("fake", base_url=server.url),
            name="child",
            tools=[grandchild.as_tool()],
        )
        root = Agent(OpenAIChat("fake", base_url=server.url), tools=[child.as_tool()])
        async with root.open("go") as run:
            async for event in run:
                if isinstance(event, FromChild) and isinstance(event.event, TextDelta):
                    stopped_at = trio.current_time()
                    run.cancel("user_clicked_stop")
        with trio.fail_after(1):
            for connection in server.connections:
                await connection.closed.wait()
        closes = [c.closed_at or 0 for c in server.connections]
        assert len(closes) == len(server.requests) == 3
        assert max(closes) - stopped_at < 0.2
    named = {child.name for child in run.outcome.cleanup}
    assert {"tool child", "child: tool grandchild", "child: grandchild: reply"} <= named


def files_with(text: str, folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if text.encode() in p.read_bytes()]


async def test_no_secret_is_in_a_journal_or_a_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # B25: the bytes on the disk, the write-ahead log too.
    from trioagent.observe.log import RunLog
    from trioagent.stores.sqlite import SqliteStore

    key = "sk-test-DO-NOT-KEEP-0123456789"
    echo = {"error": {"message": f"Incorrect API key provided: {key}", "code": "x"}}
    answer = Answer([json.dumps(echo).encode()], status=401, headers={})
    caplog.set_level(0)
    async with (
        open_loopback(answer) as server,
        SqliteStore(tmp_path / "journal.db") as store,
    ):
        model = OpenAIChat("fake", base_url=server.url, api_key=key)
        agent = Agent(model, store=store, observers=[RunLog(log_content=True)])
        outcome = await agent.run("go")
        assert outcome.status == "failed"
        assert files_with(key, tmp_path) == []
    assert key not in caplog.text
    assert "model_cut" in caplog.text


async def test_no_secret_shows_in_anything_a_run_leaves_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # B25, promise 10
    from trioagent.testing import MemoryStore

    key = "sk-test-DO-NOT-LOG-0123456789"
    echo = {"error": {"message": f"Incorrect API key provided: {key}", "code": "x"}}
    answer = Answer([json.dumps(echo).encode()], status=401, headers={})
    async with open_loopback(answer) as server:
        model = OpenAIChat("fake", base_url=server.url, api_key=key)
        agent = Agent(model, store=MemoryStore())
        events: list[str] = []
        async with agent.open("my secret prompt") as run:
            events.extend([repr(event) async for event in run])
    assert run.outcome.stop_reason == "llm_refused"
    seen = "".join([*events, repr(run.outcome), repr(agent), caplog.text])
    assert key not in seen
    assert run.outcome.stop
    assert "my secret prompt" not in f"{run!r} {run.outcome.stop}"


async def test_a_tool_runs_while_the_connection_waits() -> None:
    # B12 (a): a tool is no silence on the wire either.
    @tool(effect="read")
    async def slow() -> str:
        await trio.sleep(0.3)
        return "ok"

    async with served(Answer([called("slow", "{}")]), WHOLE) as (_, model):
        limits = Limits(silence_seconds=0.1)
        async with Agent(model, tools=[slow], limits=limits).open("go") as run:
            await first(run, ToolStarted)
            async for _event in run:
                pass
        assert run.outcome.status == "completed"
