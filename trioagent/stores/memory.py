"""A journal that lasts as long as the process: for tests, and for looking at a run."""

from __future__ import annotations

import trio

from trioagent._errors import StoreError
from trioagent._events import KeptEvent, RunEnded, RunStarted


class MemoryStore:
    """Keeps the events of each run in a list; nothing survives a crash."""

    def __init__(self) -> None:
        self._events: dict[str, list[KeptEvent]] = {}
        self._claims: dict[str, int] = {}  # the last one of each run
        self._carried: set[str] = set()  # runs that somebody is at

    async def append(
        self, run_id: str, event: KeptEvent, *, claim: int, durable: bool = True
    ) -> None:
        """Keep one event. A checkpoint."""
        self.append_nowait(run_id, event, claim=claim, durable=durable)
        await trio.lowlevel.checkpoint()

    def append_nowait(
        self, run_id: str, event: KeptEvent, *, claim: int, durable: bool = True
    ) -> bool:
        """Keep one event, at once: there is nothing to wait for."""
        if type(event) is RunStarted:
            if run_id in self._events:
                raise StoreError(
                    f"the run {run_id!r} is in this store already", code="exists"
                )
            self._events[run_id] = []
            self._claims[run_id] = 1
            self._carried.add(run_id)
        if self._claims.get(run_id) != claim:
            raise StoreError(
                f"the run {run_id!r} was taken over: nothing more is kept of this one",
                code="fenced",
            )
        self._events[run_id].append(event)
        if type(event) is RunEnded:
            self.release(run_id, claim)
        return True

    async def claim(self, run_id: str, *, take_over: bool = False) -> int:
        """Become the one who may append."""
        await self.load(run_id)
        if run_id in self._carried and not take_over:
            raise StoreError(f"the run {run_id!r} is being carried", code="owned")
        self._carried.add(run_id)
        self._claims[run_id] += 1
        return self._claims[run_id]

    async def carried_by(self, run_id: str) -> str:
        """Who is at the run: only we can be."""
        await self.load(run_id)
        return "this process" if run_id in self._carried else ""

    def release(self, run_id: str, claim: int) -> None:
        """Done with it."""
        if self._claims.get(run_id) == claim:
            self._carried.discard(run_id)

    async def load(self, run_id: str) -> list[KeptEvent]:
        """The events of a run."""
        await trio.lowlevel.checkpoint()
        try:
            return list(self._events[run_id])
        except KeyError:
            raise StoreError(
                f"no run {run_id!r} in this store", code="unknown_run"
            ) from None

    async def runs(self) -> list[str]:
        """The ids of all runs, the last one first."""
        await trio.lowlevel.checkpoint()
        return list(reversed(self._events))

    @property
    def events(self) -> list[KeptEvent]:
        """The events of the only run there is."""
        (events,) = self._events.values()
        return events
