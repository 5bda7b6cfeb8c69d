"""A machine with one node: nothing to choose, no drop-in and no noise."""

from __future__ import annotations

from tests.lab import layouts
from tests.lab.machine import Machine
from tests.lab.serving import DROP_IN, PLAN, STRATACTL, complete, configure, journal, metrics, start, state

LAYOUT = layouts.SINGLE


def test_one_node_needs_no_drop_in_and_makes_no_noise(machine: Machine) -> None:
    configure(machine)
    assert "nothing to change" in machine.check(STRATACTL, "apply")
    assert not machine.exists(DROP_IN)
    assert not machine.exists(PLAN)
    start(machine)
    assert complete(machine)
    assert state(machine) == "ready"
    effects = {reason["effect"] for reason in machine.http("GET", "/status").document["reasons"]}
    assert "warns" not in effects, journal(machine)
    warnings = machine.check("journalctl", "-u", "stratad", "-p", "warning", "--no-pager", "-o", "cat")
    assert warnings.strip() in ("", "-- No entries --")
    assert metrics(machine)['stratad_placement_local_ratio{node="0",slice="0"}'] == 1
