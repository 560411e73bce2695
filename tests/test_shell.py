"""The shell tool: commands that are shown, bounded, and ended with all they started."""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.nasty import MARK, marked, rude_program
from trioagent import (
    Agent,
    Effect,
    EffectStatus,
    Limits,
    Outcome,
    Status,
    Tool,
    ToolError,
    ToolOutput,
    ToolResult,
)
from trioagent.isolate.shell import shell
from trioagent.testing import ScriptedModel, call

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="what is left is looked for in /proc"
)

AFTER, BUSY, PATIENCE = 0.2, 0.5, 20.0  # seconds


@pytest.fixture
def mark() -> Any:
    """The environment by which all that a test starts is found; nothing may be left."""
    mark = uuid.uuid4().hex
    yield mark
    assert marked(mark) == []


async def ask(tool: Tool, command: Any) -> tuple[Outcome, str, list[str]]:
    """The outcome of one call, what the model was told, and what was shown."""
    model = ScriptedModel([call("shell", command=command), "done"])
    async with Agent(model, tools=[tool]).open("go") as run:
        shown = [event.text async for event in run if isinstance(event, ToolOutput)]
    told = model.requests[-1].messages[-1]
    assert isinstance(told, ToolResult)
    return run.outcome, told.content, shown


async def test_a_command_tells_its_output_and_its_exit_code(tmp_path: Path) -> None:
    argv = ["sh", "-c", "echo out; echo err >&2; pwd; cat; exit 3"]
    outcome, told, shown = await ask(shell(cwd=tmp_path), argv)
    assert told == f"exit code 3\nout\nerr\n{tmp_path}\n"
    assert "".join(shown) == told.removeprefix("exit code 3\n")
    assert outcome.status is Status.COMPLETED
    (report,) = outcome.tools
    assert (report.ended, report.effect_status) == ("done", EffectStatus.CONFIRMED)


async def test_a_command_without_output() -> None:
    _, told, shown = await ask(shell(), ["true"])
    assert (told, shown) == ("exit code 0, no output", [])


async def test_no_shell_reads_the_command_unless_asked_for() -> None:
    _, told, _ = await ask(shell(), ["echo", "$HOME; echo 2 && x | *"])
    assert told == "exit code 0\n$HOME; echo 2 && x | *\n"
    _, told, _ = await ask(shell(use_shell=True), "echo a | tr a b; false")
    assert told == "exit code 1\nb\n"


async def test_output_is_shown_while_the_command_runs(mark: str) -> None:
    step = call("shell", command=rude_program("ignore_term"))
    tool = shell(env={MARK: mark}, grace_seconds=0)
    async with Agent(ScriptedModel([step]), tools=[tool]).open("go") as run:
        async for event in run:
            if isinstance(event, ToolOutput):
                assert event.text == "ready\n"
                run.cancel()


async def test_long_output_keeps_its_head_and_its_tail() -> None:
    code = "for n in range(100000): print(n)"
    argv = [sys.executable, "-c", code]
    _, told, shown = await ask(shell(output_bytes=1000), argv)
    head, left_out, tail = told.partition("\n… ")
    assert left_out
    assert head.startswith("exit code 0\n0\n1\n2\n")
    assert tail.endswith("99998\n99999\n")
    size = sum(len(f"{n}\n") for n in range(100_000))
    assert f"{size - 1000} bytes left out …\n" in tail
    assert "".join(shown) == told.removeprefix("exit code 0\n")


@pytest.mark.parametrize("limit", range(96, 104))
async def test_a_cut_splits_no_character(limit: int) -> None:
    argv = [sys.executable, "-c", "print('é€😀' * 100, end='')"]
    _, told, _ = await ask(shell(output_bytes=limit, env=utf8()), argv)
    assert "�" not in told
    head, _, tail = told.removeprefix("exit code 0\n").partition("\n… ")
    number, _, tail = tail.partition(" bytes left out …\n")
    assert len((head + tail).encode()) + int(number) == 900


async def test_what_is_no_utf8_is_replaced() -> None:
    _, told, _ = await ask(shell(), ["printf", r"a\377b\303"])
    assert told == "exit code 0\na�b�"


def utf8() -> dict[str, str]:
    return {"PYTHONIOENCODING": "utf-8"}


async def test_the_environment_is_not_handed_on_but_for_four(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    tool = shell(env={"WORD": "x"})
    _, told, _ = await ask(tool, ["env"])
    names = {line.split("=")[0] for line in told.splitlines()[1:]}
    assert (
        {"PATH", "LANG", "WORD"} <= names <= {"PATH", "HOME", "LANG", "TMPDIR", "WORD"}
    )
    _, told, _ = await ask(shell(env=os.environ), ["env"])
    assert "OPENAI_API_KEY=sk-secret" in told


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["ls", "-l"], "'ls' may not be run. Allowed: git, echo."),
        (["/usr/bin/echo"], "'/usr/bin/echo' may not be run"),
        ([], "an empty command"),
    ],
)
async def test_only_allowed_programs_are_run(command: list[str], told: str) -> None:
    outcome, content, _ = await ask(shell(allow=["git", "echo"]), command)
    assert told in content
    (report,) = outcome.tools
    assert (report.ended, report.effect_status) == ("failed", EffectStatus.NONE)
    _, content, _ = await ask(shell(allow=["git", "echo"]), ["echo", "yes"])
    assert content == "exit code 0\nyes\n"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["no-such-program"], "'no-such-program' cannot be run: No such file"),
        (["echo", "a\0b"], "'echo' cannot be run: embedded null byte"),
        (["echo", "x" * 3_000_000], "'echo' cannot be run: Argument list too long"),
    ],
)
async def test_what_cannot_be_run_has_not_happened(
    command: list[str], told: str
) -> None:
    outcome, content, _ = await ask(shell(), command)
    assert told in content
    (report,) = outcome.tools
    assert (report.ended, report.effect_status) == ("failed", EffectStatus.NONE)


@pytest.mark.parametrize("effect", ["once", "read"])
async def test_a_command_that_a_signal_ended_has_no_result(effect: str) -> None:
    argv = ["sh", "-c", "echo half; kill -9 $$"]
    model = ScriptedModel([call("shell", command=argv), "done"])
    outcome = await Agent(model, tools=[shell(effect=effect)]).run("go")
    (report,) = outcome.tools
    assert "sh was ended by SIGKILL. It said last: …half\n" in report.problem
    lost = effect == "once"
    assert (report.effect_status is EffectStatus.UNCERTAIN) == lost


@pytest.mark.parametrize("effect", ["once", "read"])
@pytest.mark.parametrize("ending", ["user", "deadline", "tool", "scope"])
async def test_every_stop_ends_a_command_and_all_that_it_started(
    ending: str, effect: str, mark: str
) -> None:
    # B19, B06
    grace = 0.2
    step = call("shell", command=rude_program("daemonise_and_stay"))
    tool = shell(
        effect=effect,
        env={MARK: mark},
        grace_seconds=grace,
        seconds=1.5 if ending == "tool" else None,
    )
    limits = Limits(seconds=1.5) if ending == "deadline" else Limits()
    model = ScriptedModel([step, "done"])
    began = trio.current_time()
    with trio.CancelScope() as scope:
        async with Agent(model, tools=[tool], limits=limits).open("go") as run:
            said = ""
            with trio.fail_after(PATIENCE):
                async for event in run:
                    if isinstance(event, ToolOutput):
                        said += event.text
                        if said.count("ready\n") == 2:
                            break
            stopped_at = trio.current_time()
            if ending == "user":
                run.cancel()
            elif ending == "scope":
                scope.cancel()
                await trio.sleep_forever()
            else:
                stopped_at = began + 1.5
                async for _ in run:
                    pass
    took = trio.current_time() - stopped_at
    assert marked(mark) == []
    assert took < grace + AFTER + BUSY
    (report,) = run.outcome.tools
    status = EffectStatus.UNCERTAIN if effect == "once" else EffectStatus.NONE
    assert report.effect_status is status


async def test_a_command_that_ends_leaves_nothing_in_the_background(mark: str) -> None:
    tool = shell(env={MARK: mark}, grace_seconds=0.1, effect="read")
    _, told, _ = await ask(tool, rude_program("daemonise"))
    assert told == "exit code 0\nready\n"
    assert marked(mark) == []
    _, told, _ = await ask(tool, rude_program("hold_stdout"))
    assert told == "exit code 0\nready\n"


def test_what_the_model_is_told_of_it() -> None:
    tool = shell("run", effect="read", approve="ask")
    assert (tool.name, tool.effect, tool.approve) == ("run", Effect.READ, "ask")
    assert "without a shell" in tool.description
    assert shell().effect is Effect.ONCE
    command = tool.spec.parameters["properties"]["command"]
    assert (command["type"], command["items"]) == ("array", {"type": "string"})
    line = shell(use_shell=True).spec.parameters["properties"]
    assert list(line) == ["command"]
    assert line["command"]["type"] == "string"
    assert json.dumps(line)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"allow": "git"}, TypeError),
        ({"allow": ["git"], "use_shell": True}, ValueError),
        ({"output_bytes": 0}, ValueError),
        ({"grace_seconds": -1}, ValueError),
        ({"effect": "twice"}, ValueError),
    ],
)
def test_options_that_cannot_be_used(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        shell(**options)


async def test_an_error_that_says_nothing_happened_is_no_bug() -> None:
    with pytest.raises(ToolError):
        await shell(allow=[]).fn(command=["ls"], context=None)
