"""Log lines: stable keys, journal priorities, nothing that breaks a line."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratad import journal

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "JOURNAL.md"
LIMIT_SECONDS = 20.0


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_has_subject_message_and_keys() -> None:
    assert journal.render_line("ready", "", {"model": "m", "state": "ready"}) == "ready: model=m state=ready"
    assert journal.render_line("stopped", "", {}) == "stopped"
    assert journal.render_line("engine", "failed", {"ratio": 0.5, "is_late": True, "node": None}) == (
        "engine: failed ratio=0.5 is_late=true node=none"
    )


def test_a_value_cannot_start_another_line_or_key() -> None:
    line = journal.render_line("x", "", {"reason": 'a b\nREADY=1 "q"', "empty": ""})
    assert line == 'x: reason="a b\\nREADY=1 \\"q\\"" empty=""'


def test_without_its_socket_the_journal_gets_a_priority_on_every_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    send_to(tmp_path / "nobody", stream, monkeypatch)
    journal.inform("ready", model="m")
    journal.warn("placement", verdict="below-limit")
    journal.report_block("error: a\n  remedy: b")
    try:
        raise ValueError("inner")
    except ValueError:
        journal.report_exception("engine", "decoding failed")
    lines = stream.getvalue().splitlines()
    assert lines[:4] == [
        "<6>ready: model=m",
        "<4>placement: verdict=below-limit",
        "<3>error: a",
        "<3>  remedy: b",
    ]
    assert all(line.startswith("<3>") for line in lines[4:])
    assert lines[-1] == "<3>ValueError: inner"


def test_a_terminal_gets_plain_lines_with_the_level_of_bad_news() -> None:
    stream = io.StringIO()
    journal.open_journal(stream, is_journal=False)
    journal.inform("ready")
    journal.warn("placement")
    journal.report_block("error: a")
    logging.getLogger("uvicorn.error").info("not ours")
    assert stream.getvalue().splitlines() == ["ready", "warning: placement", "error: a"]


def send_to(path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opens the journal with its socket at `path`."""
    monkeypatch.setattr(journal.JournalHandler.__init__, "__defaults__", (path,))
    journal.open_journal(stream, is_journal=True)


def fields_of(message: bytes) -> dict[str, str]:
    """An entry of the native protocol, taken apart as its description says."""
    fields = {}
    while message:
        line, _, rest = message.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + size], rest[9 + size :]
        fields[name.decode()] = value.decode()
        message = rest
    return fields


def test_the_journals_socket_gets_every_value_as_a_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "journal"))
        receiver.settimeout(LIMIT_SECONDS)
        send_to(tmp_path / "journal", stream, monkeypatch)
        journal.warn("placement", "moved", verdict="below-limit", worst_ratio=0.5, code=None)
        assert fields_of(receiver.recv(4096)) == {
            "MESSAGE": "placement: moved verdict=below-limit worst_ratio=0.5 code=none",
            "PRIORITY": "4",
            "SYSLOG_IDENTIFIER": "stratad",
            "STRATAD_SUBJECT": "placement",
            "STRATAD_VERDICT": "below-limit",
            "STRATAD_WORST_RATIO": "0.5",
        }
        # Nobody can start another field by what he makes the daemon log.
        journal.report_error("server", "request failed", path="a\nPRIORITY=7", kind="x", reason="y")
        entry = fields_of(receiver.recv(4096))
        assert (entry["PRIORITY"], entry["STRATAD_PATH"]) == ("3", "a\nPRIORITY=7")
        journal.inform_line("plan", "plan: split chosen", code="tuned-winner", effect="chooses")
        entry = fields_of(receiver.recv(4096))
        assert (entry["MESSAGE"], entry["STRATAD_CODE"]) == ("plan: split chosen", "tuned-winner")
        try:
            raise ValueError("inner")
        except ValueError:
            journal.report_exception("engine", "decoding failed", reason="inner", kind="ValueError")
        entry = fields_of(receiver.recv(65536))
        assert entry["MESSAGE"].endswith("\nValueError: inner")
        assert stream.getvalue() == ""
        # The last words of a process go where they are known to be the unit's.
        journal.report_block("error: a")
        assert stream.getvalue() == "<3>error: a\n"


def test_the_stream_of_the_journal_is_known_by_device_and_inode(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        status = os.fstat(log.fileno())
        right = f"{status.st_dev}:{status.st_ino}"
        assert journal.is_journal_stream(right, log.fileno())
        assert not journal.is_journal_stream(right + "0", log.fileno())
        assert not journal.is_journal_stream(None, log.fileno())
        closed = log.fileno()
    assert not journal.is_journal_stream(right, closed)


def test_the_documentation_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == journal.render_documentation(), (
        "run `python -m stratad.journal > docs/JOURNAL.md`"
    )


_WRITING = {"inform", "warn", "report_error", "report_exception", "inform_line", "warn_line"}


def log_calls() -> list[tuple[str, ast.Call]]:
    """Every call in stratad/ that logs: of `journal.<function>`, or of `write`, which is one of two of them."""
    found = []
    for path in sorted((ROOT / "stratad").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            is_direct = (
                isinstance(called, ast.Attribute)
                and isinstance(called.value, ast.Name)
                and called.value.id == "journal"
                and called.attr in _WRITING
            )
            if is_direct or (isinstance(called, ast.Name) and called.id == "write"):
                found.append((f"{path.name}:{node.lineno}", node))
    return found


def test_every_line_has_a_known_subject_and_known_keys_and_every_row_of_the_tables_is_used() -> None:
    subjects, keys = set(), set()
    calls = log_calls()
    assert len(calls) > 20
    for place, call in calls:
        subject = call.args[0]
        assert isinstance(subject, ast.Constant), place
        subjects.add(subject.value)
        for keyword in call.keywords:
            assert keyword.arg is not None, f"{place}: nobody can tell which keys this line has"
            assert keyword.arg in journal.FIELDS, f"{place}: {keyword.arg}"
            keys.add(keyword.arg)
    assert subjects == set(journal.SUBJECTS)
    assert keys == set(journal.FIELDS)
    assert list(journal.FIELDS) == sorted(journal.FIELDS)
    assert list(journal.SUBJECTS) == sorted(journal.SUBJECTS)


@contextmanager
def journald() -> Iterator[str]:
    """systemd's own journal daemon in a name space of its own; gives the name. Skips where that cannot be."""
    program = next(
        (path for path in Path("/").glob("*lib/systemd/systemd-journald") if path.is_file()),
        Path("/usr/lib/systemd/systemd-journald"),
    )
    if os.getuid() != 0 or not program.is_file() or shutil.which("journalctl") is None:
        pytest.skip("needs root, systemd-journald and journalctl: the real journal is left out")
    name = f"stratad-test-{os.getpid()}"
    folders = [Path(f"/run/systemd/journal.{name}")]
    process = subprocess.Popen([program, name], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until((folders[0] / "socket").exists)
        yield name
    finally:
        process.terminate()
        process.wait()
        for root in (Path("/run/log/journal"), Path("/var/log/journal")):
            folders += root.glob(f"*.{name}")
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition: Callable[[], object]) -> None:
    deadline_seconds = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline_seconds
        time.sleep(0.02)


def test_journalctl_finds_lines_by_their_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    with journald() as name:
        send_to(Path(f"/run/systemd/journal.{name}/socket"), io.StringIO(), monkeypatch)
        journal.inform("ready", model="demo", state="ready")
        journal.warn("placement", verdict="below-limit", worst_ratio=0.5, code="placement-below-limit")

        def entries(*matches: str) -> list[dict[str, str]]:
            command = ["journalctl", f"--namespace={name}", "-o", "json", *matches]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_SECONDS)
            return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

        wait_until(lambda: entries("STRATAD_CODE=placement-below-limit"))
        (entry,) = entries("STRATAD_CODE=placement-below-limit")
        assert (entry["STRATAD_WORST_RATIO"], entry["PRIORITY"]) == ("0.5", "4")
        assert entry["MESSAGE"].startswith("placement: verdict=below-limit")
        assert [one["STRATAD_MODEL"] for one in entries("STRATAD_SUBJECT=ready")] == ["demo"]
        assert len(entries("-p", "warning", "SYSLOG_IDENTIFIER=stratad")) == 1
