"""`trioagent run`: one run of an agent, watched on the terminal and stopped from it."""

from __future__ import annotations

import dataclasses
import sys
from argparse import Namespace
from contextlib import AsyncExitStack, nullcontext

import trio

from trioagent import Agent, Run

from ._agents import make_agent
from ._options import UsageError
from ._session import Session, bounds, finish, own_stdout


def main(options: Namespace) -> int:
    """Run the agent that the options describe, and return the exit code."""
    with own_stdout() if options.json else nullcontext(1) as stdout:
        agent = make_agent(options)
        prompt = _prompt(options.prompt)
        run = trio.run(_run, options, agent, prompt, stdout)
        return finish(run, options, stdout, _journal_words(run))


async def _run(options: Namespace, agent: Agent, prompt: str, stdout: int) -> Run:
    async with AsyncExitStack() as stack:
        if options.keep or options.journal:
            from trioagent.stores.sqlite import SqliteStore  # only who keeps needs it

            store = await stack.enter_async_context(SqliteStore(options.journal))
            agent = dataclasses.replace(agent, store=store)
        opened = agent.open(prompt, **bounds(options))
        return await Session(options, stdout).carry(opened)


def _journal_words(run: Run) -> str | None:
    """How `trioagent runs` finds this run again, if it can."""
    store = run.plan.store
    if store is None:
        return None
    from trioagent.stores.sqlite import SqliteStore

    from ._journal import words_for

    return words_for(store) if isinstance(store, SqliteStore) else None


def _prompt(text: str) -> str:
    prompt = sys.stdin.read() if text == "-" else text
    if not prompt.strip():
        raise UsageError("PROMPT: there is nothing to ask; give text, or - for stdin")
    return prompt
