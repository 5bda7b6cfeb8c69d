"""The Grafana dashboard of the metric table: `python -m stratad.metrics.dashboard > etc/grafana/stratad.json`.

`stratad.metrics.panels` has the panels; what each metric means and which unit it has comes from the table.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from stratad.metrics.panels import SECTIONS, Panel
from stratad.metrics.table import TABLE

_ROW_COLUMNS = 24

# Stands in an expression for the daemons that the dashboard shows.
_FILTER = 'job="stratad",instance=~"$instance"'

_SPECS = {spec.name: spec for spec in TABLE}
# Grafana's names of the table's units.
_UNITS = {"seconds": "s", "bytes": "bytes", "ratio": "percentunit"}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": "stratad",
        "title": "stratad",
        "description": "Generated from stratad's metric table by python -m stratad.metrics.dashboard.",
        "tags": ["stratad"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _panels(),
    }


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "instance",
            "label": "Daemon",
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": 'label_values(stratad_state{job="stratad"}, instance)', "refId": "instance"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _panels() -> list[dict[str, Any]]:
    """All panels with their places: from left to right, a new line where the row is full."""
    placed: list[dict[str, Any]] = []
    top = 0
    for title, panels in SECTIONS:
        placed.append(
            {"id": len(placed) + 1, "type": "row", "title": title, "collapsed": False, "panels": []}
            | {"gridPos": {"x": 0, "y": top, "w": _ROW_COLUMNS, "h": 1}}
        )
        top, left, line_rows = top + 1, 0, 0
        for panel in panels:
            if left + panel.columns > _ROW_COLUMNS:
                top, left, line_rows = top + line_rows, 0, 0
            position = {"x": left, "y": top, "w": panel.columns, "h": panel.rows}
            placed.append({"id": len(placed) + 1, **_panel(panel), "gridPos": position})
            left, line_rows = left + panel.columns, max(line_rows, panel.rows)
        top += line_rows
    return placed


def _panel(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    is_instant = panel.kind in ("stat", "table")
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": _description(panel),
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": _unit(panel)}, "overrides": []},
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "expr": query.expression.replace("$filter", _FILTER),
                "legendFormat": query.legend,
                "instant": is_instant,
                "range": not is_instant,
                **({"format": "table"} if panel.kind == "table" else {}),
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        # A state and an info are their labels; the value is always 1.
        is_name = panel.metric_names[0] in ("stratad_state", "stratad_plan_info", "stratad_build_info")
        return {"textMode": "name" if is_name else "value", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return {}


def _unit(panel: Panel) -> str:
    return panel.unit or _UNITS.get(_SPECS[panel.metric_names[0]].unit, "short")


def _description(panel: Panel) -> str:
    lines = [f"{name}: {_SPECS[name].help}" for name in panel.metric_names]
    if panel.only_with:
        lines.append(f"Only with {panel.only_with}.")
    return "\n".join(lines)


def render_dashboard() -> str:
    """etc/grafana/stratad.json."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_dashboard())
