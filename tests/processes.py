"""Processes of tests, which end with the block that started them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parent.parent
PATIENCE_SECONDS = 30


@contextmanager
def python(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """A process of ours, which is gone when the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", *argv],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            yield process
            assert process.stdin
            process.stdin.close()
    finally:
        process.kill()


@contextmanager
def open_bank() -> Iterator[str]:
    """The URL of a bank of one's own."""
    with python("tests.bank") as process:
        assert process.stdout
        yield process.stdout.readline().strip()
        process.kill()


def charges(bank: str, least: int = 0) -> list[str]:
    answer = httpx.get(f"{bank}/charges", params={"least": least}, timeout=30)
    return answer.text.split()


def last_words(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return out.split()
