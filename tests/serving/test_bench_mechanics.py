"""The serving benchmark measures what it says: tokens are counted as they come, while all streams run."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("stratad._native", reason="the native module is not built")

from tests.bench.serving import joint_rate
from tests.bench.stream_reader import read_streams
from tests.serving.support.scripted_runner import ScriptedRunner
from tests.serving.support.served import serve


def test_the_rate_counts_what_came_while_all_streams_ran() -> None:
    early = [0.0, 1.0, 2.0, 3.0, 4.0]
    late = [2.0, 3.0, 4.0, 5.0, 6.0]
    assert joint_rate([early, late]) == pytest.approx(2.0)
    assert joint_rate([early]) == pytest.approx(1.0)
    # The last step is cut in two by the moment when the first stream ends, and what is alone is not counted.
    assert joint_rate([early, [1.5, 2.5, 3.5, 4.1, 4.2, 4.3]]) == pytest.approx(2.0)


def test_the_reader_sees_every_token_of_every_stream() -> None:
    runner = ScriptedRunner(lambda prompt: [b"x"] * 40, sequence_count=3)
    with serve(runner) as served:
        bodies = [
            json.dumps({"prompt": f"p{index}", "max_tokens": 10 + index, "stream": True}).encode()
            for index in range(3)
        ]
        arrivals = read_streams(int(served.url.rpartition(":")[2]), bodies)
    for index, times in enumerate(arrivals):
        # So few pieces never come together as one, however far the scripted runner outruns its reader.
        assert len(times) == 10 + index
        assert times == sorted(times)
