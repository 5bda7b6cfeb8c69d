"""`stratactl chat`: what reaches a terminal of a model's text."""

from __future__ import annotations

import io
import sys

import pytest

from stratad.cli.chat import _Answer, _shown, _take

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


def taken(*deltas: dict[str, str]) -> _Answer:
    """An answer that came in these pieces, shown."""
    answer = _Answer()
    for delta in deltas:
        _take({"choices": [{"delta": delta}]}, answer, shows=True)
    return answer


THOUGHT = (
    {"reasoning_content": "two "},
    {"reasoning_content": "and two"},
    {"content": "fo"},
    {"content": "ur"},
)


def test_a_terminal_shows_thinking_apart_from_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    answer = taken(*THOUGHT)
    assert terminal.getvalue() == "two and two\n\nfour"
    assert (answer.thinking, answer.text) == ("two and two", "four")


def test_a_pipe_gets_the_answer_without_the_thinking(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    assert taken(*THOUGHT).thinking == "two and two"
    assert pipe.getvalue() == "four"


def test_without_thinking_the_answer_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    taken({"content": "fo"}, {"content": "ur"})
    assert terminal.getvalue() == "four"
