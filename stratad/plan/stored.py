"""The plan that `stratactl apply` left for the daemon, held against the machine, the model and the unit.

The daemon does not plan again inside the cpuset its own drop-in made (DESIGN.md, D7): it takes the applied plan, and
says where the system no longer is what that plan was made for.
"""

from __future__ import annotations

from pathlib import Path

from planner import (
    ArenaScope,
    Effect,
    MemoryMode,
    Plan,
    PlanDocumentError,
    ProcessMemory,
    Reason,
    Topology,
    machine_fingerprint,
    plan_from_json,
)
from planner.cpulist import format_id_list
from planner.dropin import plan_cpu_ids
from planner.sysfs import MachineFiles
from stratad.errors import ConfigurationError
from stratad.gguf.model import ModelFacts

_APPLY_AGAIN = (
    "run `sudo stratactl apply` to plan for what is here now, or `sudo stratactl revert` to go without"
)

# With one of these the plan cannot be carried out as it stands.
BLOCKING_CODES = ("cpuset-narrower-than-plan", "memory-nodes-narrower-than-plan")

# The kernel's words for policies (mpol_to_str) where they are not the planner's.
_KERNEL_WORDS = {MemoryMode.PREFERRED: "prefer"}


def read_stored_plan(path: Path, topology: Topology, model: ModelFacts) -> Plan:
    """The applied plan, when it was made for this machine and model.

    Raises:
        ConfigurationError: It cannot be read, or was made for something else.
    """
    tried = f"reading the applied plan {path}"
    try:
        plan = plan_from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        because = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(tried, because, remedy=_APPLY_AGAIN) from error
    except PlanDocumentError as error:
        raise ConfigurationError(tried, str(error), remedy=_APPLY_AGAIN) from error
    _require_same(plan, topology, model)
    return plan


def _require_same(plan: Plan, topology: Topology, model: ModelFacts) -> None:
    here = machine_fingerprint(topology)
    if plan.machine_fingerprint != here:
        raise ConfigurationError(
            tried=f"carrying out the applied plan {plan.fingerprint}",
            because="it was made for another machine, or this one has changed (CPUs, nodes or GPUs)",
            values={"plan_machine": plan.machine_fingerprint, "this_machine": here},
            remedy=_APPLY_AGAIN,
        )
    planned_bytes = sum(part.size_bytes for part in plan.arena_slices)
    model_bytes = model.weight_bytes if plan.arena_scope is ArenaScope.WEIGHTS else model.expert_bytes
    if planned_bytes != model_bytes:
        raise ConfigurationError(
            tried=f"carrying out the applied plan {plan.fingerprint}",
            because="it was made for another model",
            values={"plan_arena_bytes": planned_bytes, "model_arena_bytes": model_bytes},
            remedy=_APPLY_AGAIN,
        )


def unit_differences(plan: Plan, topology: Topology, process_policy: str | None) -> tuple[Reason, ...]:
    """Where the unit's effective cpuset, memory nodes and policy are not what the plan says.

    Args:
        plan: The applied plan.
        topology: The machine as this process sees it, with its limits.
        process_policy: This process's policy as the kernel writes it, "interleave:0-1"; None when unknown.
    """
    found = (
        _cpus(plan, topology),
        _memory_nodes(plan, topology),
        _policy(plan.process_memory, process_policy),
    )
    return tuple(reason for reason in found if reason is not None)


def process_policy(tree: MachineFiles) -> str | None:
    """The process's memory policy as the kernel writes it, such as "interleave:0-1" or "default".

    Read it before any mapping gets a policy of its own: a mapping without one shows the process's.

    Source: proc(5), numa_maps.
    """
    for line in (tree.text("/proc/self/numa_maps") or "").splitlines():
        words = line.split()
        if "heap" in words:
            return words[1]
    return None


def _cpus(plan: Plan, topology: Topology) -> Reason | None:
    wanted, usable = set(plan_cpu_ids(plan)), set(topology.usable_cpu_ids)
    evidence = {"plan_cpus": tuple(sorted(wanted)), "cpus": tuple(sorted(usable))}
    if missing := wanted - usable:
        return Reason(
            "cpuset-narrower-than-plan",
            Effect.WARNS,
            f"CPUs {format_id_list(missing)} of the applied plan are not in this unit's cpuset, "
            f"which is {format_id_list(usable)}",
            evidence,
            "look for AllowedCPUs= of the unit or of stratad.slice (`systemctl cat stratad.slice`), "
            "or run `sudo stratactl apply` inside it",
        )
    if more := usable - wanted:
        return Reason(
            "cpuset-wider-than-plan",
            Effect.WARNS,
            f"CPUs {format_id_list(more)} are in this unit's cpuset and not in the applied plan: "
            "AllowedCPUs= has no effect or was changed",
            evidence,
            "run `systemctl show -p AllowedCPUs -p DropInPaths stratad`; "
            "cgroup version 1 ignores AllowedCPUs=",
        )
    return None


def _memory_nodes(plan: Plan, topology: Topology) -> Reason | None:
    placed = {node_id for part in plan.layout.slices for node_id in part.node_ids}
    allowed = {node.node_id for node in topology.nodes if node.is_allowed}
    missing = placed - allowed
    if not missing:
        return None
    return Reason(
        "memory-nodes-narrower-than-plan",
        Effect.WARNS,
        f"the applied plan places pages on node {format_id_list(missing)}, which this unit may not use",
        {"plan_nodes": tuple(sorted(placed)), "nodes": tuple(sorted(allowed))},
        "look for AllowedMemoryNodes= of the unit or of stratad.slice",
    )


def _policy(memory: ProcessMemory, actual: str | None) -> Reason | None:
    word = _KERNEL_WORDS.get(memory.mode, memory.mode.value)
    wanted = word if memory.mode is MemoryMode.DEFAULT else f"{word}:{format_id_list(memory.node_ids)}"
    if actual is None or actual == wanted:
        return None
    return Reason(
        "process-policy-differs",
        Effect.WARNS,
        f"the unit started this process with memory policy {actual}, the plan says {wanted}; "
        "the daemon has set it, and what was in memory before stays where it is",
        {"policy": actual, "plan_policy": wanted},
        "run `systemctl show -p NUMAPolicy -p NUMAMask stratad`",
    )
