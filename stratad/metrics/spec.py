"""A row of the metric table, see `stratad.metrics.table`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MetricKind(Enum):
    """Prometheus' types as far as we use them; infos and states are gauges on the wire."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One row of the table.

    Attributes:
        name: As Prometheus knows it.
        kind: Its type.
        help: One sentence for people.
        labels: Their names, in the order of a sample's values.
        unit: A word for people; "1" where there is none.
        buckets: Upper bounds in that unit; histograms only.
        only_with: What a machine or installation must have for the metric to be there; "" for nothing special.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = "1"
    buckets: tuple[float, ...] = ()
    only_with: str = ""
