"""The bench measures real processes: it sees what is planted, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from trioagent.bench._driver import Plan, Session, adapters_from, draw, pythons_from
from trioagent.bench._results import Result, count, read_result, untrue, values
from trioagent.bench._scenarios import FULL, QUICK, parse_scene, parse_scenes

TOY = [sys.executable, str(Path(__file__).with_name("bench_toy.py"))]
ROOT = Path(__file__).parents[1]
ASYNC = [parse_scene("tool_async")]


async def measure(*toy: str, samples: int = 30, **options: object) -> Result:
    """Some stops of a toy."""
    plan = Plan(
        scenes=ASYNC,
        adapters=["toy"],
        commands={"toy": [*TOY, *toy]},
        samples=samples,
        processes=3,
        warmup=1,
        **options,  # type: ignore[arg-type]
    )
    result = Result()
    await Session(plan, result, lambda *_: None).run()
    assert result.complete
    [series] = result.series
    assert series.problem == ""
    assert len(series.samples) == samples
    return result


async def test_a_slow_down_of_30_percent_is_caught_and_the_same_again_is_not() -> None:
    compare = pytest.importorskip("trioagent.bench._compare")
    pytest.importorskip("numpy")
    before, same = await measure("20"), await measure("20")
    slower = await measure("26")
    bounds = [compare.bound("p50:20%")]
    found = compare.compare(before, slower, bounds)
    assert found.exit_code == compare.SLOW, found
    assert any("p50 of toy" in failure for failure in found.failures), found.failures
    found = compare.compare(before, same, bounds)
    assert (found.exit_code, found.failures) == (0, [])
    assert {change.verdict for change in found.changes} == {"no difference shown"}


async def test_a_late_effect_and_who_is_left_to_do_it_are_counted() -> None:
    [clean] = (await measure("1", samples=3)).series
    [dirty] = (await measure("1", "late", samples=3)).series
    assert (count(clean, "late_effects"), count(clean, "alive_tasks")) == (0, 0)
    assert untrue(clean) == 0
    assert (count(dirty, "late_effects"), count(dirty, "alive_tasks")) == (3, 3)
    assert untrue(dirty) == 3, "an effect that the run does not name"
    assert min(values(dirty, "quiet")) > min(values(dirty, "return")) + 15e6


async def test_what_does_not_answer_or_is_not_there_ends_its_own_series_only() -> None:
    plan = Plan(
        scenes=ASYNC,
        adapters=["dies", "nowhere", "toy"],
        commands={
            "dies": [sys.executable, "-c", "print('hello')"],
            "nowhere": ["/nowhere/at-all"],
            "toy": [*TOY, "0"],
        },
        samples=2,
        processes=1,
        warmup=0,
    )
    result = Result()
    await Session(plan, result, lambda *_: None).run()
    dies, nowhere, toy = result.series
    assert dies.problem
    assert "No such file" in nowhere.problem
    assert (toy.problem, len(toy.samples)) == ("", 2)


async def test_a_missing_package_is_skipped() -> None:
    plan = Plan(
        scenes=ASYNC,
        adapters=["langgraph"],
        pythons={"langgraph": _bare_python()},
        samples=2,
        processes=2,
    )
    result = Result()
    await Session(plan, result, lambda *_: None).run()
    [series] = result.series
    assert (series.problem, series.samples) == ("", [])
    assert series.skipped.startswith("not installed: ")


def _bare_python() -> str:
    """This one, if it lacks the package."""
    try:
        import langgraph  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        return sys.executable
    pytest.skip("langgraph is installed here")


async def test_cancelled_in_the_middle_it_keeps_what_it_has_and_leaves_nothing() -> (
    None
):
    plan = Plan(
        scenes=ASYNC, adapters=["bare-trio"], samples=1_000, processes=1, warmup=0
    )
    result = Result()
    with trio.CancelScope() as scope:
        taken = 0

        def tick(*_: object) -> None:
            nonlocal taken
            taken += 1
            if taken == 3:
                scope.cancel()

        await Session(plan, result, tick).run()
    assert scope.cancelled_caught
    assert not result.complete
    assert len(result.series[0].samples) == 3
    assert bench_processes(os.getpid()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("number", "kept"), [(signal.SIGINT, True), (signal.SIGKILL, False)]
)
def test_a_bench_that_is_ended_leaves_no_process(
    tmp_path: Path, number: signal.Signals, kept: bool
) -> None:
    pytest.importorskip("numpy")
    file = tmp_path / "r.json"
    words = (
        "bench run tool_async tool_subprocess --warmup 1 --adapter bare-trio --adapter"
    )
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "trioagent",
            *words.split(),
            "trioagent",
            "-o",
            str(file),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        start_new_session=True,
    ) as bench:
        assert bench.stderr is not None
        said = iter(bench.stderr.readline, "")
        assert "tool_async: trioagent\n" in said, "each is told as it begins"
        end = time.monotonic() + 30
        while not (started := bench_processes(bench.pid)) or len(started) < 3:
            assert time.monotonic() < end
            time.sleep(0.05)  # another process sets no Event
        time.sleep(1)  # in the middle of it
        bench.send_signal(number)
        code = bench.wait(20)
    while left := [pid for pid in started if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end + 10, left
        time.sleep(0.05)  # as above
    assert code == (130 if kept else -number)
    assert file.exists() == kept
    if kept:
        result = read_result(file)
        assert not result.complete
        assert result.series[0].samples


def bench_processes(owner: int) -> list[int]:
    """Processes of a bench, and what they have started, below one process."""
    found, above = [], [owner]
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if stat[0] != "Z":
                parents[int(entry.name)] = int(stat[1])
    for pid in above:  # which grows on the way
        below = [child for child, parent in parents.items() if parent == pid]
        above += below
        found += below
    return found


def test_all_adapters_are_stopped_at_the_same_instants() -> None:
    import random

    scene = parse_scene("tool_async")
    first, second = (random.Random("1 tool_async 0") for _ in range(2))
    delays = [draw(scene, first) for _ in range(50)]
    assert delays == [draw(scene, second) for _ in range(50)]
    assert 5 <= min(delays) < max(delays) <= 60


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tool_asink", "no scenario 'tool_asink': there are"),
        ("tool_async:tools", "'tools' is no parameter=value"),
        ("tool_async:toolz=3", "no parameter 'toolz'"),
        ("tool_async:tools=many", "tool_async"),
        ("tool_async:tools=0", "tools=0 is not in 1 to"),
        ("tool_async:source=cat", "tool_async"),
        ("tool_async:mode=ignores", "no mode 'ignores': there are none"),
    ],
)
def test_a_scenario_that_cannot_be_had_says_why(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_scene(text)


def test_each_listed_scenario_can_be_had_once() -> None:
    for listed in (FULL, QUICK):
        assert len(parse_scenes(listed, {})) == len(listed)


@pytest.mark.parametrize("text", ["nobody", "=x", "new=", "trioagent=x"])
def test_an_adapter_that_cannot_be_had_says_why(text: str) -> None:
    with pytest.raises(ValueError, match=r"adapter|NAME=COMMAND"):
        adapters_from([text])


@pytest.mark.parametrize("text", ["bare-trio", "nobody=/bin/sh", "bare-trio=/nowhere"])
def test_an_interpreter_that_cannot_be_had_says_why(text: str) -> None:
    with pytest.raises(ValueError, match="--python"):
        pythons_from([text])
