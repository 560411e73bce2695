"""The examples run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAMS = sorted(p for p in (ROOT / "examples").glob("*.py") if p.stem != "__init__")


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_an_example_runs_without_a_key(path: Path) -> None:
    command = [sys.executable, "-m", f"examples.{path.stem}"]
    if path.stem.startswith("pytest_"):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(path),
        ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
