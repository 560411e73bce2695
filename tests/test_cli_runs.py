"""`trioagent runs`, as processes: what a journal tells, and what to do about it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.test_cli import KEYS, SECONDS, environment, on_a_terminal, wait_for
from trioagent import KeptEvent, Message, RunState
from trioagent._turn import check_history

ROW = [
    "run_id",
    "agent",
    "model",
    "status",
    "stop_reason",
    "created",
    "seconds",
    "turns",
    "usage",
    "billed",
    "uncertain",
    "next",
]
EFFECT = [
    "run_id",
    "call",
    "tool",
    "arguments",
    "effect",
    "effect_status",
    "key",
    "recovery",
    "attempts",
    "judged_by",
    "verdict",
    "result",
]
AGENTS = '''
import sys
import trio
from trioagent import Agent, Reply, Usage, tool
from trioagent.stores.memory import MemoryStore
from trioagent.stores.sqlite import SqliteStore
from trioagent.testing import BlockingModel, Hang, ScriptedModel, call

@tool(effect="read")
async def look(order: str) -> str:
    """Look."""
    return "not paid"

@tool(effect="once", grace_seconds=0.1)
async def pay(order: str, euros: int) -> str:
    """Pay, and hang."""
    sys.stderr.write(f"paying {euros}\\n")
    sys.stderr.flush()
    await trio.sleep_forever()

@tool(effect="once", approve="ask")
async def refund(order: str) -> str:
    """Refund."""
    return "refunded"

USAGE = Usage(input_tokens=12000, output_tokens=340, cost=0.0123)

def asks(text, *calls):
    return Reply(
        text=text, tool_calls=calls, finish_reason="tool_calls", usage=USAGE
    )

def shopping(request):
    if request.turn == 1:
        return asks("I look it up.", call("look", order="4711"))
    if request.turn == 2:
        one, two = ("4711", 40), ("4712", 7)
        return asks("", *(call("pay", order=o, euros=e) for o, e in (one, two)))
    known = [m.content for m in request.messages if hasattr(m, "content")]
    return Reply(text=" | ".join(known), usage=USAGE)

def refunding(request):
    if request.turn == 1:
        return asks("", call("refund", order="4711"))
    return request.messages[-1].content

RUDE = "\\x1b[31mred\\x07\\x9b2J\\nnext\\tline"

def rude(request):
    if request.turn == 1:
        return asks(RUDE, call("pay", order=RUDE, euros=1), call("look", order=RUDE))
    return RUDE

tools = [look, pay, refund]
shop = Agent(ScriptedModel([shopping] * 9), name="shop", tools=tools)
other = Agent(ScriptedModel(["hi"]), name="other")
hello = Agent(ScriptedModel(["Hello."] * 9), name="hello")
refunds = Agent(ScriptedModel([refunding] * 9), name="refunds", tools=tools)
silent = Agent(BlockingModel(), name="silent")
half = Agent(ScriptedModel([["Half an ", "answer", Hang()]] * 2), name="half")
rude = Agent(ScriptedModel([rude] * 9), name=RUDE, tools=tools)
own = Agent(ScriptedModel(["Kept."]), name="own", store=SqliteStore("own.db"))
'''


class Done(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shell:
    """A directory to type commands in."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *args: str, **more: str) -> subprocess.Popen[str]:
        home = {"TRIOAGENT_HOME": str(self.place / "home")}
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "trioagent", *args],
            cwd=self.place,
            env=environment(**{**home, **more}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def __call__(self, *args: str, **more: str) -> Done:
        process = self.start(*args, **more)
        out, err = process.communicate(timeout=SECONDS)
        assert "Traceback" not in err
        return Done(process.returncode, out, err)

    def runs(self, *args: str, **more: str) -> Done:
        return self("runs", *args, "--journal", "j.db", **more)

    def typed(self, line: str) -> Done:
        """What somebody gets who copies a command from the screen."""
        program, *args = shlex.split(line)
        assert program == "trioagent"
        return self(*args)

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


def kill_in_the_middle(shell: Shell) -> None:
    """Run the shop's agent until both of its payments are under way, and kill it."""
    process = shell.start("run", "Pay 4711.", "-a", "shops:shop", "--journal", "j.db")
    wait_for(process.stderr, "paying 7")
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("killed")
    (place / "shops.py").write_text(AGENTS)
    shell = Shell(place)
    kill_in_the_middle(shell)
    shell.end()
    return place


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """An empty place, and the agents."""
    (tmp_path / "shops.py").write_text(AGENTS)
    shell = Shell(tmp_path)
    yield shell
    shell.end()


@pytest.fixture
def dead(killed: Path, tmp_path: Path) -> Iterator[Shell]:
    """A place with the journal of a process that was killed in two payments."""
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    shell = Shell(tmp_path)
    yield shell
    shell.end()


def commands(text: str) -> list[str]:
    return [li.strip() for li in text.splitlines() if li.startswith("  trioagent ")]


def one_line_of(done: Done) -> str:
    """What stderr says of something that cannot be done: exit code 2, one line."""
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    return line


# The whole way, from a kill to an answer


def test_a_killed_run_is_explained_settled_and_resumed(dead: Shell) -> None:
    done = dead.runs("list", "--json")
    (row,) = done.json
    assert done.code == 5
    assert list(row) == ROW
    assert row["agent"] == "shop"
    assert row["status"] == "interrupted"
    assert row["uncertain"] == ["2.0", "2.1"]
    assert row["next"]["action"] == "review"
    assert row["usage"]["input_tokens"] == 24000
    assert row["usage"]["reasoning_tokens"] is None, "unknown is null"

    done = dead.runs("show", "last")
    assert done.code == 5
    assert re.search(r"\? 2\.1 pay .*uncertain", done.out)
    typed = commands(done.out)
    assert len(typed) == 5

    first = dead.typed(f"{typed[0]} --result 'paid, receipt 99'")
    assert first.code == 5, "the other one is uncertain yet"
    assert "2.0 pay happened; it is not run again." in first.out
    refused = dead("runs", "resume", "last", "-a", "shops:shop", "--journal", "j.db")
    assert refused.code == 5
    assert "stopped · effect_uncertain" in refused.err
    second = dead.typed(commands(first.out)[0])
    assert second.code == 0

    (resume,) = commands(second.out)
    done = dead.typed(resume.replace("MODULE:NAME", "shops:shop"))
    assert done.code == 0
    assert done.out == "not paid | paid, receipt 99 | done\n"
    assert "paying" not in done.err, "neither payment is made again"

    done = dead.runs("effects", "last")
    assert done.code == 0
    assert done.out.count("person: it happened") == 2
    assert dead.runs("list", "--json").json[0]["status"] == "completed"
    assert one_line_of(
        dead.typed(resume.replace("MODULE:NAME", "shops:shop"))
    ).endswith("is completed: there is nothing left to do")


def test_what_did_not_happen_may_run_again(dead: Shell) -> None:
    done = dead.runs("settle", "last", "2.0", "--happened")
    assert done.code == 5
    done = dead.runs("settle", "last", "2.1", "--did-not-happen", "--json")
    assert done.code == 0
    assert done.json["effect_status"] == "not_started"
    assert done.json["uncertain"] == []
    assert done.json["next"]["action"] == "resume"
    deadline = ["--deadline", "3s", "--json"]
    done = dead.runs("resume", "last", "-a", "shops:shop", *deadline)
    assert done.code == 5
    assert list(done.json) == KEYS
    assert (done.json["status"], done.json["stop_reason"]) == ("timed_out", "deadline")
    assert "paying 7" in done.err
    assert "paying 40" not in done.err


def test_the_story_is_whole_and_fits_a_terminal(dead: Shell) -> None:
    dead.runs("settle", "last", "2.0", "--happened", "--result", "receipt 99")
    out = dead.runs("show", "last").out
    in_order = [
        "shop · scripted:model",
        "tokens: 24000 in, 680 out · $0.0246",
        "Pay 4711.",
        "turn 1",
        "I look it up.",
        '✓ 1.0 look {"order":"4711"}',
        "not paid",
        "turn 2",
        '? 2.0 pay {"order":"4711","euros":40}',
        '? 2.1 pay {"order":"4712","euros":7}',
        "2.0 pay: it happened",
        "receipt 99",
        "end  none was kept",
        "May or may not have happened:",
        "key ",
        "Look whether pay (2.1) happened, then:",
    ]
    place = 0
    for text in in_order:
        assert text in out[place:], text
        place = out.index(text, place)
    tables = [li for li in out.splitlines() if not li.startswith("  trioagent ")]
    assert max(map(len, tables)) <= 80


def test_the_key_is_there_to_look_the_effect_up_by(dead: Shell) -> None:
    done = dead.runs("effects", "--uncertain", "--json")
    assert done.code == 5
    assert [list(effect) for effect in done.json] == [EFFECT, EFFECT]
    one, two = done.json
    assert (one["call"], two["call"]) == ("2.0", "2.1")
    assert one["arguments"] == '{"order":"4711","euros":40}'
    assert (one["effect"], one["effect_status"]) == ("once", "uncertain")
    assert one["key"] != two["key"]
    shown = dead.runs("effects").out
    assert f"key {one['key']}" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_json_of_show_has_all_that_is_documented(dead: Shell) -> None:
    done = dead.runs("show", "last", "--json")
    assert done.code == 5
    more = ["output", "text", "tools", "effects", "cleanup", "reached"]
    assert list(done.json) == [*ROW, *more]
    assert [tool["ended"] for tool in done.json["tools"]] == ["done"] + [
        "interrupted"
    ] * 2
    assert [list(effect) for effect in done.json["effects"]] == [EFFECT, EFFECT]


def test_each_event_is_on_a_line_with_its_second(dead: Shell) -> None:
    lines = dead.runs("events", "last").out.splitlines()
    events = dead.runs("events", "last", "--json").json
    assert [line.split()[1] for line in lines] == [event["type"] for event in events]
    assert all(re.match(r" *\d+\.\d{3}  ", line) for line in lines)
    assert lines[0].endswith('"Pay 4711."')


def test_what_is_exported_is_the_journal_itself(dead: Shell) -> None:
    lines = dead.runs("export", "last").out.splitlines()
    events = [msgspec.json.decode(line, type=KeptEvent) for line in lines]
    state = RunState.replay(events)
    assert [call.place for call in state.uncertain] == [(2, 0), (2, 1)]
    out = dead.runs("export", "last", "--messages").out
    history = msgspec.json.decode(out, type=tuple[Message, ...])
    check_history(history)
    assert history == state.history()


def test_looking_writes_nothing(dead: Shell) -> None:
    def contents() -> dict[str, bytes]:
        return {
            path.name: path.read_bytes()
            for path in dead.place.iterdir()
            if path.is_file() and not path.name.endswith("-shm")
        }

    before = contents()
    for verb in (["list"], ["show", "last"], ["events", "last"], ["effects"]):
        dead.runs(*verb)
    dead.runs("export", "last")
    dead.runs("settle", "last", "1.0", "--happened")  # refused
    dead.runs("resume", "last", "-a", "shops:other")  # refused
    assert contents() == before


# A run that somebody carries


def test_nobody_settles_a_run_that_is_being_carried(shell: Shell) -> None:
    carrier = shell.start("run", "hi", "-a", "shops:shop", "--journal", "j.db")
    wait_for(carrier.stderr, "paying 7")
    (row,) = shell.runs("list", "--json").json
    assert row["status"] == "running"
    said = one_line_of(shell.runs("settle", "last", "2.0", "--happened"))
    assert f"is carried by process {carrier.pid}" in said
    assert said.endswith("once that has ended")
    said = one_line_of(shell.runs("resume", "last", "-a", "shops:shop"))
    assert f"is carried by process {carrier.pid}" in said
    assert said.endswith("--take-over")
    assert carrier.poll() is None
    carrier.kill()
    carrier.communicate()
    assert shell.runs("settle", "last", "2.0", "--happened").code == 5


def test_a_run_can_be_taken_over_from_a_process_that_stands_still(shell: Shell) -> None:
    carrier = shell.start("run", "hi", "-a", "shops:silent", "--journal", "j.db")
    for _ in range(SECONDS):  # as often as it may take until it is there
        if shell.runs("list", "--json").out.startswith("[{"):
            break
    carrier.send_signal(signal.SIGSTOP)
    options = ["-a", "shops:silent", "--deadline", "1s", "--json"]
    assert shell.runs("resume", "last", *options).code == 2
    done = shell.runs("resume", "last", *options, "--take-over")
    assert (done.code, done.json["status"]) == (4, "timed_out")
    carrier.send_signal(signal.SIGCONT)


# Naming a run


def test_a_run_is_named_by_what_is_unique(shell: Shell) -> None:
    for _ in range(2):
        shell("run", "hi", "-a", "shops:hello", "--keep")
    new, old = (row["run_id"] for row in shell("runs", "list", "--json").json)

    def shown(name: str) -> str:
        found: str = shell("runs", "show", name, "--json").json["run_id"]
        return found

    assert shown("last") == new
    assert shown(old) == old
    assert shown(old[:-3]) == old
    assert shown(old.removeprefix("run_")[:12]) == old
    listed = shell("runs", "list").out.splitlines()[2].split()[0]
    assert shown(listed) == old
    said = one_line_of(shell("runs", "show", "run_"))
    assert said.endswith("write more of it")
    said = one_line_of(shell("runs", "show", "nobody"))
    assert said.endswith("see trioagent runs list")
    assert "there is no run 'nobody'" in said


def test_a_long_list_says_what_it_left_out(shell: Shell) -> None:
    for _ in range(2):
        shell("run", "hi", "-a", "shops:hello", "--keep")
    done = shell("runs", "list", "--limit", "1")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "… and 1 more before: --limit 2"
    assert len(shell("runs", "list", "--limit", "1", "--json").json) == 1


# Keeping a run


def test_a_run_is_not_kept_by_itself(shell: Shell) -> None:
    assert shell("run", "hi", "-a", "shops:hello").code == 0
    assert not (shell.place / "home").exists()
    said = one_line_of(shell("runs", "list"))
    assert said.endswith("trioagent run --keep keeps one")


def test_keep_is_the_default_journal_and_journal_is_a_file(shell: Shell) -> None:
    assert shell("run", "hi", "-a", "shops:hello", "--keep").code == 0
    assert (shell.place / "home" / "journal.db").exists()
    assert shell("run", "hi", "-a", "shops:hello", "--journal", "x y.db").code == 0
    done = shell("runs", "list", "--journal", "x y.db")
    assert done.code == 0
    assert re.search(r"hello +completed", done.out)
    both = shell("run", "hi", "-a", "shops:hello", "--keep", "--journal", "x.db")
    assert both.code == 2


def test_an_agent_keeps_its_own_store_unless_told_otherwise(shell: Shell) -> None:
    assert shell("run", "hi", "-a", "shops:own").code == 0
    assert len(shell("runs", "list", "--json", "--journal", "own.db").json) == 1
    assert shell("run", "hi", "-a", "shops:own", "--keep").code == 0
    assert len(shell("runs", "list", "--json", "--journal", "own.db").json) == 1
    assert len(shell("runs", "list", "--json").json) == 1


def test_the_report_names_the_commands_that_settle_and_go_on(shell: Shell) -> None:
    options = ["--journal", "a b.db", "--deadline", "500ms"]
    done = shell("run", "hi", "-a", "shops:shop", *options)
    assert done.code == 5
    typed = commands(done.err)
    happened, resume = [c for c in typed if "--happened" in c], typed[-1]
    assert len(typed) == 5
    assert [shell.typed(command).code for command in happened] == [5, 0]
    assert "--deadline" in resume, "its time is used up"
    done = shell.typed(resume)
    assert (done.code, done.out) == (0, "not paid | done | done\n")


def test_a_run_that_was_not_kept_says_so_where_it_matters(shell: Shell) -> None:
    done = shell("run", "hi", "-a", "shops:shop", "--deadline", "500ms")
    assert done.code == 5
    assert commands(done.err) == []
    assert "It was not kept, so it cannot be settled" in done.err


def test_a_completed_run_names_no_commands(shell: Shell) -> None:
    done = shell("run", "hi", "-a", "shops:hello", "--keep")
    assert done.err == "completed · 1 turn · tokens: 1 in, 1 out\n"


# Going on


def test_only_the_agent_that_began_it_goes_on(dead: Shell) -> None:
    said = one_line_of(dead.runs("resume", "last", "-a", "shops:other"))
    assert "is a run of the agent 'shop', and this one is 'other'" in said


def test_ctrl_c_ends_a_resumed_run_as_any_other(shell: Shell) -> None:
    shell("run", "hi", "-a", "shops:half", "--keep", "--deadline", "500ms")
    process = shell.start(
        "runs", "resume", "last", "-a", "shops:half", "--deadline", "60s"
    )
    wait_for(process.stdout, "Half an answer")
    process.send_signal(signal.SIGINT)
    wait_for(process.stderr, "ends after this turn")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "cancelled · user (Ctrl-C)" in err
    done = shell("runs", "list", "--json")
    assert done.json[0]["stop_reason"] == "user"


def test_a_terminal_shows_a_resumed_run_as_it_goes(dead: Shell) -> None:
    dead.runs("settle", "last", "2.0", "--happened")
    dead.runs("settle", "last", "2.1", "--happened")
    words = ["runs", "resume", "last", "-a", "shops:shop", "--journal", "j.db"]
    code, wrote = on_a_terminal(dead.place, *words)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", wrote)
    assert code == 0
    assert "shop · scripted:model" in shown
    assert "turn 3" in shown
    assert "completed · 3 turns" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_call_that_waits_for_approval_is_approved_or_denied(shell: Shell) -> None:
    done = shell("run", "hi", "-a", "shops:refunds", "--keep")
    assert done.code == 4
    approve, deny, resume = commands(done.err)
    assert "approve" in shell("runs", "list").out
    said = one_line_of(shell("runs", "approve", "last", "1.1"))
    assert said.endswith("waits for no approval; these do: 1.0 refund")
    done = shell.typed(f"{deny} --reason 'too late'")
    assert (done.code, commands(done.out)) == (
        0,
        [resume.replace("shops:refunds", "MODULE:NAME")],
    )
    assert "too late" in shell.typed(resume).out
    shell("run", "hi", "-a", "shops:refunds", "--keep")
    assert (
        shell("runs", "approve", "last", "1.0", "--json").json["verdict"] == "approve"
    )
    done = shell("runs", "resume", "last", "-a", "shops:refunds")
    assert (done.code, done.out) == (0, "refunded\n")
    assert approve.startswith("trioagent runs approve run_")


# What cannot be done


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ["settle", "last", "1.0", "--happened"],
            "is not uncertain; these are: 2.0 pay",
        ),
        (
            ["settle", "last", "9.9", "--happened"],
            "is not uncertain; these are: 2.0 pay",
        ),
        (["settle", "last", "2.0", "--did-not-happen", "--result", "x"], "--result"),
        (["resume", "last", "-a", "nobody:x"], "there is no module nobody"),
        (["show", "nobody"], "see trioagent runs list --journal j.db"),
    ],
)
def test_what_cannot_be_done_says_why(dead: Shell, args: list[str], says: str) -> None:
    assert says in one_line_of(dead.runs(*args))


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["settle", "last", "2.0"],
        ["settle", "last", "two", "--happened"],
        ["settle", "last", "2.0", "--happened", "--did-not-happen"],
        ["list", "--limit", "0"],
        ["fly"],
    ],
)
def test_bad_usage_is_exit_code_2(shell: Shell, args: list[str]) -> None:
    done = shell("runs", *args)
    assert (done.code, done.out) == (2, "")


def test_a_journal_that_is_none_is_named(shell: Shell) -> None:
    (shell.place / "text.db").write_text("This is a text. " * 99)
    for verb in (["list"], ["show", "last"], ["effects"]):
        said = one_line_of(shell("runs", *verb, "--journal", "none.db"))
        assert "none.db: there is no such file" in said
        said = one_line_of(shell("runs", *verb, "--journal", "text.db"))
        assert "text.db" in said
    assert not (shell.place / "none.db").exists()
    for path in ("text.db", "no/such/folder.db"):
        said = one_line_of(shell("run", "hi", "-a", "shops:hello", "--journal", path))
        assert path in said


def test_a_run_that_cannot_be_read_does_not_hide_the_others(dead: Shell) -> None:
    dead("run", "hi", "-a", "shops:hello", "--journal", "j.db")
    broken = dead.runs("list", "--json").json[0]["run_id"]
    connection = sqlite3.connect(dead.place / "j.db")
    with connection:
        last = "SELECT max(rowid) FROM events"
        connection.execute(f"UPDATE events SET event = '{{' WHERE rowid = ({last})")
    connection.close()
    done = dead.runs("list")
    assert done.code == 5, "the other one is uncertain"
    assert re.search(r"corrupt .* broken", done.out)
    assert "settle" in done.out
    done = dead.runs("effects")
    assert done.code == 5
    assert "pay" in done.out
    assert broken in done.err
    assert broken in one_line_of(dead.runs("show", "last"))


# On a screen


def test_a_list_fits_in_80_columns_and_tells_more_in_120(dead: Shell) -> None:
    dead("run", "hi", "-a", "shops:half", "--journal", "j.db", "--deadline", "300ms")
    for width in (80, 120):
        lines = dead.runs("list", COLUMNS=str(width)).out.splitlines()
        assert len(lines) == 3, "a line for each run"
        assert max(map(len, lines)) <= width
        assert ("deadline" in lines[1]) is (width == 120)
    assert lines[0].split()[:2] == ["run", "agent"]


def test_no_text_of_a_model_commands_the_terminal(shell: Shell) -> None:
    process = shell.start("run", "\x1b[2Jhi", "-a", "shops:rude", "--journal", "j.db")
    wait_for(process.stderr, "paying 1")
    process.kill()
    process.communicate()
    for verb in (["list"], ["show", "last"], ["events", "last"], ["effects"]):
        out = shell.runs(*verb).out
        assert not set(out) & {"\x1b", "\x07", "\x9b", "\t"}
        assert "red" in out
    done = shell.runs("resume", "last", "-a", "shops:hello")
    assert not set(done.err) & {"\x1b", "\x07", "\x9b"}


def test_a_reader_that_has_enough_is_no_error(dead: Shell) -> None:
    for words in (["show", "last"], ["export", "last"]):
        process = dead.start("runs", *words, "--journal", "j.db")
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.wait(timeout=SECONDS)


def test_help_names_every_verb_and_the_codes(shell: Shell) -> None:
    done = shell("runs", "--help")
    assert done.code == 0
    for verb in ("list", "show", "events", "effects", "settle", "resume", "export"):
        assert f"\n    {verb} " in done.out
        assert max(map(len, shell("runs", verb, "--help").out.splitlines())) <= 80
    assert "5    something is uncertain" in done.out
