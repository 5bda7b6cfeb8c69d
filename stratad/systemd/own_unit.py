"""What systemd knows about the unit this process runs in, asked once at the start.

systemd counts its own restarts, and only it can: the process that comes after a watchdog's kill remembers nothing.
The count does not change while a process lives, so one question is enough.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

from planner.sysfs import MachineFiles

# Nobody waits for a bus that does not answer: the metric is left out then.
_LIMIT_SECONDS = 3.0

Ask = Callable[[Sequence[str]], str | None]


def restart_count(files: MachineFiles, ask: Ask | None = None) -> int | None:
    """Restarts of this process's unit by systemd itself since somebody last started it; None when unknown.

    Source: NRestarts of org.freedesktop.systemd1.Service.
    """
    cgroup = unit_cgroup(files.text("/proc/self/cgroup") or "")
    if cgroup is None:
        return None
    scope = ["--user"] if "/user@" in cgroup else []
    unit = cgroup.rpartition("/")[2]
    text = (ask or _systemctl)(["systemctl", *scope, "show", "--value", "--property=NRestarts", unit])
    return int(text) if text is not None and text.strip().isdecimal() else None


def unit_cgroup(text: str) -> str | None:
    """The control group of the service in /proc/self/cgroup; None where the process is in no service's own."""
    for line in text.splitlines():
        # "0::/stratad.slice/stratad.service"; with cgroup version 1 systemd's line is "1:name=systemd:/..."
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_systemds = hierarchy == "0" or controllers == "name=systemd"
        if is_systemds and path.endswith(".service"):
            return path
    return None


def _systemctl(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_LIMIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
