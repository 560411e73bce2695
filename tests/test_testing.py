"""The testing kit: what it plays, and that its checks can fail."""

from __future__ import annotations

import typing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trioagent import (
    Agent,
    KeptEvent,
    ModelRefused,
    ModelRequest,
    Outcome,
    Reply,
    ReplyOpened,
    RunEnded,
    StoreError,
    TextDelta,
    ToolCallDelta,
    ToolContext,
    ToolStarted,
    UserMessage,
    tool,
)
from trioagent.testing import (
    BlockingModel,
    CancelPoint,
    Hang,
    MemoryStore,
    Pause,
    ScriptedModel,
    _checks,
    call,
    check_model,
    check_store,
    sweep_cancels,
)

REQUEST = ModelRequest(messages=[UserMessage("hi")])


async def parts(model: ScriptedModel) -> list[Any]:
    async with model.open_reply(REQUEST) as stream:
        return [part async for part in stream]


async def test_a_text_comes_word_by_word() -> None:
    opened, *words, reply = await parts(ScriptedModel(["one two"]))
    assert isinstance(opened, ReplyOpened)
    assert words == [TextDelta("one "), TextDelta("two")]
    assert (reply.text, reply.request_id) == ("one two", "req_1")


async def test_reasoning_and_calls_come_in_pieces_too() -> None:
    reply = Reply(reasoning="hm", tool_calls=(call("a", n=1),))
    _, thought, asked, _ = await parts(ScriptedModel([reply]))
    assert thought.text == "hm"
    assert asked == ToolCallDelta(0, "a", '{"n":1}')


async def test_pauses_are_on_trios_clock(autojump_clock: MockClock) -> None:
    await parts(ScriptedModel([["a", Pause(600), Reply(text="a")]], seconds=60))
    assert trio.current_time() == 660


async def test_a_step_may_be_an_error_or_a_function() -> None:
    model = ScriptedModel([ModelRefused("no"), lambda request: f"turn {request.turn}"])
    with pytest.raises(ModelRefused):
        await parts(model)
    assert (await parts(model))[-1].text == "turn 1"
    assert model.closed == 2
    model.check_used()


async def test_a_hang_says_when_it_is_reached() -> None:
    hang = Hang()
    async with Agent(ScriptedModel([["a", hang]])).open("go") as run:
        await hang.reached.wait()
        run.cancel()
    assert run.outcome.text == "a"


async def test_it_complains_about_steps_too_many_and_too_few() -> None:
    model = ScriptedModel(["a", "b"])
    await parts(model)
    with pytest.raises(AssertionError, match="1 of 2 steps were not asked for"):
        model.check_used()
    await parts(model)
    with pytest.raises(AssertionError, match="2 steps and was asked once more"):
        await parts(model)


async def test_requests_are_kept_as_they_were() -> None:
    @tool(effect="read")
    async def look() -> str:
        await trio.lowlevel.checkpoint()
        return "seen"

    model = ScriptedModel([call("look"), "done"])
    await Agent(model, tools=[look]).run("go")
    assert [len(request.messages) for request in model.requests] == [1, 3]


async def test_a_blocking_model_tells_when_it_was_asked_and_let_go() -> None:
    model = BlockingModel()
    async with Agent(model).open("go"):
        await model.asked.wait()
        assert not model.closed.is_set()
    assert model.closed.is_set()


# The checks


async def test_our_own_pass_the_checks() -> None:
    await check_store(MemoryStore)
    await check_model(ScriptedModel(["hello"] * 4))
    assert await MemoryStoreInBlock.checked()


class MemoryStoreInBlock(MemoryStore):
    entered = False

    @classmethod
    async def checked(cls) -> bool:
        await check_store(cls)
        return cls.entered

    async def __aenter__(self) -> MemoryStoreInBlock:
        type(self).entered = True
        return self

    async def __aexit__(self, *error: object) -> None: ...


class Changed(MemoryStore):
    """A store that keeps events, but for what its subclass does."""

    def changed(self, event: KeptEvent) -> KeptEvent | None:
        return event

    async def append(
        self, run_id: str, event: KeptEvent, *, claim: int, durable: bool = True
    ) -> None:
        if kept := self.changed(event):
            await super().append(run_id, kept, claim=claim, durable=durable)


class Forgetful(Changed):
    def changed(self, event: KeptEvent) -> KeptEvent | None:
        return None if isinstance(event, RunEnded) else event


class Mixed(MemoryStore):
    async def load(self, run_id: str) -> list[KeptEvent]:
        await super().load(run_id)
        return [event for events in self._events.values() for event in events]


class Silent(MemoryStore):
    async def load(self, run_id: str) -> list[KeptEvent]:
        try:
            return await super().load(run_id)
        except StoreError:
            return []


class Late(MemoryStore):
    """It keeps what nobody waits for when it likes to."""

    async def append(
        self, run_id: str, event: KeptEvent, *, claim: int, durable: bool = True
    ) -> None:
        await super().append(run_id, event, claim=claim)
        if not durable:
            self._events[run_id].insert(1, self._events[run_id].pop())


class Unfenced(MemoryStore):
    async def append(
        self, run_id: str, event: KeptEvent, *, claim: int, durable: bool = True
    ) -> None:
        last = self._claims.get(run_id, 1)
        await super().append(run_id, event, claim=last)


class Generous(MemoryStore):
    async def claim(self, run_id: str, *, take_over: bool = False) -> int:
        return await super().claim(run_id, take_over=True)


class Possessive(MemoryStore):
    def release(self, run_id: str, claim: int) -> None: ...


class Shuffled(MemoryStore):
    async def runs(self) -> list[str]:
        return sorted(await super().runs())


class Vague(MemoryStore):
    async def claim(self, run_id: str, *, take_over: bool = False) -> int:
        try:
            return await super().claim(run_id, take_over=take_over)
        except StoreError as error:
            raise StoreError(str(error)) from None


class Hasty(MemoryStore):
    """It says to have kept at once what it has not."""

    async def append(
        self, run_id: str, event: KeptEvent, *, claim: int, durable: bool = True
    ) -> None:
        super().append_nowait(run_id, event, claim=claim)
        await trio.lowlevel.checkpoint()

    def append_nowait(self, *event: Any, **how: Any) -> bool:
        return True


BAD_STORES = [
    Forgetful,
    Hasty,
    Mixed,
    Silent,
    Late,
    Unfenced,
    Generous,
    Possessive,
    Shuffled,
    Vague,
]


@pytest.mark.parametrize("store", BAD_STORES)
async def test_a_bad_store_fails_its_check(store: type[MemoryStore]) -> None:
    with pytest.raises((AssertionError, StoreError)):
        await check_store(store)


@pytest.mark.parametrize(
    "step", [[], ["a"], [Reply(text="a"), Reply(text="a")], ["a", Reply(text="b")]]
)
async def test_a_bad_model_fails_its_check(step: Any) -> None:
    with pytest.raises(AssertionError):
        await check_model(ScriptedModel([step] * 4))


class Slow(ScriptedModel):
    @asynccontextmanager
    async def open_reply(self, request: ModelRequest) -> AsyncIterator[Any]:
        async with super().open_reply(request) as stream:
            try:
                yield stream
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(3)


async def test_a_model_that_does_not_let_go_fails_its_check(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(AssertionError, match="within 1 s"):
        await check_model(Slow(["hello"] * 4))


# The sweep


@tool(effect="read")
async def look() -> str:
    await trio.sleep(1)
    return "seen"


def an_agent(**options: Any) -> Agent:
    options.setdefault("store", MemoryStore())
    return Agent(ScriptedModel([call("look"), "done"]), tools=[look], **options)


def test_the_sweep_stops_at_every_step_and_then_not_at_all() -> None:
    points: list[CancelPoint] = []
    steps = sweep_cancels(an_agent, check=points.append)
    assert [p.step for p in points] == list(range(1, steps + 2))
    assert [p.reached for p in points] == [True] * steps + [False]
    assert points[-1].outcome.status == "completed"
    assert {p.outcome.status for p in points} == {"cancelled", "completed"}


def test_the_sweep_needs_a_store() -> None:
    with pytest.raises(AssertionError, match="needs an agent with a store"):
        sweep_cancels(lambda: an_agent(store=None))


def test_the_sweep_has_an_end() -> None:
    with pytest.raises(AssertionError, match="not over after 3 steps"):
        sweep_cancels(an_agent, most=3)


def test_the_sweep_sees_a_tool_that_hides_its_effect() -> None:
    paid: list[int] = []

    def made() -> Agent:
        paid.clear()

        @tool(effect="read")  # a lie: it writes
        async def pay(ctx: ToolContext) -> str:
            paid.append(1)
            await trio.sleep(1)
            return "paid"

        return Agent(ScriptedModel([call("pay")]), tools=[pay], store=MemoryStore())

    def no_effect_is_hidden(point: CancelPoint) -> None:
        known: Outcome = point.outcome
        confirmed = [t for t in known.tools if t.effect_status == "confirmed"]
        assert len(paid) == len(confirmed) + len(known.uncertain)

    with pytest.raises(AssertionError):
        sweep_cancels(made, check=no_effect_is_hidden)


def test_the_sweep_sees_a_journal_that_disagrees() -> None:
    class Lossy(Changed):
        def changed(self, event: KeptEvent) -> KeptEvent | None:
            return None if isinstance(event, ToolStarted) else event

    with pytest.raises(Exception, match=r"step \d+|ended out of turn"):
        sweep_cancels(lambda: an_agent(store=Lossy()))


def test_the_check_of_a_store_has_every_kind_of_event() -> None:
    kinds = {type(event) for event in _checks._one_of_each("r")}
    assert kinds == set(typing.get_args(KeptEvent))
