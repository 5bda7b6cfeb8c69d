"""Which candidate an end-to-end measurement chose, if a recorded one applies here and decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.facts import Facts
from planner.fingerprint import machine_fingerprint
from planner.quantity import count_of
from planner.reason import Effect, Reason

if TYPE_CHECKING:
    from planner.calibration import Benchmark, Calibration, TuneResult, TuneVerdict, Tuning
    from planner.candidates import Draft
    from planner.topology import Topology

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
    if benchmark is not None:
        ignored = bench_ignored(benchmark, facts.topology)
        if ignored is not None:
            reasons.append(ignored)
            benchmark = None
        elif benchmark.batches is not None:
            # Where nothing was measured, nothing is imported for it.
            from planner.batch_limits import recorded_limits

            reasons.append(recorded_limits(benchmark, benchmark.batches))
    winner = None
    if calibration.tuning is not None:
        found = _why_ignored(facts, calibration.tuning, fingerprint) or winner_of(calibration.tuning)
        if isinstance(found, Reason):
            reasons.append(found)
        else:
            winner = found
    return Evidence(benchmark, winner, tuple(reasons))


def winner_of(tuning: Tuning) -> TuneResult | Reason:
    """Give the best result that counts, or the reason why none stands out.

    Where the judge recorded its verdict, pairs of starts decide. Else a winner's slowest start beats the
    runner-up's fastest: seed 3708 saw one pool at 26.6 to 58.6 tokens a second over its starts, so medians alone
    prove nothing.
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
    if tuning.verdict is not None:
        return _judged(tuning, tuning.verdict)
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


def _judged(tuning: Tuning, verdict: TuneVerdict) -> TuneResult | Reason:
    best, second = tuning.results[verdict.best], tuning.results[verdict.second]
    if best.counts and second.counts and verdict.is_decided:
        return best
    why = (
        f"the first is {_interval(verdict)} as fast"
        if best.counts and second.counts
        else "one of them had too few starts, or pages in the wrong place"
    )
    return Reason(
        "tuned-tie",
        Effect.INFORMS,
        f"measured {_shown(best)} and {_shown(second)}: {why}, so they decide nothing",
        {"best": best.policy.value, "second": second.policy.value, **_interval_evidence(verdict)},
        "measure more starts, or take the default",
    )


def _interval(verdict: TuneVerdict) -> str:
    return f"{verdict.ratio_low:.3f} to {verdict.ratio_high:.3f} times"


def _interval_evidence(verdict: TuneVerdict) -> dict[str, float | int]:
    return {
        "ratio_low": verdict.ratio_low,
        "ratio_high": verdict.ratio_high,
        "blocks": verdict.block_count,
    }


def tuned_reason(winner: TuneResult, tuning: Tuning) -> Reason:
    """Give the reason for following a measured winner, with what it beat."""
    verdict = tuning.verdict
    others = [result for result in tuning.results if result.counts and result is not winner]
    if verdict is None:
        second = max(others, key=lambda result: result.median_tokens_per_second)
        how = ""
    else:
        second = tuning.results[verdict.second]
        how = f": {_interval(verdict)} as fast, from {verdict.block_count} mirrored blocks of starts"
    return Reason(
        "tuned-winner",
        Effect.CHOOSES,
        f"measured end to end: {_shown(winner)}, next {_shown(second)}{how}",
        {
            "tokens_per_second": winner.median_tokens_per_second,
            "next_tokens_per_second": second.median_tokens_per_second,
            "next_policy": second.policy.value,
            "starts": len(winner.tokens_per_second),
            **({} if verdict is None else _interval_evidence(verdict)),
        },
        None,
        winner.policy,
    )


def _shown(result: TuneResult) -> str:
    low, high = min(result.tokens_per_second), max(result.tokens_per_second)
    workers = count_of(result.worker_count, "worker")
    speed = f"{result.median_tokens_per_second:.1f} tok/s ({low:.1f} to {high:.1f})"
    return f"{result.policy} with {workers} at {speed}"


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


def bench_ignored(benchmark: Benchmark, topology: Topology) -> Reason | None:
    """Give the reason to leave a benchmark out: another machine's, or measured under another kernel.

    A kernel's scheduler, NUMA balancing and mitigations move every one of these numbers. Where either side does
    not name its kernel, nothing is compared.
    """
    recorded, kernel_release = benchmark.kernel_release, topology.kernel_release
    fingerprint = machine_fingerprint(topology)
    if benchmark.machine_fingerprint != fingerprint:
        what = f"of machine {benchmark.machine_fingerprint}, this one is {fingerprint}"
    elif recorded is not None and kernel_release is not None and recorded != kernel_release:
        what = f"of kernel {recorded}, this machine runs {kernel_release}"
    else:
        return None
    evidence = {
        "machine_fingerprint": benchmark.machine_fingerprint,
        "kernel_release": recorded,
        "measured_at": benchmark.measured_at,
    }
    return Reason(
        "bench-ignored",
        Effect.INFORMS,
        f"the benchmark is {what}",
        {name: value for name, value in evidence.items() if value is not None},
        "run `stratactl bench` on this machine",
    )


def matches(winner: TuneResult, draft: Draft) -> bool:
    """Say whether a candidate is the one that was measured."""
    return (
        winner.policy is draft.policy
        and winner.node_ids in ((), draft.node_ids)
        and winner.slice_count in (None, len(draft.arena_slices))
    )
