"""The drop-in text of plans, held against approved files and against systemd's own reader."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from planner import Effect, MemoryMode, Plan, Policy, ProcessMemory, Reason, Slice, Worker, WorkerLayout
from planner.dropin import OWNER_LINE, drop_in_text, is_drop_in_needed, plan_cpu_ids, reservation_text
from tests.support.machines import GpuShape, MachineShape, even_nodes
from tests.support.planning import planned

FOLDER = Path(__file__).parent / "dropins"
UNITS = Path(__file__).parents[2] / "packaging" / "systemd"
REASONS = (
    Reason("policy-requested", Effect.CHOOSES, "policy was asked for"),
    Reason("too-few-workers", Effect.REJECTS, "a rejected candidate is not shown"),
    Reason("numa-balancing-on", Effect.INFORMS, "kernel.numa_balancing is 1"),
    Reason("headroom-tight", Effect.WARNS, "node 0 keeps 1.0 GiB free"),
)


def plan(
    policy: Policy,
    slices: tuple[Slice, ...],
    workers: tuple[Worker, ...],
    host_cpu_ids: tuple[int, ...],
    memory: ProcessMemory,
) -> Plan:
    """A plan whose drop-in depends on nothing that a planner decides."""
    return replace(
        planned(MachineShape(even_nodes(2, 4), (GpuShape("0000:3b:00.0", 0),)), 4),
        policy=policy,
        layout=WorkerLayout(slices, workers, host_cpu_ids),
        process_memory=memory,
        reasons=REASONS,
        fingerprint="0123456789ab",
        machine_fingerprint="ba9876543210",
    )


SPLIT = plan(
    Policy.SPLIT,
    (Slice((0,)), Slice((1,))),
    tuple(Worker(cpu, cpu // 8) for cpu in (8, 9, 10, 0, 1, 2)),
    (11, 27),
    ProcessMemory(MemoryMode.INTERLEAVE, (0, 1)),
)
PLANS = {
    "split": SPLIT,
    "single-socket": plan(
        Policy.SINGLE_SOCKET,
        (Slice((1,)),),
        (Worker(9, 0), Worker(8, 0)),
        (10,),
        ProcessMemory(MemoryMode.PREFERRED, (1,)),
    ),
    "interleave": plan(
        Policy.INTERLEAVE,
        (Slice((0, 1, 2, 5)),),
        (Worker(0, 0), Worker(8, 0)),
        (16, 17, 18),
        ProcessMemory(MemoryMode.INTERLEAVE, (0, 1, 2, 5)),
    ),
}
OFF = plan(Policy.OFF, (Slice(()),), (Worker(0, 0),), (1,), ProcessMemory(MemoryMode.DEFAULT))


@pytest.mark.parametrize("name", PLANS)
def test_the_drop_in_is_the_approved_one(name: str, request: pytest.FixtureRequest) -> None:
    text, path = drop_in_text(PLANS[name], "/etc/stratad/plan.json"), FOLDER / f"{name}.conf"
    assert text is not None
    if request.config.getoption("--update-golden", default=False):
        path.write_text(text)
    assert path.read_text() == text


def test_no_approved_drop_in_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.conf")} == set(PLANS)


def test_a_plan_that_places_nothing_needs_no_drop_in() -> None:
    assert drop_in_text(OFF, "/etc/stratad/plan.json") is None
    assert not is_drop_in_needed(OFF)
    assert is_drop_in_needed(SPLIT)


def test_a_machine_with_one_node_needs_no_drop_in() -> None:
    assert drop_in_text(planned(MachineShape(even_nodes(1, 8)), 4), "/etc/stratad/plan.json") is None


def test_the_plans_cpus_are_those_of_workers_and_server() -> None:
    assert plan_cpu_ids(SPLIT) == (0, 1, 2, 8, 9, 10, 11, 27)
    unpinned = replace(OFF, layout=WorkerLayout((Slice(()),), (Worker(None, 0),), (3,)))
    assert plan_cpu_ids(unpinned) == (3,)


def test_a_reason_cannot_leave_its_comment() -> None:
    hostile = (Reason("headroom-tight", Effect.WARNS, "one\nExecStart=/bin/evil\r\nthree \\"),)
    text = drop_in_text(replace(SPLIT, reasons=hostile), "/etc/stratad/plan.json")
    assert text is not None
    head, _, directives = text.partition("\n[Service]\n")
    assert all(line.startswith("#") and not line.endswith("\\") for line in head.splitlines() if line)
    assert "ExecStart" not in directives


def test_a_reservation_is_for_a_slice_or_a_scope() -> None:
    assert reservation_text("system.slice", (3, 4, 5, 9), "0123456789ab") == (
        f"{OWNER_LINE} reserve; `stratactl release` takes it away again.\n"
        "# CPUs that plan 0123456789ab leaves to others\n\n"
        "[Slice]\nAllowedCPUs=\nAllowedCPUs=3-5,9\n"
    )
    assert "\n[Scope]\n" in reservation_text("init.scope", (0,), "0123456789ab")


@pytest.mark.parametrize("name", PLANS)
def test_systemd_reads_the_drop_in_without_a_word(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: systemd's own check of the drop-ins is left out")
    text = drop_in_text(PLANS[name], "/etc/stratad/plan.json")
    assert text is not None
    unit = (UNITS / "stratad.service").read_text().replace("/usr/bin/stratad", "/bin/true")
    (tmp_path / "stratad.service").write_text(unit)
    (tmp_path / "stratad.slice").write_text((UNITS / "stratad.slice").read_text())
    folder = tmp_path / "stratad.service.d"
    folder.mkdir()
    (folder / "50-placement.conf").write_text(text)
    command = ["systemd-analyze", "verify", str(tmp_path / "stratad.service")]
    # Wrong values are told on standard error, with exit status 0.
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""
