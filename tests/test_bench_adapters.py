"""Each adapter in its own process: what it leaves is seen, what it says is checked."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from trioagent.bench._driver import Plan, Session
from trioagent.bench._results import COUNTS, Result, Series, count, unfinished, untrue
from trioagent.bench._scenarios import FULL, parse_scenes
from trioagent.bench.adapters import ADAPTERS

PEERS = {
    "openai-agents": "agents",
    "pydantic-ai": "pydantic_ai",
    "langgraph": "langgraph",
}
NODE = Path(__file__).parents[1] / "examples" / "bench_adapter.mjs"


async def measure(
    adapter: str, *scenes: str, samples: int = 2, command: list[str] | None = None
) -> list[Series]:
    plan = Plan(
        scenes=parse_scenes(scenes, {}),
        adapters=[adapter],
        commands={adapter: command} if command else {},
        samples=samples,
        processes=1,
        warmup=0,
    )
    result = Result()
    await Session(plan, result, lambda *_: None).run()
    return result.series


def left(series: Series) -> dict[str, int]:
    found = {name: count(series, name) for name in COUNTS}
    found |= {"untrue": untrue(series), "not quiet": unfinished(series)}
    return {name: number for name, number in found.items() if number}


@pytest.mark.parametrize("adapter", ["bare-trio", "trioagent"])
async def test_on_trio_nothing_is_left_in_any_scenario_and_every_status_is_true(
    adapter: str,
) -> None:
    # A thousand tools are for a longer run.
    scenes = [name for name in FULL if "1000" not in name]
    for series in await measure(adapter, *scenes, samples=1):
        if adapter == "bare-trio" and series.scenario == "mcp_tool":
            assert "no MCP" in series.skipped
            continue
        assert (series.key, series.skipped, series.problem) == (series.key, "", "")
        [sample] = series.samples
        assert (series.key, left(series), sample.untrue) == (series.key, {}, "")
        assert sample.returned is not None
        assert sample.quiet is not None
        assert sample.due <= sample.issued
        assert sample.returned <= sample.quiet
        if series.scenario != "stop_race_finish":  # which may be over before its stop
            assert sample.issued <= sample.returned


async def test_what_asyncio_leaves_behind_is_seen() -> None:
    names = ("tool_async", "tool_thread", "tool_subprocess")
    clean, thread, process = await measure("bare-asyncio", *names)
    assert left(clean) == {}
    assert left(thread) == {"alive_threads": 2, "late_effects": 2}
    assert left(process) == {"alive_processes": 2, "not quiet": 2}


@pytest.mark.parametrize("source", ["thread", "signal", "deadline", "outer"])
async def test_a_stop_is_timed_from_wherever_it_comes(source: str) -> None:
    for adapter in ("bare-trio", "bare-asyncio", "trioagent"):
        [series] = await measure(adapter, f"tool_async:source={source}")
        assert (series.problem, left(series)) == ("", {})
        statuses = {sample.status for sample in series.samples}
        assert statuses == {"timed_out" if source == "deadline" else "stopped"}
        for sample in series.samples:
            assert sample.returned is not None
            assert 0 < sample.returned - sample.due < 1e9


@pytest.mark.parametrize("adapter", PEERS)
async def test_a_peer_stops_a_tool_and_a_stream(adapter: str) -> None:
    if importlib.util.find_spec(PEERS[adapter]) is None:
        pytest.skip(f"{adapter} is not installed: pip install 'trioagent[peers]'")
    names = ("tool_async", "model_stream", "tool_http_write", "stop_before_start")
    for series in await measure(adapter, *names):
        assert (series.skipped, series.problem) == ("", "")
        assert (series.key, unfinished(series), untrue(series)) == (series.key, 0, 0)


async def test_an_adapter_in_another_language_is_measured_like_the_others() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    tools, thread = await measure(
        "node", "tool_fanout", "tool_thread", command=[node, str(NODE)]
    )
    assert (tools.problem, left(tools), len(tools.samples)) == ("", {}, 2)
    assert thread.skipped


def test_each_adapter_says_what_it_measures_and_has_a_file() -> None:
    folder = Path(sys.modules["trioagent.bench.adapters"].__file__ or "").parent
    for name, (module, pins) in ADAPTERS.items():
        assert (folder / f"{module}.py").is_file(), name
        assert name not in PEERS or all(pins.values()), f"{name} is pinned"
