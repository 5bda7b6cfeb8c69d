"""Asks the running machine what no file of it tells: the kernel's log, what it refuses, what the daemon says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from stratad.doctor.facts import PlacementVerdict
from stratad.doctor.gather import LiveAnswers

_TIMEOUT_SECONDS = 10.0
# The kernel's own log, and the programs that put machine-check records into words.
_LOG_COMMANDS = (
    ("dmesg", "--notime"),
    (
        "journalctl",
        "--quiet",
        "--no-pager",
        "--output=cat",
        "--boot",
        "--identifier=mcelog",
        "--identifier=rasdaemon",
    ),
)


def live_answers(placement: PlacementVerdict | None) -> LiveAnswers:
    """Give what this machine says now; None for what it does not say to us."""
    return LiveAnswers(refused_calls=_refused_calls(), error_log=_error_log(), placement=placement)


def _refused_calls() -> tuple[str, ...] | None:
    """Give the placement calls that the kernel refuses to this process; None without the native module."""
    try:
        from stratad.native.apply import memory_policy_failures
    except ImportError:
        return None
    return memory_policy_failures()


def _error_log() -> str | None:
    texts = [text for command in _LOG_COMMANDS if (text := _output(command)) is not None]
    return "\n".join(texts) if texts else None


def _output(command: tuple[str, ...]) -> str | None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_SECONDS,
            cwd=Path("/"),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else None
