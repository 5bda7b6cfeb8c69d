"""The cost model's parts, each against a case that fixes its sign."""

from __future__ import annotations

from typing import Any

import pytest

from planner import BandwidthCell, Benchmark, Policy, SweepPoint
from planner.candidates import unplaced_parts
from planner.cost import (
    Arm,
    CostConstants,
    Rest,
    layer_synchronization_seconds,
    rest_seconds,
    step_estimate,
    stream_seconds,
)
from planner.hardware import GENERATION_ROWS, Generation, generation_of
from planner.rates import MachineRates, machine_rates
from planner.topology import CpuModel
from tests.support.machines import GIB, MachineShape, even_nodes
from tests.support.planning import gathered, planned

RATES = MachineRates({0: 75e9, 1: 75e9}, 34e9, 4.5e9, 0.25, "stated for this test")
CONSTANTS = CostConstants()


def arm(**changes: Any) -> Arm:
    """Give seed 3413's placed split: two packages, eleven workers each, 1.4 GB a node and step."""
    values: dict[str, Any] = {
        "read_bytes": {0: {0: 1.4e9}, 1: {1: 1.4e9}},
        "workers": {0: 11, 1: 11},
        "package_of": {0: 0, 1: 1},
        "slice_workers": 11,
        "is_sliced": True,
        "layer_count": 48,
        "rest_seconds": 0.018,
        "must_wake": True,
    }
    return Arm(**(values | changes))


def unsliced(workers: dict[int, int]) -> Arm:
    everywhere = {0: 0.7e9, 1: 0.7e9}
    return arm(
        read_bytes=dict.fromkeys(workers, everywhere),
        workers=workers,
        slice_workers=sum(workers.values()),
        is_sliced=False,
    )


def test_the_model_ranks_seed_3413_as_measured() -> None:
    """Measured relative to the placed split: one socket 1.10 to 1.14, unsliced and unplaced 1.19 and 1.37."""
    one_socket = arm(read_bytes={0: {0: 2.8e9}}, workers={0: 11}, is_sliced=False)
    placed = step_estimate(arm(), RATES, CONSTANTS).step_seconds
    assert placed < step_estimate(one_socket, RATES, CONSTANTS).step_seconds
    assert placed < step_estimate(unsliced({0: 11, 1: 11}), RATES, CONSTANTS).step_seconds


def test_unsliced_work_over_packages_costs_more_with_every_worker() -> None:
    few = layer_synchronization_seconds(unsliced({0: 2, 1: 2}), CONSTANTS)
    many = layer_synchronization_seconds(unsliced({0: 11, 1: 11}), CONSTANTS)
    sliced = layer_synchronization_seconds(arm(), CONSTANTS)
    one_package = layer_synchronization_seconds(arm(workers={0: 22}, is_sliced=False), CONSTANTS)
    assert one_package < sliced < few < many


def test_remote_bytes_are_bound_by_the_link() -> None:
    slow_link = MachineRates({0: 75e9, 1: 75e9}, 1e9, 4.5e9, 0.25, "a slow link")
    crossed = arm(read_bytes={0: {1: 1.4e9}, 1: {0: 1.4e9}})
    assert stream_seconds(crossed, slow_link, CONSTANTS) > 1.4 > stream_seconds(arm(), slow_link, CONSTANTS)


def test_a_sliced_step_waits_for_its_slowest_slice_and_a_shared_queue_does_not() -> None:
    lopsided = {0: 2, 1: 20}
    sliced = stream_seconds(arm(workers=lopsided), RATES, CONSTANTS)
    shared = stream_seconds(arm(workers=lopsided, is_sliced=False), RATES, CONSTANTS)
    assert sliced > 1.4e9 / (2 * 4.5e9)
    assert shared < sliced / 2


def test_nothing_to_read_costs_no_synchronisation() -> None:
    assert step_estimate(arm(read_bytes={}), RATES, CONSTANTS).synchronization_seconds == 0


def test_two_workers_on_a_core_are_predicted_to_lose() -> None:
    exact = step_estimate(arm(cores={0: 11, 1: 11}), RATES, CONSTANTS)
    crowded = step_estimate(arm(cores={0: 10, 1: 11}), RATES, CONSTANTS)
    assert crowded.stream_seconds > 5 * exact.stream_seconds


def test_everything_else_takes_longer_for_a_large_model_and_without_a_gpu_follows_the_socket() -> None:
    def rest(**changes: Any) -> float:
        values: dict[str, Any] = {
            "step_bytes": 1e9,
            "layer_count": 48,
            "has_gpu": True,
            "is_large_model": False,
            "package_bandwidth": 75e9,
            "package_cores": 12,
        }
        return rest_seconds(Rest(**(values | changes)), RATES, CONSTANTS)

    assert rest() == pytest.approx(48 * 0.37e-3)
    assert rest(is_large_model=True) == pytest.approx(2.5 * rest())
    # Twelve cores multiply 54 GB/s, less than the memory gives.
    assert rest(has_gpu=False) == pytest.approx(0.2 * 1e9 / 54e9)
    assert rest(has_gpu=False, package_cores=64) == pytest.approx(0.2 * 1e9 / 75e9)


def test_a_worker_sweep_replaces_bandwidth_and_core_rate_for_local_reads_only() -> None:
    sweep = (SweepPoint(1, 4e9), SweepPoint(8, 28e9), SweepPoint(12, 28e9))
    rates = MachineRates({0: 75e9, 1: 75e9}, 34e9, 4.5e9, 0.1, "swept", sweep=sweep)
    assert rates.swept_rate(8) == 28e9
    assert rates.swept_rate(10) == 28e9
    assert rates.swept_rate(99) == 28e9
    assert rates.swept_rate(4) == pytest.approx(4e9 + 3 / 7 * 24e9)
    assert stream_seconds(arm(), rates, CONSTANTS) == pytest.approx(1.4 / 28)
    assert stream_seconds(unsliced({0: 11, 1: 11}), rates, CONSTANTS) == stream_seconds(
        unsliced({0: 11, 1: 11}), RATES, CONSTANTS
    )


def test_pages_without_a_policy_lean_to_the_emptier_node_as_far_as_it_has_room() -> None:
    assert unplaced_parts(100, (None, None)) == (60, 40)
    assert unplaced_parts(100, (50, 90)) == (40, 60)
    assert unplaced_parts(100, (50, 55)) == (45, 55)
    assert unplaced_parts(90, (None, None, None)) == (38, 26, 26)
    assert unplaced_parts(7, (10,)) == (7,)


@pytest.mark.parametrize(
    ("model", "generation"),
    [
        (CpuModel("GenuineIntel", 6, 85, 7, "whatever"), Generation.CASCADE_LAKE),
        (CpuModel("AuthenticAMD", 25, 17), Generation.GENOA),
        (CpuModel(name="Intel(R) Xeon(R) CPU E5-2696 v4 @ 2.20GHz"), Generation.HASWELL),
        (CpuModel(name="Intel(R) Xeon(R) Gold 6226R CPU @ 2.90GHz"), Generation.CASCADE_LAKE),
        (CpuModel(name="INTEL(R) XEON(R) PLATINUM 8568Y+"), Generation.EMERALD_RAPIDS),
        (CpuModel(name="Intel(R) Xeon(R) 6980P"), Generation.XEON_6),
        (CpuModel(name="AMD EPYC 7452 32-Core Processor"), Generation.ROME),
        (CpuModel(name="AMD EPYC 9175F 16-Core Processor"), Generation.TURIN),
        (CpuModel("GenuineIntel", 6, 186, None, "13th Gen Intel(R) Core(TM) i7-1370P"), Generation.UNKNOWN),
        (CpuModel(name="POWER9, altivec supported"), Generation.UNKNOWN),
        (None, Generation.UNKNOWN),
    ],
)
def test_the_generation_is_told_by_number_and_else_by_name(
    model: CpuModel | None, generation: Generation
) -> None:
    assert generation_of(model) is generation


def test_every_generation_has_a_row_and_an_assumed_one_is_doubted_more() -> None:
    assert set(GENERATION_ROWS) == set(Generation)
    for row in GENERATION_ROWS.values():
        if row.basis == "assumed":
            assert row.uncertainty == 0.50
        if row.basis.startswith("MLC"):
            assert row.uncertainty == 0.25


def test_nodes_of_one_package_share_its_bandwidth() -> None:
    whole = machine_rates(gathered(even_nodes(2, 8)), None).node_bandwidth
    halves = machine_rates(gathered(even_nodes(4, 4, nodes_per_package=2)), None).node_bandwidth
    assert halves[0] == pytest.approx(whole[0] / 2)


def test_one_odd_cell_of_a_bandwidth_matrix_decides_nothing() -> None:
    """pub-ik-201-mlc: 94 GB/s between most nodes of two packages, 27.9 in one cell."""
    facts = gathered(even_nodes(4, 8, nodes_per_package=2))
    cells = tuple(
        BandwidthCell(
            reader, memory, 188e9 if reader == memory else 27.9e9 if (reader, memory) == (0, 2) else 94e9
        )
        for reader in range(4)
        for memory in range(4)
    )
    rates = machine_rates(facts, Benchmark("x", cells))
    assert rates.link_bandwidth == pytest.approx(2 * 94e9)
    assert rates.node_bandwidth == dict.fromkeys(range(4), 188000000000.0)


def test_a_slower_machine_changes_the_estimate_and_a_faster_link_does_not_touch_local_reads() -> None:
    plan = planned(MachineShape(even_nodes(2, 12, total_gib=32, free_gib=31)), 44)
    split = next(c for c in plan.candidates if c.policy is Policy.SPLIT)
    assert split.estimate is not None
    assert split.estimate.step_seconds > 44 * GIB / 16 / (2 * 12 * 4.5e9)
