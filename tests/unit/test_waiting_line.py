"""Who is next: fair among clients, first come first served within each, and nobody is crowded out by one."""

from __future__ import annotations

import random
from collections import Counter

from stratad.engine.generation import Generation, GenerationRequest
from stratad.engine.waiting_line import WaitingLine
from stratad.runner.protocol import SamplingParameters


def _request(client: str, number: int = 0) -> Generation:
    request = GenerationRequest(f"{client}{number}", SamplingParameters(), client=client)
    return Generation((1,), request, lambda event: None, 1)


def _line(*clients: str) -> tuple[WaitingLine, list[Generation]]:
    line = WaitingLine()
    requests = [_request(client, number) for number, client in enumerate(clients)]
    for request in requests:
        line.add(request)
    return line, requests


def _names(requests: list[Generation | None]) -> list[object]:
    return [None if one is None else one.request.prompt for one in requests]


def test_one_client_is_served_first_come_first_served() -> None:
    line, requests = _line("a", "a", "a")
    assert [line.take_next(()) for _ in range(4)] == [*requests, None]
    assert len(line) == 0


def test_clients_take_turns_however_many_one_has_waiting() -> None:
    line, _ = _line("a", "a", "a", "a", "b", "c")
    assert _names([line.take_next(()) for _ in range(6)]) == ["a0", "b4", "c5", "a1", "a2", "a3"]


def test_a_client_with_fewer_running_comes_first() -> None:
    line, _ = _line("a", "b", "b")
    running = [_request("a"), _request("a"), _request("b")]
    assert _names([line.take_next(running)]) == ["b1"]


def test_of_equal_ones_the_one_served_longest_ago_comes_first() -> None:
    line, _ = _line("a", "b", "a", "b", "a", "b")
    assert _names([line.take_next(()) for _ in range(4)]) == ["a0", "b1", "a2", "b3"]


def test_a_full_line_has_room_for_a_newcomer_at_the_cost_of_who_has_most() -> None:
    line, _ = _line("a", "b", "a", "a")
    crowded_out = line.take_from_largest("c")
    assert crowded_out is not None
    assert crowded_out.request.prompt == "a3"
    assert (len(line), line.remove(crowded_out)) == (3, False)


def test_nobody_gains_by_crowding_out() -> None:
    line, _ = _line("a", "a", "b")
    # b would have two waiting then, a one.
    assert line.take_from_largest("b") is None
    assert line.take_from_largest("a") is None
    assert WaitingLine().take_from_largest("a") is None


def test_one_that_leaves_is_not_served() -> None:
    line, requests = _line("a", "b")
    assert line.remove(requests[0])
    assert not line.remove(requests[0])
    assert _names([line.take_next(()), line.take_next(())]) == ["b1", None]


def test_any_flood_leaves_every_other_client_its_turn() -> None:
    random_source = random.Random(3)
    for _ in range(50):
        clients = ["flood"] * 40 + ["x", "y", "z"]
        random_source.shuffle(clients)
        line, _ = _line(*clients)
        running: list[Generation] = []
        for _ in range(4):
            taken = line.take_next(running)
            assert taken is not None
            running.append(taken)
        assert Counter(one.request.client for one in running) == {"flood": 1, "x": 1, "y": 1, "z": 1}


def test_the_line_keeps_nothing_of_clients_that_have_left() -> None:
    line = WaitingLine()
    for number in range(1000):
        line.add(_request(f"client{number}"))
        assert line.take_next(()) is not None
    assert len(line._served) <= 2
