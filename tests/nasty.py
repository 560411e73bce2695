"""Tools in processes that do not want to end, and owners that are killed.

python -m tests.nasty OWNER: says `ready`, and then waits to be killed.
"""

# ruff: noqa: T201, TID251
# In their own processes, where nothing else has to go on.

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import trio

from tests.data import rude
from trioagent import Agent, ToolContext, ToolError, tool
from trioagent.isolate._supervised import open_supervised
from trioagent.isolate.shell import shell
from trioagent.testing import ScriptedModel, call

RUDE = str(Path(__file__).parent / "data" / "rude.py")
MARK = "TRIOAGENT_TEST_MARK"  # an environment variable: every descendant has it


def rude_program(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-S", RUDE, name, *arguments]


def marked(mark: str) -> list[str]:
    """The processes that live and have the mark, as the kernel shows them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={mark}\0".encode() in (entry / "environ").read_bytes():
                    argv = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found.append(f"{entry.name}: {argv.decode()}")
            except OSError:  # it has just ended
                continue
    return found


@tool(effect="read", isolate="process")
def stuck_read(started: str) -> str:
    """Read for ever."""
    rude.hang(started)


@tool(effect="once", isolate="process", grace_seconds=0.3)
def stuck_write(started: str) -> str:
    """Write for ever."""
    rude.hang(started)


@tool(effect="once", isolate="process", grace_seconds=2)
def slow_write(started: str, effect: str) -> str:
    """Write a file after a moment."""
    Path(started).touch()
    time.sleep(0.3)
    Path(effect).write_text("done")
    return "written"


@tool(effect="read", isolate="process")
async def polite(started: str, cleaned: str) -> None:
    """Wait, and clean up when cancelled."""
    try:
        Path(started).touch()  # noqa: ASYNC240
        await trio.sleep_forever()
    finally:
        Path(cleaned).touch()  # noqa: ASYNC240


@tool(effect="read", isolate="process")
def which() -> int:
    """The process it runs in."""
    return os.getpid()


@tool(effect="once", isolate="process")
async def pay(amount: int, context: ToolContext) -> dict[str, Any]:
    """Tell what it knows of its call."""
    await trio.lowlevel.checkpoint()
    refused = []
    for reach_out in (context.cancel, context.show):
        try:
            reach_out("x")
        except RuntimeError as error:
            refused.append(str(error))
    with context.cleanup():
        await trio.lowlevel.checkpoint()
    return {
        "amount": amount,
        "key": context.idempotency_key,
        "run": context.run_id,
        "call": context.call_id,
        "left": context.remaining(),
        "grace": context.grace_seconds,
        "refused": refused,
    }


@tool(effect="once", isolate="process")
def refuse(fatal: bool) -> str:
    """Fail, and say that nothing happened."""
    raise ToolError("no money", fatal=fatal)


@tool(effect="once", isolate="process")
def die(how: str) -> str:
    """End the process in the middle."""
    rude.die(how)
    return "alive"


@tool(effect="once", isolate="process")
def unsendable() -> Any:
    """Do something, and return what cannot be sent."""
    return rude.unsendable()


async def run_a_tool(name: str) -> None:
    """An owner of a worker that hangs."""
    started = os.environ["STARTED"]
    model = ScriptedModel([call(name, started=started)])
    await Agent(model, tools=[stuck_read, stuck_write]).run("go")


async def run_a_command() -> None:
    """An owner of a command that hangs."""
    command = rude_program("daemonise_and_stay")
    tool = shell(env={MARK: os.environ[MARK]})
    await Agent(ScriptedModel([call("shell", command=command)]), tools=[tool]).run("go")


async def supervise(name: str) -> None:
    """An owner of a program."""
    async with open_supervised(rude_program(name)) as process:
        async for part in process.stdout:
            sys.stdout.buffer.write(part)
            sys.stdout.flush()
        await trio.sleep_forever()


def die_in_the_middle(rounds: int) -> None:
    """Kill owners, each a little later in their start than the one before.

    They are forks of this process, for what they load takes longer than what they do.
    Says what is left of each after a second, which should be nothing.
    """
    for n in range(rounds):
        mark = os.environ[MARK] + f"-{n}"
        owner = os.fork()
        if owner == 0:
            os.environ[MARK] = mark
            os.dup2(2, 1)
            trio.run(supervise, "daemonise_and_stay")
        time.sleep(n / rounds * 0.12)
        os.kill(owner, 9)
        os.waitpid(owner, 0)
        patience = time.monotonic() + 2
        while (left := marked(mark)) and time.monotonic() < patience:
            time.sleep(0.005)
        print(n, len(left), flush=True)


OWNERS: dict[str, Any] = {
    "stuck_read": lambda: trio.run(run_a_tool, "stuck_read"),
    "stuck_write": lambda: trio.run(run_a_tool, "stuck_write"),
    "command": lambda: trio.run(run_a_command),
    "program": lambda: trio.run(supervise, "daemonise_and_stay"),
    "middle": lambda: die_in_the_middle(100),
}

if __name__ == "__main__":
    OWNERS[sys.argv[1]]()
