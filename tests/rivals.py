"""Two processes that want the same run: `python -m tests.rivals JOURNAL LEDGER ROUNDS`.

In each round a run is left behind before its only effect, and two new processes resume
it at once. Prints what became of both.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import trio

from tests.dying import Fate, make_agent
from trioagent import KeptEvent, StoreError, ToolStarted
from trioagent.testing import call

TURNS: list[Any] = [call("send"), "ok"]


def leave_behind(journal: str, ledger: str, run_id: str) -> None:
    """A run that is dropped just before its effect would be kept as begun."""
    agent = make_agent(journal, ledger, Fate(0), TURNS)
    store: Any = agent.store

    async def append(run_id: str, event: KeptEvent, **how: Any) -> None:
        if isinstance(event, ToolStarted):
            os._exit(0)
        await type(store).append(store, run_id, event, **how)

    store.append = append
    trio.run(partial(agent.run, "go", run_id=run_id))


def want(journal: str, ledger: str, run_id: str, go: int) -> str:
    agent = make_agent(journal, ledger, Fate(0), TURNS)
    os.read(go, 1)  # until both are here
    try:
        return trio.run(agent.resume, run_id).status
    except StoreError as error:
        return error.code
    except ValueError as error:
        return "late" if "is completed" in str(error) else repr(error)


def in_a_process(fn: Any, *args: Any) -> tuple[int, int]:
    """A child, and a descriptor from which its answer can be read."""
    answer, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "?"
        try:
            said = fn(*args) or ""
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    return child, answer


def main(journal: str, ledger: str, rounds: str) -> None:
    for number in range(int(rounds)):
        run_id = f"run-{number}"
        child, answer = in_a_process(leave_behind, journal, ledger, run_id)
        os.waitpid(child, 0)
        os.close(answer)
        wait, go = os.pipe()
        rivals = [in_a_process(want, journal, ledger, run_id, wait) for _ in range(2)]
        os.write(go, b"go")
        said = [os.read(answer, 100).decode() for _, answer in rivals]
        for child, answer in rivals:
            os.waitpid(child, 0)
            os.close(answer)
        os.close(wait)
        os.close(go)
        sys.stdout.write(f"{run_id} {' '.join(sorted(said))}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
