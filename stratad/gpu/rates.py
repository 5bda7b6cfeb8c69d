"""Measured rates from host memory to a GPU beside what its link can move, and why they may be far apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner import Effect, Reason
from planner.accelerators import PCI_DIRECTORY
from planner.sysfs import MachineFiles

# From 8 GT/s on, 128 of 130 bits carry data; before, 8 of 10.
_MODERN_GIGATRANSFERS = 8.0
# Pinned copies reach 80 to 90 % of a link; 7.7 of 12.3 GB/s is what translated DMA left on one box (seed 3413).
FAR_BELOW = 0.65


@dataclass(frozen=True, slots=True)
class HostToDeviceRate:
    """Bytes a second from one slice's pages to one GPU; `node_ids` are the slice's, () where it is not placed."""

    gpu: str
    pci_address: str | None
    slice_index: int
    node_ids: tuple[int, ...]
    is_pinned: bool
    bytes_per_second: float


def link_rate(tree: MachineFiles, pci_address: str | None) -> float | None:
    """Give the bytes a second that a card's PCIe link moves as it is trained now; None where nobody says."""
    folder = f"{PCI_DIRECTORY}/{pci_address}"
    speed = re.match(r"([0-9.]+) GT/s", tree.text(f"{folder}/current_link_speed") or "")
    width = tree.text(f"{folder}/current_link_width") or ""
    if pci_address is None or speed is None or not width.isdigit() or int(width) == 0:
        return None
    gigatransfers = float(speed[1])
    coding = 128 / 130 if gigatransfers >= _MODERN_GIGATRANSFERS else 8 / 10
    return gigatransfers * 1e9 * coding / 8 * int(width)


def slow_upload(rates: Sequence[HostToDeviceRate], tree: MachineFiles, iommu: str | None) -> Reason | None:
    """Give a warning when the best pinned rate of a GPU is far below its link's; None when all is well or unknown.

    The best of the slices: those of other nodes pay for the link between nodes as well.
    """
    for name in sorted({rate.gpu for rate in rates if rate.is_pinned}):
        best = max(
            (rate for rate in rates if rate.gpu == name and rate.is_pinned),
            key=lambda rate: rate.bytes_per_second,
        )
        link = link_rate(tree, best.pci_address)
        if link is None or best.bytes_per_second >= FAR_BELOW * link:
            continue
        return Reason(
            "gpu-upload-slow",
            Effect.WARNS,
            f"{name} reads pinned memory at {best.bytes_per_second / 1e9:.1f} GB/s, its link moves {link / 1e9:.1f}"
            + ("; the IOMMU translates its DMA" if iommu == "translated" else ""),
            {
                "gpu": name,
                "bytes_per_second": best.bytes_per_second,
                "link_bytes_per_second": link,
                "iommu": iommu,
            },
            "boot with iommu=pt if the platform allows it"
            if iommu == "translated"
            else "look at the card's slot and at what else uses the link (`lspci -vv`)",
        )
    return None
