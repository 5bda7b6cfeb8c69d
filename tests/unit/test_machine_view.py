"""What the status page draws of a machine: every CPU once, on its node, with what it does by the plan."""

from __future__ import annotations

import pytest

from planner import Plan, PlanRefused, Topology, make_plan
from stratad.service.machine_view import machine_document, planned_slices
from stratad.service.status_schema import CpuDocument, MachineDocument
from tests.golden.test_plans import CASES
from tests.support.machines import GIB, MachineShape, NodeShape, even_nodes, machine_topology
from tests.support.planning import request_for


def planned(shape: MachineShape, arena_gib: float, **request: object) -> tuple[Topology, Plan]:
    topology = machine_topology(shape)
    return topology, make_plan(topology, request_for(arena_gib, **request))


def cpus_of(document: MachineDocument) -> list[CpuDocument]:
    return [
        cpu for package in document.packages for node in package.nodes for core in node.cores for cpu in core
    ]


@pytest.mark.parametrize("name", CASES)
def test_every_cpu_of_every_machine_is_drawn_once_and_every_worker_is_one_of_them(name: str) -> None:
    shape, arena_gib, request = CASES[name]
    topology = machine_topology(shape)
    try:
        plan = make_plan(topology, request_for(arena_gib, **request))
    except PlanRefused:
        return
    document = machine_document(topology, plan)
    drawn = cpus_of(document)
    assert sorted(cpu.cpu for cpu in drawn) == sorted(cpu.cpu_id for cpu in topology.cpus)
    workers = {cpu.cpu: cpu.slice for cpu in drawn if cpu.role == "worker"}
    assert workers == {worker.cpu_id: worker.slice_index for worker in plan.layout.workers}
    assert [node.node for package in document.packages for node in package.nodes] == [
        node.node_id for node in topology.nodes
    ]
    assert [part.size_bytes for part in planned_slices(plan)] == [
        part.size_bytes for part in plan.arena_slices
    ]
    assert sum(part.workers for part in planned_slices(plan)) in (0, len(plan.layout.workers))


def test_siblings_share_a_core_and_the_second_one_is_free() -> None:
    document = machine_document(*planned(MachineShape(even_nodes(1, 4, threads_per_core=2)), 1))
    cores = document.packages[0].nodes[0].cores
    assert [[cpu.cpu for cpu in core] for core in cores] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert {core[1].role for core in cores if core[0].role == "worker"} == {"free"}


def test_cpus_outside_the_cpuset_are_closed() -> None:
    shape = MachineShape(even_nodes(2, 16), allowed_cpus="16-23")
    document = machine_document(*planned(shape, 10))
    closed = {cpu.cpu for cpu in cpus_of(document) if cpu.role == "closed"}
    assert closed == {*range(16), *range(24, 32)}


def test_a_node_without_cpus_stands_last_and_has_no_package() -> None:
    cores = tuple((cpu,) for cpu in range(8))
    nodes = (NodeShape(0, 0, cores), NodeShape(1, 0, (), 32 * GIB))
    document = machine_document(*planned(MachineShape(nodes), 1))
    assert [(package.package, [node.node for node in package.nodes]) for package in document.packages] == [
        (0, [0]),
        (None, [1]),
    ]
