"""Makes the journals of `tests/data`: `python -m tests.journal_fixture`.

They are kept, so that a later version is tested with files that this one wrote. Make
one for each version, once, and never again.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import trio

from trioagent import KeptEvent
from trioagent.stores._schema import STEPS
from trioagent.stores.sqlite import SqliteStore
from trioagent.testing._checks import _one_of_each

DATA = Path(__file__).parent / "data"


async def write(path: Path) -> dict[str, list[KeptEvent]]:
    """Two runs with every kind of event; the second has not ended."""
    runs = {run_id: _one_of_each(run_id) for run_id in ("run_a", "run_b")}
    runs["run_b"].pop()
    async with SqliteStore(path) as store:
        for run_id, events in runs.items():
            for event in events:
                await store.append(run_id, event, claim=1)
    return runs


def main() -> None:
    """A file for the version that the store writes now."""
    path = DATA / f"journal_v{len(STEPS)}.db"
    if path.exists():
        raise SystemExit(f"{path.name} is there, and must stay what it is")
    runs = trio.run(write, path)
    path.with_suffix(".json").write_bytes(
        msgspec.json.format(msgspec.json.encode(runs)) + b"\n"
    )


if __name__ == "__main__":
    main()
