"""What is said about a server when something is wrong: short, and without secrets."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

SHORTEST_SECRET = 4  # shorter ones cannot be told from other text
LAST_WORDS = 1000  # characters
SAID = ". On "


class ServerError(RuntimeError):
    """A call that failed after it was sent: what the server has done is unknown."""


class Scrubber:
    """Takes the values of headers and of the environment out of a text."""

    def __init__(self, values: Iterable[str]) -> None:
        # "Bearer abc" may come back whole, or as abc.
        parts = {part for value in values for part in (value, value.split(" ")[-1])}
        long_enough = (part for part in parts if len(part) >= SHORTEST_SECRET)
        self._secrets = sorted(long_enough, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text


def innermost(error: BaseException | None) -> BaseException | None:
    """The first error in groups of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def in_words(error: BaseException) -> str:
    """An error of somebody else's, also in a group."""
    error = innermost(error) or error
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def said(text: str, what: str = "stderr") -> str:
    """The end of what a server wrote, to stand behind a sentence."""
    text = text.strip()
    if not text:
        return ""
    cut = "…" if len(text) > LAST_WORDS else ""
    return f"{SAID}{what}: {cut}{text[-LAST_WORDS:]}"


def without_last_words(text: str) -> str:
    """The sentence alone: what a server wrote may be long, and is nothing for a log."""
    return text.partition(SAID)[0]


def plain_url(url: str) -> str:
    """A URL without what may be a secret: user, password, query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
