"""Hard and soft rules, both sides of every limit."""

from __future__ import annotations

import pytest

from planner import Effect, PlanRequest, Policy
from planner.facts import NODE_HEADROOM_BYTES, gather_facts, node_headroom_bytes
from tests.support.machines import (
    GIB,
    GpuShape,
    MachineShape,
    NodeShape,
    even_nodes,
    machine_topology,
)
from tests.support.planning import codes, planned, reason_of, refused

SPLIT = {"requested_policy": Policy.SPLIT}


def two_nodes(free_gib: tuple[float, ...], cache_gib: float = 0, **shape: object) -> MachineShape:
    nodes = even_nodes(2, 12, total_gib=64, free_gib=free_gib, cache_gib=cache_gib)
    return MachineShape(nodes, **shape)  # type: ignore[arg-type]


def test_headroom_is_two_gib_and_an_eighth_of_small_nodes() -> None:
    assert node_headroom_bytes(64 * GIB) == NODE_HEADROOM_BYTES
    assert node_headroom_bytes(16 * GIB) == 2 * GIB
    assert node_headroom_bytes(8 * GIB) == GIB
    assert node_headroom_bytes(None) == NODE_HEADROOM_BYTES


def test_split_is_refused_when_one_node_cannot_hold_its_slice_with_headroom() -> None:
    (reason,) = refused(two_nodes((23.9, 40)), 44, **SPLIT)
    assert reason.code == "node-too-small-for-slice"
    assert reason.evidence["node"] == 0
    assert reason.evidence["needed_bytes"] == 24 * GIB


def test_split_is_accepted_when_the_fit_is_exact() -> None:
    assert planned(two_nodes((24, 24)), 44, **SPLIT).policy is Policy.SPLIT


def test_each_node_also_holds_its_part_of_the_other_buffers() -> None:
    (reason,) = refused(two_nodes((24, 24)), 44, other_host_bytes=2, **SPLIT)
    # The sum over both nodes exceeds what both have, so the request itself is refused.
    assert reason.code == "arena-exceeds-memory"
    (reason,) = refused(two_nodes((24, 40)), 44, other_host_bytes=2, **SPLIT)
    assert reason.code == "node-too-small-for-slice"
    assert reason.evidence["needed_bytes"] == 24 * GIB + 1


def test_reclaimable_cache_counts_as_room_and_asks_for_its_release() -> None:
    plan = planned(two_nodes((4, 40), cache_gib=20), 44, **SPLIT)
    assert plan.release_page_cache
    assert not planned(two_nodes((24, 24)), 44, **SPLIT).release_page_cache


def test_one_socket_is_refused_when_the_arena_does_not_fit_it() -> None:
    reasons = refused(two_nodes((45.9, 45.9)), 44, requested_policy=Policy.SINGLE_SOCKET)
    assert [reason.code for reason in reasons] == ["arena-exceeds-nodes"] * 2
    assert planned(two_nodes((46, 45.9)), 44, requested_policy=Policy.SINGLE_SOCKET).memory_nodes == (0,)


def test_more_than_all_memory_is_refused_with_the_numbers() -> None:
    (reason,) = refused(two_nodes((24, 24)), 45)
    assert reason.code == "arena-exceeds-memory"
    assert (reason.evidence["needed_bytes"], reason.evidence["available_bytes"]) == (49 * GIB, 48 * GIB)
    assert planned(two_nodes((24, 24)), 44).policy is Policy.SPLIT


def test_a_cpuset_that_leaves_one_small_node_says_so() -> None:
    (reason,) = refused(two_nodes((24, 24), allowed_nodes="0"), 44)
    assert reason.code == "arena-exceeds-memory"
    assert "only node 0 is usable" in reason.message
    assert reason.remedy == "allow more memory nodes in the cpuset"


def test_the_cgroup_limit_refuses_arena_and_buffers_together() -> None:
    shape = MachineShape(even_nodes(1, 4, total_gib=256), memory_max_bytes=75 * GIB)
    (reason,) = refused(shape, 60, other_host_bytes=32 * GIB)
    assert reason.code == "arena-exceeds-cgroup-limit"
    assert reason.evidence == {"needed_bytes": 92 * GIB, "limit_bytes": 75 * GIB}
    assert planned(shape, 60, other_host_bytes=15 * GIB).policy is Policy.OFF


@pytest.mark.parametrize("policy", [Policy.SPLIT, Policy.INTERLEAVE])
def test_policies_on_several_nodes_need_placement(policy: Policy) -> None:
    shape = two_nodes((60, 60))
    (reason,) = refused(shape, 10, requested_policy=policy, placement_possible=False)
    assert reason.code == "placement-not-possible"
    assert "SYS_NICE" in str(reason.remedy)
    assert planned(shape, 10, requested_policy=policy, placement_possible=None).policy is policy


def test_without_placement_one_socket_keeps_its_workers_and_places_nothing() -> None:
    plan = planned(two_nodes((60, 60)), 10, placement_possible=False)
    assert plan.policy is Policy.SINGLE_SOCKET
    assert plan.layout.slices[0].node_ids == ()
    assert plan.process_memory.node_ids == ()
    assert reason_of(plan, "placement-not-possible").effect is Effect.REJECTS
    warnings = plan.reasons_with(Effect.WARNS)
    assert [reason.code for reason in warnings] == ["placement-not-possible"]


def test_unknown_memory_is_said_and_refuses_nothing() -> None:
    nodes = (NodeShape(0, 0, ((0,), (1,)), None), NodeShape(1, 1, ((2,), (3,)), None))
    plan = planned(MachineShape(nodes), 1000)
    assert reason_of(plan, "memory-unknown").effect is Effect.WARNS
    assert "memory-unknown" not in codes(planned(two_nodes((60, 60)), 10))


def test_headroom_is_tight_above_three_quarters() -> None:
    assert "headroom-tight" not in codes(planned(two_nodes((32, 32)), 44, **SPLIT))
    plan = planned(two_nodes((31.9, 32)), 44, **SPLIT)
    assert reason_of(plan, "headroom-tight").evidence["node"] == 0


def test_buffers_that_do_not_fit_beside_a_one_socket_arena_are_a_warning() -> None:
    shape, one_socket = two_nodes((48, 48)), {"requested_policy": Policy.SINGLE_SOCKET}
    assert "other-buffers-crowd-node" in codes(planned(shape, 40, other_host_bytes=7 * GIB, **one_socket))
    assert "other-buffers-crowd-node" not in codes(planned(shape, 40, other_host_bytes=6 * GIB, **one_socket))


def test_a_gpu_of_unknown_node_matters_only_with_several_nodes() -> None:
    gpu = (GpuShape("0000:01:00.0", -1),)
    assert "gpu-node-unknown" in codes(planned(MachineShape(even_nodes(2, 4), gpu), 1))
    assert "gpu-node-unknown" not in codes(planned(MachineShape(even_nodes(1, 4), gpu), 1))
    assert "gpu-node-unknown" not in codes(planned(MachineShape(even_nodes(2, 4), gpu), 1, gpu_node_ids=(1,)))


def test_a_gpu_outside_the_cpuset_is_a_warning() -> None:
    shape = two_nodes((60, 60), gpus=(GpuShape("0000:01:00.0", 0),), allowed_nodes="1", allowed_cpus="12-23")
    plan = planned(shape, 10)
    assert plan.memory_nodes == (1,)
    assert reason_of(plan, "gpu-node-outside-cpuset").evidence == {"gpu_nodes": (0,), "usable_nodes": (1,)}


def test_a_gpus_own_memory_node_counts_as_the_nearest_node_with_cpus() -> None:
    nodes = (*even_nodes(2, 4), NodeShape(2, 9, ()), NodeShape(10, 9, ()))
    distances = {0: (10, 40, 80, 80), 1: (40, 10, 80, 80), 2: (80, 40, 10, 80), 10: (80, 80, 80, 10)}
    topology = machine_topology(MachineShape(nodes, (GpuShape("0000:01:00.0", 2),), distances))
    facts = gather_facts(topology, PlanRequest())
    assert facts.gpu_node_ids == (1,)
    assert [budget.node_id for budget in facts.budgets] == [0, 1]


def test_numa_balancing_is_a_note_with_several_nodes() -> None:
    assert "numa-balancing-on" in codes(planned(two_nodes((60, 60), numa_balancing=1), 1), Effect.INFORMS)
    assert "numa-balancing-on" not in codes(planned(two_nodes((60, 60), numa_balancing=0), 1))
    assert "numa-balancing-on" not in codes(planned(MachineShape(even_nodes(1, 4), numa_balancing=1), 1))


def test_idle_huge_pages_are_a_warning_above_a_twentieth_of_the_node() -> None:
    def shape(pages: int) -> MachineShape:
        return MachineShape((NodeShape(0, 0, ((0,), (1,)), 64 * GIB, idle_huge_pages=pages),))

    assert "huge-pages-idle" in codes(planned(shape(1700), 1))
    assert "huge-pages-idle" not in codes(planned(shape(1600), 1))


def test_an_affinity_mask_inside_the_cpuset_is_a_warning() -> None:
    from planner.decide import make_plan
    from planner.discover import topology_of
    from tests.support.machines import MemoryTree, machine_files

    def plan_with(mask: str) -> list[str]:
        files = machine_files(two_nodes((60, 60))) | {"/proc/self/status": f"Cpus_allowed_list:\t{mask}"}
        return codes(make_plan(topology_of(MemoryTree(files)), PlanRequest()))

    assert "affinity-narrows-cpuset" in plan_with("0-1")
    assert "affinity-narrows-cpuset" not in plan_with("0-23")


def test_transparent_huge_pages_need_one_slice_and_a_kernel_that_has_them() -> None:
    shape = two_nodes((60, 60))
    assert not planned(shape, 44, **SPLIT).transparent_huge_pages
    assert planned(shape, 44, requested_policy=Policy.SINGLE_SOCKET).transparent_huge_pages
    never = two_nodes((60, 60), transparent_huge_pages="always madvise [never]")
    assert not planned(never, 44, requested_policy=Policy.SINGLE_SOCKET).transparent_huge_pages
