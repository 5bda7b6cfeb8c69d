"""Four nodes in two sockets, as sub-NUMA clustering and NPS settings make them: a slice on each."""

from __future__ import annotations

from tests.lab import layouts
from tests.lab.machine import Machine
from tests.lab.serving import apply, complete, configure, node_counts, placement, start

LAYOUT = layouts.FOUR


def test_split_over_four_nodes_places_a_slice_on_each(machine: Machine) -> None:
    configure(machine, placement='policy = "split"')
    apply(machine)
    start(machine)
    assert complete(machine)
    told = placement(machine)
    assert sorted(part["home_nodes"] for part in told["slices"]) == [[0], [1], [2], [3]]
    assert all(part["local_ratio"] >= 0.99 for part in told["slices"])
    pages = node_counts(machine)
    assert set(pages) == {0, 1, 2, 3}
    assert max(pages.values()) - min(pages.values()) <= 0.1 * sum(pages.values())
