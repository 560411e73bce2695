"""The watchdog names who holds the loop."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import trio

from trioagent import Agent, tool
from trioagent.observe.watchdog import Hog, watch_loop
from trioagent.testing import ScriptedModel, call

PATIENCE_SECONDS = 20


async def test_a_tool_that_holds_the_loop_is_named_while_it_does() -> None:
    hogs: list[Hog] = []
    told = threading.Event()

    def tell(hog: Hog) -> None:
        hogs.append(hog)
        if len(hogs) == 2:
            told.set()

    @tool(effect="read")
    async def spin() -> str:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not told.is_set() and time.monotonic() < deadline:
            pass
        return "dizzy"

    agent = Agent(ScriptedModel([call("spin"), "done"]), tools=[spin])
    async with watch_loop(0.05, tell=tell):
        await agent.run("go")
    assert [hog.tool for hog in hogs] == ["spin", "spin"]
    assert "spin" in hogs[0].where
    assert "test_watchdog.py" in hogs[0].where
    assert [hog.seconds for hog in hogs] == [0.05, 0.1]


async def test_what_is_no_tool_is_named_by_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with watch_loop(0.05):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "held the event loop" not in caplog.text and time.monotonic() < deadline:
            pass
    assert "something has held the event loop for 0.1 s, at " in caplog.text


async def test_a_loop_that_turns_is_left_alone_and_the_thread_ends() -> None:
    hogs: list[Any] = []
    async with watch_loop(0.5, tell=hogs.append):
        await trio.sleep(0.05)
    assert hogs == []
    assert not any("watchdog" in t.name for t in threading.enumerate())


async def test_an_error_in_the_block_ends_it_too() -> None:
    with pytest.raises(KeyError):
        async with watch_loop(0.5):
            raise KeyError
    assert not any("watchdog" in t.name for t in threading.enumerate())
    with pytest.raises(ValueError, match="takes seconds above 0"):
        async with watch_loop(0):
            pass
