"""A result, and a comparison of two, as tables on a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trioagent.observe._text import one_line

from ._compare import Change, Comparison
from ._results import Result
from ._stats import NOT_SHOWN, SLOWER
from ._summary import (
    FLOOR,
    LEFT,
    SHOWN,
    Row,
    Scenario,
    Timing,
    duration,
    footnotes,
    headline,
    span,
    summarise,
    tail,
    times,
    versions_of,
)

WIDTH = 100  # columns that are needed; on fewer, lines are broken by the terminal
HEADS = {  # of the columns of what was left, on two lines
    "alive_tasks": "tasks\nalive",
    "alive_threads": "threads\nalive",
    "alive_processes": "procs\nalive",
    "open_requests": "requests\nopen",
    "late_effects": "late\neffects",
    "cut_cleanups": "cleanups\ncut",
    "late_requests": "late\nrequests",
    "late_tokens": "late\ntokens",
    "untrue_status": "untrue\nstatus",
    "not_quiet": "not\nquiet",
    "not_returned": "never\nback",
}
LEGEND = (
    "Times count from the instant the stop was planned for. [95 %]: the interval of "
    "the median, and of the ratio of medians. What was left is summed over all samples."
)


def result_tables(result: Result) -> Iterator[RenderableType]:
    """Everything a result says: two tables for each scenario."""
    yield _said(headline(result), "bold")
    yield _said(LEGEND, "dim")
    for scenario in summarise(result):
        yield Text()
        yield _said(f"{scenario.key}  ({_how_many(scenario)})", "bold")
        measured = [row for row in scenario.rows if row.samples]
        if measured:
            yield _times_table(measured)
            yield from _left_table(measured)
        for line in footnotes(scenario):
            yield _said(f"  {line}", "bold yellow" if "left work" in line else "")
    yield Text()
    for adapter, versions in versions_of(result).items():
        if versions:
            yield _said(f"{adapter}: {versions}", "dim")
    if result.command:
        yield _said(f"Again: {result.command}", "dim")


def _said(text: str, style: str = "") -> Text:
    """What stands in a file may be anything; it must not command a terminal."""
    indent = " " * (len(text) - len(text.lstrip()))
    return Text(indent + one_line(text, 2_000), style)


def _how_many(scenario: Scenario) -> str:
    """Such as `200 samples of 5 processes`, where that holds for all."""
    found = {(row.samples, row.processes) for row in scenario.rows if row.samples}
    if len(found) != 1:
        return "samples of each: see n" if found else "nothing was measured"
    samples, processes = found.pop()
    many = "es" if processes != 1 else ""
    return f"{samples} samples of {processes} process{many} each"


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.collapse_padding = ("verdict", "left") in columns  # for WIDTH
    for head, side in columns:
        left = side == "left"
        table.add_column(
            head, justify="left" if left else "right", no_wrap=not left, overflow="fold"
        )
    return table


def _indented(table: Table) -> Padding:
    return Padding(table, (0, 0, 0, 2), expand=False)


def _times_table(rows: list[Row]) -> Padding:
    table = _table(
        ("", "left"),
        ("stop to", "left"),
        ("n", "right"),
        ("p50", "right"),
        ("[95 %]", "right"),
        ("p90", "right"),
        ("p99", "right"),
        ("max", "right"),
        (f"× {FLOOR}", "right"),
    )
    for row in rows:
        name = row.adapter
        for measure in SHOWN:
            if measure in row.times:
                found = row.times[measure]
                cells = [str(found.n), *_cells(found)]
                last = "1" if row.adapter == FLOOR else times(found.to_floor)
                told = last if measure != "observe" else ""
                table.add_row(_said(name), measure, *cells, told)
            else:
                table.add_row(_said(name), measure, *["–"] * 6, "")
            name = ""
    return _indented(table)


def _cells(found: Timing) -> tuple[str, ...]:
    return (
        duration(found.p50.value),
        span(found.p50),
        tail(found, 0.9),
        tail(found, 0.99),
        duration(found.max),
    )


def _left_table(rows: list[Row]) -> Iterator[RenderableType]:
    """One row each, or one line where there is nothing to tell."""
    if not any(row.left_work for row in rows):
        yield _said("  Nobody left anything, and every status was true.", "dim")
        return
    never = any(row.left["not_returned"] for row in rows)
    names = [name for name in LEFT if never or name != "not_returned"]
    table = _table(("left", "left"), *((HEADS[name], "right") for name in names))
    for row in rows:
        cells = (
            Text(str(row.left[name]), "bold red" if row.left[name] else "dim")
            for name in names
        )
        table.add_row(_said(row.adapter), *cells)
    yield Text()
    yield _indented(table)


# Two results


def comparison_tables(found: Comparison) -> Iterator[RenderableType]:
    """What changed between two results, series by series."""
    yield _said(f"A: {found.a}")
    yield _said(f"B: {found.b}")
    for warning in found.warnings:
        yield _said(f"Warning: {warning}", "yellow")
    yield from _changes_table(found.changes)
    if found.left:
        yield Text()
    for change in found.left:
        style = "bold red" if change.rose else "green"
        word = "ROSE FROM NOTHING" if change.appeared else "changed"
        yield _said(f"{word}: {change.words}", style)
    if found.only:
        yield Text()
    for line in found.only:
        yield _said(line)
    yield Text()
    for lines, word, style in (
        (found.notes, "Not counted", "yellow"),
        (found.failures, "FAILED", "bold red"),
        (found.errors, "CANNOT BE SAID", "bold red"),
    ):
        yield from (_said(f"{word}: {line}", style) for line in lines)
    yield _said(found.conclusion, "bold")


def _changes_table(changes: list[Change]) -> Iterator[RenderableType]:
    """A table for each scenario."""
    keys = dict.fromkeys(change.key for change in changes)
    for key in keys:
        yield Text()
        yield _said(key, "bold")
        table = _table(
            ("", "left"),
            ("stop to", "left"),
            ("A p50", "right"),
            ("B p50", "right"),
            ("B/A p50 [95 %]", "right"),
            ("B/A p99 [95 %]", "right"),
            ("p", "right"),
            ("verdict", "left"),
        )
        before = ""
        for change in (c for c in changes if c.key == key):
            name = "" if change.adapter == before else change.adapter
            before = change.adapter
            table.add_row(_said(name), *_change_cells(change))
        yield _indented(table)


def _change_cells(change: Change) -> tuple[str | Text, ...]:
    style = {NOT_SHOWN: "", SLOWER: "bold red"}.get(change.verdict, "bold green")
    p99 = change.ratios.get("p99")
    return (
        change.measure,
        duration(change.a),
        duration(change.b),
        times(change.ratios.get("p50")),
        times(p99) if p99 else "n<300" if change.n < 300 else "–",
        f"{change.p:.2g}" if change.p >= 0.001 else "<0.001",
        Text(change.verdict, style),
    )
