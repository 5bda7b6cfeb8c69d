"""A machine in perfect health for the doctor: two sockets, a GPU, and the service running as its applied plan says.

Tests spoil one thing of it and look at what is found.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planner import CpuModel, Plan, PlanRequest, make_plan, plan_to_json
from planner.cpulist import format_id_list
from planner.dropin import drop_in_text, plan_cpu_ids
from stratad.doctor import LiveAnswers, MachineFacts, PlacementVerdict, Question, gather
from stratad.doctor.firmware import TABLE_PATH
from stratad.plan.facts import PlanOptions, plan_request
from stratad.systemd.service_view import service_topology
from stratad.systemd.unit_files import PLAN_PATH, SLICE, UNIT, placement_path
from tests.support.gguf_bytes import moe_file
from tests.support.machines import GIB, GpuShape, MachineShape, even_nodes, machine_files, write_tree

REPOSITORY = Path(__file__).resolve().parents[2]
ARENA_BYTES = 80 * GIB
GROUP = f"/sys/fs/cgroup/{SLICE}/{UNIT}"
PROCESS_ID = 4242
GPU = "/sys/bus/pci/devices/0000:3b:00.0"
CASCADE_LAKE = CpuModel("GenuineIntel", 6, 85, 7, "Intel(R) Xeon(R) Gold 6226 CPU @ 2.70GHz")
KIB = 1024

Files = dict[str, str]


@dataclass(frozen=True, slots=True)
class Case:
    """A machine to look at: its files, its memory modules, what was asked, and what the running machine said.

    `configuration` is the text of a configuration file; a small model lies beside it as model.gguf.
    """

    files: Mapping[str, str]
    modules: tuple[bytes, ...]
    arena_bytes: int | None = ARENA_BYTES
    configuration: str | None = None
    live: LiveAnswers = field(
        default_factory=lambda: LiveAnswers((), "ordinary words", PlacementVerdict("met", 0.999, 0.95))
    )

    def facts(self, folder: Path) -> MachineFacts:
        """The facts that the doctor gathers of it, read from files below `folder`."""
        write_tree(folder, self.files)
        if self.modules:
            table = folder / TABLE_PATH.removeprefix("/")
            table.parent.mkdir(parents=True, exist_ok=True)
            table.write_bytes(b"".join(self.modules) + b"\x7f\x04\xff\xff\x00\x00")
        return gather(Question(folder, self._configuration(folder), None, self.arena_bytes), self.live)

    def _configuration(self, folder: Path) -> Path | None:
        if self.configuration is None:
            return None
        (folder / "model.gguf").write_bytes(moe_file())
        path = folder / "stratad.toml"
        path.write_text(self.configuration)
        return path


def module(locator: str, gibibytes: int, rated: int = 2933, configured: int = 2933) -> bytes:
    """A memory device (type 17) of an SMBIOS 3.2 table; 0 GiB is an empty slot."""
    fields = bytearray(0x54)
    fields[0:2] = bytes((17, len(fields)))
    size = 0 if not gibibytes else 0x7FFF
    struct.pack_into("<H", fields, 0x0C, size)
    fields[0x10] = 1
    struct.pack_into("<H", fields, 0x15, rated)
    struct.pack_into("<I", fields, 0x1C, gibibytes * 1024)
    struct.pack_into("<H", fields, 0x20, configured)
    fields[0x28] = 3
    return bytes(fields) + locator.encode() + b"\x00\x00"


def healthy_shape() -> MachineShape:
    """Two sockets of 12 cores with 64 GiB each, and a GPU at node 0."""
    return MachineShape(
        even_nodes(2, 12, total_gib=64, free_gib=62),
        (GpuShape("0000:3b:00.0", 0),),
        cpu_model=CASCADE_LAKE,
    )


def healthy(folder: Path, shape: MachineShape | None = None) -> Case:
    """The healthy machine; `folder` is for what has to be read once to plan for it."""
    files = {
        **machine_files(shape or healthy_shape()),
        **_kernel_files(),
        **_hardware_files(),
        **_unit_files(),
    }
    modules = tuple(module(f"CPU{cpu}_DIMM_{slot}1", 16) for cpu in (1, 2) for slot in "ABCDEF")
    plan = _plan(write_tree(folder, files))
    return Case({**files, **_service_files(plan)}, modules)


def with_service_files(files: Mapping[str, str], plan: Plan) -> Files:
    """The files with this plan applied and its service running."""
    return {**files, **_service_files(plan)}


def _plan(root: Path) -> Plan:
    request: PlanRequest = plan_request(None, PlanOptions(arena_bytes=ARENA_BYTES, placement_possible=True))
    return make_plan(service_topology(SLICE, None, root), request)


def _kernel_files() -> Files:
    blocks = " ".join(["0"] * 10 + [str(61 * GIB // (4096 << 10))])
    return {
        "/proc/sys/kernel/osrelease": "6.1.0-18-amd64",
        "/proc/meminfo": f"MemTotal: {128 * GIB // KIB} kB\nMemFree: {124 * GIB // KIB} kB\n"
        f"SwapTotal: 0 kB\nSwapFree: 0 kB\nCommitLimit: {64 * GIB // KIB} kB\nCommitted_AS: {GIB // KIB} kB",
        "/proc/sys/vm/swappiness": "60",
        "/proc/sys/vm/overcommit_memory": "0",
        "/proc/sys/vm/max_map_count": "65530",
        "/proc/sys/vm/zone_reclaim_mode": "0",
        "/sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never",
        "/proc/buddyinfo": f"Node 0, zone Normal {blocks}\nNode 1, zone Normal {blocks}",
        "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids",
        "/proc/self/status": "Seccomp:\t0",
        "/proc/1/comm": "systemd",
        "/proc/1/status": "Threads:\t1\nVmRSS:\t12000 kB",
    }


def _hardware_files() -> Files:
    frequency = "/sys/devices/system/cpu/cpufreq/policy0"
    return {
        f"{frequency}/scaling_governor": "performance",
        f"{frequency}/scaling_driver": "acpi-cpufreq",
        f"{frequency}/affected_cpus": " ".join(map(str, range(24))),
        "/sys/devices/system/edac/mc/mc0/ce_count": "0",
        "/sys/devices/system/edac/mc/mc0/ue_count": "0",
        f"{GPU}/current_link_width": "16",
        f"{GPU}/max_link_width": "16",
        f"{GPU}/current_link_speed": "2.5 GT/s PCIe",
        f"{GPU}/max_link_speed": "8.0 GT/s PCIe",
        "/sys/kernel/iommu_groups/0/type": "identity",
    }


def _unit_files() -> Files:
    text = (REPOSITORY / "packaging/systemd/stratad.service").read_text()
    return {f"/usr/lib/systemd/system/{UNIT}": text}


def _service_files(plan: Plan) -> Files:
    drop_in = drop_in_text(plan, str(PLAN_PATH))
    assert drop_in is not None, "the healthy machine has a plan with a drop-in"
    process = f"/proc/{PROCESS_ID}"
    files = {
        str(PLAN_PATH): plan_to_json(plan),
        str(placement_path()): drop_in,
        f"{GROUP}/cgroup.procs": str(PROCESS_ID),
        f"{GROUP}/cpuset.cpus.effective": format_id_list(plan_cpu_ids(plan)),
        f"{GROUP}/cpuset.mems.effective": "0-1",
        f"{GROUP}/memory.max": "max",
        f"{GROUP}/memory.events": "low 0\noom 0\noom_kill 0",
        f"{process}/comm": "stratad",
        f"{process}/status": f"Threads:\t40\nVmRSS:\t{80 * GIB // KIB} kB\nVmLck:\t{80 * GIB // KIB} kB\nVmSwap:\t0 kB",
        f"{process}/limits": "Max locked memory         unlimited            unlimited            bytes",
        f"{process}/maps": "\n".join(["7f00-7f01 rw-p 0 00:00 0"] * 700),
    }
    for index, worker in enumerate(plan.layout.workers):
        if index:
            task = f"{process}/task/{PROCESS_ID + index}"
            files[f"{task}/comm"] = f"stratad-w{index}"
            files[f"{task}/status"] = f"Threads:\t40\nCpus_allowed_list:\t{worker.cpu_id}"
    return files


def changed(case_files: Mapping[str, str], *changes: Mapping[str, str | None]) -> Files:
    """The files with some replaced, and those that are None left out."""
    files = dict(case_files)
    for change in changes:
        for path, text in change.items():
            if text is None:
                files.pop(path, None)
            else:
                files[path] = text
    return files


def edited(files: Mapping[str, str], path: str, edit: Callable[[str], str]) -> Files:
    """The files with one of them edited; it must be there and must change."""
    text = edit(files[path])
    assert text != files[path], path
    return {**files, path: text}
