"""What can be typed after `trioagent bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich_argparse import RawDescriptionRichHelpFormatter as Style

from ._options import count, duration

VERBS = {
    "list": ("what can be measured, and of what", ""),
    "run": (
        "stop runs, measure how long it takes, and count what is left",
        """Ctrl-C ends it, keeps what was measured, and leaves no process behind.
exit codes:
  0    measured; what could not be is told in the tables
  2    cannot be done as typed
  130  stopped by you
""",
    ),
    "compare": (
        "what changed between two results",
        """exit codes:
  0    compared
  2    cannot be done as typed, or a bound cannot be looked at (too few samples)
  3    slower than --fail-above allows, or something is left that was not before
""",
    ),
    "report": ("a result as tables, a page, pictures or CSV", ""),
    "doctor": (
        "whether this machine is fit to measure",
        """exit codes:
  0    it is, but for what is told
  1    it is not
""",
    ),
}


def add_verbs(parser: argparse.ArgumentParser) -> None:
    """Add what `trioagent bench` takes."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    made = {
        name: verbs.add_parser(
            name,
            help=said,
            description=f"{said[0].upper()}{said[1:]}.",
            epilog=more,
            formatter_class=Style,
        )
        for name, (said, more) in VERBS.items()
    }
    for verb in made.values():
        verb.add_argument(
            "--json", action="store_true", help="print JSON, nothing else"
        )
    _add_run(made["run"])
    for name in ("A", "B"):
        made["compare"].add_argument(name.lower(), metavar=name, type=Path)
    made["compare"].add_argument(
        "--fail-above",
        action="append",
        default=[],
        metavar="p99:20%",
        help="fail where a percentile is that much slower; may be given again",
    )
    _add_report(made["report"])


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "scenarios",
        nargs="*",
        metavar="SCENARIO",
        help="by name, or NAME:PARAMETER=VALUE,…; all of them if none is named",
    )
    run.add_argument(
        "--adapter",
        action="append",
        metavar="NAME",
        help="one of those of `list`, or NAME=COMMAND for one of your own; "
        "may be given again; all of `list` if none is named",
    )
    run.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the interpreter that has an adapter's packages",
    )
    run.add_argument(
        "--quick",
        action="store_true",
        help="under 3 minutes: few scenarios, 30 samples",
    )
    for name, default, about in (
        ("samples", "200", "of each adapter in each scenario"),
        ("processes", "8", "that they are spread over"),
        ("warmup", "10", "samples of each process that are dropped"),
        ("seed", "1", "of the instants at which the stops come"),
    ):
        run.add_argument(f"--{name}", type=count, metavar=default, help=about)
    run.add_argument(
        "--seconds",
        type=duration,
        metavar="30s",
        help="about how long a scenario may take, in each process's turn",
    )
    run.add_argument(
        "--source",
        metavar="thread",
        help="of the stop: thread, signal, deadline, outer",
    )
    for name in ("tools", "depth", "payload"):
        run.add_argument(f"--{name}", type=count, metavar="N", help="of each scenario")
    run.add_argument("--affinity", metavar="0,1", help="processors of the adapters")
    run.add_argument(
        "--gc", choices=("on", "off"), default="on", help="garbage collection in them"
    )
    run.add_argument("-o", "--output", type=Path, metavar="FILE", help="for the JSON")
    run.add_argument("--csv", type=Path, metavar="FILE", help="a row for each sample")


def _add_report(report: argparse.ArgumentParser) -> None:
    report.add_argument("file", type=Path, metavar="FILE", help="of `run`")
    report.add_argument("--html", type=Path, metavar="OUT", help="one page, all in it")
    report.add_argument(
        "--plots", type=Path, metavar="DIR", help="pictures, as PNG and as SVG"
    )
    report.add_argument("--csv", type=Path, metavar="OUT", help="a row for each sample")
    report.add_argument(
        "--readme", type=Path, metavar="FILE", help="a short table, between its markers"
    )
