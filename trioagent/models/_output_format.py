"""The shape of a final answer, as OpenAI's APIs want to be told of it."""

from __future__ import annotations

import re
from typing import Any

from trioagent._ports import OutputSpec

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


def output_format(output: OutputSpec) -> dict[str, Any]:
    """Name, schema, and whether the server may hold the model to it strictly."""
    return {
        "name": _NOT_IN_A_NAME.sub("_", output.name)[:64] or "output",
        "schema": output.schema,
        "strict": _may_be_strict(output.schema),
    }


def _may_be_strict(schema: Any) -> bool:
    """Whether every object in the schema is closed and asks for all of its keys."""
    if isinstance(schema, list):
        return all(map(_may_be_strict, schema))
    if not isinstance(schema, dict):
        return True
    if "properties" in schema or schema.get("type") == "object":
        keys = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False:
            return False
        if set(keys) - set(schema.get("required") or ()):
            return False
        if not all(map(_may_be_strict, keys.values())):
            return False
    rest = (value for key, value in schema.items() if key not in _NO_SCHEMA)
    return all(map(_may_be_strict, rest))


# Under these keys stand names or values, not schemas; `properties` was looked at above.
_NO_SCHEMA = ("properties", "required", "enum", "const", "default", "examples")
