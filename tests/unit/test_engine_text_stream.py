"""Whole characters and stop strings, wherever the token borders lie."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stratad.engine.text_stream import TextStream


def _stream(pieces: list[bytes], stop_strings: list[str]) -> tuple[list[str], bool]:
    """What comes out piece by piece, and whether a stop string ended it."""
    stream = TextStream(stop_strings)
    outputs = []
    for piece in pieces:
        outputs.append(stream.push(piece))
        if stream.is_stopped:
            break
    outputs.append(stream.finish())
    return outputs, stream.is_stopped


def _cut(content: bytes, borders: list[int]) -> list[bytes]:
    edges = sorted({0, len(content), *(border % (len(content) + 1) for border in borders)})
    return [content[start:end] for start, end in pairwise(edges)]


def test_text_is_given_out_as_soon_as_it_is_certain() -> None:
    stream = TextStream(["STOP"])
    assert stream.push(b"Hello S") == "Hello "
    assert stream.push(b"T") == ""
    assert stream.push(b"ART") == "START"
    assert stream.push(b"S") == ""
    assert stream.finish() == "S"


def test_of_two_stop_strings_the_one_complete_first_ends_the_text() -> None:
    assert _stream([b"xabc"], ["abc", "b"]) == (["xa", ""], True)
    assert _stream([b"xabc"], ["abc", "bc"]) == (["x", ""], True)


def test_a_character_is_never_given_out_in_parts() -> None:
    stream = TextStream()
    fox = "🦊".encode()
    assert [stream.push(fox[index : index + 1]) for index in range(4)] == ["", "", "", "🦊"]


def test_a_character_that_never_ends_is_dropped_and_a_wrong_byte_is_marked() -> None:
    assert _stream([b"a\xf0\x9f"], []) == (["a", ""], False)
    assert _stream([b"a\xffb"], []) == (["a�b", ""], False)


texts = st.text(alphabet="abé🦊S", max_size=30)
stops = st.lists(st.text(alphabet="abé🦊S", min_size=1, max_size=4), max_size=3)
border_lists = st.lists(st.integers(min_value=0, max_value=200), max_size=20)


@given(texts, stops, border_lists)
def test_borders_between_tokens_change_nothing(
    text: str, stop_strings: list[str], borders: list[int]
) -> None:
    content = text.encode()
    whole, whole_stopped = _stream([content], stop_strings)
    pieces, is_stopped = _stream(_cut(content, borders), stop_strings)
    assert "".join(pieces) == "".join(whole)
    assert is_stopped == whole_stopped


@given(texts, stops, border_lists)
def test_the_text_ends_where_a_stop_string_is_first_complete(
    text: str, stop_strings: list[str], borders: list[int]
) -> None:
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stop_strings if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    pieces, is_stopped = _stream(_cut(text.encode(), borders), stop_strings)
    assert "".join(pieces) == expected
    assert is_stopped == bool(ends)


@given(st.binary(max_size=40), border_lists)
def test_any_bytes_give_what_decoding_them_at_once_gives(content: bytes, borders: list[int]) -> None:
    pieces, _ = _stream(_cut(content, borders), [])
    at_once = content.decode("utf-8", errors="replace")
    streamed = "".join(pieces)
    # Only an unfinished character at the very end is left out.
    assert at_once.startswith(streamed)
    assert at_once[len(streamed) :] in ("", "�")
