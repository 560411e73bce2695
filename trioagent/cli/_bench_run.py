"""`trioagent bench list` and `trioagent bench run`."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import trio
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from trioagent.bench._doctor import environment
from trioagent.bench._driver import Plan, Session, adapters_from, pythons_from
from trioagent.bench._results import Result, write_csv, write_result
from trioagent.bench._scenarios import (
    FULL,
    PARAMETERS,
    QUICK,
    SCENARIOS,
    Scene,
    parse_scenes,
)
from trioagent.bench.adapters import ADAPTERS

from ._options import UsageError

WIDTH = 100
PLACE = Path(".trioagent/bench")
QUICK_PLAN = {"samples": 30, "processes": 1, "warmup": 2, "series_seconds": 13.0}


def show_list(options: argparse.Namespace) -> int:
    """Say what there is."""
    if options.json:
        found = {
            "scenarios": [msgspec.to_builtins(s) for s in SCENARIOS.values()],
            "adapters": {name: pins for name, (_, pins) in ADAPTERS.items()},
            "parameters": PARAMETERS,
        }
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return 0
    width = max(map(len, SCENARIOS))
    lines = ["scenarios (a stop comes …)"]
    lines += [f"  {name:{width}}  {s.about}" for name, s in SCENARIOS.items()]
    lines += ["", "with parameters, such as tool_fanout:tools=100"]
    lines += [f"  {', '.join(PARAMETERS)}", "", "adapters"]
    lines += [
        f"  {name:{width}}  {' '.join(f'{p} {v}'.strip() for p, v in pins.items())}"
        for name, (_, pins) in ADAPTERS.items()
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def make_plan(options: argparse.Namespace) -> Plan:
    """What is typed, as a plan. Raises ValueError that names what is wrong."""
    names = ("source", "tools", "depth", "payload")
    params = {n: v for n in names if (v := getattr(options, n)) is not None}
    scenes = parse_scenes(
        options.scenarios or (QUICK if options.quick else FULL), params
    )
    commands = adapters_from(options.adapter or list(ADAPTERS))
    sizes: dict[str, Any] = dict(QUICK_PLAN) if options.quick else {}
    for name in ("samples", "processes", "warmup", "seed"):
        if (value := getattr(options, name)) is not None:
            sizes[name] = value
    if options.seconds is not None:
        sizes["series_seconds"] = options.seconds
    return Plan(
        scenes=scenes,
        adapters=list(commands),
        commands={name: argv for name, argv in commands.items() if argv},
        pythons=pythons_from(options.python),
        gc=options.gc,
        affinity=_processors(options.affinity),
        **sizes,
    )


def _processors(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    there = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    try:
        wanted = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--affinity {text}: it is numbers, such as 0,1") from None
    if not set(wanted) <= there:
        raise ValueError(f"--affinity {text}: there are {sorted(there)}")
    return wanted


def run_bench(options: argparse.Namespace) -> int:
    """Measure, show it, keep it."""
    try:
        plan = make_plan(options)
        tables = None if options.json else import_module("trioagent.bench._table")
    except ValueError as error:
        raise UsageError(str(error)) from None
    result = Result(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        command=shlex.join(["trioagent", *sys.argv[1:]]),
        env=environment(plan.gc),
    )
    result.env.affinity = list(plan.affinity) or result.env.affinity
    stopped = trio.run(_measure, plan, result)
    path = options.output or _free_place(result)
    write_result(result, path)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            write_csv(result, file)
    if options.json:
        sys.stdout.write(path.read_text())
    if tables:
        show(tables.result_tables(result))
    sys.stderr.write(f"kept in {path}\n")
    return 130 if stopped else 0


def show(tables: Iterable[RenderableType]) -> None:
    """Print them, on 100 columns at least: narrower, no number would stay whole."""
    console = Console()
    console.width = max(WIDTH, console.width)
    for table in tables:
        console.print(table)


async def _measure(plan: Plan, result: Result) -> bool:
    """Whether Ctrl-C has cut it short."""
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("starting", total=plan.steps)

        told = set()

        def tick(adapter: str, scene: Scene) -> None:
            if not (progress.console.is_terminal or (scene.name, adapter) in told):
                told.add((scene.name, adapter))  # a log has no bar
                sys.stderr.write(f"{scene.name}: {adapter}\n")
            progress.update(task, advance=1, description=f"{scene.name:18} {adapter}")

        session = Session(plan, result, tick)
        async with trio.open_nursery() as nursery:
            stopped = await nursery.start(_watch_for_ctrl_c, nursery.cancel_scope)
            await session.run()
            nursery.cancel_scope.cancel(reason="all is measured")
    return bool(stopped.is_set())


async def _watch_for_ctrl_c(  # noqa: ASYNC114 - it is started in its own nursery
    scope: trio.CancelScope, task_status: Any
) -> None:
    stopped = trio.Event()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started(stopped)
        async for _ in signals:
            stopped.set()
            scope.cancel(reason="Ctrl-C")


def _free_place(result: Result) -> Path:
    """The next file of the folder: its number, the commit and the day."""
    taken = [p.name.split("_")[0] for p in PLACE.glob("*.json")]
    number = max((int(n) for n in taken if n.isdigit()), default=0) + 1
    commit = result.commit or "none"
    return PLACE / f"{number:04}_{commit}_{result.created[:10]}.json"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
