"""An agent: who to ask, what it may use, and how far it may go. It holds no state."""

from __future__ import annotations

import pkgutil
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
)
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from inspect import iscoroutinefunction as _is_async
from types import TracebackType
from typing import Any, Self, TypedDict, TypeGuard, TypeVar, Unpack

import msgspec
import trio

from ._budget import WorksOn
from ._errors import ImpossibleEvent, StoreError
from ._events import KeptEvent, Message, Status, Usage, UserMessage
from ._limits import READY_MADE, Limits, Price, StopCondition, needs_price
from ._outcome import Outcome
from ._plan import Plan
from ._ports import Approve, Breaker, Guard, Model, Observer, OnUncertain, Retry, Store
from ._run import Run
from ._schema import AnswerType
from ._scopes import open_flat_nursery
from ._state import RunState
from ._subagents import agent_tool, handoff_tool, team_of
from ._tools import Tool, Toolset, check_approve, tool
from ._turn import check_history

T = TypeVar("T")


class RunOptions(TypedDict, total=False):
    """What a run takes besides its prompt."""

    history: Iterable[Message]  # the conversation before it: `outcome.history`
    limits: Limits | None  # replace the agent's for this run, field by field
    stop_when: Iterable[StopCondition]  # asked after the agent's own
    run_id: str | None  # names the run; by default it gets a name of its own


class ResumeOptions(TypedDict, total=False):
    """What a run takes that goes on."""

    limits: Limits | None  # replace the run's own, field by field; seconds of the whole
    stop_when: Iterable[StopCondition]  # asked after those it had
    take_over: bool  # also from somebody who is not known to be dead


@dataclass(frozen=True)
class Agent:
    """A description, to be run as often and as many times at once as one likes.

    Each run is a tree of tasks under one cancel scope. However it ends, it ends in one
    `Outcome`, after everything it started has ended.

    Raises TypeError or ValueError where something cannot be used, and names it.
    """

    model: str | Model  # "provider:model", or a model
    _: KW_ONLY
    name: str = "agent"
    # A callable is asked for each run.
    instructions: str | Callable[[], str] = field(default="", repr=False)
    tools: Sequence[Tool | Toolset | Callable[..., Any]] = ()
    limits: Limits = field(default_factory=Limits)
    stop_when: Sequence[StopCondition] = ()
    output: Any = None  # a type that the answer is read as; None is plain text
    store: Store | None = None  # keeps the events of each run
    price: Price | None = None  # price(model, usage) in US dollars
    fallback: Sequence[str | Model] = ()  # asked when `model` cannot answer
    retry: Retry | None = None  # None: once more, after a random pause
    breaker: Breaker | None = None  # None: five failures in a row, 30 s open
    on_uncertain: OnUncertain = "review"  # or "tell", or a function that says which
    approve: Approve | None = None  # asked before each call that is no read
    input_guards: Sequence[Guard] = ()  # see the messages; writes wait for them
    output_guards: Sequence[Guard] = ()  # see the text of the answer
    tool_guards: Sequence[Guard] = ()  # see each call before it begins
    handoff_to: Sequence[Agent] = ()  # who may take the conversation over
    observers: Sequence[Observer] = ()  # are told of each event once it is kept

    def __post_init__(self) -> None:
        models = [_find(m) for m in (self.model, *self.fallback)]
        object.__setattr__(self, "model", models[0])
        object.__setattr__(self, "fallback", tuple(models[1:]))
        for option, value, right in (
            ("limits", self.limits, isinstance(self.limits, Limits)),
            ("retry", self.retry, self.retry is None or callable(self.retry)),
            ("store", self.store, self.store is None or hasattr(self.store, "append")),
            ("instructions", self.instructions, not _is_async(self.instructions)),
            ("on_uncertain", self.on_uncertain, _is_policy(self.on_uncertain)),
            ("observers", self.observers, all(map(callable, self.observers))),
            *_guards("input_guards", self.input_guards),
            *_guards("output_guards", self.output_guards),
            *_guards("tool_guards", self.tool_guards),
        ):
            if not right:
                raise TypeError(f"Agent({option}=…) cannot be {value!r}")
        check_approve("Agent(approve=…)", self.approve)
        tools = tuple(
            t if isinstance(t, Tool) or hasattr(t, "__aenter__") else tool(t)
            for t in self.tools
        )
        handoffs = [handoff_tool(agent) for agent in self.handoff_to]
        names = [t.name for t in (*tools, *handoffs) if isinstance(t, Tool)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"Agent(tools=…): {', '.join(twice)} is there twice")
        object.__setattr__(self, "tools", tools)
        object.__setattr__(self, "stop_when", _conditions(self.stop_when))
        answer = None if self.output in (None, str) else AnswerType(self.output)
        object.__setattr__(self, "_answer", answer)

    async def run(self, prompt: str, **options: Unpack[RunOptions]) -> Outcome:
        """Run to the end, and return how it ended.

        `prompt` says what to do; `RunOptions` are the options.

        Waits until everything the run started has ended. Cancelled from outside, it
        does its cleanup first, within its grace, and keeps the end as INTERRUPTED.

        Raises:
            ValueError: before anything is done, where an argument cannot be used.
            StoreError: where the run's events could not be kept.
        """
        return await _carry(self.prepare(prompt, **options))

    async def resume(self, run_id: str, **options: Unpack[ResumeOptions]) -> Outcome:
        """Go on with a run of this agent, after its end or after a crash.

        What is confirmed is not run again; what is uncertain is looked up, repeated
        with its key, or left to a person, as its tool allows; then the calls that are
        left are run, and the model is asked on. What is left of its time (in which it
        was running), tokens and money is all it has; the turn limit counts anew.

        Waits, and is cancelled, as `run`. See `Run.resume_decision` for what to expect.

        Raises:
            ValueError: where the run is completed, or is not of this agent.
            StoreError: where it is not there, or somebody else carries it.
        """
        return await _carry(await self.reopen(run_id, **options))

    def run_sync(self, prompt: str, **options: Unpack[RunOptions]) -> Outcome:
        """As `run`, for programs that are not async; Ctrl-C ends the run, cleanly."""
        try:
            trio.lowlevel.current_trio_token()
        except RuntimeError:
            return trio.run(partial(self.run, prompt, **options))
        raise RuntimeError("run_sync inside trio would stop every task: await run(…)")

    @asynccontextmanager
    async def open(
        self, prompt: str | None = None, *, resume: str | None = None, **options: Any
    ) -> AsyncGenerator[Run]:
        """Start a run, to watch it and to stop it. Takes what `run` takes.

        With `resume=` and the id of a run it goes on, and takes what `resume` takes.

        Leaving the block, in whatever way, ends the run and waits for its cleanup;
        then `run.outcome` is there. An error in the block leaves it as itself.
        """
        if (prompt is None) == (resume is None):
            raise TypeError("open takes a prompt, or resume= and the id of a run")
        if resume is None:
            run = self.prepare(prompt, **options)
        else:
            run = await self.reopen(resume, **options)
        async with open_flat_nursery() as nursery:
            nursery.start_soon(run.main, name=f"run {run.id}")
            try:
                yield run
            finally:
                run.leave()
            run.cancel("the block was left")

    def as_tool(self, name: str = "", description: str = "") -> Tool:
        """This agent as a tool of another one: it is asked with a `prompt`.

        Each call is a run of its own inside the call, with its own journal, named after
        the call: `RUN_ID-TURN.POSITION`. It spends from the budget of the run it works
        for, ends with it, and goes on where it was when that is resumed.
        """
        does = description or f"Ask the agent {self.name} to do something."
        return agent_tool(self, name or self.name, does)

    async def __aenter__(self) -> Self:
        """Keep what the model and the tools hold open for several runs."""
        async with AsyncExitStack() as stack:
            for resource in self._resources():
                await stack.enter_async_context(resource)
            stack.pop_all()  # `__aexit__` finds the same ones
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let go of it; each bounds its own closing."""
        stack = AsyncExitStack()
        for resource in self._resources():
            stack.push_async_exit(resource)
        await stack.__aexit__(kind, error, traceback)  # noqa: ASYNC102

    def _resources(self) -> list[AbstractAsyncContextManager[Any]]:
        held = [self.model, *(getattr(t, "needs", t) for t in self.tools)]
        return [
            resource
            for resource in dict.fromkeys(held)
            if isinstance(resource, AbstractAsyncContextManager)
        ]

    def prepare(
        self,
        prompt: str | None,
        history: Iterable[Message] = (),
        limits: Limits | None = None,
        stop_when: Iterable[StopCondition] = (),
        run_id: str | None = None,
        works_on: WorksOn | None = None,
    ) -> Run:
        """A run that has not begun. Raises where an argument cannot be used."""
        before = tuple(history)
        if not isinstance(prompt, str):
            raise TypeError(f"a prompt is text, not {type(prompt).__name__}")
        if run_id is not None:
            _check_run_id(run_id)
        own = _conditions(stop_when)
        self._check_prices((*self.stop_when, *own))
        prompt.encode()  # a lone surrogate is UnicodeEncodeError, before any effect
        check_history(before)
        text = self.instructions
        plan = self._plan(
            text if isinstance(text, str) else text(),
            (*before, UserMessage(prompt)),
            Limits.over(limits, self.limits) if limits else self.limits,
            own,
        )
        return Run(plan, run_id, works_on=works_on)

    async def reopen(
        self,
        run_id: str,
        limits: Limits | None = None,
        stop_when: Iterable[StopCondition] = (),
        take_over: bool = False,
        works_on: WorksOn | None = None,
    ) -> Run:
        """A run that goes on; it is claimed. Raises where it cannot."""
        if self.store is None:
            raise ValueError("there is nothing to resume from: give Agent(store=…)")
        _check_run_id(run_id)
        more = _conditions(stop_when)
        claim = await self.store.claim(run_id, take_over=take_over)
        with ExitStack() as failed:
            failed.callback(self.store.release, run_id, claim)
            state = replay(run_id, await self.store.load(run_id))
            started = state.started
            if state.ended and state.ended.status is Status.COMPLETED:
                raise ValueError(
                    f"the run {run_id} is completed, there is nothing left to do; a "
                    "new run can go on from its history"
                )
            if started is None or started.agent != self.name:
                whose = started.agent if started else "nobody"
                raise ValueError(
                    f"the run {run_id} is of the agent {whose!r}, not of {self.name!r}"
                )
            own = [READY_MADE[code](bound) for code, bound in started.stop_when]
            if state.agent not in team_of(self):
                raise ValueError(
                    f"the run {run_id} was handed over to {state.agent!r}, whom this"
                    " agent does not know: see handoff_to"
                )
            self._check_prices((*self.stop_when, *own, *more))
            names = {f.name for f in fields(Limits)} & started.limits.keys()
            given: dict[str, Any] = {name: started.limits[name] for name in names}
            kept = Limits(**given)
            plan = self._plan(
                started.instructions,
                started.messages,
                Limits.over(limits, kept) if limits else kept,
                (*own, *more),
            )
            failed.pop_all()
        return Run(plan, run_id, state=state, claim=claim, works_on=works_on)

    def _plan(
        self,
        instructions: str,
        messages: tuple[Message, ...],
        limits: Limits,
        conditions_of_call: tuple[StopCondition, ...],
    ) -> Plan:
        models = tuple(_find(m) for m in (self.model, *self.fallback))
        conditions = (*self.stop_when, *conditions_of_call)
        own = (*self.tools, *(handoff_tool(agent) for agent in self.handoff_to))
        return Plan(
            agent=self.name,
            models=models,
            retry=self.retry or _policy("retries")(),
            breaker=self.breaker or _policy("CircuitBreaker")(),
            instructions=instructions,
            messages=messages,
            tools={t.name: t for t in own if isinstance(t, Tool)},
            toolsets=tuple(t for t in self.tools if _is_toolset(t)),
            limits=limits,
            conditions=conditions,
            own_conditions=conditions_of_call,
            answer=self.__dict__["_answer"],
            store=self.store,
            price=self.price,
            on_uncertain=self.on_uncertain,
            approve=self.approve,
            input_guards=tuple(self.input_guards),
            output_guards=tuple(self.output_guards),
            tool_guards=tuple(self.tool_guards),
            handoffs=self._handoffs(),
            observers=tuple(self.observers),
        )

    def _handoffs(self) -> dict[str, Callable[[Plan], Plan]]:
        """All the agents a conversation may come to, this one too, by name."""
        return {name: agent.take_over for name, agent in team_of(self).items()}

    def take_over(self, plan: Plan) -> Plan:
        """The plan of a run that this agent takes over.

        What the run was bound to stays: its limits, its guards, whom it asks.
        """
        text = self.instructions
        text = text if isinstance(text, str) else text()
        own = self._plan(text, plan.messages, plan.limits, plan.own_conditions)
        return msgspec.structs.replace(
            own,
            input_guards=plan.input_guards,
            tool_guards=_both(plan.tool_guards, own.tool_guards),
            output_guards=_both(plan.output_guards, own.output_guards),
            approve=own.approve or plan.approve,
            on_uncertain=plan.on_uncertain,
            price=own.price or plan.price,
            conditions=_both(plan.conditions, own.conditions),
            store=plan.store,
            observers=plan.observers,
            handoffs={**plan.handoffs, **own.handoffs},
        )

    def _check_prices(self, conditions: tuple[StopCondition, ...]) -> None:
        """Whoever may be asked must have a price where a cost limit is armed."""
        for agent in team_of(self).values():
            if needs_price((*conditions, *agent.stop_when)):
                price = agent.price or self.price
                for model in (agent.model, *agent.fallback):
                    _check_price(price, model)


def _check_price(price: Price | None, model: str | Model) -> None:
    name = model if isinstance(model, str) else model.name
    nothing = Usage(input_tokens=0, output_tokens=0)
    if price is None or price(name, nothing) is None:
        raise ValueError(
            f"max_cost cannot be kept: no price is known for {name};"
            " give Agent(price=…), which takes the model and its usage"
        )


def _both(first: tuple[T, ...], then: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*first, *then)))


def _check_run_id(run_id: Any) -> None:
    if not isinstance(run_id, str) or not 0 < len(run_id) <= 200:
        raise ValueError(f"a run id is a text of 1 to 200 characters, not {run_id!r}")
    run_id.encode()  # a lone surrogate is UnicodeEncodeError


def _is_toolset(tool: Any) -> TypeGuard[Toolset]:
    return not isinstance(tool, Tool)


async def _carry(run: Run) -> Outcome:
    run.leave()  # nobody is watching
    await run.main()
    return run.outcome


def replay(run_id: str, events: Iterable[KeptEvent]) -> RunState:
    """The state of a run as its journal tells it.

    Raises StoreError where the events cannot have happened in this order.
    """
    try:
        return RunState.replay(events)
    except ImpossibleEvent as error:
        raise StoreError(
            f"the journal of the run {run_id} cannot be: {error}", code="corrupt"
        ) from error


def _guards(option: str, guards: Any) -> list[tuple[str, Any, bool]]:
    return [(option, guard, callable(guard)) for guard in guards]


def _is_policy(policy: Any) -> bool:
    return policy in ("review", "tell") or callable(policy)


def _find(model: str | Model) -> Model:
    if isinstance(model, str):
        found: Model = pkgutil.resolve_name("trioagent.models:find_model")(model)
        return found
    if not hasattr(model, "open_reply") or isinstance(model, type):
        raise TypeError(f"Agent takes 'provider:model' or a model, not {model!r}")
    return model


def _policy(name: str) -> Any:
    return pkgutil.resolve_name(f"trioagent.models._policy:{name}")


def _conditions(conditions: Iterable[StopCondition]) -> tuple[StopCondition, ...]:
    found: tuple[Any, ...] = tuple(conditions)
    for condition in found:
        if not callable(condition) or _is_async(condition):
            raise TypeError(f"stop_when takes plain functions, not {condition!r}")
    return found
