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

from ._results import COUNTS, Result, Series, values
from ._stats import ecdf, percentile
from ._summary import LEFT, in_order, left_behind, slug

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
STAGES = (  # what a stop goes through: the name, from which stamp, to which
    ("until it is seen", "due", "observed", "#56B4E9"),
    ("cleanup", "observed", "cleaned", "#E69F00"),
    ("until it returns", "cleaned", "returned", "#009E73"),
    ("until it is quiet", "returned", "quiet", "#CC79A7"),
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
        yield "stages", "The medians of the stages of a stop", _stages(measured)
    for key, found in measured:
        about = "How many of the samples had returned by then"
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
    axis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(mpl.ticker.NullFormatter())


def _ms(series: Series, measure: str = "return") -> list[float]:
    return [value / 1e6 for value in values(series, measure)]


def _ecdf(key: str, found: list[Series]) -> Figure:
    figure, axes = _figure(f"{key}: stop to return")
    for series in found:
        xs, parts = ecdf(_ms(series))
        xs = [max(x, 1e-3) for x in xs]
        if xs:
            axes.step(
                [xs[0], *xs],
                [0, *parts],
                where="post",
                color=colour(series.adapter),
                label=f"{series.adapter} (n={len(series.samples)})",
                linewidth=2 if series.adapter == "trioagent" else 1.4,
            )
    axes.set_xscale("log")
    _plain(axes.xaxis)
    axes.set_xlabel("milliseconds from the planned stop to the return (log)")
    axes.set_ylabel("part of the samples")
    axes.set_ylim(0, 1.02)
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(loc="best", fontsize=9)
    return figure


def _histogram(key: str, found: list[Series]) -> Figure:
    figure, axes = _figure(
        f"{key}: stop to return", nrows=len(found), sharex=True, squeeze=False
    )
    figure.set_figheight(1.2 + 0.9 * len(found))
    everything = [max(x, 1e-3) for series in found for x in _ms(series)]
    low, high = min(everything, default=1), max(everything, default=1)
    step = (math.log10(max(high, low * 1.01)) - math.log10(low)) / 60
    bins = [low * 10 ** (step * n) for n in range(61)] + [high * 1.0001]
    for series, (axis,) in zip(found, axes, strict=True):
        axis.hist(_ms(series), bins=sorted(set(bins)), color=colour(series.adapter))
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
    return at.value if at else math.nan


def _stages(measured: list[Scene]) -> Figure:
    """Bars of milliseconds; each scenario has its own scale."""
    columns = 2 if len(measured) > 1 else 1
    rows = math.ceil(len(measured) / columns)
    figure, axes = _figure(
        "The stages of a stop, medians in ms", nrows=rows, ncols=columns, squeeze=False
    )
    most = max(len(found) for _, found in measured)
    figure.set_size_inches(SIZE[0] * 1.2, rows * (0.8 + 0.28 * most) + 1.2)
    for axis in axes.flat[len(measured) :]:
        axis.set_axis_off()
    for axis, (key, found) in zip(axes.flat, measured, strict=False):
        names = [series.adapter for series in found]
        lefts = [0.0] * len(found)
        for label, start, end, shade in STAGES:
            widths = [_stage(series, start, end) for series in found]
            axis.barh(names, widths, left=lefts, color=shade, label=label)
            lefts = [a + b for a, b in zip(lefts, widths, strict=True)]
        axis.set_title(key, fontsize=9)
        axis.invert_yaxis()
        axis.tick_params(labelsize=8)
        axis.grid(visible=True, axis="x", alpha=0.2)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def _stage(series: Series, start: str, end: str) -> float:
    """The median of a stage; a stamp that is missing is that of the stage before."""
    spans = []
    for sample in series.samples:
        at = {"due": sample.due}
        for name in ("observed", "cleaned", "returned", "quiet"):
            before = max(at.values())
            stamp = getattr(sample, name)
            at[name] = before if stamp is None else max(before, stamp)
        spans.append((at[end] - at[start]) / 1e6)
    found = percentile(spans, 0.5) if spans else None
    return found.value if found else 0.0


def _left(measured: list[Scene]) -> Figure:
    """Bars of what was left, each adapter's over all scenarios."""
    told = [*COUNTS, "untrue_status", "not_quiet"]
    adapters = list(dict.fromkeys(s.adapter for _, found in measured for s in found))
    sums = {
        adapter: {
            name: sum(
                left_behind(s)[name]
                for _, found in measured
                for s in found
                if s.adapter == adapter
            )
            for name in told
        }
        for adapter in adapters
    }
    figure, axes = _figure("Left behind or untrue, over all samples of all scenarios")
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
    axes.set_xlabel("how many (symmetric log; 0 is none)")
    axes.grid(visible=True, axis="x", alpha=0.2)
    axes.legend(fontsize=9)
    return figure
