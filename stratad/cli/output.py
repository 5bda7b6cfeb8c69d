"""What every command shares: how documents, errors and refusals reach the user."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from stratad.errors import StratadError, render_error


def print_json(document: Mapping[str, object]) -> None:
    """Write one JSON document to standard output, keys in the order given, readable by people too."""
    click.echo(json.dumps(document, indent=2))


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
