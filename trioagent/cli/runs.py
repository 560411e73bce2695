"""`trioagent runs`: what became of the runs in a journal, and what to do about them."""

from __future__ import annotations

import dataclasses
import os
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
from typing import Any

import msgspec
import trio

from trioagent import (
    Agent,
    ApprovalGiven,
    EffectJudged,
    KeptEvent,
    ResumeDecision,
    Run,
    Status,
    StoreError,
    ToolCall,
    Verdict,
)
from trioagent.observe._text import one_line
from trioagent.observe.console import event_row, open_console, print_steps
from trioagent.observe.story import (
    EffectRow,
    RunRow,
    Story,
    effect_rows,
    place,
    run_head,
    runs_table,
)
from trioagent.stores.sqlite import SqliteStore

from ._advice import next_steps
from ._agents import make_agent
from ._journal import KeptRun, find_run, load_run, short_ids, words_for
from ._options import UsageError
from ._session import UNCERTAIN, Session, bounds, finish, own_stdout, write_all

WIDE = 100  # columns of a terminal that has room for reasons
NO_END = {
    "interrupted": "none was kept: whoever carried it is gone",
    "running": "not yet",
}
BROKEN = 2  # a run in the list cannot be read


def main(options: Namespace) -> int:
    """Do what the verb says, and return the exit code."""
    try:
        if options.verb == "resume":
            return _resume(options)
        return trio.run(_in_journal, options, _VERBS[options.verb])
    except StoreError as error:
        if error.code == "missing" and options.journal is None:
            text = f"no run was kept so far in {SqliteStore().path}"
            raise UsageError(f"{text}: trioagent run --keep keeps one") from error
        if error.code == "owned" and options.verb == "resume":
            raise UsageError(f"{error}: --take-over") from error
        raise
    except BrokenPipeError:  # nobody reads any more, so there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


Verb = Callable[[Namespace, SqliteStore], Awaitable[int]]


async def _in_journal(options: Namespace, verb: Verb) -> int:
    async with SqliteStore(options.journal, create=False) as store:
        return await verb(options, store)


def _print(rows: Iterable[Any]) -> None:
    console = open_console(sys.stdout)
    for row in rows:
        console.print(row)


def _print_json(value: Any) -> None:
    write_all(1, msgspec.json.encode(value, enc_hook=str) + b"\n")


def _code(uncertain: object) -> int:
    return UNCERTAIN if uncertain else 0


# Looking; none of these writes anything


async def _list(options: Namespace, store: SqliteStore) -> int:
    known = await store.runs()
    rows = [await _row(store, run_id) for run_id in known[: options.limit]]
    if options.json:
        _print_json(rows)
    else:
        short = short_ids([row.run_id for row in rows], known)
        replace = msgspec.structs.replace
        wide = open_console(sys.stdout).width >= WIDE
        named = [replace(row, run_id=short[row.run_id]) for row in rows]
        _print([runs_table(named, wide=wide)] if rows else ["No runs."])
        if more := len(known) - len(rows):
            _print([f"… and {more} more before: --limit {len(known)}"])
    if any(row.uncertain for row in rows):
        return UNCERTAIN
    return BROKEN if any(row.next.action == "broken" for row in rows) else 0


async def _row(store: SqliteStore, run_id: str) -> RunRow:
    """One run that cannot be read must not hide the others."""
    try:
        return (await load_run(store, run_id)).row
    except StoreError as error:
        told = ResumeDecision("broken", str(error))
        return RunRow(run_id=run_id, status=error.code, next=told)


async def _show(options: Namespace, store: SqliteStore) -> int:
    kept = await find_run(store, options.run_id)
    outcome = kept.outcome
    if options.json:
        more = {
            "output": outcome.output,
            "text": outcome.text,
            "tools": outcome.tools,
            "effects": kept.effects,
            "cleanup": outcome.cleanup,
            "reached": outcome.reached,
        }
        _print_json({**msgspec.structs.asdict(kept.row), **more})
        return _code(kept.uncertain)
    story = Story(kept.events, NO_END.get(kept.status, ""))
    _print([*run_head(kept.row), "", *story.rows])
    if unsure := [row for row in kept.effects if row.call in kept.uncertain]:
        _print(["", "May or may not have happened:", *effect_rows(unsure)])
    if kept.carrier:
        _print(["", f"{kept.next.reason}: there is nothing to do."])
    elif steps := next_steps(kept.state, where=words_for(store)):
        _print([""])
        print_steps(open_console(sys.stdout), steps)
    return _code(kept.uncertain)


async def _events(options: Namespace, store: SqliteStore) -> int:
    kept = await find_run(store, options.run_id)
    if options.json:
        _print_json(kept.events)
        return 0
    console = open_console(sys.stdout)
    for event in kept.events:  # whole, where no terminal would break the lines
        row, whole = event_row(event), not console.is_terminal
        console.print(row, soft_wrap=whole, no_wrap=True, overflow="ellipsis")
    return 0


async def _effects(options: Namespace, store: SqliteStore) -> int:
    found: list[tuple[RunRow, list[EffectRow]]] = []
    code = 0
    one = [await find_run(store, options.run_id)] if options.run_id else []
    for run_id in [] if one else await store.runs():
        try:
            found.append(_effects_in(await load_run(store, run_id), options))
        except StoreError as error:  # the others are told all the same
            sys.stderr.write(f"trioagent runs effects: {error}\n")
            code = BROKEN
    found += [_effects_in(kept, options) for kept in one]
    effects = [effect for _, rows in found for effect in rows]
    if options.json:
        _print_json(effects)
    else:
        for row, rows in found:
            if rows:
                _print([run_head(row)[0], *effect_rows(rows, indent="  ")])
        if not effects:
            _print(["Nothing is uncertain." if options.uncertain else "No effects."])
    return _code(any(row.uncertain for row, _ in found)) or code


def _effects_in(kept: KeptRun, options: Namespace) -> tuple[RunRow, list[EffectRow]]:
    only = kept.uncertain if options.uncertain else None
    return kept.row, [e for e in kept.effects if only is None or e.call in only]


async def _export(options: Namespace, store: SqliteStore) -> int:
    kept = await find_run(store, options.run_id)
    if options.messages:
        _print_json(kept.outcome.history)
    else:
        for event in kept.events:
            _print_json(event)
    return 0


# Doing


async def _add(
    store: SqliteStore, kept: KeptRun, make: Callable[[KeptRun], KeptEvent]
) -> KeptRun:
    """Add what a person says to a run; refused while somebody carries it."""
    make(kept)  # what cannot be said is told before anything is changed
    try:
        claim = await store.claim(kept.run_id)
    except StoreError as error:
        if error.code == "owned":
            text = f"{str(error).rpartition('; ')[0]}; say so once that has ended"
            raise UsageError(text) from error
        raise
    try:
        kept = await load_run(store, kept.run_id)  # as it is now that it is ours
        event = make(kept)
        kept.state.apply(event)
        await store.append(kept.run_id, event, claim=claim)
    finally:
        store.release(kept.run_id, claim)
    return dataclasses.replace(kept, events=[*kept.events, event], carrier="")


async def _settle(options: Namespace, store: SqliteStore) -> int:
    """Write down what a person has found out about an uncertain call."""
    verdict = Verdict(options.verdict)
    happened = verdict is Verdict.HAPPENED
    if options.result is not None and not happened:
        raise UsageError("--result is of a call that happened: give --happened with it")

    def judged(kept: KeptRun) -> EffectJudged:
        return EffectJudged(
            at=kept.seconds,
            call=_uncertain_call(kept, options.call),
            verdict=verdict,
            by="person",
            content=(options.result or "done") if happened else "",
        )

    kept = await _add(store, await find_run(store, options.run_id), judged)
    then = "it is not run again" if happened else "it may run when the run goes on"
    said = f"{'happened' if happened else 'did not happen'}; {then}"
    return _tell_kept(options, store, kept, said)


async def _approve(options: Namespace, store: SqliteStore) -> int:
    """Write down whether a call that waits for it may run."""
    granted = options.verb == "approve"

    def given(kept: KeptRun) -> ApprovalGiven:
        asked = kept.state.waiting.get(options.call)
        if asked is None:
            calls = [asked.call for asked in kept.state.waiting.values()]
            waiting = ", ".join(map(_named, calls)) or "none does"
            text = f"call {_place(options.call)} of {kept.run_id} waits for no approval"
            raise UsageError(f"{text}; these do: {waiting}")
        return ApprovalGiven(
            at=kept.seconds,
            call=asked.call,
            granted=granted,
            by="person",
            reason="" if granted else options.reason or "",
            digest=asked.digest or asked.call.digest,
        )

    kept = await _add(store, await find_run(store, options.run_id), given)
    said = f"may {'' if granted else 'not '}run when the run goes on"
    return _tell_kept(options, store, kept, said)


def _uncertain_call(kept: KeptRun, wanted: tuple[int, int]) -> ToolCall:
    found = {call.place: call for call in kept.state.uncertain}
    if wanted in found:
        return found[wanted]
    known = ", ".join(map(_named, found.values()))
    there = f"these are: {known}" if known else "nothing is, in this run"
    text = f"call {_place(wanted)} of {kept.run_id} is not uncertain"
    raise UsageError(f"{text}; {there}")


def _place(wanted: tuple[int, int]) -> str:
    return f"{wanted[0]}.{wanted[1]}"


def _named(call: ToolCall) -> str:
    return f"{place(call)} {call.name}"


def _tell_kept(options: Namespace, store: SqliteStore, kept: KeptRun, said: str) -> int:
    """What was written down about a call, and what comes next."""
    event: Any = kept.events[-1]
    call: ToolCall = event.call
    if options.json:
        told = {
            "run_id": kept.run_id,
            "call": place(call),
            "tool": call.name,
            "verdict": getattr(event, "verdict", options.verb),
            "effect_status": kept.state.effect_status(call),
            "uncertain": kept.uncertain,
            "next": kept.next,
        }
        _print_json(told)
        return _code(kept.uncertain)
    console = open_console(sys.stdout)
    console.print(one_line(f"Kept: {_named(call)} {said}."), markup=False)
    print_steps(console, next_steps(kept.state, where=words_for(store)))
    return _code(kept.uncertain)


def _resume(options: Namespace) -> int:
    with own_stdout() if options.json else nullcontext(1) as stdout:
        agent = make_agent(options)
        run, where = trio.run(_carry_on, options, agent, stdout)
        return finish(run, options, stdout, where)


async def _carry_on(options: Namespace, agent: Agent, stdout: int) -> tuple[Run, str]:
    async with SqliteStore(options.journal, create=False) as store:
        kept = await find_run(store, options.run_id)
        started, ended = kept.state.started, kept.state.ended
        whose = started.agent if started else ""
        if whose != agent.name:
            raise UsageError(
                f"{kept.run_id} is a run of the agent {whose!r}, and this one is "
                f"{agent.name!r}: name the right one with -a"
            )
        if ended and ended.status is Status.COMPLETED:
            raise UsageError(f"{kept.run_id} is completed: there is nothing left to do")
        opened = dataclasses.replace(agent, store=store).open(
            resume=kept.run_id, take_over=options.take_over, **bounds(options)
        )
        return await Session(options, stdout).carry(opened), words_for(store)


_VERBS: dict[str, Verb] = {
    "list": _list,
    "show": _show,
    "events": _events,
    "effects": _effects,
    "settle": _settle,
    "approve": _approve,
    "deny": _approve,
    "export": _export,
}
