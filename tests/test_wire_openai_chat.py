"""Recorded answers of Chat Completions servers give what was worked out for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.recordings import check, play
from tests.wire import needs_recordings, read_body, read_cases
from trioagent._ports import Model
from trioagent.models.openai_chat import OpenAIChat

pytestmark = needs_recordings

CASES = [pytest.param(case, id=case["file"]) for case in read_cases("openai-chat")]
SMALL = 6_000  # bytes; one chunk a byte, each a system call or two


def make_model(url: str) -> Model:
    return OpenAIChat("m", base_url=url)


@pytest.mark.parametrize("case", CASES)
async def test_a_recorded_answer_is_read_right(case: dict[str, Any]) -> None:
    check(case, await play(case, make_model))


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if len(read_body(c.values[0])) <= SMALL],  # type: ignore[arg-type]
)
async def test_a_recorded_answer_is_read_right_byte_by_byte(
    case: dict[str, Any],
) -> None:
    check(case, await play(case, make_model, one_byte_a_chunk=True))


def test_all_recordings_are_played() -> None:
    assert len(CASES) >= 57
