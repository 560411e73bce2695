"""Processes that end when they are told to, whatever they do: real ones, and no mocks.

What is left is looked for in /proc, by a variable that every descendant inherits.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests import nasty
from tests.data import rude
from tests.nasty import MARK, marked, rude_program
from trioagent import (
    Agent,
    EffectStatus,
    Limits,
    Outcome,
    Reply,
    Status,
    Tool,
    ToolError,
    ToolResult,
    tool,
)
from trioagent.isolate import _supervised
from trioagent.isolate._supervised import Exit, Supervised, open_supervised
from trioagent.isolate.shell import shell
from trioagent.isolate.workers import (
    RemoteError,
    ResultNotSent,
    WorkerDied,
    WorkerPool,
    shared_pool,
)
from trioagent.testing import ScriptedModel, call

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="what is left is looked for in /proc, and daemons are only found on Linux",
)

ROOT = Path(__file__).parent.parent
AFTER = 0.2  # seconds from the end of the grace to the end of everything
BUSY = 0.5  # more than that on a machine that has other things to do
PATIENCE = 20.0


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A mark for all that a test starts, and nothing of it may be left."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield mark
    assert marked(mark) == []


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


async def until(there: Callable[[], Any]) -> None:
    with trio.fail_after(PATIENCE):
        while not there():  # noqa: ASYNC110 - a file sets no Event
            await trio.sleep(0.005)


async def ready(process: Supervised, times: int = 1) -> None:
    """Until the program has said so."""
    said = b""
    with trio.fail_after(PATIENCE):
        while said.count(b"ready\n") < times:
            part = await process.stdout.receive_some()
            assert part, "it ended"
            said += part


# A program


async def test_streams_and_exit_code_of_a_program() -> None:
    argv = ["sh", "-c", "cat; echo to stderr >&2; exit 3"]
    async with open_supervised(argv) as process:
        assert process.pid > 0
        await process.stdin.send_all(b"hello")
        await process.stdin.aclose()
        assert b"".join([part async for part in process.stdout]) == b"hello"
        assert await process.wait() == Exit(3)
    assert process.stderr_tail == "to stderr\n"
    assert str(process.exit) == "exit code 3"


@pytest.mark.parametrize("grace", [0.0, 0.3])
@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("ignore_term", 1),
        ("daemonise_and_stay", 2),
        ("fork_from_a_thread", 2),
        ("spin", 1),
    ],
)
async def test_leaving_the_block_ends_the_whole_tree_in_time(
    name: str, times: int, grace: float, mark: str
) -> None:
    # B19
    program = rude_program(name)
    async with open_supervised(program, grace_seconds=grace) as process:
        await ready(process, times)
        left_at = trio.current_time()
    took = trio.current_time() - left_at
    assert marked(mark) == []
    assert took < grace + AFTER + BUSY
    assert process.exit
    assert process.exit.signal in {"SIGKILL", "SIGTERM"}


async def test_a_cancel_ends_the_tree_in_a_shield_of_its_own(mark: str) -> None:
    with trio.CancelScope() as scope:
        async with open_supervised(
            rude_program("daemonise_and_stay"), grace_seconds=0.2
        ) as process:
            await ready(process, 2)
            scope.cancel()
            cancelled_at = trio.current_time()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert marked(mark) == []
    assert 0.2 <= trio.current_time() - cancelled_at < 0.2 + AFTER + BUSY


async def test_an_error_leaves_the_block_as_itself() -> None:
    problem = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        async with open_supervised(["sleep", "600"]) as process:
            raise problem
    assert caught.value is problem
    assert process.exit == Exit(-signal.SIGTERM)


async def test_a_cancel_before_the_program_runs_leaves_nothing(mark: str) -> None:
    for n in range(20):
        with trio.move_on_after(n * 0.005):
            program = rude_program("daemonise_and_stay")
            async with open_supervised(program, grace_seconds=0):
                await trio.sleep_forever()
        assert marked(mark) == []


async def test_term_lets_a_program_say_goodbye(tmp_path: Path) -> None:
    said = tmp_path / "goodbye"
    program = rude_program("say_goodbye", str(said))
    async with open_supervised(program, grace_seconds=PATIENCE) as process:
        await ready(process)
    assert said.read_text() == "goodbye"
    assert process.exit == Exit(5), "its output was read to the end"


async def test_terminate_and_kill_can_be_asked_for_inside_the_block() -> None:
    async with open_supervised(["sleep", "600"]) as process:
        process.terminate()
        assert (await process.wait()).signal == "SIGTERM"
        process.terminate()  # it is over: nothing happens
    program = rude_program("ignore_term")
    async with open_supervised(program, grace_seconds=600) as process:
        await ready(process)
        process.kill()
        assert str(await process.wait()) == "SIGKILL"


async def test_several_tasks_may_wait() -> None:
    async with open_supervised(["cat"]) as process:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(process.wait)
            with trio.move_on_after(0.01):
                await process.wait()
            await process.stdin.aclose()
        assert process.exit == Exit(0)


async def test_what_a_program_leaves_behind_ends_with_it(mark: str) -> None:
    async with open_supervised(rude_program("daemonise"), grace_seconds=0.1) as process:
        await ready(process)
        assert await process.wait() == Exit(0)
        assert marked(mark) == []


async def test_not_even_one_that_runs_away_is_left(mark: str) -> None:
    async with open_supervised(rude_program("run_away"), grace_seconds=0) as process:
        await ready(process)
    assert process.exit != Exit(None), "the warden was not given up"
    assert marked(mark) == []


async def test_a_grandchild_that_holds_stdout_does_not_hold_us() -> None:
    async with open_supervised(rude_program("hold_stdout")) as process:
        with trio.fail_after(PATIENCE):
            assert b"".join([part async for part in process.stdout]) == b"ready\n"


async def test_a_chatty_stderr_never_stops_a_program_and_its_tail_is_kept() -> None:
    # B34
    async with open_supervised(rude_program("shout")) as process:
        await ready(process)
        assert await process.wait() == Exit(0)
    tail = process.stderr_tail
    assert tail.startswith("… ")
    assert tail.endswith("the last line\n")
    assert len(tail.encode()) < 70_000


async def test_a_program_that_does_not_listen_breaks_its_stdin() -> None:
    async with open_supervised(rude_program("not_listen")) as process:
        await ready(process)
        with pytest.raises(trio.BrokenResourceError):
            for _ in range(100):
                await process.stdin.send_all(b"x" * 10_000)


@pytest.mark.parametrize(
    ("command", "error"),
    [(["no-such-program"], FileNotFoundError), (["/etc/passwd"], PermissionError)],
)
async def test_a_program_that_cannot_be_run(
    command: list[str], error: type[OSError]
) -> None:
    with pytest.raises(error) as caught:
        async with open_supervised(command):
            pass
    assert caught.value.filename == command[0]
    with pytest.raises(FileNotFoundError):
        async with open_supervised(["true"], cwd="/no/such/folder"):
            pass
    with pytest.raises(TypeError, match="list of strings"):
        async with open_supervised("true"):
            pass


async def test_a_program_has_the_environment_that_it_was_given(mark: str) -> None:
    environment = {MARK: mark, "WORD": "x=y"}
    program = ["/usr/bin/env"]
    async with open_supervised(program, env=environment, stdin="nothing") as process:
        out = b"".join([part async for part in process.stdout])
    assert dict(line.split("=", 1) for line in out.decode().splitlines()) == environment


@pytest.mark.parametrize("which", ["outer", "inner"])
async def test_not_even_a_killed_warden_leaves_something(which: str, mark: str) -> None:
    async with open_supervised(
        rude_program("daemonise_and_stay"), grace_seconds=0.1
    ) as process:
        await ready(process, 2)
        outer = process._warden.pid
        os.kill(outer if which == "outer" else child_of(outer), signal.SIGKILL)
        with trio.fail_after(PATIENCE):
            await process.wait()
        await until(lambda: not marked(mark))


async def test_a_warden_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_supervised, "OVERRUN_SECONDS", 0.2)
    async with open_supervised(rude_program("ignore_term"), grace_seconds=0) as process:
        await ready(process)
        os.killpg(process._warden.pid, signal.SIGSTOP)
    assert process.exit == Exit(None)
    assert str(process.exit) == "an unknown exit code"
    assert f"the process {process.pid} did not end in time" in caplog.text
    await until(lambda: not os.path.exists(f"/proc/{process.pid}"))


async def test_where_there_is_no_warden_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(NotImplementedError, match="not supported on Windows yet"):
        async with open_supervised(["true"]):
            pass
    with pytest.raises(NotImplementedError):
        await nasty.which()
    with pytest.raises(ToolError, match="not supported on Windows yet"):
        await shell().fn(command=["true"], context=None)


# The owner dies


@pytest.mark.parametrize("owner", ["program", "command", "stuck_read", "stuck_write"])
async def test_nothing_outlives_an_owner_that_is_killed(
    owner: str, mark: str, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "tests.nasty", owner],
        cwd=ROOT,
        env={**os.environ, "STARTED": str(started)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        if owner.startswith("stuck"):
            await until(started.exists)
        await until(
            lambda: (
                sum("rude" in line for line in marked(mark)) >= 2 or started.exists()
            )
        )
    finally:
        process.kill()
        killed_at = trio.current_time()
        await process.wait()
    await until(lambda: not marked(mark))
    assert trio.current_time() - killed_at < AFTER + BUSY


async def test_an_owner_killed_in_mid_spawn_leaves_nothing() -> None:
    out = await trio.run_process(
        [sys.executable, "-m", "tests.nasty", "middle"], cwd=ROOT, capture_stdout=True
    )
    left = [line.split() for line in out.stdout.decode().splitlines()]
    assert len(left) == 100
    assert {count for _, count in left} == {"0"}


# Workers


async def test_a_worker_is_warm_the_second_time_and_serves_one_call_at_a_time() -> None:
    async with WorkerPool() as pool:
        pids = [await pool.call("tests.data.rude", "pid") for _ in range(5)]
        assert len(set(pids)) == 1
        more: set[int] = set()

        async def one() -> None:
            more.add(await pool.call("tests.data.rude", "pid"))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
        assert len(more) == 3
        assert marked(os.environ[MARK])
    assert marked(os.environ[MARK]) == []


async def test_no_more_workers_than_asked_for() -> None:
    pids: set[int] = set()
    async with WorkerPool(workers=1) as pool, trio.open_nursery() as nursery:

        async def one() -> None:
            pids.add(await pool.call("tests.data.rude", "pid"))

        for _ in range(4):
            nursery.start_soon(one)
    assert len(pids) == 1


async def test_the_last_one_to_leave_ends_the_workers(mark: str) -> None:
    pool = WorkerPool()
    async with pool:
        async with pool:
            first = await pool.call("tests.data.rude", "pid")
        assert await pool.call("tests.data.rude", "pid") == first
    assert marked(mark) == []
    assert await pool.call("tests.data.rude", "pid") != first, "outside of any block"
    assert marked(mark) == []


async def test_what_a_function_prints_does_not_get_into_the_answers(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with WorkerPool() as pool:
        assert await pool.call("tests.data.rude", "add", (1,), {"b": 2}) == 3
    out, err = capfd.readouterr()
    assert out == ""
    assert "this is no answer\n" in err
    assert "nor is this\n" in err


async def test_a_worker_loads_only_what_the_function_needs() -> None:
    async with WorkerPool() as pool:
        loaded = await pool.call("tests.data.rude", "loaded")
    assert not {"trio", "trioagent", "inspect", "asyncio"} & set(loaded)


async def test_large_arguments_and_results() -> None:
    async with WorkerPool() as pool:
        big = "é" * 2_000_000
        assert await pool.call("tests.data.rude", "add", (big, "!")) == big + "!"


async def test_static_and_class_methods_are_found() -> None:
    async with WorkerPool() as pool:
        rude_module = "tests.data.rude"
        assert await pool.call(rude_module, "Account.open", ("x",)) == "account of x"
        assert await pool.call(rude_module, "Account.kind") == "Account"
        assert await pool.call("os.path", "join", ("a", "b")) == "a/b"


async def test_errors_come_back_as_what_they_are() -> None:
    async with WorkerPool() as pool:
        with pytest.raises(KeyError, match="some key") as caught:
            await pool.call("tests.data.rude", "fail", ("some key",))
        assert "in fail" in caught.value.__notes__[0]
        with pytest.raises(RemoteError, match=r"Odd: odd: 1, 2"):
            await pool.call("tests.data.rude", "fail", ("odd",))
        with pytest.raises(RemoteError, match=r"Local: made here"):
            await pool.call("tests.data.rude", "fail", ("local",))
        with pytest.RaisesGroup(KeyError, ValueError):
            await pool.call("tests.data.rude", "fail", ("group",))
        with pytest.raises(RemoteError, match="SystemExit: 3"):
            await pool.call("tests.data.rude", "die", ("sys.exit",))
        with pytest.raises(ResultNotSent, match="has returned"):
            await pool.call("tests.data.rude", "unsendable")
        first = await pool.call("tests.data.rude", "pid")
        assert first == await pool.call("tests.data.rude", "pid"), "and it goes on"


async def test_what_did_not_begin_is_a_tool_error() -> None:
    async with WorkerPool() as pool:
        for module, name, told in (
            ("no.such.module", "f", "No module named 'no'"),
            ("tests.data.rude", "no_such_function", "no attribute"),
        ):
            with pytest.raises(ToolError, match=told):
                await pool.call(module, name)
        with pytest.raises(ToolError, match="arguments cannot be sent"):
            await pool.call("tests.data.rude", "add", (lambda: 0, 1))


async def test_without_a_worker_nothing_has_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ToolError, match="no worker could be started"):
        await nasty.which()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("exit", "exit code 7"),
        ("segfault", "SIGSEGV"),
        ("kill", "SIGKILL"),
        ("close", "it lives, but has closed its way back"),
    ],
)
async def test_a_worker_that_ends_in_mid_call_says_how(how: str, told: str) -> None:
    async with WorkerPool() as pool:
        before = await pool.call("tests.data.rude", "pid")
        with pytest.raises(WorkerDied, match=told):
            await pool.call("tests.data.rude", "die", (how,))
        assert await pool.call("tests.data.rude", "pid") != before


async def test_a_worker_that_died_while_idle_is_not_used_again() -> None:
    async with WorkerPool() as pool:
        before = await pool.call("tests.data.rude", "pid")
        os.kill(before, signal.SIGKILL)
        await until(lambda: not os.path.exists(f"/proc/{before}"))
        assert await pool.call("tests.data.rude", "pid") != before


async def test_a_cancelled_call_ends_its_worker_and_no_other(
    tmp_path: Path, mark: str
) -> None:
    started = tmp_path / "started"
    async with WorkerPool(grace_seconds=0.2) as pool:
        async with trio.open_nursery() as nursery:
            for _ in range(2):  # two workers
                nursery.start_soon(pool.call, "tests.data.rude", "pid")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def stop_it() -> None:
                    await until(started.exists)
                    scope.cancel()

                nursery.start_soon(stop_it)
                await pool.call("tests.data.rude", "hang", (str(started),))
        assert scope.cancelled_caught
        assert len(marked(mark)) == 3, "the other worker and its wardens"
        left = await pool.call("tests.data.rude", "pid")
        assert any(line.startswith(f"{left}:") for line in marked(mark))


async def test_a_worker_may_have_wardens_of_its_own(mark: str) -> None:
    async def stop_it() -> None:
        await until(lambda: sum("daemonise" in line for line in marked(mark)) >= 4)
        nursery.cancel_scope.cancel()

    async with WorkerPool() as pool, trio.open_nursery() as nursery:
        nursery.start_soon(stop_it)
        await pool.call("tests.nasty", "supervise", ("daemonise_and_stay",))
    assert marked(mark) == []


async def test_a_function_has_its_grace_to_clean_up(tmp_path: Path) -> None:
    started, cleaned = tmp_path / "started", tmp_path / "cleaned"
    async with WorkerPool(grace_seconds=PATIENCE) as pool, trio.open_nursery() as n:

        async def stop_it() -> None:
            await until(started.exists)
            n.cancel_scope.cancel()

        n.start_soon(stop_it)
        await pool.call("tests.data.rude", "clean_up", (str(started), str(cleaned)))
    assert cleaned.exists()


def test_two_threads_each_have_their_own_workers(mark: str) -> None:
    pids: list[int] = []
    both = threading.Barrier(2, timeout=PATIENCE)

    async def main() -> None:
        async with shared_pool:
            pids.append(await shared_pool.call("tests.data.rude", "pid"))
            await trio.to_thread.run_sync(both.wait)
            pids.append(await shared_pool.call("tests.data.rude", "pid"))

    threads = [threading.Thread(target=trio.run, args=[main]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 4
    assert len(set(pids)) == 2


# Tools


def test_what_a_worker_could_not_find_is_refused_at_once() -> None:
    def inner() -> None: ...

    isolate = tool(name="x", isolate="process")
    for fn, told in (
        (lambda: None, "a lambda: put it into a module"),
        (inner, "made in a function"),
        (rude.Account().close, "does not have the object of Account.close"),
    ):
        with pytest.raises(TypeError, match=told):
            isolate(fn)
    with pytest.raises(ValueError, match="isolate takes"):
        tool(isolate="thread")(rude.add)
    assert tool(isolate="process")(rude.add).needs is shared_pool


async def test_a_function_that_another_one_hides_is_not_called() -> None:
    def wrong(a: int, b: int) -> int:
        return 0

    wrong.__module__, wrong.__qualname__ = "tests.data.rude", "add"
    hidden = tool(isolate="process")(wrong)
    with pytest.raises(ToolError, match="is not what the tool wrong was made from"):
        await hidden(1, 2)
    assert await nasty.which() != os.getpid(), "a tool is called like its function"


async def outcome_of(model: ScriptedModel, *tools: Tool, **limits: float) -> Outcome:
    return await Agent(model, tools=tools, limits=Limits(**limits)).run("go")  # type: ignore[arg-type]


async def test_a_tool_knows_its_call_and_cannot_reach_out() -> None:
    model = ScriptedModel([call("pay", amount=3), "done"])
    outcome = await outcome_of(model, nasty.pay)
    assert outcome.status is Status.COMPLETED, outcome
    assert outcome.tools[0].effect_status is EffectStatus.CONFIRMED
    told = model.requests[1].messages[-1].content  # type: ignore[union-attr]
    assert outcome.run_id in told
    assert '"amount":3' in told
    assert '"call":"1.0"' in told
    assert "ToolContext.show does not reach out of a worker process" in told
    assert "context" not in nasty.pay.spec.parameters["properties"]


@pytest.mark.parametrize(
    ("step", "ended", "status"),
    [
        (call("refuse", fatal=False), "failed", EffectStatus.NONE),
        (call("die", how="exit"), "lost", EffectStatus.UNCERTAIN),
        (call("die", how="kill"), "lost", EffectStatus.UNCERTAIN),
        (call("unsendable"), "done", EffectStatus.CONFIRMED),
    ],
)
async def test_what_became_of_a_call(
    step: Any, ended: str, status: EffectStatus
) -> None:
    model = ScriptedModel([step, "done"])
    outcome = await outcome_of(model, nasty.refuse, nasty.die, nasty.unsendable)
    (report,) = outcome.tools
    assert (report.ended, report.effect_status) == (ended, status)


async def test_a_fatal_error_is_fatal() -> None:
    outcome = await outcome_of(
        ScriptedModel([call("refuse", fatal=True)]), nasty.refuse
    )
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "tool_failed")


def asked(name: str, started: Path) -> ScriptedModel:
    return ScriptedModel([call(name, started=str(started)), "done"])


ENDINGS = ["user", "deadline", "tool", "scope", "leave"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", ["stuck_read", "stuck_write"])
async def test_every_stop_ends_a_tool_whatever_it_does(
    name: str, ending: str, tmp_path: Path, mark: str
) -> None:
    # B06: the tool ignores TERM, loops, and has left daemons that do the same.
    started = tmp_path / "started"
    limits = {"tool": Limits(tool_seconds=2), "deadline": Limits(seconds=2)}
    agent = Agent(
        asked(name, started),
        tools=[nasty.stuck_read, nasty.stuck_write],
        limits=limits.get(ending, Limits()),
    )
    grace = 0.3 if name == "stuck_write" and ending != "tool" else 0.0
    began = trio.current_time()
    with trio.CancelScope() as scope:
        async with agent.open("go") as run:
            await until(started.exists)
            assert len(marked(mark)) > 3
            stopped_at = trio.current_time()
            if ending == "user":
                run.cancel("enough")
            if ending == "scope":
                scope.cancel()
                await trio.sleep_forever()
            if ending in limits:
                stopped_at = began + 2
                async for _ in run:
                    pass
    took = trio.current_time() - stopped_at
    assert marked(mark) == []
    assert took < grace + AFTER + BUSY
    (report,) = run.outcome.tools
    uncertain = report.effect_status is EffectStatus.UNCERTAIN
    assert uncertain == (name == "stuck_write")
    if name == "stuck_read":
        assert report.effect_status is EffectStatus.NONE
    status = {
        "user": Status.CANCELLED,
        "deadline": Status.TIMED_OUT,
        "scope": Status.INTERRUPTED,
        "leave": Status.CANCELLED,
    }
    if ending in status:
        assert run.outcome.status is status[ending]


async def test_a_write_that_ends_within_its_grace_is_confirmed(tmp_path: Path) -> None:
    started, effect = tmp_path / "started", tmp_path / "effect"
    step = call("slow_write", started=str(started), effect=str(effect))
    async with Agent(ScriptedModel([step]), tools=[nasty.slow_write]).open("go") as run:
        await until(started.exists)
        run.cancel()
    assert run.outcome.tools[0].effect_status is EffectStatus.CONFIRMED
    assert run.outcome.tools[0].late
    assert effect.exists()


async def test_an_effect_is_not_done_late(tmp_path: Path) -> None:
    # B06: no thread goes on and writes afterwards.
    started, effect = tmp_path / "started", tmp_path / "effect"
    slow = tool(name="slow_write", isolate="process", effect="once", grace_seconds=0)(
        nasty.slow_write.fn.isolated  # type: ignore[attr-defined]
    )
    step = call("slow_write", started=str(started), effect=str(effect))
    async with Agent(ScriptedModel([step]), tools=[slow]).open("go") as run:
        await until(started.exists)
        run.cancel()
    assert run.outcome.tools[0].effect_status is EffectStatus.UNCERTAIN
    await trio.sleep(0.5)  # by then it would have been written
    assert not effect.exists()


async def test_an_async_tool_is_cancelled_and_cleans_up(tmp_path: Path) -> None:
    started, cleaned = tmp_path / "started", tmp_path / "cleaned"
    step = call("polite", started=str(started), cleaned=str(cleaned))
    async with Agent(ScriptedModel([step]), tools=[nasty.polite]).open("go") as run:
        await until(started.exists)
        run.cancel()
    assert cleaned.exists()
    assert run.outcome.tools[0].effect_status is EffectStatus.NONE


async def test_workers_stay_warm_for_a_run_and_for_the_agents_block(mark: str) -> None:
    async def run_twice(agent: Agent) -> list[str]:
        for _ in range(2):
            await agent.run("go")
        model = agent.model
        assert isinstance(model, ScriptedModel)
        return [
            message.content
            for request in model.requests
            for message in request.messages[-1:]
            if isinstance(message, ToolResult)
        ]

    def script() -> ScriptedModel:
        return ScriptedModel([call("which"), call("which"), Reply(text="done")] * 2)

    one, two, three, four = await run_twice(Agent(script(), tools=[nasty.which]))
    assert one == two != three == four
    assert marked(mark) == []
    agent = Agent(script(), tools=[nasty.which])
    async with agent:
        pids = await run_twice(agent)
        assert len(pids) == 4
        assert len(set(pids)) == 1
    assert marked(mark) == []


# The program itself

PROGRAM = """
    import trio
    from trioagent import Agent, tool
    from trioagent.testing import ScriptedModel, call

    class Money:
        def __init__(self, amount): self.amount = amount

    @tool(isolate="process", effect="once")
    def pay(amount: int) -> str:
        return f"paid {amount} in {__name__}"

    def make(amount):
        return Money(amount)

    def main():
        model = ScriptedModel([call("pay", amount=3), "done"])
        outcome = Agent(model, tools=[pay]).run_sync("go")
        told = model.requests[-1].messages[-1] if model.requests else outcome.stop
        print(outcome.status, getattr(told, "content", outcome.stop))
        from trioagent.isolate.workers import shared_pool
        money = trio.run(shared_pool.call, "__main__", "make", (4,))
        print(isinstance(money, Money), money.amount)
"""


def python(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
        **options,
    )


def test_tools_of_the_program_itself_are_found_as_multiprocessing_does(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    guarded = textwrap.dedent(PROGRAM) + "\nif __name__ == '__main__':\n    main()\n"
    program.write_text(guarded)
    told = "completed paid 3 in __mp_main__\nTrue 4\n"
    by_path = python(str(program))
    assert by_path.stdout == told, by_path.stderr
    by_name = python("-m", "program", cwd=tmp_path)
    assert by_name.stdout == told, by_name.stderr


def test_a_program_without_a_guard_is_told_so(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM) + "\nmain()\n")
    done = python(str(program))
    assert "failed" in done.stdout, done.stderr
    assert "below `if __name__ == '__main__':`" in done.stderr


def test_tools_of_a_session_are_refused_with_a_remedy() -> None:
    code = "from trioagent import tool\n@tool(isolate='process')\ndef f(): pass\n"
    done = python("-c", code)
    assert "TypeError: @tool f: a worker cannot import f from a session" in done.stderr
    assert "put it into a module" in done.stderr


def test_medians_of_a_start_and_of_a_warm_call() -> None:
    """Bounds far above what is measured on a quiet machine; see benchmarks."""

    async def main() -> tuple[float, float]:
        cold: list[float] = []
        warm: list[float] = []
        for _ in range(5):
            async with WorkerPool() as pool:
                for times in (cold, *[warm] * 20):
                    began = time.perf_counter()
                    await pool.call("tests.data.rude", "pid")
                    times.append(time.perf_counter() - began)
        return statistics.median(cold), statistics.median(warm)

    cold, warm = trio.run(main)
    assert cold < 0.45
    assert warm < 0.005
