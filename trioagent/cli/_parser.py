"""What can be typed after `trioagent`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from rich_argparse import RawDescriptionRichHelpFormatter as Style

from ._bench_parser import add_verbs as add_bench_verbs
from ._options import call_place, count, duration, file_name, token_count, turn_count

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
Ctrl-C at once. A run is kept only where --keep or --journal says so, or
where the agent has a store of its own."""
DEMO = """Stop real runs of a small model on this machine, and show that the work
stopped too. Takes less than a minute and no network."""
RUNS = """Look at the runs in a journal, also of processes that are dead; settle what
is uncertain; go on with a run. ID may be the beginning of a run's id, with
or without "run_", or "last". A CALL is turn.position, such as 1.0."""
RUNS_CODES = """exit codes:
  0    done
  2    cannot be done as typed, or the journal cannot be used
  5    something is uncertain in what was shown
  of resume: as those of trioagent run
"""
ROW = """
  run_id, agent, model, status ("running" or "interrupted" where the journal
  has no end), stop_reason, created (UTC), seconds, turns, usage,
  billed, uncertain (calls), next: {action, reason}. action is resume, review
  (settle or approve something), stop (for good), wait (somebody carries it)
  or broken (it cannot be read). null is unknown, 0 is none."""
EFFECT = """
  run_id, call, tool, arguments, effect, effect_status, key, recovery,
  attempts, judged_by, verdict, result"""
BENCH = """Stop runs of trioagent, of bare event loops and of other frameworks, at
instants drawn before; measure how long it takes, and count what is left."""
VERBS = {
    "list": (
        "the newest runs, and what is uncertain in them",
        f"--json prints one array; each run has{ROW}",
    ),
    "show": (
        "the story of a run, and what to do now",
        f"--json prints one object: that of `list --json`, and output, text, tools,\n"
        f"cleanup, reached, and effects, each with{EFFECT}",
    ),
    "events": (
        "each event of a run on a line, with its second",
        "--json prints one array of the events as they are kept.",
    ),
    "effects": (
        "what runs may have done to the world, with its keys",
        f"--json prints one array; each effect has{EFFECT}",
    ),
    "settle": (
        "write down what became of an uncertain call",
        "--json prints one object: run_id, call, tool, verdict, effect_status,\n"
        "uncertain (the calls that are left) and next, as in `list --json`.",
    ),
    "approve": (
        "say that a call that waits for approval may run",
        "--json prints one object, as settle does.",
    ),
    "deny": ("say that it may not", "--json prints one object, as settle does."),
    "resume": (
        "go on with a run",
        "The agent has to be the one that began it. What is confirmed is not run\n"
        "again, and its instructions stay, whatever -s says.\n"
        "--json prints the outcome, as `trioagent run --json` does.",
    ),
    "export": (
        "the events as JSON lines, or the conversation as JSON",
        "Prints JSON in any case; what a run was told and has said is in it.",
    ),
}


def parser() -> argparse.ArgumentParser:
    """All commands, their options and their help."""
    found = argparse.ArgumentParser(
        prog="trioagent",
        description="AI agents that stop when they are told to.",
        epilog=EXIT_CODES,
        formatter_class=Style,
    )
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, said, about, codes, add in (
        ("run", "run an agent", RUN, EXIT_CODES, _add_run),
        ("runs", "what became of runs, what to do now", RUNS, RUNS_CODES, _add_runs),
        ("demo", "see runs stop", DEMO, "", None),
        ("bench", "how fast runs stop, what is left then", BENCH, "", add_bench_verbs),
    ):
        command = commands.add_parser(
            name, help=said, description=about, epilog=codes, formatter_class=Style
        )
        if add is not None:
            add(command)
    return found


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt", metavar="PROMPT", help='what to ask; "-" reads it from stdin'
    )
    _add_agent(parser)
    _add_limits(parser)
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument(
        "--journal", type=file_name, metavar="FILE", help="keep the run in this journal"
    )
    kept.add_argument(
        "--keep", action="store_true", help="keep it in the default journal"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the outcome as JSON, nothing else"
    )


def _add_agent(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
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


def _add_limits(parser: argparse.ArgumentParser, of_whole: str = "") -> None:
    add = parser.add_argument
    add("--deadline", type=duration, metavar="30s", help=f"end the run then{of_whole}")
    add("--turns", type=turn_count, metavar="8", help="how many replies at most")
    add("--tokens", type=token_count, metavar="40k", help="how many tokens at most")


def _add_runs(parser: argparse.ArgumentParser) -> None:
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
    for name, verb in made.items():
        if name == "effects":
            verb.add_argument("run_id", metavar="ID", nargs="?", help="of all if none")
        elif name != "list":
            verb.add_argument("run_id", metavar="ID", help='or the start of it, "last"')
    made["list"].add_argument(
        "--limit", type=count, metavar="20", default=20, help="how many at most"
    )
    made["effects"].add_argument(
        "--uncertain", action="store_true", help="only those that are uncertain"
    )
    for name in ("settle", "approve", "deny"):
        made[name].add_argument(
            "call", type=call_place, metavar="CALL", help="turn.position, such as 1.0"
        )
    _add_settle(made["settle"])
    made["deny"].add_argument(
        "--reason", metavar="TEXT", help="what the model is told of it"
    )
    _add_agent(made["resume"])
    _add_limits(made["resume"], ", counted from its beginning")
    made["resume"].add_argument(
        "--take-over", action="store_true", help="also from a process that may live"
    )
    made["export"].add_argument(
        "--messages", action="store_true", help="the conversation, for history="
    )
    _add_journal(made.values())


def _add_journal(verbs: Iterable[argparse.ArgumentParser]) -> None:
    for verb in verbs:
        verb.add_argument(
            "--journal", type=file_name, metavar="FILE", help="not the default journal"
        )
        verb.add_argument(
            "--json", action="store_true", help="print JSON, nothing else"
        )


def _add_settle(parser: argparse.ArgumentParser) -> None:
    found = parser.add_mutually_exclusive_group(required=True)
    found.add_argument(
        "--happened",
        action="store_const",
        dest="verdict",
        const="happened",
        help="it did: it is not run again",
    )
    found.add_argument(
        "--did-not-happen",
        action="store_const",
        dest="verdict",
        const="did_not_happen",
        help="it did not, and will not: it may run again",
    )
    parser.add_argument(
        "--result", metavar="TEXT", help='what the model is told of it; else "done"'
    )
