"""A daemon as this process's child: started, waited for as systemd would, and gone at the end, whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from stratad.config import child_environment
from stratad.errors import DaemonError
from stratad.state.runtime_directory import read_running

STOP_LIMIT_SECONDS = 60.0
_LOOK_SECONDS = 0.2
_DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChildDaemon:
    """A started daemon, seen as its supervisor sees it."""

    def __init__(
        self, process: subprocess.Popen[bytes], notifications: socket.socket, folder: Path, name: str
    ) -> None:
        self.process = process
        self._notifications, self._folder, self._name = notifications, folder, name

    def wait_until_ready(
        self, limit_seconds: float, show_status: Callable[[str], None] = lambda status: None
    ) -> str:
        """Gives its address; `show_status` gets what it says of its progress, a line each.

        Raises:
            DaemonError: It ends before, or does not get there in time.
        """
        end_seconds = time.monotonic() + limit_seconds
        self._notifications.settimeout(_LOOK_SECONDS)
        while time.monotonic() < end_seconds:
            try:
                lines = self._notifications.recv(4096).decode().splitlines()
            except TimeoutError:
                lines = []
            for line in lines:
                if line.startswith("STATUS="):
                    show_status(line.removeprefix("STATUS="))
            if "READY=1" in lines:
                running = read_running(runtime_directory(self._folder))
                if running is None:
                    raise self._failure("it left no address in its runtime directory")
                return running.endpoint
            if self.process.poll() is not None:
                raise self._failure(f"it ended with status {self.process.returncode}")
        raise self._failure(f"it was not ready after {limit_seconds:g} seconds")

    def _failure(self, because: str) -> DaemonError:
        return DaemonError(f"starting {self._name}", because)


def runtime_directory(folder: Path) -> Path:
    """Where the child in `folder` leaves its address."""
    return folder / "run"


def state_directory(folder: Path) -> Path:
    """What the child in `folder` keeps between its starts."""
    return folder / "state"


def log_path(folder: Path) -> Path:
    """What the child in `folder` has logged."""
    return folder / "log"


@contextlib.contextmanager
def started_child(
    folder: Path, arguments: Sequence[str], name: str, variables: Mapping[str, str] | None = None
) -> Iterator[ChildDaemon]:
    """`stratad` with `arguments`, which errors call `name`; its log and what it leaves behind lie in `folder`.

    `variables` are further ones of its environment. What systemd gave this process is not the child's.
    """
    notify_path = folder / "notify"
    state_directory(folder).mkdir(exist_ok=True)
    silenced = dict.fromkeys(("CREDENTIALS_DIRECTORY", "STRATAD_PLAN", "WATCHDOG_USEC"), "")
    given = {
        "NOTIFY_SOCKET": str(notify_path),
        "RUNTIME_DIRECTORY": str(runtime_directory(folder)),
        "STATE_DIRECTORY": str(state_directory(folder)),
    }
    environment = child_environment(**silenced | given | dict(variables or {}))
    command = [sys.executable, "-m", "stratad.tune.child", str(os.getpid()), *arguments]
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications,
        log_path(folder).open("wb") as log,
    ):
        notifications.bind(str(notify_path))
        process = None
        try:
            with signals_deferred():
                # A session of its own: Ctrl-C reaches this process, which then ends the child in order.
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
            yield ChildDaemon(process, notifications, folder, name)
        finally:
            if process is not None:
                _end(process)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Keeps what would interrupt this thread until the end, and interrupts it then.

    An interruption while a child is made would lose it. A signal mask is not enough: the kernel then hands the
    signal to another thread (numpy starts some), and Python still runs the handler on this one.
    """
    if threading.current_thread() is not threading.main_thread():
        # Handlers run on the main thread only.
        yield
        return
    came: list[int] = []
    former = {
        number: signal.signal(number, lambda caught, frame: came.append(caught)) for number in _DEFERRED
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(STOP_LIMIT_SECONDS)
    except BaseException as error:
        # Whatever interrupts the waiting, the child goes first.
        process.kill()
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
