"""Tests for people who write a model or a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import trio

from trioagent._errors import StoreError
from trioagent._events import (
    ApprovalAsked,
    ApprovalGiven,
    Child,
    ChildSpent,
    CompensationStarted,
    Effect,
    EffectJudged,
    EffectStatus,
    HandedOff,
    KeptEvent,
    ModelAsked,
    ModelCut,
    ModelReplied,
    Reply,
    RunEnded,
    RunResumed,
    RunStarted,
    Status,
    Stop,
    TextDelta,
    ToolCall,
    ToolEnded,
    ToolLost,
    ToolNotRun,
    ToolStarted,
    Usage,
    UserMessage,
    Verdict,
)
from trioagent._ports import Model, ModelRequest, Store, nowait_of


async def check_store(make_store: Callable[[], Any]) -> None:
    """Test a store of your own: `make_store` makes an empty one.

    Where it is an async context manager it is entered. Raises AssertionError, or what
    the store raises.
    """
    made = make_store()
    async with made if hasattr(made, "__aenter__") else nullcontext(made) as store:
        await _check_events(store)
        await _check_order(store)
        await _check_claims(store)
        await _check_the_end_frees(store)
        await _check_nowait(store)
        runs = await store.runs()
        assert runs == [f"run_{letter}" for letter in "fedcba"], "newest first"


async def _check_events(store: Store) -> None:
    events = _one_of_each("run_a")
    for event in events:
        await store.append("run_a", event, claim=1)
    assert await store.load("run_a") == events, "events come back as they were"
    begin = RunStarted(run_id="run_b")
    await store.append("run_b", begin, claim=1)
    assert await store.load("run_b") == [begin], "runs are kept apart"
    assert len(await store.load("run_a")) == len(events)
    await _refuses(store.append("run_b", begin, claim=1), "exists")
    assert await store.load("run_b") == [begin], "what is refused is not kept"
    await _refuses(store.load("nobody"), "unknown_run")
    await _refuses(store.claim("nobody"), "unknown_run")


async def _check_order(store: Store) -> None:
    """In the order of the calls, also where they overlap or nobody waits."""
    asked = [ModelAsked(turn) for turn in range(1, 51)]
    await store.append("run_c", RunStarted(run_id="run_c"), claim=1)

    async def append(event: KeptEvent) -> None:
        await store.append("run_c", event, claim=1)

    async with trio.open_nursery() as nursery:
        for event in asked:
            nursery.start_soon(append, event)
    began, *kept = await store.load("run_c")
    turns = sorted(event.turn for event in kept if isinstance(event, ModelAsked))
    assert turns == [event.turn for event in asked], "none is lost"
    for event in asked:
        await store.append("run_c", event, claim=1, durable=event.turn % 5 == 0)
    await store.append("run_c", asked[0], claim=1, durable=False)
    in_order = [began, *kept, *asked, asked[0]]
    assert await store.load("run_c") == in_order, "order is kept, and you read your own"


async def _check_claims(store: Store) -> None:
    begin, asked = RunStarted(run_id="run_d"), ModelAsked(1)
    await store.append("run_d", begin, claim=1)
    await _refuses(store.claim("run_d"), "owned")
    assert await store.carried_by("run_d"), "who has it can be asked"
    assert await store.claim("run_d", take_over=True) == 2, "it grows with each claim"
    await _refuses(store.append("run_d", asked, claim=1), "fenced")
    await _refuses(store.append("run_d", asked, claim=3), "fenced")
    await store.append("run_d", asked, claim=2)
    store.release("run_d", 1)  # that one has nothing to release any more
    await _refuses(store.claim("run_d"), "owned")
    store.release("run_d", 2)
    assert not await store.carried_by("run_d"), "nobody has it any more"
    assert await store.claim("run_d") == 3, "a released run is free"
    await _refuses(store.append("run_d", asked, claim=2), "fenced")
    assert await store.load("run_d") == [begin, asked], "what is fenced is not kept"


async def _check_the_end_frees(store: Store) -> None:
    await store.append("run_e", RunStarted(run_id="run_e"), claim=1)
    await store.append("run_e", RunEnded(Status.PAUSED), claim=1)
    claim = await store.claim("run_e")
    assert claim == 2, "a run that has ended is free"
    await store.append("run_e", RunResumed(claim=claim), claim=claim)
    await _refuses(store.claim("run_e"), "owned")


async def _check_nowait(store: Store) -> None:
    """What is kept at once, where a store can, and what is waited for are in order."""
    nowait = nowait_of(store)
    events: list[KeptEvent] = [RunStarted(run_id="run_f")]
    events += [ModelAsked(turn) for turn in range(1, 51)]
    for number, event in enumerate(events):
        how: Any = {"claim": 1, "durable": number % 5 == 0}
        if number % 3 == 2 or nowait is None or not nowait("run_f", event, **how):
            await store.append("run_f", event, **how)
    assert await store.load("run_f") == events, "append_nowait keeps the order"


async def _refuses(attempt: Awaitable[object], code: str) -> None:
    try:
        await attempt
        said = "nothing"
    except StoreError as error:
        said = error.code
    assert said == code, f"it must be refused with a StoreError of code {code}"


def _one_of_each(run_id: str) -> list[KeptEvent]:
    """A journal with every kind of event in it, as a run could have written it."""
    first, second, third = (
        ToolCall(name, '{"n": 1}', id=name, turn=1, position=position)
        for position, name in enumerate(("a", "b", "c"))
    )
    usage = Usage(input_tokens=7, output_tokens=None, cost=0.5)
    reply = Reply(text="né 😀", tool_calls=(first, second, third), usage=usage)
    cut = ModelCut(turn=1, code="llm_timeout", text="part", shown=True, at=0.25)
    key = f"{run_id}/1/0"
    return [
        RunStarted(
            run_id=run_id,
            messages=(UserMessage("go"), reply),
            created="2026-11-30T12:00:00Z",
            limits={"turns": 12, "seconds": 0.5},
            stop_when=(("step_count", 3), ("tool_call", "a")),
            parent="run_p:1.0",
        ),
        ModelAsked(1, model="x:y"),
        cut,
        ModelAsked(1, attempt=2, why="llm_timeout", restarts=True),
        ModelReplied(reply, rejected="no JSON"),
        ApprovalAsked(first),
        ApprovalGiven(call=first, granted=True, by="person", reason="ok", digest="d"),
        ToolStarted(first, Effect.KEYED, tool="a2", key=key, recovery="compensate"),
        ToolStarted(second, Effect.READ, attempt=2),
        ChildSpent(call=second, run_id="child", usage=usage, billed="unknown", turns=1),
        HandedOff(second, "expert"),
        ToolEnded(call=second, content="fine", effect_status=EffectStatus.NONE),
        ToolLost(call=first, problem="who knows", code="timeout"),
        ToolNotRun(call=third, problem="no such tool", code="unknown_tool"),
        RunEnded(
            Status.PAUSED,
            Stop("effect_uncertain", "a"),
            reached=("max_tokens:7",),
            cleanup=(Child(name="tool a", ended="cancelled", seconds=0.1),),
        ),
        RunResumed(claim=2, created="2026-11-30T12:01:00Z"),
        CompensationStarted(first),
        EffectJudged(call=first, verdict=Verdict.UNDONE, by="compensate", content="x"),
        RunEnded(Status.COMPLETED, output="done"),
    ]


async def check_model(model: Model, prompt: str = "Say hello.") -> None:
    """Test a model of your own against whatever answers it: it is asked four times.

    Looks that the parts come in order and add up to the reply, that leaving early and
    a cancel end within a second, and that it answers again afterwards. Raises
    AssertionError, or what the model raises.
    """
    request = ModelRequest(messages=[UserMessage(prompt)], instructions="Be brief.")
    lifetime = model if hasattr(model, "__aenter__") else nullcontext()
    async with lifetime:  # type: ignore[union-attr]  # hasattr is not understood
        await _check_reply(model, request)
        with trio.move_on_after(1) as soon:
            with trio.CancelScope() as middle:
                async with model.open_reply(request) as parts:
                    async for _ in parts:
                        middle.cancel()
            async with model.open_reply(request) as parts:
                await anext(parts)
        assert not soon.cancelled_caught, "a cancel and leaving early end within 1 s"
        await _check_reply(model, request)


async def _check_reply(model: Model, request: ModelRequest) -> None:
    async with model.open_reply(request) as stream:
        parts = [part async for part in stream]
    assert parts, "something comes"
    reply = parts[-1]
    assert isinstance(reply, Reply), "the last part is the reply"
    assert not any(isinstance(part, Reply) for part in parts[:-1]), "there is one"
    text = "".join(part.text for part in parts if isinstance(part, TextDelta))
    assert text == reply.text, "the deltas add up to its text"
