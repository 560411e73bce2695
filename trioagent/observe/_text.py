"""Texts of a run as they stand on a line, and cannot command a terminal."""

from __future__ import annotations

from datetime import datetime

from trioagent._events import Usage

# What a terminal would obey: the text is the model's, the screen is not.
UNPRINTABLE = dict.fromkeys({*range(32), *range(127, 160)} - {ord("\n"), ord("\t")})


def printable(text: str) -> str:
    """The text without characters that command a terminal."""
    return text.translate(UNPRINTABLE)


def one_line(text: str, most: int = 400) -> str:
    """The text so that it can stand in a row, and cannot command a terminal."""
    return " ".join(printable(text[: 2 * most]).split())[:most]


def local_time(created: str, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A moment of the journal by the clock on the wall here."""
    try:
        return datetime.fromisoformat(created).astimezone().strftime(form)
    except ValueError:
        return one_line(created, 20)


def tokens(usage: Usage) -> str:
    """What a reply or a run took, where that is known."""
    if usage.total_tokens is None:
        return ""
    return f"tokens: {usage.input_tokens or 0} in, {usage.output_tokens or 0} out"


def short_number(number: float) -> str:
    """`950`, `12.3k` or `1.2M`."""
    for least, size, unit in ((1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if number >= least:
            return f"{number / size:.1f}{unit}"
    return f"{number:g}"
