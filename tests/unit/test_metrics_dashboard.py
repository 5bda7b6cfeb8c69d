"""The Grafana dashboard: made from the table, complete, and laid out without overlaps."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from stratad.metrics.dashboard import dashboard, render_dashboard
from stratad.metrics.panels import SECTIONS
from stratad.metrics.registry import TABLE

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "etc" / "grafana" / "stratad.json"
RECORDING = ROOT / "etc" / "prometheus" / "stratad-recording.yml"
PANELS = [panel for _, panels in SECTIONS for panel in panels]


def test_the_dashboard_is_current() -> None:
    assert DASHBOARD.read_text(encoding="utf-8") == render_dashboard(), (
        "run `python -m stratad.metrics.dashboard > etc/grafana/stratad.json`"
    )


def recorded_expressions() -> dict[str, str]:
    """The recording rules: names and what they are made of."""
    text = RECORDING.read_text(encoding="utf-8")
    found = re.findall(r"- record: (\S+)\n\s+expr: ((?:.|\n)*?)(?=\n\s*(?:#|- record|- name)|\Z)", text)
    return dict(found)


def test_every_metric_of_the_table_is_on_the_dashboard() -> None:
    recorded = recorded_expressions()
    expressions = " ".join(query.expression for panel in PANELS for query in panel.queries)
    for name in re.findall(r"\bstratad:[a-z0-9_:]+", expressions):
        expressions += " " + recorded[name]
    for spec in TABLE:
        assert re.search(rf"\b{spec.name}(_bucket)?\b", expressions), spec.name


def test_no_query_names_a_metric_or_label_that_does_not_exist() -> None:
    names, recorded = {spec.name for spec in TABLE}, recorded_expressions()
    labels = {label for spec in TABLE for label in spec.labels} | {"instance"}
    for panel in PANELS:
        for query in panel.queries:
            for word in re.findall(r"\b(?:stratad|process)[_:][a-z0-9_:]+", query.expression):
                assert (
                    word.removesuffix("_bucket") in names or word in recorded or word.startswith("process_")
                )
            assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= labels, query.legend


def test_a_panel_says_what_its_metrics_mean_and_what_it_needs() -> None:
    by_title = {panel["title"]: panel for panel in dashboard()["panels"]}
    assert by_title["Restarts by systemd"]["description"].endswith("Only with systemd.")
    assert "Free memory of a node." in by_title["Memory of the nodes"]["description"]
    assert by_title["Memory of the nodes"]["fieldConfig"]["defaults"]["unit"] == "bytes"


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


def test_panels_have_ids_and_places_of_their_own() -> None:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > len(PANELS)
    for one, other in combinations(panels, 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_the_letters_of_a_panels_queries_suffice(panel: Any) -> None:
    assert 1 <= len(panel.queries) <= 26
