"""Guards: what they see, what waits for them, and what they end."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trioagent import (
    Agent,
    Limits,
    Message,
    ModelReplied,
    Reply,
    RunEnded,
    Status,
    ToolCall,
    ToolNotRun,
    ToolResult,
    UserMessage,
    tool,
)
from trioagent.testing import (
    CancelPoint,
    Hang,
    MemoryStore,
    Pause,
    ScriptedModel,
    call,
    sweep_cancels,
)


def agent(*steps: Any, **options: Any) -> Agent:
    options.setdefault("store", MemoryStore())
    return Agent(ScriptedModel(steps), **options)


def kept(a: Agent) -> list[Any]:
    assert isinstance(a.store, MemoryStore)
    return list(a.store.events)


def after(seconds: float, reason: Any = None) -> Any:
    async def guard(seen: Any) -> Any:
        await trio.sleep(seconds)
        return reason

    return guard


def counted() -> tuple[list[str], list[Any]]:
    ran: list[str] = []

    @tool(effect="once")
    async def pay() -> str:
        ran.append("pay")
        return "paid"

    @tool(effect="read")
    async def look() -> str:
        ran.append("look")
        return "seen"

    return ran, [pay, look]


async def test_a_guard_that_trips_cancels_the_model_and_no_write_has_begun(
    autojump_clock: MockClock,
) -> None:
    # B49
    ran, tools = counted()
    calls = (call("pay"), call("look"))
    reply = Reply(tool_calls=calls, finish_reason="tool_calls")
    model = ScriptedModel([[Pause(0.01), reply], [Hang()]])
    a = Agent(
        model, tools=tools, input_guards=[after(0.05, "jailbreak")], store=MemoryStore()
    )
    outcome = await a.run("go")
    assert ran == ["look"], "a read may run, a write waits"
    assert (outcome.status, str(outcome.stop)) == (Status.STOPPED, "guard")
    assert outcome.stop is not None
    assert (outcome.stop.detail, outcome.stop.scope) == ("jailbreak", "input")
    assert model.closed == len(model.requests), "every stream is closed"
    assert trio.current_time() == pytest.approx(0.05, abs=0.01)


async def test_a_stream_is_cut_by_a_guard(autojump_clock: MockClock) -> None:
    hang = Hang()
    a = agent(["some text", hang], input_guards=[after(1, "no")])
    outcome = await a.run("go")
    assert outcome.stop_reason == "guard"
    assert outcome.text == "some text"
    assert trio.current_time() == pytest.approx(1)


async def test_a_write_begins_when_all_guards_have_passed(
    autojump_clock: MockClock,
) -> None:
    began: list[float] = []

    @tool(effect="once")
    async def pay() -> str:
        began.append(trio.current_time())
        return "paid"

    guards = [after(1), after(2), after(3)]
    outcome = await agent(call("pay"), "ok", tools=[pay], input_guards=guards).run("go")
    assert began == [3]
    assert outcome.status is Status.COMPLETED


async def test_an_answer_waits_for_the_guards_of_its_input(
    autojump_clock: MockClock,
) -> None:
    outcome = await agent("at once", input_guards=[after(5, "no")]).run("go")
    assert outcome.status is Status.STOPPED
    assert outcome.output is None
    assert outcome.text == "at once", "it is kept, and not the answer"


async def test_guards_see_what_they_are_for() -> None:
    seen: list[Any] = []

    def note(what: Any) -> None:
        seen.append(what)

    _, tools = counted()
    a = agent(
        call("pay"),
        "answer",
        tools=tools,
        input_guards=[note],
        output_guards=[note],
        tool_guards=[note],
    )
    assert (await a.run("go")).status is Status.COMPLETED
    messages, asked, answer = seen
    assert messages == (UserMessage("go"),)
    assert isinstance(asked, ToolCall)
    assert asked.name == "pay"
    assert answer == "answer"


async def test_a_guard_of_the_output_has_the_last_word() -> None:
    a = agent("a secret", output_guards=[after(0), after(0, "it has a secret")])
    outcome = await a.run("go")
    assert (outcome.status, outcome.output) == (Status.STOPPED, None)
    assert outcome.stop is not None
    assert (outcome.stop.detail, outcome.stop.scope) == ("it has a secret", "output")
    assert any(isinstance(e, ModelReplied) for e in kept(a))


async def test_a_stop_while_an_answer_is_looked_at_is_a_stop(
    autojump_clock: MockClock,
) -> None:
    a = agent("answer", output_guards=[after(10)], limits=Limits(seconds=5))
    outcome = await a.run("go")
    assert outcome.status is Status.TIMED_OUT, "nobody has let it pass"
    assert outcome.output is None


async def test_a_guard_of_tools_keeps_a_call_from_beginning() -> None:
    ran, tools = counted()

    def guard(found: ToolCall) -> str | None:
        return "never pay" if found.name == "pay" else None

    a = agent([call("pay"), call("look")], "ok", tools=tools, tool_guards=[guard])
    outcome = await a.run("go")
    assert ran == ["look"]
    assert outcome.status is Status.COMPLETED
    (not_run,) = (e for e in kept(a) if isinstance(e, ToolNotRun))
    assert not_run.code == "guard"
    told = [m.content for m in outcome.history if isinstance(m, ToolResult)]
    assert told[0] == "Not started: a guard objected: never pay."


@pytest.mark.parametrize(
    ("guard", "detail"),
    [
        (lambda _: True, "<lambda>"),
        (lambda _: 1 / 0, "<lambda> failed: ZeroDivisionError"),
    ],
)
async def test_a_guard_that_fails_has_objected(guard: Any, detail: str) -> None:
    outcome = await agent("hi", input_guards=[guard]).run("go")
    assert outcome.stop is not None
    assert outcome.stop.detail == detail


@pytest.mark.parametrize("option", ["input_guards", "output_guards", "tool_guards"])
def test_what_is_no_guard_is_refused(option: str) -> None:
    with pytest.raises(TypeError, match=option):
        agent(**{option: ["no"]})


@pytest.mark.parametrize("stop", ["user", "deadline", "host"])
def test_stopped_at_any_step_guards_let_nothing_begin(stop: Any) -> None:
    ran: list[str] = []

    def fresh() -> Agent:
        counts, tools = counted()
        nonlocal ran
        ran = counts
        return agent(
            [call("pay"), call("look")],
            "ok",
            tools=tools,
            input_guards=[after(0.5)],
            output_guards=[after(0.5)],
            tool_guards=[after(0.5)],
        )

    def check(point: CancelPoint) -> None:
        assert isinstance(point.events[-1], RunEnded)
        messages: tuple[Message, ...] = point.outcome.history
        assert messages

    assert sweep_cancels(fresh, stop=stop, check=check) > 40
