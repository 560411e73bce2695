"""Asking until there is a reply: again where the policy says so, then the fallbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from ._errors import ModelError, ModelUnavailable
from ._events import ModelAsked, Reply
from ._ports import Failure, Model
from ._reply import read_reply
from ._scopes import end_if_cancelled

if TYPE_CHECKING:  # the loop calls this file, and this file reports to the run
    from ._run import Run


RESTING = "breaker_open"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One of the attempts of a turn."""

    number: int = 1  # in the turn
    rank: int = 0  # of the model: 0 is the agent's own, then its fallbacks
    of_model: int = 1  # which attempt of this model it is
    why: str = ""
    restarts: bool = False


async def ask(run: Run) -> tuple[Reply, Model]:
    """The reply of a turn, and who gave it; each attempt is an event.

    Everything happens inside the run's deadline, the waiting too. Raises the
    `ModelError` of the last attempt when no further one is due.
    """
    await run.follow_handoff()
    attempt, pause = Attempt(), 0.0
    while True:  # noqa: ASYNC913 - asking is a cancel point, and so is the pause
        if pause:
            await trio.sleep(pause)
        model = run.plan.models[attempt.rank]
        endpoint = getattr(model, "endpoint", model.name)
        try:
            _check(run, model.name, endpoint)
            reply = await _ask_once(run, model, attempt)
        except ModelError as error:
            attempt, pause = _next(run, endpoint, attempt, error)
        else:
            run.plan.breaker.note(endpoint, None)
            return reply, model


def _check(run: Run, name: str, endpoint: str) -> None:
    seconds = run.plan.breaker.refuses(endpoint)
    if seconds is not None:
        raise ModelUnavailable(
            f"{name} failed too often: it is left alone for another {seconds:.0f} s",
            kind=RESTING,
            billed="known",
        )


async def _ask_once(run: Run, model: Model, attempt: Attempt) -> Reply:
    await end_if_cancelled()
    await run.budget.reserve(model)
    try:
        await run.open_model(model)
        turn = len(run.state.turns) + 1
        await run.record(
            ModelAsked(turn, attempt.number, model.name, attempt.why, attempt.restarts)
        )
        return await read_reply(run, model, run.next_request())
    except BaseException:
        run.budget.release()
        raise


def _next(
    run: Run, endpoint: str, attempt: Attempt, error: ModelError
) -> tuple[Attempt, float]:
    """The attempt that follows a failed one, and the seconds to wait before it.

    What a reader may have seen is not silently followed by something else: then only a
    policy that says `restart` leads on.
    """
    resting = error.kind == RESTING
    if not resting:
        run.plan.breaker.note(endpoint, error)
    if not error.may_retry:
        raise error
    cut, left = run.state.cut, run.remaining()
    shown = cut is not None and cut.shown
    failure = Failure(
        error=error, attempt=attempt.of_model, shown=shown, seconds_left=left
    )
    again = None if resting else run.plan.retry(failure)
    follows = Attempt(
        number=attempt.number + 1,
        rank=attempt.rank,
        of_model=attempt.of_model + 1,
        why=error.kind or error.code,
        restarts=shown,
    )
    if not shown or (again and again.restart):
        if again and again.seconds < left:
            return follows, again.seconds
        if attempt.rank + 1 < len(run.plan.models):
            return msgspec.structs.replace(
                follows, rank=attempt.rank + 1, of_model=1
            ), 0.0
    raise error
