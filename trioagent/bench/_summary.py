"""What a result comes to: the figures of each scenario, and what was left behind."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from ._results import COUNTS, MEASURES, Result, Series, count, unfinished, untrue
from ._stats import FEWEST, Draws, Percentile, Ratio, percentile, ratio, resample

FLOOR = "bare-trio"
FIRST = (FLOOR, "bare-asyncio", "trioagent")  # then the others as they were measured
SHOWN = ("observe", "return", "quiet")
AGAINST_FLOOR = ("return", "quiet")
ENDS = {"return": "returned", "quiet": "quiet"}  # where None is never, and not unknown
# What can be left behind or wrong, and how it is said of a number of it.
LEFT = {
    "alive_tasks": "tasks alive",
    "alive_threads": "threads alive",
    "alive_processes": "processes alive",
    "open_requests": "requests open",
    "late_effects": "late effects",
    "cut_cleanups": "cleanups cut",
    "late_requests": "late requests",
    "late_tokens": "late tokens",
    "untrue_status": "untrue statuses",
    "not_quiet": "times not quiet",
    "not_returned": "times not returned",
}


class Timing(msgspec.Struct, kw_only=True):
    """A measure of a series, in nanoseconds; infinite where it never came.

    A percentile is None where there are too few samples for it.
    """

    n: int
    never: int  # of the samples in `n`
    p50: Percentile
    p90: Percentile | None
    p99: Percentile | None
    p999: Percentile | None
    max: float
    to_floor: Ratio | None = None  # of the medians


class Row(msgspec.Struct, kw_only=True):
    """What an adapter did in a scenario."""

    adapter: str
    samples: int
    processes: int
    versions: dict[str, str] = {}
    times: dict[str, Timing] = {}
    left: dict[str, int] = {}  # the sums of `LEFT` over all samples
    untrue: dict[str, int] = {}  # what was wrong with its status, and how often
    skipped: str = ""
    problem: str = ""

    @property
    def left_work(self) -> dict[str, int]:
        """Only what there was of it."""
        return {name: number for name, number in self.left.items() if number}


class Scenario(msgspec.Struct, kw_only=True):
    """All adapters in one scenario, the floor first."""

    key: str
    rows: list[Row]
    fastest: str = ""  # to return, by its median
    as_fast: list[str] = []  # those that cannot be told apart from it


def groups(series: Series, measure: str) -> list[list[float]]:
    """The measure of each sample by process.

    A run that did not return, or was never quiet, took longer than any that did: to
    leave it out would flatter. What was not observed may be nobody's fault.
    """
    found: dict[int, list[float]] = {}
    for sample in series.samples:
        value = MEASURES[measure](sample)
        if value is not None or measure in ENDS:
            of_process = found.setdefault(sample.process, [])
            of_process.append(math.inf if value is None else value)
    return list(found.values())


def draws(
    series: Series, measure: str, percentiles: Iterable[float], salt: str = ""
) -> Draws | None:
    """Its resamples; the same each time they are asked for."""
    seed = f"{salt} {series.adapter} {series.key} {measure}"
    return resample(groups(series, measure), list(percentiles), seed)


def left_behind(series: Series) -> dict[str, int]:
    """The sums of all that `LEFT` names."""
    found = {name: count(series, name) for name in COUNTS}
    found["untrue_status"] = untrue(series)
    return found | {f"not_{s}": unfinished(series, s) for s in ("quiet", "returned")}


def summarise(result: Result) -> list[Scenario]:
    """The figures of each scenario, in the order in which they were measured."""
    by_key: dict[str, list[Series]] = {}
    for series in result.series:
        by_key.setdefault(series.key, []).append(series)
    return [_scenario(key, found) for key, found in by_key.items()]


def in_order(adapters: Iterable[str]) -> list[str]:
    """Adapters with the floors first."""
    names = list(dict.fromkeys(adapters))
    first = [name for name in FIRST if name in names]
    return first + [name for name in names if name not in first]


def _scenario(key: str, found: list[Series]) -> Scenario:
    order = in_order(series.adapter for series in found)
    found = sorted(found, key=lambda series: order.index(series.adapter))
    drawn = {
        (series.adapter, measure): draws(series, measure, [0.5])
        for series in found
        for measure in AGAINST_FLOOR
    }
    rows = [_row(series) for series in found]
    for row in rows:
        for measure in AGAINST_FLOOR:
            if row.adapter != FLOOR and measure in row.times:
                own, floor = drawn[row.adapter, measure], drawn.get((FLOOR, measure))
                row.times[measure].to_floor = ratio(0.5, [own], [floor])
    returns = {row.adapter: row.times["return"].p50.value for row in rows if row.times}
    fastest = min(returns, key=returns.__getitem__, default="")
    best = drawn.get((fastest, "return"))
    as_fast = [
        name
        for name in returns
        if name != fastest
        and (found_ratio := ratio(0.5, [drawn[name, "return"]], [best]))
        and found_ratio.low <= 1
    ]
    if not returns or math.isinf(returns[fastest]):
        return Scenario(key=key, rows=rows)
    return Scenario(key=key, rows=rows, fastest=fastest, as_fast=as_fast)


def _row(series: Series) -> Row:
    timings = {measure: _timing(groups(series, measure)) for measure in SHOWN}
    wrong = Counter(s.untrue for s in series.samples if not s.true_status)
    return Row(
        adapter=series.adapter,
        samples=len(series.samples),
        processes=len({sample.process for sample in series.samples}),
        versions=series.versions,
        times={name: timing for name, timing in timings.items() if timing},
        left=left_behind(series),
        untrue=dict(wrong),
        skipped=series.skipped,
        problem=series.problem,
    )


def _timing(by_process: list[list[float]]) -> Timing | None:
    values = [value for group in by_process for value in group]
    median = percentile(values, 0.5) if values else None
    if median is None:
        return None
    return Timing(
        n=len(values),
        never=sum(map(math.isinf, values)),
        p50=median,
        p90=percentile(values, 0.9),
        p99=percentile(values, 0.99),
        p999=percentile(values, 0.999),
        max=max(values),
    )


# How figures are written


def duration(ns: float) -> str:
    """`812 µs`, `1.84 ms` or `12.3 s`; three digits are more than most are sure of."""
    if math.isinf(ns):
        return "never"
    size, unit = _unit(ns)
    return f"{number(ns / size)} {unit}"


def span(percentile: Percentile) -> str:
    """Its interval, such as `241–262 µs`; a dash where it has none."""
    if percentile.low is None or percentile.high is None or math.isinf(percentile.low):
        return "–"
    if math.isinf(percentile.high):
        return f"{duration(percentile.low)}–never"
    size, unit = _unit(percentile.high)
    return f"{number(percentile.low / size)}–{number(percentile.high / size)} {unit}"


def tail(timing: Timing, p: float) -> str:
    """A high percentile, or why it is not told."""
    found = {0.9: timing.p90, 0.99: timing.p99, 0.999: timing.p999}[p]
    return duration(found.value) if found else f"n<{FEWEST[p]}"


def times(ratio: Ratio | None) -> str:
    """Such as `1.23 [1.18–1.29]`."""
    if ratio is None:
        return "–"
    high = "∞" if math.isinf(ratio.high) else number(ratio.high)
    return f"{number(ratio.value)} [{number(ratio.low)}–{high}]"


def number(value: float) -> str:
    """A number with three digits, or all before the point; two if it is small."""
    if 0 < abs(value) < 0.0995:
        return f"{value:.2g}"
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}"


def slug(key: str) -> str:
    """A scenario's key as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")


def left_words(left: dict[str, int]) -> str:
    """Such as `200 late effects, 4 threads alive`."""
    told = (f"{number} {LEFT[name]}" for name, number in left.items() if number)
    return ", ".join(told)


def _unit(ns: float) -> tuple[float, str]:
    for size, unit in ((1e9, "s"), (1e6, "ms")):
        if abs(ns) >= 0.9995 * size:
            return size, unit
    return 1e3, "µs"


def footnotes(scenario: Scenario) -> list[str]:
    """What has to be said under a table, whoever it is about."""
    said = []
    if scenario.fastest:
        row = next(r for r in scenario.rows if r.adapter == scenario.fastest)
        median = duration(row.times["return"].p50.value)
        equal = f"; not told apart from {', '.join(scenario.as_fast)}"
        more = equal if scenario.as_fast else ""
        said.append(f"Fastest return: {row.adapter} ({median}){more}")
        if left := left_words(row.left_work):
            said.append(f"Returned first but left work: {row.adapter}: {left}")
            said += _fastest_clean(scenario)
    for row in scenario.rows:
        for words, times in row.untrue.items():
            reason = words or "it does not say what happened"
            said.append(f"Untrue status, {times}×: {row.adapter}: {reason}")
        if row.skipped:
            said.append(f"Skipped: {row.adapter}: {row.skipped}")
        if row.problem:
            said.append(f"Problem: {row.adapter}: {row.problem}")
    return said


def _fastest_clean(scenario: Scenario) -> list[str]:
    clean = [row for row in scenario.rows if row.times and not row.left_work]
    if not clean:
        return ["Everybody left something"]
    first = min(clean, key=lambda row: row.times["return"].p50.value)
    median = duration(first.times["return"].p50.value)
    return [f"Fastest return that left nothing: {first.adapter} ({median})"]


def headline(result: Result) -> str:
    """When, where and of what, in a line."""
    env = result.env
    python = f"{env.implementation} {env.python}".strip()
    parts = [
        result.created[:10],
        f"commit {result.commit[:12]}" if result.commit else "",
        python,
        f"{env.cores} × {env.cpu or 'cpu'}" if env.cores else env.cpu,
        env.platform,
        f"gc {env.gc}",
        "" if result.complete else "interrupted: not all was measured",
    ]
    return " · ".join(part for part in parts if part)


def versions_of(result: Result) -> dict[str, str]:
    """The versions behind each adapter, in words."""
    found: dict[str, dict[str, str]] = {}
    for series in result.series:
        found.setdefault(series.adapter, {}).update(series.versions)
    return {
        adapter: ", ".join(f"{name} {v}" for name, v in found[adapter].items())
        for adapter in in_order(found)
    }
