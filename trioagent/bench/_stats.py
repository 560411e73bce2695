"""Percentiles, how sure they are, and when one series is slower than another.

Nothing here assumes a distribution: times to a stop have long tails and several humps.
The methods, and where each was described:

- A percentile is an order statistic: of n values the one at place ceil(n p). Its
  interval is a pair of order statistics, chosen by the binomial distribution (Conover,
  Practical Nonparametric Statistics, 1999, section 3.2). It takes the values as
  independent; with several processes that is not quite so, and a ratio's interval,
  which knows the processes, is the better judge.
- The ratio of a percentile of two series has a percentile bootstrap interval (Efron and
  Tibshirani, An Introduction to the Bootstrap, 1993). Samples of one process have its
  luck in common (its hash seed, where its memory lies), so with three processes or
  more, processes are drawn first, k - 1 of k, which keeps the variance unbiased with
  few of them (Rao and Wu 1988), and then samples of those. The interval is widened from
  the normal distribution to Student's t with as many degrees of freedom as the
  processes give (Hesterberg 2015). With one or two processes the samples alone are
  drawn, and the interval says nothing of other processes.
- Whether the values of one series tend to be larger: the rank test of Mann and Whitney
  (1947), two-sided, corrected for ties.
- With many series compared at once, p-values are adjusted by Holm (1979).

What no interval knows is a machine that changed between two runs: see `_compare`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Groups = Sequence[Sequence[float]]  # the values of each process

CONFIDENCE = 0.95
ALPHA = 0.05
RESAMPLES = 4_000
FEW_PROCESSES = 3  # fewer cannot tell how much processes differ
# The fewest values of which a percentile is told: about the first for which it has an
# interval at all (0.99**299 < 0.05).
FEWEST = {0.5: 1, 0.9: 30, 0.95: 60, 0.99: 300, 0.999: 3_000}

FASTER = "faster"
SLOWER = "slower"
NOT_SHOWN = "no difference shown"


class Percentile(msgspec.Struct, frozen=True):
    """A percentile and its interval; None twice where there are too few values."""

    value: float
    low: float | None = None
    high: float | None = None


class Ratio(msgspec.Struct, frozen=True):
    """How many times as long, with its interval and the chance of it if it were 1."""

    value: float
    low: float
    high: float
    p: float


def percentile(
    values: Sequence[float], p: float, confidence: float = CONFIDENCE
) -> Percentile | None:
    """A percentile by its order statistic; None where there are too few values."""
    if len(values) < FEWEST[p]:
        return None
    found = np.sort(np.asarray(values, float))
    value = float(found[_place(len(found), p)])
    ranks = _interval_ranks(len(found), p, confidence)
    if ranks is None:
        return Percentile(value)
    return Percentile(value, float(found[ranks[0] - 1]), float(found[ranks[1] - 1]))


def _place(n: int, p: float) -> int:
    """Of the percentile in the sorted values, from 0."""
    return max(math.ceil(n * p - 1e-9), 1) - 1


@lru_cache(maxsize=256)
def _interval_ranks(n: int, p: float, confidence: float) -> tuple[int, int] | None:
    """The order statistics, from 1, that hold the percentile between them.

    Each end may miss it in half of the cases that are allowed. Where even the last
    value misses it more often, the other end gets what is left: so an interval of p99
    begins with 299 values and not with 368.
    """
    below = _binomial(n, p)[:n]  # [k]: the chance that at most k values are below
    above = 1 - below  # [k]: that more than k are
    wrong, half = 1 - confidence, (1 - confidence) / 2
    low_may, high_may = max(half, below[0]), max(half, above[-1])
    if high_may > half:
        low_may = wrong - high_may
    elif low_may > half:
        high_may = wrong - low_may
    low = int(np.searchsorted(below, low_may, side="right"))
    high = n + 1 - int(np.searchsorted(above[::-1], high_may, side="right"))
    return (low, high) if 1 <= low < high <= n else None


def _binomial(n: int, p: float) -> Values:
    """The distribution function of the number of successes, from 0 to n."""
    k = np.arange(1, n + 1)
    log_choose = np.concatenate(([0.0], np.cumsum(np.log(n + 1 - k) - np.log(k))))
    successes = np.arange(n + 1)
    logs = log_choose + successes * math.log(p) + (n - successes) * math.log1p(-p)
    found: Values = np.minimum(np.cumsum(np.exp(logs)), 1.0)
    return found


# Resampling


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The percentiles of a series, and of many others that might have been measured."""

    freedom: int  # degrees of it
    found: Mapping[float, tuple[float, Values]]


def resample(groups: Groups, percentiles: Sequence[float], seed: str) -> Draws | None:
    """Draw processes, then samples; None without values. The same seed draws the same.

    A percentile of n values drawn with replacement is the value at the place of an
    order statistic of n uniform numbers, which has a beta distribution: so a resample
    takes one random number and not n, with the same result.
    """
    kept = [np.asarray(group, float) for group in groups if len(group)]
    if not kept:
        return None
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    values = np.concatenate(kept)
    order = np.argsort(values, kind="stable")
    values = values[order]
    whose = np.repeat(np.arange(len(kept)), [len(group) for group in kept])[order]
    told = [p for p in percentiles if len(values) >= FEWEST[p]]
    drawn = _draw(rng, whose, len(kept), told)
    return Draws(
        freedom=(len(kept) if len(kept) >= FEW_PROCESSES else len(values)) - 1,
        found={
            p: (float(values[_place(len(values), p)]), values[places])
            for p, places in zip(told, drawn, strict=True)
        },
    )


def _draw(
    rng: np.random.Generator,
    whose: npt.NDArray[np.int64],
    processes: int,
    percentiles: Sequence[float],
) -> list[npt.NDArray[np.int64]]:
    """For each percentile, the place in the sorted values that each resample gives."""
    n = len(whose)
    places = [_place(n, p) + 1 for p in percentiles]
    parts = [rng.beta(place, n - place + 1, RESAMPLES) for place in places]
    if processes < FEW_PROCESSES:
        return [np.minimum((part * n).astype(np.int64), n - 1) for part in parts]
    found = [np.zeros(RESAMPLES, np.int64) for _ in parts]
    equal = [1 / processes] * processes
    often = rng.multinomial(processes - 1, equal, size=RESAMPLES)
    kinds, which = np.unique(often, axis=0, return_inverse=True)
    which = which.reshape(-1)
    ends = np.cumsum(np.bincount(which))[:-1]
    for kind, here in zip(kinds, np.split(np.argsort(which), ends), strict=True):
        upto = np.cumsum(kind[whose])
        for part, place in zip(parts, found, strict=True):
            place[here] = np.searchsorted(upto, part[here] * upto[-1], side="left")
    return found


def ratio(
    p: float, over: Sequence[Draws | None], under: Sequence[Draws | None]
) -> Ratio | None:
    """The product of the percentiles of `over` by that of `under`.

    One of each is how many times as long; two are a ratio of ratios. None where one is
    not there, has too few values, never ended or is not above 0.
    """
    parts = [
        (sign, draws.found[p], draws.freedom)
        for sign, several in ((1, over), (-1, under))
        for draws in several
        if draws is not None and p in draws.found
    ]
    if len(parts) < len(over) + len(under):
        return None
    if not all(0 < value < math.inf for _, (value, _), _ in parts):
        return None
    value = math.exp(sum(sign * math.log(value) for sign, (value, _), _ in parts))
    if not all(np.all((v > 0) & np.isfinite(v)) for _, (_, v), _ in parts):
        return Ratio(value, 0.0, math.inf, 1.0)  # it may as well never end
    logs = np.stack([sign * np.log(drawn) for sign, (_, drawn), _ in parts])
    return _interval(value, logs, [freedom for *_, freedom in parts])


def _interval(value: float, logs: Values, freedoms: Sequence[int]) -> Ratio:
    spread = logs.var(axis=1, ddof=1)
    total = float(spread.sum())
    if total == 0:  # all values are the same
        return Ratio(value, value, value, float(value == 1))
    # As many as Welch (1947) and Satterthwaite give a sum of variances.
    shares = [v * v / max(f, 1) for v, f in zip(spread, freedoms, strict=True)]
    freedom = max(int(total * total / sum(shares)), 1)
    tail = NormalDist().cdf(-student_quantile((1 + CONFIDENCE) / 2, freedom))
    ends = np.quantile(logs.sum(axis=0), [tail, 1 - tail])
    low, high = (float(end) for end in np.exp(ends))
    p = student_p(math.log(value) / math.sqrt(total), freedom)
    return Ratio(value, min(low, value), max(high, value), p)


# Tests


def student_p(t: float, freedom: int) -> float:
    """The chance of a t at least that far from 0, on either side.

    By the finite sums for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and
    26.7.4); above 200 of them the normal distribution, which then is as good.
    """
    if freedom > 200:
        return math.erfc(abs(t) / math.sqrt(2))
    angle = math.atan(abs(t) / math.sqrt(freedom))
    odd = freedom % 2
    term = total = math.cos(angle) if odd else 1.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    if not odd:
        inside = math.sin(angle) * total
    elif freedom == 1:
        inside = 2 * angle / math.pi
    else:
        inside = 2 / math.pi * (angle + math.sin(angle) * total)
    return min(max(1 - inside, 0.0), 1.0)


@lru_cache(maxsize=256)
def student_quantile(p: float, freedom: int) -> float:
    """The t that is not passed with chance p, for p of 0.5 and more."""
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if student_p(middle, freedom) > 2 * (1 - p)
            else (low, middle)
        )
    return high


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float:
    """The chance that one of two series tends to be larger by so much, on either side.

    Exact where one has at most 8 values and none is there twice; else by the normal
    approximation with its corrections for ties and continuity.
    """
    n, m = len(a), len(b)
    if not n or not m:
        return 1.0
    _, where, times = np.unique(
        np.concatenate((np.asarray(a, float), np.asarray(b, float))),
        return_inverse=True,
        return_counts=True,
    )
    ranks = np.cumsum(times) - (times - 1) / 2
    u = float(ranks[where.reshape(-1)[:n]].sum()) - n * (n + 1) / 2
    if min(n, m) <= 8 and times.max() == 1:
        return _exact_p(round(max(u, n * m - u)), n, m)
    ties = float((times.astype(float) ** 3 - times).sum())
    total = n + m
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:  # all values are the same
        return 1.0
    z = (abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return min(math.erfc(z / math.sqrt(2)), 1.0)


def _exact_p(u: int, n: int, m: int) -> float:
    """Of all orders of n and m values, twice the part with a U of at least `u`.

    How many orders have each U are the coefficients of a product of (1 - x**(m + i)) by
    (1 - x**i) for i from 1 to n.
    """
    ways = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for k in range(n * m, m + i - 1, -1):
            ways[k] -= ways[k - m - i]
        for k in range(i, n * m + 1):
            ways[k] += ways[k - i]
    return min(2 * sum(ways[u:]) / sum(ways), 1.0)


def holm(chances: Sequence[float]) -> list[float]:
    """p-values made larger, so that all of them together err no more often than one."""
    adjusted = [1.0] * len(chances)
    worst = 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        worst = max(worst, min((len(chances) - rank) * chances[place], 1.0))
        adjusted[place] = worst
    return adjusted


def verdict(ratios: Sequence[Ratio | None], p: float, alpha: float = ALPHA) -> str:
    """Faster or slower only where all ratios say so, and the p-value as well.

    `p` is what `holm` made of the larger of the rank test's and the ratios'.
    """
    known = [ratio for ratio in ratios if ratio is not None]
    if known and p < alpha:
        if all(ratio.low > 1 for ratio in known):
            return SLOWER
        if all(ratio.high < 1 for ratio in known):
            return FASTER
    return NOT_SHOWN


def ecdf(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Each value that was seen, and the part of all that is not above it.

    Values that are infinite count in the part and are not told: the curve ends below 1.
    """
    found, times = np.unique(np.asarray(values, float), return_counts=True)
    parts = np.cumsum(times) / max(len(values), 1)
    finite = np.isfinite(found)
    return found[finite].tolist(), parts[finite].tolist()
