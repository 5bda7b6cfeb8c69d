"""Checks of what cgroups, cpusets, limits and containers leave to the service."""

from __future__ import annotations

from planner.cpulist import format_id_list
from planner.quantity import count_of, format_bytes
from planner.rules import ALLOW_PLACEMENT, node_phrase
from stratad.doctor.check import Check, Evidence, Finding, Group, Severity, fine, from_reason, unknown
from stratad.doctor.facts import MachineFacts
from stratad.doctor.units import size_setting

# The kernel's own default; who lowers it has to know why.
USUAL_MAPPINGS = 65_530


def memory_limit(facts: MachineFacts) -> Finding:
    """The cgroup's memory limit is below arena and buffers (the planner's rule, and the unit's own MemoryMax=)."""
    unit = facts.service.unit or {}
    running = facts.service.running
    limits = (
        facts.planned_topology.limits.memory_limit_bytes,
        None if running is None else running.limits.memory_limit_bytes,
        size_setting(unit.get("MemoryMax"), facts.topology.memory_total_bytes),
        # Past MemoryHigh= the kernel does not kill, it takes pages away as fast as they are touched.
        size_setting(unit.get("MemoryHigh"), facts.topology.memory_total_bytes),
    )
    limit = min((size for size in limits if size is not None), default=None)
    wanted = facts.wanted_bytes
    if limit is None:
        return fine("no memory limit on the service")
    if wanted is None:
        return unknown(
            f"the limit is {format_bytes(limit)}; whether that is enough depends on the model: "
            "name one with --config or --model"
        )
    evidence = {"limit_bytes": limit, "needed_bytes": wanted}
    if wanted <= limit:
        return fine(f"{format_bytes(wanted)} are needed of the {format_bytes(limit)} allowed", **evidence)
    return Finding(
        Severity.ERROR,
        f"arena and other buffers need {format_bytes(wanted)}, the cgroup allows {format_bytes(limit)}",
        evidence,
        (
            "sudo systemctl set-property stratad.service MemoryMax=infinity MemoryHigh=infinity",
            "in a container: raise its memory limit",
        ),
    )


def lock_limit(facts: MachineFacts) -> Finding:
    """The limit on locked memory is below the arena."""
    limit, where = _lock_limit(facts)
    if where is None:
        return unknown("no unit is installed and no service runs, so no limit on locked memory applies yet")
    if limit is None:
        return fine(f"locked memory is not limited ({where})")
    wanted = facts.arena_bytes
    if wanted is not None and wanted <= limit:
        return fine(f"{format_bytes(limit)} may be locked ({where})", limit_bytes=limit, arena_bytes=wanted)
    needed = "the arena" if wanted is None else f"{format_bytes(wanted)} of arena"
    return Finding(
        Severity.WARNING,
        f"{format_bytes(limit)} may be locked ({where}), not enough for {needed}: it can be swapped out",
        {"limit_bytes": limit, "arena_bytes": wanted},
        ("sudo systemctl edit stratad  # [Service] LimitMEMLOCK=infinity", "sudo systemctl restart stratad"),
    )


def _lock_limit(facts: MachineFacts) -> tuple[int | None, str | None]:
    """Give the limit, None for none, and what says so; the running process counts before the unit's file."""
    running, unit = facts.service.running, facts.service.unit
    if running is not None:
        return running.lock_limit_bytes, "the running service"
    if unit is None:
        return None, None
    text = unit.get("LimitMEMLOCK")
    # systemd's own default for services since version 246.
    return (8 * 1024**2 if text is None else size_setting(text)), "LimitMEMLOCK= of the unit"


def mappings(facts: MachineFacts) -> Finding:
    """vm.max_map_count is below the kernel's default, or the service is near it."""
    most = facts.settings.most_mappings
    used = None if facts.service.running is None else facts.service.running.mapping_count
    if most is None:
        return unknown("vm.max_map_count cannot be read")
    evidence = {"max_map_count": most, "used": used}
    if most < USUAL_MAPPINGS or (used is not None and used > most // 2):
        usage = "" if used is None else f", the service uses {used}"
        return Finding(
            Severity.WARNING,
            f"vm.max_map_count is {most} (the kernel's default is {USUAL_MAPPINGS}){usage}",
            evidence,
            (f"sudo sysctl vm.max_map_count={max(4 * (used or 0), 262_144)}",),
        )
    return fine(f"vm.max_map_count is {most}", **evidence)


def cpuset_narrow(facts: MachineFacts) -> Finding:
    """The service may use less of the machine than there is."""
    topology = facts.planned_topology
    cpus, usable = {cpu.cpu_id for cpu in topology.cpus}, set(topology.usable_cpu_ids)
    nodes = {node.node_id for node in topology.nodes if node.has_memory}
    closed = tuple(sorted(nodes - set(topology.usable_node_ids)))
    evidence: dict[str, Evidence] = {
        "usable_cpus": len(usable),
        "online_cpus": len(cpus),
        "closed_nodes": closed,
    }
    if usable == cpus and not closed:
        return fine(f"all {count_of(len(cpus), 'CPU')} and all nodes may be used", **evidence)
    memory = f", memory of {node_phrase(closed)} is closed to it" if closed else ""
    return Finding(
        Severity.WARNING if closed or len(usable) == 1 else Severity.HINT,
        f"the service may use CPUs {format_id_list(usable)}: {len(usable)} of {len(cpus)}{memory}",
        evidence,
        (
            "systemctl show -p AllowedCPUs -p AllowedMemoryNodes stratad.slice stratad.service",
            "sudo systemctl set-property stratad.slice AllowedCPUs= AllowedMemoryNodes=",
            "in a container: widen its cpuset (docker: --cpuset-cpus and --cpuset-mems; LXC: lxc.cgroup2.cpuset)",
        ),
    )


def affinity(facts: MachineFacts) -> Finding:
    """An affinity mask leaves fewer CPUs than the cpuset (the planner's rule)."""
    reason = facts.reason("affinity-narrows-cpuset")
    if reason is not None:
        return from_reason(
            Severity.WARNING,
            reason,
            "taskset -pc $$  # the mask that is inherited; start the daemon without it",
            "systemctl show -p CPUAffinity stratad",
        )
    unit = facts.service.unit or {}
    if "CPUAffinity" in unit:
        return Finding(
            Severity.WARNING,
            f"the unit sets CPUAffinity={unit['CPUAffinity']}: workers outside it cannot be pinned",
            {"affinity": unit["CPUAffinity"]},
            ("sudo systemctl edit stratad  # remove CPUAffinity=; the plan's AllowedCPUs= does it",),
        )
    return fine("no affinity mask is narrower than the cpuset")


def cgroup_version(facts: MachineFacts) -> Finding:
    """Cgroups are version 1 or mixed, or have no cpuset controller."""
    settings = facts.settings
    if settings.has_unified_cgroups is None:
        return unknown("which version of cgroups there is cannot be read")
    if not settings.has_unified_cgroups:
        return Finding(
            Severity.WARNING,
            "cgroups are version 1 or mixed: systemd ignores AllowedCPUs= without saying so",
            {"unified": False},
            ("boot with systemd.unified_cgroup_hierarchy=1 (the daemon pins and places without it, too)",),
        )
    if not settings.has_cpuset_controller:
        return Finding(
            Severity.WARNING,
            "the cpuset controller is not available here: AllowedCPUs= has no effect",
            {"unified": True, "cpuset": False},
            ("in a container: delegate the cpuset controller to it",),
        )
    return fine("cgroups are version 2 with the cpuset controller")


def placement_refused(facts: MachineFacts) -> Finding:
    """The kernel or a filter refuses mbind, set_mempolicy or move_pages to this process."""
    calls, nodes = facts.surroundings.refused_calls, len(facts.topology.nodes)
    if calls is None:
        return unknown("placing memory was not tried: it can be on the running machine only")
    if not calls:
        return fine("the kernel lets this process place memory")
    filtered = " (a seccomp filter is on this process)" if facts.surroundings.is_filtered else ""
    return Finding(
        Severity.ERROR if nodes > 1 else Severity.HINT,
        f"the kernel refuses {', '.join(calls)}{filtered}",
        {"refused": ", ".join(calls), "nodes": nodes},
        (ALLOW_PLACEMENT, "docker run --cap-add SYS_NICE ..."),
    )


def container(facts: MachineFacts) -> Finding:
    """A container, which sees the whole machine and may use part of it."""
    kind = facts.surroundings.container
    if kind is None:
        return fine("no container")
    return Finding(
        Severity.HINT,
        f"this is a container ({kind}): /sys shows the host, and the cpuset says what may be used",
        {"container": kind},
        ("check as the service: stratactl topology  # `usable` is what counts",),
    )


def killers(facts: MachineFacts) -> Finding:
    """A program that kills for lack of memory runs, and the unit does not ask to be spared."""
    found, unit = facts.surroundings.killers, facts.service.unit
    if not found:
        return fine("no program that kills for lack of memory runs beside the kernel")
    names = ", ".join(found)
    is_spared = unit is not None and unit.get("ManagedOOMPreference") in ("avoid", "omit")
    if is_spared and found == ("systemd-oomd",):
        return fine(f"{names} runs, and the unit asks to be spared", killers=names)
    if unit is None:
        return Finding(
            Severity.HINT,
            f"{names} runs and kills by memory pressure, which loading a model makes",
            {"killers": names},
            ("run the daemon as stratad.service: the unit asks to be spared (ManagedOOMPreference=avoid)",),
        )
    return Finding(
        Severity.WARNING,
        f"{names} runs and may kill the service while it loads",
        {"killers": names, "preference": unit.get("ManagedOOMPreference")},
        (
            "sudo systemctl edit stratad  # [Service] ManagedOOMPreference=avoid",
            *(
                "sudo systemctl stop earlyoom  # or name stratad in its --avoid"
                for name in found
                if name == "earlyoom"
            ),
        ),
    )


LIMIT_CHECKS: tuple[Check, ...] = (
    Check(
        "arena-exceeds-cgroup-limit",
        Group.LIMITS,
        "Does the cgroup allow arena and buffers?",
        "Past memory.max the kernel kills, at a long prompt rather than at the start.",
        "trap-oomd: 60 GiB of arena and 32 GiB of caches under a limit of 75 GiB",
        (Severity.ERROR,),
        memory_limit,
    ),
    Check(
        "arena-not-locked",
        Group.LIMITS,
        "May the service lock its arena?",
        "Locked pages are never swapped, moved or given up; a limit below the arena leaves it to the kernel's mercy.",
        "mlock(2), systemd.exec(5); no measurement of ours",
        (Severity.WARNING,),
        lock_limit,
    ),
    Check(
        "mappings-few",
        Group.LIMITS,
        "Are there enough mappings (vm.max_map_count)?",
        "Past the limit mmap fails with memory free. The arena is one mapping for this reason.",
        "trap-colibri-419: out of memory with 2.3 TB free, at about 78,000 mappings",
        (Severity.WARNING,),
        mappings,
    ),
    Check(
        "cpuset-narrow",
        Group.LIMITS,
        "May the service use the whole machine?",
        "A plan is made inside what the cpuset leaves. CPUs of one node with memory of another is a pool away from "
        "its arena, the worst of all.",
        "seed 3708-b: 41.8 instead of 57.7 tokens a second; trap-suse-cpuset-9, trap-ollama-5554",
        (Severity.HINT, Severity.WARNING),
        cpuset_narrow,
    ),
    Check(
        "affinity-narrows-cpuset",
        Group.LIMITS,
        "Does an inherited affinity mask jail the pool?",
        "A mask from taskset, an OpenMP runtime or CPUAffinity= keeps workers off CPUs that the cpuset allows.",
        "trap-colibri-471: 48 workers on two CPUs, 0.11 instead of 4.34 tokens a second",
        (Severity.WARNING,),
        affinity,
    ),
    Check(
        "cgroup-cpuset-missing",
        Group.LIMITS,
        "Do cpusets of systemd work here?",
        "AllowedCPUs= needs cgroup version 2 with its cpuset controller, and systemd says nothing where it lacks them.",
        "systemd.resource-control(5); measured in the lab",
        (Severity.WARNING,),
        cgroup_version,
    ),
    Check(
        "placement-not-possible",
        Group.LIMITS,
        "Does the kernel let memory be placed?",
        "Container runtimes refuse mbind, set_mempolicy and move_pages without SYS_NICE, which the kernel itself does "
        "not ask for. Without them a split is refused.",
        "trap-moby-37241; seed 3708-a: a split that could not be placed lost 7 % of prompt speed",
        (Severity.ERROR, Severity.HINT),
        placement_refused,
    ),
    Check(
        "container",
        Group.LIMITS,
        "Is this a container?",
        "Its /sys shows all nodes and CPUs of the host. What starts as many threads as it sees there thrashes.",
        "trap-ollama-5554: a container of 8 cores on two nodes, load average 58",
        (Severity.HINT,),
        container,
    ),
    Check(
        "memory-killer-active",
        Group.LIMITS,
        "Would systemd-oomd or another killer choose the service?",
        "They act on memory pressure, which a model that loads makes, and not on size.",
        "trap-oomd: services killed at idle and at long prompts",
        (Severity.HINT, Severity.WARNING),
        killers,
    ),
)
