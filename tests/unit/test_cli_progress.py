"""Progress: a bar on a terminal, a line now and then elsewhere, nothing where a document was asked for."""

from __future__ import annotations

import pytest

from stratad.cli.progress import Progress


def test_a_terminal_gets_a_bar_in_one_line_that_goes_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    progress = Progress()
    progress.report("a step with a name that is longer than the terminal is wide", 0.5)
    progress.clear()
    shown = capsys.readouterr()
    assert shown.out == ""
    drawn, cleared = shown.err.split("\r\x1b[K")[1:]
    assert drawn.startswith("[############------------]  50% a step")
    assert len(drawn) < 60
    assert (cleared, "\n" in shown.err) == ("", False)


def test_a_log_gets_plain_lines_and_not_one_for_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for step in range(100):
        progress.report(f"step {step}", step / 100)
    progress.clear()
    assert capsys.readouterr().err == "progress    0% step 0\n"


def test_who_asked_for_a_document_gets_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(is_quiet=True)
    progress.report("a step", 0.1)
    progress.clear()
    assert capsys.readouterr().err == ""
