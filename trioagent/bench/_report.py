"""A result as one page with everything in it, and as a short table for a README."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from html import escape

from ._results import Environment, Result
from ._summary import (
    FLOOR,
    LEFT,
    SHOWN,
    Row,
    Scenario,
    duration,
    footnotes,
    headline,
    left_words,
    slug,
    span,
    summarise,
    tail,
    times,
    versions_of,
)

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
STYLE = """
:root { color-scheme: light dark; --line: #8886; --bad: #c0392b; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 66rem;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; border-top: 1px solid var(--line);
  padding-top: 1rem; font-size: 1.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; font-size: 13px;
  font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { vertical-align: bottom; white-space: normal; max-width: 6rem; }
th:first-child, td:first-child, .words td, .words th { text-align: left; }
.words td { white-space: normal; }
td.bad { color: var(--bad); font-weight: 700; }
tr.first td { border-top: 2px solid var(--line); }
.note { margin: .3rem 0; } .dim { opacity: .75; }
figure { margin: 1rem 0; background: #fff; color: #000; padding: .5rem; }
figure svg { width: 100%; height: auto; } figcaption { font-size: 13px; }
code { overflow-wrap: anywhere; }
@media print { body { margin: 0; max-width: none; font-size: 10pt; }
  table { font-size: 8pt; } th, td { padding: .1rem .3rem; }
  .wide { overflow: visible; }
  section, table, figure { break-inside: avoid; } h2 { break-after: avoid; } }
"""
METHOD = (
    "Each adapter runs in processes of its own. In each sample one run is begun, and "
    "stopped once by another thread, at an instant drawn before; all adapters take "
    "turns, sample by sample. Times count from the instant the stop was planned for, "
    "not from the one at which a busy process got round to it."
)
MEANING = (
    ("observe", "the first tool saw the stop, or the server saw the close"),
    ("return", "control was back with who awaited the run"),
    ("quiet", "no task, thread, process or open request of the run was left"),
    ("[95 %]", "the interval of the median, without assuming a distribution"),
    (f"× {FLOOR}", "the ratio of medians, and its bootstrap interval by processes"),
    ("alive, open", "there when the run returned"),
    ("late effects", "changes to the world that came after the return"),
    ("cleanups cut", "begun, and never done"),
    ("late requests, tokens", "begun, or shown, after the framework was told to stop"),
    (
        "untrue statuses",
        "the run's own report was wrong, or it names an effect neither as done nor as "
        "uncertain that has happened",
    ),
    ("not quiet", "something was still there when the bench had watched long enough"),
)
LIMITS = (
    "A percentile is told from so many samples on that it has an interval: 30 for p90, "
    "300 for p99.",
    "On few processors the adapter, its control thread and the server share them; "
    "ratios to the floor of the same run hold better than times.",
    "The bare loops do what somebody writes by hand for this one scenario. They keep "
    "no record of it.",
    "An interrupted write gets 2 s to be confirmed by trioagent's default limits, "
    "before it is called uncertain.",
)


def page(result: Result) -> str:
    """The whole page; it needs nothing from elsewhere."""
    scenes = summarise(result)
    drawn = _draw(result)
    body = "\n".join(
        [
            "<h1>How runs stop</h1>",
            f"<p>{escape(headline(result))}</p>",
            f"<p>{escape(METHOD)}</p>",
            *_general(drawn),
            *(
                _scenario(scene, drawn.get(f"ecdf-{slug(scene.key)}", ""))
                for scene in scenes
            ),
            *_about(result),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>How runs stop · {escape(result.created[:10])}</title>"
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _draw(result: Result) -> dict[str, str]:
    """The pictures by their names; none without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return {}
    plots = importlib.import_module("._plots", __package__)
    return {
        name: f"<figure>{svg}<figcaption>{escape(about)}</figcaption></figure>"
        for name, about, svg in plots.drawings(result)
    }


def _general(drawn: dict[str, str]) -> Iterator[str]:
    """The pictures of all scenarios together."""
    if not drawn:
        yield "<p class=dim>No pictures: pip install 'trioagent[plots]'</p>"
    yield from (text for name, text in drawn.items() if not name.startswith("ecdf"))


def _scenario(scene: Scenario, picture: str) -> str:
    measured = [row for row in scene.rows if row.samples]
    parts = [f"<section><h2>{escape(scene.key)}</h2>"]
    if measured:
        parts += [_times(measured), _left(measured)]
    parts += [f"<p class=note>{escape(line)}</p>" for line in footnotes(scene)]
    return "\n".join([*parts, "</section>", picture])


def _times(rows: list[Row]) -> str:
    heads = ("", "stop to", "n", "p50", "[95 %]", "p90", "p99", "max", f"× {FLOOR}")
    lines = []
    for row in rows:
        for measure in SHOWN:
            found = row.times.get(measure)
            cells = ["–"] * 6 + [""]
            if found:
                against = "1" if row.adapter == FLOOR else times(found.to_floor)
                cells = [
                    str(found.n),
                    duration(found.p50.value),
                    span(found.p50),
                    tail(found, 0.9),
                    tail(found, 0.99),
                    duration(found.max),
                    against if measure != "observe" else "",
                ]
            first = measure == SHOWN[0]
            name = row.adapter if first else ""
            lines.append(_line([name, measure, *cells], "first" if first else ""))
    return _table(heads, lines)


def _left(rows: list[Row]) -> str:
    if not any(row.left_work for row in rows):
        return "<p class=note>Nobody left anything, and every status was true.</p>"
    lines = []
    for row in rows:
        cells = [
            f'<td class="{"bad" if row.left[name] else "dim"}">{row.left[name]}</td>'
            for name in LEFT
        ]
        lines.append(f"<tr><td>{escape(row.adapter)}</td>{''.join(cells)}</tr>")
    return _table(("left, over all samples", *LEFT.values()), lines)


def _table(heads: Iterable[str], lines: Iterable[str], kind: str = "wide") -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    rows = "\n".join(lines)
    return (
        f"<div class={kind}><table><thead><tr>{head}</tr></thead>\n"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _line(cells: Iterable[str], kind: str = "") -> str:
    inner = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr class="{kind}">{inner}</tr>' if kind else f"<tr>{inner}</tr>"


def _about(result: Result) -> Iterator[str]:
    yield "<section><h2>What the columns mean</h2>"
    yield _table(("column", "meaning"), map(_line, MEANING), "words")
    yield "</section><section><h2>Limits of what can be said</h2><ul>"
    yield from (f"<li>{escape(text)}</li>" for text in LIMITS)
    yield "</ul></section><section><h2>Where, and of what</h2>"
    versions = versions_of(result).items()
    yield _table(("", ""), map(_line, [*_machine(result.env), *versions]), "words")
    yield f"<p>Again: <code>{escape(result.command)}</code></p></section>"


def _machine(env: Environment) -> Iterator[tuple[str, str]]:
    yield "python", f"{env.implementation} {env.python}"
    yield "platform", env.platform
    yield "processor", f"{env.cores} × {env.cpu}; used: {env.affinity or 'all'}"
    yield "load at the start", " ".join(map(str, env.load))
    yield (
        "governor, clock",
        f"{env.governor or 'not visible'}, {env.clock or 'unknown'}",
    )
    yield "garbage collection", env.gc


# For a README


def readme_table(result: Result) -> str:
    """A short table in Markdown: the median return, and what was left."""
    scenes = [scene for scene in summarise(result) if scene.fastest]
    names = list(dict.fromkeys(r.adapter for s in scenes for r in s.rows if r.samples))
    lines = [
        f"| stop → return, median; what was left | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for scene in scenes:
        by_name = {row.adapter: row for row in scene.rows}
        cells = (_readme_cell(by_name.get(name), scene) for name in names)
        lines.append(f"| `{scene.key}` | {' | '.join(cells)} |")
    versions = versions_of(result)
    told = "; ".join(f"{name}: {versions[name]}" for name in names if versions[name])
    lines += [
        "",
        f"Measured {result.created[:10]} on {result.env.cores} × "
        f"{result.env.cpu or 'an unnamed processor'}, "
        f"Python {result.env.python}. {told}. "
        "**Bold** is the fastest return, whoever it is. Behind a time stands what all "
        "the samples together left behind, or reported untruly.",
    ]
    return "\n".join(lines)


def _readme_cell(row: Row | None, scene: Scenario) -> str:
    if row is None or not row.samples:
        return "–"
    median = duration(row.times["return"].p50.value)
    if row.adapter == scene.fastest:
        median = f"**{median}**"
    left = left_words(row.left_work)
    return f"{median}; of {row.samples}: {left}" if left else f"{median}"


def replace_between_markers(text: str, table: str) -> str:
    """The text with the table between its markers; ValueError where there are none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"it has no {BEGIN} and {END} to write between")
    return f"{before}{begin}\n{table}\n{end}{after}"
