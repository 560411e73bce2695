"""Who has to say yes before a call begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ._calls import PreparedCall, not_run, prepare
from ._effects import ask_user
from ._events import ApprovalAsked, ApprovalGiven, Effect, ToolCall, ToolNotRun
from ._foreign import clean
from ._guards import trip
from ._ports import Approve, Denied

if TYPE_CHECKING:  # the loop calls this file, and this file reports to the run
    from ._run import Run


async def allow(
    run: Run, ready: PreparedCall | ToolNotRun
) -> PreparedCall | ToolNotRun | None:
    """Wait until somebody has said whether a call may begin.

    None where a person has to, who is not here: then the run pauses. The wait ends with
    the run, and counts into its deadline.
    """
    if not isinstance(ready, PreparedCall):
        return ready
    if ready.tool.effect is not Effect.READ:
        await run.input_passed.wait()
    if reason := await trip(run, "tool", run.plan.tool_guards, ready.call):
        return not_run(ready.call, "guard", f"a guard objected: {reason}.")
    approve = _approver(run, ready)
    return await _approved(run, ready, approve) if approve else ready


async def _approved(
    run: Run, ready: PreparedCall, approve: Approve
) -> PreparedCall | ToolNotRun | None:
    state, call = run.state, ready.call
    # Who approves one tool approves no other that may stand in for it.
    digest = msgspec.structs.replace(call, name=ready.tool.name).digest
    given = state.approvals.get(call.place)
    if given is None:
        if call.place not in state.waiting:
            await run.record(ApprovalAsked(call, digest))
        if approve == "ask":
            run.paused.add(call.place)
            return None
        given = await _decide(run, call, approve, digest)
        await run.record(given)
    if given.granted and given.digest == digest:
        again = prepare(run, call)  # once more: the wait took time
        if not isinstance(again, PreparedCall) or again.tool == ready.tool:
            return again
        given = msgspec.structs.replace(given, reason="that was another tool")
    reason = given.reason or f"the {given.by} said no"
    return not_run(call, "denied", f"it was not approved: {reason}.")


def _approver(run: Run, ready: PreparedCall) -> Approve | None:
    writes = ready.tool.effect is not Effect.READ
    return ready.tool.approve or (run.plan.approve if writes else None)


async def _decide(run: Run, call: ToolCall, approve: Any, digest: str) -> ApprovalGiven:
    try:
        answer = await ask_user(run, f"approve {call.name}", approve, call)
    except Exception as error:  # noqa: BLE001 - it may raise anything
        answer = Denied(f"approve failed: {type(error).__name__}")
    reason = clean(answer.reason) if isinstance(answer, Denied) else ""
    if not isinstance(answer, bool | Denied):
        reason = f"approve returned {type(answer).__name__}, not True, False or Denied"
    return ApprovalGiven(
        call=call, granted=answer is True, by="policy", reason=reason, digest=digest
    )
