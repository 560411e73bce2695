"""Faults that were found by trying to break it; each kind is held here."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trioagent import (
    Agent,
    EffectStatus,
    KeptEvent,
    Limits,
    ModelCut,
    ModelReplied,
    ModelUnavailable,
    Reply,
    RunEnded,
    RunState,
    Status,
    StoreError,
    TextDelta,
    ToolCall,
    ToolContext,
    Usage,
    retries,
    tool,
)
from trioagent.testing import Hang, MemoryStore, ScriptedModel, call

DEEP = "[" * 100_000 + "]" * 100_000


def agent(*steps: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(steps), store=MemoryStore(), **options)


def journal(a: Agent) -> list[KeptEvent]:
    assert isinstance(a.store, MemoryStore)
    return a.store.events


async def test_the_context_works_in_a_thread() -> None:
    seen: list[float] = []

    @tool(effect="read")
    def look(ctx: ToolContext) -> str:
        seen.append(ctx.remaining())
        with pytest.raises(RuntimeError, match="async tools"), ctx.cleanup():
            pass
        assert ctx.cancel("from a thread")
        return "seen"

    outcome = await agent(call("look"), "never", tools=[look]).run("go")
    assert 29 < seen[0] <= 30
    assert outcome.status is Status.CANCELLED
    assert outcome.stop is not None
    assert outcome.stop.detail == "from a thread"


@dataclass
class Picky:
    n: int

    def __post_init__(self) -> None:
        raise KeyError(self.n)


@pytest.mark.parametrize("kind", [list, Picky])
async def test_nothing_a_model_writes_breaks_the_run(kind: Any) -> None:
    async def take(x: Any) -> str:
        raise AssertionError(x)

    take.__annotations__["x"] = kind
    arguments = '{"x": ' + (DEEP if kind is list else '{"n": 1}') + "}"
    reply = Reply(tool_calls=(ToolCall("take", arguments),))
    outcome = await agent(reply, "sorry", tools=[tool(take)]).run("go")
    assert outcome.tools[0].problem.startswith("Not started: bad arguments")
    answer = '{"answer":' + DEEP + "}" if kind is list else '{"n": 1}'
    a = agent(answer, answer, answer, output=kind)
    outcome = await a.run("go")
    assert outcome.stop_reason == "bad_answers"
    assert sum(isinstance(e, ModelReplied) for e in journal(a)) == 3


async def test_a_write_whose_result_cannot_be_shown_is_confirmed() -> None:
    @tool
    async def pay() -> Any:
        await trio.lowlevel.checkpoint()
        ring: list[Any] = []
        ring.append(ring)
        return ring

    outcome = await agent(call("pay"), "ok", tools=[pay]).run("go")
    assert outcome.tools[0].effect_status is EffectStatus.CONFIRMED


def _broken(*args: Any) -> Any:
    raise LookupError("a bug")


@pytest.mark.parametrize("options", [{"stop_when": [_broken]}, {"retry": _broken}])
async def test_a_bug_is_named_as_one_and_not_as_the_hosts_stop(
    options: dict[str, Any],
) -> None:
    a = agent(call("nobody"), ModelUnavailable("down"), **options)
    with pytest.raises(LookupError, match="a bug"):
        await a.run("go")
    end = journal(a)[-1]
    assert isinstance(end, RunEnded)
    assert end.stop is not None
    assert (end.stop.code, end.stop.detail) == ("error", "LookupError")


async def test_a_bug_after_a_stop_does_not_hide_the_stop() -> None:
    class Sour(ScriptedModel):
        @asynccontextmanager
        async def open_reply(self, request: Any) -> AsyncIterator[Any]:
            try:
                async with super().open_reply(request) as parts:
                    yield parts
            finally:
                raise ValueError("while leaving")

    a = Agent(Sour([["a", Hang()]]), store=MemoryStore())
    with pytest.raises(ValueError, match="while leaving"):
        async with a.open("go") as run:
            async for event in run:
                if isinstance(event, TextDelta):
                    run.cancel("me")
    assert run.outcome.stop_reason == "user"


async def test_a_price_that_raises_does_not_lose_the_reply(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def price(model: str, usage: Usage) -> float:
        return 1 / 0

    outcome = await agent("paid for", price=price).run("go")
    assert (outcome.unwrap(), outcome.usage.cost) == ("paid for", None)
    assert "price() failed" in caplog.text


class Grouped:
    """A model that asks in a nursery of its own."""

    name = "grouped:model"

    @asynccontextmanager
    async def open_reply(self, request: Any) -> AsyncIterator[Any]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fail)
            await trio.sleep(600)
            yield iter(())

    async def _fail(self) -> None:
        await trio.lowlevel.checkpoint()
        raise ModelUnavailable("down")


async def test_a_model_error_in_a_group_is_a_model_error() -> None:
    a = Agent(Grouped(), retry=retries(0), store=MemoryStore())
    outcome = await a.run("go")
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "llm_unavailable")
    assert [e.code for e in journal(a) if isinstance(e, ModelCut)] == [
        "llm_unavailable"
    ]


async def test_an_answer_that_comes_after_the_deadline_is_late(
    autojump_clock: MockClock,
) -> None:
    class Deaf(ScriptedModel):
        @asynccontextmanager
        async def open_reply(self, request: Any) -> AsyncIterator[Any]:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            async with super().open_reply(request) as parts:
                with trio.CancelScope(shield=True):
                    whole = [part async for part in parts]
                yield _Played(whole)

    a = Agent(Deaf(["late"]), limits=Limits(seconds=1), store=MemoryStore())
    outcome = await a.run("go")
    assert outcome.status is Status.TIMED_OUT
    assert outcome.text == "late"


class _Played:
    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def __aiter__(self) -> _Played:
        return self

    async def __anext__(self) -> Any:
        if not self._parts:
            raise StopAsyncIteration
        return self._parts.pop(0)


async def test_a_wrapped_async_tool_is_async() -> None:
    def plain(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    @tool(effect="read")
    @plain
    async def look(n: int) -> str:
        await trio.lowlevel.checkpoint()
        return f"seen {n}"

    outcome = await agent(call("look", n=1), "ok", tools=[look]).run("go")
    assert outcome.tools[0].ended == "done"


def _numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (_numbers, "a generator returns nothing"),
        (functools.partial(len), "takes a function"),
        ("read", "takes a function"),
    ],
)
def test_what_is_no_function_is_refused(made: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        tool(made)


async def test_text_that_cannot_be_sent_is_found_in_time() -> None:
    @tool(effect="read")
    async def name() -> str:
        await trio.lowlevel.checkpoint()
        return "file \udce9"

    outcome = await agent(call("name"), "ok", tools=[name]).run("go")
    assert outcome.history[2].content == "file ?"  # type: ignore[union-attr]
    a = agent("never")
    with pytest.raises(UnicodeEncodeError):
        await a.run("file \udce9")
    assert a.model.requests == []  # type: ignore[union-attr]


@pytest.mark.parametrize("history", ["abc", [{"role": "user", "content": "hi"}]])
async def test_a_history_is_made_of_messages(history: Any) -> None:
    with pytest.raises(TypeError, match="history takes messages"):
        await agent("never").run("go", history=history)


async def test_limits_of_a_call_are_limits() -> None:
    limits: Any = {"seconds": 3}
    with pytest.raises(TypeError, match=r"run\(limits=…\)"):
        await agent("never").run("go", limits=limits)


async def test_a_run_id_is_used_once() -> None:
    a = agent("one", "two")
    await a.run("go", run_id="r")
    with pytest.raises(StoreError, match="'r' is in this store already"):
        await a.run("go", run_id="r")
    assert RunState.replay(journal(a)).ended


async def test_a_default_of_ones_own_type_is_not_shared() -> None:
    @dataclass
    class Box:
        n: int

    seen: list[int] = []

    async def fill(box: Any = Box(1)) -> None:  # noqa: B008 - that is the point
        await trio.lowlevel.checkpoint()
        box.n += 1
        seen.append(box.n)

    fill.__annotations__["box"] = Box
    await agent(
        call("fill"), call("fill"), "ok", tools=[tool(effect="read")(fill)]
    ).run("go")
    assert seen == [2, 2]
