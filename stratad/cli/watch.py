"""`stratactl watch`: the running daemon live in a terminal, or line by line where there is none."""

from __future__ import annotations

import datetime
import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable

import click

from stratad.cli.daemon_access import DaemonAddress, daemon_options, endpoint_of, get_json, get_text
from stratad.cli.output import error_document, json_option, terminal_has_colour
from stratad.cli.terminal_screen import TerminalScreen
from stratad.cli.watch_look import Look, read_samples
from stratad.cli.watch_view import Terminal, document, frame, plain_line
from stratad.errors import ConfigurationError, DaemonError

# As many rates as the widest terminal shows.
_KEPT_LOOKS = 300


@click.command()
@click.option(
    "--interval",
    "interval_seconds",
    type=click.FloatRange(min=0.1, max=3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look twice, one interval apart, show that and end.")
@daemon_options
@json_option
def watch(address: DaemonAddress, interval_seconds: float, once: bool, as_json: bool) -> int:
    """Watch the running daemon: decode rate, placement, waiting, slots, cache and reasons.

    In a terminal the view is drawn anew at every look, also while the daemon loads or is away; Ctrl-C ends it. Into a
    pipe or file goes one line a look, with --json one document a line.

    Exit status 1 with --once means that the daemon cannot be reached.
    """
    watcher = _Watcher(address)
    if once:
        return _show_once(watcher, interval_seconds, as_json)
    if as_json:
        return _repeat(watcher, interval_seconds, watcher.json_line)
    if not sys.stdout.isatty():
        return _repeat(watcher, interval_seconds, watcher.plain_line)
    with TerminalScreen(sys.stdout) as screen:
        while True:
            watcher.look()
            screen.show(watcher.frame)
            screen.wait(interval_seconds, watcher.frame)
    return 0


class _Watcher:
    """The looks so far, and why the daemon did not answer the last time."""

    def __init__(self, address: DaemonAddress) -> None:
        self._address = address
        self._endpoint = ""
        self._looks: deque[Look] = deque(maxlen=_KEPT_LOOKS)
        self._error: DaemonError | None = None
        self._clock = ""

    def look(self) -> None:
        """Looks once. A daemon that does not answer is no error here; an address that cannot be used is."""
        self._clock = datetime.datetime.now().astimezone().strftime("%H:%M:%S")
        try:
            self._look()
        except DaemonError as error:
            self._error = error

    def require(self) -> None:
        """Raises the error of the last look, if it failed."""
        if self._error is not None:
            raise self._error

    def _look(self) -> None:
        self._endpoint = endpoint_of(self._address)
        status, scrape = get_json(self._address, "/status"), get_text(self._address, "/metrics")
        try:
            look = Look(time.monotonic(), status, read_samples(scrape))
        except ValueError as error:
            raise ConfigurationError(
                f"reading the metrics of {self._endpoint}", f"they are no scrape: {error}"
            ) from error
        self._error = None
        self._looks.append(look)

    def frame(self) -> list[str]:
        """The view for the terminal as it is now."""
        columns, rows = shutil.get_terminal_size()
        has_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        terminal = Terminal(columns, rows, terminal_has_colour(), has_unicode)
        error = self._error.because if self._error else None
        return frame(self._looks, error, self._clock, self._endpoint, terminal)

    def plain_line(self) -> str:
        """The look as a line."""
        return plain_line(self._looks, self._error.because if self._error else None, self._clock)

    def json_line(self) -> str:
        """The look as a document on one line."""
        moment = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        if self._error is not None:
            return json.dumps({"time": moment, **error_document(self._error)})
        return json.dumps(document(self._looks, moment))


def _show_once(watcher: _Watcher, interval_seconds: float, as_json: bool) -> int:
    watcher.look()
    watcher.require()
    time.sleep(interval_seconds)
    watcher.look()
    watcher.require()
    click.echo(watcher.json_line() if as_json else "\n".join(watcher.frame()))
    return 0


def _repeat(watcher: _Watcher, interval_seconds: float, line: Callable[[], str]) -> int:
    """A line a look until somebody ends it."""
    try:
        while True:
            watcher.look()
            click.echo(line())
            time.sleep(interval_seconds)
    except KeyboardInterrupt:
        return 0
