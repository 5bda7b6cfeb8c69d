"""Node 2 has memory and no CPU, as a CXL expander or a GPU's memory has: it holds no slice."""

from __future__ import annotations

from tests.lab import layouts
from tests.lab.machine import Machine
from tests.lab.serving import DROP_IN, apply, complete, configure, node_counts, placement, start

LAYOUT = layouts.MEMORY_ONLY


def test_no_slice_lies_on_a_node_without_cpus(machine: Machine) -> None:
    assert machine.read("/sys/devices/system/node/has_memory").strip() == "0-2"
    assert machine.read("/sys/devices/system/node/has_cpu").strip() == "0-1"
    configure(machine, placement='policy = "split"')
    apply(machine)
    start(machine)
    assert complete(machine)
    assert [part["home_nodes"] for part in placement(machine)["slices"]] == [[0], [1]]
    assert node_counts(machine).keys() == {0, 1}
    assert "NUMAMask=0-1\n" in machine.read(DROP_IN)
