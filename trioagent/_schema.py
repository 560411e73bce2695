"""A signature becomes a Struct, a type becomes a JSON Schema, both read by msgspec."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from enum import Enum
from functools import partial
from typing import Annotated, Any, get_type_hints

import msgspec

from ._ports import OutputSpec


def arguments_of(
    fn: Callable[..., Any], name: str, told: Mapping[str, str], skip: type
) -> tuple[type[msgspec.Struct], str | None]:
    """The Struct that holds the arguments of `fn`, and the parameter of type `skip`.

    `told` says what each parameter is, in words. Raises TypeError, naming the
    parameter, where a model could not fill it.
    """
    try:
        hints = get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"@tool {name}: {error}; its type hints must name things at module level"
        ) from None
    context: str | None = None
    fields: list[tuple[str, Any, Any]] = []
    for param in inspect.signature(fn).parameters.values():
        if param.kind not in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY):
            raise TypeError(f"@tool {name}: a model cannot fill *{param.name}")
        if hints.get(param.name) is skip:
            context = param.name
        elif param.name not in hints:
            raise TypeError(f"@tool {name}: parameter {param.name!r} needs a type hint")
        else:
            hint = hints[param.name]
            if text := told.get(param.name):
                hint = Annotated[hint, msgspec.Meta(description=text)]
            fields.append((param.name, hint, _default(param)))
    try:
        struct = msgspec.defstruct(
            name, fields, kw_only=True, forbid_unknown_fields=True, frozen=True
        )
        schema_of(struct)
    except (TypeError, ValueError) as error:
        raise TypeError(f"@tool {name}: {error}") from None
    return struct, context


def _default(param: inspect.Parameter) -> Any:
    """The parameter's default, copied for each call where it could be changed."""
    if param.default is param.empty:
        return msgspec.NODEFAULT
    if isinstance(param.default, (*_FIXED, type(None))):
        return param.default
    return msgspec.field(default_factory=partial(deepcopy, deepcopy(param.default)))


_FIXED = (str, int, float, bytes, tuple, frozenset, Enum)


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type; of a Struct, its own object and not a reference."""
    (schema,), parts = msgspec.json.schema_components(
        (kind,), ref_template="#/$defs/{name}"
    )
    ref = schema.get("$ref", "").removeprefix("#/$defs/")
    refers_to_itself = f"'#/$defs/{ref}'" in str(parts)
    if ref in parts and not refers_to_itself:
        schema = parts.pop(ref)
        schema.pop("title")  # our name for it, which says nothing to a model
    return {**schema, "$defs": parts} if parts else schema


class AnswerType:
    """What a final answer must be: it tells the model, and reads what comes."""

    def __init__(self, kind: Any) -> None:
        try:
            schema = schema_of(kind)
            # Providers ask for an object: anything else goes into a field of one.
            self._wrapped = schema.get("type") != "object" and "$ref" not in schema
            if self._wrapped:
                fields = [("answer", kind)]
                kind = msgspec.defstruct("Answer", fields, forbid_unknown_fields=True)
                schema = schema_of(kind)
        except TypeError as error:
            raise TypeError(f"Agent(output=…): {error}") from None
        self._object = kind
        self.spec = OutputSpec(name=kind.__name__, schema=schema)

    def read(self, text: str) -> Any:
        """The answer in `text`; raises ValueError, in words for the model, if not."""
        try:
            value = msgspec.json.decode(text, type=self._object)
        except Exception as error:  # noqa: BLE001 - too deep, or a type of the user's
            raise ValueError(
                f"Your answer could not be read: {error}. Answer again, with nothing"
                " but JSON that fits the schema."
            ) from None
        return value.answer if self._wrapped else value
