"""`stratactl doctor`: what on this machine stands in the way of a well-placed model, and what to do about it.

Facts are read once (`gather`), every check is a pure function of them (`CHECKS`), and the table of checks is the source
of the report and of docs/DOCTOR.md alike.
"""

from __future__ import annotations

from stratad.doctor.check import Check, Finding, Group, Severity
from stratad.doctor.facts import MachineFacts, PlacementVerdict
from stratad.doctor.gather import LiveAnswers, Question, gather
from stratad.doctor.report import report_document, report_text
from stratad.doctor.table import CHECKS, Report, examine

__all__ = [
    "CHECKS",
    "Check",
    "Finding",
    "Group",
    "LiveAnswers",
    "MachineFacts",
    "PlacementVerdict",
    "Question",
    "Report",
    "Severity",
    "examine",
    "gather",
    "report_document",
    "report_text",
]
