"""What a resumed run asks next is, byte for byte, what the live one asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.loopback import Answer, open_loopback
from tests.wire import needs_recordings, read_body, read_cases
from trioagent import Agent, Model, Tool, ToolEnded, ToolNotRun, retries
from trioagent.models.anthropic import AnthropicMessages
from trioagent.models.gemini import Gemini
from trioagent.models.openai_chat import OpenAIChat
from trioagent.models.openai_responses import OpenAIResponses
from trioagent.stores.sqlite import SqliteStore

pytestmark = needs_recordings

MAKE: dict[str, Callable[[str], Model]] = {
    "openai-chat": lambda url: OpenAIChat("m", base_url=url, api_key=""),
    "openai-responses": lambda url: OpenAIResponses("m", base_url=url, api_key=""),
    "anthropic-messages": lambda url: AnthropicMessages("m", base_url=url, api_key=""),
    "gemini-generate-content": lambda url: Gemini("m", base_url=url, api_key=""),
}
CASES = [
    pytest.param(api, case, id=f"{api}/{case['file']}")
    for api in MAKE
    for case in read_cases(api)
    if case["status"] == 200 and not case["expected"]["error"]
    if case["expected"]["tool_calls"]
]
NO = Answer([b"{}"], status=400, headers={})


def tools_of(case: dict[str, Any]) -> list[Tool]:
    async def answer(arguments: dict[str, Any]) -> str:
        return f"it is é {sorted(arguments)}"

    names = {str(called["name"]) for called in case["expected"]["tool_calls"]}
    return [
        Tool(name, answer, schema={"type": "object"}, effect="read")  # type: ignore[arg-type]
        for name in sorted(names)
    ]


@pytest.mark.parametrize(("api", "case"), CASES)
async def test_a_resumed_run_asks_what_the_live_one_asked(
    api: str, case: dict[str, Any], tmp_path: Path
) -> None:
    headers = {"content-type": "text/event-stream"}
    if not re.search(r"\.sse$", case["file"]):
        headers = {"content-type": "application/json"}
    recorded = Answer([read_body(case)], status=200, headers=headers)

    async with SqliteStore(tmp_path / "journal.db") as store:

        def agent(url: str) -> Agent:
            tools = tools_of(case)
            model = MAKE[api](url)
            return Agent(model, tools=tools, store=store, retry=retries(0))

        # One server: what is carried for a provider goes to the same address only.
        async with open_loopback(recorded, NO, NO) as server:
            with trio.fail_after(30):
                outcome = await agent(server.url).run("go", run_id="r")
                if len(server.requests) == 1:
                    pytest.skip(f"nothing is asked after it: {outcome.stop}")
                events = await store.load("r")
                assert any(isinstance(e, ToolEnded | ToolNotRun) for e in events)
                await agent(server.url).resume("r")
            _, live, resumed = server.requests
            assert resumed.body == live.body
