"""`trioagent bench`: how fast runs stop, and what is left of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from trioagent.bench._results import BadResult, Result, read_result, write_csv

from ._options import UsageError

EXTRAS = {"numpy": "bench", "matplotlib": "plots"}


def main(options: argparse.Namespace) -> int:
    """Do what the verb says, and return the exit code."""
    verbs = {"compare": compare, "report": report, "doctor": doctor}
    try:
        if options.verb in verbs:
            return verbs[options.verb](options)
        run = import_module("._bench_run", __package__)
        code: int = (run.run_bench if options.verb == "run" else run.show_list)(options)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name).split(".")[0])
        if extra is None:
            raise
        raise UsageError(
            f"it needs {error.name}: pip install 'trioagent[{extra}]'"
        ) from None
    return code


def compare(options: argparse.Namespace) -> int:
    """Say what changed between two results."""
    results = [_read(path) for path in (options.a, options.b)]
    module = import_module("trioagent.bench._compare")
    try:
        bounds = [module.bound(text) for text in options.fail_above]
    except ValueError as error:
        raise UsageError(f"--fail-above {error}") from None
    found = module.compare(*results, bounds)
    if options.json:
        _print_json(found)
    else:
        _show(import_module("trioagent.bench._table").comparison_tables(found))
    code: int = found.exit_code
    return code


def report(options: argparse.Namespace) -> int:
    """Show a result, and write what was asked for."""
    result = _read(options.file)
    try:
        written = list(_write_all(result, options))
    except OSError as error:
        raise UsageError(f"cannot write: {error}") from None
    if options.json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    elif not written:
        _show(import_module("trioagent.bench._table").result_tables(result))
    for path in written:
        sys.stderr.write(f"wrote {path}\n")
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Say what makes measurements hold here, and what does not."""
    findings = import_module("trioagent.bench._doctor").examine()
    if options.json:
        _print_json(findings)
    else:
        width = max(len(finding.name) for finding in findings)
        marks = {"ok": " ", "warning": "!", "failure": "X"}
        for f in findings:
            advice = f"  ({f.advice})" if f.advice else ""
            line = f"{marks[f.level]} {f.name:{width}}  {f.value}{advice}\n"
            sys.stdout.write(line)
    return int(any(finding.level == "failure" for finding in findings))


def _write_all(result: Result, options: argparse.Namespace) -> Iterator[Path]:
    if options.html:
        page = import_module("trioagent.bench._report").page(result)
        yield _write(options.html, page)
    if options.plots:
        yield from import_module("trioagent.bench._plots").draw_all(
            result, options.plots
        )
    if options.csv:
        with options.csv.open("w", newline="") as file:
            write_csv(result, file)
        yield options.csv
    if options.readme:
        yield _into_readme(result, options.readme)


def _into_readme(result: Result, path: Path) -> Path:
    summary = import_module("trioagent.bench._report")
    try:
        text = summary.replace_between_markers(
            path.read_text(), summary.readme_table(result)
        )
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    return _write(path, text)


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _read(path: Path) -> Result:
    try:
        return read_result(path)
    except (BadResult, OSError) as error:
        raise UsageError(str(error)) from None


def _show(tables: Any) -> None:
    import_module("._bench_run", __package__).show(tables)


def _print_json(found: Any) -> None:
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
