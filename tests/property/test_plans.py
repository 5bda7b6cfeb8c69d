"""Invariants of every plan, for machines nobody has seen: random shapes, and shapes with damaged files."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner import (
    ArenaSpec,
    BandwidthCell,
    Benchmark,
    Calibration,
    Confidence,
    LayerCosts,
    MemoryHardware,
    MemoryMode,
    Objective,
    Plan,
    PlanRefused,
    PlanRequest,
    Policy,
    SweepPoint,
    Topology,
    TopologyUnreadable,
    TuneResult,
    Tuning,
    explain_plan,
    explain_refusal,
    explain_topology,
    log_lines,
    machine_fingerprint,
    make_plan,
    plan_from_json,
    plan_to_json,
    topology_to_dict,
)
from planner.cpulist import format_id_list
from planner.discover import topology_of
from tests.support.machines import GIB, GpuShape, MachineShape, MemoryTree, NodeShape, machine_files

MEMORY_CHOICES = st.one_of(st.none(), st.just(0), st.integers(0, 256 * GIB))
ODD_LISTS = ["", "0", "-1", "0-", "0-3", "1,3-5", "999999", "99999999999999999999", "0-65535"]
ODD_TEXTS = st.sampled_from([*ODD_LISTS, "ffffffff", "x", "Node 0 MemTotal: 1 kB", "max", "\x00", "1 2 3"])


@st.composite
def machines(draw: st.DrawFn) -> MachineShape:
    """Draw up to six nodes, ids with gaps, unequal cores, memory down to nothing, cpusets and GPUs."""
    node_ids = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True).map(sorted))
    threads = draw(st.integers(1, 4))
    nodes, next_cpu = [], 0
    for node_id in node_ids:
        core_count = draw(st.integers(0, 6))
        cores = tuple(
            tuple(range(next_cpu + core * threads, next_cpu + (core + 1) * threads))
            for core in range(core_count)
        )
        next_cpu += core_count * threads
        total = draw(MEMORY_CHOICES)
        free = None if total is None else draw(st.integers(0, total))
        nodes.append(
            NodeShape(node_id, draw(st.integers(0, 3)), cores, total, free, draw(st.integers(0, 8 * GIB)))
        )
    return MachineShape(
        tuple(nodes),
        gpus=draw(
            st.sampled_from([(), (GpuShape("0000:01:00.0", -1),), (GpuShape("0000:01:00.0", node_ids[-1]),)])
        ),
        allowed_cpus=draw(st.one_of(st.none(), id_lists(next_cpu))),
        allowed_nodes=draw(st.one_of(st.none(), id_lists(41))),
        memory_max_bytes=draw(st.one_of(st.none(), st.integers(1, 64 * GIB))),
    )


def id_lists(count: int) -> st.SearchStrategy[str]:
    return st.lists(st.integers(0, max(0, count - 1)), max_size=12).map(format_id_list)


requests = st.builds(
    PlanRequest,
    arena=st.builds(
        ArenaSpec,
        st.one_of(st.just(0), st.integers(1, 300 * GIB)),
        st.one_of(st.none(), st.integers(0, 20 * GIB)),
        st.sampled_from([(), (1, 2, 3)]),
    ),
    other_host_bytes=st.integers(0, 40 * GIB),
    requested_policy=st.one_of(st.none(), st.sampled_from(list(Policy))),
    objective=st.sampled_from(list(Objective)),
    cpu_share=st.sampled_from([0.0, 0.3, 1.0]),
    requested_worker_count=st.one_of(st.none(), st.integers(1, 40)),
    gpu_node_ids=st.one_of(st.none(), st.just(()), st.just((0, 99))),
    placement_possible=st.sampled_from([None, True, False]),
    allowed_policies=st.lists(st.sampled_from(list(Policy)), min_size=1, unique=True).map(tuple),
    page_bytes=st.sampled_from([4096, 2 << 20, 1 << 30]),
    tokens_per_step=st.sampled_from([1.0, 2.1]),
    has_gpu=st.sampled_from([None, True, False]),
    staging_placeable=st.sampled_from([None, True, False]),
    memory=st.builds(
        MemoryHardware,
        st.one_of(st.none(), st.integers(1, 12)),
        st.one_of(st.none(), st.integers(800, 9000)),
        st.one_of(st.none(), st.floats(1e8, 1e12)),
    ),
)


@st.composite
def calibrations(draw: st.DrawFn, fingerprint: str) -> Calibration:
    """Draw measurements, of this machine or another, with nodes that may not be there."""
    rates, nodes = st.floats(1e6, 1e12), st.integers(0, 41)
    machine = st.sampled_from([fingerprint, "0123456789ab"])
    benchmark = st.builds(
        Benchmark,
        machine,
        st.lists(st.builds(BandwidthCell, nodes, nodes, rates), max_size=4).map(tuple),
        st.one_of(st.none(), rates),
        st.builds(LayerCosts, *(st.one_of(st.none(), st.floats(0, 1e-3)) for _ in range(5))),
        st.lists(st.builds(SweepPoint, st.integers(0, 64), rates), max_size=4).map(tuple),
    )
    result = st.builds(
        TuneResult,
        st.sampled_from(list(Policy)),
        st.sampled_from([(), (0,), (0, 1)]),
        st.integers(1, 64),
        st.lists(st.floats(0.1, 1e3), min_size=1, max_size=4).map(tuple),
        st.sampled_from([None, 0.5, 1.0]),
    )
    tuning = st.builds(
        Tuning,
        machine,
        st.sampled_from([0, 4 * GIB]),
        st.sampled_from(list(Objective)),
        st.lists(result, max_size=4).map(tuple),
    )
    return Calibration(draw(st.one_of(st.none(), benchmark)), draw(st.one_of(st.none(), tuning)))


def plan_or_refusal(topology: Topology, request: PlanRequest) -> Plan | None:
    try:
        return make_plan(topology, request)
    except PlanRefused as refusal:
        assert refusal.reasons
        assert all(reason.message for reason in refusal.reasons)
        assert explain_refusal(refusal.reasons)
        return None


def check_workers(topology: Topology, plan: Plan) -> None:
    cpu_ids = [worker.cpu_id for worker in plan.layout.workers]
    core_of = {cpu.cpu_id: cpu.core_index for cpu in topology.cpus}
    assert cpu_ids
    assert None not in cpu_ids
    assert set(cpu_ids) <= set(topology.usable_cpu_ids)
    assert set(plan.layout.host_cpu_ids) <= set(topology.usable_cpu_ids)
    assert plan.layout.host_cpu_ids
    # One worker a core, so never more than physical cores and no CPU twice.
    assert len({core_of[cpu_id] for cpu_id in cpu_ids if cpu_id is not None}) == len(cpu_ids)
    assert {worker.slice_index for worker in plan.layout.workers} == set(range(len(plan.layout.slices)))


def check_memory(topology: Topology, request: PlanRequest, plan: Plan) -> None:
    assert sum(part.size_bytes for part in plan.arena_slices) == request.arena.size_bytes
    assert all(part.size_bytes >= 0 for part in plan.arena_slices)
    assert len(plan.arena_slices) == len(plan.layout.slices)
    used = {node for part in plan.layout.slices for node in part.node_ids} | set(plan.process_memory.node_ids)
    assert used <= set(topology.usable_node_ids)
    assert (plan.process_memory.mode is MemoryMode.DEFAULT) == (plan.process_memory.node_ids == ())
    if plan.process_memory.mode is MemoryMode.PREFERRED:
        assert len(plan.process_memory.node_ids) == 1
    if request.placement_possible is False:
        assert not used
    if plan.policy is Policy.SPLIT:
        assert len(plan.layout.slices) > 1
        homes = [part.node_ids for part in plan.layout.slices]
        assert len(set(homes)) == len(homes)


def check_plan(topology: Topology, request: PlanRequest) -> None:
    plan = plan_or_refusal(topology, request)
    if plan is None:
        return
    check_workers(topology, plan)
    check_memory(topology, request, plan)
    assert request.requested_policy in (None, plan.policy)
    assert plan.policy in request.allowed_policies or request.arena.size_bytes == 0
    assert plan.confidence in (Confidence.ESTIMATED, Confidence.LIKELY)
    if request.requested_worker_count is not None:
        assert len(plan.layout.workers) <= request.requested_worker_count
    assert sum(candidate.is_chosen for candidate in plan.candidates) == 1
    assert make_plan(topology, request) == plan
    assert plan_from_json(plan_to_json(plan)) == plan
    assert explain_plan(plan)
    assert log_lines(plan)


@settings(max_examples=300, deadline=None)
@given(shape=machines(), request=requests)
def test_every_machine_gets_a_sound_plan_or_a_typed_refusal(
    shape: MachineShape, request: PlanRequest
) -> None:
    try:
        topology = topology_of(MemoryTree(machine_files(shape)))
    except TopologyUnreadable:
        assert not any(node.cores for node in shape.nodes)
        return
    check_plan(topology, request)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), shape=machines(), request=requests)
def test_damaged_files_never_end_in_anything_else(
    data: st.DataObject, shape: MachineShape, request: PlanRequest
) -> None:
    files = machine_files(shape)
    for path in data.draw(st.lists(st.sampled_from(sorted(files)), max_size=8)):
        if data.draw(st.booleans()):
            files.pop(path, None)
        else:
            files[path] = data.draw(ODD_TEXTS)
    try:
        topology = topology_of(MemoryTree(files))
    except TopologyUnreadable:
        return
    assert topology_to_dict(topology)
    assert explain_topology(topology)
    every_cpu = [cpu for core in topology.cores for cpu in core]
    assert sorted(every_cpu) == sorted(cpu.cpu_id for cpu in topology.cpus)
    assert sorted(cpu for package in topology.packages for cpu in package) == sorted(every_cpu)
    check_plan(topology, request)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), shape=machines(), request=requests)
def test_measurements_of_any_kind_give_a_sound_plan_or_a_typed_refusal(
    data: st.DataObject, shape: MachineShape, request: PlanRequest
) -> None:
    try:
        topology = topology_of(MemoryTree(machine_files(shape)))
    except TopologyUnreadable:
        return
    calibration = data.draw(calibrations(machine_fingerprint(topology)))
    try:
        plan = make_plan(topology, request, calibration)
    except PlanRefused:
        return
    check_workers(topology, plan)
    check_memory(topology, request, plan)
    assert make_plan(topology, request, calibration) == plan
    assert plan_from_json(plan_to_json(plan)) == plan
    if plan.confidence is Confidence.PROVEN:
        assert calibration.tuning is not None
        assert calibration.tuning.machine_fingerprint == plan.machine_fingerprint
    if plan.confidence is Confidence.MEASURED:
        assert calibration.benchmark is not None
        assert calibration.benchmark.machine_fingerprint == plan.machine_fingerprint
