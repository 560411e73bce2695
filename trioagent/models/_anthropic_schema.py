"""The shape of a final answer, in as much of JSON Schema as Anthropic takes."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_TAKEN = {
    *("type", "title", "description", "enum", "const", "$ref", "$defs"),
    *("properties", "required", "additionalProperties", "items"),
    *("anyOf", "oneOf", "allOf"),
}
_RENAMED = {"oneOf": "anyOf"}
_SOME_VALUES = {
    "minItems": (0, 1),
    "format": (
        *("date", "time", "date-time", "duration", "uuid"),
        *("email", "hostname", "uri", "ipv4", "ipv6"),
    ),
}
_REF = re.compile(r'"#/\$defs/([^"]*)"')


def fit_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema with every object closed, and what the API refuses put into words.

    None where words are not enough: for a mapping with any keys, a value of any kind, a
    tuple, and a type that refers to itself.
    """
    if _refers_to_itself(schema.get("$defs") or {}):
        return None
    try:
        return _fit(schema)
    except _UnfitError:
        return None


class _UnfitError(Exception):
    """Raised and caught in this file only."""


def _fit(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, dict) or not schema:
        raise _UnfitError
    if "$ref" in schema:  # it stands alone
        schema = {key: schema[key] for key in ("$ref", "$defs") if key in schema}
    words = {key: value for key, value in schema.items() if not _is_taken(key, value)}
    fitted = {
        _RENAMED.get(key, key): _fit_part(key, value)
        for key, value in schema.items()
        if key not in words and key != "additionalProperties"
    }
    if words:
        said = (fitted.get("description"), msgspec.json.encode(words).decode())
        fitted["description"] = "\n\n".join(filter(None, said))
    return fitted | _closed(schema)


def _is_taken(key: str, value: Any) -> bool:
    return key in _TAKEN or value in _SOME_VALUES.get(key, ())


def _fit_part(key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):
        return {name: _fit(part) for name, part in value.items()}
    if key in ("anyOf", "oneOf", "allOf"):
        return [_fit(part) for part in value]
    return _fit(value) if key == "items" else value


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """What closes an object; nothing for what is none."""
    if schema.get("type") != "object":
        return {}
    others = schema.get("additionalProperties")
    if isinstance(others, dict) or ("properties" not in schema and others is not False):
        raise _UnfitError
    return {"additionalProperties": False}


def _refers_to_itself(parts: dict[str, Any]) -> bool:
    """Whether some of the parts are left when those that need no other are taken out.

    And then those that needed only these, and so on.
    """
    needs = {
        name: set(_REF.findall(msgspec.json.encode(part).decode()))
        for name, part in parts.items()
    }
    while leaves := [name for name, needed in needs.items() if not needed & set(needs)]:
        for name in leaves:
            del needs[name]
    return bool(needs)
