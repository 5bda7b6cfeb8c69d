"""`stratactl tune`: policies judged end to end, by real starts of the engine on the user's model and prompts.

The only measurement that overrules a choice of the planner's (ADR 0012, ADR 0018).
"""

from __future__ import annotations

from stratad.tune.arms import Arm, PlannedArm, default_arms, parse_arms, plan_arm, reference_of
from stratad.tune.document import Question, tune_document
from stratad.tune.judge import Decision, Judge, Limits, Outcome, Record, block_order
from stratad.tune.statistics import RatioInterval, ratio_interval
from stratad.tune.trial import ArmFailed, Trial, TrialEngine

__all__ = [
    "Arm",
    "ArmFailed",
    "Decision",
    "Judge",
    "Limits",
    "Outcome",
    "PlannedArm",
    "Question",
    "RatioInterval",
    "Record",
    "Trial",
    "TrialEngine",
    "block_order",
    "default_arms",
    "parse_arms",
    "plan_arm",
    "ratio_interval",
    "reference_of",
    "tune_document",
]
