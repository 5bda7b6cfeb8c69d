"""Approved plans of synthetic machines. `pytest tests/golden --update-golden` writes them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import (
    ArenaSpec,
    CpuModel,
    GpuInUse,
    Objective,
    PlanRefused,
    Policy,
    explain_machine,
    explain_plan,
    explain_refusal,
    explain_topology,
    log_lines,
    make_plan,
    plan_to_json,
)
from tests.support.machines import GIB, GpuShape, MachineShape, NodeShape, even_nodes, machine_topology
from tests.support.planning import request_for

FOLDER = Path(__file__).parent / "plans"
SEED_3413 = MachineShape(
    even_nodes(2, 12, threads_per_core=2, total_gib=32, free_gib=31), (GpuShape("0000:3b:00.0", 0),)
)
# AMD's cards are VGA controllers, Intel's data-centre cards other display controllers.
AMD_GPU = GpuShape("0000:c3:00.0", 1, "0x030000", "0x1002", "0x744c")
INTEL_GPU = GpuShape("0000:29:00.0", 0, "0x038000", "0x8086", "0x56c0")
HOLES = MachineShape(
    tuple(
        NodeShape(n, n // 4, tuple((cpu,) for cpu in range(n * 8, n * 8 + 8)), 16 * GIB if n in (1, 5) else 0)
        for n in range(8)
    ),
    distances={
        n: tuple(10 if m == n else 16 if m // 4 == n // 4 else 32 for m in range(8)) for n in range(8)
    },
)

# Name -> machine, arena in GiB, the rest of the request. Named for shape and trait.
CASES: dict[str, tuple[MachineShape, float, dict[str, object]]] = {
    "1n-16c2t-gpu-unknown": (
        MachineShape(even_nodes(1, 16, threads_per_core=2), (GpuShape("0000:0a:00.0", -1),)),
        20,
        {},
    ),
    "1n-2c-small": (MachineShape(even_nodes(1, 2, total_gib=8)), 0.003, {}),
    "2s2n-12c2t-gpu-n0-tight": (SEED_3413, 44, {}),
    "2s2n-12c2t-gpu-n0-too-large": (SEED_3413, 100, {"other_host_bytes": 8 * GIB}),
    "2s2n-12c2t-gpu-n0-unplaceable": (SEED_3413, 20, {"placement_possible": False}),
    "2s2n-22c2t-gpu-n1-prompt": (
        MachineShape(even_nodes(2, 22, threads_per_core=2, free_gib=60), (GpuShape("0000:82:00.0", 1),)),
        46.84,
        {"objective": Objective.PROMPT},
    ),
    "2s2n-16c-all-in-vram": (MachineShape(even_nodes(2, 16)), 44, {"cpu_share": 0.0}),
    "2s2n-16c-cpuset-one-node": (MachineShape(even_nodes(2, 16), allowed_cpus="16-23"), 10, {}),
    "2s2n-16c-cpuset-lopsided": (MachineShape(even_nodes(2, 16), allowed_cpus="0-11,16-24"), 44, {}),
    "2s2n-16c-cgroup-limit": (MachineShape(even_nodes(2, 16), memory_max_bytes=16 * GIB), 20, {}),
    "2s2n-12c-cached": (
        MachineShape(even_nodes(2, 12, free_gib=(8, 20), cache_gib=40), numa_balancing=1),
        60,
        {"other_host_bytes": 4 * GIB},
    ),
    "2s4n-16c-sub-numa": (MachineShape(even_nodes(4, 16, nodes_per_package=2, total_gib=256)), 375, {}),
    "2s4n-8c-package-slices": (
        MachineShape(
            tuple(
                NodeShape(n, n // 2, tuple((cpu,) for cpu in range(n * 8, n * 8 + 8)), size * GIB)
                for n, size in enumerate((96, 16, 96, 16))
            )
        ),
        120,
        {},
    ),
    "2s2n-16c2t-emerald-rapids-4gpu": (
        MachineShape(
            even_nodes(2, 16, threads_per_core=2, total_gib=256),
            tuple(
                GpuShape(f"0000:{bus}:00.0", node)
                for bus, node in (("18", 0), ("3b", 0), ("86", 1), ("af", -1))
            ),
            numa_balancing=1,
            cpu_model=CpuModel("GenuineIntel", 6, 207, 2, "INTEL(R) XEON(R) GOLD 6526Y"),
        ),
        143,
        {"other_host_bytes": 16 * GIB, "staging_placeable": False},
    ),
    "2s2n-16c-2gpu-both-nodes": (
        MachineShape(even_nodes(2, 16), (GpuShape("0000:81:00.0", 1), GpuShape("0000:21:00.0", 0))),
        80,
        {"layer_count": 49},
    ),
    "2s2n-16c-2gpu-amd-intel": (
        MachineShape(even_nodes(2, 16), (AMD_GPU, INTEL_GPU)),
        44,
        {
            "layer_count": 48,
            "gpus": (GpuInUse(INTEL_GPU.address, 16 * GIB), GpuInUse(AMD_GPU.address, 48 * GIB)),
            "requested_policy": Policy.SINGLE_SOCKET,
        },
    ),
    "2s2n-16c-gpu-idle": (
        MachineShape(even_nodes(2, 16), (GpuShape("0000:81:00.0", 1),)),
        44,
        {"layer_count": 48, "has_gpu": False, "weights": ArenaSpec(46 * GIB, 4 * GIB)},
    ),
    "2s8n-memory-holes": (HOLES, 20, {}),
    "2s2n-12c-dense-model": (MachineShape(even_nodes(2, 12)), 0, {"other_host_bytes": 8 * GIB}),
    "2s2n-12c-interleave-asked": (
        MachineShape(even_nodes(2, 12)),
        44,
        {"requested_policy": Policy.INTERLEAVE},
    ),
}


def rendered(shape: MachineShape, arena_gib: float, request: dict[str, object]) -> str:
    topology = machine_topology(shape)
    machine = explain_machine(topology) + explain_topology(topology)
    try:
        plan = make_plan(topology, request_for(arena_gib, **request))
    except PlanRefused as refusal:
        return machine + explain_refusal(refusal.reasons)
    return machine + explain_plan(plan) + "\n".join(log_lines(plan)) + "\n" + plan_to_json(plan)


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_the_approved_one(name: str, request: pytest.FixtureRequest) -> None:
    text, path = rendered(*CASES[name]), FOLDER / f"{name}.txt"
    if request.config.getoption("--update-golden", default=False):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(CASES)
