"""What a running daemon's counts say to the planner."""

from __future__ import annotations

from typing import Any

import pytest

from planner import Policy, Running
from stratad.running_share import FEWEST_STEPS, expert_share, running_share


def status(
    cpu_bytes: int, hits: int, misses: int, hit_bytes: int, steps: int = FEWEST_STEPS
) -> dict[str, Any]:
    """A /status document of a daemon with two slices and a cache."""
    return {
        "expert_cache": {"hits": hits, "misses": misses, "hit_bytes": hit_bytes},
        "pool": {"slices": [{"expert_bytes": cpu_bytes // 2}, {"expert_bytes": cpu_bytes - cpu_bytes // 2}]},
        "plan": {"policy": "split", "fingerprint": "f", "workers": 30},
        "decode": {"decode_steps": steps},
    }


def test_the_planner_gets_what_rests_on_enough_steps() -> None:
    assert running_share(status(101, 30, 10, 303)) == Running(Policy.SPLIT, 30, 0.25, 0.75, FEWEST_STEPS)
    assert running_share(status(101, 30, 10, 303, FEWEST_STEPS - 1)) is None


def test_next_to_nothing_is_nothing_and_a_hundredth_is_not() -> None:
    nothing, little = running_share(status(99, 1, 0, 9901)), running_share(status(100, 1, 0, 9900))
    assert nothing is not None and nothing.cpu_share == 0.0
    assert little is not None and little.cpu_share == 0.01


def test_before_anything_is_read_nothing_is_known() -> None:
    assert expert_share(status(0, 0, 0, 0)) is None
    assert expert_share(status(100, 0, 0, 0)) is None


@pytest.mark.parametrize("missing", ["expert_cache", "pool", "plan", "decode"])
def test_a_daemon_that_does_not_serve_or_has_no_cache_says_nothing(missing: str) -> None:
    document = status(100, 30, 10, 300)
    assert running_share({**document, missing: None}) is None
    assert running_share({key: value for key, value in document.items() if key != missing}) is None
