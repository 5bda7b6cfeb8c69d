"""The notification protocol on a real datagram socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratad.systemd.notify import Notifier, Watchdog

LIMIT_SECONDS = 10.0


@pytest.fixture(params=["path", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A listening socket and the value of NOTIFY_SOCKET that names it."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.settimeout(LIMIT_SECONDS)
    if request.param == "path":
        address = name = str(tmp_path / "notify")
    else:
        name = f"@stratad-test-{tmp_path.name}-{id(listening)}"
        address = "\0" + name[1:]
    listening.bind(address)
    yield listening, name
    listening.close()


def _message(listening: socket.socket) -> dict[str, str]:
    lines = listening.recv(4096).decode().split("\n")
    return dict(line.split("=", 1) for line in lines)


def test_each_change_of_state_is_one_message(supervisor: tuple[socket.socket, str]) -> None:
    listening, name = supervisor
    notifier = Notifier(name)
    notifier.loading("loading weights, 50%", 2.5)
    assert _message(listening) == {"EXTEND_TIMEOUT_USEC": "2500000", "STATUS": "loading weights, 50%"}
    notifier.ready("serving")
    assert _message(listening) == {"READY": "1", "STATUS": "serving"}
    notifier.status("idle")
    assert _message(listening) == {"STATUS": "idle"}
    notifier.watchdog()
    assert _message(listening) == {"WATCHDOG": "1"}
    notifier.stopping("draining", 3)
    assert _message(listening) == {"STOPPING": "1", "STATUS": "draining", "EXTEND_TIMEOUT_USEC": "3000000"}
    notifier.close()
    notifier.status("after the end")
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.recv(4096)


def test_reloading_carries_the_monotonic_clock(supervisor: tuple[socket.socket, str]) -> None:
    listening, name = supervisor
    before = time.monotonic_ns() // 1000
    Notifier(name).reloading()
    message = _message(listening)
    assert message["RELOADING"] == "1"
    assert before <= int(message["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000


def test_a_status_cannot_smuggle_in_another_assignment(supervisor: tuple[socket.socket, str]) -> None:
    listening, name = supervisor
    Notifier(name).status("loading\nREADY=1")
    assert _message(listening) == {"STATUS": "loading READY=1"}


@pytest.mark.parametrize("name", [None, "/nowhere/notify", "@stratad-nobody", "vsock:2:3"])
def test_without_a_supervisor_nothing_happens(name: str | None) -> None:
    notifier = Notifier(name)
    notifier.ready("serving")
    notifier.close()


def test_the_watchdog_pings_while_there_is_progress_and_falls_silent_without(
    supervisor: tuple[socket.socket, str],
) -> None:
    listening, name = supervisor
    asked, is_progressing = threading.Semaphore(0), True

    def progress() -> bool:
        asked.release()
        return is_progressing

    with Watchdog(Notifier(name), 0.02, progress):
        assert _message(listening) == {"WATCHDOG": "1"}
        is_progressing = False
        # Two more questions after the switch: what the first was asked before it may still have answered yes.
        for _ in range(2):
            while asked.acquire(blocking=False):
                pass
            assert asked.acquire(timeout=LIMIT_SECONDS)
        listening.setblocking(False)
        while True:
            try:
                listening.recv(4096)
            except BlockingIOError:
                break
        for _ in range(3):
            assert asked.acquire(timeout=LIMIT_SECONDS)
        with pytest.raises(BlockingIOError):
            listening.recv(4096)
        is_progressing = True
        listening.settimeout(LIMIT_SECONDS)
        assert _message(listening) == {"WATCHDOG": "1"}
