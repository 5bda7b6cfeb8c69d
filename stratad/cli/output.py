"""What every command shares: how documents, errors and refusals reach the user."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

import click

from stratad.errors import StratadError, render_error


def print_json(document: Mapping[str, object]) -> None:
    """Write one JSON document to standard output, keys in the order given, readable by people too."""
    click.echo(json.dumps(document, indent=2))


# Reports have a label in the first ten columns and the text behind it.
LABEL_COLUMNS = 10
NARROWEST_COLUMNS = 40
_LABEL_COLOURS = {
    "policy": "green",
    "fine": "green",
    "warning": "yellow",
    "hint": "cyan",
    "refused": "red",
    "error": "red",
    "not": "bright_black",
    "unknown": "bright_black",
}
# Commands are for copying, so they stay on one line of the document whatever the terminal does with it.
_WHOLE_LABEL = "  do"


def print_report(text: str) -> None:
    """Write a report of labelled lines: wrapped and coloured on a terminal, as it is into a pipe or file.

    Colour is left out when NO_COLOR is set or the terminal is dumb.
    """
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    # Terminals only: a pipe needs none of it, and `stratactl plan` must start at once.
    import shutil

    has_colour = terminal_has_colour()
    click.echo(
        terminal_report(text, shutil.get_terminal_size().columns, has_colour), nl=False, color=has_colour
    )


def terminal_has_colour() -> bool:
    """Say whether a terminal is to get colours: NO_COLOR is not set (no-color.org), and it is not dumb."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_report(text: str, column_count: int, has_colour: bool) -> str:
    """Give a report for a terminal of so many columns; text stays in its own columns when a line is wrapped."""
    import textwrap

    width = max(NARROWEST_COLUMNS, column_count)
    lines = []
    for line in text.splitlines():
        label, rest = line[:LABEL_COLUMNS], line[LABEL_COLUMNS:]
        wrapped = [rest]
        if label.rstrip() != _WHOLE_LABEL:
            wrapped = textwrap.wrap(
                rest, width - LABEL_COLUMNS, break_on_hyphens=False, break_long_words=False
            ) or [""]
        colour = _LABEL_COLOURS.get(label.strip()) if has_colour else None
        shown = click.style(label, fg=colour) if colour else label
        lines.append((shown + wrapped[0]).rstrip())
        lines += [" " * LABEL_COLUMNS + part for part in wrapped[1:]]
    return "\n".join(lines) + "\n"


def print_error(error: StratadError) -> None:
    """Write an operating error to standard error in its four lines."""
    click.echo(render_error(error), err=True)


def error_document(error: StratadError) -> dict[str, object]:
    """Give an operating error as JSON values, for commands that were asked for JSON."""
    return {
        "error": {
            "kind": type(error).__name__,
            "summary": error.summary,
            "tried": error.tried,
            "because": error.because,
            "values": {name: _plain(value) for name, value in error.values.items()},
            "remedy": error.remedy,
            "exit_status": error.exit_status,
        }
    }


def json_option(command: click.decorators.FC) -> click.decorators.FC:
    """Add `--json` to a command; its function takes `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Write one JSON document instead of text.")(
        command
    )


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
