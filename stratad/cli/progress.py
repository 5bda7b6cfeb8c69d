"""How far a long command is: a bar on a terminal, plain lines elsewhere, both on standard error."""

from __future__ import annotations

import shutil
import sys
import time

import click

_BAR_COLUMNS = 24
# A log gets a line now and then, not one for every sample.
_LINE_SECONDS = 5.0


class Progress:
    """Shows what is being done. Standard output stays the report's."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._is_quiet = is_quiet
        self._said_seconds = float("-inf")

    def report(self, what: str, fraction: float) -> None:
        """Shows what is being done now, and how much of everything is done."""
        if self._is_quiet:
            return
        if self._is_terminal:
            self._draw(what, fraction)
            return
        now_seconds = time.monotonic()
        if now_seconds - self._said_seconds >= _LINE_SECONDS:
            self._said_seconds = now_seconds
            click.echo(f"progress  {fraction:4.0%} {what}", err=True)

    def clear(self) -> None:
        """Takes the bar off the terminal."""
        if self._is_terminal and not self._is_quiet:
            click.echo("\r\x1b[K", nl=False, err=True)

    def _draw(self, what: str, fraction: float) -> None:
        done = round(_BAR_COLUMNS * min(1.0, max(0.0, fraction)))
        line = f"[{'#' * done}{'-' * (_BAR_COLUMNS - done)}] {fraction:4.0%} {what}"
        width = shutil.get_terminal_size().columns - 1
        click.echo(f"\r\x1b[K{line[:width]}", nl=False, err=True)
