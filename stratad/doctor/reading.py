"""Reads what the doctor looks at beyond the topology: settings of the kernel, firmware tables, counters."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner import Topology
from planner.cpulist import parse_id_list, parse_number
from planner.discover import chosen_word, memory_fields
from planner.sysfs import MachineFiles, Tree
from stratad.doctor.facts import (
    Commit,
    ErrorCounts,
    Governor,
    MemoryModule,
    PciLink,
    Settings,
    Swap,
)
from stratad.doctor.firmware import TABLE_PATH, memory_modules
from stratad.machine.free_blocks import large_block_bytes

KIB = 1024
EDAC_DIRECTORY = "/sys/devices/system/edac/mc"
FREQUENCY_DIRECTORY = "/sys/devices/system/cpu/cpufreq"
PCI_DIRECTORY = "/sys/bus/pci/devices"


def read_settings(files: MachineFiles, topology: Topology) -> Settings:
    """Give the kernel's and the firmware's settings; what cannot be read is None or ()."""
    memory = memory_fields(files.text("/proc/meminfo"))
    version_1 = files.text("/proc/cgroups")
    controllers = files.text("/sys/fs/cgroup/cgroup.controllers")
    return Settings(
        swap=Swap(
            total_bytes=memory.get("SwapTotal"),
            used_bytes=_difference(memory, "SwapTotal", "SwapFree"),
            swappiness=_number(files, "/proc/sys/vm/swappiness"),
        ),
        commit=Commit(
            mode=_number(files, "/proc/sys/vm/overcommit_memory"),
            limit_bytes=memory.get("CommitLimit"),
            committed_bytes=memory.get("Committed_AS"),
        ),
        most_mappings=_number(files, "/proc/sys/vm/max_map_count"),
        zone_reclaim_mode=_number(files, "/proc/sys/vm/zone_reclaim_mode"),
        huge_page_defrag=chosen_word(files.text("/sys/kernel/mm/transparent_hugepage/defrag")),
        has_unified_cgroups=None if controllers is None and version_1 is None else controllers is not None,
        has_cpuset_controller=None if controllers is None else "cpuset" in controllers.split(),
        has_node_directory=files.names("/sys/devices/system/node") is not None,
        large_block_bytes=large_block_bytes(files.text("/proc/buddyinfo") or ""),
        governors=_governors(files),
        modules=_modules(files),
        memory_errors=_memory_errors(files),
        gpu_links=_gpu_links(files, tuple(gpu.pci_address for gpu in topology.accelerators)),
    )


def _number(files: MachineFiles, path: str) -> int | None:
    return parse_number(files.text(path))


def _difference(memory: Mapping[str, int], total: str, free: str) -> int | None:
    return memory[total] - memory[free] if total in memory and free in memory else None


def _governors(files: MachineFiles) -> tuple[Governor, ...]:
    counts: dict[tuple[str, str, str | None], int] = {}
    for name in files.names(FREQUENCY_DIRECTORY) or ():
        folder = f"{FREQUENCY_DIRECTORY}/{name}"
        governor = files.text(f"{folder}/scaling_governor")
        if not name.startswith("policy") or not governor:
            continue
        cpus = parse_id_list((files.text(f"{folder}/affected_cpus") or "").replace(" ", ","))
        key = (
            files.text(f"{folder}/scaling_driver") or "",
            governor,
            files.text(f"{folder}/energy_performance_preference"),
        )
        counts[key] = counts.get(key, 0) + len(cpus or (0,))
    return tuple(
        Governor(driver, governor, count, preference)
        for (driver, governor, preference), count in sorted(counts.items(), key=str)
    )


def _modules(files: MachineFiles) -> tuple[MemoryModule, ...] | None:
    """Give the slots by the firmware's table, else the modules that the EDAC driver knows (no empty slots there)."""
    content = files.content(TABLE_PATH) if isinstance(files, Tree) else None
    modules = memory_modules(content) if content else ()
    return modules or _edac_modules(files)


def _edac_modules(files: MachineFiles) -> tuple[MemoryModule, ...] | None:
    found = []
    for controller in _controllers(files):
        for name in files.names(f"{EDAC_DIRECTORY}/{controller}") or ():
            folder = f"{EDAC_DIRECTORY}/{controller}/{name}"
            mebibytes = _number(files, f"{folder}/size") if re.fullmatch(r"dimm\d+", name) else None
            if mebibytes is not None:
                place = files.text(f"{folder}/dimm_location") or name
                found.append(MemoryModule(f"{controller} {place}", mebibytes * KIB * KIB))
    return tuple(found) or None


def _memory_errors(files: MachineFiles) -> ErrorCounts | None:
    controllers = _controllers(files)
    corrected = [_number(files, f"{EDAC_DIRECTORY}/{name}/ce_count") for name in controllers]
    uncorrected = [_number(files, f"{EDAC_DIRECTORY}/{name}/ue_count") for name in controllers]
    if not any(count is not None for count in (*corrected, *uncorrected)):
        return None
    return ErrorCounts(
        sum(count for count in corrected if count), sum(count for count in uncorrected if count)
    )


def _controllers(files: MachineFiles) -> tuple[str, ...]:
    return tuple(name for name in files.names(EDAC_DIRECTORY) or () if re.fullmatch(r"mc\d+", name))


def _gpu_links(files: MachineFiles, addresses: tuple[str, ...]) -> tuple[PciLink, ...]:
    found = []
    for address in addresses:
        folder = f"{PCI_DIRECTORY}/{address}"
        width, widest = (_number(files, f"{folder}/{name}_link_width") for name in ("current", "max"))
        rate, fastest = (_rate(files.text(f"{folder}/{name}_link_speed")) for name in ("current", "max"))
        # 0 and 255 are what a device says that is asleep or behind a bridge without the register.
        if width and widest and rate and fastest and max(width, widest) < 64:
            found.append(PciLink(address, width, widest, rate, fastest))
    return tuple(found)


def _rate(text: str | None) -> float | None:
    match = re.match(r"(\d{1,3}(?:\.\d)?) GT/s", text or "")
    return float(match[1]) if match else None
