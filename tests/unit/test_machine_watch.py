"""The machine against the plan while the daemon runs, and what systemd tells of the unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from planner import Topology, machine_fingerprint, read_topology
from planner.sysfs import Tree
from stratad.daemon.machine_watch import CHANGED_CODE, MachineWatch, machine_outline
from stratad.errors import StratadError
from stratad.service.samples import DRIFT_CODES
from stratad.service.service import PlanSummary, Service, ServiceLimits
from stratad.systemd.own_unit import restart_count, unit_cgroup


@pytest.fixture(scope="module")
def machine() -> Topology:
    return read_topology(Path("/"))


def drift(service: Service) -> dict[str, float]:
    return {
        sample.labels[0]: sample.value for sample in service.samples() if sample.name == "stratad_plan_drift"
    }


def service_with_plan_for(machine: Topology) -> Service:
    service = Service("tiny", "0", ServiceLimits(0.95, 16, 60.0))
    document = {"machine_fingerprint": machine_fingerprint(machine)}
    service.planned(PlanSummary("off", "f00d", (), document))
    return service


def test_a_machine_that_changed_is_told_until_it_is_as_planned_again(
    machine: Topology, caplog: pytest.LogCaptureFixture
) -> None:
    service, now, files, read_count = service_with_plan_for(machine), [machine], Files(None), 0

    def read_machine() -> Topology:
        nonlocal read_count
        read_count += 1
        return now[0]

    watch = MachineWatch(service, 0.0, read_machine, files)
    caplog.set_level("INFO", "stratad")
    watch.look()
    assert drift(service) == dict.fromkeys(DRIFT_CODES, 0.0)
    # A CPU of the first node went offline.
    first, *others = machine.nodes
    now[0] = replace(machine, nodes=(replace(first, cpu_ids=first.cpu_ids[1:]), *others))
    files.online = "0"
    watch.look()
    watch.look()
    assert read_count == 2, "nothing has changed since"
    assert drift(service)[CHANGED_CODE] == 1.0
    assert caplog.text.count("differs from the plan's") == 1
    now[0], files.online = machine, "0-1"
    watch.look()
    assert drift(service)[CHANGED_CODE] == 0.0
    assert "is as planned again" in caplog.text


def test_a_machine_that_cannot_be_read_changes_nothing(
    machine: Topology, caplog: pytest.LogCaptureFixture
) -> None:
    def unreadable() -> Topology:
        raise StratadError(tried="reading", because="no CPU is named")

    service = service_with_plan_for(machine)
    watch = MachineWatch(service, 0.0, unreadable)
    watch.look()
    assert drift(service)[CHANGED_CODE] == 0.0
    assert "no CPU is named" in caplog.text


def test_nothing_is_compared_before_there_is_a_plan(machine: Topology) -> None:
    service = Service("tiny", "0", ServiceLimits(0.95, 16, 60.0))
    MachineWatch(service, 0.0, lambda: machine).look()
    assert drift(service)[CHANGED_CODE] == 0.0


class Files:
    """A process's own cgroup file, the CPUs that are online, and nothing else."""

    def __init__(self, cgroup: str | None) -> None:
        self._cgroup = cgroup
        self.online = "0-1"

    def text(self, path: str) -> str | None:
        return {"/proc/self/cgroup": self._cgroup, "/sys/devices/system/cpu/online": self.online}.get(path)

    def names(self, path: str) -> tuple[str, ...] | None:
        return None

    def has(self, path: str) -> bool:
        return False

    def link_name(self, path: str) -> str | None:
        return None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/stratad.slice/stratad.service", "/stratad.slice/stratad.service"),
        ("12:cpuset:/x.service\n1:name=systemd:/a.slice/a.service\n", "/a.slice/a.service"),
        ("0::/user.slice/user-1.slice/session-3.scope", None),
        ("3:memory:/docker/x.service", None),
        ("", None),
        ("rubbish", None),
    ],
)
def test_the_unit_is_read_from_the_control_group(text: str, expected: str | None) -> None:
    assert unit_cgroup(text) == expected


def test_systemd_is_asked_for_its_own_restarts_of_this_unit() -> None:
    commands: list[Sequence[str]] = []

    def ask(command: Sequence[str]) -> str:
        commands.append(command)
        return "3\n"

    assert restart_count(Files("0::/stratad.slice/stratad.service"), ask) == 3
    assert commands.pop()[1:] == ["show", "--value", "--property=NRestarts", "stratad.service"]
    users = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/stratad.service"
    assert restart_count(Files(users), ask) == 3
    assert commands.pop()[1] == "--user"


@pytest.mark.parametrize("answer", [None, "", "[not set]"])
def test_a_count_that_systemd_does_not_tell_is_unknown(answer: str | None) -> None:
    assert restart_count(Files("0::/a.slice/a.service"), lambda command: answer) is None


def test_nobody_is_asked_outside_a_service() -> None:
    def ask(command: Sequence[str]) -> str:
        raise AssertionError(command)

    assert restart_count(Files("0::/user.slice/session-3.scope"), ask) is None
    assert restart_count(Files(None), ask) is None


def test_the_outline_of_a_machine_changes_with_cpus_nodes_and_devices(tmp_path: Path) -> None:
    node, pci = tmp_path / "sys/devices/system/node/node0", tmp_path / "sys/bus/pci/devices"
    online = tmp_path / "sys/devices/system/cpu/online"
    for folder in (node, pci, online.parent):
        folder.mkdir(parents=True)
    seen = []
    for change in (
        lambda: online.write_text("0-3\n"),
        lambda: (node / "cpulist").write_text("0-3\n"),
        (pci / "0000:01:00.0").mkdir,
        (node.parent / "node1").mkdir,
    ):
        change()
        outline = machine_outline(Tree(tmp_path))
        assert outline == machine_outline(Tree(tmp_path))
        assert outline not in seen
        seen.append(outline)
