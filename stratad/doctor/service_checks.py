"""Checks of the configuration, the plan, and the service that carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner import Effect, Plan, Topology, machine_fingerprint
from planner.cpulist import format_id_list, parse_id_list
from planner.dropin import drop_in_text, plan_cpu_ids
from planner.quantity import count_of, format_bytes
from stratad.doctor.check import Check, Finding, Group, Severity, fine, from_reason, unknown
from stratad.doctor.facts import MachineFacts, RunningService
from stratad.doctor.units import settings_of
from stratad.plan.stored import unit_differences
from stratad.systemd.unit_files import PLAN_PATH

_APPLY = "sudo stratactl apply"
# Settings that no unit of a pool should have, and what they do.
_HARMFUL: Mapping[str, str] = {
    "CPUQuota": "stops workers in the middle of a layer",
    "AllowedMemoryNodes": "turns a full node into a killed service",
}
# Settings of the plan's drop-in that another one may override.
_PLANNED = ("AllowedCPUs", "NUMAPolicy", "NUMAMask")


def configuration(facts: MachineFacts) -> Finding:
    """The configuration, the model or recorded measurements cannot be used."""
    if facts.configuration_problem is not None:
        return Finding(
            Severity.ERROR,
            facts.configuration_problem,
            {},
            ("correct it in the file that is named; every key is explained in docs/CONFIGURATION.md",),
        )
    if facts.request is None:
        return unknown("no model was named: --config, --model or --arena-bytes says what has to fit")
    return fine(f"{format_bytes(facts.wanted_bytes or 0)} of weights and buffers are asked for")


def plan_possible(facts: MachineFacts) -> Finding:
    """No policy suits; the planner's own reasons."""
    if facts.request is None:
        return unknown("without a model there is nothing to plan")
    if facts.refusal is not None:
        refusing = [reason for reason in facts.reasons if reason.effect is Effect.REJECTS]
        remedies = tuple(dict.fromkeys(reason.remedy for reason in refusing if reason.remedy))
        return Finding(Severity.ERROR, facts.refusal, {"reasons": len(refusing)}, remedies)
    plan = facts.plan
    if plan is None:
        return unknown("no plan was made")
    return fine(
        f"{plan.policy} with {count_of(len(plan.layout.workers), 'worker')} suits", policy=plan.policy.value
    )


def headroom(facts: MachineFacts) -> Finding:
    """The plan fits and little stays free beside it (the planner's reason)."""
    if facts.plan is None:
        return unknown("without a plan there is no headroom to look at")
    reason = facts.reason("headroom-tight")
    if reason is not None:
        return from_reason(
            Severity.WARNING, reason, "lower model.context_tokens or model.slots", "stratactl plan"
        )
    return fine("the fullest node keeps a quarter of its memory and more")


def plan_outdated(facts: MachineFacts) -> Finding:
    """The applied plan was made for other hardware or another model, or cannot be read."""
    applied = facts.applied
    if applied.problem is not None:
        return Finding(
            Severity.ERROR,
            f"the applied plan cannot be read: {applied.problem}",
            {},
            (_APPLY, "sudo stratactl revert"),
        )
    if applied.plan is None:
        return fine("no plan is applied: the daemon plans when it starts")
    here = machine_fingerprint(facts.topology)
    if applied.plan.machine_fingerprint != here:
        return Finding(
            Severity.ERROR,
            "the applied plan was made for other hardware (CPUs, nodes or GPUs): the service will not start with it",
            {"plan_machine": applied.plan.machine_fingerprint, "this_machine": here},
            (_APPLY, "sudo stratactl revert"),
        )
    planned = sum(part.size_bytes for part in applied.plan.arena_slices)
    if (
        facts.plan is not None
        and facts.plan.arena_scope is applied.plan.arena_scope
        and planned != facts.arena_bytes
    ):
        return Finding(
            Severity.ERROR,
            f"the applied plan is for an arena of {format_bytes(planned)}, the configured model has "
            f"{format_bytes(facts.arena_bytes or 0)}",
            {"plan_arena_bytes": planned, "model_arena_bytes": facts.arena_bytes},
            (_APPLY,),
        )
    return fine(f"the applied plan {applied.plan.fingerprint} is for this machine")


def cpus_differ(facts: MachineFacts) -> Finding:
    """The running service has other CPUs or nodes than the applied plan (the daemon's own comparison)."""
    plan, running = facts.applied.plan, facts.service.running
    if plan is None or running is None:
        return (
            fine("no applied plan and running service to compare")
            if plan is None
            else unknown("no service runs")
        )
    if running.limits.allowed_cpu_ids is None:
        return unknown("the cpuset of the service cannot be read")
    differences = unit_differences(plan, _as_service_sees_it(facts.topology, running), None)
    if differences:
        return from_reason(
            Severity.WARNING,
            differences[0],
            "systemctl show -p AllowedCPUs -p AllowedMemoryNodes -p DropInPaths stratad.service stratad.slice",
            _APPLY,
        )
    return fine(f"the service has the plan's CPUs {format_id_list(plan_cpu_ids(plan))}")


def _as_service_sees_it(topology: Topology, running: RunningService) -> Topology:
    cpu_ids, node_ids = running.limits.allowed_cpu_ids, running.limits.allowed_node_ids
    cpus = tuple(replace(cpu, is_allowed=cpu_ids is None or cpu.cpu_id in cpu_ids) for cpu in topology.cpus)
    nodes = tuple(
        replace(node, is_allowed=node_ids is None or node.node_id in node_ids) for node in topology.nodes
    )
    return replace(topology, cpus=cpus, nodes=nodes, limits=running.limits)


def workers_displaced(facts: MachineFacts) -> Finding:
    """Pool workers that run elsewhere than the applied plan says."""
    plan, running = facts.applied.plan, facts.service.running
    if running is None or plan is None or not running.worker_masks:
        return unknown("no service runs with an applied plan, so there are no workers to look at")
    wanted = {index: worker.cpu_id for index, worker in enumerate(plan.layout.workers)}
    moved = {
        index: mask
        for index, mask in sorted(running.worker_masks.items())
        if wanted.get(index) is not None and mask != (wanted[index],)
    }
    if not moved:
        return fine(f"{count_of(len(running.worker_masks), 'worker')} on the plan's CPUs")
    index, mask = next(iter(moved.items()))
    return Finding(
        Severity.WARNING,
        f"{count_of(len(moved), 'worker')} of {len(running.worker_masks)} are not on their CPU: worker {index} may run "
        f"on {format_id_list(mask)}, planned is {wanted[index]}",
        {"moved": len(moved), "workers": len(running.worker_masks)},
        ("stratactl status  # workers-displaced says which CPUs are gone", "sudo systemctl restart stratad"),
    )


def unit_overridden(facts: MachineFacts) -> Finding:
    """Settings of the unit that work against the daemon or the plan."""
    unit = facts.service.unit
    if unit is None:
        return fine("no unit is installed: the daemon is run by hand")
    problems = [
        *_against_daemon(unit),
        *_against_plan(facts.applied.plan, unit),
    ]
    if not problems:
        return fine("the unit's settings are those of stratad")
    return Finding(
        Severity.WARNING,
        "the unit was changed: " + "; ".join(problems),
        {"problems": len(problems)},
        ("systemctl cat stratad  # which file sets it", "sudo systemctl revert stratad", _APPLY),
    )


def _against_daemon(unit: Mapping[str, str]) -> list[str]:
    kind, score = unit.get("Type", "simple"), unit.get("OOMScoreAdjust", "0")
    found = []
    if kind != "notify":
        found.append(f"Type={kind} does not wait for the placement check, notify does")
    if score.isdigit() and int(score) > 0:
        found.append(f"OOMScoreAdjust={score} has the service killed before others")
    for name, what in _HARMFUL.items():
        if name in unit:
            found.append(f"{name}={unit[name]} {what}")
    return found


def _against_plan(plan: Plan | None, unit: Mapping[str, str]) -> list[str]:
    drop_in = None if plan is None else drop_in_text(plan, str(PLAN_PATH))
    wanted = settings_of(drop_in or "")
    return [
        f"{name}={unit.get(name, '')} is not the plan's {wanted[name]}"
        for name in _PLANNED
        if name in wanted and _same_form(unit.get(name, "")) != _same_form(wanted[name])
    ]


def _same_form(value: str) -> str:
    """Give a list of CPUs or nodes in the one form that compares; systemd also takes blanks between them."""
    ids = parse_id_list(value.replace(" ", ","))
    return value if ids is None else format_id_list(ids)


def service_killed(facts: MachineFacts) -> Finding:
    """The kernel killed processes in the service's cgroup."""
    count = facts.service.kill_count
    if count is None:
        return unknown("the service has no cgroup now")
    if count == 0:
        return fine("the kernel killed nothing of the service", oom_kills=0)
    return Finding(
        Severity.ERROR,
        f"the kernel killed {count_of(count, 'process')} of the service for lack of memory",
        {"oom_kills": count},
        ("journalctl -k --grep 'oom|Out of memory'", "systemctl show -p MemoryMax -p MemoryPeak stratad"),
    )


def placement_below_limit(facts: MachineFacts) -> Finding:
    """The running daemon's pages lie elsewhere than planned."""
    placement = facts.placement
    if placement is None:
        return unknown("no daemon answers, so no pages were looked at")
    ratio = "" if placement.worst_ratio is None else f"{placement.worst_ratio:.1%} of the worst slice's pages"
    if placement.verdict == "below-limit":
        return Finding(
            Severity.ERROR,
            f"{ratio} lie where planned, the limit is {placement.limit_ratio:.1%}",
            {"worst_ratio": placement.worst_ratio, "limit_ratio": placement.limit_ratio},
            ("stratactl verify", "free memory on that node, then: sudo systemctl restart stratad"),
        )
    if placement.verdict == "unverifiable":
        return Finding(
            Severity.WARNING,
            "the kernel does not tell the daemon where its pages lie",
            {},
            ("let the service use move_pages (SystemCallFilter=@system-service)",),
        )
    return fine(f"{ratio} lie where planned" if ratio else "the plan places nothing")


SERVICE_CHECKS: tuple[Check, ...] = (
    Check(
        "configuration-unusable",
        Group.MODEL,
        "Can configuration, model and measurements be read?",
        "The daemon refuses to start with a setting it does not know or a model it cannot read.",
        "docs/CONFIGURATION.md",
        (Severity.ERROR,),
        configuration,
    ),
    Check(
        "no-plan-suits",
        Group.MODEL,
        "Does any policy suit this machine and model?",
        "The planner refuses what cannot hold; the doctor then ends with status 3.",
        "docs/PLANNER.md; seed 3413 (half of the arena and 2 GiB a node)",
        (Severity.ERROR,),
        plan_possible,
    ),
    Check(
        "headroom-tight",
        Group.MODEL,
        "Does enough stay free beside the plan?",
        "A node filled to the brim reclaims under load, and the last pages go elsewhere.",
        "seed 3413: 24 of 31 GiB a node worked, and only after the page cache was dropped",
        (Severity.WARNING,),
        headroom,
    ),
    Check(
        "plan-outdated",
        Group.MODEL,
        "Is the applied plan for this machine and model?",
        "The daemon takes the applied plan as it is and refuses one for other hardware.",
        "docs/adr/0021-applied-plan.md",
        (Severity.ERROR,),
        plan_outdated,
    ),
    Check(
        "cpuset-differs-from-plan",
        Group.SERVICE,
        "Has the running service the plan's CPUs and nodes?",
        "A narrower cpuset makes the daemon plan anew inside it; a wider one lets its threads roam.",
        "trap-systemd-numa, trap-mayastor-2072",
        (Severity.WARNING,),
        cpus_differ,
    ),
    Check(
        "workers-displaced",
        Group.SERVICE,
        "Is every worker on its CPU?",
        "Whoever rewrites a cpuset resets the pins of all threads in it.",
        "trap-mayastor-2072, trap-llamacpp-16164; measured in the lab",
        (Severity.WARNING,),
        workers_displaced,
    ),
    Check(
        "unit-overridden",
        Group.SERVICE,
        "Does the unit say what stratad and the plan need?",
        "Settings of other drop-ins win silently by their name's place in the alphabet.",
        "trap-systemd-numa, trap-vllm-57637; systemd.unit(5)",
        (Severity.WARNING,),
        unit_overridden,
    ),
    Check(
        "service-killed",
        Group.SERVICE,
        "Did the kernel kill the service?",
        "A service that is killed and started again in a loop looks merely slow.",
        "seed 2684: the unit restarted in a loop; trap-oomd",
        (Severity.ERROR,),
        service_killed,
    ),
    Check(
        "placement-below-limit",
        Group.SERVICE,
        "Do the running daemon's pages lie where planned?",
        "A split without its placement is worth nothing, and a pool away from its arena loses; the doctor then ends "
        "with status 4.",
        "seed 3413: 59.2 tokens a second placed, 51.0 not placed; seed 3708-b",
        (Severity.ERROR, Severity.WARNING),
        placement_below_limit,
    ),
)
