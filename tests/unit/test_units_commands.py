"""What apply, reserve and release would write, and what they ask of systemd; nothing here touches this machine's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner import Plan, Policy, read_topology
from planner.cpulist import format_id_list
from planner.dropin import plan_cpu_ids
from stratad.cli.apply import Outcome, outcome_document, placement_files, settle, stands_already
from stratad.cli.main import run
from stratad.cli.reserve import give_back, other_units, reservation_files
from stratad.systemd.control import system_objections
from stratad.systemd.unit_files import (
    PLAN_PATH,
    UNIT,
    Change,
    carry_out,
    changes,
    placement_path,
    reservations,
)
from tests.support.machines import MachineShape, even_nodes
from tests.support.planning import planned

SPLIT = planned(MachineShape(even_nodes(2, 4)), 4, requested_policy=Policy.SPLIT)
DEMO = Path(__file__).parents[2] / "etc" / "demo" / "demo-moe.gguf"


class RememberingControl:
    """systemd as far as commands see it, with the units that run."""

    def __init__(self, *active: str) -> None:
        self.active = active
        self.asked: list[str] = []

    def reload(self) -> None:
        self.asked.append("reload")

    def restart(self, unit: str) -> None:
        self.asked.append(f"restart {unit}")

    def is_active(self, unit: str) -> bool:
        return unit in self.active

    def property_of(self, unit: str, name: str) -> str:
        return ""


def test_a_running_service_is_restarted_after_the_reload() -> None:
    control = RememberingControl(UNIT)
    assert settle(control, is_restart_wanted=True) == (f"{UNIT} was restarted and is ready",)
    assert control.asked == ["reload", f"restart {UNIT}"]


def test_a_service_that_does_not_run_is_not_started() -> None:
    control = RememberingControl()
    [note] = settle(control, is_restart_wanted=True)
    assert "systemctl start stratad" in note
    assert control.asked == ["reload"]


def test_a_running_service_is_left_alone_when_asked() -> None:
    control = RememberingControl(UNIT)
    [note] = settle(control, is_restart_wanted=False)
    assert "former plan" in note
    assert control.asked == ["reload"]


def test_the_drop_in_names_the_plan_that_is_written_beside_it() -> None:
    files = placement_files(SPLIT)
    drop_in, document = files[placement_path()], files[PLAN_PATH]
    assert drop_in is not None
    assert document is not None
    assert f"Environment=STRATAD_PLAN={PLAN_PATH}\n" in drop_in
    assert json.loads(document)["fingerprint"] == SPLIT.fingerprint


def test_a_plan_without_placement_takes_both_files_away() -> None:
    assert set(placement_files(planned(MachineShape(even_nodes(1, 4)), 4)).values()) == {None}


def test_a_plan_that_differs_in_its_account_only_stands_already(tmp_path: Path) -> None:
    """Free memory is another number at every look, and no ground for a restart."""
    plan_path, drop_in = tmp_path / "plan.json", tmp_path / "50-placement.conf"

    def stands(plan: Plan) -> bool:
        return stands_already(plan, plan_path, drop_in)

    assert not stands(SPLIT)
    for path, text in zip((plan_path, drop_in), placement_files(SPLIT).values(), strict=True):
        assert text is not None
        path.write_text(text)
    assert stands(SPLIT)
    assert stands(replace(SPLIT, candidates=(), reasons=SPLIT.reasons[:1]))
    assert not stands(replace(SPLIT, release_page_cache=not SPLIT.release_page_cache))
    assert not stands(replace(SPLIT, fingerprint="other"))
    drop_in.write_text(drop_in.read_text() + "AllowedCPUs=0\n")
    assert not stands(SPLIT)
    drop_in.unlink()
    assert not stands(SPLIT)


def test_machines_are_reserved_against_only_where_there_are_any() -> None:
    assert other_units(RememberingControl()) == ("init.scope", "system.slice", "user.slice")
    assert "machine.slice" in other_units(RememberingControl("machine.slice"))


def test_a_reservation_never_holds_a_cpu_of_the_plan(tmp_path: Path) -> None:
    rest = tuple(sorted(set(range(8)) - set(plan_cpu_ids(SPLIT))))
    files = reservation_files(tmp_path, ("system.slice", "init.scope"), rest, SPLIT.fingerprint)
    assert {path.parent.name for path in files} == {"system.slice.d", "init.scope.d"}
    for text in files.values():
        assert text is not None
        assert SPLIT.fingerprint in text


class WatchingControl(RememberingControl):
    """Keeps what the reservations said at every reload."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.seen: list[list[str]] = []

    def reload(self) -> None:
        self.seen.append([path.read_text() for path in reservations(self.folder)])


def test_a_release_widens_before_it_removes(tmp_path: Path) -> None:
    # systemd leaves a cpuset as it is when its setting merely vanishes.
    carry_out(changes(reservation_files(tmp_path, ("system.slice",), (0,), "0123456789ab")), "by hand")
    control = WatchingControl(tmp_path)
    give_back(changes(dict.fromkeys(reservations(tmp_path))), control)
    first, last = control.seen
    every = format_id_list(cpu.cpu_id for cpu in read_topology(Path("/")).cpus)
    assert [text.splitlines()[-1] for text in first] == [f"AllowedCPUs={every}"]
    assert last == []


def test_systems_where_drop_ins_do_nothing_are_told(tmp_path: Path) -> None:
    present = tmp_path / "present"
    present.mkdir()
    absent = tmp_path / "absent"
    assert system_objections(present, present) == ()
    [without_systemd] = system_objections(absent, present)
    assert "not booted by systemd" in without_systemd
    [version_one] = system_objections(present, absent)
    assert "version 1" in version_one


def test_the_outcome_as_json_has_every_change() -> None:
    change = Change(Path("/etc/x.conf"), None, "text")
    assert outcome_document(Outcome((change,), ("a note",), SPLIT), True) == {
        "dry_run": True,
        "plan": {"policy": "split", "fingerprint": SPLIT.fingerprint},
        "changes": [{"path": "/etc/x.conf", "before": None, "after": "text"}],
        "notes": ["a note"],
    }


def test_a_dry_run_of_apply_shows_the_plan_for_the_configured_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration = tmp_path / "stratad.toml"
    configuration.write_text(f'[model]\npath = "{DEMO}"\n')
    assert run(["apply", "--dry-run", "--json", "--config", str(configuration)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dry_run"] is True
    assert document["plan"]["policy"] in [policy.value for policy in Policy]


def test_plan_writes_the_drop_in_that_apply_would(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["plan", "--arena-bytes", "1MiB", "--policy", "off", "--drop-in"]) == 0
    assert capsys.readouterr().out == "# this plan needs no drop-in\n"
