"""MCP servers: real processes and real sockets, polite ones and others.

`data/mcp_fake.py` plays one fault for each of its modes; `mcp_server.py` is a server by
the official package. What is left of a process is looked for in /proc.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types
import msgspec
import pytest
import trio

from tests.loopback import CUT, HANG, Answer, Loopback, open_loopback
from tests.nasty import MARK, marked
from trioagent import (
    Agent,
    EffectStatus,
    Limits,
    Outcome,
    Status,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolOutput,
    tool,
)
from trioagent.mcp import MCPServer, ServerError, mcp_servers
from trioagent.mcp._link import Link
from trioagent.mcp._results import as_text
from trioagent.testing import ScriptedModel, call

pytestmark = [
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="processes are looked for in /proc"
    ),
    # The official client leaves generators of its HTTP library half-way.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator"),
]

HERE = Path(__file__).parent
AFTER = 0.2  # seconds from the end of the grace to the end of everything
BUSY = 0.4  # more than that on a machine that has other things to do
GRACE = 0.5  # the default of a server
PATIENCE = 20.0
LIMITS = Limits(write_grace_seconds=0.1)


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark for all that a test starts, and nothing of it may be left."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield mark
    assert marked(mark) == []


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def fake(mode: str, log: Path, **options: Any) -> MCPServer:
    argv = [sys.executable, str(HERE / "data/mcp_fake.py"), mode, str(log)]
    options.setdefault("name", "python")  # as the interpreter may be called
    return MCPServer.stdio(argv, env={MARK: os.environ[MARK]}, **options)


def real(log: Path, **options: Any) -> MCPServer:
    argv = [sys.executable, str(HERE / "mcp_server.py"), str(log)]
    options.setdefault("name", "python")  # as the interpreter may be called
    return MCPServer.stdio(argv, env={MARK: os.environ[MARK]}, **options)


def problems(outcome: Outcome) -> str:
    return " ".join(report.problem for report in outcome.tools)


def lines(log: Path, start: str = "") -> list[str]:
    text = log.read_text() if log.exists() else ""
    return [line for line in text.splitlines() if line.startswith(start)]


def has_lines(log: Path, start: str, count: int) -> bool:
    return len(lines(log, start)) == count


async def until(there: Callable[[], Any]) -> None:
    with trio.fail_after(PATIENCE):
        while not there():  # noqa: ASYNC110 - it is in another process
            await trio.sleep(0.005)


def agent(*steps: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(steps), **{"limits": LIMITS, **options})


def requests(a: Agent) -> list[Any]:
    assert isinstance(a.model, ScriptedModel)
    return a.model.requests


def told(outcome: Outcome) -> list[str]:
    """What the model was told of its calls."""
    return [m.content for m in outcome.history if type(m).__name__ == "ToolResult"]  # type: ignore[union-attr]


def detail(outcome: Outcome) -> str:
    assert outcome.stop is not None
    return outcome.stop.detail


def context(shown: list[str] | None = None) -> ToolContext:
    async def show(text: str) -> None:
        await trio.lowlevel.checkpoint()
        if shown is not None:
            shown.append(text)

    return ToolContext(
        run_id="run",
        call=ToolCall("work", "{}"),
        idempotency_key="",
        grace_seconds=1,
        remaining=lambda: 1.0,
        cancel=lambda _: True,
        show=show,
    )


async def use(of: Tool, **arguments: Any) -> str:
    return str(await of.fn(arguments=arguments, context=context()))


def by_name(tools: list[Tool]) -> dict[str, Tool]:
    return {t.name: t for t in tools}


class Clock:
    """Seconds since the last look."""

    def __init__(self) -> None:
        self.at = trio.current_time()

    def __call__(self) -> float:
        before, self.at = self.at, trio.current_time()
        return self.at - before


# Servers that do what they should


@pytest.mark.parametrize("mode", ["ok", "junk", "stderr_flood", "modern"])
async def test_a_call_is_confirmed_whatever_else_the_server_writes(
    mode: str, log: Path
) -> None:
    a = agent(call("work"), "fine", tools=[fake(mode, log)])
    outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    assert told(outcome) == ["done"]
    assert outcome.tools[0].effect_status is EffectStatus.CONFIRMED


async def test_a_result_is_cut_to_what_a_model_may_be_told(log: Path) -> None:
    a = agent(call("work"), "fine", tools=[fake("big", log, result_bytes=1000)])
    (result,) = told(await a.run("go"))
    assert result.startswith("y" * 1000 + "\n… 4999000 bytes left out")
    assert len(result) < 1100


async def test_hints_make_a_read_and_effects_say_otherwise(log: Path) -> None:
    effects = {"charge": "keyed", "look": "once"}
    async with real(log, effects=effects) as tools:
        found = {t.name: str(t.effect) for t in tools}
    assert found["add"] == "read"
    assert found["fail"] == "once"  # idempotentHint brings no key
    assert found["die"] == "once"
    assert found["charge"] == "keyed"
    assert found["look"] == "once"


async def test_what_a_real_server_answers(log: Path) -> None:
    async with real(log) as tools:
        t = by_name(tools)
        assert t["add"].description == "Add two numbers."
        assert await use(t["add"], a=1, b=2) == "3"
        assert await use(t["charge"], amount=5) == "charged 5"
        assert await use(t["picture"]) == "[image: image/png, 300 bytes]"
        people = await use(t["people"], count=1)
        assert json.loads(people) == {"people": [{"name": "n0"}]}


async def test_progress_is_shown(log: Path) -> None:
    a = agent(call("report"), "fine", tools=[real(log)])
    async with a.open("go") as run:
        shown = [event.text async for event in run if isinstance(event, ToolOutput)]
    assert shown == ["1/3 part 1\n", "2/3 part 2\n", "3/3 part 3\n"]


async def test_only_allowed_tools_are_seen_and_a_prefix_is_put_before_them(
    log: Path,
) -> None:
    server = real(log, tools=["add"], prefix="math")
    a = agent(call("math__add", a=1, b=1), "fine", tools=[server])
    outcome = await a.run("go")
    assert told(outcome) == ["2"]
    assert [spec.name for spec in requests(a)[0].tools] == ["math__add"]


@pytest.mark.parametrize("option", ["tools", "atomic", "effects"])
async def test_a_name_that_the_server_does_not_have_fails_the_run(
    option: str, log: Path
) -> None:
    options: dict[str, Any] = {
        option: {"wrok": "read"} if option == "effects" else ["wrok"]
    }
    outcome = await agent(tools=[fake("ok", log, **options)]).run("go")
    assert outcome.status is Status.FAILED
    assert f"{option}= names wrok, and it has work" in detail(outcome)


async def test_of_two_servers_with_the_same_tool_the_second_has_a_prefix(
    log: Path,
) -> None:
    one, other = fake("ok", log, name="one"), fake("ok", log, name="other")
    a = agent(call("work"), call("other__work"), "fine", tools=[one, other])
    assert told(await a.run("go")) == ["done", "done"]
    asked = fake("ok", log, prefix="asked")
    a = agent(call("work"), call("asked__work"), "fine", tools=[one, asked])
    assert told(await a.run("go")) == ["done", "done"]
    twice = [one, other, fake("ok", log, name="other")]
    outcome = await agent(tools=twice).run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "no_tools")


async def test_a_person_is_asked_before_a_write_and_not_before_a_read(
    log: Path,
) -> None:
    asked = []

    async def approve(asked_for: ToolCall) -> bool:
        await trio.lowlevel.checkpoint()
        asked.append(asked_for.name)
        return True

    server = real(log, approve=approve)
    steps = (call("add", a=1, b=2), call("charge", amount=1), "fine")
    outcome = await agent(*steps, tools=[server]).run("go")
    assert told(outcome) == ["3", "charged 1"]
    assert asked == ["charge"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"a": 1', "the arguments for add are not whole JSON"),
        ("[1, 2]", "bad arguments for add: Expected `object`, got `array`"),
    ],
)
async def test_arguments_that_are_no_object_do_not_reach_the_server(
    arguments: str, problem: str, log: Path
) -> None:
    a = agent(ToolCall("add", arguments, id="1"), "fine", tools=[real(log)])
    outcome = await a.run("go")
    assert problem in told(outcome)[0]
    assert outcome.tools[0].effect_status is EffectStatus.NOT_STARTED


# The server's own errors


async def test_a_read_that_fails_is_told_and_the_run_goes_on(log: Path) -> None:
    a = agent(call("fail_to_read"), "fine", tools=[real(log)])
    outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    assert told(outcome) == ["Error executing tool fail_to_read: no such file"]


async def test_a_write_that_says_it_failed_is_uncertain_for_it_had_begun(
    log: Path,
) -> None:
    a = agent(call("fail", half_done=True), "fine", tools=[real(log)])
    outcome = await a.run("go")
    assert outcome.status is Status.STOPPED
    assert outcome.stop_reason == "effect_uncertain"
    assert outcome.tools[0].effect_status is EffectStatus.UNCERTAIN


async def test_of_an_atomic_tool_its_error_says_that_nothing_happened(
    log: Path,
) -> None:
    server = real(log, atomic=["fail"])
    outcome = await agent(call("fail", half_done=False), "fine", tools=[server]).run("")
    assert outcome.status is Status.COMPLETED
    assert outcome.tools[0].effect_status is EffectStatus.NONE
    assert "the disk is full" in told(outcome)[0]


async def test_a_tool_that_is_not_there_any_more_was_not_called(log: Path) -> None:
    async with open_mcp(answer(4, error={"code": -32602, "message": "no"})) as server:
        a = agent(call("work"), "fine", tools=[MCPServer.http(server.url)])
        outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    assert outcome.tools[0].effect_status is EffectStatus.NONE


# Calls that are cut


async def test_a_stop_cancels_the_call_at_the_server_and_the_write_is_uncertain(
    log: Path,
) -> None:
    a = agent(call("charge", amount=5, seconds=60), tools=[real(log)])
    async with a.open("go") as run:
        await until(lambda: lines(log, "begun"))
        clock = Clock()
        run.cancel("enough")
    assert clock() < LIMITS.write_grace_seconds + GRACE + AFTER + BUSY
    assert lines(log) == ["begun 5", "cancelled 5"]
    outcome = run.outcome
    assert outcome.status is Status.CANCELLED
    assert detail(outcome) == "enough"
    assert outcome.tools[0].effect_status is EffectStatus.UNCERTAIN


async def test_a_stopped_run_leaves_a_shared_server_usable(log: Path) -> None:
    # B64
    a = agent(
        call("charge", amount=5, seconds=60),
        call("charge", amount=6),
        "fine",
        tools=[real(log)],
    )
    async with a:
        async with a.open("go") as run:
            await until(lambda: lines(log, "begun"))
            run.cancel("enough")
        outcome = await a.run("again")
        assert outcome.status is Status.COMPLETED
        assert told(outcome) == ["charged 6"]
        assert len(servers(a)) == 1
    assert lines(log) == ["begun 5", "cancelled 5", "begun 6", "charged 6"]


def servers(a: Agent) -> list[Any]:
    """The connections that there were."""
    (server,) = a.tools
    assert isinstance(server, MCPServer)
    shared = server._here.get()
    assert shared is not None
    return shared.links


async def test_a_late_answer_changes_nothing(log: Path) -> None:
    # B33
    server = fake("late", log, seconds=0.2, effects={"work": "read"})
    a = agent(call("work"), call("work"), "fine", tools=[server])
    outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    assert told(outcome) == ["work failed: no result within 0.2 s"] * 2
    begun = [line.split()[-1] for line in lines(log, "got tools/call")]
    assert [line.split()[-1] for line in lines(log, "cancelled")] == begun
    assert len(lines(log, "pid")) == 1


async def test_the_limit_of_a_call_holds_though_there_is_progress(log: Path) -> None:
    server = fake("progress", log, seconds=0.4)
    a = agent(call("work"), tools=[server])
    async with a.open("go") as run:
        shown = [event.text async for event in run if isinstance(event, ToolOutput)]
    assert shown[:2] == ["1\n", "2\n"]
    assert run.outcome.stop_reason == "effect_uncertain"
    assert run.outcome.usage is not None
    assert "no result within 0.4 s" in problems(run.outcome)


async def test_a_thousand_cancelled_calls_leave_nothing_behind(log: Path) -> None:
    # B33
    async with fake("late", log) as (work,):
        for count in range(100, 1001, 100):
            async with trio.open_nursery() as nursery:
                for _ in range(100):
                    nursery.start_soon(use, work)
                await until(partial(has_lines, log, "got tools/call", count))
                nursery.cancel_scope.cancel()
        shared = work_of(work)._here.get()
        assert shared is not None
        (link,) = shared.links
        await until(partial(has_lines, log, "cancelled", 1000))
        assert link._session is not None
        dispatcher: Any = link._session._dispatcher
        assert dispatcher._pending == {}
        assert link.calls == 0
    assert len(set(lines(log, "cancelled"))) == 1000


def work_of(of: Tool) -> MCPServer:
    """The server that a tool belongs to."""
    (server,) = (
        cell.cell_contents
        for cell in of.fn.__closure__ or ()
        if isinstance(cell.cell_contents, MCPServer)
    )
    return server


async def test_a_server_that_does_not_read_holds_nobody_who_is_cancelled(
    log: Path,
) -> None:
    async with fake("stuck", log) as (work,):
        clock = Clock()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(partial(use, work, text="x" * 500_000))
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        assert clock() < 0.1 + AFTER + BUSY
    assert clock() < GRACE + AFTER + BUSY


# Servers that die, or never were there


async def test_a_death_is_told_at_once_with_its_cause_and_a_write_is_uncertain(
    log: Path,
) -> None:
    # B18
    clock = Clock()
    outcome = await agent(call("work"), tools=[fake("dies", log)]).run("go")
    assert clock() < 2
    assert outcome.stop_reason == "effect_uncertain"
    assert outcome.tools[0].effect_status is EffectStatus.UNCERTAIN
    assert "it ended with exit code 3" in problems(outcome)


@tool(effect="read")
async def wait_a_moment() -> str:
    await trio.sleep(0.5)
    return "waited"


async def test_a_death_ends_the_calls_in_flight_and_nothing_else(log: Path) -> None:
    # B18, B77
    calls = [call("look", seconds=60), call("wait_a_moment"), call("die")]
    a = agent(
        calls,
        call("add", a=1, b=2),
        "fine",
        tools=[real(log), wait_a_moment],
        on_uncertain="tell",
    )
    async with a.open("go") as run:
        outputs = [event.text async for event in run if isinstance(event, ToolOutput)]
    assert run.outcome.status is Status.COMPLETED
    look, waited, die, add = told(run.outcome)
    assert look.startswith("look failed: ServerError: MCP server python: it ended with")
    assert "exit code 4. On stderr: fatal: out of luck" in look
    assert waited == "waited"
    assert "unknown" in die
    assert add == "3"
    assert outputs == ["connected anew to python: it ended with exit code 4\n"]


async def test_a_server_that_cannot_be_started_anew_fails_clearly(
    log: Path, tmp_path: Path
) -> None:
    script = tmp_path / "server.py"
    shutil.copy(HERE / "data/mcp_fake.py", script)
    server = MCPServer.stdio([sys.executable, str(script), "dies"])
    async with server as (work,):
        with pytest.raises(ServerError, match="exit code 3"):
            await use(work)
        script.unlink()
        for _ in range(2):  # each call tries once
            with pytest.raises(ToolError, match="exit code 2") as caught:
                await use(work)
            assert "connecting anew, for the connection was lost: " in str(caught.value)


async def test_a_silent_server_fails_the_run_before_its_first_request(
    log: Path, mark: str
) -> None:
    # B18
    a = agent(tools=[fake("never_init", log, connect_seconds=0.5)])
    clock = Clock()
    outcome = await a.run("go")
    assert 0.5 <= clock() < 0.5 + GRACE + AFTER + BUSY + 2  # the package is loaded
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "no_tools")
    said = "MCP server python: no tools within 0.5 s (connect_seconds=0.5)"
    assert detail(outcome) == said
    assert requests(a) == []
    assert marked(mark) == []


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["no-such-program-xyz"], "No such file or directory: 'no-such-program-xyz'"),
        (["sh", "-c", "echo broken >&2; exit 7"], "exit code 7. On stderr: broken"),
        (["echo", "hello"], "exit code 0. On stdout, instead of messages: hello"),
        (["sh", "-c", "kill -9 $$"], "it ended with SIGKILL"),
    ],
)
async def test_a_program_that_is_no_server_fails_the_run_and_says_why(
    argv: list[str], problem: str
) -> None:
    outcome = await agent(tools=[MCPServer.stdio(argv)]).run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "no_tools")
    assert problem in detail(outcome)


async def test_a_server_that_refuses_says_why(log: Path) -> None:
    outcome = await agent(tools=[fake("refuses", log)]).run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "no_tools")
    assert detail(outcome) == "MCP server python: MCPError: no licence"


async def test_a_stop_while_a_server_is_awaited_ends_the_wait(
    log: Path, mark: str
) -> None:
    a = agent(tools=[fake("never_init", log)])
    async with a.open("go") as run:
        await until(lambda: lines(log, "got"))
        clock = Clock()
        run.cancel("enough")
    assert clock() < GRACE + AFTER + BUSY
    assert run.outcome.status is Status.CANCELLED
    assert marked(mark) == []


# The ends


@pytest.mark.parametrize("mode", ["ok", "slow_exit", "deaf"])
@pytest.mark.parametrize("grace", [0.0, 0.3])
async def test_leaving_ends_the_server_and_all_that_it_started(
    mode: str, grace: float, log: Path, mark: str
) -> None:
    # B19
    async with fake(mode, log, grace_seconds=grace) as (work,):
        with trio.move_on_after(0.1):
            await use(work)
        clock = Clock()
    assert clock() < grace + AFTER + BUSY
    assert marked(mark) == []


@pytest.mark.parametrize("milliseconds", [0, 5, 20, 40, 60, 80, 100, 130])
async def test_a_cancel_at_any_moment_leaves_nothing(
    milliseconds: int, log: Path, mark: str
) -> None:
    clock = Clock()
    with trio.move_on_after(milliseconds / 1000):
        async with fake("ok", log, grace_seconds=0.2) as (work,):
            while True:
                await use(work)
    assert clock() < milliseconds / 1000 + 0.2 + AFTER + BUSY
    assert marked(mark) == []


async def test_kill_9_of_the_owner_leaves_no_server(log: Path, mark: str) -> None:
    script = textwrap.dedent(
        f"""
        import trio
        from trioagent.mcp import MCPServer

        async def main():
            argv = [{sys.executable!r}, {str(HERE / "data/mcp_fake.py")!r}, "deaf"]
            async with MCPServer.stdio(argv, env={{"{MARK}": "{mark}"}}):
                print("ready", flush=True)
                await trio.sleep_forever()

        trio.run(main)
        """
    )
    with subprocess.Popen(  # noqa: ASYNC220 - it returns at once
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=HERE.parent
    ) as owner:
        assert owner.stdout
        assert await trio.to_thread.run_sync(owner.stdout.readline) == b"ready\n"
        owner.kill()
    await until(lambda: marked(mark) == [])


@pytest.mark.parametrize("first", [0, 1])
async def test_two_servers_may_be_left_in_any_order_and_by_any_task(
    first: int, tmp_path: Path, mark: str
) -> None:
    logs = [tmp_path / "0", tmp_path / "1"]
    both = [fake("ok", log) for log in logs]
    tools: list[Tool] = []
    entered, leave = trio.Event(), [trio.Event(), trio.Event()]

    async def hold(number: int) -> None:
        tools.extend(await both[number].__aenter__())
        if len(tools) == 2:
            entered.set()
        await leave[number].wait()
        await both[1 - number].__aexit__(None, None, None)  # what the other entered

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, 0)
        nursery.start_soon(hold, 1)
        await entered.wait()
        leave[first].set()
        await until(lambda: len(marked(mark)) < 4)
        left = [t for t in tools if work_of(t) is both[first]]
        assert await use(left[0]) == "done"
        leave[1 - first].set()
    assert marked(mark) == []


async def test_an_error_in_the_block_stays_itself(log: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with fake("ok", log), fake("ok", log):
            raise KeyError("mine")


async def test_an_agent_keeps_its_server_for_all_its_runs(log: Path) -> None:
    a = agent(call("work"), "one", call("work"), "two", tools=[fake("ok", log)])
    async with a:
        assert (await a.run("go")).output == "one"
        assert (await a.run("go")).output == "two"
    assert len(lines(log, "pid")) == 1


async def test_a_run_alone_has_a_server_of_its_own(log: Path) -> None:
    a = agent(call("work"), "one", call("work"), "two", tools=[fake("ok", log)])
    assert (await a.run("go")).output == "one"
    assert (await a.run("go")).output == "two"
    assert len(lines(log, "pid")) == 2


async def test_runs_at_the_same_time_share_a_server(log: Path) -> None:
    server = fake("ok", log)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            a = agent(call("work"), "fine", tools=[server])
            nursery.start_soon(a.run, "go")
    assert len(lines(log, "pid")) == 1


def test_each_trio_run_has_a_server_of_its_own(log: Path) -> None:
    server, results = fake("ok", log), []
    a = [agent(call("work"), "fine", tools=[server]) for _ in range(2)]
    threads = [
        threading.Thread(target=lambda one=one: results.append(one.run_sync("go")))
        for one in a
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome.status for outcome in results] == [Status.COMPLETED] * 2
    assert len(lines(log, "pid")) == 2


# HTTP


def answer(number: int, result: Any = None, error: Any = None) -> Answer:
    """A JSON-RPC answer to request `number`, as JSON over HTTP."""
    body = {"jsonrpc": "2.0", "id": number}
    body |= {"result": result} if error is None else {"error": error}
    headers = {"content-type": "application/json"}
    return Answer([msgspec.json.encode(body)], headers=headers)


SCHEMA = {
    "type": "object",
    "$defs": {"point": {"type": "array", "items": {"$ref": "#/$defs/point"}}},
    "properties": {"where": {"oneOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]}},
    "additionalProperties": False,
    "x-own": ["kept"],
}


TOOLS = (
    {"name": "work", "inputSchema": SCHEMA},
    {"name": "read.it", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}},
)


@asynccontextmanager
async def open_mcp(*calls: Answer, tools: Any = TOOLS) -> AsyncIterator[Loopback]:
    """A server of 2025, on loopback; then it plays the answers to calls."""
    initialized = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "scripted", "version": "0"},
    }
    async with open_loopback(
        Answer(status=404),  # server/discover
        answer(2, initialized),
        Answer(status=202),
        answer(3, {"tools": tools}),
        *calls,
    ) as server:
        yield server


DONE = {"content": [{"type": "text", "text": "done"}]}


async def test_the_schema_of_the_server_comes_to_the_model_unchanged() -> None:
    async with open_mcp(answer(4, DONE)) as server:
        a = agent(call("work", where=[[]]), "fine", tools=[MCPServer.http(server.url)])
        assert told(await a.run("go")) == ["done"]
        assert requests(a)[0].tools[0].parameters == SCHEMA
        asked = server.requests[-1].json()
    assert asked["method"] == "tools/call"
    assert asked["params"]["name"] == "work"
    assert asked["params"]["arguments"] == {"where": [[]]}


async def test_a_name_that_providers_do_not_take_is_changed_for_the_model() -> None:
    async with open_mcp(answer(4, DONE)) as server:
        a = agent(call("read_it"), "fine", tools=[MCPServer.http(server.url)])
        assert told(await a.run("go")) == ["done"]
        assert server.requests[-1].json()["params"]["name"] == "read.it"


async def test_headers_go_with_each_request() -> None:
    async with open_mcp(answer(4, DONE)) as server:
        http = MCPServer.http(server.url, headers={"Authorization": "Bearer hunter2"})
        await agent(call("work"), "fine", tools=[http]).run("go")
        sent = {request.headers["authorization"] for request in server.requests}
    assert sent == {"Bearer hunter2"}


@pytest.mark.parametrize("status", [401, 403, 404, 429])
async def test_a_call_that_is_refused_has_not_happened(status: int) -> None:
    # B18
    async with open_mcp(Answer(status=status)) as server:
        a = agent(call("work"), "fine", tools=[MCPServer.http(server.url)])
        clock = Clock()
        outcome = await a.run("go")
        assert clock() < 1 + BUSY
    assert outcome.status is Status.COMPLETED
    assert f"HTTP {status}" in told(outcome)[0]
    assert outcome.tools[0].effect_status is EffectStatus.NONE


@pytest.mark.parametrize("status", [408, 500, 504])
async def test_after_an_error_of_the_server_a_write_is_uncertain(status: int) -> None:
    async with open_mcp(Answer(status=status)) as server:
        a = agent(call("work"), tools=[MCPServer.http(server.url)])
        outcome = await a.run("go")
    assert outcome.stop_reason == "effect_uncertain"
    assert f"HTTP {status}" in problems(outcome)


async def test_a_call_that_is_answered_with_nothing_is_uncertain() -> None:
    async with open_mcp(Answer(status=202)) as server:
        outcome = await agent(call("work"), tools=[MCPServer.http(server.url)]).run("")
    assert outcome.stop_reason == "effect_uncertain"


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_that_is_cut_is_the_trouble_of_its_call_alone(
    kind: str,
) -> None:
    cut = Answer([b'{"jsonrpc": "2.0", ', 0.1, CUT], headers={"content-type": kind})
    slow = answer(5, DONE)
    slow = Answer([0.4, *slow.steps], headers=slow.headers)
    async with open_mcp(cut, slow) as server:
        async with MCPServer.http(server.url) as (work, read):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_lose, work)
                await server.wait_for_requests(5)
                assert await use(read) == "done"


async def test_a_message_that_is_too_long_ends_its_call_and_not_the_memory(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trioagent.mcp._http.MESSAGE_BYTES", 100_000)
    monkeypatch.setattr("trioagent.mcp._stdio.MESSAGE_BYTES", 100_000)
    long = answer(4, {"content": [{"type": "text", "text": "x" * 200_000}]})
    async with open_mcp(long) as server:
        for one in (MCPServer.http(server.url), fake("big", log)):
            async with one as (work, *_):
                with pytest.raises(ServerError, match="more than 100000 bytes in one"):
                    await use(work)


async def test_a_stream_that_broke_is_gone_on_with_and_nothing_is_sent_twice() -> None:
    first = Answer([b"id: 1\nretry: 50\ndata: \n\n", 0.1, CUT])
    done = msgspec.json.encode({"jsonrpc": "2.0", "id": 4, "result": DONE})
    rest = Answer([b"id: 2\ndata: " + done + b"\n\n"])
    async with open_mcp(first, rest) as server:
        a = agent(call("work"), "fine", tools=[MCPServer.http(server.url)])
        outcome = await a.run("go")
        assert told(outcome) == ["done"]
        assert outcome.tools[0].effect_status is EffectStatus.CONFIRMED
        assert [request.method for request in server.requests[4:]] == ["POST", "GET"]
        assert server.requests[-1].headers["last-event-id"] == "1"


async def test_a_stream_that_cannot_be_gone_on_with_ends_the_call_at_once() -> None:
    first = Answer([b"id: 1\nretry: 50\ndata: \n\n", 0.1, CUT])
    async with open_mcp(first, Answer([CUT], raw=True)) as server:
        async with MCPServer.http(server.url) as (work, _):
            clock = Clock()
            with pytest.raises(ServerError, match="Server disconnected"):
                await use(work)
            assert clock() < 1


async def test_two_tools_that_would_have_one_name_are_for_the_user_to_choose() -> None:
    more = {"name": "read_it", "inputSchema": SCHEMA}
    async with open_mcp(answer(4, DONE), tools=[*TOOLS, more]) as server:
        outcome = await agent(tools=[MCPServer.http(server.url)]).run("go")
    assert outcome.status is Status.FAILED
    assert "two of its tools would be 'read_it': choose by tools=" in detail(outcome)


async def test_a_refused_connection_fails_the_run_with_its_status() -> None:
    async with open_loopback(Answer(status=401)) as server:
        outcome = await agent(tools=[MCPServer.http(server.url)]).run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "no_tools")
    assert "MCP server 127.0.0.1: HTTP 401 Unauthorized" in detail(outcome)


async def test_nobody_at_the_address_fails_the_run() -> None:
    outcome = await agent(tools=[MCPServer.http(f"http://127.0.0.1:{free()}")]).run("")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "no_tools")
    assert "ConnectError" in detail(outcome)


async def test_a_frozen_server_holds_nobody() -> None:
    async with open_mcp(Answer([HANG])) as server:
        async with MCPServer.http(server.url) as (work, read):
            for _ in range(3):
                clock = Clock()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(use, work)
                    nursery.start_soon(use, read)
                    await trio.sleep(0.1)
                    nursery.cancel_scope.cancel()
                assert clock() < 0.1 + AFTER + BUSY
            clock()
        assert clock() < GRACE + AFTER + BUSY
        await until(lambda: len(server.requests) >= 4 + 12)
    bodies = [request.json() for request in server.requests[4:]]
    methods = [body["method"] for body in bodies]
    assert methods.count("tools/call") == 6
    assert methods.count("notifications/cancelled") == 6


def free() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def process(argv: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that listens on a port."""
    with subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            for _ in range(int(PATIENCE / 0.05)):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)  # noqa: TID251 - before trio has begun to wait
            yield server
        finally:
            server.kill()


def real_http(log: Path, port: int) -> Any:
    argv = [sys.executable, str(HERE / "mcp_server.py"), str(log), str(port)]
    return process(argv, port)


async def test_the_same_promises_hold_over_http(log: Path) -> None:
    port = free()
    with real_http(log, port):
        steps = (
            call("add", a=1, b=2),
            call("charge", amount=5, seconds=60),
            call("charge", amount=6),
            "fine",
        )
        http = MCPServer.http(f"http://127.0.0.1:{port}/mcp", seconds=1)
        a = agent(*steps, tools=[http], on_uncertain="tell")
        outcome = await a.run("go")
        add, cut, charged = told(outcome)
        assert (add, charged) == ("3", "charged 6")
        assert "unknown" in cut
        assert lines(log) == ["begun 5", "cancelled 5", "begun 6", "charged 6"]


async def test_a_server_killed_in_the_middle_ends_its_calls_at_once(log: Path) -> None:
    port, killed = free(), 0.0
    calls = [call("charge", amount=1, seconds=60), call("look", seconds=60)]
    http = MCPServer.http(f"http://127.0.0.1:{port}/mcp")
    a = agent(
        [*calls, call("wait_a_moment")],
        call("add", a=1, b=2),
        "fine",
        tools=[http, wait_a_moment],
        on_uncertain="tell",
    )
    with real_http(log, port) as server:
        async with a:
            async with a.open("go") as run:
                await until(lambda: len(lines(log)) == 2)
                server.kill()
                killed = trio.current_time()
                async for event in run:
                    if type(event).__name__ in ("ToolLost", "ToolEnded"):
                        assert trio.current_time() - killed < 1 + BUSY
                        if type(event).__name__ == "ToolLost":
                            break
                async for _ in run:
                    pass
    charged, look, waited, add = told(run.outcome)
    assert "unknown" in charged
    assert look.startswith("look failed: ServerError: MCP server 127.0.0.1: ")
    assert waited == "waited"
    assert "connecting anew" in add  # it is not there any more
    assert run.outcome.status is Status.COMPLETED


async def test_a_server_that_came_back_is_connected_anew(log: Path) -> None:
    port = free()
    http = MCPServer.http(f"http://127.0.0.1:{port}/mcp")
    async with trio.open_nursery() as nursery:
        with real_http(log, port) as server:
            tools = by_name(await http.__aenter__())
            nursery.start_soon(_lose, tools["look"])
            await until(lambda: lines(log, "looking"))
            server.kill()
            server.wait()
        with real_http(log, port):
            await until(lambda: not nursery.child_tasks)
            shown: list[str] = []
            arguments = {"a": 1, "b": 2}
            fn = tools["add"].fn
            assert await fn(arguments=arguments, context=context(shown)) == "3"
            await http.__aexit__(None, None, None)
    assert len(shown) == 1
    assert shown[0].startswith("connected anew to 127.0.0.1: ")


async def _lose(of: Tool) -> None:
    with pytest.raises(ServerError):
        await use(of, seconds=60)


def test_a_ctrl_c_that_hits_the_connection_comes_to_the_program(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python raises it in whatever runs: here in the task that owns the connection.
    async def interrupted(link: Link, client: Any) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with fake("ok", log):
            await trio.sleep(PATIENCE)

    monkeypatch.setattr(Link, "_list_tools", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


# What is told and what is not


async def test_headers_and_environment_are_in_no_repr_and_no_error(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "hunter2-hunter2"
    script = 'import os, sys; sys.exit("my key is " + os.environ["KEY"])'
    argv = [sys.executable, "-c", script, secret]
    stdio = MCPServer.stdio(argv, env={"KEY": secret})
    headers = {"Authorization": f"Bearer {secret}"}
    url = f"http://user:{secret}@127.0.0.1:{free()}/mcp?key={secret}"
    http = MCPServer.http(url, headers=headers)
    for server in (stdio, http):
        a = agent(tools=[server])
        outcome = await a.run("go")
        assert outcome.status is Status.FAILED
        assert secret not in repr((server, a, outcome, outcome.stop))
        with pytest.raises(ToolError) as caught:
            await server.__aenter__()
        error: BaseException | None = caught.value
        while error is not None:
            assert secret not in repr(error)
            error = error.__cause__ or error.__context__
    assert "my key is …" in detail(await agent(tools=[stdio]).run("go"))
    assert secret not in caplog.text


def test_what_cannot_be_used_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="list of strings"):
        MCPServer.stdio("npx server")
    with pytest.raises(ValueError, match="of http or https"):
        MCPServer.http("ftp://there")
    with pytest.raises(ValueError, match="'X-Key' cannot be sent") as caught:
        MCPServer.http("http://there", headers={"X-Key": "hunter2\n"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ValueError, match=r"effects=…\): work is read, keyed or once"):
        MCPServer.stdio(["server"], effects={"work": "write"})
    for option in ("connect_seconds", "seconds", "result_bytes", "grace_seconds"):
        with pytest.raises(ValueError, match=option):
            MCPServer.stdio(["server"], **{option: -1})  # type: ignore[arg-type]
    for option in ("tools", "atomic"):
        with pytest.raises(TypeError, match=option):
            MCPServer.stdio(["server"], **{option: "work"})  # type: ignore[arg-type]


async def test_without_the_package_an_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("_link", "_stdio", "_http"):
        monkeypatch.delitem(sys.modules, f"trioagent.mcp.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "mcp.client", None)
    outcome = await agent(tools=[MCPServer.stdio(["server"])]).run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "no_tools")
    assert "pip install 'trioagent[mcp]'" in detail(outcome)


def result(*content: Any, structured: Any = None) -> mcp_types.CallToolResult:
    return mcp_types.CallToolResult.model_validate(
        {"content": content, "structuredContent": structured}
    )


TEXT = {"type": "text", "text": "hello"}
IMAGE = {"type": "image", "mimeType": "image/png", "data": "AAAA" * 10}
SOUND = {"type": "audio", "mimeType": "audio/wav", "data": "AAAA"}
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a", "description": "A"}
FILE = {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}
BLOB = {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA"}}


@pytest.mark.parametrize(
    ("answered", "text"),
    [
        (result(), "(no output)"),
        (result(TEXT, TEXT), "hello\nhello"),
        (result(TEXT, IMAGE), "hello\n[image: image/png, 30 bytes]"),
        (result(SOUND), "[audio: audio/wav, 3 bytes]"),
        (result(LINK), "[resource file:///a (a): A]"),
        (result(FILE), "[resource file:///a]\ninside"),
        (result(BLOB), "[resource file:///b: data, 3 bytes]"),
        (result(structured={"a": 1}), '{"a":1}'),
        (result(TEXT, structured={"a": 1}), 'hello\n{"a":1}'),
        (result(TEXT, structured={"result": "hello"}), "hello"),
        (result({**TEXT, "text": '{"a": 1}'}, structured={"a": 1}), '{"a": 1}'),
    ],
)
def test_a_result_becomes_text(answered: Any, text: str) -> None:
    assert as_text(answered, 1000) == text


def test_a_result_is_cut_between_characters() -> None:
    text = as_text(result({**TEXT, "text": "ä" * 10}), 5)
    assert text == "ää\n… 15 bytes left out (result_bytes=5) …"


# The file


def write(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / ".mcp.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


async def test_servers_of_a_file(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", str(HERE / "data/mcp_fake.py"))
    monkeypatch.setenv("KEY", "hunter2")
    entry = {
        "command": sys.executable,
        "args": ["${FAKE}", "${MODE:-ok}", str(log)],
        "env": {MARK: os.environ[MARK]},
        "icon": "of another program",
    }
    remote = {
        "type": "http",
        "url": "https://${HOST:-example.org}/mcp",
        "headers": {"Authorization": "Bearer ${KEY}"},
    }
    off = {"command": "never", "disabled": True}
    found = {"local": entry, "remote": remote, "off": off}
    path = write(tmp_path, {"mcpServers": found, "inputs": []})
    local, there = mcp_servers(path, seconds=5, prefix="x")
    assert repr(local) == f"<MCPServer local: {sys.executable}>"
    assert repr(there) == "<MCPServer remote: https://example.org/mcp>"
    outcome = await agent(call("x__work"), "fine", tools=[local]).run("go")
    assert told(outcome) == ["done"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", ".mcp.json: it is not JSON"),
        ([], ".mcp.json: Expected `object`, got `array`"),
        ({}, '.mcp.json: "mcpServers" is missing'),
        ({"mcpServers": []}, '.mcp.json: "mcpServers": Expected `object`'),
        ({"a": 1}, "a: Expected `object`, got `int`"),
        ({"a": {}}, 'a: it takes one of "command" and "url"'),
        ({"a": {"command": "x", "url": "http://y"}}, "it takes one of"),
        ({"a": {"type": "http"}}, 'a: "url" is missing'),
        ({"a": {"type": "ws", "url": "ws://y"}}, 'a: type is "stdio" or "http"'),
        ({"a": {"type": "sse", "url": "http://y"}}, 'a: type "sse" is the old'),
        ({"a": {"command": ["x"]}}, 'a: "command": Expected `str`, got `array`'),
        ({"a": {"command": "x", "args": "y"}}, 'a: "args": Expected `array`'),
        ({"a": {"command": "x", "env": {"K": 1}}}, 'a: "env": Expected `str`'),
        ({"a": {"url": "ftp://y"}}, "a: MCPServer.http takes a URL, of http"),
        (
            {"a": {"command": "x", "env": {"K": "${NOT_SET_XYZ}"}}},
            'a: "env.K": the environment variable NOT_SET_XYZ is not set',
        ),
    ],
)
def test_errors_of_a_file_name_the_file_the_server_and_the_key(
    tmp_path: Path, content: Any, problem: str
) -> None:
    if isinstance(content, dict) and "a" in content:
        content = {"mcpServers": content}
    path = write(tmp_path, content)
    with pytest.raises(ValueError, match=r"mcp\.json") as caught:
        mcp_servers(path)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"\.mcp\.json"):
        mcp_servers(tmp_path / ".mcp.json")


# Servers by others


@pytest.fixture(scope="module")
def npm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reference servers, from npm.

    TRIOAGENT_TEST_NPM is such a folder, or 1 to install them into a new one.
    """
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    where = os.environ.get("TRIOAGENT_TEST_NPM")
    if not where:
        pytest.skip("TRIOAGENT_TEST_NPM is not set: it would need the network")
    place = Path(where)
    if where == "1":
        place = tmp_path_factory.mktemp("npm")
        packages = [f"@modelcontextprotocol/server-{n}" for n in NPM]
        npm = ["npm", "install", "--no-audit", "--no-fund", *packages]
        subprocess.run(npm, cwd=place, check=True, capture_output=True, timeout=300)
    return place / "node_modules" / ".bin"


NPM = ("everything", "filesystem")


async def test_server_everything_on_stdio(npm: Path) -> None:
    everything = MCPServer.stdio(
        [str(npm / "mcp-server-everything"), "stdio"],
        seconds=1,
        grace_seconds=1,
        effects={"trigger-long-running-operation": "once"},
    )
    await _use_everything(everything)


async def test_server_everything_over_http(
    npm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free()
    monkeypatch.setenv("PORT", str(port))
    argv = [str(npm / "mcp-server-everything"), "streamableHttp"]
    with process(argv, port):
        http = MCPServer.http(
            f"http://127.0.0.1:{port}/mcp",
            seconds=1,
            effects={"trigger-long-running-operation": "once"},
        )
        await _use_everything(http)


async def _use_everything(server: MCPServer) -> None:
    a = agent(
        call("echo", message="hi"),
        call("get-sum", a=1, b=2),
        call("get-tiny-image"),
        call("trigger-long-running-operation", duration=30, steps=60),
        call("echo", message="still there"),
        "fine",
        tools=[server],
        on_uncertain="tell",
    )
    async with a.open("go") as run:
        shown = [event.text async for event in run if isinstance(event, ToolOutput)]
    assert run.outcome.status is Status.COMPLETED
    echo, added, image, cut, again = told(run.outcome)
    assert (echo, again) == ("Echo: hi", "Echo: still there")
    assert "3" in added
    assert "[image: image/png, " in image
    assert "unknown" in cut
    assert any(text.startswith("1/60") for text in shown)


async def test_server_filesystem(npm: Path, tmp_path: Path) -> None:
    argv = [str(npm / "mcp-server-filesystem"), str(tmp_path)]
    files = MCPServer.stdio(argv, atomic=["write_file"], grace_seconds=1)
    path, outside = str(tmp_path / "a.txt"), "/nowhere/a.txt"
    a = agent(
        call("write_file", path=path, content="hello"),
        call("read_text_file", path=path),
        call("write_file", path=outside, content="hello"),
        "fine",
        tools=[files],
    )
    outcome = await a.run("go")
    assert outcome.status is Status.COMPLETED
    written, read, refused = told(outcome)
    assert "Successfully wrote" in written
    assert "hello" in read
    assert "ccess denied" in refused
    assert [t.effect_status for t in outcome.tools] == [
        EffectStatus.CONFIRMED,
        EffectStatus.NONE,
        EffectStatus.NONE,
    ]
    assert (tmp_path / "a.txt").read_text() == "hello"


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP")
async def test_a_stopped_process_is_left_in_time(log: Path, mark: str) -> None:
    async with fake("ok", log) as (work,):
        os.kill(int(lines(log, "pid")[0].split()[1]), signal.SIGSTOP)
        clock = Clock()
        with trio.move_on_after(0.1):
            await use(work)
        assert clock() < 0.1 + AFTER + BUSY
    assert clock() < GRACE + AFTER + BUSY
    assert marked(mark) == []
