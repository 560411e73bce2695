"""Finding a run in a journal, and what the journal tells of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from trioagent import KeptEvent, Outcome, ResumeDecision, RunState
from trioagent._agent import replay
from trioagent._outcome import resume_decision
from trioagent.observe.story import EffectRow, RunRow, effects_of
from trioagent.stores.sqlite import SqliteStore

from ._options import UsageError

SHORT_ID = 12
PREFIX = "run_"  # of ids that we made; it may be left out


def words_for(store: SqliteStore) -> str:
    """The option that leads to this journal; nothing where it is the default."""
    path = os.fspath(store.path)
    default = os.path.realpath(path) == os.path.realpath(SqliteStore().path)
    return "" if default else f"--journal {shlex.quote(path)}"


@dataclass(frozen=True, kw_only=True)
class KeptRun:
    """A run as its journal tells it."""

    run_id: str
    events: list[KeptEvent]
    state: RunState
    carrier: str  # who carries it; empty where nobody does

    @cached_property
    def outcome(self) -> Outcome:
        """How it ended; without an end it was interrupted, or somebody carries it."""
        return Outcome.of(self.state)

    @property
    def status(self) -> str:
        """How it stands, in a word."""
        if self.state.ended is not None:
            return str(self.state.ended.status)
        return "running" if self.carrier else "interrupted"

    @property
    def uncertain(self) -> tuple[str, ...]:
        """Calls whose effect may have happened; those under way do not count yet."""
        if self.carrier:
            return ()
        return tuple(f"{call.turn}.{call.position}" for call in self.state.uncertain)

    @property
    def seconds(self) -> float:
        """Its own clock at its last event."""
        return max(event.at for event in self.events)

    @property
    def next(self) -> ResumeDecision:
        """What can be done with it."""
        if self.carrier:
            return ResumeDecision("wait", f"{self.carrier} carries it")
        return resume_decision(self.state)

    @property
    def row(self) -> RunRow:
        """It, in a list of runs."""
        started, outcome = self.state.started, self.outcome
        ended, usage = self.state.ended, outcome.usage
        return RunRow(
            run_id=self.run_id,
            agent=started.agent if started else "",
            model=started.model if started else "",
            status=self.status,
            stop_reason=outcome.stop_reason if ended else None,
            created=started.created if started else "",
            seconds=round(self.seconds, 3),
            turns=outcome.turns,
            usage={n: getattr(usage, n) for n in usage.__struct_fields__},
            billed=outcome.billed,
            uncertain=self.uncertain,
            next=self.next,
        )

    @property
    def effects(self) -> list[EffectRow]:
        """Its calls that may have done something to the world."""
        return effects_of(self.run_id, self.state, self.events)


async def load_run(store: SqliteStore, run_id: str) -> KeptRun:
    """A run, whole; raises StoreError where it cannot be read."""
    events = await store.load(run_id)
    return KeptRun(
        run_id=run_id,
        events=events,
        state=replay(run_id, events),
        carrier=await store.carried_by(run_id),
    )


async def find_run(store: SqliteStore, text: str) -> KeptRun:
    """The run that a person means: its id, the beginning of it, or `last`."""
    known = await store.runs()
    if text == "last" and known and "last" not in known:
        return await load_run(store, known[0])
    found = meant(text, known)
    if len(found) == 1:
        return await load_run(store, found[0])
    if found:
        some = ", ".join(short_ids(found[:3], known).values())
        more = " and others" if len(found) > 3 else ""
        raise UsageError(f"{text!r} may be {some}{more}: write more of it")
    look = f"trioagent runs list {words_for(store)}".strip()
    raise UsageError(f"there is no run {text!r} in {store.path}; see {look}")


def meant(text: str, known: Sequence[str]) -> list[str]:
    """The runs that a text may name."""
    if text in known:
        return [text]
    return [run_id for run_id in known if run_id.startswith((text, PREFIX + text))]


def short_ids(shown: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Each id as short as it can be to name one run."""
    short: dict[str, str] = {}
    for run_id in shown:
        lengths = range(SHORT_ID, len(run_id))
        words = (run_id[:length].removeprefix(PREFIX) for length in lengths)
        short[run_id] = next((w for w in words if meant(w, known) == [run_id]), run_id)
    return short
