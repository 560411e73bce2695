"""Runs that are killed -9 at every place that matters, by themselves.

`python -m tests.dying JOURNAL LEDGER SEED COUNT` carries COUNT runs to their end. Each
life of a run is a process of its own, which dies before or after an event is kept, or
before or after an effect; the next life resumes it. Prints a line for each run.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from functools import partial
from typing import Any

import trio

from trioagent import (
    Agent,
    DidNotHappen,
    Happened,
    KeptEvent,
    ModelRequest,
    StoreError,
    ToolCall,
    ToolContext,
    tool,
)
from trioagent.stores.sqlite import SqliteStore
from trioagent.testing import ScriptedModel, call

LIVES = 12  # of one run; the last one is not killed
PLACES = 24  # where a life may end


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fate:
    """Counts the places where this life could end, and ends it at one of them."""

    def __init__(self, ends_at: int) -> None:
        self.left = ends_at

    def place(self) -> None:
        self.left -= 1
        if self.left == 0:
            die()


class DyingStore(SqliteStore):
    def __init__(self, path: str, fate: Fate) -> None:
        super().__init__(path)
        self.fate = fate

    async def append(self, run_id: str, event: KeptEvent, **how: Any) -> None:
        self.fate.place()
        await super().append(run_id, event, **how)
        self.fate.place()


def happened(ledger: str, key: str) -> bool:
    with open(ledger) as lines:
        return f"{key}\n" in lines


def act(ledger: str, fate: Fate, key: str) -> str:
    fate.place()
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"{key}\n".encode())
    os.close(descriptor)
    fate.place()
    return "done"


def make_agent(journal: str, ledger: str, fate: Fate, turns: list[Any]) -> Agent:
    async def look_up(_: ToolCall, key: str) -> Happened | DidNotHappen:
        fate.place()
        return Happened("looked up") if happened(ledger, key) else DidNotHappen()

    @tool(effect="keyed")
    async def book(ctx: ToolContext) -> str:
        key = ctx.idempotency_key
        return "before" if happened(ledger, key) else act(ledger, fate, key)

    @tool(effect="once", reconcile=look_up)
    async def pay(ctx: ToolContext) -> str:
        return act(ledger, fate, ctx.idempotency_key)

    @tool(effect="once")
    async def send(ctx: ToolContext) -> str:
        return act(ledger, fate, ctx.idempotency_key)

    @tool(effect="read")
    async def read() -> str:
        fate.place()
        return "read"

    def by_turn(request: ModelRequest) -> object:
        return turns[request.turn - 1]

    return Agent(
        ScriptedModel([by_turn] * 50),
        tools=[book, pay, send, read],
        store=DyingStore(journal, fate),
    )


def live(agent: Agent, run_id: str, *, born: bool) -> int:
    """One life, in this process: its exit code."""
    try:
        if born:
            outcome = trio.run(partial(agent.run, "go", run_id=run_id))
        else:
            outcome = trio.run(agent.resume, run_id)
    except StoreError as error:
        return 3 if error.code == "unknown_run" else 4
    except ValueError as error:  # it was killed after its end was kept
        if "is completed" in str(error):
            return 0
        raise
    if outcome.status == "completed":
        return 0
    return 1 if outcome.stop_reason == "effect_uncertain" else 5


def carry(journal: str, ledger: str, run_id: str, luck: random.Random) -> str:
    """All the lives of a run. How it ended, and how often it was killed."""
    names = luck.choices(["book", "pay", "send", "read"], [3, 3, 1, 2], k=5)
    turns = [[call(names[0]), call(names[1])], [call(names[2])], [call(names[3])], "ok"]
    born = False
    for number in range(LIVES):
        last = number == LIVES - 1
        fate = Fate(0 if last else luck.randint(1, PLACES))
        child = os.fork()
        if child == 0:
            code = 6
            try:
                agent = make_agent(journal, ledger, fate, turns)
                code = live(agent, run_id, born=not born)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            born = True
            continue
        code = os.WEXITSTATUS(status)
        if code == 3:  # it was killed before it was kept that it began
            born = False
            continue
        return f"{['completed', 'review'][code] if code < 2 else code} {number}"
    return "no end"


def main(journal: str, ledger: str, seed: str, count: str) -> None:
    luck = random.Random(int(seed))
    for number in range(int(count)):
        run_id = f"run-{seed}-{number}"
        sys.stdout.write(f"{run_id} {carry(journal, ledger, run_id, luck)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
