"""The command line: `trioagent run`, `trioagent runs` and `trioagent demo`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from trioagent._errors import StoreError

from ._options import UsageError
from ._parser import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says, and return the exit code."""
    try:
        options = parser().parse_args(argv)
    except SystemExit as error:  # --help, or bad usage, which is told already
        return error.code if isinstance(error.code, int) else 2
    command = importlib.import_module(f".{options.command}", __name__)
    try:
        code: int = command.main(options)
    except (UsageError, StoreError) as error:
        name = " ".join(
            [options.command, *([options.verb] if "verb" in options else [])]
        )
        sys.stderr.write(f"trioagent {name}: {error}\n")
        return 2
    except KeyboardInterrupt:  # before there was anything to stop
        return 130
    return code
