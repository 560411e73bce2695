"""Results of the bench: kept whole, compared with care, shown without loss."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from trioagent.bench._compare import CANNOT, SLOW, bound, compare
from trioagent.bench._report import page, readme_table, replace_between_markers
from trioagent.bench._results import (
    BadResult,
    Environment,
    Result,
    Sample,
    Series,
    json_schema,
    read_result,
    write_csv,
    write_result,
)
from trioagent.bench._stats import NOT_SHOWN, SLOWER
from trioagent.bench._summary import number as written, summarise
from trioagent.cli import main

SCHEMA = Path(__file__).parents[1] / "docs" / "bench-result.schema.json"
P50 = [bound("p50:20%")]


def a_series(
    adapter: str,
    *,
    seed: int = 0,
    factor: float = 1.0,
    n: int = 200,
    scenario: str = "tool_async",
    **left: int,
) -> Series:
    """Some 300 µs from the stop to the return; each process has luck of its own."""
    chance = random.Random(f"{adapter} {seed}")
    lucks = [chance.gauss(0, 0.03) for _ in range(5)]
    samples = []
    for number in range(n):
        spent = int(300_000 * factor * chance.lognormvariate(lucks[number % 5], 0.25))
        samples.append(
            Sample(
                process=number % 5,
                due=1_000,
                issued=1_100,
                observed=1_000 + spent // 2,
                cleaned=1_000 + spent // 2,
                returned=1_000 + spent,
                quiet=1_000 + spent,
                status="stopped",
            )
        )
    for name, value in left.items():
        setattr(samples[0], name, value)
    return Series(
        adapter=adapter,
        scenario=scenario,
        samples=samples,
        processes=5,
        versions={"trio": "0.35.0"},
    )


def a_result(*series: Series, **environment: Any) -> Result:
    env = Environment(python="3.11.7", cores=2, cpu="some <b>cpu</b>", **environment)
    return Result(
        created="2026-11-30T12:00:00+00:00",
        command="trioagent bench run",
        env=env,
        series=list(series),
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    result = a_result(a_series("bare-trio"), a_series("trioagent", late_effects=2))
    write_result(result, tmp_path / "new" / "r.json")
    assert read_result(tmp_path / "new" / "r.json") == result
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["r.json"]


def test_the_published_schema_is_that_of_the_code_and_holds_for_a_result() -> None:
    published = json.loads(SCHEMA.read_text())
    assert published == json_schema(), "write docs/bench-result.schema.json anew"
    written = msgspec.to_builtins(a_result(a_series("trioagent", n=3)))
    jsonschema.validate(written, published)
    written["series"][0]["samples"][0]["due"] = "noon"
    with pytest.raises(jsonschema.ValidationError, match="noon"):
        jsonschema.validate(written, published)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is no result of `trioagent bench`"),
        ("[]", "is no result of `trioagent bench`"),
        ('{"schema": 99}', "schema 99 is newer than this trioagent reads"),
        ('{"schema": 1, "series": 3}', "is no result of `trioagent bench`"),
    ],
)
def test_a_file_that_is_no_result_says_so(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(BadResult, match=re.escape(problem)):
        read_result(path)


def test_csv_has_a_row_for_each_sample_and_all_its_stamps() -> None:
    file = io.StringIO()
    write_csv(a_result(a_series("bare-trio", n=2), a_series("trioagent", n=3)), file)
    table = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert len(table) == 5
    row = table[-1]
    assert row["adapter"] == "trioagent"
    assert int(row["return_ns"]) == int(row["returned"]) - int(row["due"])
    assert set(Sample.__struct_fields__) <= row.keys()


# Comparing


def test_30_percent_slower_is_caught_and_exits_with_3() -> None:
    a = a_result(a_series("bare-trio"), a_series("trioagent"))
    b = a_result(
        a_series("bare-trio", seed=1), a_series("trioagent", seed=1, factor=1.3)
    )
    found = compare(a, b, P50)
    assert found.exit_code == SLOW
    assert any("trioagent" in line for line in found.failures)
    verdicts = {(c.adapter, c.measure): c.verdict for c in found.changes}
    assert verdicts["trioagent", "return"] == SLOWER
    assert verdicts["bare-trio", "return"] == NOT_SHOWN
    assert compare(a, b).exit_code == 0, "no bound, no failure"


def test_the_same_again_shows_no_difference() -> None:
    wrong = 0
    for seed in range(30):
        a, b = (
            a_result(a_series("bare-trio", seed=s), a_series("trioagent", seed=s))
            for s in (2 * seed, 2 * seed + 1)
        )
        found = compare(a, b, [bound("p50:5%")])
        wrong += bool(found.failures) or any(
            change.verdict != NOT_SHOWN for change in found.changes
        )
    assert wrong <= 4


def test_a_machine_that_was_slower_is_not_held_against_the_code() -> None:
    a = a_result(a_series("bare-trio"), a_series("trioagent"))
    b = a_result(
        a_series("bare-trio", seed=1, factor=1.4),
        a_series("trioagent", seed=1, factor=1.4),
    )
    found = compare(a, b, P50)
    ours = [c for c in found.changes if c.adapter == "trioagent"]
    assert {change.verdict for change in ours} == {NOT_SHOWN}
    assert not any("trioagent" in failure for failure in found.failures)
    assert any("so is the floor's" in note for note in found.notes)


@pytest.mark.parametrize(
    "name", ["late_effects", "alive_threads", "cut_cleanups", "late_requests"]
)
def test_what_is_left_now_and_was_not_before_is_a_failure(name: str) -> None:
    a, b = a_result(a_series("trioagent")), a_result(a_series("trioagent", **{name: 1}))  # type: ignore[arg-type]  # the names are the test
    assert compare(a, b, P50).exit_code == SLOW
    [change] = compare(a, b).left
    assert change.appeared
    assert compare(b, a, P50).exit_code == 0, "it went away"


def test_chance_above_a_bound_is_not_told_as_if_it_were_news() -> None:
    a, b = a_series("trioagent", n=300), a_series("trioagent", n=300, seed=1)
    for sample in b.samples[:4]:  # so p99 is above the bound, and means nothing
        sample.returned = sample.quiet = 9_000_000
    found = compare(a_result(a), a_result(b), [bound("p99:20%")])
    assert found.exit_code == 0
    assert found.notes == []


def test_too_few_samples_for_a_bound_are_no_silent_pass() -> None:
    a, b = a_result(a_series("trioagent")), a_result(a_series("trioagent", seed=1))
    found = compare(a, b, [bound("p99:20%")])
    assert found.exit_code == CANNOT
    assert any("n<300" in error for error in found.errors)


def test_other_machines_and_versions_are_told() -> None:
    a = a_result(a_series("trioagent"))
    b = a_result(a_series("trioagent"), platform="another")
    b.series[0].versions = {"trio": "0.36.0"}
    warnings = "\n".join(compare(a, b).warnings)
    assert "platform" in warnings
    assert "trio: A 0.35.0, B 0.36.0" in warnings


@pytest.mark.parametrize("text", ["p99", "p98:3%", "p99:x%", "p99:20", "20%", ""])
def test_a_bound_that_is_none_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="such as p99:20%"):
        bound(text)


# Showing


def test_a_run_that_never_returned_is_slower_than_any_that_did() -> None:
    series = a_series("langgraph", n=40)
    for sample in series.samples[:25]:
        sample.returned = sample.quiet = None
    [scenario] = summarise(a_result(a_series("trioagent", n=40), series))
    rows = {row.adapter: row for row in scenario.rows}
    assert rows["langgraph"].times["return"].p50.value == float("inf")
    assert scenario.fastest == "trioagent"


def test_pictures_hide_nothing_that_never_came_or_came_after_the_return() -> None:
    plots = pytest.importorskip("trioagent.bench._plots")
    hasty, mute = a_series("langgraph", n=40), a_series("bare-asyncio", n=40)
    for early, silent in zip(hasty.samples, mute.samples, strict=True):
        early.cleaned = early.quiet = 900_000_000
        silent.quiet = None
    order = list(plots.came(hasty))
    assert order.index("returned") < order.index("cleaned"), "it returned first"
    assert plots.came(mute)["quiet"] == float("inf"), "and not at once"
    assert set(plots._ms(mute, "quiet")) == {float("inf")}
    names = [name for name, *_ in plots.drawings(a_result(hasty, mute))]
    assert names == ["left", "stages", "ecdf-tool-async"]


def test_a_small_ratio_keeps_its_digits() -> None:
    assert [written(v) for v in (0.0, 0.00108, 0.5, 12.34, 790.4)] == [
        "0.00",
        "0.0011",
        "0.50",
        "12.3",
        "790",
    ]


def test_the_page_has_all_in_it_and_believes_no_text() -> None:
    pytest.importorskip("matplotlib")
    evil = a_series("<script>alert(1)</script>", n=30, late_effects=3)
    text = page(a_result(a_series("bare-trio", n=30), evil))
    assert "<script>" not in text
    assert "some <b>" not in text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    assert text.count("<svg") >= 3
    assert "late effects</th>" in text
    assert '<td class="bad">3</td>' in text


def test_the_page_says_it_where_another_is_first() -> None:
    text = page(a_result(a_series("trioagent"), a_series("langgraph", factor=0.5)))
    assert "Fastest return: langgraph" in text


def test_the_readme_gets_its_table_between_the_markers_and_nothing_else_changes() -> (
    None
):
    result = a_result(a_series("bare-trio"), a_series("trioagent", late_effects=4))
    table = readme_table(result)
    assert "4 late effects" in table
    assert "2026-11-30" in table
    before = "a\n<!-- bench:begin -->\nbygone\n<!-- bench:end -->\nb\n"
    after = replace_between_markers(before, table)
    assert after.startswith("a\n<!-- bench:begin -->\n")
    assert after.endswith("\n<!-- bench:end -->\nb\n")
    assert "bygone" not in after
    with pytest.raises(ValueError, match="bench:begin"):
        replace_between_markers("none here", table)


# On the command line


def test_the_command_line_compares_reports_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    write_result(a_result(a_series("bare-trio"), a_series("trioagent")), a)
    slow = a_series("trioagent", seed=1, factor=1.3, late_effects=1)
    write_result(a_result(a_series("bare-trio", seed=1), slow), b)
    assert main(["bench", "compare", a, b]) == 0
    assert main(["bench", "compare", a, b, "--fail-above", "p50:20%"]) == 3
    out = capsys.readouterr().out
    assert "FAILED: p50 of trioagent" in out
    assert "ROSE FROM NOTHING: late effects" in out
    assert main(["bench", "compare", a, a, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exit_code"] == 0
    assert main(["bench", "compare", a, b, "--fail-above", "p99"]) == 2
    assert main(["bench", "report", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err

    assert main(["bench", "report", b]) == 0
    assert "late" in capsys.readouterr().out
    readme = tmp_path / "README.md"
    readme.write_text("<!-- bench:begin --><!-- bench:end -->")
    words = ["--html", "p.html", "--plots", "pics", "--csv", "t.csv", "--readme"]
    places = [str(tmp_path / w) if "." in w or w == "pics" else w for w in words]
    assert main(["bench", "report", b, *places, str(readme)]) == 0
    assert "trioagent" in readme.read_text()
    pictures = {path.suffix for path in (tmp_path / "pics").iterdir()}
    assert pictures == {".png", ".svg"}
    readme.write_text("no markers")
    assert main(["bench", "report", b, "--readme", str(readme)]) == 2


def test_the_doctor_and_the_list_speak(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "doctor"]) == 0
    assert "timers" in capsys.readouterr().out
    assert main(["bench", "doctor", "--json"]) == 0
    names = [finding["name"] for finding in json.loads(capsys.readouterr().out)]
    assert {"processors", "load", "clock", "numpy"} <= set(names)
    assert main(["bench", "list"]) == 0
    assert "tool_fanout" in capsys.readouterr().out
    assert main(["bench", "list", "--json"]) == 0
    assert "bare-trio" in json.loads(capsys.readouterr().out)["adapters"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nothing_such"], "no scenario 'nothing_such'"),
        (["--adapter", "nobody"], "no adapter 'nobody'"),
        (["--source", "cat"], "Invalid"),
        (["--affinity", "x"], "--affinity x"),
        (["--affinity", "9999"], "--affinity 9999"),
        (["--tools", "100000"], "tools=100000 is not in"),
    ],
)
def test_a_bench_that_cannot_be_run_says_why_before_it_begins(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "run", *words]) == 2
    assert problem in capsys.readouterr().err
