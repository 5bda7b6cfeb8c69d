"""Reads processes and cgroups: the running service, other pools, what kills for lack of memory."""

from __future__ import annotations

import re

from planner import CgroupLimits
from planner.cgroups import UNLIMITED_BYTES, status_list
from planner.cpulist import parse_id_list, parse_number
from planner.sysfs import MachineFiles
from stratad.doctor.facts import PinnedProcess, RunningService, ServiceFacts, Surroundings
from stratad.doctor.units import unit_settings
from stratad.systemd.unit_files import SLICE, UNIT

KIB = 1024
SERVICE_GROUP = f"/sys/fs/cgroup/{SLICE}/{UNIT}"
KILLERS = ("systemd-oomd", "earlyoom", "nohang", "oomd")
# Below this a process is no model server; the threads of all others need not be read.
LEAST_RESIDENT_BYTES = 1 << 30
LEAST_PINNED_THREADS = 4
# As native/pool names its workers.
POOL_THREAD = "stratad-w"
_CONTAINER_MARKS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}


def read_service(files: MachineFiles) -> ServiceFacts:
    """Give the service's unit settings and, while it runs, its process."""
    events = files.text(f"{SERVICE_GROUP}/memory.events") or ""
    kills = re.search(r"^oom_kill (\d+)$", events, re.MULTILINE)
    return ServiceFacts(
        unit=unit_settings(files, UNIT),
        running=_running(files),
        kill_count=int(kills[1]) if kills else None,
    )


def read_surroundings(files: MachineFiles, own_process_ids: frozenset[int] = frozenset()) -> Surroundings:
    """Give what else is on the machine; processes in `own_process_ids` are the service's and not looked at."""
    names: dict[int, str] = {}
    for entry in files.names("/proc") or ():
        if entry.isdecimal() and (name := files.text(f"/proc/{entry}/comm")):
            names[int(entry)] = name
    # comm holds 15 characters.
    killers = {killer for killer in KILLERS if killer[:15] in names.values()}
    others = sorted(set(names) - own_process_ids)
    pinned = [found for other in others if (found := _pinned(files, other, names[other])) is not None]
    if not own_process_ids:
        # The one daemon that runs by hand is the one that is asked about.
        ours = next((found for found in pinned if _is_pool(files, found.process_id)), None)
        pinned = [found for found in pinned if found is not ours]
    return Surroundings(
        container=_container(files),
        is_filtered=_is_filtered(files.text("/proc/self/status")),
        killers=tuple(sorted(killers)),
        pinned=tuple(pinned),
    )


def service_process_ids(files: MachineFiles) -> frozenset[int]:
    """Give the ids of every process in the service's cgroup."""
    words = (files.text(f"{SERVICE_GROUP}/cgroup.procs") or "").split()
    return frozenset(int(word) for word in words if word.isdecimal())


def _running(files: MachineFiles) -> RunningService | None:
    process_ids = service_process_ids(files)
    if not process_ids:
        return None
    process_id = min(process_ids)
    folder = f"/proc/{process_id}"
    status = files.text(f"{folder}/status") or ""
    maps = files.text(f"{folder}/maps")
    return RunningService(
        process_id=process_id,
        limits=CgroupLimits(
            allowed_cpu_ids=parse_id_list(files.text(f"{SERVICE_GROUP}/cpuset.cpus.effective") or "") or None,
            allowed_node_ids=parse_id_list(files.text(f"{SERVICE_GROUP}/cpuset.mems.effective") or "")
            or None,
            memory_limit_bytes=_limit(files.text(f"{SERVICE_GROUP}/memory.max")),
        ),
        worker_masks=_worker_masks(files, process_id),
        lock_limit_bytes=_lock_limit(files.text(f"{folder}/limits")),
        locked_bytes=_status_bytes(status, "VmLck"),
        swapped_bytes=_status_bytes(status, "VmSwap"),
        mapping_count=None if maps is None else len(maps.splitlines()),
    )


def _worker_masks(files: MachineFiles, process_id: int) -> dict[int, tuple[int, ...]]:
    """Give the CPUs of each pool worker; workers are threads by the names that the pool gives them."""
    found = {}
    for thread in files.names(f"/proc/{process_id}/task") or ():
        name = re.fullmatch(
            rf"{POOL_THREAD}(\d{{1,4}})", files.text(f"/proc/{process_id}/task/{thread}/comm") or ""
        )
        mask = _thread_mask(files, process_id, thread) if name else None
        if name and mask:
            found[int(name[1])] = mask
    return found


def _pinned(files: MachineFiles, process_id: int, name: str) -> PinnedProcess | None:
    status = files.text(f"/proc/{process_id}/status") or ""
    threads = re.search(r"^Threads:\s*(\d{1,7})$", status, re.MULTILINE)
    resident = _status_bytes(status, "VmRSS") or 0
    if threads is None or int(threads[1]) < LEAST_PINNED_THREADS or resident < LEAST_RESIDENT_BYTES:
        return None
    tasks = files.names(f"/proc/{process_id}/task") or ()
    masks = (_thread_mask(files, process_id, task) for task in tasks)
    single = [mask[0] for mask in masks if mask is not None and len(mask) == 1]
    if len(single) < LEAST_PINNED_THREADS:
        return None
    return PinnedProcess(process_id, name, tuple(sorted(set(single))))


def _is_pool(files: MachineFiles, process_id: int) -> bool:
    tasks = files.names(f"/proc/{process_id}/task") or ()
    return any(
        (files.text(f"/proc/{process_id}/task/{task}/comm") or "").startswith(POOL_THREAD) for task in tasks
    )


def _thread_mask(files: MachineFiles, process_id: int, thread: str) -> tuple[int, ...] | None:
    return status_list(files.text(f"/proc/{process_id}/task/{thread}/status") or "", "Cpus_allowed_list")


def _status_bytes(status: str, name: str) -> int | None:
    match = re.search(rf"^{name}:\s*(\d{{1,15}}) kB", status, re.MULTILINE)
    return int(match[1]) * KIB if match else None


def _lock_limit(limits: str | None) -> int | None:
    match = re.search(r"^Max locked memory\s+(\d+)", limits or "", re.MULTILINE)
    return int(match[1]) if match else None


def _limit(text: str | None) -> int | None:
    number = parse_number(text, longest=20)
    return number if number is not None and 0 < number < UNLIMITED_BYTES else None


def _container(files: MachineFiles) -> str | None:
    """Give the kind of container; systemd and the runtimes leave marks, and lxcfs mounts over /proc."""
    told = files.text("/run/systemd/container")
    if told:
        return told
    mark = next((kind for path, kind in _CONTAINER_MARKS.items() if files.has(path)), None)
    if mark is not None:
        return mark
    return "lxc" if re.search(r"\blxcfs\b", files.text("/proc/mounts") or "") else None


def _is_filtered(status: str | None) -> bool | None:
    match = re.search(r"^Seccomp:\s*(\d)$", status or "", re.MULTILINE)
    return None if match is None else match[1] == "2"
