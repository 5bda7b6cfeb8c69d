"""Rates from host memory to a GPU, beside what its link can move."""

from __future__ import annotations

import pytest

from stratad.gpu.rates import HostToDeviceRate, link_rate, slow_upload
from tests.support.machines import MemoryTree

ADDRESS = "0000:41:00.0"


def tree(speed: str = "16.0 GT/s PCIe", width: str = "16") -> MemoryTree:
    folder = f"/sys/bus/pci/devices/{ADDRESS}"
    return MemoryTree({f"{folder}/current_link_speed": speed, f"{folder}/current_link_width": width})


def rate(gigabytes: float, slice_index: int = 0, *, is_pinned: bool = True) -> HostToDeviceRate:
    return HostToDeviceRate("CUDA0", ADDRESS, slice_index, (slice_index,), is_pinned, gigabytes * 1e9)


@pytest.mark.parametrize(
    ("speed", "width", "gigabytes"),
    [
        ("16.0 GT/s PCIe", "16", 31.51),
        ("8.0 GT/s PCIe", "8", 7.88),
        ("5.0 GT/s PCIe", "16", 8.0),
        ("32 GT/s", "16", 63.02),
    ],
)
def test_a_links_rate_follows_from_speed_and_width(speed: str, width: str, gigabytes: float) -> None:
    assert link_rate(tree(speed, width), ADDRESS) == pytest.approx(gigabytes * 1e9, rel=1e-3)


def test_a_link_nobody_tells_of_has_no_rate() -> None:
    assert link_rate(tree("Unknown", "16"), ADDRESS) is None
    assert link_rate(tree(width="0"), ADDRESS) is None
    assert link_rate(tree(), "0000:42:00.0") is None
    assert link_rate(tree(), None) is None


def test_an_upload_far_below_its_link_is_told_with_the_iommu() -> None:
    reason = slow_upload((rate(12), rate(20.4)), tree(), "translated")
    assert reason is not None and "iommu=pt" in (reason.remedy or "")
    assert reason.evidence["bytes_per_second"] == 20.4e9
    other = slow_upload((rate(20.4),), tree(), "passthrough")
    assert other is not None and "iommu=pt" not in (other.remedy or "")


def test_an_upload_near_its_link_unpinned_or_on_an_unknown_link_is_not() -> None:
    assert slow_upload((rate(12), rate(20.5)), tree(), "translated") is None
    assert slow_upload((rate(2, is_pinned=False),), tree(), "translated") is None
    assert slow_upload((rate(2),), MemoryTree({}), "translated") is None
