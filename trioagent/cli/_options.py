"""What people type on the command line, and what it means."""

from __future__ import annotations

import importlib
import re
import sys
from argparse import ArgumentTypeError
from typing import Any

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
TIMES = {"": 1, "k": 1_000, "m": 1_000_000}


class UsageError(Exception):
    """The command cannot be carried out as typed. Nothing has happened yet."""


def duration(text: str) -> float:
    """`500ms`, `30s`, `2m` or `1h` in seconds."""
    number, unit = _number_and_unit(text)
    if not number or unit not in SECONDS:
        raise ArgumentTypeError(f"{text!r} is no duration: write 500ms, 30s or 2m")
    return number * SECONDS[unit]


def token_count(text: str) -> int:
    """`2000`, `40k` or `1.5m` as a whole number."""
    number, unit = _number_and_unit(text)
    if not number or unit not in TIMES:
        raise ArgumentTypeError(f"{text!r} is no token count: write 2000 or 40k")
    return round(number * TIMES[unit])


def turn_count(text: str) -> int:
    """A whole number from 1."""
    return count(text, "number of turns")


def count(text: str, what: str = "number") -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no {what}: write 1 or more")
    return int(text)


def call_place(text: str) -> tuple[int, int]:
    """`1.0`: the turn, from 1, and the place in it, from 0."""
    found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", text, re.ASCII)
    if not found:
        raise ArgumentTypeError(f"{text!r} is no call: write turn.position, as in 1.0")
    return int(found[1]), int(found[2])


def _number_and_unit(text: str) -> tuple[float, str]:
    """0 where there is none: no option takes a 0."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]*)", text.strip().lower(), re.ASCII)
    return (float(found[1]), found[2]) if found else (0.0, "")


def file_name(text: str) -> str:
    """A path that a file can have."""
    if text in {"", ":memory:"}:
        raise ArgumentTypeError(f"{text!r} is no file")
    return text


def load(option: str, place: str) -> Any:
    """The object at `module:name`; modules in the current directory are found first."""
    module_name, _, name = place.partition(":")
    if not module_name or not name:
        raise UsageError(f"{option} {place}: write it as module:name")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        raise UsageError(
            f"{option} {place}: there is no module {error.name} here; "
            "is it in the current directory, or installed?"
        ) from None
    try:
        return getattr(module, name)
    except AttributeError:
        raise UsageError(f"{option} {place}: {module_name} has no {name}") from None
