"""One run of an agent: ask the model, call the tools, until something ends it.

The loop is at the top of this file, and it is the whole of the loop.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    suppress,
)
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import trio

from ._approvals import allow
from ._attempts import ask
from ._calls import PreparedCall, conclude, in_batches, perform, prepare
from ._effects import settle
from ._ending import Ending, logger
from ._errors import ModelError, StoreError, ToolError
from ._events import (
    AnyEvent,
    KeptEvent,
    ModelReplied,
    Reply,
    RunEnded,
    RunResumed,
    Status,
    ToolCall,
    Usage,
    must_last,
)
from ._limits import output_cap, passed, reason_to_end
from ._outcome import Outcome, ResumeDecision, resume_decision
from ._plan import Plan
from ._ports import Model, ModelRequest, ToolSpec
from ._scopes import end_if_cancelled, open_flat_nursery
from ._state import RunState
from ._tools import left_behind

EVENT_BUFFER = 16
T = TypeVar("T")


async def drive(run: Run) -> None:
    """Carry a run to its end, and keep the end whatever it was."""
    end: RunEnded | None = None
    try:
        with run.ending.scope:
            async with run.ending.graces.watch(run.tell_overruns):
                end = await take_turns(run)
    except Exception as error:
        run.ending.note_crash(error)
        raise
    finally:
        # Everything in there brings its own bounded shield.
        await run.conclude(end)  # noqa: ASYNC102


async def take_turns(run: Run) -> RunEnded:
    """Limits and stop conditions are looked at between turns, every turn."""
    try:
        async with run.connections():
            await call_tools(run, await settle(run))  # what a resumed run left undone
            while not (end := run.reason_to_end()):
                reply = await ask_model(run)
                await call_tools(run, reply.tool_calls)
        return end
    except (ModelError, ToolError) as error:
        return RunEnded(Status.FAILED, error.stop)


async def ask_model(run: Run) -> Reply:
    reply = run.adopt(*await ask(run))
    await run.record(ModelReplied(reply, run.objection(reply)))
    return reply


async def call_tools(run: Run, calls: tuple[ToolCall, ...]) -> None:
    while calls:
        for batch in in_batches(run, calls):
            async with open_flat_nursery() as nursery:
                for call in batch:
                    await run.slots.acquire_on_behalf_of(call.place)
                    nursery.start_soon(call_tool, run, call, name=f"tool {call.name}")
        calls = await settle(run)


async def call_tool(run: Run, call: ToolCall) -> None:
    """The start is kept before the effect begins: a start with no end is uncertain."""
    try:
        await end_if_cancelled()
        ready = await allow(run, prepare(run, call))
        if isinstance(ready, PreparedCall):
            await run.record(ready.start)
            await conclude(run, await perform(run, ready))
        elif ready:
            await run.record(ready)
    finally:
        run.slots.release_on_behalf_of(call.place)


class Run:
    """One execution of an agent: `async for` shows its events, `cancel` ends it.

    Made by `Agent.open`. It is driven once, inside the block that opened it.
    """

    def __init__(
        self,
        plan: Plan,
        run_id: str | None = None,
        *,
        state: RunState | None = None,  # of a run that is resumed
        claim: int = 1,
    ) -> None:
        self.id = run_id or f"run_{uuid.uuid4().hex[:20]}"
        self.plan = plan
        self.limits = plan.limits
        self.state = state or RunState()
        self.ending = Ending(plan.limits)
        self.paused: set[tuple[int, int]] = set()  # calls that a person has to approve
        self.refused: dict[tuple[int, int], str] = {}  # calls that are too many
        self.slots = trio.CapacityLimiter(plan.limits.parallel_tools)
        self.child = self.ending.child
        self.remaining = self.ending.remaining
        self._store = plan.store
        self._claim = claim
        self._stack = AsyncExitStack()
        self._entered: list[Any] = []
        self._kept: dict[str, Any] = {}
        self.tools = dict(plan.tools)
        self._specs: list[ToolSpec] = []
        self._began = 0.0
        self._send, self._receive = trio.open_memory_channel[AnyEvent](EVENT_BUFFER)
        self._watching = True
        self._told_end = False

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.plan.agent}: {self.state.phase.name}>"

    # For the caller

    def cancel(self, reason: str = "") -> bool:
        """End the run now; the block that holds it waits for the cleanup.

        May be called at any time and as often as one likes: the first reason stays.
        From another thread use `handle`. Whether the run ends for this reason; False
        also means that it had ended already.
        """
        return self.ending.cancel(reason)

    def finish_turn(self, reason: str = "") -> bool:
        """End the run after this turn, its reply and its tools; `cancel` may follow.

        Where the turn gives the final answer, the run is completed all the same.
        """
        return self.ending.finish_turn(reason)

    @property
    def handle(self) -> RunHandle:
        """Stops this run from any thread. Ask for it inside trio, then hand it out."""
        return RunHandle(self, trio.lowlevel.current_trio_token())

    @property
    def outcome(self) -> Outcome:
        """How the run ended; raises RuntimeError while it has not."""
        if self.state.ended is None:
            raise RuntimeError(f"{self!r} has not ended: there is no outcome yet")
        answer, text = self.plan.answer, self.state.ended.output
        output = answer.read(text) if answer and text is not None else None
        return Outcome.of(self.state, output, kept=self._store is not None)

    @property
    def alive(self) -> list[str]:
        """Threads that were left behind (`threads="abandon"`) and are still going."""
        return self.ending.alive()

    @property
    def resume_decision(self) -> ResumeDecision:
        """Whether the run can go on after its end, as its journal tells."""
        if self._store is None:
            return ResumeDecision("stop", "there is no journal: Agent(store=…)")
        return resume_decision(self.state)

    def __aiter__(self) -> Run:
        return self

    async def __anext__(self) -> AnyEvent:
        """The next event. A slow reader slows the run; the last one is `RunEnded`."""
        try:
            return await self._receive.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            if self._told_end or self.state.ended is None:
                raise StopAsyncIteration from None
            self._told_end = True
            return self.state.ended

    # For the loop

    async def main(self) -> None:
        """Carry the run from its first event to its last."""
        left_behind.set(self.ending.leave_behind)
        used = self.state.active_seconds
        self._began = trio.current_time() - used
        self.ending.start_clock(used)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._send, ExitStack() as stack:
            if self.state.started is None:
                await self.record(self.plan.started(self.id, now))
                stack.callback(self._release)  # it is ours once its start is kept
            else:
                stack.callback(self._release)
                await self.record(RunResumed(claim=self._claim, created=now))
            await drive(self)

    def _release(self) -> None:
        if self.plan.store is not None:
            self.plan.store.release(self.id, self._claim)

    def leave(self) -> None:
        """Nobody reads any more."""
        self._watching = False
        self._receive.close()

    @asynccontextmanager
    async def connections(self) -> AsyncGenerator[None]:
        """What models and tools hold open for a run; it is closed before the end."""
        async with AsyncExitStack() as self._stack:
            for toolset in self.plan.toolsets:
                for tool in await self._enter(toolset, f"tools {toolset.name}"):
                    if tool.name in self.tools:
                        raise ToolError(f"two tools are named {tool.name!r}")
                    self.tools[tool.name] = tool
            for tool in self.tools.values():
                if tool.needs and tool.needs not in self._entered:
                    await self._enter(tool.needs, f"what {tool.name} needs")
            self._specs = [tool.spec for tool in self.tools.values()]
            yield

    async def _enter(self, resource: AbstractAsyncContextManager[T], name: str) -> T:
        self._entered.append(resource)
        self._stack.enter_context(self.child(name))
        return await self._stack.enter_async_context(resource)

    async def open_model(self, model: Model) -> None:
        """Enter a model that wants it, once in a run, when it is first asked."""
        if model not in self._entered and isinstance(
            model, AbstractAsyncContextManager
        ):
            await self._enter(model, f"model {model.name}")

    async def conclude(self, end: RunEnded | None) -> None:
        """Clear up what is left uncertain, and keep the end."""
        try:
            if not self.ending.crashed:
                await settle(self, ending=True)
        finally:
            await self.record(self.verdict(end))  # noqa: ASYNC102

    def verdict(self, end: RunEnded | None) -> RunEnded:
        """How the run has ended. A final answer counts, whatever cut its way out."""
        if end is None and self.state.answer is not None:
            end = self.reason_to_end()
        cause, answered = self.ending.cause, self._began + self.state.answered_at
        in_time = cause is None or answered <= cause.at
        return self.ending.verdict(end, in_time=in_time)

    async def tell_overruns(self) -> None:
        while True:
            await trio.sleep(self.limits.grace_seconds)
            for overrun in self.ending.overruns():
                await self.publish(overrun)

    async def record(self, event: KeptEvent) -> None:
        """Make `event` part of the run: check it, keep it, show it.

        All or nothing: an event that fits is also kept, for a cancel cannot come in
        between. Where the store does not return, the grace is the bound: a run that is
        being stopped ends without the rest of its journal, and its outcome says so.

        Raises:
            StoreError: from the store, or where it did not return in time.
        """
        event = msgspec.structs.replace(event, at=trio.current_time() - self._began)
        self.state.apply(event)
        if self._store is not None:
            with self.ending.graces.shield(self.limits.grace_seconds) as shield:
                await self._store.append(
                    self.id, event, claim=self._claim, durable=must_last(event)
                )
            if shield.cancelled_caught:
                self._lose_store(type(event).__name__)
        for observer in self.plan.observers:
            try:
                observer(self.id, event)
            except Exception:  # noqa: BLE001 - a function of the user's
                logger.exception("an observer failed at %s", type(event).__name__)
        if not isinstance(event, RunEnded):
            await self.publish(event)

    def _lose_store(self, name: str) -> None:
        self._store = None
        if not self.ending.stopping:
            seconds = self.limits.grace_seconds
            problem = f"the store did not keep {name} within {seconds:g} s"
            raise StoreError(problem, code="hung")
        self.ending.report("store", "hung")

    def publish_nowait(self, event: AnyEvent) -> bool:
        """Show `event` if that takes no waiting for a slow reader."""
        if self._watching:
            try:
                self._send.send_nowait(event)
            except trio.WouldBlock:
                return False
        return True

    async def publish(self, event: AnyEvent) -> None:
        """Show `event`. A slow reader slows the run; a reader who left does not."""
        if not self.publish_nowait(event):
            with suppress(trio.BrokenResourceError):  # the reader left
                await self._send.send(event)

    def next_request(self, model: Model) -> ModelRequest:
        """What a model is asked next."""
        return ModelRequest(
            messages=self.state.messages,
            instructions=self.plan.instructions,
            tools=self._specs,
            output=self.plan.answer.spec if self.plan.answer else None,
            max_output_tokens=self._cap(model),
            connect_seconds=self.limits.connect_seconds,
            run_id=self.id,
            turn=len(self.state.turns) + 1,
            kept=self._kept,
        )

    def _cap(self, model: Model) -> int | None:
        return output_cap(
            self.plan.conditions, self.state.usage, self.plan.price, model.name
        )

    def watch_budget(self, model: Model, running: Usage) -> None:
        """Cut a reply whose running usage has passed a token or cost limit."""
        spent = self.state.usage + self._priced(model, running)
        limit = passed(self.plan.conditions, spent)
        if limit and not self.ending.cause:
            self.ending.stop_now(Status.STOPPED, limit.stop())

    def _priced(self, model: Model, usage: Usage) -> Usage:
        if usage.cost is not None or self.plan.price is None:
            return usage
        try:
            cost = self.plan.price(model.name, usage)
        except Exception:  # noqa: BLE001 - a function of the user's
            # What was paid for is not lost over it; it only stays without a price.
            logger.exception("price() failed for %s", model.name)
            return usage
        return msgspec.structs.replace(usage, cost=cost)

    def adopt(self, reply: Reply, model: Model) -> Reply:
        """The reply as this run keeps it: its calls placed, its price known.

        Calls in a reply that used up its output limit may be cut, whatever reason it
        gives: some routers say `tool_calls` for a reply that ran into the limit.
        """
        turn, reason = len(self.state.turns) + 1, reply.finish_reason
        if reply.tool_calls and (cap := self._cap(model)):
            reason = "length" if (reply.usage.output_tokens or 0) >= cap else reason
        calls = tuple(
            msgspec.structs.replace(call, turn=turn, position=position)
            for position, call in enumerate(reply.tool_calls)
        )
        usage = self._priced(model, reply.usage)
        return msgspec.structs.replace(
            reply, tool_calls=calls, usage=usage, finish_reason=reason
        )

    def objection(self, reply: Reply) -> str:
        """Why a final answer is not what was asked for, in words for the model."""
        if self.plan.answer is not None and reply.is_final:
            try:
                self.plan.answer.read(reply.text)
            except ValueError as error:
                return str(error)
        return ""

    def reason_to_end(self) -> RunEnded | None:
        """Why there is no next turn, if there is none."""
        plan = self.plan
        return reason_to_end(
            self.state, self.limits, plan.conditions, self.ending.finishing
        )


class RunHandle:
    """Stops a run from any thread. Once the run is over it does nothing."""

    def __init__(self, run: Run, token: trio.lowlevel.TrioToken) -> None:
        self._run = run
        self._token = token

    def cancel(self, reason: str = "") -> None:
        """As `Run.cancel`; returns at once."""
        self._soon(self._run.cancel, reason)

    def finish_turn(self, reason: str = "") -> None:
        """As `Run.finish_turn`; returns at once."""
        self._soon(self._run.finish_turn, reason)

    def _soon(self, fn: Callable[[str], bool], reason: str) -> None:
        with suppress(trio.RunFinishedError):  # then so is the run
            self._token.run_sync_soon(fn, reason)
