"""logprobs in both shapes, whole and streamed, and /tokenize."""

from __future__ import annotations

import httpx
import pytest

from stratad.engine.generation import ChosenToken, LikelyToken, TextPiece
from stratad.server.likelihoods import completion_likelihoods
from tests.serving.support.scripted_runner import START_TOKEN, ScriptedRunner
from tests.serving.support.served import MODEL, serve

HI = [{"role": "user", "content": "Hi"}]
PIECES = [b"He", b"llo", "ü".encode()[:1], "ü".encode()[1:], b"!"]


def test_a_chat_tells_every_token_with_its_bytes_and_the_likeliest_in_its_place() -> None:
    with serve(ScriptedRunner(lambda prompt: PIECES)) as served:
        answer = served.client().chat.completions.create(
            model=MODEL, messages=HI, logprobs=True, top_logprobs=3
        )
    content = answer.choices[0].logprobs.content
    assert [bytes(token.bytes) for token in content] == PIECES, "the end token is none of the answer"
    assert b"".join(bytes(token.bytes) for token in content).decode() == answer.choices[0].message.content
    first = content[0]
    assert (first.token, first.logprob) == ("He", 0.0)
    assert [(other.token, other.logprob) for other in first.top_logprobs] == [
        ("He", 0.0),
        ("a", -1.0),
        ("b", -2.0),
    ]


def test_a_stream_has_each_token_once_in_the_chunk_that_completes_its_text() -> None:
    with serve(ScriptedRunner(lambda prompt: PIECES)) as served:
        chunks = list(
            served.client().chat.completions.create(model=MODEL, messages=HI, logprobs=True, stream=True)
        )
    told = [
        (chunk.choices[0].delta.content, [bytes(token.bytes) for token in chunk.choices[0].logprobs.content])
        for chunk in chunks
        if chunk.choices[0].logprobs
    ]
    assert told == [("He", [b"He"]), ("llo", [b"llo"]), ("ü", PIECES[2:4]), ("!", [b"!"])]


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_completion_has_columns_with_offsets_into_the_text(is_stream: bool) -> None:
    with serve() as served:
        create = served.client().completions.create
        if is_stream:
            parts = [chunk.choices[0] for chunk in create(model=MODEL, prompt="p", logprobs=2, stream=True)]
            columns = [part.logprobs for part in parts if part.logprobs]
        else:
            columns = [create(model=MODEL, prompt="p", logprobs=2).choices[0].logprobs]
    assert [token for column in columns for token in column.tokens] == ["He", "llo", "!"]
    assert [offset for column in columns for offset in column.text_offset] == [0, 2, 5]
    assert [one for column in columns for one in column.token_logprobs] == [0.0] * 3
    assert columns[0].top_logprobs[0] == {"He": 0.0, "a": -1.0}


def test_tokens_of_a_stop_string_are_not_told() -> None:
    with serve(ScriptedRunner(lambda prompt: [b"one ", b"EN", b"D", b" two"])) as served:
        answer = served.client().completions.create(model=MODEL, prompt="p", stop="END", logprobs=0)
    assert answer.choices[0].text == "one "
    assert answer.choices[0].logprobs.tokens == ["one "]
    assert answer.choices[0].logprobs.top_logprobs == [{}]


def test_text_held_back_until_the_end_comes_with_its_tokens_and_without_the_end_token() -> None:
    with serve(ScriptedRunner(lambda prompt: [b"one ", b"EN"])) as served:
        answer = served.client().completions.create(model=MODEL, prompt="p", stop="END", logprobs=1)
    assert answer.choices[0].text == "one EN"
    assert answer.choices[0].logprobs.tokens == ["one ", "EN"]


def test_bytes_that_look_alike_keep_the_likeliest() -> None:
    halves = tuple(LikelyToken(bytes([byte]), -1.0 - byte) for byte in (0xC3, 0xC4))
    told = completion_likelihoods(TextPiece("x", (ChosenToken(LikelyToken(b"x", 0.0), halves),)), 0)
    assert told is not None
    assert told["top_logprobs"] == [{"\ufffd": -1.0 - 0xC3}]


def test_nothing_is_told_that_was_not_asked_for() -> None:
    with serve() as served:
        answer = served.client().chat.completions.create(model=MODEL, messages=HI)
        zero = served.client().chat.completions.create(model=MODEL, messages=HI, top_logprobs=0)
    assert (answer.choices[0].logprobs, zero.choices[0].logprobs) == (None, None)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, [START_TOKEN, ord("h"), ord("i")]),
        ({"add_special": True}, [START_TOKEN, START_TOKEN, ord("h"), ord("i")]),
        ({"parse_special": False}, [*b"<s>hi"]),
    ],
)
def test_tokenize_gives_the_models_tokens(options: dict[str, bool], tokens: list[int]) -> None:
    with serve() as served:
        response = httpx.post(served.url + "/tokenize", json={"content": "<s>hi", **options})
        missing = httpx.post(served.url + "/tokenize", json=options)
    assert (response.status_code, response.json()) == (200, {"tokens": tokens})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "content")


def test_tokenize_is_refused_while_loading() -> None:
    with serve(is_loaded=False) as served:
        assert httpx.post(served.url + "/tokenize", json={"content": "hi"}).status_code == 503
