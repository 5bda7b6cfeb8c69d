"""Joins topology and request into what the rules compare: usable cores by home node, and memory budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from planner.quantity import GIB
from planner.request import PlanRequest
from planner.topology import Accelerator, Cpu, Node, Topology

# A node filled to the brim reclaims under load, and the kernel then puts the last pages elsewhere. 2 GiB is
# what seed 3413 needed beside half a 44 GiB arena on 32 GiB nodes; on small nodes (virtual machines) an
# eighth must do.
NODE_HEADROOM_BYTES = 2 * GIB
SMALL_NODE_HEADROOM_PARTS = 8


@dataclass(frozen=True, slots=True)
class UsableCore:
    """A physical core with at least one usable CPU. `cpu_ids` are the usable siblings, lowest first.

    `home_node_id` is the node it reads from at least cost, None when no node it may use is its own.
    """

    cpu_ids: tuple[int, ...]
    home_node_id: int | None


@dataclass(frozen=True, slots=True)
class NodeBudget:
    """A node that can hold part of the arena: its workers' cores and its memory."""

    node_id: int
    group_index: int
    cores: tuple[UsableCore, ...]
    free_bytes: int | None
    available_bytes: int | None
    headroom_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Topology and request, with everything the rules share worked out once.

    `budgets` are the nodes whose memory may be used, sorted; nodes without CPUs (GPU memory, persistent
    memory, high-bandwidth memory) are not among them. `groups` are node ids that share a package: a socket,
    in most machines. `gpu_homes` pairs every accelerator with its node. `home_of_cpu` has each
    core's first CPU, where workers are pinned. `hardware_node_count` counts nodes
    with CPUs and memory whether or not the cpuset allows them.
    """

    topology: Topology
    request: PlanRequest
    cores: tuple[UsableCore, ...]
    budgets: tuple[NodeBudget, ...]
    groups: tuple[tuple[int, ...], ...]
    hardware_node_count: int
    gpu_node_ids: tuple[int, ...]
    unknown_gpu_count: int
    gpu_homes: tuple[tuple[Accelerator, int | None], ...] = ()
    home_of_cpu: Mapping[int, int | None] = field(default_factory=dict)

    @property
    def gpu_memory_bytes(self) -> dict[str, int]:
        """The memory of each GPU in use that states it, by PCI address."""
        return {
            gpu.pci_address: gpu.memory_bytes
            for gpu in self.request.gpus or ()
            if gpu.pci_address is not None and gpu.memory_bytes
        }

    @property
    def has_gpu(self) -> bool:
        """Whether a GPU takes part in a step."""
        if self.request.has_gpu is not None:
            return self.request.has_gpu
        if self.request.gpus is not None:
            return bool(self.request.gpus)
        return bool(self.gpu_node_ids or self.unknown_gpu_count)

    @property
    def slice_budgets(self) -> tuple[NodeBudget, ...]:
        """Nodes that have both usable memory and usable cores."""
        return tuple(budget for budget in self.budgets if budget.cores)

    def budgets_of(self, node_ids: tuple[int, ...]) -> tuple[NodeBudget, ...]:
        """Give the budgets of the named nodes, in node order."""
        return tuple(budget for budget in self.budgets if budget.node_id in node_ids)


def gather_facts(topology: Topology, request: PlanRequest) -> Facts:
    """Give the facts that rules and layouts work on."""
    memory_nodes = _memory_nodes(topology)
    node_ids = tuple(node.node_id for node in memory_nodes)
    cores = _usable_cores(topology, node_ids)
    groups = _package_groups(topology, node_ids)
    owners = packages_by_node(topology)
    cores_of: dict[int | None, list[UsableCore]] = {}
    for core in cores:
        cores_of.setdefault(core.home_node_id, []).append(core)
    group_of = {node_id: index for index, group in enumerate(groups) for node_id in group}
    budgets = tuple(
        NodeBudget(
            node_id=node.node_id,
            group_index=group_of[node.node_id],
            cores=tuple(cores_of.get(node.node_id, ())),
            free_bytes=node.free_bytes,
            available_bytes=node.available_bytes,
            headroom_bytes=node_headroom_bytes(node.memory_total_bytes),
        )
        for node in memory_nodes
    )
    return Facts(
        topology=topology,
        request=request,
        cores=cores,
        budgets=budgets,
        groups=groups,
        hardware_node_count=sum(node.node_id in owners and node.has_memory for node in topology.nodes),
        gpu_node_ids=_gpu_node_ids(topology, request),
        unknown_gpu_count=_unknown_gpu_count(topology, request),
        home_of_cpu={core.cpu_ids[0]: core.home_node_id for core in cores},
        gpu_homes=tuple((gpu, _gpu_home(topology, gpu.node_id)) for gpu in _gpus_in_use(topology, request)),
    )


def node_headroom_bytes(memory_total_bytes: int | None) -> int:
    """Give the bytes that must stay free on a node beside its part of the arena."""
    if memory_total_bytes is None:
        return NODE_HEADROOM_BYTES
    return min(NODE_HEADROOM_BYTES, memory_total_bytes // SMALL_NODE_HEADROOM_PARTS)


def nearest_node(topology: Topology, from_node_id: int | None, node_ids: Iterable[int]) -> int | None:
    """Give the nearest of some nodes: by the kernel's distance, then same package, then the smaller id."""
    packages = packages_by_node(topology)
    node = None if from_node_id is None else topology.node(from_node_id)
    distances = {} if node is None else dict(node.distances)

    def remoteness(node_id: int) -> tuple[float, bool, int]:
        is_apart = not packages.get(from_node_id, frozenset()) & packages.get(node_id, frozenset())
        return (distances.get(node_id, float("inf")), is_apart, node_id)

    return min(node_ids, key=remoteness, default=None)


def packages_by_node(topology: Topology) -> dict[int | None, frozenset[int]]:
    """Give the packages that each node's CPUs belong to; None stands for CPUs without a node."""
    found: dict[int | None, set[int]] = {}
    for cpu in topology.cpus:
        found.setdefault(cpu.node_id, set()).add(cpu.package_index)
    return {node_id: frozenset(packages) for node_id, packages in found.items()}


def _memory_nodes(topology: Topology) -> tuple[Node, ...]:
    """Nodes that may hold the arena: allowed, with memory and CPUs; without CPUs only when there is nothing
    else.
    """
    allowed = tuple(node for node in topology.nodes if node.is_allowed and node.has_memory)
    with_cpus = tuple(node for node in allowed if node.has_cpus)
    return with_cpus or allowed or tuple(node for node in topology.nodes if node.is_allowed)


def _usable_cores(topology: Topology, node_ids: tuple[int, ...]) -> tuple[UsableCore, ...]:
    by_core: dict[int, list[Cpu]] = {}
    for cpu in topology.cpus:
        if cpu.is_allowed:
            by_core.setdefault(cpu.core_index, []).append(cpu)
    # One answer serves all CPUs of a node: a machine may have a thousand of them.
    node_of_core = {index: cpus[0].node_id for index, cpus in by_core.items()}
    homes = {node_id: _home_node(topology, node_id, node_ids) for node_id in set(node_of_core.values())}
    if not any(home is not None for home in homes.values()):
        # CPUs of one node with memory of another: reading across is then all there is.
        homes = {node_id: nearest_node(topology, node_id, node_ids) for node_id in homes}
    cores = (
        UsableCore(tuple(cpu.cpu_id for cpu in cpus), homes[node_of_core[index]])
        for index, cpus in by_core.items()
    )
    return tuple(sorted(cores, key=lambda core: core.cpu_ids))


def _home_node(topology: Topology, from_node_id: int | None, node_ids: tuple[int, ...]) -> int | None:
    """Give the node that a node's CPUs read from: itself, or the nearest with memory when it has none by
    nature.

    A node that has memory the cpuset forbids gives its CPUs no home: workers there would read across sockets.
    """
    if from_node_id in node_ids:
        return from_node_id
    node = None if from_node_id is None else topology.node(from_node_id)
    if node is not None and node.has_memory:
        return None
    return nearest_node(topology, from_node_id, node_ids)


def _package_groups(topology: Topology, node_ids: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Give node ids grouped by shared packages.

    A node that spans several packages (a guest with one-core sockets) joins them, so groups never overlap.
    """
    packages_of = packages_by_node(topology)
    groups: list[tuple[set[int], frozenset[int]]] = []
    for node_id in node_ids:
        members, packages = {node_id}, packages_of.get(node_id, frozenset())
        for other in [group for group in groups if group[1] & packages]:
            groups.remove(other)
            members, packages = members | other[0], packages | other[1]
        groups.append((members, packages))
    return tuple(sorted(tuple(sorted(members)) for members, _ in groups))


def _gpu_node_ids(topology: Topology, request: PlanRequest) -> tuple[int, ...]:
    """Nodes of the GPUs, each taken to the nearest node with CPUs: some report their own memory's."""
    if request.gpu_node_ids is not None:
        stated = request.gpu_node_ids
    else:
        stated = tuple(gpu.node_id for gpu in _gpus_in_use(topology, request) if gpu.node_id is not None)
    homes = (_gpu_home(topology, node_id) for node_id in stated)
    return tuple(sorted({home for home in homes if home is not None}))


def _gpu_home(topology: Topology, node_id: int | None) -> int | None:
    """Give the node with CPUs a GPU belongs to; None when its node is unknown."""
    if node_id is None:
        return None
    with_cpus = tuple(node.node_id for node in topology.nodes if node.has_cpus)
    return node_id if node_id in with_cpus else nearest_node(topology, node_id, with_cpus)


def _unknown_gpu_count(topology: Topology, request: PlanRequest) -> int:
    if request.gpu_node_ids is not None:
        return 0
    found = _gpus_in_use(topology, request)
    known = {gpu.pci_address for gpu in found}
    strangers = [gpu for gpu in request.gpus or () if gpu.pci_address not in known]
    return sum(gpu.node_id is None for gpu in found) + (len(strangers) if request.has_gpu is not False else 0)


def _gpus_in_use(topology: Topology, request: PlanRequest) -> tuple[Accelerator, ...]:
    """Give the accelerators that take part in a step: those asked for, else all."""
    if request.has_gpu is False:
        return ()
    if request.gpus is None:
        return topology.accelerators
    wanted = {gpu.pci_address for gpu in request.gpus}
    return tuple(gpu for gpu in topology.accelerators if gpu.pci_address in wanted)
