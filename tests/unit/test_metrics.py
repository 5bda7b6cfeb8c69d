"""The metric table, its documentation, and what a scrape gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from planner.reason import REASON_CODES
from stratad.metrics.registry import STATES, TABLE, MetricKind, Metrics, Sample, render_documentation
from stratad.service.samples import DRIFT_CODES
from tests.support.prometheus import promtool

DOCUMENT = Path(__file__).parents[2] / "docs" / "METRICS.md"


def _full_metrics() -> Metrics:
    """A registry in which every row of the table has a value."""
    metrics = Metrics("m")
    metrics.observe_first_token(0.3)
    metrics.observe_token_gap(0.0169)
    metrics.observe_request(2.0)
    sampled = [spec for spec in TABLE if spec.kind is not MetricKind.HISTOGRAM]
    metrics.add_source(
        lambda: [Sample(spec.name, 1.0, tuple(f"{label}-value" for label in spec.labels)) for spec in sampled]
    )
    return metrics


def _values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_documentation_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render_documentation(), (
        "run `python -m stratad.metrics > docs/METRICS.md`"
    )


def test_every_name_follows_the_rules() -> None:
    assert len({spec.name for spec in TABLE}) == len(TABLE)
    for spec in TABLE:
        assert re.fullmatch(r"stratad_[a-z0-9_]+", spec.name)
        assert spec.name.endswith("_total") == (spec.kind is MetricKind.COUNTER), spec.name
        assert (spec.unit == "seconds") == ("_seconds" in spec.name), spec.name
        assert spec.help.endswith("."), spec.name
        assert bool(spec.buckets) == (spec.kind is MetricKind.HISTOGRAM)
        assert list(spec.buckets) == sorted(set(spec.buckets))


def test_a_scrape_gives_every_row_of_the_table_and_nothing_created() -> None:
    text = _full_metrics().render().decode()
    names = {name for name, _ in _values(text)}
    for spec in TABLE:
        suffix = "_bucket" if spec.kind is MetricKind.HISTOGRAM else ""
        assert spec.name + suffix in names
        assert f"# HELP {spec.name} {spec.help}" in text
    assert "_created" not in text


def test_54_and_59_tokens_a_second_fall_into_different_buckets() -> None:
    metrics = Metrics("m")
    metrics.observe_token_gap(1 / 54)
    metrics.observe_token_gap(1 / 59)
    values = _values(metrics.render().decode())
    name = "stratad_inter_token_latency_seconds_bucket"
    at = {dict(labels)["le"]: value for (metric, labels), value in values.items() if metric == name}
    assert (at["0.015"], at["0.0175"], at["0.02"]) == (0, 1, 2)


def test_a_name_without_a_row_is_a_program_error() -> None:
    metrics = Metrics("m")
    metrics.add_source(lambda: [Sample("stratad_unheard_of", 1)])
    with pytest.raises(AssertionError, match="stratad_unheard_of"):
        metrics.render()


def test_every_state_of_the_service_has_its_series() -> None:
    from stratad.service.service import ServiceState

    assert set(STATES) == {state.value for state in ServiceState}


def test_every_kind_of_drift_is_a_reason_with_a_way_out() -> None:
    assert list(DRIFT_CODES) == sorted(DRIFT_CODES)
    for code in DRIFT_CODES:
        assert REASON_CODES[code].action, code


def test_promtool_has_no_objection() -> None:
    # process_* come from prometheus_client and are not ours to name.
    ours = re.sub(r"(?m)^(# (HELP|TYPE) )?process_.*\n", "", _full_metrics().render().decode())
    assert promtool("check", "metrics", text=ours) == ""
