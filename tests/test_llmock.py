"""A chaos server plays its faults: each gives a right answer or a typed error in time.

Every fault meets every adapter. The adapters do not retry, so the test plays the caller
that does what the error says; the server's verdict on that caller must be clean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import NamedTuple

import pytest
import trio

pytest.importorskip("llmock", reason="llmock is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

from tests import faults_table
from tests.asking import Asked, ask
from tests.chaos import (
    ADAPTERS,
    BREAKS,
    FAULTS,
    PARIS,
    WORDS,
    Adapter,
    Fault,
    LLMock,
    ask_as_told,
    behaviors_for,
    breaks,
    in_words,
    open_llmock,
    say,
)
from trioagent._errors import ModelError, ModelRefused, ModelUnavailable
from trioagent._events import Reply, UserMessage
from trioagent._ports import ModelRequest

each_adapter = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: a.name)


@pytest.fixture(scope="module")
def llmock() -> Iterator[LLMock]:
    with open_llmock() as server:
        yield server


class Met(NamedTuple):
    """How a fault ended, and what the server held of it."""

    tries: list[Asked]
    attempts: int
    findings: list[str]


# Each meeting takes a moment, and several promises look at it.
MET: dict[tuple[str, str], Met] = {}


async def meet(llmock: LLMock, fault: Fault, adapter: Adapter) -> Met:
    key = fault.name, adapter.name
    if key not in MET:
        llmock.play(*behaviors_for(fault, adapter))
        tries = await ask_as_told(adapter.make(llmock.url), fault.request)
        findings = [finding["code"] for finding in llmock.findings()]
        MET[key] = Met(tries, llmock.attempts(), findings)
    return MET[key]


def faults(pattern: str) -> pytest.MarkDecorator:
    chosen = [fault for fault in FAULTS if fnmatch(fault.name, pattern)]
    assert chosen
    return pytest.mark.parametrize("fault", chosen, ids=lambda f: f.name)


@each_adapter
async def test_an_answer_without_faults(llmock: LLMock, adapter: Adapter) -> None:
    llmock.play(say(text="Hello there, friend."))
    [asked] = await ask_as_told(adapter.make(llmock.url))
    assert asked.reply is not None
    assert asked.reply.text == asked.text == "Hello there, friend."
    assert asked.reply.finish_reason == "stop"
    assert asked.reply.usage.total_tokens
    assert llmock.findings() == []


@each_adapter
@faults("*")
async def test_a_fault_ends_as_it_should(
    llmock: LLMock, fault: Fault, adapter: Adapter
) -> None:
    tries, attempts, _ = await meet(llmock, fault, adapter)
    assert attempts == len(tries) == (2 if fault.ends == "again" else 1)
    if fault.ends == "refused":
        assert isinstance(tries[0].error, ModelRefused)
    else:
        assert tries[-1].reply is not None
    if fault.ends == "again":
        assert isinstance(tries[0].error, ModelUnavailable)


@each_adapter
@faults("*")
async def test_the_verdict_on_a_caller_who_does_what_the_error_says_is_clean(
    llmock: LLMock, fault: Fault, adapter: Adapter
) -> None:
    # The server holds that a quota that is used up comes back in a second.
    known = ["gave_up"] if "quota" in fault.name else []
    assert (await meet(llmock, fault, adapter)).findings == known


@each_adapter
@faults("*")
async def test_the_docs_say_what_happens(
    llmock: LLMock, fault: Fault, adapter: Adapter
) -> None:
    tries = (await meet(llmock, fault, adapter)).tries
    assert faults_table.read()[fault.name][adapter.name] == in_words(tries[0])


@each_adapter
@faults("* after ? events")
async def test_a_broken_stream_is_never_an_answer(
    llmock: LLMock, fault: Fault, adapter: Adapter
) -> None:
    first, second = (await meet(llmock, fault, adapter)).tries
    assert first.text != WORDS
    assert WORDS.startswith(first.text)
    assert second.reply is not None
    assert second.reply.text == WORDS


@each_adapter
@faults("* in a tool call")
async def test_a_call_in_a_broken_stream_never_comes_out(
    llmock: LLMock, fault: Fault, adapter: Adapter
) -> None:
    first, second = (await meet(llmock, fault, adapter)).tries
    assert not any(isinstance(part, Reply) for part in first.parts)
    assert second.reply is not None
    [call] = second.reply.tool_calls
    assert json.loads(call.arguments) == PARIS


@each_adapter
@faults("429, retry after 1 s")
async def test_the_wait_that_was_asked_for_is_told(
    llmock: LLMock, fault: Fault, adapter: Adapter
) -> None:
    first, _ = (await meet(llmock, fault, adapter)).tries
    assert first.error is not None
    assert first.error.retry_after == 1.0


@each_adapter
async def test_a_stall_ends_when_the_caller_says_so(
    llmock: LLMock, adapter: Adapter
) -> None:
    llmock.play(breaks("stall", 2) | {"stall_seconds": 30})
    started_at = trio.current_time()
    with trio.move_on_after(0.3) as silence:
        await ask(adapter.make(llmock.url))
    assert silence.cancelled_caught
    assert trio.current_time() - started_at < 0.5
    assert llmock.findings() == []


@each_adapter
@faults("malformed arguments *")
async def test_a_bad_call_is_handed_on_as_it_is(
    llmock: LLMock, fault: Fault, adapter: Adapter
) -> None:
    [asked] = (await meet(llmock, fault, adapter)).tries
    assert asked.reply is not None
    [call] = asked.reply.tool_calls
    if adapter.whole_calls:  # the server sends an object without what it broke
        assert call.arguments == "{}"
    else:
        with pytest.raises(json.JSONDecodeError):
            json.loads(call.arguments)


@each_adapter
@faults("finish reason *")
async def test_a_finish_reason_is_kept(
    llmock: LLMock, fault: Fault, adapter: Adapter
) -> None:
    reason = fault.name.split()[-1]
    [asked] = (await meet(llmock, fault, adapter)).tries
    assert asked.reply is not None
    expected = adapter.filtered if reason == "content_filter" else reason
    assert asked.reply.finish_reason == expected


@each_adapter
async def test_every_fault_at_once_is_still_bounded(
    llmock: LLMock, adapter: Adapter
) -> None:
    llmock.play(*(breaks(kind, after) for kind in BREAKS for after in (0, 1, 2, 3)))
    async with adapter.make(llmock.url) as model:  # type: ignore[attr-defined]
        outcomes: list[Asked] = []

        async def one(number: int) -> None:
            request = ModelRequest(messages=[UserMessage(f"number {number}")])
            outcomes.append(await ask(model, request))

        with trio.fail_after(15):
            async with trio.open_nursery() as nursery:
                for number in range(24):
                    nursery.start_soon(one, number)
    errors = [asked.error for asked in outcomes if asked.error is not None]
    assert len(errors) == 12
    assert all(isinstance(error, ModelError) for error in errors)
    assert sum(asked.reply is not None for asked in outcomes) == 12
