"""Short ways to plan for a synthetic machine in tests."""

from __future__ import annotations

from planner import ArenaSpec, Plan, PlanRefused, PlanRequest, make_plan
from planner.facts import Facts, gather_facts
from planner.reason import Effect, Reason
from tests.support.machines import GIB, MachineShape, NodeShape, machine_topology


def gathered(nodes: tuple[NodeShape, ...], request: PlanRequest | None = None, **shape: object) -> Facts:
    """Give the planner's facts for a machine of these nodes."""
    topology = machine_topology(MachineShape(nodes, **shape))  # type: ignore[arg-type]
    return gather_facts(topology, request or PlanRequest())


def planned(shape: MachineShape, arena_gib: float = 0, **request: object) -> Plan:
    """Give the plan for a machine and an arena."""
    return make_plan(machine_topology(shape), request_for(arena_gib, **request))


def refused(shape: MachineShape, arena_gib: float = 0, **request: object) -> tuple[Reason, ...]:
    """Give the reasons of the refusal that this machine and arena must end in."""
    try:
        plan = planned(shape, arena_gib, **request)
    except PlanRefused as refusal:
        return refusal.reasons
    raise AssertionError(f"planned {plan.policy} instead of a refusal")


def request_for(arena_gib: float, **request: object) -> PlanRequest:
    """Give a request with an arena of so many GiB; one token reads a sixteenth of it, in 48 layers."""
    size_bytes = int(arena_gib * GIB)
    arena = ArenaSpec(size_bytes, size_bytes // 16, (size_bytes // 48,) * 48 if size_bytes else ())
    return PlanRequest(arena=arena, **request)  # type: ignore[arg-type]


def codes(plan: Plan, effect: Effect | None = None) -> list[str]:
    """Give the codes of a plan's reasons, all or of one effect, in order."""
    return [reason.code for reason in plan.reasons if effect in (None, reason.effect)]


def reason_of(plan: Plan, code: str) -> Reason:
    """Give the plan's first reason with a code."""
    return next(reason for reason in plan.reasons if reason.code == code)
