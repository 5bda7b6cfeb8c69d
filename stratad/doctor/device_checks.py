"""Checks of GPUs: their node, their link, and the IOMMU between them and the arena."""

from __future__ import annotations

from planner.facts import gather_facts
from planner.quantity import count_of
from planner.request import PlanRequest
from stratad.doctor.check import Check, Finding, Group, Severity, fine, from_reason, unknown
from stratad.doctor.facts import MachineFacts, PciLink


def gpu_node_unknown(facts: MachineFacts) -> Finding:
    """A GPU whose node nobody knows, on a machine with several nodes (the planner's reason)."""
    reason = facts.reason("gpu-node-unknown")
    if reason is not None:
        return from_reason(
            Severity.WARNING,
            reason,
            "nvidia-smi topo -m  # or: rocm-smi --showtoponuma",
            "stratactl plan --gpu-node NODE",
            "update the firmware (ACPI _PXM); never write the sysfs file, that taints the kernel",
        )
    gpus = facts.topology.accelerators
    if not gpus:
        return fine("no GPU")
    homes = dict.fromkeys(gather_facts(facts.topology, PlanRequest()).gpu_node_ids)
    shown = ", ".join(map(str, homes)) or "not stated, and with one node it does not matter"
    return fine(f"{count_of(len(gpus), 'GPU')}, node {shown}", gpus=len(gpus))


def gpu_outside_cpuset(facts: MachineFacts) -> Finding:
    """A GPU at a node that the service may not use (the planner's reason)."""
    reason = facts.reason("gpu-node-outside-cpuset")
    if reason is not None:
        return from_reason(
            Severity.WARNING,
            reason,
            "sudo systemctl set-property stratad.slice AllowedCPUs= AllowedMemoryNodes=",
            "in a container: allow the GPU's node (docker: --cpuset-mems)",
        )
    return fine("no GPU lies outside the nodes that may be used")


def iommu(facts: MachineFacts) -> Finding:
    """The IOMMU translates the GPU's DMA (the planner's reason)."""
    reason, mode = facts.reason("iommu-translated"), facts.topology.iommu
    if reason is not None:
        return from_reason(
            Severity.WARNING,
            reason,
            "add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then: sudo update-grub && sudo reboot",
        )
    if not facts.topology.accelerators:
        return fine("no GPU whose DMA could be translated")
    if mode is None:
        return unknown("whether an IOMMU translates cannot be read")
    return fine(f"IOMMU: {mode}", iommu=mode)


def gpu_link(facts: MachineFacts) -> Finding:
    """A GPU whose link is narrower than both ends can do; a lower rate is usual while it idles."""
    links = facts.settings.gpu_links
    if not facts.topology.accelerators:
        return fine("no GPU")
    if not links:
        return unknown("the kernel does not state the link of the GPU")
    narrow = [link for link in links if link.width < link.widest]
    if not narrow:
        return fine(f"{count_of(len(links), 'GPU link')} at full width ({_link_text(links[0])})")
    worst = min(narrow, key=lambda link: link.width / link.widest)
    return Finding(
        Severity.WARNING,
        f"the link of {worst.pci_address} has {worst.width} of {worst.widest} lanes: prompts, which the GPU reads "
        "over it, slow down with them",
        {"address": worst.pci_address, "width": worst.width, "widest": worst.widest},
        (
            f"sudo lspci -vv -s {worst.pci_address} | grep -E 'LnkCap|LnkSta'",
            "reseat the card, or use another slot",
        ),
    )


def _link_text(link: PciLink) -> str:
    return f"x{link.width}, {link.rate:g} of {link.fastest:g} GT/s now"


DEVICE_CHECKS: tuple[Check, ...] = (
    Check(
        "gpu-node-unknown",
        Group.DEVICES,
        "Is the GPU's node known?",
        "Between equal plans the one at the GPU wins; staging buffers belong on its node. On one node it matters "
        "to nobody.",
        "trap-cucascade-119, trap-tf-58428; pub-gearshifft-82: copies to the far node 3.2 times slower",
        (Severity.WARNING,),
        gpu_node_unknown,
    ),
    Check(
        "gpu-node-outside-cpuset",
        Group.DEVICES,
        "May the service use the GPU's node?",
        "Its buffers then feed the GPU across the link, and wrappers that bind to the GPU's node do not start at all.",
        "trap-sglang-27368",
        (Severity.WARNING,),
        gpu_outside_cpuset,
    ),
    Check(
        "iommu-translated",
        Group.DEVICES,
        "Does the IOMMU translate the GPU's DMA?",
        "Translation costs the pinned copies that prompts consist of.",
        "seed 3413: 7.7 to 9.2 GB/s translated, 12.3 with passthrough",
        (Severity.WARNING,),
        iommu,
    ),
    Check(
        "gpu-link-narrow",
        Group.DEVICES,
        "Has the GPU's link all its lanes?",
        "Prompts read the arena over this link, and its rate is proportional to the lanes.",
        "the kernel's documentation of PCI sysfs files; no measurement of ours",
        (Severity.WARNING,),
        gpu_link,
    ),
)
