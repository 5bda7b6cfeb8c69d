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
    # Each node has as much as the plan says: in proportion to its workers.
    pages = node_counts(machine)
    planned = {part["node_ids"][0]: part["size_bytes"] for part in told["plan"]["arena_slices"]}
    assert set(pages) == set(planned) == {0, 1, 2, 3}
    for node, count in pages.items():
        assert abs(count * 4096 - planned[node]) <= 0.05 * sum(planned.values()), (pages, planned)
