"""What a tuning says to people and to the planner: decisions in words, failures, notes, and a document without gaps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from planner import Calibration, Confidence, Objective, Policy, make_plan, tuning_from_json
from stratad.state.recorded import Circumstances
from stratad.tune import (
    Decision,
    Judge,
    Limits,
    Outcome,
    PlannedArm,
    Question,
    Trial,
    default_arms,
    tune_document,
)
from stratad.tune.report import decision_text, failures, report_lines
from tests.support.machines import MachineShape, even_nodes, machine_topology
from tests.support.planning import request_for
from tests.unit.test_tune_judge import SyntheticEngine

TOPOLOGY = machine_topology(MachineShape(even_nodes(2, 12, threads_per_core=2, total_gib=64)))
REQUEST = request_for(20)
CHOSEN = make_plan(TOPOLOGY, REQUEST)
ARMS: tuple[PlannedArm, ...] = default_arms(TOPOLOGY, REQUEST, CHOSEN)
QUESTION = Question("model.gguf", Objective.DECODE, 2, 96, "drop", ARMS[0].name)
MOMENT = Circumstances(CHOSEN.machine_fingerprint, "6.1.0", False, "2026-01-02T03:04:05+00:00", "0")


def outcome_of(*speeds: float, noise: float = 0.002, blocks: int = 6, broken: str | None = None) -> Outcome:
    names = [arm.name for arm in ARMS[: len(speeds)]]
    engine = SyntheticEngine(dict(zip(names, speeds, strict=True)), noise=noise)
    engine.failing = lambda arm, start: arm == broken
    judge = Judge(names, names[0], Objective.DECODE, Limits(1e9, blocks))
    return judge.run(engine, lambda: engine.clock_seconds, lambda what, fraction: None)


def test_the_planner_follows_what_the_judge_writes() -> None:
    outcome = outcome_of(40.0, 50.0, 30.0)
    text = json.dumps(tune_document(MOMENT, QUESTION, ARMS, outcome), allow_nan=False)
    tuning = tuning_from_json(text)
    assert tuning.verdict is not None
    # The leader against the default, not against the third.
    assert (tuning.verdict.best, tuning.verdict.second) == (1, 0)
    plan = make_plan(TOPOLOGY, REQUEST, Calibration(None, tuning))
    assert plan.decides_as(ARMS[1].plan)
    assert plan.confidence is Confidence.PROVEN
    assert not CHOSEN.decides_as(plan)


def test_a_tie_leaves_the_planner_its_choice() -> None:
    outcome = outcome_of(50.0, 50.0)
    assert outcome.decision is Decision.TIE
    tuning = tuning_from_json(json.dumps(tune_document(MOMENT, QUESTION, ARMS, outcome)))
    plan = make_plan(TOPOLOGY, REQUEST, Calibration(None, tuning))
    assert plan.decides_as(CHOSEN)
    assert "tuned-tie" in {reason.code for reason in plan.reasons}


def test_one_block_has_no_interval_and_the_document_no_infinity() -> None:
    outcome = outcome_of(50.0, 60.0, blocks=1)
    document = tune_document(MOMENT, QUESTION, ARMS, outcome)
    assert document["verdict"] is None
    json.dumps(document, allow_nan=False)
    assert "no interval" in "\n".join(report_lines(outcome, ARMS[0].name, Objective.DECODE))


def test_an_arm_that_failed_is_named_and_is_no_result() -> None:
    broken = ARMS[1].name
    outcome = outcome_of(50.0, 60.0, 30.0, broken=broken)
    document = tune_document(MOMENT, QUESTION, ARMS, outcome)
    results = document["results"]
    assert isinstance(results, list)
    assert len(results) == 2
    assert failures(outcome.records) == [f"{broken}: it broke"]
    assert any(
        f"{broken}: failed: it broke" in line
        for line in report_lines(outcome, ARMS[0].name, Objective.DECODE)
    )


@pytest.mark.parametrize(
    ("speeds", "noise", "words"),
    [
        ((40.0, 50.0), 0.002, "is faster than"),
        ((50.0, 50.0), 0.002, "equal within 3%"),
        ((50.0, 51.0), 0.2, "not told apart yet"),
    ],
)
def test_every_decision_has_its_sentence(speeds: tuple[float, ...], noise: float, words: str) -> None:
    outcome = outcome_of(*speeds, noise=noise)
    text = decision_text(outcome, ARMS[0].name)
    assert words in text
    assert "the default" in text


def test_what_weakens_a_comparison_is_noted() -> None:
    outcome = outcome_of(40.0, 50.0)
    record = outcome.records[0]
    short = Trial(40.0, 400.0, None, "other", cached_tokens=7, decode_steps=5)
    weak = replace(outcome, records=(replace(record, blocks={0: (short, short)}), *outcome.records[1:]))
    text = "\n".join(report_lines(weak, ARMS[0].name, Objective.DECODE))
    assert "answers differ" in text
    assert "14 prompt tokens were reused" in text
    assert "5 steps only" in text
    assert "note" not in "\n".join(report_lines(outcome, ARMS[0].name, Objective.DECODE))


def test_policies_are_named_by_their_plan() -> None:
    outcome = outcome_of(40.0, 50.0)
    results = tune_document(MOMENT, QUESTION, ARMS, outcome)["results"]
    assert isinstance(results, list)
    assert [Policy(result["policy"]) for result in results] == [arm.plan.policy for arm in ARMS[:2]]
