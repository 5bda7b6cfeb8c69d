"""Reads online CPUs and groups them into physical cores and packages."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from planner.cpulist import LARGEST_ID, parse_id_list, parse_id_mask, parse_number
from planner.sysfs import MachineFiles
from planner.topology import CpuModel, LastLevelCache

CPU_DIRECTORY = "/sys/devices/system/cpu"
# Newer kernels name the same sets core_cpus and package_cpus; the old names stay, on old kernels alone.
CORE_SET_NAMES = ("core_cpus", "thread_siblings")
PACKAGE_SET_NAMES = ("package_cpus", "core_siblings")
_CPU_NAME = re.compile(r"cpu(\d{1,5})$")


@dataclass(frozen=True, slots=True)
class ProcessorRecord:
    """What /proc/cpuinfo says of one CPU; None where it says nothing."""

    package_id: int | None
    core_id: int | None


@dataclass(frozen=True, slots=True)
class Processors:
    """Online CPUs grouped, with what is common to all of them."""

    online_cpu_ids: tuple[int, ...]
    offline_cpu_ids: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...]
    packages: tuple[tuple[int, ...], ...]
    is_virtual: bool
    cpu_model: CpuModel | None
    last_level_caches: tuple[LastLevelCache, ...]


def read_processors(tree: MachineFiles, allowed_cpu_ids: tuple[int, ...] | None) -> Processors:
    """Give the machine's online CPUs in their cores and packages.

    Cores and packages follow the kernel's sibling sets. `core_id` repeats between packages, dies and
    clusters, and `physical_package_id` is -1 in some guests, so numbers serve only where the sets are
    missing.
    """
    cpuinfo = tree.text("/proc/cpuinfo") or ""
    records = _cpuinfo_records(cpuinfo)
    online = _online_cpu_ids(tree, records) or allowed_cpu_ids or ()
    package_sets = _cpu_sets(tree, online, PACKAGE_SET_NAMES)
    packages = _groups(
        online,
        package_sets,
        {cpu_id: _package_id(tree, cpu_id, records) for cpu_id in _without_set(package_sets)},
    )
    package_index = {cpu_id: index for index, package in enumerate(packages) for cpu_id in package}
    core_sets = {
        cpu_id: None
        if cpus is None
        else tuple(c for c in cpus if package_index.get(c) == package_index[cpu_id])
        for cpu_id, cpus in _cpu_sets(tree, online, CORE_SET_NAMES).items()
    }
    core_keys = {
        cpu_id: _core_key(tree, cpu_id, package_index[cpu_id], _core_id(tree, cpu_id, records))
        for cpu_id in _without_set(core_sets)
    }
    return Processors(
        online_cpu_ids=online,
        offline_cpu_ids=_offline_cpu_ids(tree, frozenset(online)),
        cores=_groups(online, core_sets, core_keys),
        packages=packages,
        is_virtual=bool(re.search(r"^(?:flags|Features)\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE)),
        cpu_model=_cpu_model(cpuinfo),
        last_level_caches=_last_level_caches(tree, online),
    )


def _online_cpu_ids(tree: MachineFiles, records: Mapping[int, ProcessorRecord]) -> tuple[int, ...]:
    """Online CPUs by cpu/online, else by each CPU's own directory, else by /proc/cpuinfo."""
    listed = _id_list(tree, f"{CPU_DIRECTORY}/online")
    if listed:
        return listed
    matches = (_CPU_NAME.match(name) for name in tree.names(CPU_DIRECTORY) or ())
    present = sorted(int(match[1]) for match in matches if match and int(match[1]) <= LARGEST_ID)
    # CPU 0 often has no `online` file because it cannot be taken offline.
    online = tuple(cpu_id for cpu_id in present if tree.text(f"{CPU_DIRECTORY}/cpu{cpu_id}/online") != "0")
    return online or tuple(sorted(records))


def _offline_cpu_ids(tree: MachineFiles, online: frozenset[int]) -> tuple[int, ...]:
    """CPUs that could run and do not; old kernels leave cpu/offline empty although present CPUs are off."""
    listed = _id_list(tree, f"{CPU_DIRECTORY}/offline") or _id_list(tree, f"{CPU_DIRECTORY}/present") or ()
    return tuple(cpu_id for cpu_id in listed if cpu_id not in online)


def _cpu_sets(
    tree: MachineFiles, cpu_ids: tuple[int, ...], names: tuple[str, ...]
) -> dict[int, tuple[int, ...] | None]:
    sets: dict[int, tuple[int, ...] | None] = {}
    for cpu_id in cpu_ids:
        known = sets.get(cpu_id)
        if known is not None:
            continue
        members, names = _first_set(tree, f"{CPU_DIRECTORY}/cpu{cpu_id}/topology", names)
        sets[cpu_id] = members
        # One read serves the whole group: on 1024 CPUs the siblings' files say the same a thousand times.
        if members is not None and cpu_id in members:
            sets.update({member: members for member in members if member > cpu_id and member not in sets})
    return {cpu_id: sets[cpu_id] for cpu_id in cpu_ids}


def _first_set(
    tree: MachineFiles, directory: str, names: tuple[str, ...]
) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
    """Give the first set that a name yields, and the names with that one first: the next CPU has it too."""
    for name in names:
        found = _id_list(tree, f"{directory}/{name}_list") or _mask(tree, f"{directory}/{name}")
        if found:
            return found, (name, *(other for other in names if other != name))
    return None, names


def _groups(
    cpu_ids: tuple[int, ...],
    sets: Mapping[int, tuple[int, ...] | None],
    keys: Mapping[int, Hashable | None],
) -> tuple[tuple[int, ...], ...]:
    """Partition CPUs by their sibling sets, and by key where a CPU has no set (`keys` holds only those).

    Every CPU lands in exactly one group even when damaged files contradict each other: the smaller id
    decides.
    """
    remaining = dict.fromkeys(cpu_ids)
    by_key: dict[Hashable, list[int]] = {}
    for cpu_id, key in keys.items():
        by_key.setdefault(key, []).append(cpu_id)
    groups: list[tuple[int, ...]] = []
    for cpu_id in cpu_ids:
        if cpu_id not in remaining:
            continue
        siblings = sets.get(cpu_id)
        members = by_key[keys[cpu_id]] if siblings is None else siblings
        group = tuple(sorted({cpu_id, *(member for member in members if member in remaining)}))
        if siblings is None:
            group = tuple(member for member in group if member == cpu_id or sets.get(member) is None)
        for member in group:
            del remaining[member]
        groups.append(group)
    return tuple(groups)


def _without_set(sets: Mapping[int, tuple[int, ...] | None]) -> tuple[int, ...]:
    """Give the CPUs whose numbers must serve instead: a thousand CPUs with sets need not be asked for them."""
    return tuple(cpu_id for cpu_id, members in sets.items() if members is None)


def _core_key(tree: MachineFiles, cpu_id: int, package_index: int, core_id: int | None) -> Hashable:
    if core_id is None:
        return ("cpu", cpu_id)
    die_id = _number(tree, f"{CPU_DIRECTORY}/cpu{cpu_id}/topology/die_id")
    return ("core", package_index, die_id, core_id)


def _package_id(tree: MachineFiles, cpu_id: int, records: Mapping[int, ProcessorRecord]) -> int | None:
    stated = _number(tree, f"{CPU_DIRECTORY}/cpu{cpu_id}/topology/physical_package_id")
    if stated is not None:
        return stated
    return records[cpu_id].package_id if cpu_id in records else None


def _core_id(tree: MachineFiles, cpu_id: int, records: Mapping[int, ProcessorRecord]) -> int | None:
    stated = _number(tree, f"{CPU_DIRECTORY}/cpu{cpu_id}/topology/core_id")
    if stated is not None:
        return stated
    return records[cpu_id].core_id if cpu_id in records else None


def _cpu_model(cpuinfo: str) -> CpuModel | None:
    """Give the first CPU's kind: mixed machines (hybrid cores) differ in ways no default knows."""
    fields: dict[str, str] = {}
    for line in cpuinfo.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        if value.strip():
            fields[name.strip()] = value.strip()
    numbers = {
        name: parse_number(fields.get(name), longest=6) for name in ("cpu family", "model", "stepping")
    }
    vendor, name_text = fields.get("vendor_id"), fields.get("model name")
    if vendor is None and name_text is None and set(numbers.values()) == {None}:
        return None
    return CpuModel(vendor, numbers["cpu family"], numbers["model"], numbers["stepping"], name_text)


def _last_level_caches(tree: MachineFiles, online: tuple[int, ...]) -> tuple[LastLevelCache, ...]:
    """Give the caches of the highest level, each once: the CPUs it serves are not asked again."""
    found: list[LastLevelCache] = []
    covered: set[int] = set()
    online_set = frozenset(online)
    for cpu_id in online:
        if cpu_id in covered:
            continue
        directory = f"{CPU_DIRECTORY}/cpu{cpu_id}/cache"
        levels = [
            (level, name)
            for name in tree.names(directory) or ()
            if (level := _number(tree, f"{directory}/{name}/level")) is not None
        ]
        if not levels:
            # Kernels show caches for every CPU or for none.
            return tuple(sorted(found, key=lambda cache: cache.cpu_ids))
        level, name = max(levels)
        shared = _id_list(tree, f"{directory}/{name}/shared_cpu_list") or _mask(
            tree, f"{directory}/{name}/shared_cpu_map"
        )
        cpus = tuple(member for member in shared or (cpu_id,) if member in online_set) or (cpu_id,)
        found.append(LastLevelCache(cpus, level, _cache_bytes(tree.text(f"{directory}/{name}/size"))))
        covered.update(cpus, (cpu_id,))
    return tuple(sorted(found, key=lambda cache: cache.cpu_ids))


def _mask(tree: MachineFiles, path: str) -> tuple[int, ...] | None:
    text = tree.text(path)
    return parse_id_mask(text) if text else None


def _cache_bytes(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d{1,9})([KM]?)", text or "")
    return int(match[1]) * {"": 1, "K": 1024, "M": 1024**2}[match[2]] if match else None


def _cpuinfo_records(text: str) -> dict[int, ProcessorRecord]:
    records: dict[int, ProcessorRecord] = {}
    for block in text.split("\n\n"):
        # Old ARM kernels open with a line "Processor : <model name>"; only the lower-case field is the
        # number.
        fields = dict(
            re.findall(r"^(processor|physical id|core id)\s*:\s*(\d{1,9})\s*$", block, re.MULTILINE)
        )
        cpu_id = int(fields.get("processor", LARGEST_ID + 1))
        if cpu_id <= LARGEST_ID:
            records[cpu_id] = ProcessorRecord(
                package_id=int(fields["physical id"]) if "physical id" in fields else None,
                core_id=int(fields["core id"]) if "core id" in fields else None,
            )
    return records


def _id_list(tree: MachineFiles, path: str) -> tuple[int, ...] | None:
    text = tree.text(path)
    return None if text is None else parse_id_list(text)


def _number(tree: MachineFiles, path: str) -> int | None:
    """Give a non-negative number, or None for a missing file, damage, or the kernel's -1 for unknown."""
    return parse_number(tree.text(path), longest=9)
