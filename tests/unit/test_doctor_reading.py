"""The doctor's readers on damaged files: every file of a healthy machine spoiled in turn, and all of them together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner import Topology
from planner.discover import memory_fields, topology_of
from planner.sysfs import MachineFiles
from stratad.doctor import MachineFacts, examine
from stratad.doctor.processes import read_service, read_surroundings, service_process_ids
from stratad.doctor.reading import read_settings
from stratad.errors import StratadError
from stratad.machine.archive import Recording
from tests.support.doctor_machine import PROCESS_ID, Case, healthy
from tests.support.machines import MemoryTree

GARBAGE = (
    "",
    "-1",
    "99999999999999999999999",
    "0 0 0",
    "abc: def kB",
    "\x00\ufffd",
    "[",
    "4-1,,7",
    "x" * 5000,
)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return healthy(tmp_path_factory.mktemp("healthy"))


def looked_at(tree: MachineFiles, topology: Topology) -> None:
    """Reads everything beyond the topology and goes through every check; a fault would raise."""
    facts = MachineFacts(
        topology=topology,
        planned_topology=topology,
        settings=read_settings(tree, topology),
        surroundings=read_surroundings(tree, service_process_ids(tree)),
        service=read_service(tree),
    )
    assert all(item.finding.message for item in examine(facts).items)


def test_a_damaged_file_is_no_fault_of_the_doctor(machine: Case) -> None:
    files = Recording(MemoryTree(machine.files))
    topology = topology_of(MemoryTree(machine.files))
    looked_at(files, topology)
    # One thread's files stand for those of all others.
    others = tuple(f"/task/{PROCESS_ID + index}/" for index in range(2, 40))
    read = [path for path in files.texts if not any(part in path for part in others)]
    assert len(read) > 25
    for path in read:
        for garbage in GARBAGE:
            looked_at(MemoryTree({**machine.files, path: garbage}), topology)


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_a_wholly_damaged_machine_is_told_in_words(machine: Case, tmp_path: Path, garbage: str) -> None:
    spoiled = dict.fromkeys(machine.files, garbage) | {"/sys/devices/system/cpu/online": "0-1"}
    case = replace(machine, files=spoiled, modules=(garbage.encode(),))
    try:
        report = examine(case.facts(tmp_path))
    except StratadError as error:
        assert error.because
        return
    assert all(item.finding.message for item in report.items)


def test_meminfo_is_read_in_bytes() -> None:
    assert memory_fields("MemTotal:  16 kB\nHugePages_Total:   5\nActive(file): 2 kB") == {
        "MemTotal": 16384,
        "Active(file)": 2048,
    }
