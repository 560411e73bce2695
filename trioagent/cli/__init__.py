"""The command line: `trioagent run` and `trioagent demo`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from rich_argparse import RawDescriptionRichHelpFormatter

from ._options import UsageError, duration, token_count, turn_count

EXIT_CODES = """exit codes:
  0    completed
  1    failed
  2    cannot be done as typed
  4    stopped by a limit or the deadline
  5    something may or may not have happened (wins over the others)
  130  stopped by you
"""
RUN = """Run an agent. Its answer goes to stdout as it comes; a tree of what it is
doing, and how it ended, to stderr. Ctrl-C ends it after this turn, a second
Ctrl-C at once."""
DEMO = """Stop real runs of a small model on this machine, and show that the work
stopped too. Takes less than a minute and no network."""


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says, and return the exit code."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as error:  # --help, or bad usage, which is told already
        return error.code if isinstance(error.code, int) else 2
    command = importlib.import_module(f".{options.command}", __name__)
    try:
        code: int = command.main(options)
    except UsageError as error:
        sys.stderr.write(f"trioagent {options.command}: {error}\n")
        return 2
    except KeyboardInterrupt:  # before there was anything to stop
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    style = RawDescriptionRichHelpFormatter
    parser = argparse.ArgumentParser(
        prog="trioagent",
        description="AI agents that stop when they are told to.",
        epilog=EXIT_CODES,
        formatter_class=style,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run an agent",
        description=RUN,
        epilog=EXIT_CODES,
        formatter_class=style,
    )
    _add_run_options(run)
    commands.add_parser(
        "demo", help="see runs stop", description=DEMO, formatter_class=style
    )
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("prompt", metavar="PROMPT", help='what to ask; "-" reads it from stdin')
    add(
        "-m",
        "--model",
        help="provider:model, such as openai:gpt-5.5, local or local:FILE.gguf; "
        "without it TRIOAGENT_MODEL",
    )
    add("-a", "--agent", metavar="MODULE:NAME", help="an Agent of your own")
    add("-s", "--instructions", metavar="TEXT", help="what the model is told first")
    add(
        "-T",
        "--tools",
        metavar="MODULE:NAME",
        action="append",
        default=[],
        help="a tool, or a list of tools; may be repeated",
    )
    add("--deadline", type=duration, metavar="30s", help="end the run then")
    add("--turns", type=turn_count, metavar="8", help="how many replies at most")
    add("--tokens", type=token_count, metavar="40k", help="how many tokens at most")
    add("--json", action="store_true", help="print the outcome as JSON, nothing else")
