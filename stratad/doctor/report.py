"""A report as text for people and as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping

from planner import Topology, explain_machine
from planner.quantity import count_of
from stratad.doctor.check import Group, Severity
from stratad.doctor.table import Examined, Report
from stratad.errors import one_line

# Labels fit the report's first ten columns (stratad.cli.output).
_ORDER = (Severity.ERROR, Severity.WARNING, Severity.HINT, Severity.UNKNOWN, Severity.FINE)


def report_text(report: Report, topology: Topology, *, has_everything: bool = False) -> str:
    """Give the report for people: what is wrong by group, the worst first, and one line about the rest.

    Args:
        report: What was found.
        topology: The machine, for the first line.
        has_everything: Also show what is fine and what could not be looked at.
    """
    shown = _ORDER if has_everything else _ORDER[:3]
    lines = []
    for group in Group:
        found = [
            item for item in report.items if item.check.group is group and item.finding.severity in shown
        ]
        if found:
            lines += ["", group.value]
            for item in sorted(found, key=lambda item: _ORDER.index(item.finding.severity)):
                lines += _item_lines(item)
    return explain_machine(topology) + "\n".join([*lines, "", _summary(report, has_everything), ""])


def _item_lines(item: Examined) -> list[str]:
    finding, check = item.finding, item.check
    lines = [f"{finding.severity.value:<10}{finding.message} [{check.code}]"]
    is_wrong = finding.severity not in (Severity.FINE, Severity.UNKNOWN)
    if is_wrong:
        lines.append(f"  {'why':<8}{check.why} ({check.source})")
    lines += [f"  {'do':<8}{command}" for command in finding.remedy]
    if is_wrong:
        lines.append(f"  {'more':<8}{check.documentation}")
    # Names of models, files and processes come from outside.
    return [one_line(line) for line in lines]


def _summary(report: Report, has_everything: bool) -> str:
    parts = [
        count_of(report.count_of(severity), severity.value)
        for severity in (Severity.ERROR, Severity.WARNING, Severity.HINT)
        if report.count_of(severity)
    ]
    text = (
        f"found     {', '.join(parts) or 'nothing to mend'}; {report.count_of(Severity.FINE)} checks are fine"
    )
    unknown = report.count_of(Severity.UNKNOWN)
    if unknown:
        text += f", {unknown} could not be looked at here"
    return text + ("" if has_everything else " (--all shows them)")


def report_document(report: Report, *, is_strict: bool = False) -> Mapping[str, object]:
    """Give the report as JSON values."""
    return {
        "exit_status": report.exit_status(is_strict=is_strict),
        "counts": {severity.value: report.count_of(severity) for severity in Severity},
        "findings": [_item_document(item) for item in report.items],
    }


def _item_document(item: Examined) -> Mapping[str, object]:
    finding, check = item.finding, item.check
    return {
        "code": check.code,
        "severity": finding.severity.value,
        "group": check.group.value,
        "message": finding.message,
        "evidence": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in finding.evidence.items()
        },
        "question": check.question,
        "why": check.why,
        "source": check.source,
        "remedy": list(finding.remedy),
        "documentation": check.documentation,
    }
