"""A check and what it finds: one row of the table that code and docs/DOCTOR.md share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from planner import Reason
from planner.quantity import format_bytes
from stratad.doctor.facts import MachineFacts

# Cached files go; what programs hold stays.
DROP_CACHE = "sync && echo 1 | sudo tee /proc/sys/vm/drop_caches"

Evidence = str | int | float | bool | None | tuple[int, ...]


class Severity(StrEnum):
    """How bad a finding is, the worst first.

    An error keeps the service from working or from what was promised; a warning costs speed or will; a hint is worth
    knowing. `unknown` means that it could not be looked at here.
    """

    ERROR = "error"
    WARNING = "warning"
    HINT = "hint"
    UNKNOWN = "unknown"
    FINE = "fine"


class Group(StrEnum):
    """What a check is about; the report's sections, in this order."""

    MODEL = "model and plan"
    MEMORY = "memory"
    PAGES = "huge pages"
    LIMITS = "limits"
    PROCESSORS = "processors and links"
    DEVICES = "GPU"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: one sentence with the numbers compared, the same numbers as values, and what to do now.

    `remedy` holds commands to type, or sentences where no command does it.
    """

    severity: Severity
    message: str
    evidence: Mapping[str, Evidence] = field(default_factory=dict, hash=False)
    remedy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table.

    Attributes:
        code: Stable and public; the planner's own code where it has a reason for the same thing.
        group: The section of the report.
        question: What the check asks.
        why: Why it matters, in a sentence or two.
        source: What that rests on: a measurement, a report, or the kernel's documentation.
        severities: What it can find beside `fine` and `unknown`.
        examine: Facts in, finding out; reads nothing.
    """

    code: str
    group: Group
    question: str
    why: str
    source: str
    severities: tuple[Severity, ...]
    examine: Callable[[MachineFacts], Finding]

    @property
    def documentation(self) -> str:
        """Where the check is described."""
        return f"docs/DOCTOR.md#{self.code}"


def fine(message: str, **evidence: Evidence) -> Finding:
    """Give a finding that says that all is well, and with which numbers."""
    return Finding(Severity.FINE, message, evidence)


def unknown(message: str, *remedy: str) -> Finding:
    """Give a finding that says what could not be looked at, and how it can be."""
    return Finding(Severity.UNKNOWN, message, {}, remedy)


def from_reason(severity: Severity, reason: Reason, *remedy: str) -> Finding:
    """Give the planner's reason as a finding; its own remedy where no better command is named."""
    own = (reason.remedy,) if reason.remedy else ()
    return Finding(severity, reason.message, dict(reason.evidence), remedy or own)


def bytes_by_node(sizes: Mapping[int, int]) -> str:
    """Give "node 0 31.0 GiB, node 1 30.2 GiB"."""
    return ", ".join(f"node {node_id} {format_bytes(size)}" for node_id, size in sizes.items())
