"""Reads what cgroups, cpusets and the affinity mask leave to this process."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.cpulist import parse_id_list, parse_number
from planner.sysfs import MachineFiles
from planner.topology import CgroupLimits

# Version 1 writes "no limit" as the largest page-aligned number; anything near it is no limit either.
UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup tree: where it is, which group we are in, and how its files are called."""

    mount_path: str
    group_path: str
    file_names: tuple[str, ...]


def read_cgroup_limits(tree: MachineFiles) -> CgroupLimits:
    """Give the CPUs, nodes and bytes that this process's groups allow; None where nothing limits or nobody
    knows.

    Both the cpuset and /proc/self/status count: either can be the narrower one, and CPUs and memory nodes may
    lie on different nodes. Files with `effective` in their name already hold what the parents left.
    """
    status = tree.text("/proc/self/status") or ""
    affinity = status_list(status, "Cpus_allowed_list")
    mounts = _mounts(tree)
    groups = _groups_of_self(tree)
    cpus = _cpuset(tree, mounts, groups, "cpus")
    mems = _cpuset(tree, mounts, groups, "mems")
    return CgroupLimits(
        allowed_cpu_ids=cpus,
        allowed_node_ids=_both(mems, status_list(status, "Mems_allowed_list")),
        affinity_cpu_ids=affinity,
        memory_limit_bytes=_memory_limit(tree, mounts, groups),
    )


def _both(first: tuple[int, ...] | None, second: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if first is None or second is None:
        return second if first is None else first
    return tuple(sorted(set(first) & set(second)))


def status_list(status: str, name: str) -> tuple[int, ...] | None:
    """Give the ids of a list in /proc/PID/status, such as Cpus_allowed_list; None without it."""
    match = re.search(rf"^{name}:\s*(\S+)", status, re.MULTILINE)
    return (parse_id_list(match[1]) or None) if match else None


def _mounts(tree: MachineFiles) -> tuple[tuple[str, str, str], ...]:
    """Give (type, mount path, options) of every cgroup mount, or the usual places when nothing is listed."""
    mounts = []
    for line in (tree.text("/proc/mounts") or tree.text("/proc/self/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[2] in ("cgroup", "cgroup2", "cpuset"):
            mounts.append((fields[2], fields[1].rstrip("/"), fields[3]))
    if mounts:
        return tuple(mounts)
    if tree.has("/sys/fs/cgroup/cgroup.controllers"):
        return (("cgroup2", "/sys/fs/cgroup", ""),)
    return (("cgroup", "/sys/fs/cgroup/cpuset", "cpuset"), ("cgroup", "/sys/fs/cgroup/memory", "memory"))


def _groups_of_self(tree: MachineFiles) -> dict[str, str]:
    """Give our group's path by controller name; "" is the unified hierarchy."""
    groups: dict[str, str] = {}
    for line in (tree.text("/proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            groups.update(dict.fromkeys(parts[1].split(","), parts[2]))
    cpuset_path = tree.text("/proc/self/cpuset")
    if cpuset_path:
        groups.setdefault("", cpuset_path)
        groups.setdefault("cpuset", cpuset_path)
    return groups


def _cpuset(
    tree: MachineFiles, mounts: tuple[tuple[str, str, str], ...], groups: dict[str, str], what: str
) -> tuple[int, ...] | None:
    for hierarchy in _cpuset_hierarchies(mounts, groups, what):
        for directory in _upwards(hierarchy.group_path):
            for name in hierarchy.file_names:
                ids = parse_id_list(tree.text(f"{hierarchy.mount_path}{directory}/{name}") or "")
                if ids:
                    return ids
    return None


def _cpuset_hierarchies(
    mounts: tuple[tuple[str, str, str], ...], groups: dict[str, str], what: str
) -> tuple[Hierarchy, ...]:
    """Give the hierarchies that can carry a cpuset, version 1 first: on hybrid hosts the controller lives
    there.
    """
    found = []
    for kind, path, options in sorted(mounts, key=lambda mount: mount[0] == "cgroup2"):
        words = options.split(",")
        if kind == "cgroup2":
            names = (f"cpuset.{what}.effective", f"cpuset.{what}")
            found.append(Hierarchy(path, groups.get("", "/"), names))
        elif kind == "cpuset" or "noprefix" in words:
            found.append(Hierarchy(path, groups.get("cpuset", "/"), (f"effective_{what}", what)))
        elif "cpuset" in words:
            names = (f"cpuset.effective_{what}", f"cpuset.{what}")
            found.append(Hierarchy(path, groups.get("cpuset", "/"), names))
    return tuple(found)


def _memory_limit(
    tree: MachineFiles, mounts: tuple[tuple[str, str, str], ...], groups: dict[str, str]
) -> int | None:
    """Give the smallest memory limit on the way from our group to the root, or None."""
    limits = []
    for kind, path, options in mounts:
        if kind == "cgroup2":
            limits += _limits_upwards(tree, path, groups.get("", "/"), "memory.max")
        elif "memory" in options.split(","):
            limits += _limits_upwards(tree, path, groups.get("memory", "/"), "memory.limit_in_bytes")
    return min(limits, default=None)


def _limits_upwards(tree: MachineFiles, mount_path: str, group_path: str, name: str) -> list[int]:
    texts = (tree.text(f"{mount_path}{directory}/{name}") for directory in _upwards(group_path))
    numbers = (parse_number(text, longest=20) for text in texts)
    return [number for number in numbers if number is not None and 0 < number < UNLIMITED_BYTES]


def _upwards(group_path: str) -> tuple[str, ...]:
    """Give the group's directory and every parent, innermost first; "" is the mount itself.

    A container sees its own group as the root of the mount while /proc names the host's path, so the walk
    ends at the mount. Paths with `..` (a group outside our cgroup namespace) start there at once.
    """
    parts = [part for part in group_path.split("/") if part]
    if ".." in parts:
        return ("",)
    return tuple("".join(f"/{part}" for part in parts[:count]) for count in range(len(parts), -1, -1))
