"""GPUs in plans: which take part, where they are, and which layers are theirs."""

from __future__ import annotations

import pytest

from planner import (
    ArenaScope,
    ArenaSpec,
    GpuInUse,
    Policy,
    Running,
    pci_address_of,
    plan_from_dict,
    plan_to_dict,
    with_gpu_affinity,
)
from planner.decide import make_plan
from tests.support.machines import GIB, GpuShape, MachineShape, even_nodes, machine_topology
from tests.support.planning import codes, planned, reason_of, request_for

NEAR, FAR = GpuShape("0000:21:00.0", 0), GpuShape("0000:81:00.0", 1)
TWO_GPUS = MachineShape(even_nodes(2, 16), (NEAR, FAR))
WEIGHTS = ArenaSpec(46 * GIB, 4 * GIB)


def runs(shape: MachineShape, **request: object) -> list[tuple[str, int | None, int, int]]:
    plan = planned(shape, 44, **request)
    return [(part.pci_address, part.node_id, part.first_layer, part.layer_count) for part in plan.gpu_layers]


@pytest.mark.parametrize(
    ("device_id", "address"),
    [
        ("0000:c1:00.0", "0000:c1:00.0"),
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("0000:c1:00.0-v3", "0000:c1:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("0:c1:00.0", "0000:c1:00.0"),
        ("", None),
        (None, None),
        ("GPU-1f3a", None),
        ("0000:c1:00", None),
        ("0000:c1:00.0-v", None),
    ],
)
def test_device_ids_become_the_kernels_addresses(device_id: str | None, address: str | None) -> None:
    assert pci_address_of(device_id) == address


def test_layers_are_shared_by_memory_and_gpus_at_the_arena_come_first() -> None:
    gpus = (GpuInUse(NEAR.address, 24 * GIB), GpuInUse(FAR.address, 48 * GIB))
    at_node_1 = {"requested_policy": Policy.SINGLE_SOCKET, "layer_count": 48, "gpus": gpus}
    plan = planned(TWO_GPUS, 44, **at_node_1)
    first = plan.gpu_layers[0]
    assert first.node_id in plan.arena_slices[0].node_ids
    assert {part.pci_address: part.layer_count for part in plan.gpu_layers} == {
        NEAR.address: 16,
        FAR.address: 32,
    }
    assert plan.gpu_layers[1].first_layer == first.layer_count


def test_layers_are_shared_evenly_where_a_memory_is_unknown() -> None:
    gpus = (GpuInUse(NEAR.address, 24 * GIB), GpuInUse(FAR.address))
    assert runs(TWO_GPUS, layer_count=5, gpus=gpus) == [(NEAR.address, 0, 0, 3), (FAR.address, 1, 3, 2)]


def test_the_plan_says_which_layers_are_whose_when_there_are_several_gpus() -> None:
    plan = planned(TWO_GPUS, 80, layer_count=48)
    message = reason_of(plan, "gpu-layers-assigned").message
    assert message == "layers 0-23 on 0000:21:00.0 (node 0), 24-47 on 0000:81:00.0 (node 1)"
    assert "gpu-layers-assigned" not in codes(
        planned(MachineShape(even_nodes(2, 16), (NEAR,)), 80, layer_count=48)
    )


def test_a_gpu_away_from_the_arena_is_noted_and_one_at_a_slice_is_not() -> None:
    single = planned(TWO_GPUS, 44, requested_policy=Policy.SINGLE_SOCKET)
    home = single.arena_slices[0].node_ids[0]
    assert reason_of(single, "gpu-far-from-arena").evidence == {
        "gpu_nodes": (1 - home,),
        "arena_nodes": (home,),
    }
    assert "gpu-far-from-arena" not in codes(planned(TWO_GPUS, 44, requested_policy=Policy.SPLIT))


def test_only_gpus_in_use_count() -> None:
    plan = planned(TWO_GPUS, 44, layer_count=48, gpus=(GpuInUse(FAR.address),))
    assert [part.pci_address for part in plan.gpu_layers] == [FAR.address]
    assert [buffer.pci_address for buffer in plan.gpu_staging] == [FAR.address]


def test_a_gpu_that_nobody_can_locate_is_told() -> None:
    plan = planned(TWO_GPUS, 44, layer_count=48, gpus=(GpuInUse(None),))
    assert reason_of(plan, "gpu-node-unknown").evidence == {"accelerators": 1}
    assert plan.gpu_layers == ()


def test_a_gpu_without_a_node_is_placed_by_the_vendor_library() -> None:
    unknown = MachineShape(even_nodes(2, 16), (GpuShape(FAR.address, -1),))
    topology = with_gpu_affinity(machine_topology(unknown), {FAR.address: tuple(range(16, 32))})
    plan = make_plan(topology, request_for(80, layer_count=48))
    assert [part.node_id for part in plan.gpu_layers] == [1]
    assert "gpu-node-unknown" not in codes(plan)


def test_a_gpu_that_takes_no_part_leaves_all_weights_to_the_cpu() -> None:
    seen = planned(TWO_GPUS, 44, weights=WEIGHTS, layer_count=48)
    unused = planned(TWO_GPUS, 44, weights=WEIGHTS, layer_count=48, has_gpu=False)
    assert (seen.arena_scope, unused.arena_scope) == (ArenaScope.EXPERTS, ArenaScope.WEIGHTS)
    assert seen.gpu_staging and not unused.gpu_staging and not unused.gpu_layers
    remedy = reason_of(unused, "arena-holds-weights").remedy
    assert remedy is not None and "make setup GPU=" in remedy
    without = planned(MachineShape(even_nodes(2, 16)), 44, weights=WEIGHTS, has_gpu=False)
    assert reason_of(without, "arena-holds-weights").remedy is None


def test_layers_survive_the_plan_document() -> None:
    plan = planned(TWO_GPUS, 44, layer_count=48)
    assert plan_from_dict(plan_to_dict(plan)).gpu_layers == plan.gpu_layers != ()


def running(policy: Policy, worker_count: int, cpu_share: float) -> Running:
    return Running(policy, worker_count, cpu_share, 1 - cpu_share, 5000)


def test_experts_that_have_all_come_into_vram_call_for_the_smallest_pool() -> None:
    before = planned(TWO_GPUS, 44)
    workers = len(before.layout.workers)
    assert before.policy is Policy.SPLIT
    now = planned(TWO_GPUS, 44, cpu_share=0.0, running=running(before.policy, workers, 0.0))
    assert now.policy is Policy.SINGLE_SOCKET and len(now.layout.workers) == 1
    differs = reason_of(now, "running-plan-differs")
    assert differs.evidence == {
        "running": "split",
        "running_workers": workers,
        "chosen": "single-socket",
        "chosen_workers": 1,
    }
    assert "stratactl apply" in (differs.remedy or "")


def test_a_measured_share_that_changes_nothing_is_told_and_no_more() -> None:
    before = planned(TWO_GPUS, 44)
    now = planned(
        TWO_GPUS, 44, cpu_share=0.4, running=running(before.policy, len(before.layout.workers), 0.4)
    )
    assert now.policy is before.policy
    assert reason_of(now, "cpu-share-measured").evidence == {
        "cpu_share": 0.4,
        "hit_ratio": 0.6,
        "decode_steps": 5000,
    }
    assert "running-plan-differs" not in codes(now)


def test_without_a_running_daemon_nothing_is_said_of_one() -> None:
    assert not {"cpu-share-measured", "running-plan-differs"} & set(codes(planned(TWO_GPUS, 44)))


def test_the_gpu_at_the_arena_has_the_first_layers_wherever_it_sorts() -> None:
    large = MachineShape((*even_nodes(2, 8)[:1], *even_nodes(2, 16)[1:]), (NEAR, FAR))
    plan = planned(large, 44, requested_policy=Policy.SINGLE_SOCKET, layer_count=48)
    assert plan.arena_slices[0].node_ids == (1,)
    assert [part.pci_address for part in plan.gpu_layers] == [FAR.address, NEAR.address]


def test_the_layer_left_over_goes_where_most_of_it_belongs() -> None:
    gpus = (GpuInUse(NEAR.address, 24 * GIB), GpuInUse(FAR.address, 48 * GIB))
    assert runs(TWO_GPUS, layer_count=49, gpus=gpus) == [(NEAR.address, 0, 0, 16), (FAR.address, 1, 16, 33)]
