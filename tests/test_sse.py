"""Server-sent events are decoded the same way however their bytes are cut."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable
from typing import Any

import pytest

from tests.wire import FOLDER, needs_recordings
from trioagent._errors import ModelUnavailable
from trioagent.models._sse import Comment, ErrorLine, Event, Item, SSEDecoder

BOM = b"\xef\xbb\xbf"


def decode(pieces: Iterable[bytes]) -> list[Item]:
    decoder = SSEDecoder()
    items = [item for piece in pieces for item in decoder.feed(piece)]
    return items + decoder.end()


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[i : i + size] for i in range(0, len(body), size)]


def texts(items: Iterable[Item]) -> list[str]:
    return [item.data.decode() for item in items if isinstance(item, Event)]


VECTORS: list[tuple[str, bytes, list[str]]] = [
    ("lf", b"data: a\n\ndata: b\n\n", ["a", "b"]),
    ("crlf", b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
    ("bare_cr", b"data: a\r\rdata: b\r\r", ["a", "b"]),
    ("mixed_line_ends", b"data: a\r\ndata: b\n\rdata: c\r\n\n", ["a\nb", "c"]),
    ("bom", BOM + b"data: a\n\n", ["a"]),
    ("bom_only_at_the_start", b"data: a\n\n" + BOM + b"data: b\n\n", ["a"]),
    ("no_space", b"data:a\ndata:  b\n\n", ["a\n b"]),
    ("trailing_space_is_kept", b'data: {"a":1}   \n\n', ['{"a":1}   ']),
    ("empty_data", b"data\n\ndata:\n\n", ["", ""]),
    ("name_without_data", b"event: ping\n\ndata: a\n\n", ["a"]),
    ("unknown_fields", b"foo: bar\nfoo\ndata: a\n\n", ["a"]),
    ("many_blank_lines", b"\n\n\ndata: a\n\n\n\ndata: b\n\n\n", ["a", "b"]),
    ("utf8", 'data: {"t":"é漢😀"}\n\n'.encode(), ['{"t":"é漢😀"}']),
    (
        "separators_of_unicode_end_no_line",
        "data: a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\n\n".encode(),
        ["a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"],
    ),
    ("whole_json_at_the_end", b'data: {"a":1}\n', ['{"a":1}']),
    ("whole_json_without_a_line_end", b'data: {"a":1}', ['{"a":1}']),
    ("done_at_the_end", b"data: [DONE]", ["[DONE]"]),
    ("cut_json_at_the_end", b'data: a\n\ndata: {"a":', ["a"]),
    ("text_at_the_end", b"data: a\n\ndata: b", ["a"]),
]


@pytest.mark.parametrize(
    ("body", "expected"), [v[1:] for v in VECTORS], ids=[v[0] for v in VECTORS]
)
def test_events_do_not_depend_on_how_the_bytes_are_cut(
    body: bytes, expected: list[str]
) -> None:
    whole = decode([body])
    assert texts(whole) == expected
    for size in range(1, len(body)):
        assert decode(cut(body, size)) == whole, size
    for place in range(len(body)):
        assert decode([body[:place], body[place:]]) == whole, place


def test_an_event_is_there_as_soon_as_its_bare_cr_is() -> None:
    decoder = SSEDecoder()
    assert texts(decoder.feed(b"data: a\r\r")) == ["a"]
    assert texts(decoder.feed(b"\ndata: b\r\n\r\n")) == ["b"]


def test_fields_go_with_their_event_and_the_id_stays() -> None:
    body = b"event: x\nid: 7\nretry: 1500\ndata: a\n\nretry: 1x\nid: \0\ndata: b\n\n"
    assert decode([body]) == [Event(b"a", "x", "7", 1500), Event(b"b", "message", "7")]


def test_comments_are_shown_as_signs_of_life() -> None:
    assert decode([b": ping\n\ndata: a\n:x\ndata: b\n\n"]) == [
        Comment(b"ping"),
        Comment(b"x"),
        Event(b"a\nb"),
    ]


def test_the_error_field_of_llama_cpp_is_shown() -> None:
    assert decode([b'error: {"message":"no"}\n\n']) == [ErrorLine(b'{"message":"no"}')]


@pytest.mark.parametrize("end", [b"\n\ndata: b\n\n", b"\n", b""])
def test_an_error_between_events_comes_out(end: bytes) -> None:
    stray = b'{\n  "error": {\n    "code": 499\n  }\n}'
    found = decode([b"data: a\n\n" + stray + end])
    assert found[:2] == [Event(b"a"), ErrorLine(stray)]
    assert found[2:] == ([Event(b"b")] if b"data" in end else [])
    found = decode([b"data: a\n\n[" + stray + b"]" + end])
    assert found[1] == ErrorLine(b"[" + stray + b"]")


@pytest.mark.parametrize("stray", [b'{"a":1}', b"{", b"[1]", b"[]", b'{"error":null}'])
def test_json_between_events_is_skipped(stray: bytes) -> None:
    found = decode([b"data: a\n\n" + stray + b"\n\ndata: b\n\n"])
    assert found == [Event(b"a"), Event(b"b")]


def test_an_event_that_is_too_large_is_a_clear_error() -> None:
    for body in (b"data: " + b"x" * 200, b"data: aaaaaaaaaa\n" * 20):
        decoder = SSEDecoder(max_event_bytes=100)
        with pytest.raises(ModelUnavailable, match="larger than 100 bytes"):
            for piece in cut(body, 7):
                decoder.feed(piece)


def test_the_size_is_counted_for_each_event_anew() -> None:
    decoder = SSEDecoder(max_event_bytes=100)
    for _ in range(50):
        for piece in cut(b"data: " + b"x" * 80 + b"\n\n", 11):
            decoder.feed(piece)


@pytest.mark.machine
def test_a_long_line_in_small_pieces_takes_linear_time() -> None:
    def seconds(size: int) -> float:
        pieces = cut(b"data: " + b"x" * size + b"\n\n", 64)
        start = time.process_time()
        assert len(texts(decode(pieces))[0]) == size
        return time.process_time() - start

    small = min(seconds(1_250_000) for _ in range(3))
    large = min(seconds(5_000_000) for _ in range(3))
    assert large / small < 9  # linear work gives 4, quadratic 16


def _recorded_vectors() -> list[Any]:
    path = FOLDER / "sse-decoder" / "vectors.json"
    vectors = json.loads(path.read_text())["vectors"] if path.exists() else []
    return [pytest.param(vector, id=vector["name"]) for vector in vectors]


@needs_recordings
@pytest.mark.parametrize("vector", _recorded_vectors())
def test_the_shared_vectors(vector: dict[str, Any]) -> None:
    body = base64.b64decode(vector["input_b64"])
    for size in range(1, len(body) + 1):
        found = [
            {
                "event": item.event,
                "data": item.data.decode(),
                "id": item.id,
                "retry": item.retry,
            }
            for item in decode(cut(body, size))
            if isinstance(item, Event)
        ]
        assert found == vector["events"], size
