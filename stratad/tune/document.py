"""tune.json: what the planner honours first, then every trial it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from planner import Objective
from planner.calibration import SCHEMA_VERSION
from stratad.state.recorded import Circumstances
from stratad.tune.arms import PlannedArm
from stratad.tune.judge import Outcome, Record
from stratad.tune.statistics import RatioInterval


@dataclass(frozen=True, slots=True)
class Question:
    """What was compared, for whoever reads the file later."""

    model: str
    objective: Objective
    prompt_count: int
    answer_tokens: int
    page_cache: str
    reference: str


def tune_document(
    circumstances: Circumstances, question: Question, arms: Sequence[PlannedArm], outcome: Outcome
) -> dict[str, object]:
    """Give the document as JSON values. Arms without a whole block stand among the details only."""
    by_name = {arm.name: arm for arm in arms}
    measured = [record for record in outcome.records if record.blocks]
    plan = arms[0].plan
    return {
        "schema_version": SCHEMA_VERSION,
        **asdict(circumstances),
        "arena_bytes": sum(part.size_bytes for part in plan.arena_slices),
        "objective": question.objective.value,
        "results": [_result(by_name[record.arm], record, question.objective) for record in measured],
        "verdict": _verdict(outcome, [record.arm for record in measured]),
        "details": {
            **asdict(question),
            "decision": outcome.decision.value,
            "stopped_because": outcome.stopped_because,
            "blocks": outcome.block_count,
            "answers_agree": outcome.answers_agree,
            "comparisons": {
                arm: {"leader": outcome.leader, **_interval(interval)}
                for arm, interval in outcome.comparisons.items()
            },
            "arms": [
                {
                    "arm": record.arm,
                    "failure": record.failure,
                    "plan_fingerprint": by_name[record.arm].plan.fingerprint,
                    "trials": [
                        {"block": index, **asdict(trial)}
                        for index in sorted(record.blocks)
                        for trial in record.blocks[index]
                    ],
                }
                for record in outcome.records
            ],
        },
    }


def _result(arm: PlannedArm, record: Record, objective: Objective) -> dict[str, object]:
    chosen = next(candidate for candidate in arm.plan.candidates if candidate.is_chosen)
    ratios = [trial.local_ratio for trial in record.trials if trial.local_ratio is not None]
    return {
        "policy": chosen.policy.value,
        "node_ids": list(chosen.node_ids),
        "slice_count": chosen.slice_count,
        "worker_count": len(arm.plan.layout.workers),
        "tokens_per_second": [trial.speed(objective) for trial in record.trials],
        "local_ratio": min(ratios) if ratios else None,
    }


def _verdict(outcome: Outcome, measured: Sequence[str]) -> dict[str, object] | None:
    if outcome.leader is None or outcome.second is None:
        return None
    interval = outcome.comparisons[outcome.second]
    if interval.block_count < 2:
        # One block has no interval; nothing in JSON says infinity.
        return None
    return {
        "best": measured.index(outcome.leader),
        "second": measured.index(outcome.second),
        "ratio_low": interval.low,
        "ratio_high": interval.high,
        "block_count": interval.block_count,
    }


def _interval(interval: RatioInterval) -> dict[str, object]:
    is_known = interval.block_count > 1
    return {
        "ratio": interval.ratio,
        "low": interval.low if is_known else None,
        "high": interval.high if is_known else None,
        "blocks": interval.block_count,
    }
