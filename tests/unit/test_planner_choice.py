"""Which policy is chosen: the known truths, and reported machines as topology in, policy or Reason out."""

from __future__ import annotations

import pytest

from planner import Confidence, Effect, MemoryMode, Objective, Plan, Policy
from planner.candidates import fitted_parts
from tests.support.machines import GIB, GpuShape, MachineShape, NodeShape, even_nodes
from tests.support.planning import codes, planned, reason_of, refused


def numbered(first: int, last: int) -> tuple[tuple[int, ...], ...]:
    return tuple((cpu,) for cpu in range(first, last + 1))


# seed-strata-3413: 2 x 12 cores, 2 x 32 GiB, 44 GiB of experts.
XEON_6226 = MachineShape(
    even_nodes(2, 12, threads_per_core=2, total_gib=32, free_gib=31), (GpuShape("0000:3b:00.0", 0),)
)


def test_seed_3413_is_split_over_22_workers_with_tight_headroom() -> None:
    plan = planned(XEON_6226, 44)
    assert plan.policy is Policy.SPLIT
    assert len(plan.layout.workers) == 22
    assert "headroom-tight" in codes(plan, Effect.WARNS)
    assert plan.process_memory.mode is MemoryMode.INTERLEAVE


def test_seed_2684_binds_to_the_gpus_node_for_prompts() -> None:
    nodes = even_nodes(2, 22, threads_per_core=2, total_gib=64, free_gib=60)
    shape = MachineShape(nodes, (GpuShape("0000:82:00.0", 1),))
    plan = planned(shape, 46.84, objective=Objective.PROMPT)
    assert plan.policy is Policy.SINGLE_SOCKET
    assert plan.memory_nodes == (1,)
    assert plan.process_memory.mode is MemoryMode.PREFERRED
    assert "prompt-at-gpu" in codes(plan, Effect.CHOOSES)


def test_seed_3708_a_never_spreads_when_all_experts_are_in_vram() -> None:
    shape = MachineShape(even_nodes(2, 16), (GpuShape("0000:01:00.0", 0), GpuShape("0000:81:00.0", 1)))
    plan = planned(shape, 44, cpu_share=0.0)
    assert plan.policy is Policy.SINGLE_SOCKET
    assert len(plan.layout.workers) == 1
    assert "all-experts-in-vram" in codes(plan, Effect.CHOOSES)
    for policy in (Policy.SPLIT, Policy.INTERLEAVE):
        assert [r.code for r in refused(shape, 44, cpu_share=0.0, requested_policy=policy)] == [
            "all-experts-in-vram"
        ]


def test_seed_3708_c_splits_the_arena_and_interleaves_the_other_buffers() -> None:
    shape = MachineShape(even_nodes(2, 18, total_gib=96, free_gib=68), (GpuShape("0000:81:00.0", 1),))
    plan = planned(shape, 71.7, other_host_bytes=35 * GIB)
    assert plan.policy is Policy.SPLIT
    assert plan.process_memory.mode is MemoryMode.INTERLEAVE
    assert plan.process_memory.node_ids == (0, 1)


def test_freetoken_18_is_not_confined_to_one_socket() -> None:
    shape = MachineShape(even_nodes(2, 16, total_gib=256), (GpuShape("0000:01:00.0", 0),))
    assert planned(shape, 143).policy is Policy.SPLIT


def test_a_small_arena_stays_on_one_socket_because_crossing_costs_more() -> None:
    plan = planned(MachineShape(even_nodes(2, 16, total_gib=384)), 0.25)
    assert plan.policy is Policy.SINGLE_SOCKET
    veto = reason_of(plan, "estimated-no-gain")
    assert veto.policy is Policy.SPLIT
    assert isinstance(veto.evidence["gain"], float)
    assert veto.evidence["gain"] <= 0.07


def test_an_arena_that_fits_no_socket_and_no_slice_is_interleaved() -> None:
    nodes = even_nodes(2, 12, total_gib=64, free_gib=(20, 60))
    plan = planned(MachineShape(nodes), 62)
    assert plan.policy is Policy.INTERLEAVE
    assert plan.layout.slices[0].node_ids == (0, 1)
    assert "node-too-small-for-slice" in codes(plan, Effect.REJECTS)


def test_a_machine_with_one_node_is_off_without_noise() -> None:
    plan = planned(
        MachineShape(
            even_nodes(1, 16, threads_per_core=2), (GpuShape("0000:0a:00.0", -1),), numa_balancing=1
        ),
        10,
    )
    assert plan.policy is Policy.OFF
    assert codes(plan) == ["single-node-machine"]
    assert [candidate.policy for candidate in plan.candidates] == [Policy.OFF]
    assert plan.layout.slices[0].node_ids == ()
    assert plan.process_memory.mode is MemoryMode.DEFAULT


@pytest.mark.parametrize("policy", [Policy.SPLIT, Policy.INTERLEAVE])
def test_one_node_refuses_policies_that_need_several(policy: Policy) -> None:
    (reason,) = refused(MachineShape(even_nodes(1, 4)), 1, requested_policy=policy)
    assert (reason.code, reason.effect) == ("single-node-machine", Effect.REJECTS)


def test_one_node_takes_single_socket_when_it_is_asked_for() -> None:
    plan = planned(MachineShape(even_nodes(1, 4)), 1, requested_policy=Policy.SINGLE_SOCKET)
    assert plan.policy is Policy.SINGLE_SOCKET
    assert codes(plan) == ["policy-requested"]


def test_guests_with_one_core_sockets_on_one_node_are_one_node() -> None:
    nodes = (NodeShape(0, 0, numbered(0, 7)),)
    assert codes(planned(MachineShape(nodes), 1)) == ["single-node-machine"]


def test_a_model_without_experts_is_off() -> None:
    plan = planned(XEON_6226, 0, other_host_bytes=GIB)
    assert plan.policy is Policy.OFF
    assert codes(plan, Effect.CHOOSES) == ["no-experts"]
    asked = planned(XEON_6226, 0, requested_policy=Policy.SPLIT)
    assert "no-experts" in codes(asked, Effect.INFORMS)


def test_off_is_given_when_asked_for() -> None:
    plan = planned(XEON_6226, 10, requested_policy=Policy.OFF)
    assert plan.policy is Policy.OFF
    assert plan.layout.slices[0].node_ids == ()


def test_equal_sockets_go_to_the_gpu_and_say_so() -> None:
    shape = MachineShape(even_nodes(2, 12), (GpuShape("0000:81:00.0", 1),))
    plan = planned(shape, 0.25)
    assert plan.memory_nodes == (1,)
    assert "gpu-node-preferred" in codes(plan, Effect.CHOOSES)
    assert planned(MachineShape(even_nodes(2, 12)), 0.25).memory_nodes == (0,)


def test_the_socket_with_more_workers_wins_over_the_gpus() -> None:
    nodes = (NodeShape(0, 0, numbered(0, 11)), NodeShape(1, 1, numbered(12, 17)))
    shape = MachineShape(nodes, (GpuShape("0000:81:00.0", 1),))
    assert planned(shape, 0.25).memory_nodes == (0,)


def test_sub_numa_nodes_of_a_package_are_one_socket() -> None:
    plan = planned(MachineShape(even_nodes(4, 8, nodes_per_package=2)), 0.25)
    assert plan.policy is Policy.SINGLE_SOCKET
    assert plan.layout.slices[0].node_ids == (0, 1)
    assert plan.process_memory.mode is MemoryMode.INTERLEAVE
    assert plan.memory_nodes == (0, 1)


def test_balanced_asks_twice_the_gain_of_decode() -> None:
    shape = MachineShape(even_nodes(2, 12, total_gib=256), (GpuShape("0000:01:00.0", 0),))
    chosen = {
        (size_gib, objective): planned(shape, size_gib, objective=objective).policy
        for size_gib in (2, 8, 10, 12, 14, 16, 20, 44)
        for objective in (Objective.DECODE, Objective.BALANCED)
    }
    decode = [
        size
        for size, objective in chosen
        if objective is Objective.DECODE and chosen[size, objective] is Policy.SPLIT
    ]
    balanced = [size for size, o in chosen if o is Objective.BALANCED and chosen[size, o] is Policy.SPLIT]
    assert set(balanced) < set(decode)


# Traps: topology and configuration in, policy or Reason out (shared/cases/traps.md).


def test_trap_kt_1147_four_nodes_hold_a_quarter_each() -> None:
    shape = MachineShape(even_nodes(4, 16, nodes_per_package=2, total_gib=256))
    plan = planned(shape, 375)
    assert plan.policy is Policy.SPLIT
    assert [part.size_bytes for part in plan.arena_slices] == [375 * GIB // 4] * 4


@pytest.mark.parametrize("node_count", [3, 5, 6, 10])
def test_trap_lvllm_odd_node_counts_get_a_plan(node_count: int) -> None:
    plan = planned(MachineShape(even_nodes(node_count, 8)), 44)
    assert plan.policy is Policy.SPLIT
    assert len(plan.layout.slices) == node_count


def test_trap_llamacpp_5121_cpu_numbers_are_not_contiguous() -> None:
    nodes = even_nodes(2, 32, threads_per_core=2)
    assert [(cores[0], cores[-1]) for cores in (node.cores for node in nodes)] == [
        ((0, 64), (31, 95)),
        ((32, 96), (63, 127)),
    ]
    plan = planned(MachineShape(nodes), 44)
    first = {worker.cpu_id for worker in plan.layout.workers if worker.slice_index == 0}
    assert first <= set(range(32))


def test_trap_odd_even_numbering() -> None:
    nodes = tuple(NodeShape(n, n, tuple((cpu, cpu + 40) for cpu in range(n, 40, 2))) for n in (0, 1))
    plan = planned(MachineShape(nodes), 44)
    assert plan.policy is Policy.SPLIT
    assert all(
        worker.cpu_id is not None and worker.cpu_id % 2 == worker.slice_index
        for worker in plan.layout.workers
    )


def test_trap_sglang_20437_workers_stay_inside_the_cpuset() -> None:
    shape = MachineShape(even_nodes(2, 32), allowed_cpus="4-11")
    plan = planned(shape, 10)
    assert {worker.cpu_id for worker in plan.layout.workers} <= set(range(4, 12))
    assert reason_of(plan, "one-node-cpuset").effect is Effect.CHOOSES
    assert plan.policy is Policy.SINGLE_SOCKET


def test_trap_ollama_5554_a_container_of_eight_cpus_on_a_big_host() -> None:
    plan = planned(MachineShape(even_nodes(2, 32), allowed_cpus="0-7"), 10)
    assert plan.policy is Policy.SINGLE_SOCKET
    assert len(plan.layout.workers) <= 8


def test_trap_ollama_5554_lopsided_cpuset_is_evened_out() -> None:
    shape = MachineShape(even_nodes(2, 16), allowed_cpus="0-11,16-24", allowed_nodes="0-1")
    plan = planned(shape, 44, requested_policy=Policy.SPLIT)
    assert [plan.layout.worker_count_of(index) for index in (0, 1)] == [9, 9]
    assert reason_of(plan, "workers-lopsided").effect is Effect.INFORMS


def test_trap_suse_cpuset_9_mems_of_one_node() -> None:
    (reason,) = refused(MachineShape(even_nodes(2, 8, total_gib=32), allowed_nodes="0"), 44)
    assert "only node 0" in reason.message


def test_trap_epyc7551_cpus_without_memory_read_from_their_nearest_node() -> None:
    nodes = tuple(
        NodeShape(n, n // 4, numbered(n * 8, n * 8 + 7), 16 * GIB if n in (1, 5) else 0) for n in range(8)
    )
    row = {n: tuple(10 if m == n else 16 if m // 4 == n // 4 else 32 for m in range(8)) for n in range(8)}
    plan = planned(MachineShape(nodes, distances=row), 20)
    assert plan.policy is Policy.SPLIT
    assert [part.node_ids for part in plan.layout.slices] == [(1,), (5,)]
    groups = [
        {worker.cpu_id for worker in plan.layout.workers if worker.slice_index == index} for index in (0, 1)
    ]
    assert groups[0] <= set(range(32))
    assert groups[1] <= set(range(32, 64))


def test_trap_gpu_memory_nodes_hold_no_slice() -> None:
    gpu_memory = tuple(NodeShape(node_id, 9, (), 96 * GIB) for node_id in (2, 10, 18, 26))
    plan = planned(MachineShape((*even_nodes(2, 36), *gpu_memory), (GpuShape("0008:01:00.0", 2),)), 44)
    assert plan.memory_nodes == (0, 1)
    assert "gpu-node-unknown" not in codes(plan)


def test_trap_vllm_51584_cache_is_room_and_the_host_wide_sum_is_not() -> None:
    cached = NodeShape(0, 0, numbered(0, 7), 504 * GIB, int(2.3 * GIB), 480 * GIB)
    full = NodeShape(1, 1, numbered(8, 15), 504 * GIB, 39 * GIB)
    plan = planned(MachineShape((cached, full)), 200, requested_policy=Policy.SINGLE_SOCKET)
    assert plan.memory_nodes == (0,)
    assert plan.release_page_cache
    (split,) = refused(MachineShape((cached, full)), 200, requested_policy=Policy.SPLIT)
    assert split.evidence["node"] == 1


def test_interleaved_pages_go_where_there_is_room() -> None:
    assert fitted_parts(200, (480, 37)) == (163, 37)
    assert fitted_parts(90, (None, 10, None)) == (40, 10, 40)
    assert fitted_parts(10, (3, 3)) == (5, 5)
    assert sum(fitted_parts(101, (50, 50, 50))) == 101


def test_memory_of_other_nodes_than_the_cpus_still_gives_a_plan() -> None:
    plan = planned(MachineShape(even_nodes(4, 4), allowed_cpus="0-3", allowed_nodes="2-3"), 1)
    assert {worker.cpu_id for worker in plan.layout.workers} <= {0, 1, 2, 3}
    assert set(plan.memory_nodes) <= {2, 3}


def test_the_same_facts_give_the_same_plan() -> None:
    assert planned(XEON_6226, 44) == planned(XEON_6226, 44)


def test_fingerprints_tell_decisions_and_machines_apart() -> None:
    plan = planned(XEON_6226, 44)
    other = planned(XEON_6226, 44, requested_policy=Policy.INTERLEAVE)
    assert len(plan.fingerprint) == 12
    assert plan.fingerprint != other.fingerprint
    assert plan.machine_fingerprint == other.machine_fingerprint
    narrowed = MachineShape(XEON_6226.nodes, XEON_6226.gpus, allowed_cpus="1-11")
    assert planned(narrowed, 4).machine_fingerprint == plan.machine_fingerprint
    assert planned(MachineShape(even_nodes(2, 12)), 4).machine_fingerprint != plan.machine_fingerprint


def test_cpus_whose_memory_is_forbidden_do_not_work_across_sockets() -> None:
    plan = planned(MachineShape(even_nodes(2, 8), allowed_nodes="1"), 10)
    assert plan.policy is Policy.SINGLE_SOCKET
    assert {worker.cpu_id for worker in plan.layout.workers} <= set(range(8, 16))
    assert codes(plan, Effect.CHOOSES) == ["one-node-cpuset"]


def test_unsliced_work_over_sockets_needs_a_gain_and_is_doubted() -> None:
    def plan_with(free_gib: float) -> Plan:
        # Node 1 cannot hold half of the arena, so the choice is one socket or pages spread over both.
        return planned(MachineShape(even_nodes(2, 8, total_gib=512, free_gib=(400, free_gib))), 200)

    spread = plan_with(60)
    assert spread.policy is Policy.INTERLEAVE
    assert 0.2 < float(str(reason_of(spread, "estimated-gain").evidence["gain"])) < 0.9
    assert spread.confidence is Confidence.ESTIMATED
    small = planned(MachineShape(even_nodes(2, 8, total_gib=512, free_gib=(400, 2.5))), 2)
    assert small.policy is Policy.SINGLE_SOCKET


def test_a_close_call_says_what_settles_it() -> None:
    shape = MachineShape(even_nodes(2, 2), (GpuShape("0000:01:00.0", 0),))
    plan = planned(shape, 44)
    assert plan.policy is Policy.SINGLE_SOCKET
    assert "stratactl tune" in str(reason_of(plan, "close-call").remedy)
    assert "close-call" not in codes(planned(MachineShape(even_nodes(2, 16)), 0.25))


def test_one_node_full_of_cache_asks_for_its_release() -> None:
    assert planned(MachineShape(even_nodes(1, 4, free_gib=8, cache_gib=50)), 10).release_page_cache
    assert not planned(MachineShape(even_nodes(1, 4, free_gib=13, cache_gib=50)), 10).release_page_cache


def test_one_node_has_nothing_to_place_so_nothing_is_said_about_placing() -> None:
    assert codes(planned(MachineShape(even_nodes(1, 4)), 1, placement_possible=False)) == [
        "single-node-machine"
    ]
