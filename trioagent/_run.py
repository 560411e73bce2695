"""One run of an agent: ask the model, call the tools, until something ends it.

The loop is at the top of this file, and it is the whole of the loop.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import trio

from ._approvals import allow
from ._attempts import ask
from ._budget import Budget, WorksOn
from ._calls import PreparedCall, conclude, in_batches, perform, prepare, side_by_side
from ._effects import settle
from ._ending import Ending, logger
from ._errors import ModelError, StoreError, ToolError
from ._events import (
    AnyEvent,
    FromChild,
    KeptEvent,
    ModelCut,
    ModelReplied,
    Reply,
    RunEnded,
    RunResumed,
    Status,
    ToolCall,
    must_last,
)
from ._foreign import left_behind
from ._guards import check_output, guarded_input
from ._limits import reason_to_end
from ._outcome import Outcome, ResumeDecision, resume_decision
from ._plan import Plan, now
from ._ports import Model, ModelRequest, ToolSpec, nowait_of
from ._scopes import end_if_cancelled
from ._state import RunState
from ._tools import Tool

EVENT_BUFFER = 16
NOBODYS = ToolCall("")  # a call that is in no run
CURRENT: ContextVar[Run] = ContextVar("run")  # the innermost run around a tool
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
            return await check_output(run, end)
    except (ModelError, ToolError) as error:
        return RunEnded(Status.FAILED, error.stop)


async def ask_model(run: Run) -> Reply:
    reply = run.adopt(*await ask(run))
    await run.record(ModelReplied(reply, run.objection(reply)))
    return reply


async def call_tools(run: Run, calls: tuple[ToolCall, ...]) -> None:
    while calls:
        for batch in in_batches(run, calls):
            await side_by_side(run, call_tool, batch)
        calls = await settle(run)


async def call_tool(run: Run, call: ToolCall) -> None:
    """The start is kept before the effect begins: a start with no end is uncertain."""
    await end_if_cancelled()
    ready = await allow(run, prepare(run, call))
    if isinstance(ready, PreparedCall):
        await run.record(ready.start)
        await conclude(run, await perform(run, ready))
    elif ready:
        await run.record(ready)


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
        works_on: WorksOn | None = None,
    ) -> None:
        self.id = run_id or f"run_{uuid.uuid4().hex[:20]}"
        self.plan = plan
        self.limits = plan.limits
        self.state = state or RunState()
        self.works_on = works_on
        self.parent = works_on.run if works_on else None
        self.children: dict[tuple[int, int], Run] = {}  # that work for it, by call
        self.budget = Budget(self)
        above = self.parent.ending if self.parent else None
        self.ending: Ending = Ending(plan.limits, above)
        self.input_passed = trio.Event()
        self.answer_passed = False  # by the output guards
        self.paused: set[tuple[int, int]] = set()  # calls that a person has to approve
        self.asked: set[tuple[int, int]] = set()  # calls that were looked up
        self.broken: StoreError | None = None  # what kept a child's spending out
        self.refused: dict[tuple[int, int], str] = {}  # calls that are too many
        self.child = self.ending.child
        self.remaining = self.ending.remaining
        self._store = plan.store
        self._keep_nowait = nowait_of(plan.store)
        self.claim = claim
        self._stack = AsyncExitStack()  # what is held open, while it is
        self._entered: list[Any] = []
        self._kept: dict[str, Any] = {}
        self.tools: dict[str, Tool] = {}
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
        self._began = trio.current_time() - self.state.active_seconds
        self.ending.start_clock(self.state.active_seconds)
        outer = left_behind.set(self.ending.leave_behind), CURRENT.set(self)
        ours = self.state.started is not None  # claimed; a new one, once it is kept
        try:
            with self._send:
                if ours:
                    await self.record(RunResumed(claim=self.claim, created=now()))
                else:
                    await self.record(self.plan.started(self.id, self.works_on))
                    ours = True
                await drive(self)
        finally:
            left_behind.reset(outer[0])
            CURRENT.reset(outer[1])
            if ours and self.plan.store is not None:
                self.plan.store.release(self.id, self.claim)

    def leave(self) -> None:
        """Nobody reads any more."""
        self._watching = False
        self._receive.close()

    @asynccontextmanager
    async def connections(self) -> AsyncGenerator[None]:
        """What models and tools hold open for a run; it is closed before the end."""
        async with self._stack:
            if self.state.agent != self.plan.agent:  # a resumed run, after a handoff
                self.plan = self.plan.handoffs[self.state.agent](self.plan)
            await self._open_tools()
            if self.plan.input_guards:
                await self._stack.enter_async_context(guarded_input(self))
            else:
                self.input_passed.set()
            yield

    async def _open_tools(self) -> None:
        self.tools = dict(self.plan.tools)
        for toolset in self.plan.toolsets:
            for tool in await self._enter(toolset, f"tools {toolset.name}"):
                if tool.name in self.tools:  # so this one is named after where it is
                    tool = replace(tool, name=f"{toolset.name}__{tool.name}")
                if tool.name in self.tools:
                    raise ToolError(f"two tools are named {tool.name!r}")
                self.tools[tool.name] = tool
        for tool in self.tools.values():
            if tool.needs and tool.needs not in self._entered:
                await self._enter(tool.needs, f"what {tool.name} needs")
        self._specs = [tool.spec for tool in self.tools.values()]

    async def follow_handoff(self) -> None:
        """Where another agent takes over, it asks from here on, with its own tools."""
        if name := self.state.next_agent:
            self.plan = self.plan.handoffs[name](self.plan)
            await self._open_tools()

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
        checked = self.answer_passed or not self.plan.output_guards
        if end is None and self.state.answer is not None and checked:
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
        if type(event) is ModelReplied or type(event) is ModelCut:
            await self.budget.settle(event)
        if self._store is not None:
            how: Any = {"claim": self.claim, "durable": must_last(event)}
            if not (self._keep_nowait and self._keep_nowait(self.id, event, **how)):
                with self.ending.graces.shield(self.limits.grace_seconds) as shield:
                    await self._store.append(self.id, event, **how)
                if shield.cancelled_caught:
                    self._lose_store(type(event).__name__)
        for observer in self.plan.observers:
            try:
                observer(self.id, event)
            except Exception:  # noqa: BLE001 - a function of the user's
                logger.exception("an observer failed at %s", type(event).__name__)
        if type(event) is not RunEnded and not self.publish_nowait(event):
            await self.publish(event)

    def _lose_store(self, name: str) -> None:
        self._store = None
        if not self.ending.stopping:
            seconds = self.limits.grace_seconds
            problem = f"the store did not keep {name} within {seconds:g} s"
            raise StoreError(problem, code="hung")
        self.ending.report("store", "hung")

    def unknown_besides(self, call: ToolCall) -> list[ToolCall]:
        """Calls that are not to be repeated, of any run of this tree."""
        root = self
        while root.parent:
            root = root.parent
        found, runs = self.state.unknown_besides(call), [root]
        for run in runs:  # which grows on the way
            runs += run.children.values()
            if run is not self:
                found += run.state.unknown_besides(NOBODYS)
        return found

    def publish_nowait(self, event: AnyEvent) -> bool:
        """Show `event` if that takes no waiting for a slow reader."""
        if self.parent:
            return self.parent.publish_nowait(self._from_child(event))
        if self._watching:
            try:
                self._send.send_nowait(event)
            except trio.WouldBlock:
                return False
        return True

    async def publish(self, event: AnyEvent) -> None:
        """Show `event`. A slow reader slows the run; a reader who left does not."""
        if self.parent:
            await self.parent.publish(self._from_child(event))
        elif not self.publish_nowait(event):
            with suppress(trio.BrokenResourceError):  # the reader left
                await self._send.send(event)

    def _from_child(self, event: AnyEvent) -> FromChild:
        if isinstance(event, FromChild):
            path = (self.plan.agent, *event.path)
            return msgspec.structs.replace(event, path=path)
        return FromChild(path=(self.plan.agent,), run_id=self.id, event=event)

    def next_request(self) -> ModelRequest:
        """What a model is asked next."""
        return ModelRequest(
            messages=self.state.messages,
            instructions=self.plan.instructions,
            tools=self._specs,
            output=self.plan.answer.spec if self.plan.answer else None,
            max_output_tokens=self.budget.cap,
            connect_seconds=self.limits.connect_seconds,
            run_id=self.id,
            turn=len(self.state.turns) + 1,
            kept=self._kept,
        )

    def adopt(self, reply: Reply, model: Model) -> Reply:
        """The reply as this run keeps it: its calls placed, its price known.

        Calls in a reply that used up its output limit may be cut, whatever reason it
        gives: some routers say `tool_calls` for a reply that ran into the limit.
        """
        turn, reason = len(self.state.turns) + 1, reply.finish_reason
        if reply.tool_calls and self.budget.reached_cap(reply.usage):
            reason = "length"
        calls = tuple(
            msgspec.structs.replace(call, turn=turn, position=position)
            for position, call in enumerate(reply.tool_calls)
        )
        usage = self.budget.priced(model, reply.usage)
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
        state, finishing = self.state, self.ending.finishing
        end = reason_to_end(state, self.limits, self.plan.conditions, finishing)
        return end or self.budget.reason_to_end()


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
