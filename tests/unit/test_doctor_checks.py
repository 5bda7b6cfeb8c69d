"""Every check of the doctor on both sides: a machine in perfect health, and the same machine with one thing spoiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from planner import PlanRequest, make_plan, plan_to_json
from planner.discover import topology_of
from stratad.doctor import CHECKS, LiveAnswers, PlacementVerdict, Severity, examine
from tests.support.doctor_machine import (
    ARENA_BYTES,
    GPU,
    GROUP,
    PROCESS_ID,
    Case,
    changed,
    edited,
    healthy,
    healthy_shape,
    module,
)
from tests.support.machines import (
    GIB,
    KIB,
    GpuShape,
    MachineShape,
    MemoryTree,
    NodeShape,
    even_nodes,
    machine_files,
)

ERROR, WARNING, HINT, UNKNOWN, FINE = Severity
UNIT_FILE = "/usr/lib/systemd/system/stratad.service"
DROP_IN = "/etc/systemd/system/stratad.service.d/90-mine.conf"
PLAN = "/etc/stratad/plan.json"
NODE_1 = "/sys/devices/system/node/node1"
HUGE_0 = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB"
MADVISE = "/sys/kernel/mm/transparent_hugepage"
POLICY = "/sys/devices/system/cpu/cpufreq/policy0"
WORKER_5 = f"/proc/{PROCESS_ID}/task/{PROCESS_ID + 5}/status"

Spoil = Callable[[Case], Case]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return healthy(tmp_path_factory.mktemp("healthy"))


def files(changes: Mapping[str, str | None]) -> Spoil:
    return lambda case: replace(case, files=changed(case.files, changes))


def shaped(shape: MachineShape) -> Spoil:
    """The files of another machine over those of the healthy one; whatever the healthy one alone has stays."""

    def spoil(case: Case) -> Case:
        removed: dict[str, str | None] = dict.fromkeys(machine_files(healthy_shape()))
        return replace(case, files=changed(case.files, removed, machine_files(shape)))

    return spoil


def memory(node: int, total_gib: float, free_gib: float, cache_gib: float = 0) -> Spoil:
    sizes = {"MemTotal": total_gib, "MemFree": free_gib, "Inactive(file)": cache_gib}
    text = "\n".join(f"Node {node} {name}: {int(size * GIB) // KIB} kB" for name, size in sizes.items())
    return files({f"/sys/devices/system/node/node{node}/meminfo": text})


def meminfo(name: str, gibibytes: float) -> Spoil:
    def spoil(case: Case) -> Case:
        lines = case.files["/proc/meminfo"].splitlines()
        kept = [line for line in lines if not line.startswith(f"{name}:")]
        return replace(
            case,
            files={
                **case.files,
                "/proc/meminfo": "\n".join([*kept, f"{name}: {int(gibibytes * GIB) // KIB} kB"]),
            },
        )

    return spoil


def unit(old: str, new: str) -> Spoil:
    return lambda case: replace(
        case, files=edited(case.files, UNIT_FILE, lambda text: text.replace(old, new))
    )


def live(**answers: object) -> Spoil:
    return lambda case: replace(case, live=replace(case.live, **answers))  # type: ignore[arg-type]


def asked(**question: object) -> Spoil:
    return lambda case: replace(case, **question)  # type: ignore[arg-type]


def all_of(*spoils: Spoil) -> Spoil:
    def spoil(case: Case) -> Case:
        for each in spoils:
            case = each(case)
        return case

    return spoil


def stopped(case: Case) -> Case:
    """The machine with the service installed and not running, and no plan applied."""
    kept = {
        path: text
        for path, text in case.files.items()
        if not path.startswith((GROUP, f"/proc/{PROCESS_ID}/"))
        and path != PLAN
        and "50-placement" not in path
    }
    return replace(case, files=kept)


def bare(case: Case) -> Case:
    """The machine without any trace of stratad."""
    case = stopped(case)
    return replace(case, files=changed(case.files, {UNIT_FILE: None}))


def no_plan_for_one_node(case: Case) -> Case:
    """The applied plan is for a machine with other nodes."""
    other = topology_of(MemoryTree(machine_files(MachineShape(even_nodes(2, 16, total_gib=64)))))
    return replace(
        case, files={**case.files, PLAN: plan_to_json(make_plan(other, PlanRequest(arena=_arena())))}
    )


def _arena() -> object:
    return PlanRequest().arena.__class__(ARENA_BYTES)


def process(
    pid: int, name: str, cpus: tuple[int, ...], resident_gib: float = 40, thread: str = "worker"
) -> Spoil:
    status = f"Threads:\t{len(cpus)}\nVmRSS:\t{int(resident_gib * GIB) // KIB} kB"
    tasks = {f"/proc/{pid}/task/{pid + i}/status": f"Cpus_allowed_list:\t{cpu}" for i, cpu in enumerate(cpus)}
    names = {f"/proc/{pid}/task/{pid + i}/comm": f"{thread}{i}" for i in range(len(cpus))}
    return files({f"/proc/{pid}/comm": name, f"/proc/{pid}/status": status, **tasks, **names})


GUEST = files(
    {
        "/proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor\nmodel name\t: guest\n"
    }
)
CORES_0_TO_11 = tuple((cpu,) for cpu in range(12))
LANES = "mce: UPI: COR Phy Lane Failure, recovery in x8 width on socket 0 link 1"

SICK: tuple[tuple[str, str, Severity, Spoil], ...] = (
    (
        "configuration-unusable",
        "no such file",
        ERROR,
        asked(arena_bytes=None, configuration="[model]\npath = 'absent.gguf'"),
    ),
    ("no-plan-suits", "larger than the machine", ERROR, asked(arena_bytes=400 * GIB)),
    ("headroom-tight", "55 of 62 GiB a node", WARNING, asked(arena_bytes=106 * GIB)),
    ("plan-outdated", "other hardware", ERROR, no_plan_for_one_node),
    ("plan-outdated", "damaged", ERROR, files({PLAN: "{"})),
    ("plan-outdated", "another model", ERROR, asked(arena_bytes=60 * GIB)),
    ("free-memory-skewed", "0.7 GiB on node 0", WARNING, memory(0, 64, 0.7)),
    ("page-cache-crowds-node", "30 GiB of cache", WARNING, memory(1, 64, 32, cache_gib=30)),
    ("memory-uneven", "48 and 64 GiB", HINT, memory(1, 48, 47)),
    ("node-without-memory", "node 1 has none", HINT, memory(1, 0, 0)),
    ("swap-on", "run by hand", HINT, all_of(bare, meminfo("SwapTotal", 8), meminfo("SwapFree", 8))),
    (
        "swap-on",
        "swapped out",
        WARNING,
        all_of(
            meminfo("SwapTotal", 8),
            files({f"/proc/{PROCESS_ID}/status": f"VmSwap:\t{GIB // KIB} kB"}),
        ),
    ),
    (
        "overcommit-strict",
        "80 of 63 GiB",
        ERROR,
        all_of(stopped, files({"/proc/sys/vm/overcommit_memory": "2"})),
    ),
    (
        "overcommit-strict",
        "no model",
        HINT,
        all_of(stopped, asked(arena_bytes=None), files({"/proc/sys/vm/overcommit_memory": "2"})),
    ),
    ("zone-reclaim-on", "1", WARNING, files({"/proc/sys/vm/zone_reclaim_mode": "1"})),
    ("numa-balancing-on", "1", HINT, files({"/proc/sys/kernel/numa_balancing": "1"})),
    (
        "huge-pages-idle",
        "24,000 pages",
        WARNING,
        files({f"{HUGE_0}/nr_hugepages": "24000", f"{HUGE_0}/free_hugepages": "24000"}),
    ),
    ("huge-pages-stranded", "on node 0 only", HINT, files({f"{HUGE_0}/nr_hugepages": "900"})),
    ("transparent-huge-pages", "never", HINT, files({f"{MADVISE}/enabled": "always madvise [never]"})),
    (
        "transparent-huge-pages",
        "always, and waiting",
        WARNING,
        files({f"{MADVISE}/enabled": "[always] madvise never", f"{MADVISE}/defrag": "[always] never"}),
    ),
    (
        "memory-fragmented",
        "all in 4 KiB blocks",
        HINT,
        files({"/proc/buddyinfo": f"Node 0, zone Normal {62 * GIB // 4096} 0 0 0 0 0 0 0 0 0 0"}),
    ),
    ("arena-exceeds-cgroup-limit", "75 GiB", ERROR, files({f"{GROUP}/memory.max": str(75 * GIB)})),
    ("arena-exceeds-cgroup-limit", "MemoryMax=75G", ERROR, files({DROP_IN: "[Service]\nMemoryMax=75G"})),
    ("arena-exceeds-cgroup-limit", "MemoryHigh=50%", ERROR, files({DROP_IN: "[Service]\nMemoryHigh=50%"})),
    (
        "arena-not-locked",
        "8 MiB",
        WARNING,
        files({f"/proc/{PROCESS_ID}/limits": "Max locked memory         8388608   8388608   bytes"}),
    ),
    ("arena-not-locked", "no LimitMEMLOCK=", WARNING, all_of(stopped, unit("LimitMEMLOCK=infinity", ""))),
    ("mappings-few", "8192", WARNING, files({"/proc/sys/vm/max_map_count": "8192"})),
    (
        "mappings-few",
        "half used",
        WARNING,
        files({f"/proc/{PROCESS_ID}/maps": "\n".join(["7f00-7f01 rw-p 0 00:00 0"] * 40_000)}),
    ),
    (
        "cpuset-narrow",
        "node 1 closed",
        WARNING,
        files({"/sys/fs/cgroup/stratad.slice/cpuset.mems.effective": "0"}),
    ),
    (
        "cpuset-narrow",
        "four CPUs fewer",
        HINT,
        files({"/sys/fs/cgroup/stratad.slice/cpuset.cpus.effective": "0-9,12-21"}),
    ),
    (
        "affinity-narrows-cpuset",
        "jailed on two CPUs",
        WARNING,
        all_of(bare, files({"/proc/self/status": "Cpus_allowed_list:\t0-1"})),
    ),
    ("affinity-narrows-cpuset", "CPUAffinity=", WARNING, files({DROP_IN: "[Service]\nCPUAffinity=0-3"})),
    (
        "cgroup-cpuset-missing",
        "version 1",
        WARNING,
        files({"/sys/fs/cgroup/cgroup.controllers": None, "/proc/cgroups": "cpuset 3 1 1"}),
    ),
    (
        "cgroup-cpuset-missing",
        "not delegated",
        WARNING,
        files({"/sys/fs/cgroup/cgroup.controllers": "cpu memory pids"}),
    ),
    ("placement-not-possible", "two nodes", ERROR, live(refused_calls=("mbind: Operation not permitted",))),
    (
        "placement-not-possible",
        "one node",
        HINT,
        all_of(bare, shaped(MachineShape(even_nodes(1, 8))), live(refused_calls=("mbind: denied",))),
    ),
    ("container", "docker", HINT, files({"/.dockerenv": ""})),
    ("container", "lxc", HINT, files({"/proc/mounts": "lxcfs /proc/cpuinfo fuse.lxcfs rw 0 0"})),
    (
        "memory-killer-active",
        "not spared",
        WARNING,
        all_of(unit("ManagedOOMPreference=avoid", ""), files({"/proc/7/comm": "systemd-oomd"})),
    ),
    ("memory-killer-active", "earlyoom", WARNING, files({"/proc/7/comm": "earlyoom"})),
    ("memory-killer-active", "by hand", HINT, all_of(bare, files({"/proc/7/comm": "systemd-oomd"}))),
    ("cpu-governor", "powersave", WARNING, files({f"{POLICY}/scaling_governor": "powersave"})),
    ("cpu-governor", "saving", HINT, files({f"{POLICY}/energy_performance_preference": "balance_power"})),
    (
        "workers-clamped",
        "asked for 40",
        WARNING,
        asked(arena_bytes=None, configuration="[model]\npath = 'model.gguf'\n[placement]\nworkers = 40"),
    ),
    (
        "guest-topology",
        "flat",
        WARNING,
        all_of(
            bare,
            shaped(
                MachineShape((NodeShape(0, 0, CORES_0_TO_11), NodeShape(0, 1, ((12,), (13,))))),
            ),
            GUEST,
        ),
    ),
    (
        "guest-topology",
        "all equally far",
        WARNING,
        shaped(replace(healthy_shape(), distances={0: (10, 10), 1: (10, 10)})),
    ),
    ("guest-topology", "two nodes", HINT, GUEST),
    (
        "nodes-hidden",
        "interleaved by the firmware",
        HINT,
        all_of(bare, shaped(MachineShape((NodeShape(0, 0, CORES_0_TO_11), NodeShape(0, 1, ((12,), (13,))))))),
    ),
    (
        "nodes-hidden",
        "no directory",
        HINT,
        lambda case: replace(bare(case), files=_without_nodes(bare(case))),
    ),
    ("link-degraded", "lanes failed", ERROR, live(error_log=LANES)),
    (
        "link-degraded",
        "lanes failed, not put into words",
        ERROR,
        live(error_log="[Hardware Error]: CPU 0: Machine Check: 0 Bank 5: c80000c000220e0f"),
    ),
    ("link-degraded", "corrected", WARNING, live(error_log="EDAC: UPI link 1 CRC error, corrected")),
    (
        "memory-channels-empty",
        "4 of 6 a socket",
        WARNING,
        lambda case: replace(case, modules=case.modules[::3] * 2),
    ),
    (
        "memory-clock-low",
        "2666 of 2933",
        HINT,
        lambda case: replace(case, modules=(*case.modules[1:], module("CPU1_DIMM_A1", 16, 2933, 2666))),
    ),
    ("memory-errors", "corrected", WARNING, files({"/sys/devices/system/edac/mc/mc0/ce_count": "12"})),
    ("memory-errors", "uncorrected", ERROR, files({"/sys/devices/system/edac/mc/mc0/ue_count": "1"})),
    ("kernel-too-old", "4.18", WARNING, files({"/proc/sys/kernel/osrelease": "4.18.0-553.el8.x86_64"})),
    ("cpus-contended", "another pool", WARNING, process(900, "llama-server", (0, 1, 2, 3))),
    ("cpus-contended", "a second daemon", WARNING, process(900, "stratad", (0, 1, 2, 3), thread="stratad-w")),
    (
        "cpus-contended",
        "two daemons by hand",
        WARNING,
        all_of(
            stopped,
            process(900, "stratad", (0, 1, 2, 3), thread="stratad-w"),
            process(950, "stratad", (0, 1, 2, 3), thread="stratad-w"),
        ),
    ),
    ("gpu-node-unknown", "-1", WARNING, files({f"{GPU}/numa_node": "-1"})),
    (
        "gpu-node-outside-cpuset",
        "node 1 only",
        WARNING,
        files(
            {
                "/sys/fs/cgroup/stratad.slice/cpuset.mems.effective": "1",
                "/sys/fs/cgroup/stratad.slice/cpuset.cpus.effective": "12-23",
            }
        ),
    ),
    ("iommu-translated", "DMA", WARNING, files({"/sys/kernel/iommu_groups/0/type": "DMA-FQ"})),
    ("gpu-link-narrow", "x8", WARNING, files({f"{GPU}/current_link_width": "8"})),
    (
        "cpuset-differs-from-plan",
        "narrower",
        WARNING,
        files({f"{GROUP}/cpuset.cpus.effective": "0-11"}),
    ),
    (
        "cpuset-differs-from-plan",
        "wider",
        WARNING,
        files({f"{GROUP}/cpuset.cpus.effective": "0-23"}),
    ),
    ("workers-displaced", "roams", WARNING, files({WORKER_5: "Cpus_allowed_list:\t0-23"})),
    ("unit-overridden", "Type=simple", WARNING, unit("Type=notify", "Type=simple")),
    ("unit-overridden", "CPUQuota=", WARNING, files({DROP_IN: "[Service]\nCPUQuota=400%"})),
    ("unit-overridden", "first to be killed", WARNING, files({DROP_IN: "[Service]\nOOMScoreAdjust=500"})),
    ("unit-overridden", "other CPUs", WARNING, files({DROP_IN: "[Service]\nAllowedCPUs=0-3"})),
    ("unit-overridden", "other policy", WARNING, files({DROP_IN: "[Service]\nNUMAPolicy=bind"})),
    ("unit-overridden", "other mask", WARNING, files({DROP_IN: "[Service]\nNUMAMask=0"})),
    ("unit-overridden", "memory nodes", WARNING, files({DROP_IN: "[Service]\nAllowedMemoryNodes=0"})),
    ("service-killed", "twice", ERROR, files({f"{GROUP}/memory.events": "oom 2\noom_kill 2"})),
    ("placement-below-limit", "0.61", ERROR, live(placement=PlacementVerdict("below-limit", 0.61, 0.95))),
    (
        "placement-below-limit",
        "unverifiable",
        WARNING,
        live(placement=PlacementVerdict("unverifiable", None, 0.95)),
    ),
)

# Healthy machines that differ from the healthy one: the other side of a bound, or an exception from a rule.
WELL: tuple[tuple[str, str, Spoil], ...] = (
    (
        "configuration-unusable",
        "a model of its own",
        asked(arena_bytes=None, configuration="[model]\npath = 'model.gguf'"),
    ),
    (
        "workers-clamped",
        "no more than a socket has",
        asked(arena_bytes=None, configuration="[model]\npath = 'model.gguf'\n[placement]\nworkers = 8"),
    ),
    ("headroom-tight", "three quarters of a node", asked(arena_bytes=88 * GIB)),
    ("plan-outdated", "none applied", stopped),
    ("free-memory-skewed", "a tenth and a bit", memory(0, 64, 6.3)),
    ("page-cache-crowds-node", "cache beside enough free memory", memory(1, 64, 43, cache_gib=20)),
    ("memory-uneven", "firmware took some", memory(1, 62, 61)),
    ("swap-on", "the unit may not use it", all_of(meminfo("SwapTotal", 8), meminfo("SwapFree", 8))),
    (
        "overcommit-strict",
        "40 of 63 GiB",
        all_of(stopped, files({"/proc/sys/vm/overcommit_memory": "2"}), asked(arena_bytes=40 * GIB)),
    ),
    ("overcommit-strict", "the service has its memory", files({"/proc/sys/vm/overcommit_memory": "2"})),
    (
        "zone-reclaim-on",
        "one node",
        all_of(
            bare,
            shaped(MachineShape(even_nodes(1, 8))),
            files({"/proc/sys/vm/zone_reclaim_mode": "1"}),
        ),
    ),
    (
        "huge-pages-idle",
        "reserved and in use",
        files({f"{HUGE_0}/nr_hugepages": "24000", f"{HUGE_0}/free_hugepages": "0"}),
    ),
    (
        "huge-pages-stranded",
        "on both nodes",
        files(
            {
                f"{HUGE_0}/nr_hugepages": "900",
                f"{NODE_1}/hugepages/hugepages-2048kB/nr_hugepages": "900",
            }
        ),
    ),
    ("transparent-huge-pages", "always", files({f"{MADVISE}/enabled": "[always] madvise never"})),
    ("arena-exceeds-cgroup-limit", "80 GiB", files({f"{GROUP}/memory.max": str(ARENA_BYTES)})),
    (
        "arena-not-locked",
        "just enough",
        files({f"/proc/{PROCESS_ID}/limits": f"Max locked memory   {ARENA_BYTES}   {ARENA_BYTES}   bytes"}),
    ),
    ("arena-not-locked", "by the unit", stopped),
    (
        "cpuset-narrow",
        "the plan's own cpuset on the service",
        files({f"{GROUP}/cpuset.cpus.effective": "0-11,13-23"}),
    ),
    ("memory-killer-active", "oomd, and spared", files({"/proc/7/comm": "systemd-oomd"})),
    (
        "cpu-governor",
        "powersave of intel_pstate",
        files({f"{POLICY}/scaling_governor": "powersave", f"{POLICY}/scaling_driver": "intel_pstate"}),
    ),
    (
        "link-degraded",
        "one socket",
        all_of(bare, shaped(MachineShape(even_nodes(1, 8))), live(error_log=LANES)),
    ),
    (
        "link-degraded",
        "another bank",
        live(error_log="CPU 0: Machine Check: 0 Bank 7: c80000c000220e0f"),
    ),
    ("kernel-too-old", "5.0", files({"/proc/sys/kernel/osrelease": "5.0.0"})),
    ("cpus-contended", "elsewhere", process(900, "llama-server", (12,) * 4)),
    (
        "cpus-contended",
        "the daemon itself, by hand",
        all_of(stopped, process(900, "stratad", (0, 1, 2, 3), thread="stratad-w")),
    ),
    ("cpus-contended", "small", process(900, "postgres", (0, 1, 2, 3), resident_gib=0.5)),
    (
        "gpu-node-unknown",
        "one node",
        all_of(bare, shaped(MachineShape(even_nodes(1, 8), (GpuShape("0000:3b:00.0", -1),)))),
    ),
    ("iommu-translated", "no GPU", files({f"{GPU}/class": None, "/sys/kernel/iommu_groups/0/type": "DMA"})),
    ("unit-overridden", "an own drop-in", files({DROP_IN: "[Service]\nNice=-5\nCPUWeight=900"})),
    (
        "unit-overridden",
        "the same CPUs in other words",
        files({DROP_IN: "[Service]\nAllowedCPUs=0-11 13-20 21-23"}),
    ),
    ("unit-overridden", "reset", files({DROP_IN: "[Service]\nCPUQuota=400%\nCPUQuota="})),
    (
        "placement-below-limit",
        "nothing placed",
        live(placement=PlacementVerdict("not-applicable", None, 0.95)),
    ),
)

UNKNOWABLE: tuple[tuple[str, Spoil], ...] = (
    ("no-plan-suits", asked(arena_bytes=None)),
    ("headroom-tight", asked(arena_bytes=None)),
    ("configuration-unusable", asked(arena_bytes=None)),
    ("page-cache-crowds-node", asked(arena_bytes=None)),
    ("swap-on", files({"/proc/meminfo": None})),
    ("overcommit-strict", files({"/proc/sys/vm/overcommit_memory": None})),
    ("zone-reclaim-on", files({"/proc/sys/vm/zone_reclaim_mode": "x"})),
    ("numa-balancing-on", files({"/proc/sys/kernel/numa_balancing": None})),
    ("transparent-huge-pages", files({f"{MADVISE}/enabled": None})),
    ("memory-fragmented", files({"/proc/buddyinfo": None})),
    ("arena-exceeds-cgroup-limit", all_of(asked(arena_bytes=None), files({f"{GROUP}/memory.max": "80"}))),
    ("arena-not-locked", bare),
    ("mappings-few", files({"/proc/sys/vm/max_map_count": None})),
    ("cgroup-cpuset-missing", files({"/sys/fs/cgroup/cgroup.controllers": None})),
    ("placement-not-possible", live(refused_calls=None)),
    ("cpu-governor", files({f"{POLICY}/scaling_governor": None})),
    ("link-degraded", live(error_log=None)),
    ("memory-channels-empty", lambda case: replace(case, modules=())),
    ("memory-channels-empty", files({"/proc/cpuinfo": "processor\t: 0\nmodel name\t: never heard of\n"})),
    (
        "memory-channels-empty",
        files(
            {
                "/proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n"
                "model name\t: Intel(R) Xeon(R) W-2255 CPU @ 3.70GHz\n"
            }
        ),
    ),
    ("memory-clock-low", lambda case: replace(case, modules=())),
    (
        "memory-errors",
        files(
            {
                "/sys/devices/system/edac/mc/mc0/ce_count": None,
                "/sys/devices/system/edac/mc/mc0/ue_count": None,
            }
        ),
    ),
    ("kernel-too-old", files({"/proc/sys/kernel/osrelease": None})),
    ("iommu-translated", files({"/sys/kernel/iommu_groups/0/type": None})),
    ("gpu-link-narrow", files({f"{GPU}/current_link_width": "0"})),
    ("cpuset-differs-from-plan", files({f"{GROUP}/cgroup.procs": None})),
    ("workers-displaced", stopped),
    ("service-killed", stopped),
    ("placement-below-limit", live(placement=None)),
)


def _without_nodes(case: Case) -> dict[str, str]:
    return {path: text for path, text in case.files.items() if "/sys/devices/system/node" not in path}


def severity_of(case: Case, folder: Path, code: str) -> Severity:
    items = {item.check.code: item for item in examine(case.facts(folder)).items}
    return items[code].finding.severity


def test_a_healthy_machine_is_fine_in_every_check(machine: Case, tmp_path: Path) -> None:
    report = examine(machine.facts(tmp_path))
    assert {item.check.code: item.finding.severity for item in report.items} == {c.code: FINE for c in CHECKS}
    assert report.exit_status(is_strict=True) == 0


@pytest.mark.parametrize(
    ("code", "severity", "spoil"),
    [(c, s, f) for c, _, s, f in SICK],
    ids=[f"{c}: {n}" for c, n, _, _ in SICK],
)
def test_a_spoiled_machine_is_told_so(
    machine: Case, tmp_path: Path, code: str, severity: Severity, spoil: Spoil
) -> None:
    items = {item.check.code: item for item in examine(spoil(machine).facts(tmp_path)).items}
    finding = items[code].finding
    assert finding.severity is severity, finding
    assert finding.message
    assert finding.remedy, "what is wrong has a way out"


@pytest.mark.parametrize(
    ("code", "spoil"), [(c, f) for c, _, f in WELL], ids=[f"{c}: {n}" for c, n, _ in WELL]
)
def test_what_is_no_trap_is_fine(machine: Case, tmp_path: Path, code: str, spoil: Spoil) -> None:
    assert severity_of(spoil(machine), tmp_path, code) is FINE


@pytest.mark.parametrize(
    ("code", "spoil"), UNKNOWABLE, ids=[f"{c} {i}" for i, (c, _) in enumerate(UNKNOWABLE)]
)
def test_what_cannot_be_looked_at_is_called_unknown(
    machine: Case, tmp_path: Path, code: str, spoil: Spoil
) -> None:
    assert severity_of(spoil(machine), tmp_path, code) is UNKNOWN


def test_every_check_has_a_sick_side_for_each_severity_it_can_have() -> None:
    """A new check, or a new severity of one, cannot come without its test."""
    tested = {(code, severity) for code, _, severity, _ in SICK}
    assert tested == {(check.code, severity) for check in CHECKS for severity in check.severities}


def test_codes_are_unique_and_every_row_says_why_and_by_what() -> None:
    assert len({check.code for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.question.endswith("?"), check.code
        assert check.why and check.source and check.severities, check.code


def test_what_nobody_told_the_doctor_is_not_made_up(machine: Case, tmp_path: Path) -> None:
    """Without live answers the live checks are unknown and everything else stands."""
    report = examine(replace(machine, live=LiveAnswers()).facts(tmp_path))
    unknown = {item.check.code for item in report.items if item.finding.severity is UNKNOWN}
    assert unknown == {"placement-not-possible", "link-degraded", "placement-below-limit"}
