"""Asks NVIDIA's management library which CPUs are near each GPU, for machines whose firmware does not say.

Only the CPU affinity is asked for: the library's "NUMA node id" is the GPU memory's own node and the wrong
answer (trap-cucascade-119). AMD's library is not asked; its GPUs rest on sysfs alone.
"""

from __future__ import annotations

import ctypes

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0
# 1024 CPUs in 64-bit words, the most a machine we plan for has.
MASK_WORDS = 16
WORD_BITS = 64
BUS_ID_BYTES = 32


class _PciInfo(ctypes.Structure):
    """nvmlPciInfo_t of nvml.h."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * BUS_ID_BYTES),
    )


def gpu_affinity() -> dict[str, tuple[int, ...]]:
    """Give the CPUs near each NVIDIA GPU by PCI address, as the kernel writes it; {} without library or driver."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return {}
    return read_affinity(library)


def read_affinity(library: ctypes.CDLL) -> dict[str, tuple[int, ...]]:
    """Give what a loaded library knows; a call that fails leaves its GPU out."""
    if library.nvmlInit_v2() != SUCCESS:
        return {}
    try:
        count = ctypes.c_uint(0)
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != SUCCESS:
            return {}
        found = (_affinity_of(library, index) for index in range(count.value))
        return dict(pair for pair in found if pair is not None)
    finally:
        library.nvmlShutdown()


def _affinity_of(library: ctypes.CDLL, index: int) -> tuple[str, tuple[int, ...]] | None:
    device, pci = ctypes.c_void_p(), _PciInfo()
    words = (ctypes.c_ulong * MASK_WORDS)()
    if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != SUCCESS:
        return None
    if library.nvmlDeviceGetPciInfo_v3(device, ctypes.byref(pci)) != SUCCESS:
        return None
    if library.nvmlDeviceGetCpuAffinity(device, MASK_WORDS, words) != SUCCESS:
        return None
    cpus = tuple(
        word * WORD_BITS + bit
        for word in range(MASK_WORDS)
        for bit in range(WORD_BITS)
        if words[word] >> bit & 1
    )
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0", cpus
