"""make_plan: facts in, one Plan out. Pure: no clock, no randomness, no files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.advice import advice_for
from planner.candidates import Draft, build_drafts
from planner.choose import (
    Choice,
    Grounds,
    Weighed,
    choose,
    is_single_node_machine,
    one_node_cpuset,
    single_node_machine,
)
from planner.cost import CostConstants
from planner.facts import Facts, gather_facts
from planner.fingerprint import machine_fingerprint, plan_fingerprint
from planner.gpu_layers import assign_layers
from planner.measured_advice import Decided
from planner.pages import page_bytes_for
from planner.plan import Candidate, Plan, PlanRefused, StagingBuffer
from planner.rates import machine_rates, measured_constants
from planner.reason import Effect, Reason
from planner.request import SMALL_PAGE_BYTES, PlanRequest, Policy
from planner.rules import needed_bytes, objections, request_refusals
from planner.scope import with_arena_scope
from planner.topology import Topology
from planner.tuned import evidence_for
from planner.weigh import estimate

if TYPE_CHECKING:
    from planner.calibration import Calibration


def make_plan(
    topology: Topology,
    request: PlanRequest,
    calibration: Calibration | None = None,
    constants: CostConstants | None = None,
) -> Plan:
    """Give the plan for a machine and a request; the same facts give the same plan, byte for byte.

    Args:
        topology: The machine.
        request: The model and the operator's wishes.
        calibration: What was measured on this machine; each measurement replaces its estimate.
        constants: The cost model's constants, by default those of docs/PLANNER.md.

    Raises:
        PlanRefused: When arena and buffers fit nowhere, or the requested policy is not feasible. Its
            reasons say why.
    """
    facts, scope, scope_reasons = with_arena_scope(gather_facts(topology, request))
    request = facts.request
    refusals = request_refusals(facts)
    if refusals:
        raise PlanRefused(refusals)
    evidence = evidence_for(facts, calibration)
    if evidence.winner is not None and _is_free_to_choose(request):
        # The measured worker count comes with the measured policy.
        facts = replace(facts, request=replace(request, requested_worker_count=evidence.winner.worker_count))
    grounds = Grounds(
        rates=machine_rates(facts, evidence.benchmark),
        constants=measured_constants(constants or CostConstants(), evidence.benchmark),
        evidence=evidence,
        tuning=None if calibration is None else calibration.tuning,
    )
    weighed = tuple(
        Weighed(draft, estimate(facts, draft, grounds.rates, grounds.constants), objections(facts, draft))
        for draft in _drafts(facts)
    )
    choice = choose(facts, weighed, grounds)
    if choice is None:
        raise PlanRefused(_why_nothing(facts, weighed), tuple(_candidate(item, None) for item in weighed))
    plan = _assemble(facts, weighed, choice, grounds)
    return replace(plan, arena_scope=scope, reasons=(*plan.reasons, *scope_reasons))


def _is_free_to_choose(request: PlanRequest) -> bool:
    return request.requested_policy is None and request.requested_worker_count is None


def _drafts(facts: Facts) -> tuple[Draft, ...]:
    """Give the candidates; on a machine with one node only what was asked for, beside `off`: no noise."""
    drafts = build_drafts(facts)
    if not is_single_node_machine(facts):
        return drafts
    wanted = (Policy.OFF, facts.request.requested_policy)
    return tuple(
        draft for draft in drafts if draft.policy in wanted and draft.policy is not Policy.INTERLEAVE
    )


def _why_nothing(facts: Facts, weighed: tuple[Weighed, ...]) -> tuple[Reason, ...]:
    requested = facts.request.requested_policy
    relevant = [item for item in weighed if requested in (None, item.draft.policy)]
    reasons = tuple(reason for item in relevant for reason in item.objections)
    if reasons:
        return reasons
    if is_single_node_machine(facts):
        return (single_node_machine(facts, Effect.REJECTS),)
    return (one_node_cpuset(facts, Effect.REJECTS),)


def _assemble(facts: Facts, weighed: tuple[Weighed, ...], choice: Choice, grounds: Grounds) -> Plan:
    draft = choice.weighed.draft
    assert draft.layout is not None, "a feasible candidate has a layout"
    rejections = tuple(reason for item in weighed for reason in item.objections)
    is_one_slice = len(draft.layout.slices) == 1
    page_bytes = page_bytes_for(facts, draft)
    advice = advice_for(facts, Decided(draft, grounds.rates, grounds.evidence.benchmark))
    return Plan(
        policy=draft.policy,
        objective=facts.request.objective,
        layout=draft.layout,
        arena_slices=draft.arena_slices,
        process_memory=draft.process_memory,
        memory_nodes=draft.process_memory.node_ids or tuple(budget.node_id for budget in facts.budgets),
        page_bytes=page_bytes,
        transparent_huge_pages=is_one_slice
        and page_bytes == SMALL_PAGE_BYTES
        and facts.topology.transparent_huge_pages in ("always", "madvise"),
        release_page_cache=_cache_is_in_the_way(facts, draft),
        reasons=(*choice.reasons, *grounds.evidence.reasons, *rejections, *advice),
        candidates=tuple(_candidate(item, choice) for item in weighed),
        machine_fingerprint=machine_fingerprint(facts.topology),
        fingerprint=plan_fingerprint(facts, draft),
        confidence=choice.confidence,
        gpu_staging=_gpu_staging(facts),
        gpu_layers=assign_layers(facts, draft),
    )


def _gpu_staging(facts: Facts) -> tuple[StagingBuffer, ...]:
    """Give each GPU's own node for its staging buffers: one that is far from its buffers copied at a third of
    the speed on one box (pub-gearshifft-82), and one node for all GPUs halves the others (pub-1cat-678).
    """
    usable = {budget.node_id for budget in facts.budgets}
    return tuple(
        StagingBuffer(gpu.pci_address, home if home in usable else None) for gpu, home in facts.gpu_homes
    )


def _candidate(item: Weighed, choice: Choice | None) -> Candidate:
    draft = item.draft
    vetoes = choice.reasons if choice is not None and item is not choice.weighed else ()
    codes = [reason.code for reason in item.objections]
    codes += [r.code for r in vetoes if r.effect is Effect.REJECTS and r.policy is draft.policy]
    return Candidate(
        policy=draft.policy,
        node_ids=draft.node_ids,
        slice_count=len(draft.arena_slices),
        worker_count=draft.worker_count,
        estimate=item.estimate,
        objection_codes=tuple(codes),
        is_chosen=choice is not None and item is choice.weighed,
    )


def _cache_is_in_the_way(facts: Facts, draft: Draft) -> bool:
    """Whether a node's free memory alone, without cache the kernel would first have to drop, is too little.

    Pages go to another node before the kernel reclaims cache on the wanted one (seed 3413: below the 95 %
    line).
    """
    if facts.request.arena.size_bytes == 0:
        return False
    parts = dict(draft.arena_bytes)
    budgets = [budget for budget in facts.budgets_of(draft.node_ids) if budget.free_bytes is not None]
    needs = [
        (needed_bytes(facts, budget, parts[budget.node_id]), budget.free_bytes or 0) for budget in budgets
    ]
    if draft.policy is Policy.OFF:
        return sum(needed for needed, _ in needs) > sum(free for _, free in needs)
    return any(needed > free for needed, free in needs)
