"""Plan and machine as the status page draws them: facts in, documents out."""

from __future__ import annotations

from collections.abc import Mapping

from planner import Plan, Topology
from planner.topology import Cpu
from stratad.service.service import PlanSummary
from stratad.service.status_schema import (
    CpuDocument,
    CpuRole,
    GpuDocument,
    MachineDocument,
    NodeDocument,
    PackageDocument,
    PlannedSliceDocument,
)


def machine_document(topology: Topology, plan: Plan) -> MachineDocument:
    """Packages, their nodes and cores, what each CPU does in `plan`, and the GPUs.

    A node belongs to the package of its first CPU; nodes without CPUs stand at the end, without a package. CPUs
    without a node are drawn in the first node of their package that has CPUs, else left to the first node.
    """
    cpus_of: dict[int, list[Cpu]] = {node.node_id: [] for node in topology.nodes}
    for cpu in topology.cpus:
        home = cpu.node_id if cpu.node_id in cpus_of else _first_node_of(topology, cpu.package_index)
        cpus_of.setdefault(home, []).append(cpu)
    slice_of = {worker.cpu_id: worker.slice_index for worker in plan.layout.workers}
    packages: dict[int | None, list[NodeDocument]] = {}
    for node in topology.nodes:
        members = cpus_of[node.node_id]
        package = members[0].package_index if members else None
        packages.setdefault(package, []).append(
            NodeDocument(
                node=node.node_id,
                memory_total_bytes=node.memory_total_bytes,
                is_allowed=node.is_allowed,
                cores=_cores(members, plan, slice_of),
            )
        )
    ordered = sorted(packages, key=lambda package: (package is None, package))
    return MachineDocument(
        packages=[PackageDocument(package=package, nodes=packages[package]) for package in ordered],
        gpus=[GpuDocument(address=gpu.pci_address, node=gpu.node_id) for gpu in topology.accelerators],
    )


def plan_summary(plan: Plan, document: Mapping[str, object], topology: Topology) -> PlanSummary:
    """What the service shows of a plan; `document` is the plan as JSON values."""
    return PlanSummary(
        policy=plan.policy.value,
        fingerprint=plan.fingerprint,
        reasons=plan.reasons,
        document=document,
        confidence=plan.confidence.value,
        arena_scope=plan.arena_scope.value,
        worker_count=len(plan.layout.workers),
        slices=tuple(planned_slices(plan)),
        machine=machine_document(topology, plan),
    )


def planned_slices(plan: Plan) -> list[PlannedSliceDocument]:
    """The plan's slices with their bytes and workers."""
    return [
        PlannedSliceDocument(
            slice=part.slice_index,
            nodes=list(part.node_ids),
            size_bytes=part.size_bytes,
            workers=plan.layout.worker_count_of(part.slice_index),
        )
        for part in plan.arena_slices
    ]


def _first_node_of(topology: Topology, package_index: int) -> int:
    nodes = [cpu.node_id for cpu in topology.cpus if cpu.package_index == package_index]
    return next((node for node in nodes if node is not None), topology.nodes[0].node_id)


def _cores(members: list[Cpu], plan: Plan, slice_of: dict[int | None, int]) -> list[list[CpuDocument]]:
    by_core: dict[int, list[Cpu]] = {}
    for cpu in members:
        by_core.setdefault(cpu.core_index, []).append(cpu)
    return [
        [
            CpuDocument(cpu=cpu.cpu_id, role=_role(cpu, plan, slice_of), slice=slice_of.get(cpu.cpu_id))
            for cpu in siblings
        ]
        for siblings in by_core.values()
    ]


def _role(cpu: Cpu, plan: Plan, slice_of: dict[int | None, int]) -> CpuRole:
    if cpu.cpu_id in slice_of:
        return "worker"
    if not cpu.is_allowed:
        return "closed"
    return "server" if cpu.cpu_id in plan.layout.host_cpu_ids else "free"
