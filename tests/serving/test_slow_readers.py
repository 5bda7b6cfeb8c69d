"""What waits to be read is bounded, for every kind of answer; who never reads is cut off, and nobody else notices."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import tracemalloc

import httpx
import pytest

from stratad.engine.generation import (
    ChosenToken,
    Event,
    Failed,
    Finished,
    LikelyToken,
    ReaderTooSlow,
    TextPiece,
    Timings,
)
from stratad.server import open_listener
from stratad.server.streaming import MAX_UNREAD_BYTES, EventStream
from tests.serving.support.scripted_runner import ScriptedRunner
from tests.serving.support.served import MODEL, serve, wait_until

PLAIN = "/v1/completions"
FINISHED = Finished("stop", Timings(0, 1, 0.1, 1, 0.1))
LIKELIHOODS = 20

PIECE_BYTES = 200_000


def _plain(index: int) -> TextPiece:
    return TextPiece(f" word{index}")


def _long(index: int) -> TextPiece:
    return TextPiece(f" word{index}" * 10)


def _likely(index: int) -> TextPiece:
    likeliest = tuple(
        LikelyToken(f" w{index}-{rank}".encode(), -1.0 * rank - index) for rank in range(LIKELIHOODS)
    )
    return TextPiece(f" word{index}", (ChosenToken(likeliest[0], likeliest),))


async def _all_events(stream: EventStream) -> list[Event]:
    events = [await stream.next()]
    while isinstance(events[-1], TextPiece):
        events.append(await stream.next())
    return events


def test_a_reader_that_keeps_up_gets_every_piece_by_itself() -> None:
    async def read() -> list[Event]:
        stream = EventStream(MAX_UNREAD_BYTES)
        events = []
        for index in range(100):
            stream.deliver(_plain(index))
            events.append(await stream.next())
        stream.deliver(FINISHED)
        return [*events, await stream.next()]

    assert asyncio.run(read()) == [*(_plain(index) for index in range(100)), FINISHED]


@pytest.mark.parametrize("make", [_plain, _likely])
def test_a_reader_that_comes_late_gets_the_whole_text_and_every_token_in_few_pieces(make: object) -> None:
    assert callable(make)
    pieces = [make(index) for index in range(500)]

    async def read() -> list[Event]:
        stream = EventStream(MAX_UNREAD_BYTES)
        for piece in pieces:
            stream.deliver(piece)
        stream.deliver(FINISHED)
        return await _all_events(stream)

    *read_pieces, end = asyncio.run(read())
    assert end == FINISHED
    assert len(read_pieces) < 20
    texts = [piece for piece in read_pieces if isinstance(piece, TextPiece)]
    assert "".join(piece.text for piece in texts) == "".join(piece.text for piece in pieces)
    assert [token for piece in texts for token in piece.tokens] == [
        token for piece in pieces for token in piece.tokens
    ]


@pytest.mark.parametrize(("make", "count"), [(_long, 100_000), (_likely, 3_000)])
def test_what_nobody_reads_takes_bounded_memory_and_ends_the_request(make: object, count: int) -> None:
    assert callable(make)
    cancelled = threading.Event()

    async def fill() -> tuple[int, list[Event]]:
        stream = EventStream(MAX_UNREAD_BYTES)
        stream.cancels(cancelled.set)
        gc.collect()
        tracemalloc.start()
        for index in range(count):
            stream.deliver(make(index))
        held_bytes, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held_bytes < most_bytes
        return most_bytes, await _all_events(stream)

    most_bytes, events = asyncio.run(fill())
    assert cancelled.is_set()
    assert len(events) == 1
    assert isinstance(events[0], Failed)
    assert isinstance(events[0].error, ReaderTooSlow)
    # The estimate may be off, but not by much.
    assert most_bytes < 1.5 * MAX_UNREAD_BYTES


def test_one_that_was_too_slow_before_it_could_be_cancelled_is_cancelled_then() -> None:
    async def fill() -> bool:
        stream = EventStream(MAX_UNREAD_BYTES)
        stream.deliver(TextPiece("y" * (MAX_UNREAD_BYTES + 1)))
        cancelled = threading.Event()
        stream.cancels(cancelled.set)
        return cancelled.is_set()

    assert asyncio.run(fill())


def test_exactly_as_much_as_may_wait_is_kept() -> None:
    async def fill(length: int) -> Event:
        stream = EventStream(MAX_UNREAD_BYTES)
        stream.deliver(TextPiece("y" * length))
        return await stream.next()

    assert isinstance(asyncio.run(fill(MAX_UNREAD_BYTES - 1000)), TextPiece)
    assert isinstance(asyncio.run(fill(MAX_UNREAD_BYTES)), Failed)


def test_a_client_that_never_reads_loses_its_place_and_the_others_go_on() -> None:
    runner = ScriptedRunner(lambda prompt: [b"y" * PIECE_BYTES] * 220, sequence_count=2)
    body = {"prompt": "slow", "stream": True}
    with serve(runner) as served, httpx.stream("POST", served.url + PLAIN, json=body, timeout=20) as slow:
        # 44 MB: more than socket buffers, which grow, and what may wait unread hold together.
        wait_until(lambda: dict(served.engine.status().finish_reasons).get("cancelled") == 1)
        client = served.client()
        quick = client.completions.create(model=MODEL, prompt="quick", max_tokens=1, stream=False)
        assert quick.choices[0].text == "y" * PIECE_BYTES
        assert served.engine.status().running == 0
        lines = [line for line in slow.iter_lines() if line]
    # On a busy machine it can be too late before the first piece has gone: then the error is the whole answer.
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "reader_too_slow"


def test_connections_to_clients_that_take_nothing_or_are_gone_end_by_themselves() -> None:
    listener = open_listener("127.0.0.1", 0, None)
    try:
        with socket.create_connection(listener.socket.getsockname()):
            accepted, _ = listener.socket.accept()
            with accepted:
                # Waiting for it would take minutes; tcp(7) promises the rest.
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    finally:
        listener.close()
