"""`stratactl install-units`: unit files for an installation that came from pip."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from planner.dropin import OWNER_LINE
from stratad.cli.apply import Outcome, report, show_changes
from stratad.cli.output import json_option
from stratad.errors import StratadError
from stratad.systemd.control import Systemctl
from stratad.systemd.unit_files import FileSet, carry_out, changes

# Where each file of packaging/systemd goes; packages install below /usr/lib, administrators below /etc.
DESTINATIONS = {
    "stratad.service": Path("etc/systemd/system/stratad.service"),
    "stratad.slice": Path("etc/systemd/system/stratad.slice"),
    "stratad.sysusers.conf": Path("etc/sysusers.d/stratad.conf"),
    "stratad.tmpfiles.conf": Path("etc/tmpfiles.d/stratad.conf"),
}
_CONFIGURATION = Path("etc/stratad/stratad.toml")
_PACKAGED_COMMAND = "/usr/bin/stratad"

# ProtectHome= hides these from the service.
_HIDDEN_FOLDERS = (Path("/home"), Path("/root"), Path("/run/user"))


@click.command("install-units")
@click.option("--dry-run", is_flag=True, help="Show what would change and change nothing.")
@click.option("--remove", is_flag=True, help="Take them away again; the configuration stays.")
@click.option(
    "--destdir",
    type=click.Path(path_type=Path),
    default=Path("/"),
    help="Write below this folder, for an image; nothing is reloaded then.",
)
@json_option
def install_units(dry_run: bool, remove: bool, destdir: Path, as_json: bool) -> int:
    """Install stratad.service, its slice, its user and its folders, for the stratad of this installation."""
    wanted = wanted_files(destdir, None if remove else service_command())
    planned = changes(wanted)
    if not as_json:
        show_changes(planned)
    notes: tuple[str, ...] = ()
    if planned and not dry_run:
        carry_out(planned, "sudo stratactl install-units")
        if destdir == Path("/"):
            notes = _take_up(is_removed=remove)
    report(Outcome(planned, notes), is_dry_run=dry_run, as_json=as_json)
    return 0


def wanted_files(destdir: Path, command: Path | None) -> FileSet:
    """The installed files' text for a daemon at `command`; all absent for None.

    An existing configuration is the operator's and is left alone.
    """
    if command is None:
        return {destdir / path: None for path in DESTINATIONS.values()}
    sources = unit_sources()
    files: dict[Path, str | None] = {}
    for name, path in DESTINATIONS.items():
        text = (sources / name).read_text(encoding="utf-8").replace(_PACKAGED_COMMAND, str(command))
        files[destdir / path] = f"{OWNER_LINE} install-units; changes made here are lost.\n{text}"
    configuration = destdir / _CONFIGURATION
    if not configuration.exists():
        files[configuration] = (sources / "stratad.toml").read_text(encoding="utf-8")
    return files


def unit_sources() -> Path:
    """The folder with the unit files: in the installed package, or in the checkout that this module runs from."""
    package = Path(__file__).resolve().parents[1]
    places = (package / "share" / "systemd", package.parent / "packaging" / "systemd")
    for place in places:
        if (place / "stratad.service").is_file():
            return place
    raise StratadError(
        tried="finding the unit files",
        because=f"they lie in none of {', '.join(map(str, places))}",
        remedy="install stratad from its wheel, or run from a complete checkout",
    )


def service_command(executable: Path | None = None) -> Path:
    """The `stratad` beside this interpreter, which the unit starts.

    Raises:
        StratadError: There is none, or it lies where the hardened service may not look.
    """
    executable = Path(sys.executable) if executable is None else executable
    command = executable.parent / "stratad"
    tried = "finding the daemon for the unit to start"
    if not command.is_file():
        found = shutil.which("stratad")
        if found is None:
            raise StratadError(
                tried, f"{command} is not there", remedy="install stratad as a package first (`pip install`)"
            )
        command = Path(found)
    resolved = {command.absolute(), executable.absolute(), executable.resolve()}
    if any(path.is_relative_to(folder) for path in resolved for folder in _HIDDEN_FOLDERS):
        raise StratadError(
            tried,
            f"{command} (Python: {executable.resolve()}) lies in a home folder, which the service may not see",
            remedy="install stratad elsewhere, for example `python3 -m venv /opt/stratad`",
        )
    return command


def _take_up(*, is_removed: bool) -> tuple[str, ...]:
    """Makes the user and the folders, and systemd read its files; gives what the operator does next."""
    if not is_removed:
        for command in (["systemd-sysusers"], ["systemd-tmpfiles", "--create", "--prefix=/var/lib/stratad"]):
            _run(command)
    Systemctl().reload()
    if is_removed:
        return ("the user stratad, /var/lib/stratad and /etc/stratad stay",)
    return (
        "next: set model.path in /etc/stratad/stratad.toml, then `sudo stratactl apply` and "
        "`sudo systemctl enable --now stratad`",
    )


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StratadError(
            tried=" ".join(command),
            because=done.stderr.strip() or f"exit status {done.returncode}",
            remedy=f"run `sudo {' '.join(command)}`",
        )
