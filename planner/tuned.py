"""Which candidate an end-to-end measurement chose, if a recorded one applies here and decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.facts import Facts
from planner.fingerprint import machine_fingerprint
from planner.reason import Effect, Reason
from planner.request import Policy

if TYPE_CHECKING:
    from planner.calibration import Benchmark, Calibration, TuneResult, Tuning

# The same model at another quantisation or offload is another question; file rounding is not.
SAME_ARENA_SHARE = 0.02
AGAIN = "run `stratactl tune` again for this machine and model"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What of the recorded measurements applies: a benchmark, an end-to-end winner, and what to say about
    them.
    """

    benchmark: Benchmark | None
    winner: TuneResult | None
    reasons: tuple[Reason, ...]


def evidence_for(facts: Facts, calibration: Calibration | None) -> Evidence:
    """Give what of a calibration was measured on this machine, for this model and objective."""
    if calibration is None:
        return Evidence(None, None, ())
    reasons: list[Reason] = []
    fingerprint = machine_fingerprint(facts.topology)
    benchmark = calibration.benchmark
    if benchmark is not None and benchmark.machine_fingerprint != fingerprint:
        reasons.append(_bench_ignored(benchmark.machine_fingerprint, fingerprint))
        benchmark = None
    winner = None
    if calibration.tuning is not None:
        ignored = _why_ignored(facts, calibration.tuning, fingerprint)
        found = ignored or winner_of(calibration.tuning)
        if isinstance(found, Reason):
            reasons.append(found)
        else:
            winner = found
    return Evidence(benchmark, winner, tuple(reasons))


def winner_of(tuning: Tuning) -> TuneResult | Reason:
    """Give the best result that counts, or the reason why none stands out.

    A winner's slowest start beats the runner-up's fastest: seed 3708 saw one pool at 26.6 to 58.6 tokens a
    second over its starts, so medians alone prove nothing.
    """
    counting = sorted(
        (result for result in tuning.results if result.counts),
        key=lambda result: (-result.median_tokens_per_second, result.policy, result.node_ids),
    )
    if len(counting) < 2:
        starts = [len(result.tokens_per_second) for result in tuning.results]
        return Reason(
            "tuning-ignored",
            Effect.INFORMS,
            "fewer than two policies were measured with three or more verified starts",
            {"starts": tuple(starts)},
            AGAIN,
        )
    best, second = counting[0], counting[1]
    if min(best.tokens_per_second) > max(second.tokens_per_second):
        return best
    return Reason(
        "tuned-tie",
        Effect.INFORMS,
        f"measured {_shown(best)} and {_shown(second)}: their starts overlap, so they decide nothing",
        {"best": best.policy.value, "second": second.policy.value},
        "measure more starts, or take the default",
    )


def tuned_reason(winner: TuneResult, tuning: Tuning) -> Reason:
    """Give the reason for following a measured winner, with what it beat."""
    others = [result for result in tuning.results if result.counts and result is not winner]
    second = max(others, key=lambda result: result.median_tokens_per_second)
    return Reason(
        "tuned-winner",
        Effect.CHOOSES,
        f"measured end to end: {_shown(winner)}, next {_shown(second)}",
        {
            "tokens_per_second": winner.median_tokens_per_second,
            "next_tokens_per_second": second.median_tokens_per_second,
            "next_policy": second.policy.value,
            "starts": len(winner.tokens_per_second),
        },
        None,
        winner.policy,
    )


def _shown(result: TuneResult) -> str:
    low, high = min(result.tokens_per_second), max(result.tokens_per_second)
    return f"{result.policy} at {result.median_tokens_per_second:.1f} tok/s ({low:.1f} to {high:.1f})"


def _why_ignored(facts: Facts, tuning: Tuning, fingerprint: str) -> Reason | None:
    request = facts.request
    differs = abs(tuning.arena_bytes - request.arena.size_bytes)
    if tuning.machine_fingerprint != fingerprint:
        what = f"of machine {tuning.machine_fingerprint}, this one is {fingerprint}"
    elif differs > SAME_ARENA_SHARE * request.arena.size_bytes:
        what = f"for an arena of {tuning.arena_bytes} bytes, this one has {request.arena.size_bytes}"
    elif tuning.objective is not request.objective:
        what = f"for the objective {tuning.objective}, the plan favours {request.objective}"
    else:
        return None
    evidence = {
        "arena_bytes": tuning.arena_bytes,
        "objective": tuning.objective.value,
        "machine_fingerprint": tuning.machine_fingerprint,
    }
    return Reason("tuning-ignored", Effect.INFORMS, f"end-to-end results are {what}", evidence, AGAIN)


def _bench_ignored(recorded: str, fingerprint: str) -> Reason:
    return Reason(
        "bench-ignored",
        Effect.INFORMS,
        f"the benchmark is of machine {recorded}, this one is {fingerprint}",
        {"machine_fingerprint": recorded},
        "run `stratactl bench` on this machine",
    )


def matches(winner: TuneResult, policy: Policy, node_ids: tuple[int, ...]) -> bool:
    """Say whether a candidate is the one that was measured."""
    return winner.policy is policy and winner.node_ids in ((), node_ids)
