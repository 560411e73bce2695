"""Keys: checked before they are used, hidden wherever a text goes out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Shorter ones are no secrets, and hiding them would garble the message.
_SHORTEST_SECRET = 8
_KEY = re.compile(r"[!-~]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")


def check_key(key: str, *, source: str) -> str:
    """The key, if it can stand in a header; `ValueError` without the key if not.

    An HTTP library would find out too, and print the key.
    """
    if not _KEY.fullmatch(key):
        raise ValueError(
            f"{source} holds a character that no key has: white space, a line end, a "
            "control character or a letter outside ASCII. Was a line end copied along?"
        )
    return key


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers by lower-case name; `ValueError` without the value if one is bad."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"headers: {name!r} is not a header name")
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(
                f"headers: the value of {name!r} holds a character that a header "
                "cannot hold, or begins or ends with white space, or is empty"
            )
    return {name.lower(): value for name, value in headers.items()}


def hide(text: str, secrets: Iterable[str], *, longest: int = 500) -> str:
    """The text without the secrets, and not longer than `longest` characters."""
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "[hidden]")
    return text if len(text) <= longest else text[: longest - 1] + "…"
