"""`trioagent bench list` and `trioagent bench run`."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from trioagent.bench._driver import Plan, Session, adapters_from, pythons_from
from trioagent.bench._results import Result, write_csv, write_result
from trioagent.bench._scenarios import (
    FULL,
    PARAMETERS,
    QUICK,
    SCENARIOS,
    SOURCES,
    Scene,
    parse_scenes,
)
from trioagent.bench.adapters import ADAPTERS

from ._options import UsageError, count

PLACE = Path(".trioagent/bench")
QUICK_PLAN = {"samples": 30, "processes": 1, "warmup": 2, "series_seconds": 18.0}
RUN = """Stop runs of each adapter in each scenario, and measure how long it takes and
what is left. Ctrl-C ends it, and what was measured is kept."""


def add_parsers(commands: Any) -> None:
    """Add the two commands to those of `trioagent bench`."""
    listing = commands.add_parser("list", help="what can be measured, and with what")
    listing.add_argument("--json", action="store_true", help="print one object")
    listing.set_defaults(main=show_list)
    run = commands.add_parser("run", help="measure", description=RUN)
    run.add_argument(
        "scenarios",
        nargs="*",
        metavar="SCENARIO",
        help="by name, or NAME:PARAMETER=VALUE,…; default: all of them",
    )
    run.add_argument(
        "--adapter",
        action="append",
        metavar="NAME",
        help="one of those of `list`, or NAME=COMMAND for one of your own",
    )
    run.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the interpreter that has an adapter's packages",
    )
    run.add_argument(
        "--quick", action="store_true", help="under 3 minutes, few samples"
    )
    for name, about in (
        ("samples", "of each adapter in each scenario"),
        ("processes", "that they are spread over"),
        ("warmup", "samples of each process that are dropped"),
        ("seed", "of the instants at which the stops come"),
    ):
        run.add_argument(f"--{name}", type=count, metavar="N", help=about)
    run.add_argument("--source", choices=SOURCES, help="where the stop comes from")
    for name in ("tools", "depth", "payload"):
        run.add_argument(f"--{name}", type=count, metavar="N", help="of each scenario")
    run.add_argument("--affinity", metavar="CPU,…", help="processors of the adapters")
    run.add_argument("--gc", choices=("on", "off"), default="on")
    run.add_argument("-o", "--output", type=Path, metavar="FILE", help="JSON goes here")
    run.add_argument("--csv", type=Path, metavar="FILE", help="one row for each sample")
    run.add_argument("--json", action="store_true", help="print the result as JSON")
    run.set_defaults(main=run_bench)


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
    from trioagent.bench._doctor import environment

    try:
        plan = make_plan(options)
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
    else:
        from trioagent.bench._table import result_tables

        console = Console()
        console.width = max(100, console.width)  # narrower, no number would stay whole
        for table in result_tables(result):
            console.print(table)
    sys.stderr.write(f"kept in {path}\n")
    return 130 if stopped else 0


async def _measure(plan: Plan, result: Result) -> bool:
    """Whether Ctrl-C has cut it short."""
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("starting", total=plan.steps)

        def tick(adapter: str, scene: Scene) -> None:
            progress.update(task, advance=1, description=f"{scene.name:18} {adapter}")

        session = Session(plan, result, tick)
        async with trio.open_nursery() as nursery:
            stopped = await nursery.start(_watch_for_ctrl_c, nursery.cancel_scope)
            await session.run()
            nursery.cancel_scope.cancel(reason="all is measured")
    return bool(stopped.is_set())


async def _watch_for_ctrl_c(scope: trio.CancelScope, task_status: Any) -> None:
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
