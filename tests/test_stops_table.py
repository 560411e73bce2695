"""docs/stops.md says what a stop leaves of each kind of tool."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import pytest
import trio

from .stopping import KINDS
from .stops_table import HEAD, PATH, measure, row

HALF = len(KINDS) // 2


@pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")
@pytest.mark.parametrize("kinds", [KINDS[:HALF], KINDS[HALF:]], ids=["half", "rest"])
def test_what_a_stop_leaves_is_what_the_page_says(kinds: Sequence[str]) -> None:
    cells = trio.run(partial(measure, kinds))
    page = PATH.read_text(encoding="utf-8")
    assert page.startswith(HEAD)
    assert not any("NOT NAMED" in cell for cell in cells.values())
    for kind in kinds:
        assert row(cells, kind) in page.splitlines()
