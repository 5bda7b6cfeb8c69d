"""What a running daemon's counts say to the planner."""

from __future__ import annotations

from typing import Any

import pytest

from planner import Policy, Running
from stratad.plan.running_share import FEWEST_STEPS, running_share
from stratad.runner.protocol import GpuCounters, NativeCounters, SliceCounters
from stratad.service.document import expert_share_document as share_document


def counters(cpu_bytes: int, *gpus: tuple[int, int, int, int]) -> NativeCounters:
    """Each GPU as hits, misses, bytes of the hits and slots."""
    return NativeCounters(
        slices=(SliceCounters(0, 0, 0, cpu_bytes // 2), SliceCounters(0, 0, 0, cpu_bytes - cpu_bytes // 2)),
        fused_chains=0,
        fallback_operations=0,
        gpus=tuple(
            GpuCounters(f"G{index}", 1, 0, 0, 0, 0, 0, hits, misses, hit_bytes, 0, 0, slots, slots, 0)
            for index, (hits, misses, hit_bytes, slots) in enumerate(gpus)
        ),
    )


def expert_share_document(counters: NativeCounters) -> dict[str, Any]:
    """As a client gets it."""
    return share_document(counters).model_dump()


def status(document: dict[str, object], steps: int = FEWEST_STEPS) -> dict[str, Any]:
    return {
        "experts": document,
        "plan": {"policy": "split", "fingerprint": "f", "worker_count": 30},
        "decode": {"decode_steps": steps},
    }


def test_shares_are_of_all_slices_and_gpus_together() -> None:
    document = expert_share_document(counters(100, (30, 10, 200, 4), (10, 30, 100, 4)))
    assert document["cpu_share"] == pytest.approx(0.25)
    assert document["hit_ratio"] == pytest.approx(0.5)
    assert (document["cpu_bytes"], document["vram_bytes"]) == (100, 300)


def test_nothing_read_and_no_cache_are_unknown_and_not_zero() -> None:
    assert expert_share_document(counters(0))["cpu_share"] is None
    without_cache = expert_share_document(counters(100, (0, 40, 0, 0)))
    assert (without_cache["cpu_share"], without_cache["hit_ratio"]) == (1.0, None)


def test_the_planner_gets_what_rests_on_enough_steps() -> None:
    document = expert_share_document(counters(100, (30, 10, 300, 4)))
    assert running_share(status(document)) == Running(Policy.SPLIT, 30, 0.25, 0.75, FEWEST_STEPS)
    assert running_share(status(document, FEWEST_STEPS - 1)) is None


def test_next_to_nothing_is_nothing_and_a_hundredth_is_not() -> None:
    assert running_share(status(expert_share_document(counters(99, (1, 0, 9901, 4))))).cpu_share == 0.0  # type: ignore[union-attr]
    assert running_share(status(expert_share_document(counters(100, (1, 0, 9900, 4))))).cpu_share == 0.01  # type: ignore[union-attr]


@pytest.mark.parametrize("missing", ["experts", "plan", "decode"])
def test_a_daemon_that_does_not_serve_says_nothing(missing: str) -> None:
    document = status(expert_share_document(counters(100, (30, 10, 300, 4))))
    assert running_share({**document, missing: None}) is None
    assert running_share({key: value for key, value in document.items() if key != missing}) is None


def test_a_daemon_without_a_cache_says_nothing() -> None:
    assert running_share(status(expert_share_document(counters(100)))) is None
