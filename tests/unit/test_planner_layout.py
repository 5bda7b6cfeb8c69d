from __future__ import annotations

import pytest

from planner import Policy, Slice, Worker, unpinned_layout
from planner.layout import even_counts, free_core_count
from tests.support.machines import GIB, GpuShape, MachineShape, NodeShape, even_nodes
from tests.support.planning import codes, planned, reason_of, refused


@pytest.mark.parametrize(("cores", "free"), [(1, 0), (2, 0), (3, 1), (4, 2), (64, 2)])
def test_host_and_spare_core_stay_free_when_there_are_enough(cores: int, free: int) -> None:
    assert free_core_count(cores, 0) == free
    plan = planned(MachineShape(even_nodes(1, cores)), 1)
    assert len(plan.layout.workers) == cores - free


def test_the_spare_lies_elsewhere_when_the_candidate_leaves_cores_unused() -> None:
    assert free_core_count(12, 12) == 1
    plan = planned(MachineShape(even_nodes(2, 12)), 1, requested_policy=Policy.SINGLE_SOCKET)
    assert len(plan.layout.workers) == 11


def test_each_worker_has_the_lowest_sibling_of_its_own_core() -> None:
    plan = planned(MachineShape(even_nodes(1, 4, threads_per_core=2)), 1)
    assert [worker.cpu_id for worker in plan.layout.workers] == [2, 3]
    assert plan.layout.host_cpu_ids == (0, 4)


def test_a_cpuset_that_takes_the_lowest_sibling_leaves_the_other() -> None:
    plan = planned(MachineShape(even_nodes(1, 3, threads_per_core=2), allowed_cpus="3-5"), 1)
    assert [worker.cpu_id for worker in plan.layout.workers] == [4, 5]
    assert plan.layout.host_cpu_ids == (3,)


def test_free_cores_come_from_the_fullest_node_then_the_gpus_then_the_smallest_id() -> None:
    split = {"requested_policy": Policy.SPLIT}
    plain = planned(MachineShape(even_nodes(2, 4)), 1, **split)
    assert [worker.cpu_id for worker in plain.layout.workers] == [1, 2, 3, 5, 6, 7]
    assert plain.layout.host_cpu_ids == (0,)
    at_gpu = planned(MachineShape(even_nodes(2, 4), (GpuShape("0000:01:00.0", 1),)), 1, **split)
    assert at_gpu.layout.host_cpu_ids == (4,)


def test_the_submitting_threads_seat_is_near_the_gpu() -> None:
    shape = MachineShape(even_nodes(2, 4), (GpuShape("0000:01:00.0", 1),))
    plan = planned(shape, 1, requested_policy=Policy.SPLIT)
    assert plan.layout.workers[0] == Worker(5, 1)
    assert [worker.slice_index for worker in plan.layout.workers] == [1, 0, 0, 0, 1, 1]


def test_split_has_one_slice_for_each_node_with_equal_workers() -> None:
    plan = planned(MachineShape(even_nodes(2, 12, total_gib=32)), 44)
    assert plan.policy is Policy.SPLIT
    assert plan.layout.slices == (Slice((0,), 1), Slice((1,), 1))
    assert [plan.layout.worker_count_of(index) for index in (0, 1)] == [11, 11]


def test_equal_counts_idle_at_most_a_quarter_of_the_fullest_node() -> None:
    assert even_counts((12, 9)) == (9, 9)
    assert even_counts((12, 8)) == (12, 8)
    assert even_counts((4, 4, 3)) == (3, 3, 3)


def test_slices_follow_unequal_workers_in_size() -> None:
    nodes = (
        NodeShape(0, 0, tuple((cpu,) for cpu in range(12))),
        NodeShape(1, 1, tuple((cpu,) for cpu in range(12, 18))),
    )
    plan = planned(MachineShape(nodes), 10, requested_policy=Policy.SPLIT)
    assert [part.weight for part in plan.layout.slices] == [5, 3]
    assert [part.size_bytes for part in plan.arena_slices] == [
        10 * GIB * 5 // 8,
        10 * GIB - 10 * GIB * 5 // 8,
    ]
    assert "workers-lopsided" in codes(plan)


def test_a_node_with_less_than_half_of_the_others_workers_refuses_the_split() -> None:
    nodes = (
        NodeShape(0, 0, tuple((cpu,) for cpu in range(12))),
        NodeShape(1, 1, ((12,), (13,), (14,), (15,))),
    )
    assert [r.code for r in refused(MachineShape(nodes), 10, requested_policy=Policy.SPLIT)] == [
        "workers-lopsided"
    ]
    five = (nodes[0], NodeShape(1, 1, ((12,), (13,), (14,), (15,), (16,))))
    assert planned(MachineShape(five), 10, requested_policy=Policy.SPLIT).policy is Policy.SPLIT


def test_fewer_workers_than_slices_refuse_the_split() -> None:
    shape = MachineShape(even_nodes(4, 4))
    reasons = refused(shape, 10, requested_policy=Policy.SPLIT, requested_worker_count=3)
    assert [reason.code for reason in reasons] == ["too-few-workers"]
    assert reasons[0].evidence["requested_workers"] == 3
    plan = planned(shape, 10, requested_policy=Policy.SPLIT, requested_worker_count=4)
    assert [plan.layout.worker_count_of(index) for index in range(4)] == [1, 1, 1, 1]


def test_an_odd_number_of_workers_is_rounded_down_to_equal_slices() -> None:
    plan = planned(
        MachineShape(even_nodes(2, 12)), 10, requested_policy=Policy.SPLIT, requested_worker_count=9
    )
    assert len(plan.layout.workers) == 8
    assert reason_of(plan, "workers-rounded").evidence == {"requested_workers": 9, "workers": 8}


def test_more_workers_than_cores_are_clamped_with_a_warning() -> None:
    plan = planned(MachineShape(even_nodes(1, 16, threads_per_core=2)), 1, requested_worker_count=32)
    assert len(plan.layout.workers) == 14
    assert reason_of(plan, "workers-clamped").evidence["requested_workers"] == 32
    exact = planned(MachineShape(even_nodes(1, 16, threads_per_core=2)), 1, requested_worker_count=14)
    assert "workers-clamped" not in codes(exact)


def test_host_shares_every_cpu_when_no_core_is_free() -> None:
    plan = planned(MachineShape(even_nodes(1, 2)), 1)
    assert [worker.cpu_id for worker in plan.layout.workers] == [0, 1]
    assert plan.layout.host_cpu_ids == (0, 1)


def test_host_takes_cores_without_workers_before_it_shares() -> None:
    plan = planned(MachineShape(even_nodes(2, 2)), 1, requested_policy=Policy.SINGLE_SOCKET)
    assert [worker.cpu_id for worker in plan.layout.workers] == [0, 1]
    assert plan.layout.host_cpu_ids == (2, 3)


def test_one_usable_cpu_gives_one_worker_and_a_warning() -> None:
    plan = planned(MachineShape(even_nodes(2, 4), allowed_cpus="5"), 1)
    assert [worker.cpu_id for worker in plan.layout.workers] == [5]
    assert reason_of(plan, "cpuset-one-cpu").remedy is not None
    assert "cpuset-one-cpu" not in codes(planned(MachineShape(even_nodes(2, 4), allowed_cpus="5-6"), 1))


def test_an_unpinned_layout_goes_round_its_slices() -> None:
    layout = unpinned_layout(2, 3)
    assert layout.workers == (Worker(None, 0), Worker(None, 1), Worker(None, 0))
    assert layout.slices == (Slice(()), Slice(()))


@pytest.mark.parametrize(("slices", "workers"), [(0, 1), (2, 1)])
def test_an_unpinned_layout_needs_a_worker_for_each_slice(slices: int, workers: int) -> None:
    with pytest.raises(ValueError, match="slice"):
        unpinned_layout(slices, workers)
