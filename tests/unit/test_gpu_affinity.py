"""The vendor library as a source for a GPU's node, with a stand-in for the library."""

from __future__ import annotations

import ctypes
from typing import Any

from planner import with_gpu_affinity
from stratad.gpu.affinity import LIBRARY, gpu_affinity, read_affinity
from tests.support.machines import GpuShape, MachineShape, even_nodes, machine_topology


class Library:
    """Two GPUs: one near CPUs 0 and 65, one the library knows nothing about."""

    def __init__(self, init_status: int = 0) -> None:
        self.init_status = init_status
        self.is_shut_down = False

    def nvmlInit_v2(self) -> int:
        return self.init_status

    def nvmlShutdown(self) -> int:
        self.is_shut_down = True
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device: Any) -> int:
        device._obj.value = index + 1
        return 0

    def nvmlDeviceGetPciInfo_v3(self, device: ctypes.c_void_p, pci: Any) -> int:
        pci._obj.domain, pci._obj.bus, pci._obj.device = 0x10000, 0x3B, device.value
        return 0

    def nvmlDeviceGetCpuAffinity(self, device: ctypes.c_void_p, word_count: int, words: Any) -> int:
        if device.value == 2:
            return 3
        assert word_count == len(words)
        words[0], words[1] = 1, 2
        return 0


def test_affinity_is_read_by_pci_address_and_a_gpu_the_library_does_not_know_is_left_out() -> None:
    library = Library()
    assert read_affinity(library) == {"10000:3b:01.0": (0, 65)}  # type: ignore[arg-type]
    assert library.is_shut_down


def test_a_library_without_a_driver_says_nothing() -> None:
    library = Library(init_status=9)
    assert read_affinity(library) == {}  # type: ignore[arg-type]
    assert not library.is_shut_down


def test_a_machine_without_the_library_says_nothing(monkeypatch: Any) -> None:
    def missing(name: str) -> None:
        assert name == LIBRARY
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert gpu_affinity() == {}


def test_trap_cucascade_119_the_library_fills_in_what_the_kernel_does_not_say() -> None:
    shape = MachineShape(
        even_nodes(2, 16),
        (GpuShape("0000:3b:00.0", -1), GpuShape("0000:af:00.0", 0), GpuShape("0000:b0:00.0", -1)),
    )
    topology = machine_topology(shape)
    affinity = {
        "0000:3b:00.0": tuple(range(16, 32)),
        "0000:af:00.0": tuple(range(16, 32)),
        "0000:b0:00.0": tuple(range(32)),
    }
    found = with_gpu_affinity(topology, affinity).accelerators
    # The kernel's word stands, and CPUs of both nodes say nothing.
    assert [gpu.node_id for gpu in found] == [1, 0, None]
    assert [gpu.node_id for gpu in with_gpu_affinity(topology, {}).accelerators] == [None, 0, None]
