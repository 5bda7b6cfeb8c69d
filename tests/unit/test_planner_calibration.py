"""Measurements as facts: a benchmark replaces estimates and raises the label, an end-to-end result decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner import (
    Benchmark,
    Calibration,
    CalibrationError,
    Confidence,
    CostConstants,
    Effect,
    Objective,
    Plan,
    Policy,
    SweepPoint,
    TuneResult,
    TuneVerdict,
    Tuning,
    benchmark_from_json,
    machine_fingerprint,
    make_plan,
    tuning_from_json,
)
from planner.calibration import LEAST_BLOCKS, LEAST_STARTS
from planner.rates import MEASURED_UNCERTAINTY, machine_rates, measured_constants
from planner.tuned import winner_of
from tests.support.machines import GIB, GpuShape, MachineShape, even_nodes, machine_topology
from tests.support.planning import codes, gathered, reason_of, request_for

RECORDED = Path(__file__).resolve().parents[1] / "golden" / "calibration"
SHAPE = MachineShape(even_nodes(2, 12, threads_per_core=2, total_gib=64), (GpuShape("0000:3b:00.0", 0),))
TOPOLOGY = machine_topology(SHAPE)


def recorded_benchmark() -> Benchmark:
    return benchmark_from_json((RECORDED / "bench.json").read_text())


def recorded_tuning() -> Tuning:
    return tuning_from_json((RECORDED / "tune.json").read_text())


def plan_with(calibration: Calibration | None, arena_gib: float = 44, **request: object) -> Plan:
    return make_plan(TOPOLOGY, request_for(arena_gib, **request), calibration)


def test_every_recorded_number_replaces_its_default() -> None:
    benchmark = recorded_benchmark()
    assert benchmark.machine_fingerprint == machine_fingerprint(TOPOLOGY)
    rates = machine_rates(gathered(SHAPE.nodes), benchmark)
    assert rates.node_bandwidth == {0: 71e9, 1: 71e9}
    assert (rates.link_bandwidth, rates.core_rate) == (33e9, 6.2e9)
    assert (rates.uncertainty, rates.is_measured) == (MEASURED_UNCERTAINTY, True)
    constants = measured_constants(CostConstants(), benchmark)
    assert (constants.base_seconds, constants.cross_seconds, constants.claim_seconds) == (
        21e-6,
        12e-6,
        0.4e-6,
    )
    assert constants.norm_power == CostConstants().norm_power


def test_a_complete_benchmark_raises_the_label_of_numbers_and_of_a_clear_choice() -> None:
    assumed, measured = plan_with(None), plan_with(Calibration(recorded_benchmark()))
    assert assumed.confidence in (Confidence.ESTIMATED, Confidence.LIKELY)
    assert measured.confidence is Confidence.MEASURED
    for plan, label in ((assumed, Confidence.ESTIMATED), (measured, Confidence.MEASURED)):
        assert {c.estimate.confidence for c in plan.candidates if c.estimate is not None} == {label}
    assert measured.policy is Policy.SPLIT


def test_part_of_a_benchmark_replaces_its_part_and_raises_nothing() -> None:
    part = replace(recorded_benchmark(), bandwidth=())
    rates = machine_rates(gathered(SHAPE.nodes), part)
    assert rates.core_rate == 6.2e9
    assert not rates.is_measured
    assert plan_with(Calibration(part)).confidence is not Confidence.MEASURED


def test_measured_costs_change_a_close_call() -> None:
    """With the default wake-up and crossing costs a small arena stays on one socket; measured ones are lower."""
    assert plan_with(None, 8).policy is Policy.SINGLE_SOCKET
    assert plan_with(Calibration(recorded_benchmark()), 8).policy is Policy.SPLIT


def test_a_sweep_that_flattens_is_said_and_does_not_decide() -> None:
    plan = plan_with(Calibration(recorded_benchmark()))
    note = reason_of(plan, "workers-beyond-knee")
    assert note.effect is Effect.INFORMS
    assert note.evidence == {"workers": 11, "knee": 10}
    assert len(plan.layout.workers) == 22
    rising = replace(recorded_benchmark(), worker_sweep=(SweepPoint(1, 6e9), SweepPoint(11, 6e10)))
    assert "workers-beyond-knee" not in codes(plan_with(Calibration(rising)))


def test_a_measured_winner_beats_the_model_with_its_evidence_shown() -> None:
    calibration = Calibration(recorded_benchmark(), recorded_tuning())
    plan = plan_with(calibration)
    assert (plan.policy, plan.confidence) == (Policy.SINGLE_SOCKET, Confidence.PROVEN)
    assert plan.memory_nodes == (0,)
    assert len(plan.layout.workers) == 10
    reason = reason_of(plan, "tuned-winner")
    assert reason.evidence["tokens_per_second"] == 59.1
    assert reason.evidence["next_tokens_per_second"] == 53.4
    assert "58.8 to 60.2" in reason.message
    assert plan_with(replace(calibration, tuning=None)).policy is Policy.SPLIT


def test_the_operators_policy_still_wins_over_a_measured_one() -> None:
    plan = plan_with(Calibration(None, recorded_tuning()), requested_policy=Policy.SPLIT)
    assert (plan.policy, plan.confidence) == (Policy.SPLIT, Confidence.ESTIMATED)


def test_a_winner_that_no_longer_fits_is_not_followed() -> None:
    plan = plan_with(Calibration(None, recorded_tuning()), allowed_policies=(Policy.SPLIT, Policy.OFF))
    assert plan.policy is Policy.SPLIT
    assert plan.confidence is not Confidence.PROVEN


def change_machine(tuning: Tuning) -> Tuning:
    return replace(tuning, machine_fingerprint="0123456789ab")


def change_arena(tuning: Tuning) -> Tuning:
    return replace(tuning, arena_bytes=45 * GIB)


def change_objective(tuning: Tuning) -> Tuning:
    return replace(tuning, objective=Objective.PROMPT)


def drop_starts(tuning: Tuning) -> Tuning:
    few = LEAST_STARTS - 1
    results = tuple(
        replace(result, tokens_per_second=result.tokens_per_second[:few]) for result in tuning.results
    )
    return replace(tuning, results=results)


def misplace(tuning: Tuning) -> Tuning:
    """Only interleave is left when the placed arms' pages lay elsewhere."""
    results = tuple(replace(result, local_ratio=0.94) for result in tuning.results)
    return replace(tuning, results=results)


@pytest.mark.parametrize("change", [change_machine, change_arena, change_objective, drop_starts, misplace])
def test_results_of_something_else_are_ignored_and_said_so(change: Callable[[Tuning], Tuning]) -> None:
    plan = plan_with(Calibration(None, change(recorded_tuning())))
    assert plan.confidence is not Confidence.PROVEN
    assert reason_of(plan, "tuning-ignored").remedy is not None


def test_starts_that_overlap_decide_nothing() -> None:
    tuning = recorded_tuning()
    wide = replace(tuning.results[0], tokens_per_second=(49.2, 58.7, 60.0))
    tie = winner_of(replace(tuning, results=(wide, *tuning.results[1:])))
    assert not isinstance(tie, TuneResult)
    assert tie.code == "tuned-tie"
    assert winner_of(tuning) == tuning.results[0]


def test_a_benchmark_of_another_machine_is_ignored_and_said_so() -> None:
    other = replace(recorded_benchmark(), machine_fingerprint="0123456789ab")
    plan = plan_with(Calibration(other))
    assert plan.confidence is not Confidence.MEASURED
    assert "bench-ignored" in codes(plan, Effect.INFORMS)


def test_a_benchmark_of_another_kernel_is_ignored_and_said_so() -> None:
    topology = replace(TOPOLOGY, kernel_release="6.12.1")
    benchmark = replace(recorded_benchmark(), kernel_release="6.1.0", measured_at="2026-01-02T03:04:05+00:00")
    plan = make_plan(topology, request_for(44), Calibration(benchmark))
    assert plan.confidence is not Confidence.MEASURED
    reason = reason_of(plan, "bench-ignored")
    assert "of kernel 6.1.0, this machine runs 6.12.1" in reason.message
    assert reason.evidence["measured_at"] == "2026-01-02T03:04:05+00:00"
    same = make_plan(topology, request_for(44), Calibration(replace(benchmark, kernel_release="6.12.1")))
    assert same.confidence is Confidence.MEASURED
    assert any("2026-01-02" in str(reason.evidence.get("rates")) for reason in same.reasons)


@pytest.mark.parametrize(("recorded", "running"), [(None, "6.1.0"), ("6.1.0", None), (None, None)])
def test_a_kernel_that_nobody_noted_is_not_compared(recorded: str | None, running: str | None) -> None:
    topology = replace(TOPOLOGY, kernel_release=running)
    calibration = Calibration(replace(recorded_benchmark(), kernel_release=recorded))
    assert "bench-ignored" not in codes(make_plan(topology, request_for(44), calibration))


def judged(**verdict: Any) -> Tuning:
    """The recorded starts, all overlapping, with a verdict of pairs beside them."""
    tuning = recorded_tuning()
    drifting = tuple(
        replace(result, tokens_per_second=(40.0 + index, 50.0 + index, 60.0 + index))
        for index, result in enumerate(tuning.results)
    )
    pairs = {"best": 1, "second": 0, "ratio_low": 1.01, "ratio_high": 1.04, "block_count": LEAST_BLOCKS}
    return replace(tuning, results=drifting, verdict=TuneVerdict(**(pairs | verdict)))


def test_pairs_of_starts_decide_where_ranges_overlap() -> None:
    """On a machine that drifts every arm's starts overlap, and inside each block the same one leads."""
    plan = plan_with(Calibration(None, judged()))
    assert (plan.policy, plan.confidence) == (Policy.SPLIT, Confidence.PROVEN)
    reason = reason_of(plan, "tuned-winner")
    assert (reason.evidence["ratio_low"], reason.evidence["blocks"]) == (1.01, LEAST_BLOCKS)
    assert reason.evidence["next_policy"] == "single-socket"
    assert "1.010 to 1.040 times as fast" in reason.message
    assert plan_with(Calibration(None, replace(judged(), verdict=None))).confidence is not Confidence.PROVEN


@pytest.mark.parametrize("verdict", [{"ratio_low": 1.0}, {"block_count": LEAST_BLOCKS - 1}])
def test_a_verdict_that_is_not_clear_decides_nothing(verdict: dict[str, Any]) -> None:
    plan = plan_with(Calibration(None, judged(**verdict)))
    assert plan.confidence is not Confidence.PROVEN
    reason = reason_of(plan, "tuned-tie")
    assert reason.evidence["ratio_high"] == 1.04


def test_a_verdict_over_pages_in_the_wrong_place_decides_nothing() -> None:
    tuning = judged()
    results = (tuning.results[0], replace(tuning.results[1], local_ratio=0.5), tuning.results[2])
    plan = plan_with(Calibration(None, replace(tuning, results=results)))
    assert plan.confidence is not Confidence.PROVEN
    assert "wrong place" in reason_of(plan, "tuned-tie").message


def test_a_measured_split_by_package_is_not_taken_for_one_by_node() -> None:
    topology = machine_topology(MachineShape(even_nodes(4, 8, nodes_per_package=2, total_gib=64)))
    result = TuneResult(Policy.SPLIT, (0, 1, 2, 3), 24, (60.0,) * 3, 1.0, slice_count=2)
    other = TuneResult(Policy.OFF, (0, 1, 2, 3), 30, (30.0,) * 3)
    tuning = Tuning(machine_fingerprint(topology), 44 * GIB, Objective.DECODE, (result, other))
    plan = make_plan(topology, request_for(44), Calibration(None, tuning))
    assert (len(plan.layout.slices), plan.confidence) == (2, Confidence.PROVEN)
    by_node = replace(tuning, results=(replace(result, slice_count=4), other))
    assert len(make_plan(topology, request_for(44), Calibration(None, by_node)).layout.slices) == 4


def test_on_one_node_the_measured_worker_count_is_followed_and_shown() -> None:
    topology = machine_topology(MachineShape(even_nodes(1, 8, total_gib=64)))
    results = (
        TuneResult(Policy.OFF, (0,), 6, (40.0,) * 3, slice_count=1),
        TuneResult(Policy.OFF, (0,), 3, (50.0,) * 3, slice_count=1),
    )
    tuning = Tuning(machine_fingerprint(topology), 20 * GIB, Objective.DECODE, results)
    plan = make_plan(topology, request_for(20), Calibration(None, tuning))
    assert (len(plan.layout.workers), plan.confidence) == (3, Confidence.PROVEN)
    assert {"single-node-machine", "tuned-winner"} <= set(codes(plan, Effect.CHOOSES))
    assert "off with 3 workers at 50.0" in reason_of(plan, "tuned-winner").message
    assert len(make_plan(topology, request_for(20)).layout.workers) == 6


def damaged(name: str, **changes: Any) -> str:
    document = json.loads((RECORDED / name).read_text())
    return json.dumps(document | changes)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "not JSON"),
        ("[]", "bench is not an object"),
        (damaged("bench.json", schema_version=2), "schema_version is 2"),
        (damaged("bench.json", machine_fingerprint=""), "bench.machine_fingerprint"),
        (damaged("bench.json", core_bytes_per_second=0), "bench.core_bytes_per_second"),
        (damaged("bench.json", core_bytes_per_second="6"), "bench.core_bytes_per_second"),
        (damaged("bench.json", bandwidth=7), "bench.bandwidth"),
        (damaged("bench.json", bandwidth=[{"reader_node": -1}]), "bench.bandwidth[0].reader_node"),
        (damaged("bench.json", layer_costs={"base_seconds": -1}), "bench.layer_costs.base_seconds"),
        (damaged("bench.json", worker_sweep=[{"worker_count": 1}]), "bench.worker_sweep[0].bytes_per_second"),
    ],
)
def test_a_damaged_benchmark_names_the_field(text: str, field: str) -> None:
    with pytest.raises(CalibrationError) as caught:
        benchmark_from_json(text)
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("verdict", "field"),
    [
        ({}, "tune.verdict.best"),
        (
            {"best": 3, "second": 0, "ratio_low": 1, "ratio_high": 2, "block_count": 3},
            "best is not a place among 3",
        ),
        (
            {"best": 0, "second": 1, "ratio_low": 0, "ratio_high": 2, "block_count": 3},
            "tune.verdict.ratio_low",
        ),
        ([], "tune.verdict is not an object"),
    ],
)
def test_a_damaged_verdict_names_the_field(verdict: Any, field: str) -> None:
    with pytest.raises(CalibrationError) as caught:
        tuning_from_json(damaged("tune.json", verdict=verdict))
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("results", "field"),
    [
        ([{"policy": "mirror"}], "tune.results[0].policy"),
        ([{"policy": "split", "node_ids": [True]}], "tune.results[0].node_ids"),
        (
            [{"policy": "split", "node_ids": [0], "worker_count": 1, "tokens_per_second": []}],
            "tune.results[0].tokens_per_second",
        ),
    ],
)
def test_a_damaged_tuning_names_the_field(results: list[Any], field: str) -> None:
    with pytest.raises(CalibrationError) as caught:
        tuning_from_json(damaged("tune.json", results=results))
    assert field in str(caught.value)


def test_a_benchmark_may_hold_nothing_but_its_machine() -> None:
    bare = benchmark_from_json('{"schema_version": 1, "machine_fingerprint": "x"}')
    assert not bare.is_complete
    rates = machine_rates(gathered(SHAPE.nodes), bare)
    assert rates.node_bandwidth == machine_rates(gathered(SHAPE.nodes), None).node_bandwidth
