"""Checks of processors, memory channels and the links between packages."""

from __future__ import annotations

import re

from planner import Topology
from planner.cpulist import format_id_list
from planner.dropin import plan_cpu_ids
from planner.hardware import GENERATION_ROWS, Generation, generation_of
from planner.quantity import count_of
from stratad.doctor.check import Check, Finding, Group, Severity, fine, from_reason, unknown
from stratad.doctor.error_log import link_records
from stratad.doctor.facts import MachineFacts, MemoryModule

# The first kernel whose cgroup version 2 has the cpuset controller, which AllowedCPUs= needs.
OLDEST_KERNEL = (5, 0)
# Governors that hold the clock down or raise it late. `powersave` is dynamic under intel_pstate and amd-pstate-epp.
SLOW_GOVERNORS = ("powersave", "conservative", "userspace")
DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
# Of one generation only these lines have all of its channels: workstations and small servers share its CPU numbers.
FULL_CHANNELS = re.compile(r"\b(?:Bronze|Silver|Gold|Platinum|E[57]-\d{4}|EPYC [79]\w{3}|69\d\d[PE])\b")
# A guest with more CPUs than this and one node most likely spans several nodes of its host.
FLAT_GUEST_CPUS = 32


def governor(facts: MachineFacts) -> Finding:
    """A frequency governor that does not follow the load."""
    found = facts.settings.governors
    if not found:
        return unknown("no frequency driver is visible: in a guest the host decides")
    shown = ", ".join(
        f"{part.governor} ({part.driver}) on {count_of(part.cpu_count, 'CPU')}" for part in found
    )
    slow = [
        part
        for part in found
        if part.governor in SLOW_GOVERNORS
        and not (part.governor == "powersave" and part.driver in DYNAMIC_DRIVERS)
    ]
    if slow:
        return Finding(
            Severity.WARNING,
            f"governor {shown}: cores do not rise to their full clock under load",
            {"cpus": sum(part.cpu_count for part in slow)},
            ("sudo cpupower frequency-set -g performance",),
        )
    saving = [part for part in found if part.preference in ("power", "balance_power")]
    if saving:
        return Finding(
            Severity.HINT,
            f"energy preference {saving[0].preference} on {count_of(saving[0].cpu_count, 'CPU')}",
            {"cpus": sum(part.cpu_count for part in saving)},
            (
                "echo performance | sudo tee /sys/devices/system/cpu/cpufreq/policy*/energy_performance_preference",
            ),
        )
    return fine(f"governor {shown}")


def workers_clamped(facts: MachineFacts) -> Finding:
    """More workers were asked for than physical cores (the planner's reason)."""
    reason = facts.reason("workers-clamped")
    if reason is not None:
        return from_reason(Severity.WARNING, reason, "delete placement.workers in /etc/stratad/stratad.toml")
    cores = len(facts.topology.cores)
    worker_count = None if facts.plan is None else len(facts.plan.layout.workers)
    shown = "" if worker_count is None else f", the plan has {count_of(worker_count, 'worker')}"
    return fine(
        f"{count_of(cores, 'physical core')} with {len(facts.topology.cpus)} CPUs{shown}", cores=cores
    )


def guest_topology(facts: MachineFacts) -> Finding:
    """A guest whose nodes cannot be those of the host, or nodes that are not real on any machine."""
    topology = facts.topology
    nodes = [node for node in topology.nodes if node.has_cpus]
    evidence = {"nodes": len(nodes), "packages": len(topology.packages), "cpus": len(topology.cpus)}
    if _are_nodes_false(topology):
        return Finding(
            Severity.WARNING,
            f"{len(nodes)} nodes, and the kernel calls all of them equally far: they are not real",
            evidence,
            (
                "set placement.policy = 'off', or give the guest its host's nodes (QEMU: -numa with distances)",
            ),
        )
    if topology.virtualization is None:
        return fine("no virtual machine", **evidence)
    is_flat = len(nodes) == 1 and (
        len(topology.cpus) > FLAT_GUEST_CPUS or 1 < len(topology.packages) < len(topology.cpus)
    )
    if is_flat:
        return Finding(
            Severity.WARNING,
            f"a virtual machine ({topology.virtualization}) with {count_of(len(topology.packages), 'package')}, "
            f"{len(topology.cpus)} CPUs and one node: the host's nodes are hidden, so nothing can be placed",
            evidence,
            (
                "give the guest its host's nodes and pin its CPUs (libvirt: <numatune>, <vcpupin>, <cpu><numa>)",
            ),
        )
    return Finding(
        Severity.HINT,
        f"a virtual machine ({topology.virtualization}): nodes and cores are what the host says, "
        "and the host may move both",
        evidence,
        ("pin the guest's CPUs and memory on the host; then settle with: stratactl tune",),
    )


def _are_nodes_false(topology: Topology) -> bool:
    rows = {node.node_id: dict(node.distances) for node in topology.nodes if node.has_cpus}
    if len(rows) < 2 or not all(len(row) >= len(rows) for row in rows.values()):
        return False
    return all(row[other] <= row[node] for node, row in rows.items() for other in rows if other != node)


def nodes_hidden(facts: MachineFacts) -> Finding:
    """A real machine with several packages and one node: the firmware interleaves, or the kernel has no NUMA."""
    topology = facts.topology
    packages, nodes = len(topology.packages), len(topology.nodes)
    evidence = {"packages": packages, "nodes": nodes}
    if not facts.settings.has_node_directory:
        return Finding(
            Severity.HINT,
            "the kernel shows no nodes (/sys/devices/system/node): the machine counts as one node",
            evidence,
            ("use a kernel with CONFIG_NUMA, or mount /sys in the container",),
        )
    if packages > 1 and nodes == 1 and topology.virtualization is None:
        return Finding(
            Severity.HINT,
            f"{packages} packages and one node: the firmware interleaves memory (NPS0, node interleaving), "
            "so there is nothing to split",
            evidence,
            ("turn node interleaving off in the firmware (NPS1), and compare both with: stratactl tune",),
        )
    return fine(f"{count_of(packages, 'package')}, {count_of(nodes, 'node')}", **evidence)


def link_degraded(facts: MachineFacts) -> Finding:
    """The link between packages: lanes lost by the machine-check log, or far below its generation when measured."""
    if len(facts.topology.packages) < 2:
        return fine("one package, no link")
    log, reason = facts.surroundings.error_log, facts.reason("link-degraded")
    records = None if log is None else link_records(log)
    if records is not None and records.record_count:
        has_failed = records.lane_failure_count > 0
        return Finding(
            Severity.ERROR if has_failed else Severity.WARNING,
            f"the log has {count_of(records.record_count, 'record')} of link errors"
            + (", lanes failed and the link runs at reduced width" if has_failed else "")
            + f": {records.last_line}",
            {"records": records.record_count, "lane_failures": records.lane_failure_count},
            (
                "sudo ras-mc-ctl --errors",
                "power the machine off and on; if it comes back, reseat or change the CPU",
            ),
        )
    if reason is not None:
        snoop = generation_of(facts.topology.cpu_model) is Generation.HASWELL
        hint = ("set the snoop mode to home snoop with directory in the firmware",) if snoop else ()
        return from_reason(Severity.WARNING, reason, *hint, "sudo ras-mc-ctl --errors", "stratactl bench")
    if records is None:
        return unknown("the kernel's log cannot be read (root may)")
    return fine("no record of link errors in the log")


def memory_channels(facts: MachineFacts) -> Finding:
    """Fewer memory modules than the packages have channels."""
    modules = facts.settings.modules
    generation = generation_of(facts.topology.cpu_model)
    if facts.topology.virtualization is not None:
        return unknown("a virtual machine does not see the host's memory modules")
    if not modules:
        return unknown("which memory modules there are cannot be read (root may, from the firmware's table)")
    name = (facts.topology.cpu_model and facts.topology.cpu_model.name) or ""
    if generation is Generation.UNKNOWN or not FULL_CHANNELS.search(name):
        return unknown(f"how many channels this CPU has is not in the table ({name or 'no name'})")
    channels = GENERATION_ROWS[generation].channels_per_package * len(facts.topology.packages)
    filled = [module for module in modules if module.size_bytes]
    evidence = {"modules": len(filled), "channels": channels}
    if len(filled) >= channels:
        return fine(f"{len(filled)} modules for {channels} channels ({generation})", **evidence)
    return Finding(
        Severity.WARNING,
        f"{len(filled)} memory modules for {channels} channels ({generation}): at least "
        f"{channels - len(filled)} channels are empty, and bandwidth is lost in proportion",
        evidence,
        ("sudo dmidecode -t memory | grep -E 'Locator|Size'", "put a module into every channel"),
    )


def memory_clock(facts: MachineFacts) -> Finding:
    """Modules that run below their own rate."""
    modules = [module for module in facts.settings.modules or () if module.size_bytes]
    known = [module for module in modules if module.rated_speed and module.configured_speed]
    if not known:
        return unknown("the rate of the memory modules cannot be read (root may, from the firmware's table)")
    slow = [module for module in known if _is_slow(module)]
    if not slow:
        return fine(f"memory runs at {known[0].configured_speed} MT/s, as rated")
    worst = min(slow, key=lambda module: module.configured_speed or 0)
    return Finding(
        Severity.HINT,
        f"{count_of(len(slow), 'module')} run below their rate: {worst.configured_speed} of {worst.rated_speed} MT/s "
        f"({worst.locator})",
        {"modules": len(slow), "configured": worst.configured_speed, "rated": worst.rated_speed},
        ("look in the firmware for the memory clock; two modules a channel, or a slower CPU, lower it too",),
    )


def _is_slow(module: MemoryModule) -> bool:
    return (module.configured_speed or 0) < (module.rated_speed or 0)


def memory_errors(facts: MachineFacts) -> Finding:
    """Errors that the memory controllers counted since boot."""
    counts = facts.settings.memory_errors
    if counts is None:
        return unknown("no EDAC driver counts memory errors here")
    evidence = {"corrected": counts.corrected_count, "uncorrected": counts.uncorrected_count}
    if counts.uncorrected_count:
        severity, what = (
            Severity.ERROR,
            f"{counts.uncorrected_count} uncorrected memory errors: weights may be wrong",
        )
    elif counts.corrected_count:
        severity, what = Severity.WARNING, f"{counts.corrected_count} corrected memory errors since boot"
    else:
        return fine("no memory errors since boot", **evidence)
    return Finding(
        severity, what, evidence, ("sudo ras-mc-ctl --errors", "change the module that is named there")
    )


def kernel_old(facts: MachineFacts) -> Finding:
    """A kernel before the first with what the units need."""
    release = facts.topology.kernel_release
    match = re.match(r"(\d+)\.(\d+)", release or "")
    if match is None:
        return unknown("the kernel's release cannot be read")
    if (int(match[1]), int(match[2])) >= OLDEST_KERNEL:
        return fine(f"kernel {release}")
    oldest = ".".join(map(str, OLDEST_KERNEL))
    return Finding(
        Severity.WARNING,
        f"kernel {release} is older than {oldest}: cgroup version 2 has no cpusets there, AllowedCPUs= does nothing",
        {"release": release, "oldest": oldest},
        (f"install a kernel of {oldest} or newer",),
    )


def cpus_contended(facts: MachineFacts) -> Finding:
    """Another process has threads pinned to the plan's CPUs."""
    plan = facts.applied.plan or facts.plan
    wanted = set(plan_cpu_ids(plan)) if plan is not None else set(facts.planned_topology.usable_cpu_ids)
    for process in facts.surroundings.pinned:
        shared = tuple(sorted(wanted & set(process.cpu_ids)))
        if shared:
            return Finding(
                Severity.WARNING,
                f"{process.name} (process {process.process_id}) has threads pinned to CPUs {format_id_list(shared)}, "
                "which the pool uses",
                {"process": process.process_id, "cpus": shared},
                (
                    f"ps -o pid,unit,args {process.process_id}",
                    "give it other CPUs, or: sudo stratactl reserve",
                ),
            )
    return fine("no other large process has threads pinned to the pool's CPUs")


PROCESSOR_CHECKS: tuple[Check, ...] = (
    Check(
        "cpu-governor",
        Group.PROCESSORS,
        "Do the cores rise to their full clock?",
        "Expert rows are bound by memory only while cores are fast enough to keep up; a fixed low clock is not.",
        "the kernel's documentation of cpufreq; no measurement of ours",
        (Severity.WARNING, Severity.HINT),
        governor,
    ),
    Check(
        "workers-clamped",
        Group.PROCESSORS,
        "Are more workers asked for than there are physical cores?",
        "Two workers on one core wait for each other at every layer.",
        "pub-colibri-234: 0.15 instead of 3.6 tokens a second; pub-kt-432: 0.52 instead of 13",
        (Severity.WARNING,),
        workers_clamped,
    ),
    Check(
        "guest-topology",
        Group.PROCESSORS,
        "Are the nodes real?",
        "A guest sees what its host says: one node over two sockets hides the placement, invented nodes mislead it.",
        "trap-ollama-5554 (a guest saw one node); trap-lvllm-nodes (5 and 10 nodes on virtual platforms)",
        (Severity.WARNING, Severity.HINT),
        guest_topology,
    ),
    Check(
        "nodes-hidden",
        Group.PROCESSORS,
        "Does the firmware hide the nodes?",
        "Interleaving in the firmware is a sound baseline, and leaves nothing to place.",
        "pub-ik-2396-nps: NPS0 35.2, NPS1 with pages spread 32.1, with a copy a node 35.0 tokens a second",
        (Severity.HINT,),
        nodes_hidden,
    ),
    Check(
        "link-degraded",
        Group.PROCESSORS,
        "Is the link between packages whole?",
        "A link that lost lanes halves what one socket can read of the other's memory; nothing but a machine-check "
        "record tells.",
        "seed 3413: at half width 38.8 to 45.0 instead of 54 tokens a second, a placed split 57; pub-ik-201-snoop: "
        "one snoop mode cost 2.8 times",
        (Severity.ERROR, Severity.WARNING),
        link_degraded,
    ),
    Check(
        "memory-channels-empty",
        Group.PROCESSORS,
        "Has every memory channel a module?",
        "Decoding streams weights, so its speed follows the filled channels.",
        "pub-colibri-537-bw: four modules over two sockets were the ceiling, 110.8 GB/s",
        (Severity.WARNING,),
        memory_channels,
    ),
    Check(
        "memory-clock-low",
        Group.PROCESSORS,
        "Do the memory modules run at their rate?",
        "Bandwidth is proportional to it.",
        "SMBIOS reference specification, memory device; no measurement of ours",
        (Severity.HINT,),
        memory_clock,
    ),
    Check(
        "memory-errors",
        Group.PROCESSORS,
        "Has the memory had errors?",
        "Corrected errors cost time and announce worse; uncorrected ones can change weights.",
        "the kernel's documentation of EDAC; no measurement of ours",
        (Severity.ERROR, Severity.WARNING),
        memory_errors,
    ),
    Check(
        "kernel-too-old",
        Group.PROCESSORS,
        "Has the kernel what the units need?",
        "Pinning and placing work on any kernel; the unit's cpuset needs cgroup version 2 with cpusets.",
        "the kernel's documentation of cgroup version 2 (cpuset since 5.0)",
        (Severity.WARNING,),
        kernel_old,
    ),
    Check(
        "cpus-contended",
        Group.PROCESSORS,
        "Does another pool use the same CPUs?",
        "Two pools pinned to the same cores take turns at every layer.",
        "trap-colibri-262: about twenty times slower a stream",
        (Severity.WARNING,),
        cpus_contended,
    ),
)
