"""An event as it stands in a row of a journal: the JSON of a tagged Struct."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from trioagent._errors import StoreError
from trioagent._events import KeptEvent

from ._place import Place

ENCODER = msgspec.json.Encoder()
DECODER: msgspec.json.Decoder[KeptEvent] = msgspec.json.Decoder(KeptEvent)
KINDS = {kind.__name__ for kind in get_args(KeptEvent)}


def encode(event: KeptEvent) -> str:
    """What `decode` makes the same event of."""
    try:
        return ENCODER.encode(event).decode()
    except (TypeError, ValueError) as error:
        kind = type(event).__name__
        raise StoreError(f"this {kind} cannot be written as JSON: {error}") from error


def decode(
    rows: Iterable[tuple[int, str]], place: Place, run_id: str
) -> list[KeptEvent]:
    """The events of a run from its rows, numbered from 1, in order and whole."""
    events: list[KeptEvent] = []
    for n, (seq, event) in enumerate(rows, 1):
        if n != seq:
            what = f"event {n} of the run {run_id!r} is missing"
            raise place.problem("corrupt", what)
        try:
            events.append(DECODER.decode(event))
        except msgspec.DecodeError as error:
            raise _undecodable(place, f"event {n} of {run_id!r}", event) from error
    return events


def _undecodable(place: Place, which: str, event: str) -> StoreError:
    """Of a kind that a later version has made, or broken."""
    try:
        kind = msgspec.json.decode(event, type=dict[str, Any]).get("type")
    except msgspec.DecodeError:
        kind = None
    if isinstance(kind, str) and kind not in KINDS:
        return place.problem("newer", f"{which} is a {kind}, which we do not know")
    return place.problem("corrupt", f"{which} is broken")
