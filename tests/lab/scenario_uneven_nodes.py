"""Node 1 is too small for half of the model: no split, and the reason has the numbers."""

from __future__ import annotations

import json

from tests.lab import image, layouts
from tests.lab.machine import MODELS, Machine
from tests.lab.serving import STRATACTL, apply, configure, node_counts, start, state

LAYOUT = layouts.UNEVEN
DISKS = (image.model_image,)


def test_a_node_too_small_for_its_slice_is_told_with_numbers(machine: Machine) -> None:
    configure(machine, model=f"{MODELS}/large.gguf")
    plan = json.loads(machine.check(STRATACTL, "plan", "--json"))
    assert plan["policy"] == "single-socket"
    [reason] = [reason for reason in plan["reasons"] if reason["code"] == "node-too-small-for-slice"]
    assert reason["evidence"]["node"] == 1
    assert reason["evidence"]["available_bytes"] < reason["evidence"]["needed_bytes"]
    apply(machine)
    start(machine)
    assert state(machine) == "ready"
    assert node_counts(machine).keys() == {0}
