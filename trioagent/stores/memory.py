"""A journal that lasts as long as the process: for tests, and for looking at a run."""

from __future__ import annotations

import trio

from trioagent._errors import StoreError
from trioagent._events import KeptEvent, RunStarted


class MemoryStore:
    """Keeps the events of each run in a list; nothing survives a crash."""

    def __init__(self) -> None:
        self.runs: dict[str, list[KeptEvent]] = {}

    async def append(self, run_id: str, event: KeptEvent) -> None:
        """Keep one event. A checkpoint."""
        if isinstance(event, RunStarted) and run_id in self.runs:
            raise StoreError(f"the run {run_id!r} is in this store already")
        self.runs.setdefault(run_id, []).append(event)
        await trio.lowlevel.checkpoint()

    async def load(self, run_id: str) -> list[KeptEvent]:
        """The events of a run; `StoreError` for a run that is not there."""
        await trio.lowlevel.checkpoint()
        try:
            return list(self.runs[run_id])
        except KeyError:
            raise StoreError(f"no run {run_id!r} in this store") from None

    @property
    def events(self) -> list[KeptEvent]:
        """The events of the only run there is."""
        (events,) = self.runs.values()
        return events
