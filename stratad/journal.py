"""Log lines with stable keys, for people and, in the journal's own fields, for programs.

A line is `subject: message key=value ...`. Under systemd it goes to the journal's socket with its subject and values as
fields (STRATAD_SUBJECT, STRATAD_CODE, ...), by which `journalctl` finds it. What the socket does not take goes to
standard error, where each line starts with `<priority>` for the journal (sd-daemon(3)). Elsewhere lines are plain, and
the level is written out when it matters.

SUBJECTS and FIELDS are public: docs/JOURNAL.md is made from them (`python -m stratad.journal > docs/JOURNAL.md`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

_LOGGER = logging.getLogger("stratad")

# syslog(3) priorities for the levels in use.
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}

Value = str | int | float | bool | None

SOCKET_PATH = Path("/run/systemd/journal/socket")

SUBJECTS: Mapping[str, str] = {
    "chat template": "which template renders chats, where it is not the model's own",
    "drain": "that somebody had the daemon refuse requests, or take them again",
    "engine": "steps of decoding that failed",
    "expert profile": "which experts are used most could not be saved for the next start",
    "gpu": "that a GPU has failed, and what goes on without it",
    "listening": "the address that answers from now on",
    "loading": "how far loading has come: at every new stage, and every ten seconds",
    "machine": "whether the machine is the one that the plan was made for",
    "pinning": "threads that were put back on their CPUs, or cannot be",
    "placement": "what a check of pages found, when that has changed, and repairs",
    "plan": "the plan, and one line for each of its reasons and of those found later",
    "prompt cache": "entries that could not be kept or used",
    "ready": "the model answers",
    "reload": "what SIGHUP changed",
    "saved prompts": "prompts kept for the next start, or taken up from the last one",
    "server": "requests that met a fault of the daemon itself",
    "stopped": "the end",
    "stopping": "what runs when the daemon is asked to stop, and what is cut off",
}

FIELDS: Mapping[str, str] = {
    "allowed_cpus": "CPUs that the process may use, as a list of ranges",
    "code": "a reason's code (docs/REASONS.md)",
    "confidence": "how far the plan's choice can be trusted",
    "effect": "what the reason does: chooses, informs, rejects or warns",
    "endpoint": "address, `http://host:port` or `unix:/path`",
    "fingerprint": "of the plan, or of the machine where the subject is machine",
    "kind": "the fault's type",
    "left_out": "prompts that were not saved",
    "limit_ratio": "least share of each slice's pages on its own nodes",
    "loaded_ratio": "share of the stage that is done, 0 to 1",
    "missing_cpus": "CPUs of the plan that are offline or outside the cpuset",
    "model": "name that clients use",
    "moved_pages": "pages moved back to their slice's node",
    "path": "path of the request",
    "planned_fingerprint": "of the machine that the plan was made for",
    "policy": "of the plan, or that a reason is about",
    "reason": "what went wrong, in the words of the kernel or the library",
    "requests_running": "requests being computed",
    "requests_waiting": "requests in the queue",
    "saved": "prompts that were saved",
    "settings": "settings concerned, as section.key with commas between",
    "stage": "what loading does now",
    "state": "the daemon's state, as /health tells it",
    "stays": "whether the daemon stays when it has drained",
    "threads": "threads that were put back",
    "verdict": "met, below-limit, unverifiable or not-applicable",
    "worst_ratio": "share of pages on their own nodes, of the slice that has the lowest",
    "worst_slice": "that slice",
}


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


class JournalHandler(logging.StreamHandler[TextIO]):
    """Sends records to the journal with their fields, or as lines to a stream that the journal reads.

    Source: systemd's documentation of its native protocol (JOURNAL_NATIVE_PROTOCOL).
    """

    def __init__(self, stream: TextIO, path: Path = SOCKET_PATH) -> None:
        super().__init__(stream)
        self.setFormatter(JournalFormatter())
        self._address = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        # A busy journal must not hold up decoding; what it does not take at once goes the other way.
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        """Sends one record; falls back to the stream."""
        # An error that ends the process goes to the stream, which is known to be the unit's: the journal finds
        # out who has sent a datagram when it reads it, and the process may be gone by then.
        if not getattr(record, "is_block", False):
            with contextlib.suppress(OSError):
                self._socket.sendto(native_message(self._fields(record)), self._address)
                return
        super().emit(record)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()
        super().close()

    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        text = logging.Formatter().format(record)
        values: Mapping[str, Value] = getattr(record, "values", {})
        return {
            "MESSAGE": text,
            "PRIORITY": str(_PRIORITIES.get(record.levelno, 6)),
            "SYSLOG_IDENTIFIER": "stratad",
            # A value that is not there is no field: `journalctl -F` would list it.
            **{field_name(key): _plain_value(value) for key, value in values.items() if value is not None},
        }


def field_name(key: str) -> str:
    """The journal's field for a key of a log line."""
    return f"STRATAD_{key.upper()}"


def native_message(fields: Mapping[str, str]) -> bytes:
    """One journal entry on the wire: `NAME=value` lines, and values that hold a line end with their length."""
    parts = []
    for name, value in fields.items():
        data = value.encode("utf-8", errors="replace")
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)


def is_journal_stream(journal_stream: str | None, descriptor: int) -> bool:
    """Whether an open file is the one that systemd connected to the journal.

    JOURNAL_STREAM alone says little: children inherit it and may write elsewhere.

    Source: systemd.exec(5), $JOURNAL_STREAM: device and inode with a colon between.
    """
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return journal_stream == f"{status.st_dev}:{status.st_ino}"


def open_journal(stream: TextIO, *, is_journal: bool, level: int = logging.INFO) -> None:
    """Sends the log lines, from `level` upwards, to the journal or to `stream`; replaces an earlier destination.

    Libraries' own loggers (uvicorn) pass through from warning upwards only.
    """
    destination: logging.Handler
    if is_journal:
        destination = JournalHandler(stream)
    else:
        destination = logging.StreamHandler(stream)
        destination.setFormatter(PlainFormatter())
    root = logging.getLogger()
    root.handlers[:] = [destination]
    root.setLevel(logging.WARNING)
    # asyncio warns of every write to a client that has gone; that is their right and no news.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    _LOGGER.setLevel(level)


def inform(subject: str, message: str = "", **values: Value) -> None:
    """Logs something an operator wants to see once."""
    _LOGGER.info("%s", render_line(subject, message, values), extra=_extra(subject, values))


def warn(subject: str, message: str = "", **values: Value) -> None:
    """Logs something that works less well than configured."""
    _LOGGER.warning("%s", render_line(subject, message, values), extra=_extra(subject, values))


def inform_line(subject: str, line: str, **values: Value) -> None:
    """Logs a line that somebody else has rendered, such as the planner; the values go into fields only."""
    _LOGGER.info("%s", line, extra=_extra(subject, values))


def warn_line(subject: str, line: str, **values: Value) -> None:
    """Logs such a line as a warning."""
    _LOGGER.warning("%s", line, extra=_extra(subject, values))


def report_error(subject: str, message: str = "", **values: Value) -> None:
    """Logs something that failed."""
    _LOGGER.error("%s", render_line(subject, message, values), extra=_extra(subject, values))


def report_exception(subject: str, message: str = "", **values: Value) -> None:
    """Logs something that failed, with the traceback of the exception being handled."""
    _LOGGER.exception("%s", render_line(subject, message, values), extra=_extra(subject, values))


def report_block(text: str) -> None:
    """Logs several lines as they are, at the priority of an error: a rendered operating error."""
    _LOGGER.error("%s", text, extra={"is_block": True})


def render_line(subject: str, message: str, values: dict[str, Value]) -> str:
    """`subject: message key=value ...`, with values quoted where they hold blanks, quotes or line ends."""
    parts = [message] if message else []
    parts.extend(f"{key}={_render_value(value)}" for key, value in values.items())
    return f"{subject}: {' '.join(parts)}" if parts else subject


def _extra(subject: str, values: Mapping[str, Value]) -> dict[str, object]:
    return {"values": {"subject": subject, **values}}


def _plain_value(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _render_value(value: Value) -> str:
    text = _plain_value(value)
    needs_quotes = text == "" or any(character.isspace() or character in '"=' for character in text)
    return json.dumps(text, ensure_ascii=False) if needs_quotes else text


_EXAMPLES = (
    ("everything since the last start", "journalctl -u stratad -b --since today"),
    ("what was decided and why", "journalctl -u stratad STRATAD_SUBJECT=plan"),
    (
        "every time pages lay elsewhere than planned",
        "journalctl -u stratad STRATAD_CODE=placement-below-limit",
    ),
    ("warnings and worse", "journalctl -u stratad -p warning"),
    ("placement checks as JSON", "journalctl -u stratad STRATAD_SUBJECT=placement -o json"),
    ("which codes there have been at all", "journalctl -F STRATAD_CODE"),
    ("follow loading", "journalctl -u stratad -f STRATAD_SUBJECT=loading"),
)


def render_documentation() -> str:
    """docs/JOURNAL.md, generated from the tables."""
    lines = [
        "# The journal",
        "",
        "Generated by `python -m stratad.journal > docs/JOURNAL.md`; do not edit.",
        "",
        "Under systemd every log line is a journal entry whose values are fields of their own; the line's text has",
        "them as `key=value` as well. Names and meanings are stable. Elsewhere the same lines go to standard error.",
        "An error that ends the daemon is written as a block of four lines (what was tried, because, values, remedy),",
        "at priority 3 and without fields.",
        "",
        "| to see | type |",
        "|---|---|",
        *(f"| {wish} | `{command}` |" for wish, command in _EXAMPLES),
        "",
        "## Subjects (`STRATAD_SUBJECT`)",
        "",
        "| subject | tells |",
        "|---|---|",
        *(f"| `{subject}` | {meaning} |" for subject, meaning in SUBJECTS.items()),
        "",
        "## Fields",
        "",
        "| field | meaning |",
        "|---|---|",
        *(f"| `{field_name(key)}` | {meaning} |" for key, meaning in FIELDS.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_documentation())
