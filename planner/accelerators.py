"""Finds GPUs and other compute devices on the PCI bus and tells them from the board's own VGA."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from planner.cpulist import parse_id_list, parse_id_mask, parse_number
from planner.sysfs import MachineFiles
from planner.topology import Accelerator, Node, Topology

PCI_DIRECTORY = "/sys/bus/pci/devices"
# Base class and subclass: 3D controller, other display controller, processing accelerator, co-processor.
COMPUTE_CLASSES = ("0302", "0380", "1200", "0b40")
VGA_CLASS = "0300"
# Vendors whose VGA-class devices are GPUs: NVIDIA, AMD, Intel. Board controllers (ASPEED 1a03, Matrox 102b,
# virtual VGA 1234, 1013, 1af4, 15ad) are not among them.
GPU_VENDORS = ("0x10de", "0x1002", "0x8086")
# ATI's server VGA (Rage XL, ES1000) shares AMD's vendor number and computes nothing.
BOARD_VGA_DEVICES = (("0x1002", "0x4752"), ("0x1002", "0x515e"), ("0x1002", "0x5969"))
IOMMU_DIRECTORY = "/sys/kernel/iommu_groups"
_PCI_ADDRESS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?:-v[0-9]+)?")
GPU_DRIVERS = ("nvidia", "amdgpu", "i915", "xe", "nouveau")


def read_accelerators(tree: MachineFiles, nodes: tuple[Node, ...]) -> tuple[Accelerator, ...]:
    """Give every accelerator with its node, None where firmware and locality say nothing.

    Args:
        tree: The machine's files.
        nodes: The machine's nodes, to check numbers against and to turn a list of local CPUs into a node.
    """
    found = []
    for address in tree.names(PCI_DIRECTORY) or ():
        pci_class = (tree.text(f"{PCI_DIRECTORY}/{address}/class") or "").lower()
        kind = pci_class.removeprefix("0x")[:4]
        if kind in COMPUTE_CLASSES or (kind == VGA_CLASS and _is_gpu(tree, address)):
            found.append(_accelerator(tree, address, pci_class, nodes))
    return tuple(found)


def read_iommu(tree: MachineFiles, addresses: tuple[str, ...]) -> str | None:
    """Give "off", "passthrough" or "translated" for the first GPU's IOMMU group, else for any group.

    Source: seed 3413 (translated DMA held pinned copies at 7.7 to 9.2 GB/s against 12.3 with passthrough).
    """
    groups = tree.names(IOMMU_DIRECTORY)
    if groups is None:
        return None
    if not groups:
        return "off"
    of_gpus = (tree.link_name(f"{PCI_DIRECTORY}/{address}/iommu_group") for address in addresses)
    for group in (*(name for name in of_gpus if name is not None), *groups):
        kind = (tree.text(f"{IOMMU_DIRECTORY}/{group}/type") or "").lower()
        if kind:
            return "passthrough" if kind == "identity" else "translated"
    return None


def _is_gpu(tree: MachineFiles, address: str) -> bool:
    vendor_id, device_id = _identifier(tree, address, "vendor"), _identifier(tree, address, "device")
    if vendor_id is not None:
        return vendor_id in GPU_VENDORS and (vendor_id, device_id) not in BOARD_VGA_DEVICES
    # Trees cut to a few files lack the vendor; a GPU driver that claims the device settles it.
    if tree.has(f"/proc/driver/nvidia/gpus/{address}"):
        return True
    return tree.link_name(f"{PCI_DIRECTORY}/{address}/driver") in GPU_DRIVERS


def _identifier(tree: MachineFiles, address: str, name: str) -> str | None:
    text = tree.text(f"{PCI_DIRECTORY}/{address}/{name}")
    return text.lower() if text else None


def _accelerator(tree: MachineFiles, address: str, pci_class: str, nodes: tuple[Node, ...]) -> Accelerator:
    text = tree.text(f"{PCI_DIRECTORY}/{address}/numa_node")
    kernel_number = _signed_number(text)
    known = kernel_number is not None and any(node.node_id == kernel_number for node in nodes)
    return Accelerator(
        pci_address=address,
        pci_class=pci_class,
        vendor_id=_identifier(tree, address, "vendor"),
        device_id=_identifier(tree, address, "device"),
        node_id=kernel_number if known else _node_of_local_cpus(tree, address, nodes),
        kernel_numa_node=kernel_number,
    )


def _signed_number(text: str | None) -> int | None:
    number = parse_number((text or "").removeprefix("-"), longest=9)
    return -number if number is not None and (text or "").startswith("-") else number


def _node_of_local_cpus(tree: MachineFiles, address: str, nodes: tuple[Node, ...]) -> int | None:
    """Give the one node whose CPUs the device calls local, or None when they span nodes or are not stated."""
    listed = parse_id_list(tree.text(f"{PCI_DIRECTORY}/{address}/local_cpulist") or "")
    mask = tree.text(f"{PCI_DIRECTORY}/{address}/local_cpus")
    return _node_of_cpus(listed or (parse_id_mask(mask) if mask else None) or (), nodes)


def _node_of_cpus(cpu_ids: Iterable[int], nodes: tuple[Node, ...]) -> int | None:
    """Give the one node these CPUs belong to; None when they span nodes, or when there is only one to span."""
    local = set(cpu_ids)
    touched = [node.node_id for node in nodes if local & set(node.cpu_ids)]
    return touched[0] if len(touched) == 1 and len([node for node in nodes if node.has_cpus]) > 1 else None


def pci_address_of(device_id: str | None) -> str | None:
    """Give a backend's device id as the kernel writes PCI addresses; None when it is none.

    CUDA and Vulkan write "domain:bus:device.function" with four or eight digits for the domain; of several devices
    on one card each has a suffix "-v<index>".
    """
    found = _PCI_ADDRESS.fullmatch((device_id or "").strip().lower())
    if found is None:
        return None
    domain, rest = found.groups()
    return f"{int(domain, 16):04x}:{rest}"


def with_gpu_affinity(topology: Topology, affinity: Mapping[str, tuple[int, ...]]) -> Topology:
    """Give the topology with nodes filled in from the vendor library's CPU affinity, by PCI address.

    The kernel comes first: on one cloud machine the library knew nothing and sysfs was right; elsewhere sysfs
    said -1 and the library knew (trap-cucascade-119). Affinity that spans nodes says nothing.
    """
    accelerators = tuple(
        replace(gpu, node_id=_node_of_cpus(affinity.get(gpu.pci_address, ()), topology.nodes))
        if gpu.node_id is None
        else gpu
        for gpu in topology.accelerators
    )
    return replace(topology, accelerators=accelerators)
