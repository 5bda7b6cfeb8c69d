"""Judges the planner on the measured arms: choice in class, ranking, and how far predicted ratios are off."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from planner import Plan, Policy, make_plan
from tests.support.arm_cases import Case
from tests.support.arms import (
    Prediction,
    calibration_of,
    predictions,
    request_of,
    topology_of_case,
)

# The bar of the issue: the predicted top is the measured best, or measured within this of it.
NEAR_SHARE = 0.03
# Predictions nearer than this are one prediction: no input of the model is known so well.
TIED_SHARE = 0.005
CLASSES: dict[str, frozenset[Policy]] = {
    "split": frozenset({Policy.SPLIT}),
    "interleave": frozenset({Policy.INTERLEAVE}),
    "single-socket": frozenset({Policy.SINGLE_SOCKET}),
    "not-single-socket": frozenset(Policy) - {Policy.SINGLE_SOCKET},
    "not-interleave": frozenset(Policy) - {Policy.INTERLEAVE},
    "local-placement": frozenset({Policy.SPLIT, Policy.SINGLE_SOCKET}),
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """One case with the plan for it and the prediction of each arm."""

    case: Case
    plan: Plan
    predictions: tuple[Prediction, ...]

    @property
    def is_choice_right(self) -> bool:
        return self.plan.policy in CLASSES.get(self.case.winner_class, frozenset())

    @property
    def measured_best(self) -> Prediction:
        return max(self.predictions, key=lambda item: item.arm.value)

    @property
    def is_ranking_right(self) -> bool:
        """Arms the model cannot tell apart count by their median, or as right when all of them beat the rest."""
        fastest = min(item.seconds for item in self.predictions)
        tied = [item for item in self.predictions if item.seconds <= fastest * (1 + TIED_SHARE)]
        rest = [item for item in self.predictions if item not in tied]
        values = [item.arm.value for item in tied]
        near = statistics.median(values) >= (1 - NEAR_SHARE) * self.measured_best.arm.value
        beats = bool(rest) and min(values) > max(item.arm.value for item in rest)
        return near or beats

    @property
    def ordered_pairs(self) -> tuple[int, int]:
        """Pairs of arms that differ by more than the bar in measurement: predicted in that order, and all."""
        right = total = 0
        for first, second in itertools.combinations(self.predictions, 2):
            if abs(first.arm.value / second.arm.value - 1) <= NEAR_SHARE:
                continue
            total += 1
            right += (first.arm.value > second.arm.value) == (first.seconds < second.seconds)
        return right, total

    @property
    def ratio_errors(self) -> tuple[float, ...]:
        """How far each arm's predicted ratio to the measured best is off, as a share of the measured one."""
        best = self.measured_best
        return tuple(
            abs((item.seconds / best.seconds) / (best.arm.value / item.arm.value) - 1)
            for item in self.predictions
            if item is not best
        )

    @property
    def runner_up(self) -> Prediction:
        """The best arm of another kind than the best, else the next arm."""
        others = [item for item in self.predictions if item is not self.measured_best]
        of_other_kind = [item for item in others if item.arm.kind != self.measured_best.arm.kind]
        return max(of_other_kind or others, key=lambda item: item.arm.value)


def judged(case: Case) -> Judgement:
    topology = topology_of_case(case)
    plan = make_plan(topology, request_of(case), calibration_of(case, topology))
    return Judgement(case, plan, predictions(case))


def judgements(cases: Iterable[Case]) -> tuple[Judgement, ...]:
    return tuple(judged(case) for case in cases)


def scores(items: Iterable[Judgement]) -> dict[str, str]:
    """Give the scores as words: choices, rankings, pairs and the median error of a ratio."""
    found = list(items)
    choices = [item for item in found if item.case.is_choice]
    ranked = [item for item in found if item.case.undecidable is None]
    pairs = [item.ordered_pairs for item in ranked]
    errors = [error for item in ranked for error in item.ratio_errors]
    return {
        "choice": f"{sum(item.is_choice_right for item in choices)} of {len(choices)}",
        "ranking": f"{sum(item.is_ranking_right for item in ranked)} of {len(ranked)}",
        "pairs": f"{sum(right for right, _ in pairs)} of {sum(total for _, total in pairs)}",
        "median error": f"{statistics.median(errors):.0%}",
    }


def table(items: Iterable[Judgement]) -> str:
    """Give the validation table in Markdown."""
    lines = [
        "| case | chosen | winner | predicted | measured | confidence | pairs | choice | ranking |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for item in items:
        case, best, other = item.case, item.measured_best, item.runner_up
        right, total = item.ordered_pairs
        lines.append(
            f"| {case.case_id} | {item.plan.policy} | {case.winner_class} "
            f"| {other.seconds / best.seconds:.2f} | {best.arm.value / other.arm.value:.2f} "
            f"| {item.plan.confidence} | {right}/{total} | {choice_word(item)} | {ranking_word(item)} |"
        )
    return "\n".join(lines)


def choice_word(item: Judgement) -> str:
    return "-" if not item.case.is_choice else "right" if item.is_choice_right else "**wrong**"


def ranking_word(item: Judgement) -> str:
    if item.case.undecidable:
        return "undecidable"
    return "right" if item.is_ranking_right else "**wrong**"
