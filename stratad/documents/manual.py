"""The man pages stratactl(1) and stratad(8), made from the commands themselves.

`python -m stratad.documents.manual FOLDER` writes both.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import click

from stratad.cli.main import COMMANDS, stratactl
from stratad.daemon.main import main as stratad

# Of the text, so that the same sources give the same pages.
DATE = "2026-11-30"
_EXIT_STATUS = (
    ("0", "Fine."),
    ("1", "Failed: an operating error that was told in four lines, or a finding that counts as one."),
    ("2", "Wrong option, argument or configuration."),
    ("3", "Nothing suitable: no policy can hold the model on this machine; the reasons are shown."),
    (
        "4",
        "The pages of the running daemon lie elsewhere than planned, by more than placement.limit_ratio allows.",
    ),
)
_FILES = (
    ("/etc/stratad/stratad.toml", "The configuration; docs/CONFIGURATION.md has every key."),
    ("/etc/stratad/plan.json", "The plan that stratactl apply left for the daemon."),
    (
        "/etc/systemd/system/stratad.service.d/50-placement.conf",
        "The plan's drop-in, written by stratactl apply.",
    ),
    ("/run/stratad/endpoint.json", "Where the running daemon listens."),
    ("/var/lib/stratad", "What was measured on this machine."),
)
_SIGNALS = (
    (
        "SIGTERM, SIGINT",
        "Answers that run may finish for server.drain_seconds, then the daemon ends with status 0.",
    ),
    ("SIGHUP", "Reads the configuration again; what cannot change while running is named in the journal."),
)


def stratactl_page() -> str:
    """Give stratactl(1)."""
    lines = [
        *_head(
            "STRATACTL", "1", "stratactl", "plan, explain, verify and diagnose where stratad places a model"
        )
    ]
    lines += [".B stratactl", ".RB [ \\-\\-debug ]", ".I COMMAND", ".RI [ OPTIONS ]", ".SH DESCRIPTION"]
    lines += _paragraphs(
        "stratactl plans where a mixture-of-experts model lies in host memory and which cores read it, carries the "
        "plan out through systemd, and checks that it holds. See stratad(8) for the daemon.\n\n"
        "Every command that reports takes --json for one JSON document; those that look at a machine take --root for "
        "a captured one."
    )
    lines.append(".SH COMMANDS")
    context = click.Context(stratactl, info_name="stratactl", **stratactl.context_settings)
    for name in COMMANDS:
        command = stratactl.get_command(context, name)
        assert command is not None
        lines += _command_lines(f"stratactl {name}", command, context)
    lines += _tail(".BR stratad (8), .BR systemctl (1), .BR systemd.resource-control (5), .BR numa (7)")
    return "\n".join(lines) + "\n"


def stratad_page() -> str:
    """Give stratad(8)."""
    lines = [
        *_head(
            "STRATAD", "8", "stratad", "serve a mixture-of-experts model from host memory, verified by node"
        )
    ]
    lines += [
        ".B stratad",
        ".RB [ \\-\\-config",
        ".IR FILE ]",
        ".br",
        ".B stratad demo",
        ".RB [ \\-\\-port",
        ".IR PORT ]",
    ]
    lines.append(".SH DESCRIPTION")
    lines += _paragraphs(
        "stratad loads the model named in its configuration, places every expert's weights on the node whose cores "
        "read them, checks with move_pages(2) where the pages came to lie, and only then says that it is ready. It "
        "serves an OpenAI-compatible interface and Prometheus metrics over HTTP.\n\n"
        "It is made to run as stratad.service and runs by hand just as well: placement and pinning are its own; the "
        "unit's cpuset is written by stratactl apply."
    )
    lines.append(".SH OPTIONS")
    context = click.Context(stratad, info_name="stratad", **stratad.context_settings)
    lines += _option_lines(stratad, context)
    lines.append(".SH COMMANDS")
    for name in sorted(stratad.commands):
        lines += _command_lines(f"stratad {name}", stratad.commands[name], context)
    lines += [".SH SIGNALS", *_list_lines(_SIGNALS)]
    lines += _tail(".BR stratactl (1), .BR systemd.service (5), .BR move_pages (2), .BR set_mempolicy (2)")
    return "\n".join(lines) + "\n"


def _head(title: str, section: str, name: str, summary: str) -> Iterator[str]:
    yield '.\\" Made by stratad/documents/manual.py; changes here are lost.'
    yield f'.TH {title} {section} {DATE} "stratad {version("stratad")}" "stratad manual"'
    yield ".SH NAME"
    yield f"{name} \\- {_escaped(summary)}"
    yield ".SH SYNOPSIS"


def _tail(see_also: str) -> Iterator[str]:
    yield ".SH EXIT STATUS"
    yield from _list_lines(_EXIT_STATUS)
    yield ".SH FILES"
    yield from _list_lines(_FILES)
    yield ".SH SEE ALSO"
    yield from (part.strip() if part.endswith(")") else f"{part.strip()}," for part in see_also.split(", "))


def _command_lines(name: str, command: click.Command, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    yield f".SS {_escaped(' '.join([name, *command.collect_usage_pieces(context)]))}"
    yield from _paragraphs(command.help or "")
    yield from _option_lines(command, context)


def _option_lines(command: click.Command, context: click.Context) -> Iterator[str]:
    records = [parameter.get_help_record(context) for parameter in command.params]
    # Click keeps the first help option it made of a command, whatever names the context gave it.
    records.append((", ".join(context.help_option_names), "Show this message and exit."))
    for record in filter(None, records):
        yield ".TP"
        yield f".B {_escaped(record[0])}"
        yield _escaped(record[1]) or "\\&"


def _list_lines(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    for term, text in rows:
        yield ".TP"
        yield f".B {_escaped(term)}"
        yield _escaped(text)


def _paragraphs(text: str) -> list[str]:
    """Give a help text as roff paragraphs; `code` becomes bold."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines += [".PP", _escaped(" ".join(paragraph.split()))]
    # A heading brings its own space; a paragraph mark behind it is noise to mandoc.
    return lines[1:]


def _escaped(text: str) -> str:
    """Give a text that roff sets as it is; words between backquotes become bold."""
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    safe = re.sub(r"`([^`]+)`", r"\\fB\1\\fP", safe)
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe


def main(folder: Path) -> None:
    """Write both pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stratactl.1").write_text(stratactl_page(), encoding="utf-8")
    (folder / "stratad.8").write_text(stratad_page(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
