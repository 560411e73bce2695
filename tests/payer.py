"""An agent that pays at the bank, in a process of its own, to be stopped and killed.

`python -m tests.payer JOURNAL BANK EFFECT RECONCILE [ID]` runs, or resumes ID, and
prints the id, the status, the reason and the decision to resume.
"""

from __future__ import annotations

import signal
import sys
from functools import partial

import httpx
import trio

from trioagent import (
    Agent,
    DidNotHappen,
    Happened,
    Limits,
    ModelRequest,
    ToolCall,
    ToolContext,
    tool,
)
from trioagent.stores.sqlite import SqliteStore
from trioagent.testing import ScriptedModel, call


def by_turn(request: ModelRequest) -> object:
    """A script that a resumed run can go on with."""
    return [call("pay", amount=10), "paid, thank you"][request.turn - 1]


def make_agent(
    journal: str, bank: str, effect: str, *, looks: bool, seconds: float
) -> Agent:
    async def look_up(_: ToolCall, key: str) -> Happened | DidNotHappen:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{bank}/charges", params={"key": key})
        return Happened("charged") if answer.text else DidNotHappen()

    @tool(
        effect=effect,
        seconds=seconds,
        grace_seconds=0.1,
        reconcile=look_up if looks else None,
    )
    async def pay(amount: int, ctx: ToolContext) -> str:
        keyed = "1" if effect == "keyed" else "0"
        params = {"key": ctx.idempotency_key, "keyed": keyed}
        async with httpx.AsyncClient(timeout=None) as client:
            return (await client.post(f"{bank}/charge", params=params)).text

    model = ScriptedModel([by_turn] * 10)
    return Agent(model, tools=[pay], store=SqliteStore(journal))


async def main(
    journal: str, bank: str, effect: str, looks: str, how: str, run_id: str = ""
) -> None:
    agent = make_agent(
        journal,
        bank,
        effect,
        looks=looks == "looks",
        seconds=0.5 if how == "tool" else 30,
    )
    limits = Limits(seconds=1 if how == "deadline" else 60)
    if run_id:
        opened = agent.open(resume=run_id, limits=limits)
    else:
        opened = agent.open("pay", limits=limits)
    async with opened as run:
        sys.stdout.write(f"{run.id}\n")
        sys.stdout.flush()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, run)
            async for _ in run:
                pass
            nursery.cancel_scope.cancel()
    outcome = run.outcome
    decision = run.resume_decision.action
    sys.stdout.write(f"{outcome.status} {outcome.stop_reason} {decision}\n")


async def _obey(run: object) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            run.cancel(signal.Signals(number).name)  # type: ignore[attr-defined]


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
