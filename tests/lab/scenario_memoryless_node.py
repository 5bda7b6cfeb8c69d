"""Node 1 has CPUs and no memory, and one of its CPUs is offline: both are planned around."""

from __future__ import annotations

import json

from tests.lab import layouts
from tests.lab.machine import Machine
from tests.lab.serving import STRATACTL, complete, configure, mappings, process_id, start, state, worker_cpus

LAYOUT = layouts.MEMORYLESS


def test_a_node_without_memory_and_an_offline_cpu_are_planned_around(machine: Machine) -> None:
    machine.shell("echo 0 > /sys/devices/system/cpu/cpu3/online")
    try:
        assert machine.read("/sys/devices/system/node/has_memory").strip() == "0"
        assert machine.read("/sys/devices/system/cpu/online").strip() == "0-2"
        configure(machine)
        plan = json.loads(machine.check(STRATACTL, "plan", "--json"))
        assert all(part["node_ids"] in ([], [0]) for part in plan["layout"]["slices"])
        machine.check(STRATACTL, "apply")
        start(machine)
        assert complete(machine)
        assert state(machine) == "ready"
        assert 3 not in worker_cpus(machine)
        assert {node for mapping in mappings(machine) for node in mapping.pages} == {0}
        assert process_id(machine)
    finally:
        machine.shell("echo 1 > /sys/devices/system/cpu/cpu3/online")
