"""What changed between two results, and whether that is more than chance.

A series is slower only where three things hold: the interval of the ratio of medians
excludes 1; the rank test, adjusted for how many series are compared, agrees; and, where
the floor was measured in both, the ratio divided by the floor's own ratio excludes 1 as
well. The last is what stands between a machine that was busier on Tuesday and a verdict
on the code: the floor's code is the same in both, so what changed it was the machine.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from ._results import Environment, Result, Series
from ._stats import (
    ALPHA,
    FASTER,
    FEW_PROCESSES,
    FEWEST,
    NOT_SHOWN,
    SLOWER,
    Draws,
    Ratio,
    holm,
    mann_whitney,
    ratio,
    verdict,
)
from ._summary import (
    FLOOR,
    LEFT,
    SHOWN,
    draws,
    groups,
    headline,
    in_order,
    left_behind,
    times,
)

NAMES = {f"p{100 * p:g}": p for p in FEWEST}  # p50 … p99.9
TOLD = ("p50", "p90", "p99")
SLOW, CANNOT = 3, 2  # exit codes
SAME_MACHINE = ("python", "implementation", "platform", "cpu", "cores", "affinity")
SAME_SETTING = ("governor", "gc", "clock")


class Bound(msgspec.Struct, frozen=True):
    """How much slower a series may be, at a percentile."""

    name: str
    percent: float


class Change(msgspec.Struct, kw_only=True):
    """A measure of a series in both results."""

    adapter: str
    key: str
    measure: str
    n: int  # of the one that has fewer
    a: float  # medians, in nanoseconds
    b: float
    ratios: dict[str, Ratio | None]  # of each percentile, B by A
    by_floor: Ratio | None  # of the medians, after that of the floor was taken out
    p: float  # adjusted for all that is compared
    verdict: str = NOT_SHOWN


class LeftChange(msgspec.Struct, kw_only=True):
    """Something of which a series left more, or less, than before."""

    adapter: str
    key: str
    name: str
    a: int
    b: int
    samples_a: int
    samples_b: int

    @property
    def appeared(self) -> bool:
        """There was none of it, and now there is."""
        return self.a == 0 < self.b

    @property
    def rose(self) -> bool:
        """There is more of it for each sample."""
        return self.b * self.samples_a > self.a * self.samples_b

    @property
    def words(self) -> str:
        """It, in a line."""
        a, b = (
            f"{number} in {samples} samples"
            for number, samples in ((self.a, self.samples_a), (self.b, self.samples_b))
        )
        return f"{LEFT[self.name]}: {self.adapter} in {self.key}: {a}, now {b}"


class Comparison(msgspec.Struct, kw_only=True):
    """All that changed, and what is wrong with that."""

    a: str
    b: str
    warnings: list[str] = []
    changes: list[Change] = []
    left: list[LeftChange] = []
    only: list[str] = []  # what cannot be compared
    notes: list[str] = []  # what passed a bound and did not count
    failures: list[str] = []
    errors: list[str] = []  # bounds that could not be looked at
    conclusion: str = ""
    exit_code: int = 0


def bound(text: str) -> Bound:
    """`p99:20%`, or ValueError."""
    found = re.fullmatch(r"(p\d+(?:\.\d+)?):(\d+(?:\.\d+)?)%", text.strip(), re.ASCII)
    if found is None or found[1] not in NAMES:
        raise ValueError(
            f"{text!r} is no bound: write PERCENTILE:PERCENT%, such as p99:20%, with "
            f"one of {', '.join(NAMES)}"
        )
    return Bound(found[1], float(found[2]))


def compare(a: Result, b: Result, bounds: Sequence[Bound] = ()) -> Comparison:
    """Compare series by series. Bounds are what `--fail-above` names."""
    order = in_order(series.adapter for series in a.series)
    both = [
        (old, new)
        for old in sorted(a.series, key=lambda series: order.index(series.adapter))
        if old.samples and (new := b.find(old.adapter, old.key)) and new.samples
    ]
    pairs = list(_pairs(both, {*TOLD, *(bound.name for bound in bounds)}))
    found = Comparison(
        a=headline(a),
        b=headline(b),
        changes=_changes(pairs),
        left=[change for old, new in both for change in _left(old, new)],
        only=list(_only(a, b)),
    )
    found.warnings = [*_differences(a, b, both), *_drift(found.changes)]
    if bounds:
        _judge(found, pairs, bounds)
        _judge_left(found, a, b)
    verdicts = Counter(change.verdict for change in found.changes)
    counted = [f"{verdicts[word]} {word}" for word in (SLOWER, FASTER, NOT_SHOWN)]
    found.conclusion = f"Of {len(found.changes)} times: {', '.join(counted)}."
    found.exit_code = SLOW if found.failures else CANNOT if found.errors else 0
    return found


# Times


class _Pair(msgspec.Struct, kw_only=True):
    """A measure of a series in both results, resampled, with that of its floor."""

    old: Series
    new: Series
    measure: str
    values: tuple[list[float], list[float]]
    draws: tuple[Draws, Draws]
    floor: tuple[Draws, Draws] | None

    def ratio(self, name: str) -> Ratio | None:
        return ratio(NAMES[name], [self.draws[1]], [self.draws[0]])

    def by_floor(self, name: str) -> Ratio | None:
        if self.floor is None:
            return None
        (a, b), (floor_a, floor_b) = self.draws, self.floor
        return ratio(NAMES[name], [b, floor_a], [a, floor_b])

    @property
    def n(self) -> int:
        return min(map(len, self.values))


def _pairs(both: Sequence[tuple[Series, Series]], names: set[str]) -> Iterator[_Pair]:
    """Floors need no order: each is resampled once, whoever asks first."""
    percentiles = [NAMES[name] for name in sorted(names)]
    known: dict[tuple[str, str, str], tuple[Draws, Draws] | None] = {}

    def drawn(old: Series, new: Series, measure: str) -> tuple[Draws, Draws] | None:
        place = (old.adapter, old.key, measure)
        if place not in known:
            a = draws(old, measure, percentiles, "A")
            b = draws(new, measure, percentiles, "B")
            known[place] = (a, b) if a and b else None
        return known[place]

    floors = {old.key: (old, new) for old, new in both if old.adapter == FLOOR}
    for old, new in both:
        for measure in SHOWN:
            if found := drawn(old, new, measure):
                floor = floors.get(old.key) if old.adapter != FLOOR else None
                yield _Pair(
                    old=old,
                    new=new,
                    measure=measure,
                    values=(_values(old, measure), _values(new, measure)),
                    draws=found,
                    floor=drawn(*floor, measure) if floor else None,
                )


def _values(series: Series, measure: str) -> list[float]:
    return [value for group in groups(series, measure) for value in group]


def _changes(pairs: Sequence[_Pair]) -> list[Change]:
    found = []
    for pair in pairs:
        change = Change(
            adapter=pair.old.adapter,
            key=pair.old.key,
            measure=pair.measure,
            n=pair.n,
            a=pair.draws[0].found[0.5][0],
            b=pair.draws[1].found[0.5][0],
            ratios={name: pair.ratio(name) for name in TOLD},
            by_floor=pair.by_floor("p50"),
            p=mann_whitney(*pair.values),
        )
        known = [r.p for r in (change.ratios["p50"], change.by_floor) if r]
        change.p = max(change.p, *known) if known else change.p
        found.append(change)
    for change, p in zip(
        found, _adjusted([c.p for c in found], [c.measure for c in found]), strict=True
    ):
        change.p = p
        needed = [change.ratios["p50"], change.by_floor]
        change.verdict = verdict(needed, p) if needed[0] else NOT_SHOWN
    return found


# Bounds


def _adjusted(chances: list[float], measures: list[str]) -> list[float]:
    """The p-values, each adjusted for how many series have that measure.

    The measures of a series go up and down together: three of them are hardly more
    chances to be wrong than one, and to count them as such would hide what is there.
    """
    found = [0.0] * len(chances)
    for measure in set(measures):
        places = [n for n, name in enumerate(measures) if name == measure]
        for n, p in zip(places, holm([chances[n] for n in places]), strict=True):
            found[n] = p
    return found


_Suspect = tuple[str, str, Bound, Ratio, Ratio | None]


def _judge(found: Comparison, pairs: Sequence[_Pair], bounds: Sequence[Bound]) -> None:
    """Look at each bound at each time; what is slower by chance is not slower."""
    if not pairs:
        found.errors.append("no series was measured in both")
    suspects: list[_Suspect] = []
    for limit in bounds:
        suspects += _suspects(found, pairs, limit)
    chances = [max(r.p, by.p if by else 0.0) for *_, r, by in suspects]
    families = [f"{measure} {limit.name}" for measure, _, limit, *_ in suspects]
    adjusted = _adjusted(chances, families)
    for (_, where, limit, slow, by_floor), p in zip(suspects, adjusted, strict=True):
        if slow.low <= 1 or slow.value <= 1 + limit.percent / 100:
            continue
        above = f"above {limit.percent:g} %"
        said = f"{limit.name} of {where}: {times(slow)} times A's, {above}"
        if verdict([slow, by_floor], p) == SLOWER:
            found.failures.append(said)
        elif by_floor and by_floor.low <= 1:
            found.notes.append(f"{said}; but so is the floor's: the machine")
        else:
            found.notes.append(f"{said}; but that may be chance (p {p:.2g})")


def _suspects(
    found: Comparison, pairs: Sequence[_Pair], limit: Bound
) -> Iterator[_Suspect]:
    """The ratios that a bound is about; where there are none, that is told."""
    short = Counter(_where(pair) for pair in pairs if _few(pair, limit))
    least = FEWEST[NAMES[limit.name]]
    found.errors += [f"{limit.name} of {where}: n<{least}" for where in short]
    for pair in pairs:
        if _few(pair, limit):
            continue
        at, where = NAMES[limit.name], f"{_where(pair)}, {pair.measure}"
        old, new = (drawn.found[at][0] for drawn in pair.draws)
        if found_ratio := pair.ratio(limit.name):
            yield pair.measure, where, limit, found_ratio, pair.by_floor(limit.name)
        elif math.isinf(new) and not math.isinf(old):
            never = f"{limit.name} of {where}: it never comes any more"
            found.failures.append(never)


def _few(pair: _Pair, limit: Bound) -> bool:
    return pair.n < FEWEST[NAMES[limit.name]]


def _where(pair: _Pair) -> str:
    return f"{pair.old.adapter} in {pair.old.key}"


def _judge_left(found: Comparison, a: Result, b: Result) -> None:
    found.failures += [change.words for change in found.left if change.appeared]
    for old in a.series:
        new = b.find(old.adapter, old.key)
        if old.samples and new and new.problem and not old.problem:
            found.failures.append(f"{old.adapter} in {old.key}: {new.problem}")


def _left(old: Series, new: Series) -> Iterator[LeftChange]:
    before, after = left_behind(old), left_behind(new)
    for name in LEFT:
        change = LeftChange(
            adapter=old.adapter,
            key=old.key,
            name=name,
            a=before[name],
            b=after[name],
            samples_a=len(old.samples),
            samples_b=len(new.samples),
        )
        if change.a * change.samples_b != change.b * change.samples_a:
            yield change


# What stands in the way of comparing


def _only(a: Result, b: Result) -> Iterator[str]:
    for name, here, other in (("A", a, b), ("B", b, a)):
        for series in here.series:
            if not series.samples:
                continue
            twin = other.find(series.adapter, series.key)
            if twin is None or not twin.samples:
                why = f": {twin.skipped or twin.problem}" if twin else ""
                yield f"Only in {name}: {series.adapter} in {series.key}{why}"


def _differences(
    a: Result, b: Result, both: Sequence[tuple[Series, Series]]
) -> Iterator[str]:
    for field in (*SAME_MACHINE, *SAME_SETTING):
        old, new = getattr(a.env, field), getattr(b.env, field)
        if old != new:
            yield f"{field} differs: A {old or 'unknown'}, B {new or 'unknown'}"
    old_versions, new_versions = _versions(a, both, 0), _versions(b, both, 1)
    for package in sorted(old_versions.keys() | new_versions.keys()):
        old, new = old_versions.get(package, "–"), new_versions.get(package, "–")
        if old != new:
            yield f"versions differ: {package}: A {old}, B {new}"
    for name, result in (("A", a), ("B", b)):
        yield from _doubts(name, result, result.env)
    if any(_processes(s) < FEW_PROCESSES for pair in both for s in pair):
        yield (
            f"with fewer than {FEW_PROCESSES} processes a series does not show how "
            "much processes differ: a difference may be that of two processes"
        )


def _doubts(name: str, result: Result, env: Environment) -> Iterator[str]:
    if not result.complete:
        yield f"{name} was interrupted: not all was measured"
    if env.load and env.cores and env.load[0] > env.cores / 2:
        yield f"{name} was measured on a busy machine: load {env.load[0]:.1f}"


def _versions(
    result: Result, both: Sequence[tuple[Series, Series]], side: int
) -> dict[str, str]:
    found = dict(result.env.packages)
    for pair in both:
        found |= pair[side].versions
    return found


def _processes(series: Series) -> int:
    return len({sample.process for sample in series.samples})


def _drift(changes: Sequence[Change]) -> Iterator[str]:
    """The floor's code is no part of what is compared."""
    moved = [c for c in changes if c.adapter == FLOOR and c.verdict != NOT_SHOWN]
    for change in moved:
        yield (
            f"the machine changed: {FLOOR} itself is {change.verdict} in {change.key}, "
            f"{change.measure}: {times(change.ratios['p50'])}; others are judged by "
            "their ratio to it as well"
        )
    if changes and not any(change.adapter == FLOOR for change in changes):
        yield (
            f"{FLOOR} is not in both: whether the code or the machine changed is "
            f"unknown (p below {ALPHA} is about chance alone)"
        )
