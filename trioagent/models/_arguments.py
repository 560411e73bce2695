"""The arguments of a tool call, as JSON text."""

from __future__ import annotations

from typing import Any

import msgspec


def arguments_text(value: Any) -> str:
    """The arguments, or a piece of them, as JSON text; some servers send objects."""
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def arguments_object(text: str) -> Any:
    """The arguments for an API that takes nothing but objects: as they are, if whole.

    Others are shown to the model as what it wrote.
    """
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return {"INVALID_JSON": text} if text.strip() else {}
    return msgspec.Raw(text.encode())


def whole_arguments(text: str, *, cut: bool) -> str:
    """No text, and `null`, mean no arguments; in a reply that was cut, a cut."""
    return "{}" if text.strip() in ("", "null") and not cut else text
