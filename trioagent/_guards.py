"""Guards: functions that look at what goes in, what is called and what comes out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ._effects import call_user
from ._events import RunEnded, Status, Stop
from ._foreign import clean
from ._scopes import open_flat_nursery

if TYPE_CHECKING:  # the loop calls this file, and this file reports to the run
    from ._run import Run


async def trip(run: Run, kind: str, guards: Sequence[Any], seen: Any) -> str:
    """Ask the guards side by side: why the first one objects, or nothing.

    A guard returns nothing where all is well, else a reason. One that fails has
    objected.
    """
    if not guards:  # which is no checkpoint: nothing has to happen
        return ""
    reasons: list[str] = []

    async def ask(guard: Any) -> None:
        name = getattr(guard, "__name__", type(guard).__name__)
        try:
            reason = await call_user(f"guard {name}", guard, seen)
        except Exception as error:  # noqa: BLE001 - it may raise anything
            reason = f"{name} failed: {type(error).__name__}"
        if reason:
            reasons.append(clean(reason) if isinstance(reason, str) else name)
            nursery.cancel_scope.cancel(reason=f"an {kind} guard has tripped")

    with run.child(f"{kind} guards"):
        async with open_flat_nursery() as nursery:
            for guard in guards:
                nursery.start_soon(partial(ask, guard))
    return reasons[0] if reasons else ""


def _stop(kind: str, reason: str) -> Stop:
    return Stop("guard", reason, scope=kind, source="guard")


@asynccontextmanager
async def guarded_input(run: Run) -> AsyncGenerator[None]:
    """Ask the input guards while the body runs; one that trips ends the run.

    `run.input_passed` is set once all have passed: writes wait for it.
    """

    async def watch() -> None:
        messages = run.plan.messages
        if reason := await trip(run, "input", run.plan.input_guards, messages):
            run.ending.stop_now(Status.STOPPED, _stop("input", reason))
        else:
            run.input_passed.set()

    async with open_flat_nursery() as nursery:
        nursery.start_soon(watch, name="input guards")
        yield


async def check_output(run: Run, end: RunEnded) -> RunEnded:
    """The end as it counts once the output guards have seen the answer."""
    if end.status is not Status.COMPLETED:
        return end
    guards = run.plan.output_guards
    if guards and (reason := await trip(run, "output", guards, run.state.answer)):
        return RunEnded(Status.STOPPED, _stop("output", reason))
    run.answer_passed = True
    return end
