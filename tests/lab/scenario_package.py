"""The Debian package on a machine that has nothing of stratad: installed, applied, started, served, removed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import image, layouts
from tests.lab.machine import PACKAGES, Machine, booted
from tests.lab.serving import DROP_IN, complete, configure, node_counts, process_id, start, state


@pytest.fixture
def machine() -> Iterator[Machine]:
    with booted(layouts.TWO, [image.package_image()]) as machine:
        yield machine


def test_the_installed_package_serves_a_completion_under_systemd(machine: Machine) -> None:
    machine.check("/bin/sh", "-c", f"dpkg -i {PACKAGES}/stratad_*.deb")
    # The operator decides when it starts: it has no model yet.
    assert machine.run("systemctl", "is-enabled", "stratad").stdout.strip() == "disabled"
    configure(machine, placement='policy = "split"')
    machine.check("stratactl", "apply")
    start(machine)
    assert complete(machine)
    assert state(machine) == "ready"
    assert set(node_counts(machine)) == {0, 1}
    command = machine.read(f"/proc/{process_id(machine)}/cmdline").split("\0")
    assert "/usr/bin/stratad" in command
    assert machine.check("ps", "-o", "user=", "-p", str(process_id(machine))).strip() == "stratad"

    machine.check("stratactl", "revert")
    assert not machine.exists(DROP_IN)
    machine.check("dpkg", "--remove", "stratad")
    assert machine.run("systemctl", "is-active", "stratad").stdout.strip() == "inactive"
    assert not machine.exists("/usr/bin/stratactl")
