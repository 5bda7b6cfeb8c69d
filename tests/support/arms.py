"""The planner's view of a reported case: its machine, its request, and each arm as bytes[reader][memory]."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from planner import (
    ArenaSpec,
    BandwidthCell,
    Benchmark,
    Calibration,
    CostConstants,
    CpuModel,
    Objective,
    PlanRequest,
    Policy,
    Topology,
    machine_fingerprint,
)
from planner.advice import TIGHT_SHARE
from planner.candidates import fitted_parts, unplaced_parts
from planner.cost import (
    LARGE_MODEL_BYTES,
    Arm,
    Rest,
    prompt_seconds,
    rest_seconds,
    step_estimate,
    stream_seconds,
)
from planner.facts import gather_facts
from planner.hardware import GENERATION_ROWS
from planner.rates import MachineRates, machine_rates
from planner.weigh import spread_reads
from tests.support.arm_cases import (
    FOLDER,
    NUMBERS_OF,
    ONE_READER_SHARE,
    STATIC_LOCAL_SHARE,
    Case,
    MeasuredArm,
    Model,
    generation_named,
)
from tests.support.machines import GIB, GpuShape, MachineShape, even_nodes, machine_topology


def model_of(case: Case) -> Model:
    tables = json.loads((FOLDER / "models.json").read_text())
    text = case.model or ""
    row = next((row for row in tables["models"] if re.search(row["pattern"], text)), tables["models"][0])
    bits = next(row["bits"] for row in tables["bits"] if re.search(row["pattern"], text))
    expert = row["expert_parameters"] * bits / 8
    return Model(row["layers"], row["layers"] * row["used"] * expert, row["layers"] * row["experts"] * expert)


def topology_of_case(case: Case, node_count: int | None = None) -> Topology:
    nodes = node_count or case.node_count
    per_package = max(1, nodes // case.sockets)
    numbers = NUMBERS_OF.get(generation_named(case.cpu))
    total = None if case.node_gib is None else case.node_gib * case.node_count / nodes
    shapes = even_nodes(
        nodes,
        max(1, case.cores_per_socket * case.sockets // nodes),
        nodes_per_package=per_package,
        total_gib=total or 0,
        free_gib=None if total is None else max(0.0, total - case.used_gib),
    )
    if total is None:
        shapes = tuple(replace(shape, total_bytes=None, free_bytes=None) for shape in shapes)
    gpus = tuple(
        GpuShape(f"0000:{index + 1:02x}:00.0", -1 if node is None else node)
        for index, node in enumerate(case.gpu_nodes)
    )
    model = None if numbers is None else CpuModel(*numbers, None, "a CPU")
    return machine_topology(MachineShape(shapes, gpus, cpu_model=model))


def allowed_policies(case: Case) -> tuple[Policy, ...]:
    """Any engine can be bound or interleaved from outside with numactl; slices need an engine that makes them."""
    can_slice = any(arm.kind in ("slices", "static") for arm in case.arms)
    return tuple(policy for policy in Policy if policy is not Policy.SPLIT or can_slice)


def request_of(case: Case) -> PlanRequest:
    model = model_of(case)
    held = held_bytes(case, model)
    per_layer = (int(held / model.layers),) * model.layers
    # An arena that holds every expert tells what a token reads better than a model's name does.
    scale = held / model.total_bytes if case.holds_all_experts else 1.0
    return PlanRequest(
        arena=ArenaSpec(int(held), int(model.token_bytes * scale), per_layer),
        other_host_bytes=int(case.other_gib * GIB),
        objective=case.objective,
        cpu_share=case.cpu_share,
        gpu_node_ids=None,
        allowed_policies=allowed_policies(case),
        tokens_per_step=case.tokens_per_step,
        has_gpu=bool(case.gpu_names),
        staging_placeable=case.can_interleave_staging_apart,
        pool_spin_seconds=case.spin_seconds,
        memory=case.memory,
    )


def held_bytes(case: Case, model: Model) -> float:
    """Give the arena: as stated, else the model's experts; what does not fit an engine streams from its file."""
    if case.arena_gib is not None:
        return case.arena_gib * GIB
    wanted = model.total_bytes * (case.cpu_share or 1.0)
    if case.node_gib is None:
        return wanted
    return min(wanted, TIGHT_SHARE * case.node_gib * case.node_count * GIB)


def calibration_of(case: Case, topology: Topology) -> Calibration | None:
    """A link stated to run at half width is a measured link."""
    if not case.is_link_halved:
        return None
    half = GENERATION_ROWS[generation_named(case.cpu)].link_bandwidth / 2
    cells = (BandwidthCell(0, 1, half), BandwidthCell(1, 0, half))
    return Calibration(Benchmark(machine_fingerprint(topology), cells))


@dataclass(frozen=True, slots=True)
class Prediction:
    """An arm with its predicted seconds."""

    arm: MeasuredArm
    seconds: float


def predictions(case: Case) -> tuple[Prediction, ...]:
    return tuple(Prediction(arm, predicted_seconds(case, arm)) for arm in case.arms)


def predicted_seconds(case: Case, arm: MeasuredArm) -> float:
    topology, request = topology_of_case(case, arm.node_count), request_of(case)
    facts = gather_facts(topology, request)
    calibration = calibration_of(case, topology)
    rates = machine_rates(facts, calibration.benchmark if calibration else None)
    setting = Setting(case, arm, rates, CostConstants())
    if case.is_read_test:
        return stream_seconds(setting.arm(1e9), rates, setting.constants)
    if case.objective is Objective.PROMPT:
        nodes = facts.gpu_node_ids
        found = prompt_seconds(setting.held_for_gpu(nodes), setting.package_of, nodes, setting.constants)
        assert found is not None, "a prompt case states its GPU's node"
        return found
    return step_estimate(setting.arm(step_bytes(request)), rates, setting.constants).step_seconds


def step_bytes(request: PlanRequest) -> float:
    return (request.arena.bytes_per_token or 0) * request.cpu_share * request.tokens_per_step


@dataclass(frozen=True, slots=True)
class Setting:
    """One arm on its machine: worker counts, page shares and what follows from them."""

    case: Case
    measured: MeasuredArm
    rates: MachineRates
    constants: CostConstants
    package_of: Mapping[int, int] = field(init=False)

    def __post_init__(self) -> None:
        nodes = sorted(self.rates.node_bandwidth)
        per_package = max(1, len(nodes) // self.case.sockets)
        object.__setattr__(self, "package_of", {node: node // per_package for node in nodes})

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(self.package_of)

    @property
    def home(self) -> tuple[int, ...]:
        """The nodes of the first package, where a one-socket pool sits."""
        if self.case.is_read_test:
            return (0,)
        return tuple(node for node in self.nodes if self.package_of[node] == 0)

    def workers(self) -> dict[int, int]:
        on_one = self.measured.kind in ("single", "remote", "remote-all")
        nodes = self.home if on_one else self.nodes
        per_node = max(1, self.case.cores_per_socket * self.case.sockets // len(self.nodes))
        spare = 0 if self.case.is_read_test else 1
        count = self.measured.workers or self.stated_elsewhere() or max(1, per_node * len(nodes) - spare)
        if on_one:
            # The number is what a bound process was given; its pool is no larger than the socket.
            count = min(count, per_node * len(nodes))
        elif count <= self.case.cores_per_socket * self.case.sockets and self.measured.kind == "first-touch":
            return filled(count, nodes, per_node)
        return {node: count // len(nodes) + (i < count % len(nodes)) for i, node in enumerate(nodes)}

    def stated_elsewhere(self) -> int | None:
        """The thread count of another arm of the same kind: one box and one harness change one thing at a time."""
        same = (arm.workers for arm in self.case.arms if arm.kind == self.measured.kind)
        return next((count for count in same if count), None)

    def held_for_gpu(self, gpu_nodes: tuple[int, ...]) -> dict[int, float]:
        """Where the arena lies when a one-socket arm was bound to the GPU's socket."""
        held = self.held(float(request_of(self.case).arena.size_bytes))
        if self.measured.kind != "single":
            return held
        offset = gpu_nodes[0] - self.home[0]
        count = len(self.nodes)
        return {(node + offset) % count: size for node, size in held.items()}

    def arm(self, size: float) -> Arm:
        kind, workers = self.measured.kind, self.workers()
        workers = {node: count for node, count in workers.items() if count}
        is_sliced = kind in ("slices", "slices-unplaced", "static") or self.measured.is_sliced_pool
        total = sum(workers.values())
        per_node = max(1, self.case.cores_per_socket * self.case.sockets // len(self.nodes))
        is_crowded = total > 1.5 * per_node * len(workers)
        return Arm(
            read_bytes=self.reads(size, workers),
            workers=workers,
            package_of=self.package_of,
            slice_workers=max(workers.values()) if is_sliced and kind != "static" else total,
            is_sliced=is_sliced,
            layer_count=model_of(self.case).layers,
            rest_seconds=self.rest(size),
            must_wake=bool(self.case.gpu_names)
            and self.case.spin_seconds < self.rest(size) / model_of(self.case).layers,
            cores=dict.fromkeys(workers, per_node) if is_crowded else None,
        )

    def reads(self, size: float, workers: dict[int, int]) -> dict[int, dict[int, float]]:
        kind = self.measured.kind
        total = sum(workers.values())
        if kind == "slices":
            return {node: {node: size * count / total} for node, count in workers.items()}
        if kind == "static":
            return {
                node: self.leaning(size * count / total, node, STATIC_LOCAL_SHARE)
                for node, count in workers.items()
            }
        if self.measured.is_sliced_pool or kind == "slices-unplaced":
            return spread_reads(workers, self.held(size))
        return spread_reads(workers, self.held(size))

    def leaning(self, size: float, node: int, share: float) -> dict[int, float]:
        others = [other for other in self.nodes if other != node]
        if not others:
            return {node: size}
        return {node: size * share} | {other: size * (1 - share) / len(others) for other in others}

    def held(self, size: float) -> dict[int, float]:
        """Where the pages lie, from what fits and not from what the policy asks."""
        kind, nodes = self.measured.kind, self.nodes
        rooms = tuple(self.room() for _ in nodes)
        arena = int(request_of(self.case).arena.size_bytes)
        if self.measured.page_shares:
            shares = self.measured.page_shares
        elif kind == "single":
            shares = one_socket_shares(arena, rooms, nodes, self.home)
        elif kind in ("remote", "remote-all"):
            away = 1.0 if kind == "remote-all" else ONE_READER_SHARE
            shares = tuple(
                1 - away if node == nodes[0] else away if node == nodes[-1] else 0 for node in nodes
            )
        elif kind in ("first-touch", "slices-unplaced"):
            shares = tuple(part / arena for part in unplaced_parts(arena, rooms))
        else:
            shares = tuple(part / arena for part in fitted_parts(arena, rooms))
        return {node: size * share for node, share in zip(nodes, shares, strict=True) if share}

    def room(self) -> int | None:
        if self.case.node_gib is None:
            return None
        node_gib = self.case.node_gib * self.case.node_count / len(self.nodes)
        return int(max(0.0, node_gib - self.case.used_gib) * GIB)

    def rest(self, size: float) -> float:
        per_package = len(self.nodes) // self.case.sockets or 1
        rest = Rest(
            step_bytes=size,
            layer_count=model_of(self.case).layers,
            has_gpu=bool(self.case.gpu_names),
            is_large_model=model_of(self.case).total_bytes >= LARGE_MODEL_BYTES,
            package_bandwidth=self.rates.node_bandwidth[0] * per_package,
            package_cores=self.case.cores_per_socket,
        )
        return rest_seconds(rest, self.rates, self.constants)


def filled(count: int, nodes: tuple[int, ...], per_node: int) -> dict[int, int]:
    """Give worker counts by node: even over two packages, and one package first where the count barely passes it."""
    if count == per_node + 1:
        return {nodes[0]: per_node, nodes[1]: 1} if len(nodes) > 1 else {nodes[0]: count}
    return {node: count // len(nodes) + (i < count % len(nodes)) for i, node in enumerate(nodes)}


def one_socket_shares(
    arena: int, rooms: tuple[int | None, ...], nodes: tuple[int, ...], home: tuple[int, ...]
) -> tuple[float, ...]:
    at_home = [room for node, room in zip(nodes, rooms, strict=True) if node in home]
    known = sum(room for room in at_home if room is not None)
    fits = arena if None in at_home else min(arena, known)
    away = [node for node in nodes if node not in home]
    spilled = (arena - fits) / arena
    return tuple(
        (fits / arena) / len(home) if node in home else spilled / max(1, len(away)) for node in nodes
    )
