"""What a run leaves in the log: each transition, and nobody's content."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trioagent import (
    Agent,
    EffectJudged,
    KeptEvent,
    Limits,
    ModelRefused,
    ModelUnavailable,
    Outcome,
    Reply,
    RunEnded,
    RunStarted,
    RunState,
    Status,
    Stop,
    ToolCall,
    ToolError,
    ToolStarted,
    Usage,
    Verdict,
    step_count_is,
    tool,
)
from trioagent.observe.log import RUNS_REMEMBERED, RunLog, kind
from trioagent.stores.memory import MemoryStore
from trioagent.testing import Hang, Pause, ScriptedModel, call

SECRETS = [
    "the-prompt",
    "the-instructions",
    "the-argument",
    "the-result",
    "the-answer",
    "the-problem",
    "the-reason",
]
USAGE = Usage(input_tokens=3, output_tokens=4, cost=0.5)
Line = dict[str, Any]


class Lines(logging.Handler):
    """What a handler with `%(message)s` would write."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        form = logging.Formatter("%(message)s")
        return "\n".join(form.format(record) for record in self.records)

    @property
    def lines(self) -> list[Line]:
        return [json.loads(line) for line in self.text.split("\n")]

    def of(self, event: str) -> list[Line]:
        return [line for line in self.lines if line["event"] == event]

    def levels(self, event: str) -> set[str]:
        return {r.levelname for r in self.records if f'"event":"{event}"' in r.msg}


@pytest.fixture
async def lines() -> AsyncIterator[Lines]:
    handler, logger = Lines(), logging.getLogger("trioagent.run")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@tool(effect="read")
async def look(what: str) -> str:
    await trio.sleep(2)
    return "the-result"


@tool(effect="once", grace_seconds=0.5)
async def pay(to: str) -> str:
    await trio.sleep(3600)
    return "the-result"


@tool(effect="keyed")
async def send(to: str) -> str:
    await trio.sleep(1)
    return "the-result"


@tool
async def break_(it: str) -> str:
    raise OSError("the-problem")


@tool
async def refuse(it: str) -> str:
    raise ToolError("the-problem")


TOOLS = [look, pay, send, break_, refuse]
SLOW_ANSWER = [Pause(4), Reply(text="the-answer", usage=USAGE, response_id="resp_1")]


def agent(*steps: Any, **options: Any) -> Agent:
    options.setdefault("observers", [RunLog()])
    options.setdefault("tools", TOOLS)
    return Agent(
        ScriptedModel(steps), name="shop", instructions="the-instructions", **options
    )


async def test_each_event_is_one_line_of_json(
    lines: Lines, autojump_clock: MockClock
) -> None:
    store = MemoryStore()
    asks = [call("look", what="the-argument"), call("send", to="the-argument")]
    a = agent(asks, SLOW_ANSWER, store=store)
    outcome = await a.run("the-prompt")
    assert outcome.status is Status.COMPLETED
    assert [line["event"] for line in lines.lines] == [kind(e) for e in store.events]
    assert {line["run_id"] for line in lines.lines} == {outcome.run_id}
    assert lines.levels("") == set()
    assert {record.levelname for record in lines.records} == {"INFO"}


async def test_a_line_says_what_the_articles_ask_for(
    lines: Lines, autojump_clock: MockClock
) -> None:
    asks = [call("look", what="x"), call("send", to="x")]
    outcome = await agent(asks, SLOW_ANSWER).run("the-prompt")
    started, ended = lines.of("tool_started"), lines.of("tool_ended")
    assert started[1] == {
        "run_id": outcome.run_id,
        "event": "tool_started",
        "at": 0.0,
        "turn": 1,
        "tool_name": "send",
        "call": "1.1",
        "effect_status": "uncertain",
        "attempt": 1,
        "effect": "keyed",
    }
    assert started[0]["effect_status"] == "none"
    by_name = {line["tool_name"]: line for line in ended}
    assert by_name["send"]["effect_status"] == "confirmed"
    assert by_name["send"]["seconds"] == 1
    assert by_name["look"]["effect_status"] == "none"
    assert by_name["look"]["seconds"] == 2
    asked, replied = lines.of("model_asked")[1], lines.of("model_replied")[1]
    assert (asked["turn"], asked["attempt"]) == (2, 1)
    assert asked["model"] == "scripted:model"
    assert replied["seconds"] == 4
    assert (replied["turn"], replied["attempt"]) == (2, 1)
    assert replied["model"] == "scripted:model"
    assert replied["request_id"] == "req_2"
    assert replied["response_id"] == "resp_1"
    assert replied["finish_reason"] == "stop"
    assert replied["input_tokens"] == 3
    assert replied["output_tokens"] == 4
    assert replied["cost"] == 0.5
    assert "reasoning_tokens" not in replied, "unknown is not 0"
    assert replied["billed"] == "known"
    (end,) = lines.of("run_ended")
    assert end["status"] == "completed"
    assert end["stop_reason"] is None
    assert end["seconds"] == 6


async def test_no_content_is_in_it(lines: Lines, autojump_clock: MockClock) -> None:
    await _everything()
    assert lines.records
    for secret in SECRETS:
        assert secret not in lines.text
    assert not any("key" in line for line in lines.lines)


async def test_content_is_in_it_where_it_is_asked_for_but_never_a_key(
    lines: Lines, autojump_clock: MockClock
) -> None:
    keys = [key for key in await _everything(log_content=True) if key]
    for secret in SECRETS:
        assert secret in lines.text
    assert keys
    for key in keys:
        assert key not in lines.text


async def _everything(**options: Any) -> set[str]:
    """Runs in which everybody says something; the keys that were in them."""
    log, keys = RunLog(**options), set()

    def note(_: str, event: KeptEvent) -> None:
        if isinstance(event, ToolStarted):
            keys.add(event.key)

    observers = [log, note]
    asks = [call(t.name, **{_argument(t.name): "the-argument"}) for t in TOOLS[2:]]
    unknown = call("no_such_tool", it="the-argument")
    await agent(
        [call("look", what="the-argument"), unknown], asks, observers=observers
    ).run("the-prompt")
    a = agent([call("look", what="the-argument")], "the-answer", observers=observers)
    async with a.open("the-prompt") as run:
        run.finish_turn("the-reason")
    await agent("the-answer", observers=observers).run("the-prompt")
    return keys


def _argument(name: str) -> str:
    return {"send": "to"}.get(name, "it")


# The reason is the same everywhere


async def _cancelled(a: Agent) -> Outcome:
    async with a.open("hi") as run:
        await trio.sleep(1)
        run.cancel("Ctrl-C")
    return run.outcome


async def _interrupted(a: Agent) -> Outcome:
    with trio.move_on_after(1):
        async with a.open("hi") as run:
            await trio.sleep_forever()
    return run.outcome


ENDINGS: dict[Status, tuple[Any, dict[str, Any], str | None]] = {
    Status.COMPLETED: (["hi"], {}, None),
    Status.STOPPED: (
        [call("look", what="x"), "hi"],
        {"stop_when": [step_count_is(1)]},
        "step_count:1",
    ),
    Status.MAX_TURNS: (
        [call("look", what="x")],
        {"limits": Limits(turns=1)},
        "max_turns",
    ),
    Status.CANCELLED: ([[Hang()]], {}, "user"),
    Status.TIMED_OUT: ([[Hang()]], {"limits": Limits(seconds=1)}, "deadline"),
    Status.FAILED: ([ModelRefused("no")], {}, "llm_refused"),
    Status.PAUSED: ([call("send", to="x")], {"approve": "ask"}, "approval"),
    Status.INTERRUPTED: ([[Hang()]], {}, "host"),
}


def test_every_status_is_tried() -> None:
    assert set(ENDINGS) == set(Status)


@pytest.mark.parametrize("status", list(Status))
async def test_the_reason_is_the_same_in_outcome_event_journal_and_log(
    status: Status, lines: Lines, autojump_clock: MockClock
) -> None:
    steps, options, reason = ENDINGS[status]
    store = MemoryStore()
    seen: list[KeptEvent] = []
    observers = [RunLog(), lambda _, event: seen.append(event)]
    a = agent(*steps, store=store, observers=observers, **options)
    special = {Status.CANCELLED: _cancelled, Status.INTERRUPTED: _interrupted}
    outcome = await (special[status](a) if status in special else a.run("hi"))
    ended = seen[-1]
    assert isinstance(ended, RunEnded)
    of_journal = Outcome.of(RunState.replay(store.events))
    (line,) = lines.of("run_ended")
    assert {outcome.status, ended.status, of_journal.status} == {status}
    assert line["status"] == status
    told = [outcome.stop_reason, of_journal.stop_reason, line["stop_reason"]]
    told.append(str(ended.stop) if ended.stop else None)
    assert told == [reason] * 4
    assert outcome.stop is None or line["scope"] == outcome.stop.scope


# What is uncertain


async def test_an_uncertain_effect_is_a_warning(
    lines: Lines, autojump_clock: MockClock
) -> None:
    a = agent([call("pay", to="x")], limits=Limits(seconds=1))
    outcome = await a.run("hi")
    assert outcome.uncertain
    (lost,) = lines.of("tool_lost")
    assert lost["effect_status"] == "uncertain"
    assert (lost["effect"], lost["attempt"], lost["call"]) == ("once", 1, "1.0")
    assert lines.levels("tool_lost") == {"WARNING"}
    assert lines.levels("tool_started") == {"INFO"}, "a start is not alarming"
    assert lines.of("run_ended")[0]["uncertain"] == ["1.0"]
    assert lines.levels("run_ended") == {"WARNING"}


async def test_an_interrupted_read_is_no_warning(
    lines: Lines, autojump_clock: MockClock
) -> None:
    await agent([call("look", what="x")], limits=Limits(seconds=1)).run("hi")
    assert "uncertain" not in lines.text
    assert lines.levels("run_ended") == {"INFO"}


async def test_a_cut_reply_that_may_be_billed_is_a_warning(
    lines: Lines, autojump_clock: MockClock
) -> None:
    broken = [Pause(2), "half", ModelUnavailable("down", request_id="req_9")]
    a = agent([ModelUnavailable("down", request_id="req_8")], "hi")
    await a.run("hi")
    await agent(broken, "hi").run("hi")
    first, second = lines.of("model_cut")
    assert first["code"] == second["code"] == "llm_unavailable"
    assert first["request_id"] == "req_1"
    assert first["billed"] == "unknown"
    assert second["seconds"] == 2
    assert lines.levels("model_cut") == {"WARNING"}
    again = lines.of("model_asked")[1]
    assert (again["attempt"], again["why"]) == (2, "llm_unavailable")


async def test_a_repeat_that_fails_leaves_the_effect_uncertain(
    lines: Lines, autojump_clock: MockClock
) -> None:
    attempts: list[int] = []

    @tool(effect="keyed", seconds=1)
    async def put(to: str) -> str:
        attempts.append(1)
        if len(attempts) > 1:
            raise ToolError("the second one says: nothing happened")
        await trio.sleep(3600)
        return "put"

    outcome = await agent([call("put", to="x")], tools=[put]).run("hi")
    assert len(attempts) == 2
    assert [t.effect_status for t in outcome.uncertain] == ["uncertain"]
    statuses = [line["effect_status"] for line in lines.of("tool_ended")]
    assert statuses == ["uncertain"], "as the run counts it"
    assert lines.of("run_ended")[0]["uncertain"] == ["1.0"]


@pytest.mark.parametrize(
    ("verdict", "status", "level"),
    [
        (Verdict.HAPPENED, "confirmed", "INFO"),
        (Verdict.DID_NOT_HAPPEN, "not_started", "INFO"),
        (Verdict.UNDONE, "none", "INFO"),
        (Verdict.UNKNOWN, "uncertain", "WARNING"),
        (Verdict.TOLD, "uncertain", "WARNING"),
    ],
)
async def test_a_judgement_says_what_is_certain_now(
    lines: Lines, verdict: Verdict, status: str, level: str
) -> None:
    judged = EffectJudged(call=ToolCall("pay", turn=1), verdict=verdict, by="person")
    RunLog()("run_1", judged)
    (line,) = lines.lines
    assert (line["effect_status"], line["by"]) == (status, "person")
    assert line["verdict"] == verdict
    assert lines.levels("effect_judged") == {level}


# It must not do harm


class Wordless:
    def __str__(self) -> str:
        raise RuntimeError("no words")


ODD: Sequence[KeptEvent] = [
    RunStarted(run_id="r", agent="\ud800"),
    ToolStarted(ToolCall("\udfff\n{}%s%d", "\ud800", turn=1), "once"),  # type: ignore[arg-type]
    RunEnded(Status.STOPPED, Stop("50% {} %s \x00\x1b\n", "\ud800"), output="\ud800"),
    RunEnded(Status.STOPPED, output=Wordless()),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("event", ODD)
async def test_odd_content_is_still_one_line(lines: Lines, event: KeptEvent) -> None:
    RunLog(log_content=True)("run\ud8001", event)
    (record,) = lines.records
    text = record.getMessage()
    assert len(text.splitlines()) == 1
    assert json.loads(text)["event"] == kind(event)


async def test_what_it_remembers_goes_with_the_run(autojump_clock: MockClock) -> None:
    log = RunLog()
    a = agent([call("send", to="x")], "hi", observers=[log])
    await a.run("hi")
    assert log._runs == {}
    for number in range(RUNS_REMEMBERED + 10):
        log(f"run_{number}", RunStarted(run_id=f"run_{number}"))
    assert len(log._runs) == RUNS_REMEMBERED, "also where no end comes"


async def test_another_logger_and_another_level(lines: Lines) -> None:
    other = logging.getLogger("tests.another")
    handler = Lines()
    other.addHandler(handler)
    other.setLevel(logging.DEBUG)
    other.propagate = False
    await agent("hi", observers=[RunLog(other, level=logging.DEBUG)]).run("hi")
    assert lines.records == []
    assert {record.levelname for record in handler.records} == {"DEBUG"}
    handler.records.clear()
    other.setLevel(logging.WARNING)
    await agent("hi", observers=[RunLog(other)]).run("hi")
    assert handler.records == []
