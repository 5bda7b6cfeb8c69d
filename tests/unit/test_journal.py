"""Log lines: stable keys, journal priorities, nothing that breaks a line."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from stratad import journal


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_has_subject_message_and_keys() -> None:
    assert journal.render_line("ready", "", {"model": "m", "state": "ready"}) == "ready: model=m state=ready"
    assert journal.render_line("stopped", "", {}) == "stopped"
    assert journal.render_line("engine", "failed", {"ratio": 0.5, "is_late": True, "node": None}) == (
        "engine: failed ratio=0.5 is_late=true node=none"
    )


def test_a_value_cannot_start_another_line_or_key() -> None:
    line = journal.render_line("x", "", {"reason": 'a b\nREADY=1 "q"', "empty": ""})
    assert line == 'x: reason="a b\\nREADY=1 \\"q\\"" empty=""'


def test_the_journal_gets_a_priority_on_every_line() -> None:
    stream = io.StringIO()
    journal.open_journal(stream, is_journal=True)
    journal.inform("ready", model="m")
    journal.warn("placement", verdict="below-limit")
    journal.report_block("error: a\n  remedy: b")
    try:
        raise ValueError("inner")
    except ValueError:
        journal.report_exception("engine", "decoding failed")
    lines = stream.getvalue().splitlines()
    assert lines[:4] == [
        "<6>ready: model=m",
        "<4>placement: verdict=below-limit",
        "<3>error: a",
        "<3>  remedy: b",
    ]
    assert all(line.startswith("<3>") for line in lines[4:])
    assert lines[-1] == "<3>ValueError: inner"


def test_a_terminal_gets_plain_lines_with_the_level_of_bad_news() -> None:
    stream = io.StringIO()
    journal.open_journal(stream, is_journal=False)
    journal.inform("ready")
    journal.warn("placement")
    journal.report_block("error: a")
    logging.getLogger("uvicorn.error").info("not ours")
    assert stream.getvalue().splitlines() == ["ready", "warning: placement", "error: a"]
