"""Drop-ins and plans on disk: shown first, replaced in one step, taken back exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.dropin import OWNER_LINE
from stratad.systemd.unit_files import (
    UnitFileError,
    carry_out,
    changes,
    diff_lines,
    placement_path,
    reservation_path,
    reservations,
)

OURS = f"{OWNER_LINE} apply\n[Service]\nAllowedCPUs=0-3\n"


def listing(root: Path) -> dict[str, str | None]:
    return {
        str(path.relative_to(root)): path.read_text() if path.is_file() else None for path in root.rglob("*")
    }


def test_what_is_written_is_taken_back_exactly(tmp_path: Path) -> None:
    units = tmp_path / "system"
    units.mkdir()
    before = listing(tmp_path)
    path = placement_path(units)
    carry_out(changes({path: OURS}), "sudo stratactl apply")
    assert path.read_text() == OURS
    assert path.stat().st_mode & 0o777 == 0o644
    assert changes({path: OURS}) == ()
    carry_out(changes({path: None}), "sudo stratactl revert")
    assert listing(tmp_path) == before


def test_another_drop_in_of_the_unit_stays(tmp_path: Path) -> None:
    path = placement_path(tmp_path)
    path.parent.mkdir()
    other = path.with_name("10-mine.conf")
    other.write_text("[Service]\n")
    carry_out(changes({path: OURS}), "sudo stratactl apply")
    carry_out(changes({path: None}), "sudo stratactl revert")
    assert listing(path.parent) == {"10-mine.conf": "[Service]\n"}


def test_a_file_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = placement_path(tmp_path)
    path.parent.mkdir()
    path.write_text("[Service]\nNice=5\n")
    for wanted in (OURS, None):
        with pytest.raises(UnitFileError) as refusal:
            changes({path: wanted})
        assert "did not write it" in refusal.value.because
    assert path.read_text() == "[Service]\nNice=5\n"


def test_a_draft_that_a_crash_left_behind_does_no_harm(tmp_path: Path) -> None:
    path = placement_path(tmp_path)
    path.parent.mkdir()
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text("half of a")
    carry_out(changes({path: OURS}), "sudo stratactl apply")
    assert path.read_text() == OURS
    assert not draft.exists()


def test_a_draft_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    path, victim = placement_path(tmp_path), tmp_path / "victim"
    victim.write_text("precious")
    path.parent.mkdir()
    path.with_name(f".{path.name}.draft").symlink_to(victim)
    with pytest.raises(UnitFileError):
        carry_out(changes({path: OURS}), "sudo stratactl apply")
    assert victim.read_text() == "precious"


def test_the_difference_is_shown_as_diff_shows_it(tmp_path: Path) -> None:
    path = placement_path(tmp_path)
    [new] = changes({path: OURS})
    assert diff_lines(new)[:3] == ["--- /dev/null", f"+++ {path}", "@@ -0,0 +1,3 @@"]
    assert "+AllowedCPUs=0-3" in diff_lines(new)
    carry_out([new], "sudo stratactl apply")
    [changed] = changes({path: OURS.replace("0-3", "0-1")})
    assert {"-AllowedCPUs=0-3", "+AllowedCPUs=0-1"} <= set(diff_lines(changed))


def test_what_cannot_be_written_names_the_command_to_run(tmp_path: Path) -> None:
    (tmp_path / "stratad.service.d").write_text("a file where a folder should be")
    planned = [*changes({tmp_path / "other": "text"})]
    blocked = planned[0].__class__(placement_path(tmp_path), None, OURS)
    with pytest.raises(UnitFileError) as refusal:
        carry_out([blocked], "sudo stratactl apply")
    assert "sudo stratactl apply" in refusal.value.remedy


def test_every_reservation_is_found_whoever_made_it(tmp_path: Path) -> None:
    for unit in ("system.slice", "init.scope", "old.slice"):
        path = reservation_path(tmp_path, unit)
        path.parent.mkdir()
        path.write_text(OURS)
    (tmp_path / "user.slice.d").mkdir()
    found = reservations(tmp_path)
    assert {path.parent.name for path in found} == {"system.slice.d", "init.scope.d", "old.slice.d"}
    carry_out(changes(dict.fromkeys(found)), "sudo stratactl release")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["user.slice.d"]
