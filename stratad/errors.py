"""Every operating error of stratad, and how it is shown.

The tree, with the exit status each one gives a command:

    StratadError                1  anything that went wrong and has no better name
    ├── ConfigurationError      2  a setting, option or configuration file cannot be used
    ├── ModelFileError          1  a model file is missing, damaged or not supported
    ├── EngineError             1  the engine refused to load, decode or stop
    │   └── DeviceError         1  a GPU or its driver has failed
    ├── DaemonError             1  the daemon cannot start, or cannot be reached
    ├── PlanRefusedError        3  no policy suits this machine and model
    └── PlacementError          4  pages or threads are not where the plan says

An operating error has four parts: what we tried, what happened, the values, and a remedy. A program error is
an assertion and none of these. This module imports nothing of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType


class LoadCancelled(Exception):
    """Loading was stopped because somebody asked for it: no error, and nothing to show."""


_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class StratadError(Exception):
    """An operating error with what we tried, what happened, the values and a remedy.

    Args:
        tried: What we did, as a noun phrase or gerund: "reading /models/a.gguf".
        because: What happened, in the words of the kernel or the check that failed.
        values: The numbers and names that were compared, units in their names.
        remedy: What the operator can do now. Empty only where nobody can do anything.
        summary: The first line; by default the class's own.
    """

    exit_status = 1
    default_summary = "stratad cannot go on"

    def __init__(
        self,
        tried: str,
        because: str,
        values: Mapping[str, object] | None = None,
        remedy: str = "",
        *,
        summary: str | None = None,
    ) -> None:
        super().__init__(tried, because)
        self.tried = tried
        self.because = because
        self.values: Mapping[str, object] = MappingProxyType(dict(values or {}))
        self.remedy = remedy
        self.summary = summary if summary is not None else self.default_summary

    def __str__(self) -> str:
        return f"{self.summary}: {self.tried}: {self.because}"


class ConfigurationError(StratadError):
    """A setting, an option or a configuration file cannot be used."""

    exit_status = 2
    default_summary = "the configuration cannot be used"


class ModelFileError(StratadError):
    """A model file is missing, damaged, or of a kind we do not read."""

    exit_status = 1
    default_summary = "the model file cannot be used"


class EngineError(StratadError):
    """The engine refused to load, decode or stop."""

    exit_status = 1
    default_summary = "the engine failed"


class DeviceError(EngineError):
    """A GPU or its driver has failed; nothing that was in its memory can be used any more."""

    exit_status = 1
    default_summary = "a GPU has failed"


class DaemonError(StratadError):
    """The daemon cannot start, or a command cannot reach it."""

    exit_status = 1
    default_summary = "the daemon is not available"


class PlanRefusedError(StratadError):
    """No policy suits this machine and model; `reason_lines` say why, one sentence each."""

    exit_status = 3
    default_summary = "no plan suits this machine and model"

    def __init__(
        self,
        tried: str,
        because: str,
        values: Mapping[str, object] | None = None,
        remedy: str = "",
        *,
        summary: str | None = None,
        reason_lines: tuple[str, ...] = (),
    ) -> None:
        super().__init__(tried, because, values, remedy, summary=summary)
        self.reason_lines = reason_lines


class PlacementError(StratadError):
    """Pages or threads are not where the plan says, or the kernel refuses to put them there."""

    exit_status = 4
    default_summary = "the placement does not hold"


def render_error(error: StratadError) -> str:
    """Give the four lines that commands and the journal show for an error.

    Values stand behind the cause, remedy is left out when there is none. Control characters are made visible,
    so that a file name or a header key can never draw on the reader's terminal or start a new journal line.
    """
    because = one_line(error.because)
    if error.values:
        because += f" ({_value_list(error.values)})"
    lines = [
        f"error: {one_line(error.summary)}",
        f"  tried:   {one_line(error.tried)}",
        f"  because: {because}",
    ]
    lines += [f"           {one_line(line)}" for line in getattr(error, "reason_lines", ())]
    if error.remedy:
        lines.append(f"  remedy:  {one_line(error.remedy)}")
    return "\n".join(lines)


def _value_list(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={one_line(str(value))}" for name, value in values.items())


def one_line(text: str) -> str:
    """Give a text with its control characters written out, so that it stays on one line of a terminal."""
    return _CONTROL_CHARACTERS.sub(lambda match: repr(match.group())[1:-1], text)
