"""Builds the Topology of a machine from a root: a live `/` or a captured tree."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from planner.accelerators import read_accelerators, read_iommu
from planner.cgroups import read_cgroup_limits
from planner.cpulist import LARGEST_ID, parse_id_list, parse_id_mask, parse_number
from planner.processors import Processors, read_processors
from planner.sysfs import MachineFiles, Tree
from planner.topology import CgroupLimits, Cpu, HugePagePool, Node, Topology

NODE_DIRECTORY = "/sys/devices/system/node"
KIB = 1024


class TopologyUnreadable(Exception):
    """The root shows no CPU at all, so there is nothing to plan for."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no CPUs found under {name}")
        self.name = name


def read_topology(root: Path) -> Topology:
    """Give the facts of the machine whose /sys and /proc lie under `root`.

    Missing files become None or a documented fallback; nothing is guessed. A machine without a node directory
    has one implied node 0 with all CPUs and the memory of /proc/meminfo.

    Raises:
        TopologyUnreadable: When neither /sys nor /proc names a single CPU.
    """
    return topology_of(Tree(root), str(root))


def topology_of(tree: MachineFiles, name: str = "these files") -> Topology:
    """Give the facts of the machine that `tree` shows; `name` says in an error where they came from.

    Raises:
        TopologyUnreadable: When neither /sys nor /proc names a single CPU.
    """
    limits = read_cgroup_limits(tree)
    processors = read_processors(tree, limits.affinity_cpu_ids or limits.allowed_cpu_ids)
    if not processors.online_cpu_ids:
        raise TopologyUnreadable(name)
    memory = memory_fields(tree.text("/proc/meminfo"))
    nodes = _read_nodes(tree, processors, limits, memory)
    accelerators = read_accelerators(tree, nodes)
    return Topology(
        cpus=_cpus(processors, nodes, _allowed_cpu_ids(processors, limits)),
        cores=processors.cores,
        packages=processors.packages,
        nodes=nodes,
        accelerators=accelerators,
        offline_cpu_ids=processors.offline_cpu_ids,
        limits=limits,
        memory_total_bytes=memory.get("MemTotal"),
        transparent_huge_pages=chosen_word(tree.text("/sys/kernel/mm/transparent_hugepage/enabled")),
        numa_balancing=_switch(tree.text("/proc/sys/kernel/numa_balancing")),
        kernel_release=tree.text("/proc/sys/kernel/osrelease") or None,
        virtualization=tree.text("/sys/hypervisor/type") or ("vm" if processors.is_virtual else None),
        cpu_model=processors.cpu_model,
        last_level_caches=processors.last_level_caches,
        iommu=read_iommu(tree, tuple(gpu.pci_address for gpu in accelerators)),
    )


def _allowed_cpu_ids(processors: Processors, limits: CgroupLimits) -> frozenset[int]:
    """Online CPUs inside cpuset and affinity mask.

    A limit that leaves no online CPU contradicts the tree (files captured at different times, or from inside
    another machine's container) and is passed over: a running process always has a CPU.
    """
    allowed = frozenset(processors.online_cpu_ids)
    for limit in (limits.allowed_cpu_ids, limits.affinity_cpu_ids):
        if limit is not None and allowed & frozenset(limit):
            allowed &= frozenset(limit)
    return allowed


def _cpus(processors: Processors, nodes: tuple[Node, ...], allowed: frozenset[int]) -> tuple[Cpu, ...]:
    node_of: dict[int, int] = {}
    for node in nodes:
        for cpu_id in node.cpu_ids:
            # Broken firmware lists one CPU for many nodes; the first node keeps it.
            node_of.setdefault(cpu_id, node.node_id)
    package_of = {cpu_id: index for index, package in enumerate(processors.packages) for cpu_id in package}
    cpus = [
        Cpu(
            cpu_id=cpu_id,
            core_index=core_index,
            package_index=package_of[cpu_id],
            smt_index=smt_index,
            node_id=node_of.get(cpu_id),
            is_allowed=cpu_id in allowed,
        )
        for core_index, core in enumerate(processors.cores)
        for smt_index, cpu_id in enumerate(core)
    ]
    return tuple(sorted(cpus, key=lambda cpu: cpu.cpu_id))


def _read_nodes(
    tree: MachineFiles, processors: Processors, limits: CgroupLimits, memory: dict[str, int]
) -> tuple[Node, ...]:
    matches = (re.fullmatch(r"node(\d{1,5})", name) for name in tree.names(NODE_DIRECTORY) or ())
    present = sorted(int(match[1]) for match in matches if match and int(match[1]) <= LARGEST_ID)
    online = parse_id_list(tree.text(f"{NODE_DIRECTORY}/online") or "")
    node_ids = tuple(node_id for node_id in present if not online or node_id in online) or tuple(present)
    if not node_ids:
        implied = _memory_parts(memory)
        return (Node(0, processors.online_cpu_ids, True, *implied, is_implied=True),)
    allowed = set(limits.allowed_node_ids or node_ids)
    if not allowed & set(node_ids):
        allowed = set(node_ids)
    fallback = memory if len(node_ids) == 1 else {}
    nodes = (_read_node(tree, node_id, node_ids, fallback) for node_id in node_ids)
    online_cpus = set(processors.online_cpu_ids)
    return tuple(
        replace(
            node,
            cpu_ids=tuple(cpu_id for cpu_id in node.cpu_ids if cpu_id in online_cpus),
            is_allowed=node.node_id in allowed,
        )
        for node in nodes
    )


def _read_node(
    tree: MachineFiles, node_id: int, node_ids: tuple[int, ...], fallback_memory: dict[str, int]
) -> Node:
    """Give a node as its own directory states it: CPUs online or not, allowed or not."""
    directory = f"{NODE_DIRECTORY}/node{node_id}"
    row = _distance_row(tree.text(f"{directory}/distance"))
    return replace(
        read_node_memory(tree, node_id, fallback_memory),
        cpu_ids=_listed_cpus(tree, directory),
        distances=_distances(row, node_ids),
        distance_row=row,
    )


def read_node_memory(tree: MachineFiles, node_id: int, fallback_memory: dict[str, int] | None = None) -> Node:
    """Give a node's memory and huge pages as they are now, and nothing else of it.

    `fallback_memory` stands in for the node's own meminfo where there is none.
    """
    directory = f"{NODE_DIRECTORY}/node{node_id}"
    own_memory = memory_fields(tree.text(f"{directory}/meminfo"))
    total, free, reclaimable = _memory_parts(own_memory or fallback_memory or {})
    return Node(
        node_id=node_id,
        cpu_ids=(),
        is_allowed=True,
        memory_total_bytes=total,
        free_bytes=free,
        reclaimable_bytes=reclaimable,
        huge_pages=_huge_pages(tree, directory),
    )


def _listed_cpus(tree: MachineFiles, directory: str) -> tuple[int, ...]:
    listed = parse_id_list(tree.text(f"{directory}/cpulist") or "")
    if listed:
        return listed
    mask = tree.text(f"{directory}/cpumap")
    masked = parse_id_mask(mask) if mask else None
    if masked is not None:
        return masked
    matches = (re.fullmatch(r"cpu(\d{1,5})", name) for name in tree.names(directory) or ())
    return tuple(sorted(int(match[1]) for match in matches if match))


def _distance_row(text: str | None) -> tuple[int, ...] | None:
    numbers = [parse_number(word, longest=5) for word in (text or "").split()]
    row = tuple(number for number in numbers if number is not None)
    return row if row and len(row) == len(numbers) else None


def _distances(row: tuple[int, ...] | None, node_ids: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Pair a row with node ids: one entry an online node, or by id when the row also covers offline nodes."""
    if row is None:
        return ()
    if len(row) == len(node_ids):
        return tuple(zip(node_ids, row, strict=True))
    if len(row) > node_ids[-1]:
        return tuple((node_id, row[node_id]) for node_id in node_ids)
    return ()


def memory_fields(text: str | None) -> dict[str, int]:
    """Give the byte counts of a meminfo file by name; node files carry "Node 0" in front of each."""
    pairs = re.findall(r"^(?:Node \d+ )?([\w()]+):\s*(\d{1,15}) kB", text or "", re.MULTILINE)
    return {name: int(kib) * KIB for name, kib in pairs}


def _memory_parts(fields: dict[str, int]) -> tuple[int | None, int | None, int | None]:
    """Give total, free and reclaimable bytes; each None when the file does not say."""
    total, free = fields.get("MemTotal"), fields.get("MemFree")
    names = ("Active(file)", "Inactive(file)", "SReclaimable")
    parts = [fields[name] for name in names if name in fields]
    if not parts and "FilePages" in fields:
        parts = [max(0, fields["FilePages"] - fields.get("Shmem", 0))]
    return total, free, sum(parts) if parts else None


def _huge_pages(tree: MachineFiles, directory: str) -> tuple[HugePagePool, ...]:
    pools = []
    for name in tree.names(f"{directory}/hugepages") or ():
        match = re.fullmatch(r"hugepages-(\d{1,9})kB", name)
        total = parse_number(tree.text(f"{directory}/hugepages/{name}/nr_hugepages"))
        if match and total is not None:
            free = parse_number(tree.text(f"{directory}/hugepages/{name}/free_hugepages"))
            pools.append(HugePagePool(int(match[1]) * KIB, total, free))
    return tuple(sorted(pools, key=lambda pool: pool.page_bytes))


def chosen_word(text: str | None) -> str | None:
    """Give the word in brackets of a file that lists choices: "always [madvise] never"."""
    match = re.search(r"\[([\w+]+)\]", text or "")
    return match[1] if match else None


def _switch(text: str | None) -> bool | None:
    number = parse_number(text)
    return None if number is None else number > 0
