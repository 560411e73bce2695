"""Writes docs/stops.md: `python -m tests.stops_table`. `test_stops_table` holds it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio

from tests.stopping import KINDS, STOPS, WORK_SECONDS, lines

ROOT = Path(__file__).parent.parent
PATH = ROOT / "docs" / "stops.md"
MARK = "TRIOAGENT_STOPS_TABLE"
AT_ONCE = 6
MARGIN_SECONDS = 0.5  # after the moment at which a late effect would have come
HEAD = """\
# What a stop leaves

Each kind of tool, stopped in the middle of its work, in a process of its own, and
counted from outside: what it still does after the run has returned, and which threads
and processes are left. `tests/test_stops_table.py` holds this table to what happens,
and `python -m tests.stops_table` writes it.

Each cell says what became of the work, then the `effect_status` in the outcome:

- `cut`: it ended, and nothing of it was left, no thread and no process.
- `waited for`: nobody can end it, so the run returned when it was over.
- `left behind`: it went on after the run had returned, and the outcome names it.

After a `kill -9` there is no outcome; the journal tells of the effect.

"""


async def count(kind: str, how: str) -> str:
    """One cell: what became of the work, and of its effect."""
    with tempfile.NamedTemporaryFile() as ledger:
        mark = uuid.uuid4().hex
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "tests.stopping", kind, how, ledger.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, MARK: mark},
        )
        try:
            return await _count(process, ledger.name, mark)
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


async def _count(process: trio.Process, ledger: str, mark: str) -> str:
    assert process.stdin
    assert process.stdout
    said = b""
    with trio.fail_after(60):
        while not said.endswith(b"\n") and (
            part := await process.stdout.receive_some()
        ):
            said += part
    await trio.sleep(WORK_SECONDS + MARGIN_SECONDS)  # it began before, so it is over
    late = "late" in lines(ledger)
    others = [pid for pid in marked(mark) if pid != process.pid]
    if not said:  # it was killed
        return "left behind" if late or others else "cut"
    return in_words(msgspec.json.decode(said), late=late, others=others)


def in_words(said: dict[str, Any], *, late: bool, others: list[int]) -> str:
    before = "late" in said["lines"]
    if others or (late and not before and not said["named"]):
        return f"NOT NAMED: {said}, {others}"
    became = "waited for" if before else "left behind" if late else "cut"
    return f"{became}, {said['effect']}"


def marked(mark: str) -> list[int]:
    """The processes that have inherited a mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except (OSError, ValueError):  # no process, or gone, or not ours
            continue
    return found


async def measure(kinds: Sequence[str] = KINDS) -> dict[tuple[str, str], str]:
    """The cells of these rows, a few at a time."""
    cells: dict[tuple[str, str], str] = {}
    slots = trio.CapacityLimiter(AT_ONCE)

    async def one(kind: str, how: str) -> None:
        async with slots:
            cells[kind, how] = await count(kind, how)

    async with trio.open_nursery() as nursery:
        for kind in kinds:
            for how in STOPS:
                nursery.start_soon(one, kind, how)
    return cells


def row(cells: dict[tuple[str, str], str], kind: str) -> str:
    """A row as it stands on the page."""
    return f"| {kind} | {' | '.join(cells[kind, how] for how in STOPS)} |"


def table(cells: dict[tuple[str, str], str]) -> str:
    """The page."""
    head = [f"| tool | {' | '.join(STOPS)} |", "| --- " * (len(STOPS) + 1) + "|"]
    return HEAD + "\n".join((*head, *(row(cells, kind) for kind in KINDS), ""))


if __name__ == "__main__":
    PATH.write_text(table(trio.run(measure)), encoding="utf-8")
