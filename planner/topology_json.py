"""Renders a Topology as plain values, with the names and forms of the truth files in shared/topologies."""

from __future__ import annotations

from planner.cpulist import format_id_list
from planner.hardware import generation_of
from planner.topology import Accelerator, CpuModel, Node, Topology

SCHEMA_VERSION = 1
KIB = 1024


def topology_to_dict(topology: Topology) -> dict[str, object]:
    """Give a JSON-ready document: CPU sets as kernel lists, memory in KiB or bytes as each name says.

    An implied node (no node directory) is in `implied_nodes`, not in `nodes`: the kernel never stated it.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "cpus_online": format_id_list(cpu.cpu_id for cpu in topology.cpus),
        "cpus_offline": format_id_list(topology.offline_cpu_ids) or None,
        "packages": [format_id_list(package) for package in topology.packages],
        "cores": [format_id_list(core) for core in topology.cores],
        "nodes": {str(node.node_id): _node(node) for node in topology.nodes if not node.is_implied},
        "implied_nodes": {str(node.node_id): _node(node) for node in topology.nodes if node.is_implied},
        "distances": {
            str(node.node_id): list(node.distance_row)
            for node in topology.nodes
            if node.distance_row is not None
        },
        "memory_total_kib": _kib(topology.memory_total_bytes),
        "accelerators": [_accelerator(accelerator) for accelerator in topology.accelerators],
        "usable_cpus": format_id_list(topology.usable_cpu_ids),
        "usable_nodes": format_id_list(topology.usable_node_ids),
        "memory_limit_bytes": topology.limits.memory_limit_bytes,
        "transparent_huge_pages": topology.transparent_huge_pages,
        "numa_balancing": topology.numa_balancing,
        "kernel_release": topology.kernel_release,
        "virtualization": topology.virtualization,
        "cpu_model": _cpu_model(topology.cpu_model),
        "cpu_generation": generation_of(topology.cpu_model).value,
        "last_level_caches": [
            {"cpus": format_id_list(cache.cpu_ids), "level": cache.level, "size_bytes": cache.size_bytes}
            for cache in topology.last_level_caches
        ],
        "iommu": topology.iommu,
    }


def _cpu_model(model: CpuModel | None) -> dict[str, object] | None:
    if model is None:
        return None
    return {
        "vendor": model.vendor,
        "family": model.family,
        "model": model.model,
        "stepping": model.stepping,
        "name": model.name,
    }


def _node(node: Node) -> dict[str, object]:
    return {
        "cpus": format_id_list(node.cpu_ids),
        "mem_total_kib": _kib(node.memory_total_bytes),
        "free_bytes": node.free_bytes,
        "available_bytes": node.available_bytes,
        "is_allowed": node.is_allowed,
        "huge_pages": [
            {"page_kib": pool.page_bytes // KIB, "total": pool.total_count, "free": pool.free_count}
            for pool in node.huge_pages
        ],
    }


def _accelerator(accelerator: Accelerator) -> dict[str, object]:
    """`numa_node` is the file's number, -1 included; `node` is what we conclude, null when nobody knows."""
    return {
        "busid": accelerator.pci_address,
        "class": accelerator.pci_class,
        "id": f"{accelerator.vendor_id}:{accelerator.device_id}",
        "numa_node": accelerator.kernel_numa_node,
        "node": accelerator.node_id,
    }


def _kib(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else size_bytes // KIB
