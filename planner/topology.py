"""The facts of a machine: CPUs, cores, packages, NUMA nodes, accelerators and limits. Values only, nothing
read here.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cpu:
    """One online logical CPU.

    `core_index` and `package_index` count in `Topology.cores` and `Topology.packages`: the kernel's own
    numbers repeat across packages and dies. `smt_index` is the CPU's place among the siblings of its core, 0
    for the lowest id.
    """

    cpu_id: int
    core_index: int
    package_index: int
    smt_index: int
    node_id: int | None
    is_allowed: bool


@dataclass(frozen=True, slots=True)
class CpuModel:
    """Which processor this is, as /proc/cpuinfo states it; None where it says nothing."""

    vendor: str | None = None
    family: int | None = None
    model: int | None = None
    stepping: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class LastLevelCache:
    """One cache of the last level that the online CPUs named share."""

    cpu_ids: tuple[int, ...]
    level: int
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class HugePagePool:
    """Reserved huge pages of one size on one node; counts are pages."""

    page_bytes: int
    total_count: int
    free_count: int | None


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node. `cpu_ids` are the online CPUs the kernel lists for it, allowed or not.

    `free_bytes` is memory nobody uses; `reclaimable_bytes` is page cache and slab the kernel gives up on
    demand. `distances` holds (node id, distance) pairs. An implied node stands for a machine without a node
    directory.
    """

    node_id: int
    cpu_ids: tuple[int, ...]
    is_allowed: bool
    memory_total_bytes: int | None = None
    free_bytes: int | None = None
    reclaimable_bytes: int | None = None
    huge_pages: tuple[HugePagePool, ...] = ()
    distances: tuple[tuple[int, int], ...] = ()
    distance_row: tuple[int, ...] | None = None
    is_implied: bool = False

    @property
    def has_cpus(self) -> bool:
        """Whether the node has online CPUs of its own."""
        return bool(self.cpu_ids)

    @property
    def has_memory(self) -> bool:
        """Whether the node can hold pages; unknown memory counts, a stated zero does not."""
        return self.memory_total_bytes is None or self.memory_total_bytes > 0

    @property
    def available_bytes(self) -> int | None:
        """Bytes a new mapping can get here: free plus what the kernel can reclaim; None when unknown.

        Without a free figure (a tree rendered from an export) the total stands in: it is the only bound
        known.
        """
        if self.free_bytes is None:
            return self.memory_total_bytes
        total_bytes = self.free_bytes + (self.reclaimable_bytes or 0)
        return total_bytes if self.memory_total_bytes is None else min(total_bytes, self.memory_total_bytes)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One GPU or other compute device on the PCI bus.

    `node_id` is None when nobody knows; `kernel_numa_node` is the number in the file (-1 there means
    unknown), None without a file. Identifiers are the kernel's hexadecimal texts, None when the tree lacks
    them.
    """

    pci_address: str
    pci_class: str
    vendor_id: str | None
    device_id: str | None
    node_id: int | None
    kernel_numa_node: int | None


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """What the process's own cgroups and masks leave of the machine; None is no limit, or unknown."""

    allowed_cpu_ids: tuple[int, ...] | None = None
    allowed_node_ids: tuple[int, ...] | None = None
    affinity_cpu_ids: tuple[int, ...] | None = None
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """One machine as the kernel shows it. Every tuple is sorted by id; `cores` and `packages` by their first
    CPU.

    `iommu` is "off", "passthrough" or "translated", as the GPU's group (else any group) says.
    """

    cpus: tuple[Cpu, ...]
    cores: tuple[tuple[int, ...], ...]
    packages: tuple[tuple[int, ...], ...]
    nodes: tuple[Node, ...]
    accelerators: tuple[Accelerator, ...] = ()
    offline_cpu_ids: tuple[int, ...] = ()
    limits: CgroupLimits = field(default_factory=CgroupLimits)
    memory_total_bytes: int | None = None
    transparent_huge_pages: str | None = None
    numa_balancing: bool | None = None
    kernel_release: str | None = None
    virtualization: str | None = None
    cpu_model: CpuModel | None = None
    last_level_caches: tuple[LastLevelCache, ...] = ()
    iommu: str | None = None

    @property
    def usable_cpu_ids(self) -> tuple[int, ...]:
        """Online CPUs that the cpuset and the affinity mask allow."""
        return tuple(cpu.cpu_id for cpu in self.cpus if cpu.is_allowed)

    @property
    def usable_node_ids(self) -> tuple[int, ...]:
        """Nodes whose memory the cpuset allows."""
        return tuple(node.node_id for node in self.nodes if node.is_allowed)

    def node(self, node_id: int) -> Node | None:
        """Give the node with this id, or None."""
        return next((node for node in self.nodes if node.node_id == node_id), None)

    def distance(self, from_node_id: int, to_node_id: int) -> int | None:
        """Give the kernel's distance between two nodes, or None when it states none."""
        node = self.node(from_node_id)
        return None if node is None else dict(node.distances).get(to_node_id)
