"""A run with one tool of some kind, stopped in the middle, in a process of its own.

`python -m tests.stopping KIND STOP LEDGER` prints, when the run has returned, how it
ended and what is still there. The tool writes `began` into the ledger, works for a
while, and writes `late`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

import trioagent
from trioagent import Agent, Limits, Outcome, Run, tool
from trioagent.testing import ScriptedModel, call

WORK_SECONDS = 2.5  # far beyond what a stop takes, also on a busy machine
STOPS = ("user", "deadline", "tool limit", "outer scope", "kill -9")
KINDS = (
    "async read",
    "async write",
    "def read",
    "def write",
    "def, cooperative",
    "def, abandoned",
    "in a process",
    "shell command",
    "MCP over stdio",
    "sub-agent",
)


def note(ledger: str, word: str) -> None:
    with open(ledger, "a", encoding="utf-8") as file:
        file.write(f"{word}\n")


async def work(ledger: str) -> str:
    """Work."""
    note(ledger, "began")
    await trio.sleep(WORK_SECONDS)
    note(ledger, "late")
    return "done"


def work_hard(ledger: str) -> str:
    """Work."""
    note(ledger, "began")
    time.sleep(WORK_SECONDS)  # noqa: TID251 - a thread may
    note(ledger, "late")
    return "done"


def work_and_look(ledger: str) -> str:
    """Work."""
    note(ledger, "began")
    until = time.monotonic() + WORK_SECONDS
    while time.monotonic() < until:
        trioagent.check()
        time.sleep(0.01)  # noqa: TID251 - a thread may
    note(ledger, "late")
    return "done"


def make_tools(kind: str, seconds: float) -> tuple[list[Any], str, dict[str, Any]]:
    """The tools of a run, the name of the one to call, and its arguments."""
    short: dict[str, Any] = {"seconds": seconds, "grace_seconds": 0.2}
    match kind:
        case "async read":
            made: Any = tool(effect="read", seconds=seconds)(work)
        case "async write":
            made = tool(effect="once", **short)(work)
        case "def read":
            made = tool(effect="read", seconds=seconds)(work_hard)
        case "def write":
            made = tool(effect="once", **short)(work_hard)
        case "def, cooperative":
            made = tool(effect="once", seconds=seconds, threads="cooperative")(
                work_and_look
            )
        case "def, abandoned":
            made = tool(effect="read", seconds=seconds, threads="abandon")(work_hard)
        case "in a process":
            made = tool(effect="once", isolate="process", **short)(work_hard)
        case "sub-agent":
            inner = tool(effect="once", **short)(work)
            model = ScriptedModel([call("work", ledger=sys.argv[3]), "done"])
            child = Agent(model, name="child", tools=[inner])
            outer = replace(child.as_tool(), seconds=seconds)
            return [outer], "child", {"prompt": "work"}
        case "shell command":
            from trioagent.isolate.shell import shell

            script = f"echo began >> {{0}}; sleep {WORK_SECONDS}; echo late >> {{0}}"
            made = shell(use_shell=True, **short)
            return [made], "shell", {"command": script.format(sys.argv[3])}
        case _:
            from trioagent.mcp import MCPServer

            server = Path(__file__).parent / "stopping_server.py"
            command = [sys.executable, str(server)]
            made = MCPServer.stdio(command, seconds=seconds, grace_seconds=0.2)
            return [made], "work", {"ledger": sys.argv[3]}
    return [made], made.name, {"ledger": sys.argv[3]}


def lines(ledger: str) -> list[str]:
    return Path(ledger).read_text(encoding="utf-8").split()


async def begun(ledger: str) -> None:
    while "began" not in lines(ledger):  # noqa: ASYNC110 - anybody may write it
        await trio.sleep(0.005)


async def stop(run: Run, how: str, ledger: str, outer: trio.CancelScope) -> None:
    await begun(ledger)
    if how == "user":
        run.cancel("enough")
    elif how == "deadline":
        run.ending.scope.deadline = trio.current_time()  # it passes now
    elif how == "outer scope":
        outer.cancel(reason="enough")
    elif how == "kill -9":
        os.kill(os.getpid(), signal.SIGKILL)


async def main(kind: str, how: str, ledger: str) -> Outcome:
    tools, name, arguments = make_tools(kind, 0.5 if how == "tool limit" else 30)
    agent = Agent(ScriptedModel([call(name, **arguments), "I see"]), tools=tools)
    limits = Limits(seconds=60, write_grace_seconds=0.2)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as outer:
            async with agent.open("go", limits=limits) as run:
                nursery.start_soon(stop, run, how, ledger, outer)
                async for _ in run:
                    pass
        nursery.cancel_scope.cancel(reason="the run is over")
    return run.outcome


def carry(kind: str, how: str, ledger: str) -> None:
    outcome = trio.run(partial(main, kind, how, ledger))
    (report,) = outcome.tools
    said = {
        "status": outcome.status,
        "effect": report.effect_status,
        "named": [c.name for c in outcome.cleanup if c.ended == "abandoned"],
        "threads": sum(not t.daemon for t in threading.enumerate()) - 1,
        "lines": lines(ledger),
    }
    sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
    sys.stdout.flush()
    with suppress(OSError):
        sys.stdin.read()  # until whoever counts has counted
    os._exit(0)  # an abandoned thread must not hold the test


if __name__ == "__main__":
    carry(*sys.argv[1:])
