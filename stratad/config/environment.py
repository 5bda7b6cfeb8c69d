"""The environment: the only place where it is read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment tells the daemon; fields are None where it says nothing.

    `watchdog_microseconds` is None as well when systemd set it for another process (WATCHDOG_PID).
    `journal_stream` is device and inode of the file that systemd connected to the journal.
    `plan_path` names the plan that `stratactl apply` wrote; the unit's drop-in sets it (STRATAD_PLAN).
    """

    notify_socket: str | None = None
    watchdog_microseconds: int | None = None
    journal_stream: str | None = None
    runtime_directory: Path | None = None
    credentials_directory: Path | None = None
    plan_path: Path | None = None
    state_directory: Path | None = None
    user_runtime_directory: Path | None = None
    temporary_directory: Path = Path("/tmp")


def read_environment(
    variables: Mapping[str, str] | None = None, process_id: int | None = None
) -> Environment:
    """The environment as the daemon understands it; tests pass `variables` and `process_id`.

    Source: sd_notify(3), sd_watchdog_enabled(3), systemd.exec(5) for the variables.
    """
    values = os.environ if variables is None else variables
    runtime = values.get("RUNTIME_DIRECTORY", "").split(":")[0]
    return Environment(
        notify_socket=values.get("NOTIFY_SOCKET") or None,
        watchdog_microseconds=_watchdog_microseconds(
            values, os.getpid() if process_id is None else process_id
        ),
        journal_stream=values.get("JOURNAL_STREAM") or None,
        runtime_directory=Path(runtime) if runtime else None,
        credentials_directory=_optional_path(values.get("CREDENTIALS_DIRECTORY")),
        plan_path=_optional_path(values.get("STRATAD_PLAN")),
        state_directory=_optional_path(values.get("STATE_DIRECTORY", "").split(":")[0]),
        user_runtime_directory=_optional_path(values.get("XDG_RUNTIME_DIR")),
        temporary_directory=Path(values.get("TMPDIR") or tempfile.gettempdir()),
    )


def child_environment(**changes: str) -> dict[str, str]:
    """The process's own variables with `changes`, for a child process."""
    return {**os.environ, **changes}


def _watchdog_microseconds(values: Mapping[str, str], process_id: int) -> int | None:
    text = values.get("WATCHDOG_USEC", "")
    is_ours = values.get("WATCHDOG_PID", str(process_id)) == str(process_id)
    return int(text) if text.isdigit() and int(text) > 0 and is_ours else None


def _optional_path(text: str | None) -> Path | None:
    return Path(text) if text else None
