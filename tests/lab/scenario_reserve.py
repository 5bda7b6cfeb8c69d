"""Other services are kept off the plan's CPUs and get them back, also over a reboot in between."""

from __future__ import annotations

import json

from planner.cpulist import parse_id_list
from tests.lab import layouts
from tests.lab.machine import Machine
from tests.lab.serving import DROP_IN, PLAN, STRATACTL, apply, cgroup, complete, configure, restart, start

LAYOUT = layouts.WIDE
EVERY_CPU = set(range(8))
OTHERS = ("system.slice", "init.scope")


def cpus(text: str) -> set[int]:
    found = parse_id_list(text)
    assert found, text
    return set(found)


def cpus_of_others(machine: Machine, unit: str) -> set[int]:
    """What the kernel lets a unit run on; without the controller it has its parent's, which is everything."""
    path = f"/sys/fs/cgroup/{unit}/cpuset.cpus.effective"
    return cpus(machine.read(path)) if machine.exists(path) else EVERY_CPU


def files(machine: Machine) -> str:
    return machine.shell("find /etc/systemd /run/systemd/system | sort")


def test_reserve_keeps_others_off_until_release_and_over_reboots_only_when_asked(machine: Machine) -> None:
    configure(machine, placement='policy = "single-socket"\nworkers = 1')
    apply(machine)
    layout = json.loads(machine.read(PLAN))["layout"]
    start(machine)
    ours = cpus(cgroup(machine, "cpuset.cpus.effective"))
    assert ours < EVERY_CPU
    before = files(machine)

    machine.check(STRATACTL, "reserve")
    for unit in OTHERS:
        assert cpus_of_others(machine, unit) == EVERY_CPU - ours
    assert cpus(cgroup(machine, "cpuset.cpus.effective")) == ours
    assert complete(machine)
    # A plan made now is not narrowed by the reservation of the session that makes it.
    again = apply(machine)
    assert DROP_IN not in {change["path"] for change in again["changes"]}
    assert json.loads(machine.read(PLAN))["layout"] == layout
    machine.check(STRATACTL, "release")
    assert files(machine) == before
    for unit in OTHERS:
        assert cpus_of_others(machine, unit) == EVERY_CPU

    machine.check(STRATACTL, "reserve")
    machine.reboot()
    for unit in OTHERS:
        assert cpus_of_others(machine, unit) == EVERY_CPU
    assert "nothing to change" in machine.check(STRATACTL, "release")

    machine.check(STRATACTL, "reserve", "--persistent")
    machine.reboot()
    for unit in OTHERS:
        assert cpus_of_others(machine, unit) == EVERY_CPU - ours
    restart(machine)
    assert complete(machine)
    assert len(json.loads(machine.check(STRATACTL, "release", "--json"))["changes"]) == 3
    for unit in OTHERS:
        assert cpus_of_others(machine, unit) == EVERY_CPU
    assert files(machine) == before
