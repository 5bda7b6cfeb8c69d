"""What stratactl asks of the running systemd, through `systemctl`.

systemctl speaks the same D-Bus interface as any binding, with polkit's questions, and is wherever systemd is
(docs/adr/0020-systemctl-over-pystemd.md).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Protocol

from stratad.errors import StratadError

_BOOTED_BY_SYSTEMD = Path("/run/systemd/system")
_UNIFIED_HIERARCHY = Path("/sys/fs/cgroup/cgroup.controllers")


class SystemdError(StratadError):
    """systemd refused, is not the init system here, or cannot be asked."""

    default_summary = "systemd did not do it"


class SystemdControl(Protocol):
    """The few things that commands need; tests have one that only remembers."""

    def reload(self) -> None:
        """Reads all unit files again, which applies changed cpusets at once."""

    def restart(self, unit: str) -> None:
        """Restarts the unit and waits until it is ready or has failed."""

    def is_active(self, unit: str) -> bool:
        """Whether the unit runs, or is on its way up."""

    def property_of(self, unit: str, name: str) -> str:
        """A property's value as `systemctl show` prints it; empty when unset or unknown."""


class Systemctl:
    """The running system's manager."""

    def reload(self) -> None:
        """Reads all unit files again. Raises SystemdError."""
        self._act("daemon-reload")

    def restart(self, unit: str) -> None:
        """Restarts the unit. Raises SystemdError with what the unit's journal is called."""
        self._act("restart", unit)

    def stop(self, unit: str) -> None:
        """Stops the unit and waits for it. Raises SystemdError."""
        self._act("stop", unit)

    def start(self, unit: str) -> None:
        """Starts the unit and waits until it is ready. Raises SystemdError."""
        self._act("start", unit)

    def is_active(self, unit: str) -> bool:
        """Whether the unit runs, or is on its way up."""
        return self.property_of(unit, "ActiveState") in ("active", "activating", "reloading")

    def property_of(self, unit: str, name: str) -> str:
        """A property's value; empty when unset or unknown."""
        return self._run("show", "--value", f"--property={name}", unit).stdout.strip()

    def _act(self, *arguments: str) -> None:
        done = self._run(*arguments)
        if done.returncode != 0:
            raise SystemdError(
                tried=f"systemctl {' '.join(arguments)}",
                because=done.stderr.strip() or f"exit status {done.returncode}",
                remedy=f"run `sudo systemctl {' '.join(arguments)}`; "
                "`journalctl -u stratad` has what the service said",
            )

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["systemctl", "--no-pager", *arguments]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            raise SystemdError(
                tried=" ".join(command),
                because=str(error.strerror),
                remedy="run it where systemd is installed",
            ) from error


def system_objections(
    booted: Path = _BOOTED_BY_SYSTEMD, unified: Path = _UNIFIED_HIERARCHY
) -> tuple[str, ...]:
    """Why drop-ins would do nothing on this system; () when they work."""
    if not booted.is_dir():
        return ("this system was not booted by systemd, so no unit file has any effect",)
    if not unified.exists():
        return (
            "cgroups are version 1 or mixed here: systemd ignores AllowedCPUs= without saying so "
            "(boot with systemd.unified_cgroup_hierarchy=1)",
        )
    return ()
