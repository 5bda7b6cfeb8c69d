"""The benchmark's cases, its bounds and its conclusions, on a probe that knows the machine it stands for."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from planner import CostConstants, benchmark_from_json
from planner.calibration import LayerCosts
from stratad.bench import (
    Bounds,
    Instruments,
    Measurements,
    bench_document,
    bench_nodes,
    block_bytes,
    conclude,
    measure,
    programme,
)
from stratad.bench.cases import LayerCase, Pattern, Programme, Purpose, ReadCase, Team, worker_counts
from stratad.bench.measure import FREE_SHARE, LEAST_NODE_BYTES, LEAST_ROUNDS, BenchmarkRefused
from stratad.bench.probe import NoDevices
from stratad.bench.report import report_lines
from stratad.bench.results import PlacedMemory
from stratad.state.recorded import Circumstances
from tests.support.machines import GIB, MachineShape, even_nodes, machine_topology

TWO = programme(bench_nodes(machine_topology(MachineShape(even_nodes(2, 8)))))
ONE = programme(bench_nodes(machine_topology(MachineShape(even_nodes(1, 2)))))
TRUTH = LayerCosts(20e-6, 0.2e-6, 30e-6, 50e-6, 0.4e-6)
MOMENT = Circumstances("0123456789ab", "6.1.0", False, "2026-01-02T03:04:05+00:00", "0")


class SyntheticMachine:
    """A machine of known rates and costs, seen through noise, with a clock that every sample moves on."""

    devices: tuple[str, ...] = ()

    def __init__(self, noise: float = 0.0, local_ratio: float = 1.0) -> None:
        self.now_seconds = 0.0
        self.placed: list[tuple[int, ...]] = []
        self._random, self._noise, self._local_ratio = random.Random(5), noise, local_ratio

    def clock(self) -> float:
        return self.now_seconds

    def place(self, node_ids: tuple[int, ...], size_bytes: int) -> PlacedMemory:
        self.placed.append(node_ids)
        return PlacedMemory(node_ids, size_bytes, self._local_ratio)

    def read(self, case: ReadCase, seconds: float) -> float:
        self.now_seconds += seconds
        core_rate = {Pattern.STREAM: 10e9, Pattern.EXPERTS: 8e9, Pattern.PRODUCTS: 5e9}[case.pattern]
        rate = 0.0
        for reader in case.readers:
            is_local = reader.memory_node_ids == (reader.node_id,)
            rate += min(len(reader.cpu_ids) * core_rate, 60e9 if is_local else 25e9)
        return rate * (1 + self._random.uniform(-self._noise, self._noise))

    def layers(self, case: LayerCase, layer_count: int, limit_seconds: float) -> Sequence[float]:
        self.now_seconds += limit_seconds
        constants, workers = CostConstants(), case.worker_count
        seconds = (TRUTH.base_seconds or 0) + constants.phase_count * (TRUTH.local_seconds or 0) * max(
            map(len, case.slices)
        )
        if case.team is not Team.NODE:
            seconds += TRUTH.cross_seconds or 0
        if case.must_wake:
            # Inside a package it takes 5 us, which the model knows nothing of.
            seconds += 5e-6 + (0 if case.team is Team.NODE else TRUTH.wake_seconds or 0)
        if case.team is Team.UNSLICED:
            tasks = constants.phase_count * constants.tasks_per_worker
            seconds += tasks * workers * (TRUTH.claim_seconds or 0)
        return [seconds] * layer_count

    def copy(self, device: str, node_id: int, seconds: float) -> float:
        self.now_seconds += seconds
        return 12e9 if node_id == 0 else 9e9


class OneDevice(SyntheticMachine):
    devices = ("GPU 0",)


def measured_on(machine: SyntheticMachine, cases: Programme = TWO, seconds: float = 10) -> Measurements:
    copies = machine if machine.devices else NoDevices()
    instruments = Instruments(machine, copies, machine.clock)
    return measure(cases, instruments, Bounds(seconds, GIB), lambda what, fraction: None)


def test_the_matrix_has_every_pair_with_one_worker_and_all() -> None:
    cells = [
        (case.readers[0].node_id, case.readers[0].memory_node_ids[0], case.worker_count)
        for case in TWO.reads
        if case.purpose is Purpose.CELL
    ]
    assert sorted(cells) == [(r, m, w) for r in (0, 1) for m in (0, 1) for w in (1, 8)]


def test_one_node_gets_what_makes_sense_there() -> None:
    assert {case.name for case in ONE.reads} == {
        "1 worker of node 0 from node 0",
        "2 workers of node 0 from node 0",
        "all workers, random experts, own memory",
        "products, 1 worker, own memory",
        "products, 2 workers, own memory",
    }
    assert {case.team for case in ONE.layers} == {Team.NODE}
    assert ONE.memories == ((0,),)


def test_two_packages_work_sliced_and_not_near_and_far_awake_and_asleep() -> None:
    assert {case.team for case in TWO.layers} == set(Team)
    assert {(case.team, case.must_wake) for case in TWO.layers if case.gap_seconds} == {
        (Team.NODE, True),
        (Team.NODE, False),
        (Team.SLICED, True),
        (Team.SLICED, False),
    }
    assert TWO.memories == ((0,), (1,), (0, 1))
    # Nobody sits twice, and no worker shares its core.
    for case in TWO.layers:
        cpu_ids = [cpu_id for part in case.slices for cpu_id in part]
        assert len(set(cpu_ids)) == len(cpu_ids)


def test_nodes_without_cores_are_read_from_and_never_read() -> None:
    nodes = bench_nodes(machine_topology(MachineShape(even_nodes(2, 4))))
    memory_only = replace(nodes[1], cpu_ids=())
    cases = programme((nodes[0], memory_only))
    assert {reader.node_id for case in cases.reads for reader in case.readers} == {0}
    assert (1,) in cases.memories
    assert programme((memory_only,)).reads == ()


def test_worker_counts_double_and_end_at_the_most() -> None:
    assert worker_counts(1) == (1,)
    assert worker_counts(2) == (1, 2)
    assert worker_counts(12) == (1, 2, 4, 8, 12)
    assert worker_counts(16) == (1, 2, 4, 8, 16)


def test_every_constant_of_the_synthetic_machine_is_found() -> None:
    conclusions = conclude(measured_on(SyntheticMachine()), cache_bytes=None)
    for name in LayerCosts.__dataclass_fields__:
        assert getattr(conclusions.layer_costs, name) == pytest.approx(getattr(TRUTH, name)), name
    assert conclusions.core_rate == pytest.approx(5e9)
    rates = {result.case.worker_count: result.rate.median for result in conclusions.sweep}
    assert rates == pytest.approx({1: 5e9, 2: 10e9, 4: 20e9, 8: 40e9})
    assert conclusions.findings == ()


def test_one_package_leaves_the_costs_between_packages_open() -> None:
    costs = conclude(measured_on(SyntheticMachine(), ONE), None).layer_costs
    assert costs.base_seconds == pytest.approx(TRUTH.base_seconds)
    assert (costs.cross_seconds, costs.wake_seconds, costs.claim_seconds) == (None, None, None)


def test_rates_that_vary_are_not_judged_and_said_so() -> None:
    measured = measured_on(SyntheticMachine(noise=0.5))
    conclusions = conclude(measured, None)
    assert not conclusions.is_trustworthy
    assert any("a factor of" in finding and "not judged" in finding for finding in conclusions.findings)
    document = bench_document(MOMENT, measured, conclusions, "avx2")
    assert "bandwidth" not in document
    assert any("varied too much" in line for line in report_lines(measured, conclusions))
    assert conclude(measured_on(SyntheticMachine(noise=0.05)), None).is_trustworthy


def test_memory_that_does_not_lie_where_it_should_is_left_out() -> None:
    conclusions = conclude(measured_on(SyntheticMachine(local_ratio=0.94)), None)
    assert conclusions.bandwidth == ()
    assert conclusions.core_rate is None
    assert "only 94%" in conclusions.findings[0]
    assert conclude(measured_on(SyntheticMachine(local_ratio=0.95)), None).bandwidth


def test_a_block_smaller_than_the_caches_is_said() -> None:
    measured = measured_on(SyntheticMachine())
    assert any("last cache" in finding for finding in conclude(measured, GIB // 3).findings)
    assert not any("last cache" in finding for finding in conclude(measured, GIB // 4).findings)


def test_the_planner_reads_what_the_benchmark_writes() -> None:
    measured = measured_on(SyntheticMachine())
    conclusions = conclude(measured, None)
    benchmark = benchmark_from_json(json.dumps(bench_document(MOMENT, measured, conclusions, "avx2")))
    assert benchmark.is_complete
    assert benchmark.layer_costs == conclusions.layer_costs
    assert {(cell.reader_node, cell.memory_node): cell.bytes_per_second for cell in benchmark.bandwidth} == {
        (0, 0): 60e9,
        (0, 1): 25e9,
        (1, 0): 25e9,
        (1, 1): 60e9,
    }
    assert (benchmark.kernel_release, benchmark.measured_at) == ("6.1.0", MOMENT.measured_at)


def test_time_is_bounded_and_rounds_are_enough() -> None:
    machine = SyntheticMachine()
    measured = measured_on(machine, seconds=20)
    assert measured.round_count >= LEAST_ROUNDS
    assert machine.now_seconds <= 1.6 * 20


def test_a_machine_that_is_far_too_slow_is_refused() -> None:
    machine = SyntheticMachine()
    ordinary = machine.read

    def slow(case: ReadCase, seconds: float) -> float:
        machine.now_seconds += 5.0
        return ordinary(case, seconds)

    machine.read = slow  # type: ignore[method-assign]
    with pytest.raises(BenchmarkRefused, match="seconds have passed"):
        measured_on(machine, seconds=1)


def test_copies_are_timed_alone_and_while_the_pool_reads() -> None:
    measured = measured_on(OneDevice())
    assert [(copy.device, copy.node_id, copy.alone.median) for copy in measured.copies] == [
        ("GPU 0", 0, 12e9),
        ("GPU 0", 1, 9e9),
    ]
    assert all(copy.pool_rate.median == pytest.approx(80e9) for copy in measured.copies)
    lines = report_lines(measured, conclude(measured, None))
    assert sum(line.startswith("copies    to GPU 0") for line in lines) == 2
    without = measured_on(SyntheticMachine())
    assert "copies    no GPU in use" in "\n".join(report_lines(without, conclude(without, None)))


def test_every_step_is_told_before_it_is_taken() -> None:
    machine, told = OneDevice(), list[str]()
    instruments = Instruments(machine, machine, machine.clock)
    measure(ONE, instruments, Bounds(10, GIB), lambda what, fraction: told.append(what))
    assert told[0] == "placing memory on node 0"
    assert f"round 1: {ONE.reads[0].name}" in told
    assert told[-1] == "copying from node 0 to GPU 0"


def node_with_free(free_bytes: int | None) -> Programme:
    return replace(TWO, nodes=tuple(replace(node, free_bytes=free_bytes) for node in TWO.nodes))


def test_blocks_pass_the_caches_and_stay_below_a_share_of_what_is_free() -> None:
    plenty = node_with_free(64 * GIB).nodes
    assert block_bytes(plenty, None, None) == GIB
    assert block_bytes(plenty, 300 << 20, None) == 8 * (300 << 20)
    little = node_with_free(GIB).nodes
    taken = block_bytes(little, 300 << 20, None)
    # The interleaved block takes its half on each node as well.
    assert taken * 1.5 <= FREE_SHARE * GIB
    assert block_bytes(plenty, None, 2 * GIB) == 2 * GIB


def test_too_much_is_refused_with_what_would_do() -> None:
    with pytest.raises(BenchmarkRefused) as caught:
        block_bytes(node_with_free(GIB).nodes, None, GIB)
    assert caught.value.remedy.startswith("give --bytes ")
    with pytest.raises(BenchmarkRefused, match="free"):
        block_bytes(node_with_free(LEAST_NODE_BYTES).nodes, None, None)
