"""Where the recorded answers of providers lie: beside the project, not in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = Path(os.environ.get("TRIOAGENT_WIRE", ROOT.parent / "shared" / "wire"))

needs_recordings = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason="no recordings of providers: set TRIOAGENT_WIRE to the folder of them",
)


def read_cases(api: str) -> list[dict[str, Any]]:
    """What is known of each recording of that API; none where the folder is missing."""
    paths = sorted((FOLDER / api).glob("*.meta.json"))
    return [json.loads(path.read_text()) for path in paths]


def read_body(case: dict[str, Any]) -> bytes:
    path: Path = FOLDER / case["api"] / case["file"]
    return path.read_bytes()
