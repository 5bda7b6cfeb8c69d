"""Reported traps that a planner can know about: topology and configuration in, policy or Reason out.

Numbers and sources are those of the reports named in each test; more of them are in test_planner_choice.py,
test_planner_rules.py and test_planner_cost.py. What only a running daemon can meet is tested elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import (
    ArenaSpec,
    BandwidthCell,
    Benchmark,
    Calibration,
    CpuModel,
    Effect,
    MemoryMode,
    Objective,
    Plan,
    PlanRequest,
    Policy,
    SweepPoint,
    machine_fingerprint,
    make_plan,
)
from planner.request import SMALL_PAGE_BYTES
from tests.support.machines import (
    GIB,
    GpuShape,
    MachineShape,
    NodeShape,
    even_nodes,
    machine_topology,
)
from tests.support.planning import codes, planned, reason_of, refused, request_for

MIB = 1024**2
HUGE = 2 * MIB


def with_huge_pages(nodes: tuple[NodeShape, ...], counts: tuple[int, ...]) -> tuple[NodeShape, ...]:
    return tuple(replace(node, idle_huge_pages=count) for node, count in zip(nodes, counts, strict=True))


def planned_with_pages(shape: MachineShape, arena_gib: float, matrix_bytes: int, **request: object) -> Plan:
    asked = request_for(arena_gib, page_bytes=HUGE, **request)
    return make_plan(
        machine_topology(shape), replace(asked, arena=replace(asked.arena, expert_matrix_bytes=matrix_bytes))
    )


def test_seed_3708_b_a_huge_page_cannot_be_cut_inside_an_expert() -> None:
    nodes = with_huge_pages(even_nodes(2, 18, total_gib=192), (21_000, 21_000))
    plan = planned_with_pages(MachineShape(nodes), 71.7, matrix_bytes=MIB, requested_policy=Policy.SPLIT)
    assert plan.policy is Policy.SPLIT
    assert plan.page_bytes == SMALL_PAGE_BYTES
    assert reason_of(plan, "page-larger-than-slice").evidence["part_bytes"] == MIB // 2
    whole = planned_with_pages(
        MachineShape(nodes), 71.7, matrix_bytes=2 * HUGE, requested_policy=Policy.SPLIT
    )
    assert whole.page_bytes == HUGE
    assert not whole.transparent_huge_pages


def test_seed_3708_b_a_pool_away_from_the_gpu_stays_legal() -> None:
    nodes = even_nodes(2, 18, total_gib=192, free_gib=(20, 180))
    shape = MachineShape(nodes, (GpuShape("0000:3b:00.0", 0),))
    plan = planned(shape, 71.7, allowed_policies=(Policy.SINGLE_SOCKET, Policy.OFF))
    assert (plan.policy, plan.memory_nodes) == (Policy.SINGLE_SOCKET, (1,))
    assert "policy-excluded" in codes(plan, Effect.REJECTS)


def test_trap_k8s_119851_all_huge_pages_on_one_node_cannot_serve_a_split() -> None:
    nodes = with_huge_pages(even_nodes(2, 12, total_gib=64), (20_000, 0))
    plan = planned_with_pages(MachineShape(nodes), 30, matrix_bytes=2 * HUGE, requested_policy=Policy.SPLIT)
    assert plan.page_bytes == SMALL_PAGE_BYTES
    found = reason_of(plan, "huge-pages-too-few")
    assert (found.evidence["node"], found.evidence["free_pages"]) == (1, 0)


def test_trap_llamacpp_21821_both_numbers_are_named() -> None:
    nodes = with_huge_pages(even_nodes(2, 12, total_gib=128), (13_567, 0))
    shape = MachineShape(nodes)
    asked = {"requested_policy": Policy.SINGLE_SOCKET}
    plan = planned_with_pages(shape, 23_584 * HUGE / GIB, matrix_bytes=HUGE, **asked)
    found = reason_of(plan, "huge-pages-too-few")
    assert "13567" in found.message
    assert "23584" in found.message
    enough = planned_with_pages(shape, 13_567 * HUGE / GIB, matrix_bytes=HUGE, **asked)
    assert enough.page_bytes == HUGE
    assert "huge-pages-too-few" not in codes(enough)


def test_trap_nr_hugepages_even_half_of_a_global_pool_is_stranded() -> None:
    nodes = with_huge_pages(even_nodes(2, 64, total_gib=754), (200_000, 200_000))
    plan = planned_with_pages(
        MachineShape(nodes), 376.65, matrix_bytes=HUGE, requested_policy=Policy.SINGLE_SOCKET
    )
    stranded = reason_of(plan, "huge-pages-stranded")
    assert stranded.evidence["free_pages"] == 200_000
    assert "own nr_hugepages" in str(stranded.remedy)
    assert plan.page_bytes == HUGE


def test_freetoken_18_a_microbenchmark_of_one_socket_overrules_nothing() -> None:
    """Isolated kernels gained 30 % when confined; serving lost 28 %. A sweep may explain and not decide."""
    shape = MachineShape(even_nodes(2, 16, total_gib=256), (GpuShape("0000:01:00.0", 0),))
    topology = machine_topology(shape)
    fingerprint = machine_fingerprint(topology)
    confined = Benchmark(
        fingerprint,
        (BandwidthCell(0, 0, 166e9), BandwidthCell(1, 1, 166e9)),
        worker_sweep=(SweepPoint(1, 6e9), SweepPoint(15, 86.9e9)),
    )
    for allowed in (tuple(Policy), (Policy.SINGLE_SOCKET, Policy.INTERLEAVE)):
        request = request_for(143, allowed_policies=allowed)
        plan = make_plan(topology, request, Calibration(confined))
        assert plan.policy is not Policy.SINGLE_SOCKET


def test_pub_colibri_82_2s_a_nearly_full_node_is_named() -> None:
    nodes = even_nodes(2, 12, total_gib=128, free_gib=(0.7, 100))
    plan = planned(MachineShape(nodes), 60)
    assert reason_of(plan, "free-memory-skewed").evidence["node"] == 0
    assert reason_of(plan, "free-memory-skewed").effect is Effect.WARNS
    even = even_nodes(2, 12, total_gib=128, free_gib=(60, 100))
    assert "free-memory-skewed" not in codes(planned(MachineShape(even), 60))


def test_pub_colibri_82_4s_a_blanket_interleave_is_refused_when_it_would_catch_the_staging() -> None:
    nodes = even_nodes(4, 16, total_gib=1024)
    shape = MachineShape(nodes, (GpuShape("0000:17:00.0", 0), GpuShape("0000:31:00.0", 0)))
    asked = {"requested_policy": Policy.INTERLEAVE}
    (reason,) = refused(shape, 400, staging_placeable=False, **asked)
    assert reason.code == "staging-under-interleave"
    assert planned(shape, 400, **asked).policy is Policy.INTERLEAVE
    without_gpu = MachineShape(nodes)
    assert planned(without_gpu, 400, staging_placeable=False, **asked).policy is Policy.INTERLEAVE
    split = planned(shape, 400, staging_placeable=False, requested_policy=Policy.SPLIT)
    assert "staging-under-interleave" in codes(split, Effect.WARNS)


def test_pub_1cat_678_every_gpu_stages_on_its_own_node() -> None:
    nodes = tuple(NodeShape(n, n, tuple((cpu, cpu + 40) for cpu in range(n, 40, 2))) for n in (0, 1))
    addresses = ("0000:18:00.0", "0000:3b:00.0", "0000:86:00.0", "0000:af:00.0")
    gpus = tuple(GpuShape(address, index // 2) for index, address in enumerate(addresses))
    plan = planned(MachineShape(nodes, gpus), 44)
    assert [(buffer.pci_address, buffer.node_id) for buffer in plan.gpu_staging] == list(
        zip(addresses, (0, 0, 1, 1), strict=True)
    )
    assert plan.process_memory.mode is MemoryMode.INTERLEAVE


def test_pub_gearshifft_82_staging_of_a_forbidden_or_unknown_node_is_unknown() -> None:
    shape = MachineShape(
        even_nodes(2, 6),
        (GpuShape("0000:01:00.0", 0), GpuShape("0000:81:00.0", 1), GpuShape("0000:82:00.0", -1)),
        allowed_cpus="0-5",
        allowed_nodes="0",
    )
    assert [buffer.node_id for buffer in planned(shape, 4).gpu_staging] == [0, None, None]


def test_pub_colibri_234_two_threads_on_a_core_are_never_planned() -> None:
    shape = MachineShape(even_nodes(2, 64, threads_per_core=2, total_gib=2048))
    for policy in Policy:
        plan = planned(shape, 400, requested_policy=policy, requested_worker_count=256)
        assert len(plan.layout.workers) <= 128
        cores = [worker.cpu_id % 128 for worker in plan.layout.workers if worker.cpu_id is not None]
        assert len(set(cores)) == len(cores)


def test_pub_kt_432_an_oversubscribed_request_is_clamped_with_a_warning() -> None:
    shape = MachineShape(even_nodes(2, 32, total_gib=512))
    plan = planned(shape, 390, requested_worker_count=126, requested_policy=Policy.SPLIT)
    assert len(plan.layout.workers) <= 63
    assert reason_of(plan, "workers-clamped").effect is Effect.WARNS


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 48), policy=st.sampled_from(Policy))
def test_pub_kt_685_no_node_gets_more_workers_than_cores(count: int, policy: Policy) -> None:
    shape = MachineShape(even_nodes(2, 24, total_gib=256))
    if policy is Policy.SPLIT and count < 2:
        assert refused(shape, 100, requested_policy=policy, requested_worker_count=count)
        return
    plan = planned(shape, 100, requested_policy=policy, requested_worker_count=count)
    by_node = [0, 0]
    for worker in plan.layout.workers:
        assert worker.cpu_id is not None
        by_node[worker.cpu_id // 24] += 1
    assert max(by_node) <= 24
    if policy is Policy.SPLIT:
        assert abs(by_node[0] - by_node[1]) <= 1


def test_pub_ollama_8074_a_pool_never_spills_one_worker_onto_another_socket() -> None:
    shape = MachineShape(even_nodes(4, 36, total_gib=256))
    for size_gib in (0.25, 4, 40, 200):
        plan = planned(shape, size_gib)
        packages = {worker.cpu_id // 36 for worker in plan.layout.workers if worker.cpu_id is not None}
        assert len(packages) in (1, 4), size_gib


def test_pub_ik_2396_collapsed_nodes_are_a_valid_baseline_and_say_why() -> None:
    files_of_two_packages = NodeShape(0, 0, tuple((cpu,) for cpu in range(16)))
    topology = machine_topology(MachineShape((files_of_two_packages,)))
    joined = replace(topology, packages=(tuple(range(8)), tuple(range(8, 16))))
    plan = make_plan(joined, request_for(44))
    assert plan.policy is Policy.OFF
    reason = reason_of(plan, "single-node-machine")
    assert "2 packages" in reason.message
    assert "firmware" in reason.message


def test_pub_kt_1730_six_nodes_in_two_packages_are_six_slices_or_two() -> None:
    nodes = tuple(
        NodeShape(n, n // 3, tuple((cpu,) for cpu in range(n * 24, n * 24 + 24)), 256 * GIB) for n in range(6)
    )
    plan = planned(MachineShape(nodes), 500)
    assert plan.policy is Policy.SPLIT
    assert len(plan.layout.slices) == 6
    weighed = {(c.policy, c.slice_count) for c in plan.candidates}
    assert {(Policy.SPLIT, 6), (Policy.SPLIT, 2)} <= weighed


def test_sub_numa_nodes_too_small_for_a_slice_of_their_own_share_their_packages() -> None:
    """Two of four nodes have little memory: a slice for each node fails, one for each package fits."""
    nodes = tuple(
        NodeShape(n, n // 2, tuple((cpu,) for cpu in range(n * 8, n * 8 + 8)), size * GIB)
        for n, size in enumerate((96, 16, 96, 16))
    )
    plan = planned(MachineShape(nodes), 120)
    assert plan.policy is Policy.SPLIT
    assert [part.node_ids for part in plan.layout.slices] == [(0, 1), (2, 3)]
    assert "node-too-small-for-slice" in codes(plan, Effect.REJECTS)
    first = {w.cpu_id for w in plan.layout.workers if w.slice_index == 0 and w.cpu_id is not None}
    assert first <= set(range(16))
    assert {cpu // 8 for cpu in first} == {0, 1}


@pytest.mark.parametrize("objective", [Objective.DECODE, Objective.BALANCED])
def test_pub_kt_docs_k2_a_node_must_hold_its_half(objective: Objective) -> None:
    big = MachineShape(even_nodes(2, 32, total_gib=384))
    assert planned(big, 600, objective=objective).policy is Policy.SPLIT
    small = MachineShape(even_nodes(2, 32, total_gib=256))
    assert [reason.code for reason in refused(small, 600, objective=objective)] == ["arena-exceeds-memory"]


def test_pub_llamafile_765_slices_when_they_can_be_placed_and_one_socket_when_not() -> None:
    shape = MachineShape(even_nodes(2, 16, total_gib=384))
    assert planned(shape, 4.5, placement_possible=False).policy is Policy.SINGLE_SOCKET
    assert planned(shape, 40).policy is Policy.SPLIT


def test_pub_ik_201_snoop_a_poor_link_is_named_when_it_was_measured() -> None:
    model = CpuModel("GenuineIntel", 6, 79, 1, "Intel(R) Xeon(R) CPU E5-2697A v4 @ 2.60GHz")
    topology = machine_topology(MachineShape(even_nodes(2, 16), cpu_model=model))

    def plan_with(crossing: float) -> Plan:
        cells = tuple(
            BandwidthCell(reader, memory, 60e9 if reader == memory else crossing)
            for reader in (0, 1)
            for memory in (0, 1)
        )
        calibration = Calibration(Benchmark(machine_fingerprint(topology), cells))
        return make_plan(topology, request_for(20), calibration)

    poor = reason_of(plan_with(8e9), "link-degraded")
    assert poor.effect is Effect.WARNS
    assert "snoop" in str(poor.remedy)
    assert "link-degraded" not in codes(plan_with(19e9))
    assert "link-degraded" not in codes(make_plan(topology, request_for(20)))


@pytest.mark.parametrize(("local", "both"), [(62.9e9, 1.76), (113.4e9, 2.0)])
def test_pub_colibri_537_and_kt_2175_local_bandwidth_adds_up(local: float, both: float) -> None:
    """Where memory is the bound, two nodes read locally take close to half of one node's time."""
    topology = machine_topology(MachineShape(even_nodes(2, 32, total_gib=256)))
    cells = (BandwidthCell(0, 0, local), BandwidthCell(1, 1, local))
    benchmark = Benchmark(machine_fingerprint(topology), cells, core_rate=50e9)
    plan = make_plan(topology, request_for(100), Calibration(benchmark))
    stream = {c.policy: c.estimate.stream_seconds for c in plan.candidates if c.estimate is not None}
    ratio = stream[Policy.SINGLE_SOCKET] / stream[Policy.SPLIT]
    assert both <= ratio <= 2.05
    assert plan.policy is Policy.SPLIT


def test_pub_llamacpp_27861_the_share_on_the_cpu_decides_the_policy() -> None:
    shape = MachineShape(even_nodes(2, 16, total_gib=128), (GpuShape("0000:3b:00.0", 0),))
    by_share = {share: planned(shape, 44, cpu_share=share).policy for share in (1.0, 0.02, 0.0)}
    assert by_share == {
        1.0: Policy.SPLIT,
        0.02: Policy.SINGLE_SOCKET,
        0.0: Policy.SINGLE_SOCKET,
    }


def test_pub_kt_docs_r1_a_split_is_not_promised_twice_the_speed() -> None:
    shape = MachineShape(
        even_nodes(2, 32, total_gib=512),
        (GpuShape("0000:3b:00.0", 0),),
        cpu_model=CpuModel("GenuineIntel", 6, 143, 8, "a CPU"),
    )
    arena = ArenaSpec(int(396e9), int(12.4e9), (int(396e9) // 58,) * 58)
    plan = make_plan(machine_topology(shape), PlanRequest(arena=arena))
    gain = reason_of(plan, "estimated-gain").evidence["gain"]
    assert isinstance(gain, float)
    assert 0.2 < gain < 0.6


def test_trap_vllm_cpu_bind_memory_covers_every_node_of_the_workers() -> None:
    nodes = tuple(
        NodeShape(n, n // 3, tuple((cpu,) for cpu in range(n * 32, n * 32 + 32)), 128 * GIB) for n in range(6)
    )
    plan = planned(MachineShape(nodes, allowed_cpus="0-95"), 200)
    assert {worker.cpu_id // 32 for worker in plan.layout.workers if worker.cpu_id is not None} <= {0, 1, 2}
    assert {0, 1, 2} <= set(plan.memory_nodes)
    for policy in (Policy.SINGLE_SOCKET, Policy.INTERLEAVE):
        found = planned(MachineShape(nodes), 200, requested_policy=policy)
        homes = {worker.cpu_id // 32 for worker in found.layout.workers if worker.cpu_id is not None}
        assert homes <= set(found.memory_nodes)


def test_the_iommu_is_named_when_it_translates() -> None:
    shape = MachineShape(even_nodes(2, 12), (GpuShape("0000:3b:00.0", 0),))
    topology = machine_topology(shape)
    assert "iommu-translated" in codes(
        make_plan(replace(topology, iommu="translated"), request_for(20)), Effect.INFORMS
    )
    assert "iommu-translated" not in codes(make_plan(replace(topology, iommu="passthrough"), request_for(20)))
    without = replace(topology, iommu="translated", accelerators=())
    assert "iommu-translated" not in codes(make_plan(without, request_for(20)))
