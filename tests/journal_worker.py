"""A process that uses a journal: `python -m tests.journal_worker PATH`.

It reads one command a line from stdin, and answers each with one line of JSON: what the
store returned, or the code of its error. `pour` never ends, and says what it has kept.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import trio

from trioagent import ModelAsked, RunStarted, StoreError
from trioagent.stores.sqlite import SqliteStore


def say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


KEPT: list[SqliteStore] = []


async def start(store: SqliteStore, run_id: str, durable: bool = True) -> None:
    await store.append(run_id, RunStarted(run_id=run_id), claim=1, durable=durable)


async def append(
    store: SqliteStore, run_id: str, turn: int, claim: int, durable: bool = True
) -> None:
    await store.append(run_id, ModelAsked(turn), claim=claim, durable=durable)


async def claim(store: SqliteStore, run_id: str) -> int:
    return await store.claim(run_id)


async def release(store: SqliteStore, run_id: str, claim: int) -> None:
    store.release(run_id, claim)
    await store.runs()  # so that others see it, too


async def pour(store: SqliteStore, run_id: str, lazy: int = 0) -> None:
    await start(store, run_id)
    turn = 0
    while True:
        turn += 1
        durable = not lazy or turn % lazy == 0
        model = "x" * (turn * 37 % 900)
        event = ModelAsked(turn, model=model)
        await store.append(run_id, event, claim=1, durable=durable)
        if durable:
            say(turn)


async def many(store: SqliteStore, prefix: str, runs: int, events: int) -> int:
    async def one(run_id: str) -> None:
        await start(store, run_id)
        for turn in range(1, events + 1):
            await append(store, run_id, turn, 1)

    async with trio.open_nursery() as nursery:
        for n in range(runs):
            nursery.start_soon(one, f"{prefix}{n}")
    return runs * events


COMMANDS = {f.__name__: f for f in (start, append, claim, release, pour, many)}


async def main(path: str) -> None:
    store = SqliteStore(path)
    say("ready")
    for line in sys.stdin:  # nothing else is to be done meanwhile
        name, *arguments = json.loads(line)
        if name == "exit":
            KEPT.append(store)  # not closed, not even dropped
            return
        try:
            say(await COMMANDS[name](store, *arguments))
        except StoreError as error:
            say(error.code)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
