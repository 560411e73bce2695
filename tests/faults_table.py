"""Writes docs/faults.md: `python -m tests.faults_table`.

Each fault of the chaos server is played to each adapter, and, where the official openai
package is installed, to that. `test_llmock` holds the adapters' columns to the truth.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from tests.chaos import (
    ADAPTERS,
    FAULTS,
    Fault,
    LLMock,
    ask_as_told,
    behaviors_for,
    in_words,
    open_llmock,
)
from trioagent._ports import ToolSpec

PATH = Path(__file__).parent.parent / "docs" / "faults.md"
HEAD = """\
# Faults

What becomes of a request when the provider fails. A chaos server ([llmock]) plays each
fault to each adapter over a real connection; `tests/test_llmock.py` holds these columns
to what happens, and `python -m tests.faults_table` writes them.

An adapter asks once and does not retry. `ModelUnavailable` says that asking again may
help, `ModelRefused` that it will not; the word after it is the provider's own, or ours
for a broken stream. A caller who does what the error says, and no more, has a clean
verdict from the server in every row but "quota used up", where the server holds that a
quota comes back in a second.

- A broken stream is never an answer. The text before the break is shown, then comes the
  error, and no tool call of such a reply comes out.
- A call that the model wrote badly is handed on as it is: a run tells the model what is
  wrong with it, and runs nothing. Gemini sends calls as objects and whole: they cannot
  be cut, so what is broken there is the text before the call.
- Anthropic's word for `content_filter` is `refusal`; the server's Responses surface has
  none.

The last column is for comparison: the official SDK's Chat Completions stream with its
default settings, two retries of its own among them, played once and not tested.

[llmock]: https://pypi.org/project/llmock/

"""


def read() -> Mapping[str, Mapping[str, str]]:
    """The cells of the table as it stands, by fault and column."""
    return _parse(PATH.read_text(encoding="utf-8"))


@functools.cache
def _parse(text: str) -> dict[str, dict[str, str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    if not rows:
        return {}
    head, _, *body = rows
    return {
        row[0]: dict(zip(head[1:], (c.strip("`") for c in row[1:]), strict=True))
        for row in body
    }


def ask_sdk(llmock: LLMock, fault: Fault) -> str:
    """What the official SDK makes of it, as it comes: it retries twice by itself."""
    import openai

    llmock.play(*fault.behaviors)
    with openai.OpenAI(api_key="none", base_url=f"{llmock.url}/v1") as client:
        try:
            said = _read_stream(client, fault)
        except Exception as error:  # whatever it is, it goes in the table
            said = type(error).__name__
    retries = llmock.attempts() - 1
    return said + (f" (attempt {retries + 1})" if retries else "")


def _read_stream(client: Any, fault: Fault) -> str:
    """The answer, put together in the way of the SDK's own examples."""
    reason = None
    calls: dict[int, list[str]] = {}
    for chunk in client.chat.completions.create(
        model="gpt-4o",
        messages=[{"role": "user", "content": "look up the weather"}],
        tools=[_declare(tool) for tool in fault.request.tools] or None,
        stream=True,
    ):
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or ():
                name, arguments = call.function.name, call.function.arguments
                calls.setdefault(call.index, [f" {name}("]).append(arguments or "")
    if reason is None:
        return "no error, finish_reason None"
    return f"answer, {reason}" + "".join("".join([*c, ")"]) for c in calls.values())


def _declare(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.parameters}
    return {"type": "function", "function": function}


async def ask_ours(llmock: LLMock) -> dict[str, list[str]]:
    """The first end of each fault with each adapter."""
    rows: dict[str, list[str]] = {}
    for fault in FAULTS:
        rows[fault.name] = []
        for adapter in ADAPTERS:
            llmock.play(*behaviors_for(fault, adapter))
            tries = await ask_as_told(adapter.make(llmock.url), fault.request)
            rows[fault.name].append(in_words(tries[0]))
    return rows


def main() -> None:
    """Play everything, and write the table."""
    columns = [a.name for a in ADAPTERS]
    with open_llmock() as llmock:
        rows = trio.run(ask_ours, llmock)
        if importlib.util.find_spec("openai"):
            columns.append(f"openai SDK {importlib.metadata.version('openai')}")
            for fault in FAULTS:
                rows[fault.name].append(ask_sdk(llmock, fault))
    lines = [["fault", *columns], ["---"] * (len(columns) + 1)]
    lines += [[name, *(f"`{c}`" for c in cells)] for name, cells in rows.items()]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(HEAD + table + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
