"""Tests for people who write a model or a store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import trio

from trioagent._errors import StoreError
from trioagent._events import (
    Child,
    Effect,
    EffectStatus,
    KeptEvent,
    ModelAsked,
    ModelCut,
    ModelReplied,
    Reply,
    RunEnded,
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
)
from trioagent._ports import Model, ModelRequest


async def check_store(make_store: Callable[[], Any]) -> None:
    """Test a store of your own: `make_store` makes an empty one.

    Where it is an async context manager it is entered. Raises AssertionError, or what
    the store raises.
    """
    made = make_store()
    async with made if hasattr(made, "__aenter__") else nullcontext(made) as store:
        events = _one_of_each()
        for event in events:
            await store.append("run_a", event)
        assert await store.load("run_a") == events, "events come back as they were"
        await store.append("run_b", events[0])
        assert await store.load("run_b") == events[:1], "runs are kept apart"
        assert len(await store.load("run_a")) == len(events)
        asked = [ModelAsked(turn) for turn in range(1, 51)]
        async with trio.open_nursery() as nursery:
            for event in asked:
                nursery.start_soon(store.append, "run_c", event)
        kept = await store.load("run_c")
        assert sorted(e.turn for e in kept) == [e.turn for e in asked], "none is lost"
        try:
            await store.load("nobody")
        except StoreError:
            return
    raise AssertionError("a run that is not there must be a StoreError")


def _one_of_each() -> list[KeptEvent]:
    """A journal with every kind of event in it, as a run could have written it."""
    first, second, third = (
        ToolCall(name, '{"n": 1}', id=name, turn=1, position=position)
        for position, name in enumerate(("a", "b", "c"))
    )
    usage = Usage(input_tokens=7, output_tokens=None, cost=0.5)
    reply = Reply(text="né 😀", tool_calls=(first, second, third), usage=usage)
    return [
        RunStarted(run_id="run_a", messages=(UserMessage("go"), reply)),
        ModelAsked(1),
        ModelCut(turn=1, code="llm_timeout", text="part", at=0.25),
        ModelAsked(1),
        ModelReplied(reply),
        ToolStarted(first, Effect.ONCE),
        ToolStarted(second, Effect.READ),
        ToolEnded(call=second, content="fine", effect_status=EffectStatus.NONE),
        ToolLost(call=first, problem="who knows", code="timeout"),
        ToolNotRun(call=third, problem="no such tool", code="unknown_tool"),
        RunEnded(
            Status.STOPPED,
            Stop("effect_uncertain", "a"),
            cleanup=(Child(name="tool a", ended="cancelled", seconds=0.1),),
        ),
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
