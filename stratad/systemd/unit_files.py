"""Files that stratactl writes for systemd: what changes, shown before it is done, and done in one step.

A `FileSet` is the state that the files should have: text, or None for absent. `changes` compares it with what is
there; `carry_out` replaces file by file, each atomically. Files that somebody else wrote are never touched.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.dropin import OWNER_LINE
from stratad.errors import StratadError
from stratad.replaced_file import replaced_file

UNIT = "stratad.service"
SLICE = "stratad.slice"

PERSISTENT_UNITS = Path("/etc/systemd/system")
RUNTIME_UNITS = Path("/run/systemd/system")
PLAN_PATH = Path("/etc/stratad/plan.json")

_PLACEMENT_NAME = "50-placement.conf"
_RESERVATION_NAME = "50-stratad-reserve.conf"

# Files of these kinds carry the owner's line; others (JSON) cannot, and have names nobody else uses.
_OWNED_SUFFIXES = (".conf", ".service", ".slice")

FileSet = Mapping[Path, str | None]


class UnitFileError(StratadError):
    """A file for systemd cannot be written, or belongs to somebody else."""

    default_summary = "the files for systemd cannot be changed"


@dataclass(frozen=True, slots=True)
class Change:
    """One file that differs from what it should be; None is an absent file."""

    path: Path
    before: str | None
    after: str | None


def placement_path(units: Path = PERSISTENT_UNITS) -> Path:
    """Where the plan's drop-in lies."""
    return units / f"{UNIT}.d" / _PLACEMENT_NAME


def reservation_path(units: Path, unit: str) -> Path:
    """Where the drop-in that keeps `unit` off the plan's CPUs lies."""
    return units / f"{unit}.d" / _RESERVATION_NAME


def reservations(units: Path) -> tuple[Path, ...]:
    """Every reservation that lies below `units`, whoever made it and whenever."""
    return tuple(sorted(units.glob(f"*.d/{_RESERVATION_NAME}")))


def changes(wanted: FileSet) -> tuple[Change, ...]:
    """What has to change, in the order of the set.

    Raises:
        UnitFileError: A file that is in the way was not written by stratactl, or cannot be read.
    """
    found = []
    for path, after in wanted.items():
        before = _text(path)
        if before is not None and path.suffix in _OWNED_SUFFIXES and not before.startswith(OWNER_LINE):
            raise UnitFileError(
                tried=f"changing {path}",
                because="it is there already, and stratactl did not write it",
                remedy="move it away, or give it another name if it is a drop-in",
            )
        if before != after:
            found.append(Change(path, before, after))
    return tuple(found)


def diff_lines(change: Change) -> list[str]:
    """The change as a unified diff, as `diff -u` writes it."""
    names = (
        ("/dev/null" if change.before is None else str(change.path)),
        ("/dev/null" if change.after is None else str(change.path)),
    )
    before = (change.before or "").splitlines()
    after = (change.after or "").splitlines()
    return list(difflib.unified_diff(before, after, *names, lineterm=""))


def carry_out(planned: Sequence[Change], by_hand: str) -> None:
    """Makes every change; a folder of drop-ins that is empty afterwards goes as well.

    Args:
        planned: The changes, from `changes`.
        by_hand: The command that a user without the right to do it should run.

    Raises:
        UnitFileError: The kernel refuses. Changes before that one are made and can be taken back as any other.
    """
    for change in planned:
        try:
            if change.after is None:
                change.path.unlink(missing_ok=True)
                _remove_if_empty(change.path.parent)
            else:
                _replace(change.path, change.after)
        except OSError as error:
            raise UnitFileError(
                tried=f"writing {change.path}",
                because=f"{error.strerror} ({error.errno})",
                remedy=f"run `{by_hand}`",
            ) from error


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnitFileError(
            f"reading {path}", str(getattr(error, "strerror", None) or error), remedy="look at it as root"
        ) from error


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    # systemd reads names that end in .conf only: a draft that a crash leaves behind does nothing.
    with replaced_file(path, draft_name=f".{path.name}.draft") as file:
        file.write(text.encode())


def _remove_if_empty(folder: Path) -> None:
    if folder.suffix == ".d" and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
