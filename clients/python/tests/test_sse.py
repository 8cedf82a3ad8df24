"""The parser of Server-Sent Events: properties."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundhouse_client._core import sse
from roundhouse_client._core.sse import SseMessage, SseParser
from roundhouse_client.errors import ProtocolError

LINES = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=12)
NAMES = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
MESSAGES = st.builds(
    SseMessage,
    event=NAMES,
    data=st.lists(LINES, min_size=1, max_size=3).map("\n".join),
    id=st.none() | LINES,
)


def encode(message: SseMessage, end: str, comment: str) -> str:
    lines = [f": {comment}", f"event: {message.event}"]
    lines += [f"data: {line}" for line in message.data.split("\n")]
    lines += [] if message.id is None else [f"id: {message.id}"]
    return "".join(f"{line}{end}" for line in [*lines, "retry: 10", "unknown", ""])


def split(encoded: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted({cut % (len(encoded) + 1) for cut in cuts}), len(encoded)]
    return [encoded[start:end] for start, end in itertools.pairwise(places)]


@given(
    st.lists(MESSAGES, max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    LINES,
    st.booleans(),
    st.lists(st.integers(min_value=0, max_value=10_000), max_size=30),
)
def test_messages_are_the_same_in_all_pieces(
    messages: list[SseMessage], end: str, comment: str, mark: bool, cuts: list[int]
) -> None:
    text = "".join(encode(message, end, comment) for message in messages)
    encoded = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
    parser = SseParser()
    parsed = [message for piece in split(encoded, cuts) for message in parser.feed(piece)]
    # After a last carriage return a line feed could follow, so the event is complete with the next byte only.
    parsed += parser.feed(b":") if end == "\r" else []
    assert parsed == messages


@given(st.lists(MESSAGES, min_size=1, max_size=3), st.sampled_from(["\n", "\r\n"]))
def test_byte_by_byte(messages: list[SseMessage], end: str) -> None:
    encoded = "".join(encode(message, end, "") for message in messages).encode()
    parser = SseParser()
    parsed = [message for byte in encoded for message in parser.feed(bytes([byte]))]
    assert parsed == messages


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0, max_value=200), max_size=10))
def test_any_bytes_are_parsed_alike_in_all_pieces(data: bytes, cuts: list[int]) -> None:
    whole, pieces = SseParser(), SseParser()
    expected = whole.feed(data)
    assert [message for piece in split(data, cuts) for message in pieces.feed(piece)] == expected


def test_what_is_cut_off_is_dropped() -> None:
    assert SseParser().feed(b"event: a\ndata: 1\n\nevent: b\ndata: 2\n") == [SseMessage("a", "1", None)]


def test_a_character_that_is_split() -> None:
    data = json.dumps({"text": "世界🎉"}, ensure_ascii=False)
    encoded = f"data: {data}\n\n".encode()
    for place in range(len(encoded)):
        parser = SseParser()
        parsed = parser.feed(encoded[:place]) + parser.feed(encoded[place:])
        assert [message.data for message in parsed] == [data]


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    parser = SseParser()
    parser.feed(b"data: " + b"x" * 90)
    with pytest.raises(ProtocolError):
        parser.feed(b"y" * 10)
    lines = SseParser()
    with pytest.raises(ProtocolError):
        for _ in range(100):
            lines.feed(b"data: 12345\n")
