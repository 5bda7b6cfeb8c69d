"""Log lines with stable keys, readable by people and by `journalctl | grep`.

A line is `subject: message key=value ...`. Under systemd each line starts with `<priority>`, which the
journal turns into its PRIORITY field (sd-daemon(3)); elsewhere the level is written out when it matters.
"""

from __future__ import annotations

import json
import logging
from typing import TextIO

_LOGGER = logging.getLogger("stratad")

# syslog(3) priorities for the levels in use.
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}

Value = str | int | float | bool | None


class JournalFormatter(logging.Formatter):
    """Prefixes every line of a record, tracebacks included, with its syslog priority."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's lines, each with the priority that the journal reads."""
        priority = _PRIORITIES.get(record.levelno, 6)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


class PlainFormatter(logging.Formatter):
    """Names the level of warnings and errors, and leaves other lines bare."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's text, led by its level from warning upwards."""
        text = super().format(record)
        if getattr(record, "is_block", False):
            return text
        return f"{record.levelname.lower()}: {text}" if record.levelno >= logging.WARNING else text


def open_journal(stream: TextIO, *, is_journal: bool, level: int = logging.INFO) -> None:
    """Sends the daemon's log lines, from `level` upwards, to `stream`; replaces an earlier destination.

    Libraries' own loggers (uvicorn) pass through from warning upwards only.
    """
    destination = logging.StreamHandler(stream)
    destination.setFormatter(JournalFormatter() if is_journal else PlainFormatter())
    root = logging.getLogger()
    root.handlers[:] = [destination]
    root.setLevel(logging.WARNING)
    # asyncio warns of every write to a client that has gone; that is their right and no news.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    _LOGGER.setLevel(level)


def inform(subject: str, message: str = "", **values: Value) -> None:
    """Logs something an operator wants to see once."""
    _LOGGER.info("%s", render_line(subject, message, values))


def warn(subject: str, message: str = "", **values: Value) -> None:
    """Logs something that works less well than configured."""
    _LOGGER.warning("%s", render_line(subject, message, values))


def inform_line(line: str) -> None:
    """Logs a line that somebody else has rendered, such as the planner."""
    _LOGGER.info("%s", line)


def warn_line(line: str) -> None:
    """Logs such a line as a warning."""
    _LOGGER.warning("%s", line)


def report_error(subject: str, message: str = "", **values: Value) -> None:
    """Logs something that failed."""
    _LOGGER.error("%s", render_line(subject, message, values))


def report_exception(subject: str, message: str = "", **values: Value) -> None:
    """Logs something that failed, with the traceback of the exception being handled."""
    _LOGGER.exception("%s", render_line(subject, message, values))


def report_block(text: str) -> None:
    """Logs several lines as they are, at the priority of an error: a rendered operating error."""
    _LOGGER.error("%s", text, extra={"is_block": True})


def render_line(subject: str, message: str, values: dict[str, Value]) -> str:
    """`subject: message key=value ...`, with values quoted where they hold blanks, quotes or line ends."""
    parts = [message] if message else []
    parts.extend(f"{key}={_render_value(value)}" for key, value in values.items())
    return f"{subject}: {' '.join(parts)}" if parts else subject


def _render_value(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    needs_quotes = text == "" or any(character.isspace() or character in '"=' for character in text)
    return json.dumps(text, ensure_ascii=False) if needs_quotes else text
