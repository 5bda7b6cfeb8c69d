"""The plans that docs/PLACEMENT.md shows: one machine, one policy each."""

from __future__ import annotations

import json

from planner import ArenaSpec, PlanRequest, Policy, make_plan, plan_to_dict, topology_to_dict
from tests.support.machines import GIB, GpuShape, MachineShape, even_nodes, machine_topology

MACHINE = machine_topology(
    MachineShape(even_nodes(2, 12, total_gib=64, free_gib=62), (GpuShape("0000:3b:00.0", 0),))
)
SUB_NUMA = machine_topology(MachineShape(even_nodes(4, 6, nodes_per_package=2, total_gib=32, free_gib=31)))
PLANS = {
    "single-socket": (MACHINE, 40 * GIB, Policy.SINGLE_SOCKET),
    "split": (MACHINE, 44 * GIB, Policy.SPLIT),
    "interleave": (MACHINE, 44 * GIB, Policy.INTERLEAVE),
    "split-sub-numa": (SUB_NUMA, 80 * GIB, Policy.SPLIT),
}


def documents(name: str) -> tuple[str, str]:
    """The plan's and the topology's JSON of a picture, as the commands write them."""
    topology, arena_bytes, policy = PLANS[name]
    plan = make_plan(topology, PlanRequest(arena=ArenaSpec(arena_bytes), requested_policy=policy))
    return json.dumps(plan_to_dict(plan)), json.dumps(topology_to_dict(topology))
