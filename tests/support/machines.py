"""Synthetic machines: the files of /sys and /proc for a shape that a test states in a few words.

`machine_files` gives the files as a dictionary; `MemoryTree` serves them without a disk, `write_tree` puts
them on one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planner import CpuModel, Topology
from planner.cpulist import format_id_list
from planner.discover import topology_of

GIB = 1024**3
KIB = 1024
CPU_DIRECTORY = "/sys/devices/system/cpu"
NODE_DIRECTORY = "/sys/devices/system/node"


@dataclass(frozen=True, slots=True)
class NodeShape:
    """One node: its cores as tuples of sibling CPUs, its package, its memory (None: no meminfo)."""

    node_id: int
    package_id: int
    cores: tuple[tuple[int, ...], ...]
    total_bytes: int | None = 64 * GIB
    free_bytes: int | None = None
    cache_bytes: int = 0
    idle_huge_pages: int = 0


@dataclass(frozen=True, slots=True)
class GpuShape:
    """One PCI function; `numa_node` None leaves the file out."""

    address: str
    numa_node: int | None
    pci_class: str = "0x030200"
    vendor: str = "0x10de"
    device: str = "0x2204"


@dataclass(frozen=True, slots=True)
class MachineShape:
    """A machine. Distances default to 10 and 21; `allowed_cpus` and `allowed_nodes` are kernel lists."""

    nodes: tuple[NodeShape, ...]
    gpus: tuple[GpuShape, ...] = ()
    distances: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    allowed_cpus: str | None = None
    allowed_nodes: str | None = None
    memory_max_bytes: int | None = None
    numa_balancing: int | None = 0
    transparent_huge_pages: str = "always [madvise] never"
    cpu_model: CpuModel | None = None


class MemoryTree:
    """Machine files kept in a dictionary from absolute path to text."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = dict(files)
        self._names: dict[str, set[str]] = {}
        for path in self._files:
            parts = path.split("/")
            for count in range(1, len(parts)):
                self._names.setdefault("/".join(parts[:count]), set()).add(parts[count])

    def text(self, path: str) -> str | None:
        found = self._files.get(path)
        return None if found is None else found.strip()

    def names(self, path: str) -> tuple[str, ...] | None:
        return tuple(sorted(self._names[path])) if path in self._names else None

    def has(self, path: str) -> bool:
        return path in self._files or path in self._names

    def link_name(self, path: str) -> str | None:
        return None


def even_nodes(
    node_count: int,
    cores_per_node: int,
    *,
    threads_per_core: int = 1,
    nodes_per_package: int = 1,
    total_gib: float = 64,
    free_gib: float | tuple[float, ...] | None = None,
    cache_gib: float = 0,
) -> tuple[NodeShape, ...]:
    """Give equal nodes. CPUs count up through the nodes, then again for the second sibling, as on Intel."""
    core_total = node_count * cores_per_node
    free = free_gib if isinstance(free_gib, tuple) else (free_gib,) * node_count
    return tuple(
        NodeShape(
            node_id=node_id,
            package_id=node_id // nodes_per_package,
            cores=tuple(
                tuple(core + sibling * core_total for sibling in range(threads_per_core))
                for core in range(node_id * cores_per_node, (node_id + 1) * cores_per_node)
            ),
            total_bytes=int(total_gib * GIB),
            free_bytes=None if (amount := free[node_id]) is None else int(amount * GIB),
            cache_bytes=int(cache_gib * GIB),
        )
        for node_id in range(node_count)
    )


def machine_topology(shape: MachineShape) -> Topology:
    """Give the topology our reader makes of a shape's files."""
    return topology_of(MemoryTree(machine_files(shape)))


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write files under a root and give the root."""
    for path, text in files.items():
        target = root / path.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


def machine_files(shape: MachineShape) -> dict[str, str]:
    """Give every file of the machine by absolute path."""
    files = _cpu_files(shape)
    for index, node in enumerate(shape.nodes):
        files |= _node_files(shape, node, index)
    for gpu in shape.gpus:
        files |= _gpu_files(gpu)
    return files | _kernel_files(shape)


def _cpu_files(shape: MachineShape) -> dict[str, str]:
    packages: dict[int, list[int]] = {}
    for node in shape.nodes:
        packages.setdefault(node.package_id, []).extend(cpu for core in node.cores for cpu in core)
    files = {f"{CPU_DIRECTORY}/online": format_id_list(cpu for cpus in packages.values() for cpu in cpus)}
    for node in shape.nodes:
        for core_number, core in enumerate(node.cores):
            for cpu in core:
                topology = f"{CPU_DIRECTORY}/cpu{cpu}/topology"
                # core_id repeats in every node on purpose: no reader may trust it alone.
                files[f"{topology}/core_id"] = str(core_number)
                files[f"{topology}/physical_package_id"] = str(node.package_id)
                files[f"{topology}/thread_siblings_list"] = format_id_list(core)
                files[f"{topology}/core_siblings_list"] = format_id_list(packages[node.package_id])
    return files


def _node_files(shape: MachineShape, node: NodeShape, index: int) -> dict[str, str]:
    directory = f"{NODE_DIRECTORY}/node{node.node_id}"
    even = tuple(10 if other is node else 21 for other in shape.nodes)
    row = shape.distances.get(node.node_id, even)
    files = {
        f"{directory}/cpulist": format_id_list(cpu for core in node.cores for cpu in core),
        f"{directory}/distance": " ".join(map(str, row)),
        f"{directory}/hugepages/hugepages-2048kB/nr_hugepages": str(node.idle_huge_pages),
        f"{directory}/hugepages/hugepages-2048kB/free_hugepages": str(node.idle_huge_pages),
    }
    if node.total_bytes is not None:
        free_bytes = node.total_bytes if node.free_bytes is None else node.free_bytes
        numbers = {"MemTotal": node.total_bytes, "MemFree": free_bytes, "Inactive(file)": node.cache_bytes}
        files[f"{directory}/meminfo"] = "\n".join(
            f"Node {node.node_id} {name}: {number // KIB} kB" for name, number in numbers.items()
        )
    return files


def _gpu_files(gpu: GpuShape) -> dict[str, str]:
    directory = f"/sys/bus/pci/devices/{gpu.address}"
    files = {
        f"{directory}/class": gpu.pci_class,
        f"{directory}/vendor": gpu.vendor,
        f"{directory}/device": gpu.device,
    }
    return files if gpu.numa_node is None else files | {f"{directory}/numa_node": str(gpu.numa_node)}


def _kernel_files(shape: MachineShape) -> dict[str, str]:
    files = {"/sys/kernel/mm/transparent_hugepage/enabled": shape.transparent_huge_pages}
    if shape.numa_balancing is not None:
        files["/proc/sys/kernel/numa_balancing"] = str(shape.numa_balancing)
    if shape.cpu_model is not None:
        model = shape.cpu_model
        files["/proc/cpuinfo"] = (
            f"processor\t: 0\nvendor_id\t: {model.vendor}\ncpu family\t: {model.family}\n"
            f"model\t\t: {model.model}\nmodel name\t: {model.name}\n"
        )
    group = "/sys/fs/cgroup/stratad.slice"
    files["/proc/mounts"] = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"
    files["/proc/self/cgroup"] = "0::/stratad.slice"
    if shape.allowed_cpus is not None:
        files[f"{group}/cpuset.cpus.effective"] = shape.allowed_cpus
    if shape.allowed_nodes is not None:
        files[f"{group}/cpuset.mems.effective"] = shape.allowed_nodes
    if shape.memory_max_bytes is not None:
        files[f"{group}/memory.max"] = str(shape.memory_max_bytes)
    return files
