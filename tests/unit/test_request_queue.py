"""When a refused client should come back: computed from what requests took so far."""

from __future__ import annotations

import pytest

from stratad.engine.generation import Event, Failed, Generation, GenerationRequest, QueueFull
from stratad.engine.request_queue import RequestQueue
from stratad.engine.status import EngineTotals
from stratad.metrics.registry import Metrics
from stratad.runner.protocol import SamplingParameters


def _request(client: str = "a", events: list[Event] | None = None) -> Generation:
    deliver = (lambda event: None) if events is None else events.append
    return Generation((1,), GenerationRequest("p", SamplingParameters(), client=client), deliver, 1)


def _full_queue() -> RequestQueue:
    requests = RequestQueue(0, 1, Metrics("model"))
    requests.open()
    requests.submit(_request())
    return requests


def _refused_seconds(requests: RequestQueue) -> int:
    with pytest.raises(QueueFull) as refused:
        requests.submit(_request())
    return refused.value.retry_seconds


def test_before_anything_was_answered_it_is_a_guess() -> None:
    assert _refused_seconds(_full_queue()) == 5


@pytest.mark.parametrize(
    ("busy_seconds", "answered", "retry_seconds"), [(30.0, 3, 10), (0.1, 4, 1), (7.0, 2, 4)]
)
def test_it_is_the_mean_time_in_which_a_request_ended(
    busy_seconds: float, answered: int, retry_seconds: int
) -> None:
    requests = _full_queue()

    def add(totals: EngineTotals) -> None:
        totals.decode_seconds, totals.prefill_seconds = busy_seconds / 2, busy_seconds / 2
        totals.finish_reasons["stop"] += answered - 1
        totals.finish_reasons["cancelled"] += 1
        # These never ran.
        totals.finish_reasons["queue_full"] += 1000

    requests.count(add)
    assert _refused_seconds(requests) == retry_seconds


def test_one_that_is_crowded_out_is_told_when_to_come_back() -> None:
    requests = RequestQueue(2, 1, Metrics("model"))
    requests.open()
    events: list[Event] = []
    requests.submit(_request("flood"))
    assert requests.take_next() is not None
    requests.submit(_request("flood"))
    requests.submit(_request("flood", events))
    requests.submit(_request("other"))
    (refusal,) = events
    assert isinstance(refusal, Failed)
    assert isinstance(refusal.error, QueueFull)
    assert refusal.error.retry_seconds >= 1
    assert requests.status().waiting == 2
