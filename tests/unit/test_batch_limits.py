"""Which limits of batches a daemon starts with: those recorded of this machine and these kernels, under what is set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner import Effect, PlanRequest, machine_fingerprint, make_plan
from planner.calibration import NO_TOKENS, TypeLimits
from stratad.config import PlacementSection
from stratad.daemon.starting_limits import starting_limits
from stratad.gguf.model import DenseTensor, ExpertTensor, ModelFacts
from stratad.native.batch_limits import PoolLimits
from stratad.plan.facts import machine_calibration
from stratad.version import stratad_version
from tests.support.machines import MachineShape, even_nodes, machine_topology

TOPOLOGY = replace(machine_topology(MachineShape(even_nodes(1, 4))), kernel_release="6.1.0")
RECORDED = TypeLimits("Q4_K", 6, NO_TOKENS, 15, 11)


def record(folder: Path, **changes: object) -> Path:
    document = {
        "schema_version": 1,
        "machine_fingerprint": machine_fingerprint(TOPOLOGY),
        "kernel_release": "6.1.0",
        "measured_at": "2026-01-02T03:04:05+00:00",
        "stratad_version": stratad_version(),
        "batches": {
            "kernels": "avx2",
            "limits": [
                {
                    "weight_type": "Q4_K",
                    "panel_tokens": 6,
                    "tile_tokens": None,
                    "expert_pool_tokens": 15,
                    "dense_pool_tokens": 11,
                }
            ],
        },
    }
    (folder / "bench.json").write_text(json.dumps(document | changes))
    return folder


def test_recorded_limits_of_this_machine_hold(tmp_path: Path) -> None:
    limits, reason = starting_limits(PlacementSection(), "avx2", TOPOLOGY, record(tmp_path))
    assert limits.measured == (RECORDED,)
    assert reason is not None
    assert (reason.code, reason.effect) == ("batch-limits-measured", Effect.INFORMS)
    assert "Q4_K: panels from 6 tokens, tiles never" in reason.message


@pytest.mark.parametrize(("kernel_release", "is_shown"), [("6.1.0", True), ("5.0", False)])
def test_a_plan_shows_the_recorded_limits_of_this_machine(
    tmp_path: Path, kernel_release: str, is_shown: bool
) -> None:
    calibration = machine_calibration(record(tmp_path, kernel_release=kernel_release))
    plan = make_plan(TOPOLOGY, PlanRequest(), calibration)
    shown = [reason for reason in plan.reasons if reason.code == "batch-limits-recorded"]
    assert bool(shown) == is_shown
    assert all("the pool takes at most 15 tokens of an expert" in reason.message for reason in shown)


def test_without_a_record_nothing_is_said_and_the_built_in_limits_hold(tmp_path: Path) -> None:
    assert starting_limits(PlacementSection(), "avx2", TOPOLOGY, tmp_path) == (PoolLimits(), None)


def test_a_record_without_batches_is_none(tmp_path: Path) -> None:
    folder = record(tmp_path, batches=None)
    assert starting_limits(PlacementSection(), "avx2", TOPOLOGY, folder) == (PoolLimits(), None)


@pytest.mark.parametrize(
    ("changes", "kernels", "effect", "words"),
    [
        ({"machine_fingerprint": "another"}, "avx2", Effect.INFORMS, "machine another"),
        ({"kernel_release": "5.0"}, "avx2", Effect.INFORMS, "kernel 5.0"),
        ({"stratad_version": "0.0.1"}, "avx2", Effect.INFORMS, "version 0.0.1"),
        ({"stratad_version": None}, "avx2", Effect.INFORMS, "version"),
        ({}, "avx512", Effect.INFORMS, "measured the avx2 row kernels"),
        ({"batches": {"kernels": 7}}, "avx2", Effect.WARNS, "batches.kernels"),
        ({"schema_version": 99}, "avx2", Effect.WARNS, "schema_version is 99"),
    ],
)
def test_a_record_that_does_not_hold_here_is_ignored_and_said(
    tmp_path: Path, changes: dict[str, object], kernels: str, effect: Effect, words: str
) -> None:
    limits, reason = starting_limits(PlacementSection(), kernels, TOPOLOGY, record(tmp_path, **changes))
    assert limits == PoolLimits()
    assert reason is not None
    assert (reason.code, reason.effect) == ("batch-limits-ignored", effect)
    assert words in reason.message


def test_what_is_configured_counts_more_than_what_was_measured(tmp_path: Path) -> None:
    placement = PlacementSection(panel_tokens=4, tile_tokens=32, max_pool_tokens=100)
    limits, reason = starting_limits(placement, "avx2", TOPOLOGY, record(tmp_path))
    assert limits.measured == (replace(RECORDED, panel_tokens=4, tile_tokens=32),)
    assert limits.max_pool_tokens == 100
    assert reason is not None
    assert "placement.panel_tokens = 4" in reason.message


def test_tiles_never_come_before_panels_and_zero_is_never() -> None:
    recorded = replace(RECORDED, tile_tokens=16)
    assert PoolLimits.of(PlacementSection(panel_tokens=20), (recorded,)).measured[0].tile_tokens == 20
    assert PoolLimits.of(PlacementSection(tile_tokens=0), (recorded,)).measured[0].tile_tokens == NO_TOKENS


def test_the_identity_has_what_decides_bits_and_only_that() -> None:
    limits = PoolLimits((RECORDED,))
    assert limits.identity() == PoolLimits((replace(RECORDED, tile_tokens=16),)).identity()
    for other in (
        PoolLimits(),
        PoolLimits((replace(RECORDED, panel_tokens=7),)),
        PoolLimits((replace(RECORDED, expert_pool_tokens=16),)),
        PoolLimits((replace(RECORDED, dense_pool_tokens=16),)),
        PoolLimits((RECORDED,), panel_tokens=4),
        PoolLimits((RECORDED,), max_pool_tokens=16),
    ):
        assert other.identity() != limits.identity()
    json.dumps(limits.identity())


def model(*expert_types: str) -> ModelFacts:
    return ModelFacts(
        paths=(Path("model.gguf"),),
        architecture="qwen3moe",
        name=None,
        layer_count=1,
        expert_count=128 if expert_types else None,
        experts_used=8 if expert_types else None,
        context_length=None,
        embedding_length=None,
        file_bytes=0,
        tensor_bytes_total=0,
        expert_tensors=tuple(ExpertTensor("gate", 0, (2048, 768, 128), name, 1) for name in expert_types),
        dense_tensors=(DenseTensor("output.weight", None, "Q6_K", 1),),
        kv_bytes_per_token=None,
        has_chat_template=False,
    )


def test_the_pools_largest_batch_counts_what_an_expert_gets_of_it() -> None:
    limits = PoolLimits((RECORDED, TypeLimits("Q8_0", 8, NO_TOKENS, NO_TOKENS, 10)))
    # 15 tokens of an expert on average are 240 tokens of a batch that uses 8 of 128.
    assert limits.pool_tokens(model("Q4_K"), built_in=8) == 240
    assert limits.pool_tokens(model("Q8_0"), built_in=8) is None
    assert limits.pool_tokens(model("Q8_0", "Q4_K"), built_in=8) == 240
    assert limits.pool_tokens(model("Q3_K", "Q4_K"), built_in=8) == 8
    assert limits.pool_tokens(model(), built_in=None) is None
    assert PoolLimits((RECORDED,), max_pool_tokens=7).pool_tokens(model("Q4_K"), built_in=8) == 7
