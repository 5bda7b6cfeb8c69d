"""The files in etc/prometheus, held against Prometheus' own checker: syntax, names, and each alert on both sides."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from stratad.metrics.registry import STATES, TABLE, MetricKind
from tests.support.prometheus import promtool

RULES = Path(__file__).parents[2] / "etc" / "prometheus"
RECORDING, ALERTS = RULES / "stratad-recording.yml", RULES / "stratad-alerts.yml"

Series = Mapping[str, str]
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class AlertCase:
    """Series that set an alert off, and series nearly the same that must not; values in promtool's notation.

    The samples lie a minute apart, and the alert is looked at after `minutes`.
    """

    sick: Series
    healthy: Series
    minutes: int = 40


def stratad(name: str, **labels: str) -> str:
    """A series of one daemon."""
    all_labels = {"job": "stratad", "instance": "box", **labels}
    written = ",".join(f'{key}="{value}"' for key, value in all_labels.items())
    return f"{name}{{{written}}}"


def in_state(state: str) -> Series:
    return {stratad("stratad_state", stratad_state=one): f"{int(one == state)}x60" for one in STATES}


def ratios(worst: float) -> Series:
    return {
        stratad("stratad_placement_worst_ratio"): f"{worst}x60",
        stratad("stratad_placement_limit_ratio"): "0.95x60",
    }


def check_age(age_seconds: int, interval_seconds: int) -> Series:
    return {
        stratad("stratad_placement_check_age_seconds"): f"{age_seconds}x60",
        stratad("stratad_placement_check_interval_seconds"): f"{interval_seconds}x60",
    }


def node(available_bytes: int, total_bytes: int) -> Series:
    return {
        stratad("stratad_node_memory_available_bytes", node="1"): f"{available_bytes}x60",
        stratad("stratad_node_memory_total_bytes", node="1"): f"{total_bytes}x60",
    }


def queue(waiting: int, capacity: int) -> Series:
    return {
        stratad("stratad_requests_waiting", model_name="m"): f"{waiting}x60",
        stratad("stratad_queue_capacity", model_name="m"): f"{capacity}x60",
    }


# A decode step took 20 ms for so many minutes, and takes so many milliseconds since.
def decoding(minutes_before: int, milliseconds: int) -> Series:
    before_seconds, steps_a_minute = 60 * 0.5, 1500
    now_seconds = steps_a_minute * milliseconds / 1000
    end_seconds = before_seconds * minutes_before
    return {
        stratad("stratad_decode_steps_total"): f"0+{steps_a_minute}x{minutes_before + 60}",
        stratad("stratad_decode_seconds_total"): (
            f"0+{before_seconds}x{minutes_before} {end_seconds + now_seconds}+{now_seconds}x59"
        ),
    }


CASES: Mapping[str, AlertCase] = {
    "StratadDown": AlertCase({stratad("up"): "0x60"}, {stratad("up"): "1x60"}),
    "StratadFailed": AlertCase(in_state("failed"), in_state("draining")),
    "StratadDegraded": AlertCase(in_state("degraded"), in_state("ready")),
    "StratadLoadingStuck": AlertCase(
        {**in_state("loading"), stratad("stratad_loaded_ratio"): "0.5x60"},
        {**in_state("loading"), stratad("stratad_loaded_ratio"): "0+0.01x60"},
    ),
    "StratadRestarted": AlertCase(
        {stratad("stratad_service_restarts_total"): "0x20 1x40"},
        {stratad("stratad_service_restarts_total"): "1x60"},
    ),
    "StratadStalled": AlertCase(
        {stratad("stratad_stalled_seconds"): "61x60"}, {stratad("stratad_stalled_seconds"): "60x60"}
    ),
    "StratadPlacementBelowLimit": AlertCase(ratios(0.9499), ratios(0.95)),
    "StratadPlacementUnverifiable": AlertCase(
        {stratad("stratad_plan_reason", code="placement-unverifiable", effect="warns"): "1x60"},
        {stratad("stratad_plan_reason", code="headroom-tight", effect="warns"): "1x60"},
    ),
    "StratadPlacementCheckStale": AlertCase(check_age(181, 60), check_age(180, 60)),
    "StratadPlanDrift": AlertCase(
        {stratad("stratad_plan_drift", code="workers-displaced"): "1x60"},
        {stratad("stratad_plan_drift", code="workers-displaced"): "0x60"},
    ),
    "StratadNodeHeadroom": AlertCase(node(2 * GIB - 1, 256 * GIB), node(2 * GIB, 256 * GIB)),
    "StratadDecodeSlower": AlertCase(decoding(1500, 26), decoding(1500, 24), minutes=1550),
    "StratadFallbackOperations": AlertCase(
        {stratad("stratad_fallback_operations_total"): "0+1x60"},
        {stratad("stratad_fallback_operations_total"): "7x60"},
    ),
    "StratadQueueFull": AlertCase(queue(32, 32), queue(31, 32)),
    "StratadRequestsRefused": AlertCase(
        {stratad("stratad_requests_refused_total", model_name="m", code="queue_full"): "0+1x60"},
        {stratad("stratad_requests_refused_total", model_name="m", code="invalid_value"): "0+1x60"},
    ),
}

# What else must not set an alert off.
QUIET: tuple[tuple[str, AlertCase], ...] = (
    # Only the start is checked: no check is late.
    ("StratadPlacementCheckStale", AlertCase({}, check_age(100_000, 0))),
    # A small node is as the planner wants it.
    ("StratadNodeHeadroom", AlertCase({}, node(GIB, 8 * GIB))),
    # A node without memory has no headroom to lose.
    ("StratadNodeHeadroom", AlertCase({}, node(0, 0))),
    # A baseline of hours is none.
    ("StratadDecodeSlower", AlertCase({}, decoding(600, 40), minutes=650)),
    # No queue is configured: it is not full.
    ("StratadQueueFull", AlertCase({}, queue(0, 0))),
)


def alert_names() -> list[str]:
    return re.findall(r"- alert: (\w+)", ALERTS.read_text(encoding="utf-8"))


def run_rule_test(folder: Path, series: Series, minutes: int, expression: str, values: list[float]) -> None:
    """Has promtool evaluate both rule files on `series`, and compare an expression without labels."""
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": text} for name, text in series.items()],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": "{}", "value": value} for value in values],
            }
        ],
    }
    # JSON is YAML as well.
    document = {
        "rule_files": [str(RECORDING), str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [test],
    }
    path = folder / "test.yml"
    path.write_text(json.dumps(document))
    promtool("test", "rules", str(path))


def firing(name: str) -> str:
    return f'count(ALERTS{{alertname="{name}", alertstate="firing", job="stratad", instance="box"}})'


def test_every_alert_has_its_case() -> None:
    assert sorted(alert_names()) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_an_alert_goes_off_when_it_should(name: str, tmp_path: Path) -> None:
    run_rule_test(tmp_path, CASES[name].sick, CASES[name].minutes, firing(name), [1])


@pytest.mark.parametrize(
    ("name", "case"), [*CASES.items(), *QUIET], ids=[*CASES, *(name for name, _ in QUIET)]
)
def test_an_alert_is_quiet_when_it_should(name: str, case: AlertCase, tmp_path: Path) -> None:
    run_rule_test(tmp_path, case.healthy, case.minutes, firing(name), [])


@pytest.mark.parametrize("path", [RECORDING, ALERTS], ids=lambda path: path.name)
def test_promtool_accepts_the_rules(path: Path) -> None:
    promtool("check", "rules", str(path))


def test_promtool_accepts_the_scrape_example_with_its_rules() -> None:
    assert "2 rule files found" in promtool("check", "config", "prometheus.yml", folder=RULES)


def test_the_rules_use_no_metric_that_does_not_exist() -> None:
    text = RECORDING.read_text(encoding="utf-8") + ALERTS.read_text(encoding="utf-8")
    known = {spec.name for spec in TABLE if spec.kind is not MetricKind.HISTOGRAM}
    known |= {
        spec.name + suffix
        for spec in TABLE
        if spec.kind is MetricKind.HISTOGRAM
        for suffix in ("_bucket", "_sum", "_count")
    }
    # A label of the same name as its metric, as prometheus_client's Enum has it.
    used = set(re.findall(r"\bstratad_[a-z0-9_]+", text)) - {"stratad_state"}
    assert used <= known
    recorded = set(re.findall(r"- record: (stratad:\S+)", text))
    assert set(re.findall(r"\bstratad:[a-z0-9_:]+", text)) == recorded


def test_a_histogram_has_all_its_parts_under_vllms_name(tmp_path: Path) -> None:
    bucket = stratad("stratad_time_to_first_token_seconds_bucket", model_name="m", le="0.5")
    run_rule_test(
        tmp_path, {bucket: "0+3x10"}, 10, 'sum(vllm:time_to_first_token_seconds_bucket{le="0.5"})', [30]
    )


def test_finished_requests_have_vllms_label(tmp_path: Path) -> None:
    series = {
        stratad("stratad_requests_total", model_name="m", finish_reason=reason): f"{count}x10"
        for reason, count in (("stop", 5), ("length", 2), ("cancelled", 9))
    }
    run_rule_test(tmp_path, series, 5, 'sum(vllm:request_success_total{finished_reason="stop"})', [5])
    run_rule_test(tmp_path, series, 5, "sum(vllm:request_success_total)", [7])
