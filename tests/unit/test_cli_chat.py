"""`stratactl chat`: what reaches a terminal of a model's text."""

from __future__ import annotations

import io
import sys

import pytest

from stratad.cli.chat import _shown

HOSTILE = "fine\n\ttab \x1b[2Jcleared \x9b31mred \x07bell \x7f\r 你好 👩‍🚀"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_character_but_line_ends_and_tabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", _Terminal())
    assert _shown(HOSTILE) == "fine\n\ttab [2Jcleared 31mred bell  你好 👩‍🚀"


def test_a_pipe_gets_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert _shown(HOSTILE) == HOSTILE
