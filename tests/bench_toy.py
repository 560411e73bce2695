"""An adapter for tests: a run whose end takes as long as it is told to.

python bench_toy.py CLEANUP_MS [late]    with `late`, an effect lands after the return
"""

from __future__ import annotations

import os
import sys
from typing import cast

import trio

from trioagent.bench._host import Control
from trioagent.bench._probe import Probe, Said
from trioagent.bench._protocol import Adapter
from trioagent.bench.adapters._trio import TrioBench, TrioHandle


class Toy(TrioBench):
    """Waits; when it is stopped, it tidies up."""

    name = "toy"

    def __init__(self, cleanup_ms: float, *, late: bool) -> None:
        self.cleanup_seconds = cleanup_ms / 1e3
        self.late = late

    async def run(self, handle: TrioHandle) -> None:
        """One run."""
        with trio.CancelScope() as scope:
            handle.stoppable(scope.cancel)
            try:
                await handle.work.tool()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(self.cleanup_seconds)
        if self.late:
            self._nursery.start_soon(self._leave_behind, handle.probe)
        handle.said = Said(status="stopped")

    async def _leave_behind(self, probe: Probe) -> None:
        await trio.sleep(0.02)
        probe.effect()


def main() -> None:
    """Serve until stdin ends."""
    toy = Toy(float(sys.argv[1]), late="late" in sys.argv)
    toy.serve(Control(cast("Adapter", toy), os.fdopen(os.dup(1), "wb")).serve)


if __name__ == "__main__":
    main()
