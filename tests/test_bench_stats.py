"""The statistics of the bench: against scipy, and against what is known for sure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
from scipy import stats as scipy_stats

from trioagent.bench._stats import (
    FASTER,
    NOT_SHOWN,
    SLOWER,
    ecdf,
    holm,
    mann_whitney,
    percentile,
    ratio,
    resample,
    student_p,
    student_quantile,
    verdict,
)

SHAPES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "exponential": lambda r, n: r.exponential(1.0, n),
    "two humps": lambda r, n: (
        np.where(r.random(n) < 0.5, 1.0, 5.0) + r.normal(0, 0.1, n)
    ),
    "long tail": lambda r, n: r.lognormal(0.0, 1.5, n),
}


def test_a_percentile_is_one_of_the_values_and_has_enough_of_them() -> None:
    values = [float(v) for v in range(1, 301)]
    found = percentile(values, 0.5)
    assert found is not None
    assert found.value == 150
    assert percentile(values, 0.99) is not None
    assert percentile(values[:299], 0.99) is None, "no p99 under 300 samples"
    assert percentile(values, 0.999) is None, "no p99.9 under 3,000"
    alone = percentile([7.0], 0.5)
    assert alone is not None
    assert (alone.value, alone.low, alone.high) == (7.0, None, None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "p"), [(30, 0.5), (200, 0.5), (200, 0.9), (400, 0.99)])
def test_the_interval_holds_the_true_percentile_as_often_as_it_says(
    shape: str, n: int, p: float
) -> None:
    chance = np.random.default_rng(7)
    truth = float(np.quantile(SHAPES[shape](chance, 2_000_000), p))
    held = 0
    for _ in range(1_000):
        found = percentile(list(SHAPES[shape](chance, n)), p)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    assert held >= 935, "95 %, less what a thousand trials may be off by"


def test_the_interval_is_that_of_the_binomial_distribution() -> None:
    n, p = 100, 0.5
    found = percentile([float(v) for v in range(1, n + 1)], p)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    low, high = int(found.low), int(found.high)
    covered = scipy_stats.binom.cdf(high - 1, n, p) - scipy_stats.binom.cdf(
        low - 1, n, p
    )
    assert covered >= 0.95
    narrower = scipy_stats.binom.cdf(high - 2, n, p) - scipy_stats.binom.cdf(low, n, p)
    assert narrower < 0.95


@pytest.mark.parametrize("n", [3, 8, 40, 300])
@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rounded", [True, False])
def test_the_rank_test_agrees_with_scipy(n: int, shift: float, rounded: bool) -> None:
    chance = np.random.default_rng(n)
    a = chance.normal(0, 1, n)
    b = chance.normal(shift, 1, n + 2)
    if rounded:  # so there are ties
        a, b = a.round(1), b.round(1)
    ties = len({*a, *b}) < 2 * n + 2
    method = "exact" if n <= 8 and not ties else "asymptotic"
    expected = scipy_stats.mannwhitneyu(a, b, alternative="two-sided", method=method)
    assert mann_whitney(list(a), list(b)) == pytest.approx(expected.pvalue, rel=0.02)


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 60])
def test_students_distribution_agrees_with_scipy(freedom: int) -> None:
    for t in (0.1, 1.0, 2.5, 8.0):
        expected = 2 * scipy_stats.t.sf(t, freedom)
        assert student_p(t, freedom) == pytest.approx(expected, rel=1e-4)
    expected = scipy_stats.t.ppf(0.975, freedom)
    assert student_quantile(0.975, freedom) == pytest.approx(expected, rel=1e-3)


def test_the_interval_of_a_ratio_agrees_with_scipys_bootstrap() -> None:
    chance = np.random.default_rng(3)
    a, b = chance.lognormal(0, 0.3, 200), chance.lognormal(0.2, 0.3, 200)
    mine = ratio(
        0.5, [resample([list(b)], [0.5], "b")], [resample([list(a)], [0.5], "a")]
    )
    assert mine is not None
    theirs = scipy_stats.bootstrap(
        (a, b),
        lambda x, y, axis=-1: np.median(y, axis=axis) / np.median(x, axis=axis),
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert mine.value == pytest.approx(np.median(b) / np.median(a), rel=0.02)
    assert mine.low == pytest.approx(theirs.low, abs=0.03)
    assert mine.high == pytest.approx(theirs.high, abs=0.03)


def test_processes_that_differ_widen_the_interval() -> None:
    chance = np.random.default_rng(5)
    alike = [list(chance.normal(10, 1, 60)) for _ in range(5)]
    apart = [list(chance.normal(10 + shift, 1, 60)) for shift in (-2, -1, 0, 1, 2)]
    floor = [list(chance.normal(10, 1, 60)) for _ in range(5)]
    widths = []
    for groups in (alike, apart):
        found = ratio(
            0.5, [resample(groups, [0.5], "x")], [resample(floor, [0.5], "f")]
        )
        assert found is not None
        widths.append(found.high - found.low)
    assert widths[1] > 3 * widths[0]


def test_the_same_twice_is_rarely_called_different() -> None:
    chance = np.random.default_rng(11)
    wrong = 0
    for trial in range(150):
        # Five processes, each with its own luck.
        a, b = (
            [
                list(chance.lognormal(luck, 0.25, 40))
                for luck in chance.normal(0, 0.05, 5)
            ]
            for _ in range(2)
        )
        found = ratio(
            0.5, [resample(b, [0.5], f"b{trial}")], [resample(a, [0.5], f"a{trial}")]
        )
        assert found is not None
        p = max(found.p, mann_whitney([*chain(*a)], [*chain(*b)]))
        wrong += verdict([found], p) != NOT_SHOWN
    assert wrong <= 15, "5 % is what it says; a few more may be chance"


@pytest.mark.parametrize(("factor", "word"), [(1.3, SLOWER), (1 / 1.3, FASTER)])
def test_30_percent_are_seen(factor: float, word: str) -> None:
    chance = np.random.default_rng(13)
    a = [list(chance.lognormal(0, 0.3, 40)) for _ in range(5)]
    b = [list(factor * chance.lognormal(0, 0.3, 40)) for _ in range(5)]
    found = ratio(0.5, [resample(b, [0.5], "b")], [resample(a, [0.5], "a")])
    assert found is not None
    p = max(found.p, mann_whitney([*chain(*a)], [*chain(*b)]))
    assert verdict([found], p) == word


def test_holms_adjustment_is_that_of_its_definition() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])


def test_an_ecdf_ends_below_1_where_some_never_came() -> None:
    xs, parts = ecdf([1.0, 2.0, 2.0, math.inf])
    assert xs == [1.0, 2.0]
    assert parts == [0.25, 0.75]


def test_a_seed_gives_the_same_resamples() -> None:
    values = [random.Random(n).random() for n in range(50)]
    first, second = (resample([values], [0.5], "seed") for _ in range(2))
    assert first is not None
    assert second is not None
    assert list(first.found[0.5][1]) == list(second.found[0.5][1])
