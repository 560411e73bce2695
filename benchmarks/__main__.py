"""Measure the project itself: `python -m benchmarks [NAME…]`, or `--compare A B`.

Each figure is a ratio to a floor, or to itself at another size, in the same run: so it
says something on any machine. The two sides take turns, and the medians are compared.
Each run is kept in .trioagent/benchmarks/, by its number, commit and day.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import trio

from benchmarks import _close, _core, _http, _isolate, _journal, _stop, _wire

SCHEMA = 1
ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".trioagent" / "benchmarks"
BENCHMARKS = [
    _core.turn_against_floor,
    _core.parts_of_a_turn,
    _core.late_turn_against_early,
    _core.a_thousand_tools_against_one,
    _core.deltas_in_linear_time,
    _core.many_runs_at_once,
    _core.import_against_floor,
    _stop.stop_against_floor,
    _close.close_against_floor,
    _http.turn_over_http,
    _wire.decode_against_httpx_sse,
    _wire.request_building,
    _journal.append_against_floor,
    _journal.event_10_against_10000,
    _journal.commits_of_a_turn,
    _journal.a_hundred_runs_against_one,
    _journal.resume_a_long_run,
    _isolate.isolated_against_floor,
]
GOALS = {  # at most; for those below, at least
    "turn_against_floor.ratio": 2.0,
    "late_turn_against_early.ratio_500": 1.15,
    "a_thousand_tools_against_one.ratio": 1.15,
    "deltas_in_linear_time.ratio_2n_to_n": 2.2,
    "many_runs_at_once.ratio_to_one_run": 1.2,
    "many_runs_at_once.kib_per_parked_run": 25.0,
    "import_against_floor.ratio": 1.3,
    "stop_against_floor.ratio_1": 1.5,
    "stop_against_floor.ratio_10": 1.3,
    "stop_against_floor.ratio_100": 1.2,
    "stop_against_floor.ratio_1000": 1.2,
    "close_against_floor.streaming_ratio": 1.2,
    "close_against_floor.silent_ratio": 1.2,
    "turn_over_http.ratio": 1.3,
    "commits_of_a_turn.commits_a_turn": 2.0,
}
AT_LEAST = {"a_hundred_runs_against_one.throughput_ratio": 10.0}


def environment() -> dict[str, Any]:
    """Where and of what the figures are."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else [],
        "load": os.getloadavg() if hasattr(os, "getloadavg") else [],
        "trio": trio.__version__,
        "msgspec": msgspec.__version__,
    }


def cpu() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(": ")[2] for line in lines if "model name" in line)
    return next(named, platform.processor())


def measure(names: list[str]) -> dict[str, Any]:
    """Run them, and print one line for each figure."""
    results: dict[str, Any] = {"schema": SCHEMA, "environment": environment()}
    for benchmark in BENCHMARKS:
        name = benchmark.__name__
        if names and name not in names:
            continue
        print(f"{name}: {(benchmark.__doc__ or '').splitlines()[0]}")
        results[name] = benchmark()
        for figure, value in results[name].items():
            print(f"    {figure:28} {value:10.2f}{verdict(f'{name}.{figure}', value)}")
    return results


def verdict(name: str, value: float) -> str:
    """The goal of a figure, and whether it is met; nothing where it has none."""
    if name in GOALS:
        met = "met" if value <= GOALS[name] else "NOT MET"
        return f"   goal <= {GOALS[name]:g}: {met}"
    if name in AT_LEAST:
        met = "met" if value >= AT_LEAST[name] else "NOT MET"
        return f"   goal >= {AT_LEAST[name]:g}: {met}"
    return ""


def keep(results: dict[str, Any]) -> Path:
    """Write them down, after those that are there."""
    KEPT.mkdir(parents=True, exist_ok=True)
    taken = [int(p.name[:4]) for p in KEPT.glob("[0-9]*.json")]
    about = results["environment"]
    number = max(taken, default=0) + 1
    name = f"{number:04}_{about['commit'] or 'none'}_{about['created'][:10]}.json"
    (KEPT / name).write_text(json.dumps(results, indent=2) + "\n")
    return KEPT / name


def compare(old: Path, new: Path) -> None:
    """Print each figure of both, and how many times as large the new one is."""
    a, b = (json.loads(path.read_text()) for path in (old, new))
    for side, path, results in (("A", old, a), ("B", new, b)):
        about = results["environment"]
        words = f"{path}: commit {about['commit']}, {about.get('created', '')}"
        print(f"{side}: {words}, python {about['python']}, {about['cores']} cores")
    for name, figures in b.items():
        if name in {"schema", "environment"} or name not in a:
            continue
        print(name)
        for figure, value in figures.items():
            if before := a[name].get(figure):
                change = f"{before:10.2f} {value:10.2f}   {value / before:5.2f} ×"
                print(f"    {figure:28} {change}")


def main() -> None:
    """Measure and keep, or compare two that are kept."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"))
    parser.add_argument("names", nargs="*", help="only these")
    options = parser.parse_args()
    if options.compare:
        compare(*options.compare)
        return
    known = {benchmark.__name__ for benchmark in BENCHMARKS}
    if unknown := set(options.names) - known:
        sys.exit(
            f"no {', '.join(sorted(unknown))}: there are {', '.join(sorted(known))}"
        )
    results = measure(options.names)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    print(f"kept in {keep(results)}")


if __name__ == "__main__":
    main()
