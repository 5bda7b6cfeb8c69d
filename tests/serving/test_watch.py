"""`stratactl watch` against a real server: in a terminal, in a pipe, and when the daemon goes away."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.serving.support.served import MODEL, Served, serve

LIMIT_SECONDS = 60.0
FRAME_END = "\x1b[J"
ENTER, LEAVE, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


class Terminal:
    """A pseudo-terminal with `stratactl` in it."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.text = ""
        self._master = master

    def resize(self, columns: int, rows: int) -> None:
        """What a terminal does when somebody drags its corner: the kernel sends SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, part: str) -> str:
        """Reads until `part` is there; gives what came since the last call, and forgets it."""
        deadline_seconds = time.monotonic() + LIMIT_SECONDS
        while part not in self.text:
            assert time.monotonic() < deadline_seconds, (part, self.text[-2000:])
            self._read(0.1)
        text, self.text = self.text, ""
        return text

    def end(self) -> int:
        """The exit status; reads on meanwhile, so that the process can write."""
        deadline_seconds = time.monotonic() + LIMIT_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline_seconds, self.text[-2000:]
            self._read(0.1)
        while self._read(0.0):
            pass
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            # The other side is closed.
            return False
        self.text += data.decode(errors="replace")
        return bool(data)


@contextmanager
def in_terminal(*arguments: str, variables: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {
        key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")
    }
    # In a session of its own, with the pseudo-terminal as what it is controlled by: Ctrl-C and sizes arrive.
    start = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.executable, sys.argv[1:])"
    )
    command = [sys.executable, "-c", start, sys.executable, "-m", "stratad.cli.main", "watch", *arguments]
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**environment, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **(variables or {})},
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(master)


def stratactl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stratad.cli.main", "watch", *arguments]
    return subprocess.run(command, capture_output=True, check=False, text=True, timeout=LIMIT_SECONDS)


@pytest.fixture
def served() -> Iterator[Served]:
    with serve() as served:
        yield served


def test_a_terminal_is_drawn_anew_and_restored_by_ctrl_c(served: Served) -> None:
    with in_terminal("--interval", "0.1", "--url", served.url) as terminal:
        first = terminal.wait_for("waiting")
        assert ENTER in first
        assert f"{MODEL}: \x1b[32mready\x1b[0m" in first
        served.client().completions.create(model=MODEL, prompt="abcd")
        terminal.wait_for("tokens/s")
        terminal.type(b"\x03")
        assert terminal.end() == 0
        assert terminal.text.endswith(SHOW_CURSOR + LEAVE)
        assert "Traceback" not in terminal.text


def test_a_new_size_counts_at_once_and_not_at_the_next_look(served: Served) -> None:
    with in_terminal("--interval", "3600", "--url", served.url) as terminal:
        first = terminal.wait_for(FRAME_END)
        # The address stands at the right where there is room.
        assert served.url in first
        terminal.resize(40, 12)
        assert served.url not in terminal.wait_for(FRAME_END)
        terminal.resize(120, 40)
        assert served.url in terminal.wait_for(FRAME_END)
        terminal.type(b"\x03")
        assert terminal.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_is_restored_by_signals_too(served: Served, number: signal.Signals) -> None:
    with in_terminal("--interval", "3600", "--url", served.url) as terminal:
        terminal.wait_for("waiting")
        terminal.process.send_signal(number)
        assert terminal.end() == 128 + number
        assert LEAVE in terminal.text


def test_it_goes_on_when_the_daemon_goes_away() -> None:
    with serve() as served:
        terminal_context = in_terminal("--interval", "0.1", "--url", served.url)
        terminal = terminal_context.__enter__()
        terminal.wait_for("waiting")
    try:
        gone = terminal.wait_for("not reachable")
        assert "Traceback" not in gone
        terminal.wait_for(f"{MODEL}: ready")
        terminal.type(b"\x03")
        assert terminal.end() == 0
    finally:
        terminal_context.__exit__(None, None, None)


def test_loading_is_watched(served: Served) -> None:
    with serve(is_loaded=False) as loading:
        loading.service.loading("loading experts", 0.25)
        with in_terminal("--interval", "0.1", "--url", loading.url) as terminal:
            assert "25%" in terminal.wait_for("loading experts")
            loading.service.loading("loading experts", 0.75)
            terminal.wait_for("75%")


def test_no_color_is_respected(served: Served) -> None:
    with in_terminal("--url", served.url, variables={"NO_COLOR": "1"}) as terminal:
        assert "\x1b[32m" not in terminal.wait_for("waiting")


def test_once_shows_one_view_without_control_sequences(served: Served) -> None:
    done = stratactl("--once", "--interval", "0.1", "--url", served.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{MODEL}: ready" in done.stdout
    assert "\x1b" not in done.stdout


def test_once_gives_a_document_with_json(served: Served) -> None:
    done = stratactl("--once", "--interval", "0.1", "--json", "--url", served.url)
    (line,) = done.stdout.splitlines()
    document = json.loads(line)
    assert document["status"]["state"] == "ready"
    assert document["progress"]["tokens_rate"] == 0


def test_a_daemon_that_is_not_there_is_an_error_with_once() -> None:
    done = stratactl("--once", "--url", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("error:")


def test_an_address_that_cannot_be_used_ends_it_at_once() -> None:
    done = stratactl("--url", "ftp://x")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_pipe_gets_a_line_a_look_until_ctrl_c(served: Served, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "stratad.cli.main", "watch", "--interval", "0.1", "--url", served.url]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None and watch.stderr is not None
        lines = [watch.stdout.readline() for _ in range(3)]
        watch.send_signal(signal.SIGINT)
        rest = watch.stderr.read()
    assert watch.returncode == 0
    assert rest == ""
    for line in lines:
        if options:
            assert json.loads(line)["status"]["model"] == MODEL
        else:
            assert " ready " in line and "tokens/s=" in line


def test_a_reader_that_goes_away_ends_it_in_silence(served: Served) -> None:
    command = [sys.executable, "-m", "stratad.cli.main", "watch", "--interval", "0.1", "--url", served.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None and watch.stderr is not None
        watch.stdout.readline()
        watch.stdout.close()
        assert watch.wait(LIMIT_SECONDS) == 1
        assert watch.stderr.read() == ""
