"""Pictures of a result, by matplotlib; each as PNG and as SVG."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # before pyplot would look for a screen
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ._results import Result, Series
from ._stats import ecdf, percentile
from ._summary import ENDS, LEFT, groups, in_order, left_behind, slug

# Okabe and Ito's palette, told apart with any colour vision.
COLOURS = {
    "bare-trio": "#000000",
    "bare-asyncio": "#7F7F7F",
    "trioagent": "#D55E00",
    "openai-agents": "#0072B2",
    "pydantic-ai": "#CC79A7",
    "langgraph": "#009E73",
}
OTHERS = ("#56B4E9", "#E69F00", "#F0E442")
STAGES = (  # up to which stamp; they may come in any order
    ("until it is seen", "observed", "#56B4E9"),
    ("until it is cleaned up", "cleaned", "#E69F00"),
    ("until it returns", "returned", "#009E73"),
    ("until it is quiet", "quiet", "#CC79A7"),
)
SIZE = (9.0, 5.0)
Scene = tuple[str, list[Series]]  # a key, and who was measured there


def draw_all(result: Result, folder: Path) -> list[Path]:
    """Draw all that the result has into `folder`; the files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, _, figure in figures(result):
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            figure.savefig(path, dpi=144)
            written.append(path)
        plt.close(figure)
    return written


def drawings(result: Result) -> Iterator[tuple[str, str, str]]:
    """The name, what it shows, and the SVG of each picture, to stand in a page.

    There are no histograms: an ECDF shows the same, and tails better.
    """
    for name, about, figure in figures(result, histograms=False):
        file = io.StringIO()
        with mpl.rc_context({"svg.hashsalt": name}):
            figure.savefig(file, format="svg", metadata={"Date": None})
        plt.close(figure)
        svg = file.getvalue()
        yield name, about, svg[svg.index("<svg") :]


def figures(
    result: Result, *, histograms: bool = True
) -> Iterator[tuple[str, str, Figure]]:
    """Each picture: a file's name, what it shows, the figure."""
    order = in_order(series.adapter for series in result.series)
    scenes: dict[str, list[Series]] = {}
    for adapter in order:
        for series in result.series:
            if series.adapter == adapter and series.samples:
                scenes.setdefault(series.key, []).append(series)
    keys = list(dict.fromkeys(series.key for series in result.series))
    measured = [(key, scenes[key]) for key in keys if key in scenes]
    for param in ("tools", "depth"):
        yield from _scaling(result, order, param)
    if measured:
        yield "left", "What was left behind, summed over all samples", _left(measured)
        yield (
            "stages",
            "What came when after a stop: medians, each scenario on its own scale",
            _stages(measured),
        )
    for key, found in measured:
        about = "The part of the samples that had returned, and were quiet, by then"
        yield f"ecdf-{slug(key)}", about, _ecdf(key, found)
        if histograms:
            yield f"histogram-{slug(key)}", about, _histogram(key, found)


def colour(adapter: str) -> str:
    """The same for an adapter in all pictures."""
    return COLOURS.get(adapter) or OTHERS[sum(adapter.encode()) % len(OTHERS)]


def _figure(title: str, **options: Any) -> tuple[Figure, Any]:
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained", **options)
    figure.suptitle(title, fontsize=12)
    return figure, axes


def _plain(axis: Any) -> None:
    """Write the numbers of a log axis out: 0.5, 1, 2, and no powers of ten."""
    low, high = axis.get_view_interval()
    subs = (1, 2, 5) if high < 300 * low else (1,)
    axis.set_major_locator(mpl.ticker.LogLocator(subs=subs))
    axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(mpl.ticker.NullFormatter())


def _ms(series: Series, measure: str = "return") -> list[float]:
    """Infinite where it never came: to leave that out would flatter."""
    return [value / 1e6 for group in groups(series, measure) for value in group]


def _ecdf(key: str, found: list[Series]) -> Figure:
    """To the return and to quiet: a quick return may leave work that is not done."""
    figure, axes = _figure(key, ncols=2, sharex=True, sharey=True)
    figure.set_figwidth(SIZE[0] * 1.2)
    for axis, measure in zip(axes, ENDS, strict=True):
        for series in found:
            xs, parts = ecdf(_ms(series, measure))
            xs = [max(x, 1e-3) for x in xs]
            axis.step(
                [*xs[:1], *xs],
                [0, *parts] if xs else [],
                where="post",
                color=colour(series.adapter),
                label=series.adapter + (" (left work)" if _left_work(series) else ""),
                linewidth=2 if series.adapter == "trioagent" else 1.4,
                linestyle="--" if series.adapter.startswith("bare-") else "-",
            )
        axis.set_title(f"stop to {measure}", fontsize=10)
        axis.set_xscale("log")
        axis.set_xlabel("milliseconds from the planned stop (log)")
        axis.set_ylim(0, 1.02)
        axis.grid(visible=True, which="both", alpha=0.2)
        _plain(axis.xaxis)
    axes[0].set_ylabel("part of the samples")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def _left_work(series: Series) -> bool:
    return any(left_behind(series).values())


def _histogram(key: str, found: list[Series]) -> Figure:
    figure, axes = _figure(
        f"{key}: stop to return", nrows=len(found), sharex=True, squeeze=False
    )
    figure.set_figheight(1.2 + 0.9 * len(found))
    times = [x for series in found for x in _ms(series) if math.isfinite(x)]
    everything = [max(x, 1e-3) for x in times]
    low, high = min(everything, default=1), max(everything, default=1)
    step = (math.log10(max(high, low * 1.01)) - math.log10(low)) / 60
    bins = [low * 10 ** (step * n) for n in range(61)] + [high * 1.0001]
    for series, (axis,) in zip(found, axes, strict=True):
        seen = [x for x in _ms(series) if math.isfinite(x)]
        axis.hist(seen, bins=sorted(set(bins)), color=colour(series.adapter))
        axis.set_xscale("log")
        _plain(axis.xaxis)
        axis.set_ylabel(series.adapter, rotation=0, ha="right", va="center", fontsize=9)
        axis.yaxis.set_major_locator(mpl.ticker.MaxNLocator(2, integer=True))
        axis.grid(visible=True, axis="x", alpha=0.2)
    axes[-1][0].set_xlabel("milliseconds from the planned stop to the return (log)")
    return figure


def _scaling(
    result: Result, order: list[str], param: str
) -> Iterator[tuple[str, str, Figure]]:
    """Series that differ in one parameter only, against it."""
    from ._scenarios import SCENARIOS

    curves: dict[tuple[str, str], dict[int, Series]] = {}
    for series in result.series:
        scene = SCENARIOS.get(series.scenario)
        others = {k: v for k, v in series.params.items() if k != param}
        if scene and not others and series.samples:
            at = int(series.params.get(param, getattr(scene, param)))
            curves.setdefault((series.scenario, series.adapter), {})[at] = series
    for scenario in dict.fromkeys(name for name, _ in curves):
        mine = {a: c for (s, a), c in curves.items() if s == scenario and len(c) > 2}
        if mine:
            ordered = [(adapter, mine[adapter]) for adapter in order if adapter in mine]
            title = f"{scenario}: stop to return against {param}"
            yield f"scaling-{scenario}-{param}", title, _curves(title, param, ordered)


def _curves(
    title: str, param: str, found: list[tuple[str, dict[int, Series]]]
) -> Figure:
    figure, axes = _figure(title)
    for adapter, by_size in found:
        sizes = sorted(by_size)
        medians = [_quantile(by_size[size], 0.5) for size in sizes]
        tails = [_quantile(by_size[size], 0.95) for size in sizes]
        axes.plot(sizes, medians, "o-", color=colour(adapter), label=adapter)
        axes.fill_between(sizes, medians, tails, color=colour(adapter), alpha=0.12)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain(axes.xaxis)
    _plain(axes.yaxis)
    axes.set_xlabel(f"{param} (log)")
    axes.set_ylabel("milliseconds (log): median, and up to p95")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(fontsize=9)
    return figure


def _quantile(series: Series, p: float) -> float:
    found = _ms(series)
    at = percentile(found, p) or percentile(sorted(found)[-1:], 0.5)
    return at.value if at and math.isfinite(at.value) else math.nan


def _stages(measured: list[Scene]) -> Figure:
    """When what came, on a line for each adapter; each scenario has its own scale."""
    columns = 2 if len(measured) > 1 else 1
    rows = math.ceil(len(measured) / columns)
    figure, axes = _figure(
        "What came when after a stop: medians in ms, | is the return",
        nrows=rows,
        ncols=columns,
        squeeze=False,
    )
    most = max(len(found) for _, found in measured)
    figure.set_size_inches(SIZE[0] * 1.2, rows * (0.8 + 0.28 * most) + 1.2)
    for axis in axes.flat[len(measured) :]:
        axis.set_axis_off()
    for axis, (key, found) in zip(axes.flat, measured, strict=False):
        wide = _draw_stages(axis, {one.adapter: came(one) for one in found})
        axis.set_title(f"{key} (log)" if wide else key, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(visible=True, axis="x", alpha=0.2)
    keys = [mpl.patches.Patch(color=shade, label=what) for what, _, shade in STAGES]
    figure.legend(handles=keys, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def came(series: Series) -> dict[str, float]:
    """The median instant of each stamp in ms after the stop, in the order they came.

    Infinite where the run mostly did not return, or was not quiet; a stamp that is
    missing otherwise does not exist here, and is left out.
    """
    found = {}
    for _, stamp, _ in STAGES:
        ends = stamp in ENDS.values()
        stamps = [(getattr(s, stamp), s.due) for s in series.samples]
        at = [math.inf if t is None else (t - due) / 1e6 for t, due in stamps]
        known = at if ends else [t for t in at if math.isfinite(t)]
        if median := percentile(known, 0.5) if known else None:
            found[stamp] = median.value
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _draw_stages(axis: Any, by_adapter: dict[str, dict[str, float]]) -> bool:
    """Whether it took a log scale: where one takes far longer than another."""
    shades = {stamp: shade for _, stamp, shade in STAGES}
    times = [t for found in by_adapter.values() for t in found.values()]
    finite = [max(t, 1e-3) for t in times if math.isfinite(t)] or [1.0]
    returns = [found["returned"] for found in by_adapter.values()]
    ends = [max(t, 1e-3) for t in returns if math.isfinite(t)]
    wide = bool(ends) and max(finite) > 50 * min(ends)
    start = min(finite) / 2 if wide else 0.0
    for row, found in enumerate(by_adapter.values()):
        left = start
        for stamp, at in found.items():
            if math.isfinite(at):
                axis.barh(row, max(at - left, 0), left=left, color=shades[stamp])
                left = max(at, left)
        if math.isfinite(found["returned"]):
            axis.plot([max(found["returned"], start)], [row], "k|", ms=16, mew=2)
        never = " and ".join(s for s, at in found.items() if math.isinf(at))
        if never:
            axis.annotate(
                f" never {never}", (left, row), va="center", fontsize=8, weight="bold"
            )
    axis.set_yticks(range(len(by_adapter)), list(by_adapter))
    axis.invert_yaxis()
    if wide:
        axis.set_xscale("log")
        axis.set_xlim(start, max(finite) * 3)
        _plain(axis.xaxis)
    else:
        axis.set_xlim(0, max(finite) * 1.12)
    return wide


def _left(measured: list[Scene]) -> Figure:
    """Bars of what was left, each adapter's over all scenarios."""
    adapters = list(dict.fromkeys(s.adapter for _, found in measured for s in found))
    sums = {
        adapter: {
            name: sum(
                left_behind(s)[name]
                for _, found in measured
                for s in found
                if s.adapter == adapter
            )
            for name in LEFT
        }
        for adapter in adapters
    }
    told = [name for name in LEFT if any(sums[a][name] for a in adapters)]
    none = ", ".join(LEFT[name] for name in LEFT if name not in told)
    title = "Left behind or untrue, over all samples of all scenarios"
    figure, axes = _figure(f"{title}\nby nobody: {none}" if none else title)
    height = 0.8 / len(adapters)
    for number, adapter in enumerate(adapters):
        ys = [row + number * height for row in range(len(told))]
        counts = [sums[adapter][name] for name in told]
        bars = axes.barh(ys, counts, height, color=colour(adapter), label=adapter)
        axes.bar_label(bars, fontsize=7, padding=2)
    figure.set_figheight(1.5 + 0.16 * len(told) * len(adapters))
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(told))])
    axes.set_yticklabels([LEFT[name] for name in told])
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=1)
    axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    axes.set_xlim(
        0, 2.5 * max(1, *(n for sum_ in sums.values() for n in sum_.values()))
    )
    axes.set_xlabel("how many (symmetric log; 0 is none)")
    axes.grid(visible=True, axis="x", alpha=0.2)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return figure
