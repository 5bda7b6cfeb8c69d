"""One machine at a time, booted when the first scenario needs it and kept for those that follow on it."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

import pytest

from tests.lab import image
from tests.lab.machine import Machine, MachineLost, booted
from tests.lab.serving import install, stop_and_forget

_REPORTS = image.ROOT / "build" / "lab"


@pytest.fixture(scope="session", autouse=True)
def _only_one_lab() -> Iterator[None]:
    try:
        image.require_host()
        with image.lab_lock():
            # What comes from elsewhere, before anything of ours is tried.
            image.kernel()
            image.root_image()
            yield
    except image.LabUnavailable as reason:
        # A lab that cannot run has failed: nothing was proven.
        pytest.exit(f"the lab cannot run: {reason}", returncode=image.UNAVAILABLE_STATUS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keeps journal and console of the machine on which a scenario failed."""
    report = yield
    machine = getattr(item, "funcargs", {}).get("machine")
    if report.failed and isinstance(machine, Machine):
        _REPORTS.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W+", "-", item.nodeid.rpartition("::")[2])
        try:
            log = machine.run("journalctl", "-b", "--no-pager", "-o", "short-monotonic").stdout
        except (OSError, MachineLost) as error:
            log = f"the machine does not answer any more: {error}"
        (_REPORTS / f"{name}.log").write_text(f"{log}\n--- console\n{machine.console}", encoding="utf-8")
    return report


@pytest.fixture(scope="module")
def guest(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """The module's machine: its LAYOUT, with stratad's disk, more DISKS, and the unit files installed."""
    disks = [image.installation_image(), *(make() for make in getattr(request.module, "DISKS", ()))]
    with booted(request.module.LAYOUT, disks) as machine:
        install(machine)
        yield machine


@pytest.fixture
def machine(guest: Machine) -> Iterator[Machine]:
    """The module's machine with nothing applied; what a scenario changed of the service is taken back."""
    if not guest.is_on:
        # One that was lost fails its own scenario only: the unit files are on its disk.
        guest.switch_on()
    yield guest
    if guest.is_on:
        stop_and_forget(guest)
