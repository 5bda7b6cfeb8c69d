"""The table of all checks, and what comes of going through it."""

from __future__ import annotations

from dataclasses import dataclass

from stratad.doctor.check import Check, Finding, Group, Severity
from stratad.doctor.device_checks import DEVICE_CHECKS
from stratad.doctor.facts import MachineFacts
from stratad.doctor.limit_checks import LIMIT_CHECKS
from stratad.doctor.memory_checks import MEMORY_CHECKS
from stratad.doctor.page_checks import PAGE_CHECKS
from stratad.doctor.processor_checks import PROCESSOR_CHECKS
from stratad.doctor.service_checks import SERVICE_CHECKS

# In the order of the report: by group, within a group as the modules list them.
CHECKS: tuple[Check, ...] = tuple(
    check
    for group in Group
    for check in (
        *SERVICE_CHECKS,
        *MEMORY_CHECKS,
        *PAGE_CHECKS,
        *LIMIT_CHECKS,
        *PROCESSOR_CHECKS,
        *DEVICE_CHECKS,
    )
    if check.group is group
)

# Errors that have a status of their own among those of every command (0 fine, 1 failed, 3 nothing suitable,
# 4 placement below its limit); the more specific one wins.
_OWN_STATUS = {"placement-below-limit": 4, "no-plan-suits": 3}


@dataclass(frozen=True, slots=True)
class Examined:
    """One check with what it found."""

    check: Check
    finding: Finding


@dataclass(frozen=True, slots=True)
class Report:
    """Every check with its finding, in the table's order."""

    items: tuple[Examined, ...]

    def count_of(self, severity: Severity) -> int:
        """Give how many findings are of a severity."""
        return sum(item.finding.severity is severity for item in self.items)

    def exit_status(self, *, is_strict: bool = False) -> int:
        """Give the command's exit status.

        0 when nothing is worse than a warning (strict: than a hint), 4 when the running daemon's placement is below
        its limit, 3 when no plan suits, 1 for any other error (strict: or warning).
        """
        errors = {item.check.code for item in self.items if item.finding.severity is Severity.ERROR}
        own = next((status for code, status in _OWN_STATUS.items() if code in errors), None)
        if own is not None:
            return own
        return 1 if errors or (is_strict and self.count_of(Severity.WARNING)) else 0


def examine(facts: MachineFacts) -> Report:
    """Give what every check of the table finds in these facts."""
    return Report(tuple(Examined(check, check.examine(facts)) for check in CHECKS))
