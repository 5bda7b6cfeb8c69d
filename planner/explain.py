"""Renders a plan for people and for the journal. Short lines; every fact in them is in the Plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from planner.cpulist import format_id_list
from planner.plan import Candidate, MemoryMode, Plan
from planner.quantity import count_of, format_bytes
from planner.reason import Effect, Evidence, Reason
from planner.rules import node_phrase
from planner.topology import Topology

Item = TypeVar("Item")


def log_lines(plan: Plan) -> tuple[str, ...]:
    """Give the journal's lines: one for the plan, one for each reason, `name=value` throughout."""
    nodes = format_id_list(node for part in plan.layout.slices for node in part.node_ids)
    head = (
        f"plan: policy={plan.policy} nodes={nodes or 'unplaced'} workers={len(plan.layout.workers)} "
        f"slices={len(plan.layout.slices)} confidence={plan.confidence} fingerprint={plan.fingerprint}"
    )
    return (head, *(reason_log_line(reason) for reason in plan.reasons))


def reason_log_line(reason: Reason) -> str:
    """Give one reason as a journal line: "plan: split rejected: node-too-small-for-slice node=0 ..."."""
    verbs = {
        Effect.REJECTS: "rejected",
        Effect.WARNS: "warning",
        Effect.CHOOSES: "chosen",
        Effect.INFORMS: "note",
    }
    subject = f"{reason.policy} " if reason.policy else ""
    values = "".join(f" {name}={_plain(value)}" for name, value in reason.evidence.items())
    return f"plan: {subject}{verbs[reason.effect]}: {reason.code}{values}"


def explain_plan(plan: Plan) -> str:
    """Give the plan as text: decision, workers, memory, why, why not the others, warnings with remedies."""
    blocks = [
        _decision(plan),
        _section("why", plan.reasons_with(Effect.CHOOSES)),
        _section("note", plan.reasons_with(Effect.INFORMS)),
        _rejections(plan),
        _section("warning", plan.reasons_with(Effect.WARNS)),
    ]
    return "\n".join(line for block in blocks for line in block) + "\n"


def explain_refusal(reasons: Iterable[Reason]) -> str:
    """Give the text for a refused plan: every reason with its remedy."""
    return "\n".join(["no plan suits this machine and model", *_section("refused", tuple(reasons))]) + "\n"


def explain_topology(topology: Topology) -> str:
    """Give the machine in a few lines: CPUs, nodes, accelerators, limits."""
    cpu_total, usable = len(topology.cpus), topology.usable_cpu_ids
    lines = [
        f"machine   {count_of(len(topology.packages), 'package')}, {count_of(len(topology.cores), 'core')}, "
        f"{count_of(cpu_total, 'CPU')}, {count_of(len(topology.nodes), 'node')}"
        + (f", {topology.virtualization}" if topology.virtualization else "")
    ]
    for node in topology.nodes:
        total, free = node.memory_total_bytes, node.available_bytes
        memory = "memory unknown" if total is None else format_bytes(total) if total else "no memory"
        available = f", {format_bytes(free)} available" if free is not None and total else ""
        barred = "" if node.is_allowed else ", not allowed by the cpuset"
        cpus = format_id_list(node.cpu_ids) or "none"
        lines.append(f"node {node.node_id:<4} {memory}{available}, CPUs {cpus}{barred}")
    for gpu in topology.accelerators:
        place = "node unknown" if gpu.node_id is None else f"node {gpu.node_id}"
        lines.append(f"GPU       {gpu.pci_address} [{gpu.vendor_id}:{gpu.device_id}] {place}")
    if len(usable) < cpu_total:
        lines.append(f"usable    CPUs {format_id_list(usable)}")
    if topology.limits.memory_limit_bytes is not None:
        lines.append(f"limit     {format_bytes(topology.limits.memory_limit_bytes)} by the cgroup")
    return "\n".join(lines) + "\n"


def explain_machine(topology: Topology) -> str:
    """Give the machine in at most four lines: processors, nodes, GPUs, and what limits or tunes them."""
    name = topology.cpu_model.name if topology.cpu_model else None
    lines = [
        f"machine   {count_of(len(topology.packages), 'package')}, {count_of(len(topology.cores), 'core')}, "
        f"{count_of(len(topology.cpus), 'CPU')}"
        + (f", {' '.join(name.split())}" if name else "")
        + (f", {topology.virtualization}" if topology.virtualization else ""),
        f"nodes     {'; '.join(_node_kinds(topology))}",
    ]
    if topology.accelerators:
        homes = [
            f"{gpu.pci_address} " + ("node unknown" if gpu.node_id is None else f"node {gpu.node_id}")
            for gpu in topology.accelerators
        ]
        more = f" and {len(homes) - 4} more" if len(homes) > 4 else ""
        lines.append(f"GPU       {', '.join(homes[:4])}{more}")
    settings = _settings(topology)
    if settings:
        lines.append(f"limits    {', '.join(settings)}")
    return "\n".join(lines) + "\n"


def _node_kinds(topology: Topology) -> list[str]:
    """Give one phrase for all nodes that are alike in cores and memory."""
    core_counts = {node.node_id: 0 for node in topology.nodes}
    node_of = {cpu.cpu_id: cpu.node_id for cpu in topology.cpus}
    for core in topology.cores:
        home = node_of[core[0]]
        if home is not None:
            core_counts[home] += 1
    kinds: dict[str, list[int]] = {}
    for node in topology.nodes:
        total, free = node.memory_total_bytes, node.available_bytes
        memory = "memory unknown" if total is None else format_bytes(total) if total else "no memory"
        available = f" ({format_bytes(free)} available)" if free is not None and total else ""
        barred = ", barred by the cpuset" if not node.is_allowed else ""
        phrase = f"{count_of(core_counts[node.node_id], 'core')} and {memory}{available}{barred}"
        kinds.setdefault(phrase, []).append(node.node_id)
    return [
        f"{format_id_list(ids)}: {phrase}{' each' if len(ids) > 1 else ''}" for phrase, ids in kinds.items()
    ]


def _settings(topology: Topology) -> list[str]:
    found = []
    if len(topology.usable_cpu_ids) < len(topology.cpus):
        found.append(f"usable CPUs {format_id_list(topology.usable_cpu_ids)}")
    if topology.limits.memory_limit_bytes is not None:
        found.append(f"memory {format_bytes(topology.limits.memory_limit_bytes)} by the cgroup")
    if topology.numa_balancing is not None and len(topology.nodes) > 1:
        found.append(f"NUMA balancing {'on' if topology.numa_balancing else 'off'}")
    if topology.iommu is not None and topology.accelerators:
        found.append(f"IOMMU {topology.iommu}")
    return found


def _decision(plan: Plan) -> list[str]:
    lines = [f"policy    {plan.policy}  ({plan.confidence}; fingerprint {plan.fingerprint})"]
    for index, part in enumerate(plan.arena_slices):
        cpus = format_id_list(
            worker.cpu_id
            for worker in plan.layout.workers
            if worker.slice_index == index and worker.cpu_id is not None
        )
        place = node_phrase(part.node_ids) if part.node_ids else "any node"
        workers = count_of(plan.layout.worker_count_of(index), "worker")
        size = f"{format_bytes(part.size_bytes)} on {place}" if part.size_bytes else "no arena"
        lines.append(f"slice {index:<3} {size}, {workers} on CPUs {cpus}")
    lines.append(f"server    CPUs {format_id_list(plan.layout.host_cpu_ids)}")
    lines.append(f"memory    {_process_memory(plan)}")
    chosen = next((candidate for candidate in plan.candidates if candidate.is_chosen), None)
    if chosen is not None and chosen.estimate is not None:
        lines.append(f"step      {_milliseconds(chosen)}")
    return lines


def _process_memory(plan: Plan) -> str:
    memory = plan.process_memory
    if memory.mode is MemoryMode.DEFAULT:
        text = "the process keeps the kernel's default policy"
    else:
        text = f"the process {'prefers' if memory.mode is MemoryMode.PREFERRED else 'interleaves over'} "
        text += node_phrase(memory.node_ids)
    return text + ("; the model file's page cache is released" if plan.release_page_cache else "")


def _rejections(plan: Plan) -> list[str]:
    """Give one line for each kind of rejected candidate; sockets refused alike share one."""
    lines = [
        f"not       {reason.policy or 'this'}{_in_slices(reason.evidence.get('slices'))}: {reason.message} "
        f"[{reason.code}]{_and_more(more)}"
        for reason, more in _first_of_each(plan.reasons_with(Effect.REJECTS), lambda r: (r.policy, r.code))
    ]
    weighed = tuple(
        candidate
        for candidate in plan.candidates
        if not candidate.is_chosen and not candidate.objection_codes and candidate.estimate is not None
    )
    lines += [
        f"not       {candidate.policy} on {node_phrase(candidate.node_ids)}"
        f"{_in_slices(candidate.slice_count)}: "
        f"{_milliseconds(candidate)}{_and_more(more)}"
        for candidate, more in _first_of_each(weighed, lambda item: (item.policy, item.slice_count))
    ]
    return lines


def _first_of_each(items: Iterable[Item], key: Callable[[Item], object]) -> list[tuple[Item, int]]:
    """Give the first item of each key, in order, with the number of others that share it."""
    groups: dict[object, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [(group[0], len(group) - 1) for group in groups.values()]


def _in_slices(slice_count: Evidence) -> str:
    """Give " in 4 slices": a machine may have a split by node and one by package."""
    return f" in {slice_count} slices" if isinstance(slice_count, int) and slice_count > 1 else ""


def _and_more(more: int) -> str:
    return f" (and {more} like it)" if more else ""


def _section(title: str, reasons: tuple[Reason, ...]) -> list[str]:
    lines = []
    for reason in reasons:
        lines.append(f"{title:<9} {reason.message} [{reason.code}]")
        if reason.remedy:
            lines.append(f"{'':<9} -> {reason.remedy}")
    return lines


def _milliseconds(candidate: Candidate) -> str:
    assert candidate.estimate is not None
    return f"about {candidate.estimate.step_seconds * 1000:.1f} ms a token ({candidate.estimate.confidence})"


def _plain(value: Evidence) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
