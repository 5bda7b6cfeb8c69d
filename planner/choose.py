"""Chooses among weighed candidates. A measurement end to end decides; else rules carry the choice, and the
cost model may only veto a gain it does not see.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.candidates import Draft
from planner.cost import CostConstants
from planner.facts import Facts
from planner.plan import Confidence, Estimate
from planner.rates import MachineRates
from planner.reason import Effect, Reason
from planner.request import Objective, PlanRequest, Policy
from planner.rules import node_phrase
from planner.tuned import Evidence, matches, tuned_reason

if TYPE_CHECKING:
    from planner.calibration import Tuning

# The model is too kind to unsliced work over several packages: pub-llamafile-765 was predicted faster there and
# measured half as fast. Such a choice is doubted by half of its size whatever the rates rest on.
UNSLICED_DOUBT = 0.50


@dataclass(frozen=True, slots=True)
class Weighed:
    """A draft with its estimate and what speaks against it."""

    draft: Draft
    estimate: Estimate | None
    objections: tuple[Reason, ...]

    @property
    def is_feasible(self) -> bool:
        """Whether no hard rule refuses it."""
        return not self.objections


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen candidate, the reasons for it in the order they were decided, and how sure it is.

    `likely` is said where facts leave no other candidate or the estimated difference exceeds what the rates
    may be off; everything else that rests on the model is `estimated`.
    """

    weighed: Weighed
    reasons: tuple[Reason, ...]
    confidence: Confidence = Confidence.LIKELY


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a comparison rests on: the machine's rates, the model's constants, and recorded evidence."""

    rates: MachineRates
    constants: CostConstants
    evidence: Evidence
    tuning: Tuning | None = None


def choose(facts: Facts, weighed: tuple[Weighed, ...], grounds: Grounds) -> Choice | None:
    """Give the best feasible candidate, or None when the wanted ones are all refused."""
    request = facts.request
    if request.requested_policy is not None:
        return _requested(facts, _as_asked(weighed, request), request.requested_policy)
    if request.arena.size_bytes == 0:
        return _only(weighed, Policy.OFF, _no_experts())
    tuned = _tuned(weighed, grounds)
    if is_single_node_machine(facts):
        reason = single_node_machine(facts, Effect.CHOOSES)
        # Worker counts are compared there.
        return _only(weighed, Policy.OFF, reason) if tuned is None else _also(tuned, reason)
    if tuned is not None:
        return tuned
    single = best_single_socket(facts, weighed)
    settled = None if single is None else _settled_on_one_socket(facts, single)
    return settled or _most_local(facts, weighed, single, grounds)


def _tuned(weighed: tuple[Weighed, ...], grounds: Grounds) -> Choice | None:
    winner = grounds.evidence.winner
    if winner is None or grounds.tuning is None:
        return None
    found = [item for item in weighed if item.is_feasible and matches(winner, item.draft)]
    if not found:
        return None
    return Choice(found[0], (tuned_reason(winner, grounds.tuning),), Confidence.PROVEN)


def _also(choice: Choice, reason: Reason) -> Choice:
    return replace(choice, reasons=(reason, *choice.reasons))


def _settled_on_one_socket(facts: Facts, single: Weighed) -> Choice | None:
    """Give one socket when a fact alone decides for it, without comparing anything."""
    if facts.request.cpu_share == 0:
        return Choice(single, (_all_in_vram(facts),))
    if len(facts.slice_budgets) < 2:
        return Choice(single, (one_node_cpuset(facts, Effect.CHOOSES),))
    if facts.request.objective is Objective.PROMPT and _is_at_gpu(facts, single.draft):
        return Choice(single, (_prompt_at_gpu(single.draft),))
    return None


def best_single_socket(facts: Facts, weighed: tuple[Weighed, ...]) -> Weighed | None:
    """Give the feasible single-socket candidate with most workers; on ties the GPU's, then the first."""
    feasible = [item for item in weighed if item.draft.policy is Policy.SINGLE_SOCKET and item.is_feasible]
    return min(
        feasible,
        key=lambda item: (-item.draft.worker_count, not _is_at_gpu(facts, item.draft), item.draft.node_ids),
        default=None,
    )


def is_single_node_machine(facts: Facts) -> bool:
    """Whether the hardware has one node with CPUs and memory, whatever the cpuset says."""
    return len(facts.slice_budgets) < 2 and facts.hardware_node_count < 2


def _most_local(
    facts: Facts, weighed: tuple[Weighed, ...], single: Weighed | None, grounds: Grounds
) -> Choice | None:
    split = best_split(weighed, grounds.constants)
    interleave = _feasible(weighed, Policy.INTERLEAVE)
    safe = single or interleave or _feasible(weighed, Policy.OFF)
    if safe is None:
        return None if split is None else Choice(split, (_most_local_reason(split.draft),))
    margin = grounds.constants.needed_gain * (2 if facts.request.objective is Objective.BALANCED else 1)
    bold = split if split is not None else interleave
    if bold is None or bold is safe:
        reasons = (_most_local_reason(safe.draft), *_tie_reasons(facts, weighed, safe))
        return Choice(safe, reasons, _uncompared_confidence(weighed, safe))
    if split is not None and single is None:
        # Nothing sliced and nothing confined competes: the split reads the same bytes locally.
        return Choice(split, (_most_local_reason(split.draft),), _uncompared_confidence(weighed, split))
    return _compared(facts, weighed, Contest(bold, safe, margin), grounds)


def _uncompared_confidence(weighed: tuple[Weighed, ...], chosen: Weighed) -> Confidence:
    """Give `likely` where rules alone chose, unless the model sees another feasible candidate ahead."""
    others = (
        gain
        for item in weighed
        if item.is_feasible and item is not chosen and (gain := _gain(item, chosen)) is not None
    )
    return Confidence.ESTIMATED if any(gain > 0 for gain in others) else Confidence.LIKELY


def best_split(weighed: tuple[Weighed, ...], constants: CostConstants) -> Weighed | None:
    """Give the feasible split: by node, by package where only that fits or is estimated to gain enough."""
    feasible = [item for item in weighed if item.draft.policy is Policy.SPLIT and item.is_feasible]
    if not feasible:
        return None
    by_node = max(feasible, key=lambda item: len(item.draft.arena_slices))
    for item in feasible:
        gain = _gain(item, by_node)
        if gain is not None and gain > constants.needed_gain:
            return item
    return by_node


@dataclass(frozen=True, slots=True)
class Contest:
    """A bolder candidate against the safe one, and the relative gain it must show."""

    bold: Weighed
    safe: Weighed
    needed: float


def _compared(facts: Facts, weighed: tuple[Weighed, ...], contest: Contest, grounds: Grounds) -> Choice:
    """Give the bolder candidate when its estimated gain over the safe one exceeds what is needed."""
    bold, safe, needed = contest.bold, contest.safe, contest.needed
    gain = _gain(bold, safe)
    uncertainty = grounds.rates.uncertainty
    evidence: dict[str, str | float | None] = {
        "policy": bold.draft.policy.value,
        "over": safe.draft.policy.value,
        "gain": None if gain is None else round(gain, 4),
        "needed_gain": needed,
        "uncertainty": uncertainty,
        "rates": grounds.rates.basis,
    }
    confidence = _confidence(contest, gain, grounds)
    close = None
    if gain is not None and abs(gain) <= needed:
        message = f"{bold.draft.policy} and {safe.draft.policy} are closer than the model can tell apart"
        close = Reason("close-call", Effect.INFORMS, message, evidence, _MEASURE)
    if gain is None or gain > needed:
        message = f"{_estimated(bold)}, {_estimated(safe)}"
        note = Reason("estimated-gain", Effect.INFORMS, message, evidence, _MEASURE, bold.draft.policy)
        return Choice(bold, (_most_local_reason(bold.draft), note), confidence)
    message = f"{_estimated(bold)}, {_estimated(safe)}: a gain of more than {needed:.0%} is needed"
    veto = Reason("estimated-no-gain", Effect.REJECTS, message, evidence, _MEASURE, bold.draft.policy)
    reasons = [_most_local_reason(safe.draft), *_tie_reasons(facts, weighed, safe), veto]
    return Choice(safe, (*reasons, *(() if close is None else (close,))), confidence)


def _confidence(contest: Contest, gain: float | None, grounds: Grounds) -> Confidence:
    """Give the label of a comparison: its distance from the decision against what the rates may be off.

    Unsliced work over several packages is what the model knows least of, so half of its own size is doubted.
    """
    if gain is None:
        return Confidence.ESTIMATED
    doubt = grounds.rates.uncertainty
    if contest.bold.draft.policy is not Policy.SPLIT:
        doubt = max(doubt, UNSLICED_DOUBT)
    if abs(gain - contest.needed) <= doubt:
        return Confidence.ESTIMATED
    return Confidence.MEASURED if grounds.rates.is_measured else Confidence.LIKELY


_MEASURE = "run `stratactl tune` on this machine to settle it"


def _estimated(item: Weighed) -> str:
    if item.estimate is None:
        return f"{item.draft.policy} has no estimate"
    return f"{item.draft.policy} is estimated at {item.estimate.step_seconds * 1000:.1f} ms a token"


def _gain(bold: Weighed, safe: Weighed) -> float | None:
    if bold.estimate is None or safe.estimate is None or bold.estimate.step_seconds <= 0:
        return None
    return safe.estimate.step_seconds / bold.estimate.step_seconds - 1


def _feasible(weighed: tuple[Weighed, ...], policy: Policy) -> Weighed | None:
    return next((item for item in weighed if item.draft.policy is policy and item.is_feasible), None)


def _only(weighed: tuple[Weighed, ...], policy: Policy, reason: Reason) -> Choice | None:
    found = _feasible(weighed, policy)
    return None if found is None else Choice(found, (reason,))


def _as_asked(weighed: tuple[Weighed, ...], request: PlanRequest) -> tuple[Weighed, ...]:
    """Give the candidates on the nodes and with the slices asked for, where somebody did."""
    return tuple(
        item
        for item in weighed
        if request.requested_node_ids in (None, item.draft.node_ids)
        and request.requested_slice_count in (None, len(item.draft.arena_slices))
    )


def _requested(facts: Facts, weighed: tuple[Weighed, ...], policy: Policy) -> Choice | None:
    found = (
        best_single_socket(facts, weighed) if policy is Policy.SINGLE_SOCKET else _feasible(weighed, policy)
    )
    # What the operator asked for is done, not judged.
    if found is None:
        return None
    reasons = [Reason("policy-requested", Effect.CHOOSES, f"policy {policy} was asked for", {}, None, policy)]
    if facts.request.arena.size_bytes == 0:
        reasons.append(_no_experts(Effect.INFORMS))
    return Choice(found, tuple(reasons), Confidence.ESTIMATED)


def _tie_reasons(facts: Facts, weighed: tuple[Weighed, ...], chosen: Weighed) -> tuple[Reason, ...]:
    """Name the GPU when it decided between equal sockets."""
    equals = [
        item
        for item in weighed
        if item.draft.policy is Policy.SINGLE_SOCKET
        and item.is_feasible
        and item.draft.worker_count == chosen.draft.worker_count
    ]
    if (
        chosen.draft.policy is not Policy.SINGLE_SOCKET
        or len(equals) < 2
        or not _is_at_gpu(facts, chosen.draft)
    ):
        return ()
    message = f"sockets are equal; {node_phrase(chosen.draft.node_ids)} is the GPU's"
    return (Reason("gpu-node-preferred", Effect.CHOOSES, message, {"nodes": chosen.draft.node_ids}),)


def _is_at_gpu(facts: Facts, draft: Draft) -> bool:
    return any(node_id in facts.gpu_node_ids for node_id in draft.node_ids)


def _most_local_reason(draft: Draft) -> Reason:
    messages = {
        Policy.SPLIT: "every node holds a slice with headroom and has workers to read it locally",
        Policy.SINGLE_SOCKET: f"the arena fits {node_phrase(draft.node_ids)} with headroom",
        Policy.INTERLEAVE: "no node set can hold the arena locally, so pages are spread evenly",
        Policy.OFF: "nothing can be placed, so the kernel places pages by first touch",
    }
    evidence = {"nodes": draft.node_ids}
    return Reason("most-local-feasible", Effect.CHOOSES, messages[draft.policy], evidence, None, draft.policy)


def _no_experts(effect: Effect = Effect.CHOOSES) -> Reason:
    return Reason(
        "no-experts", effect, "the model keeps no experts in host memory, so there is nothing to place"
    )


def _all_in_vram(facts: Facts) -> Reason:
    return Reason(
        "all-experts-in-vram",
        Effect.CHOOSES,
        "all experts are computed in VRAM, so the pool keeps to one socket with the fewest workers",
        {"cpu_share": facts.request.cpu_share},
        "set the CPU share if experts do run on the CPU",
    )


def _prompt_at_gpu(draft: Draft) -> Reason:
    message = f"prompts are favoured and the GPU reads {node_phrase(draft.node_ids)} over its own link"
    return Reason("prompt-at-gpu", Effect.CHOOSES, message, {"nodes": draft.node_ids}, None, draft.policy)


def single_node_machine(facts: Facts, effect: Effect) -> Reason:
    """Say that the hardware has one node, as a choice of `off` or a refusal of what needs several."""
    node_ids = tuple(budget.node_id for budget in facts.slice_budgets)
    package_count = len(facts.topology.packages)
    # NPS0 and the like: the firmware spreads pages over the sockets, and no policy can undo that.
    shown = f" over {package_count} packages, whose memory the firmware joins" if package_count > 1 else ""
    message = f"the machine has one NUMA node{shown}, so there is nothing to choose"
    return Reason("single-node-machine", effect, message, {"nodes": node_ids, "packages": package_count})


def one_node_cpuset(facts: Facts, effect: Effect) -> Reason:
    """Say that the cpuset leaves one node, as a choice of that node or a refusal of what needs several."""
    node_ids = tuple(budget.node_id for budget in facts.slice_budgets)
    message = (
        f"of {facts.hardware_node_count} nodes only {node_phrase(node_ids)} has both CPUs and memory "
        "this process may use"
    )
    remedy = "widen AllowedCPUs= and AllowedMemoryNodes= if the whole machine is meant"
    return Reason("one-node-cpuset", effect, message, {"nodes": node_ids}, remedy)
