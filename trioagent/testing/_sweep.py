"""Stop a run at every single step it takes, and look that it tells the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import trio
import trio.testing

from trioagent._agent import Agent
from trioagent._events import KeptEvent, RunEnded, Status
from trioagent._outcome import Outcome
from trioagent._ports import ModelRequest
from trioagent._run import Run
from trioagent._state import RunState
from trioagent._tools import Tool
from trioagent._turn import check_history


@dataclass(frozen=True, kw_only=True)
class CancelPoint:
    """One run of a sweep: where it was stopped, and what came of it."""

    step: int  # the task step before which it was stopped, from 1
    reached: bool  # False: the run was over before
    accepted: bool  # what `Run.cancel` said; True for the other ways to stop
    outcome: Outcome
    events: list[KeptEvent]  # what the store has
    seconds: float  # from the stop to the end, on the virtual clock
    began: list[str]  # what began after the stop: tools and requests. Must be empty


def sweep_cancels(
    make_agent: Callable[[], Agent],
    prompt: str = "go",
    *,
    stop: Literal["user", "deadline", "host"] = "user",
    check: Callable[[CancelPoint], None] | None = None,
    most: int = 10_000,
    virtual: bool = True,
) -> int:
    """Run an agent again and again, stopped before each single step of its tasks.

    `make_agent` makes a fresh one each time, with a scripted model and a store that is
    empty. `stop` is who stops it: a user, the run's deadline, or a scope around it.
    Time is virtual, so threads and sockets have no place here; a store that writes in
    threads needs `virtual=False` and tools that are quick. After each run it looks
    that nothing began after the stop, that there is one end, that the journal and the
    outcome agree and that the run ended within its graces; `check` may look at more.

    Returns how many steps there were. Raises AssertionError, naming the step.
    """
    for step in range(1, most + 1):
        point = _cancel_at(step, make_agent(), prompt, stop, virtual)
        _check_point(point, stop)
        if check is not None:
            check(point)
        if not point.reached:
            return step - 1
    raise AssertionError(f"the run was not over after {most} steps")


class _StopAtStep(trio.abc.Instrument):
    """Stops a run just before the n-th step of any task, counted from `arm`."""

    def __init__(self, step: int) -> None:
        self.left = step
        self.stop: Callable[[], bool] | None = None
        self.accepted = False
        self.stopped_at: float | None = None
        self.began: list[str] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count, and stop."""
        if self.stop is not None:
            self.left -= 1
            if self.left == 0:
                self.stopped_at = trio.current_time()
                self.accepted = self.stop()

    def note(self, name: str) -> None:
        """Something begins."""
        if self.stopped_at is not None:
            self.began.append(name)


def _spied(agent: Agent, at: _StopAtStep) -> Agent:
    """The same agent, telling `at` what begins."""

    def spy(t: Tool) -> Tool:
        async def fn(*args: Any, **kwargs: Any) -> Any:
            at.note(f"tool {t.name}")
            return await t.fn(*args, **kwargs)

        return replace(t, fn=fn)

    tools = [spy(t) for t in agent.tools if isinstance(t, Tool)]
    return replace(agent, tools=tools, model=_SpyModel(agent.model, at))


class _SpyModel:
    def __init__(self, model: Any, at: _StopAtStep) -> None:
        self.name: str = model.name
        self.endpoint = f"spied:{id(self)}"
        self._model = model
        self._at = at

    def open_reply(self, request: ModelRequest) -> Any:
        self._at.note(f"request {request.turn}")
        return self._model.open_reply(request)


def _cancel_at(
    step: int, agent: Agent, prompt: str, stop: str, virtual: bool
) -> CancelPoint:
    at = _StopAtStep(step)
    spied = _spied(agent, at)

    async def main() -> CancelPoint:
        run: Run | None = None
        with trio.CancelScope() as host:
            async with spied.open(prompt) as run:
                at.stop = _ways_to_stop(run, host)[stop]
                ends = [e async for e in run if isinstance(e, RunEnded)]
                assert len(ends) == 1, f"step {step}: {len(ends)} ends were shown"
                at.stop = None
        at.stop = None
        now = trio.current_time()
        assert run is not None
        assert agent.store is not None, "sweep_cancels needs an agent with a store"
        return CancelPoint(
            step=step,
            reached=at.left <= 0,
            accepted=at.accepted,
            outcome=run.outcome,
            events=await agent.store.load(run.id),
            seconds=0.0 if at.stopped_at is None else now - at.stopped_at,
            began=at.began,
        )

    clock = trio.testing.MockClock(autojump_threshold=0) if virtual else None
    return trio.run(main, clock=clock, instruments=[at])


def _ways_to_stop(run: Run, host: trio.CancelScope) -> dict[str, Callable[[], bool]]:
    def deadline() -> bool:
        run.ending.scope.deadline = trio.current_time()
        return True

    def from_outside() -> bool:
        host.cancel()
        return True

    def user() -> bool:
        return run.cancel("swept")

    return {"user": user, "deadline": deadline, "host": from_outside}


def _check_point(point: CancelPoint, stop: str) -> None:
    at, outcome, events = f"step {point.step}", point.outcome, point.events
    assert point.began == [], f"{at}: {point.began} began after the stop"
    ends = [event for event in events if isinstance(event, RunEnded)]
    assert ends == events[-1:], f"{at}: the journal has {len(ends)} ends"
    told = msgspec.structs.replace(outcome, output=outcome.text)
    kept = Outcome.of(RunState.replay(events))
    kept = msgspec.structs.replace(kept, output=kept.text)
    assert kept == told, f"{at}: the journal says {kept}, the outcome {told}"
    check_history(outcome.history)
    status = {
        "user": Status.CANCELLED,
        "deadline": Status.TIMED_OUT,
        "host": Status.INTERRUPTED,
    }[stop]
    if stop == "user":
        right = (outcome.status is status) == point.accepted
    else:
        right = outcome.status is status or outcome.status is Status.COMPLETED
    assert right, f"{at}: {outcome.status}, and cancel() said {point.accepted}"
