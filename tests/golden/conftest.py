from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files anew; review the diff"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the validation table after `pytest tests/golden`, whether its tests passed or not."""
    reports = [report for name in ("passed", "failed") for report in terminalreporter.stats.get(name, [])]
    if not any("test_arms.py" in report.nodeid for report in reports):
        return
    from tests.support.arm_cases import load_cases
    from tests.support.arm_scores import judgements, scores, table

    items = judgements(load_cases())
    terminalreporter.section("reported arms")
    terminalreporter.write_line(table(items))
    for group in ("seed", "open"):
        found = scores(item for item in items if item.case.group == group)
        terminalreporter.write_line(
            f"{group}: {', '.join(f'{name} {value}' for name, value in found.items())}"
        )
