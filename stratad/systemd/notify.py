"""The notification protocol of systemd, in the standard library.

Without NOTIFY_SOCKET every message is dropped silently: the daemon behaves the same outside systemd.

Source: sd_notify(3), sd_watchdog_enabled(3), systemd.service(5).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType

# systemd's advice: ping at half the interval, so that one late ping does no harm.
_PINGS_PER_INTERVAL = 2


class Notifier:
    """Sends state changes to the supervisor; safe from any thread, never raises, never blocks."""

    def __init__(self, notify_socket: str | None) -> None:
        """Takes the value of NOTIFY_SOCKET: a path, an abstract name behind '@', or None for nobody."""
        self._address = _socket_address(notify_socket) if notify_socket else None
        self._socket: socket.socket | None = None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def ready(self, status: str) -> None:
        """The service serves."""
        self._send("READY=1", f"STATUS={_one_line(status)}")

    def status(self, status: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={_one_line(status)}")

    def loading(self, status: str, extension_seconds: float) -> None:
        """Loading went on: asks for `extension_seconds` from now before start-up counts as hung."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(extension_seconds * 1_000_000)}", f"STATUS={_one_line(status)}")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` ends it."""
        # Type=notify-reload demands the stamp of CLOCK_MONOTONIC in the same message.
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str, extension_seconds: float = 0.0) -> None:
        """The service is shutting down and needs `extension_seconds` for it."""
        extension = (
            (f"EXTEND_TIMEOUT_USEC={int(extension_seconds * 1_000_000)}",) if extension_seconds else ()
        )
        self._send("STOPPING=1", f"STATUS={_one_line(status)}", *extension)

    def watchdog(self) -> None:
        """One sign of life."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Closes the socket; later messages are dropped."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is None or self._address is None:
            return
        # A supervisor that is gone or busy must not take the service down with it.
        with contextlib.suppress(OSError):
            self._socket.sendto("\n".join(lines).encode(), self._address)


class Watchdog:
    """Pings the supervisor while the daemon makes progress, and falls silent when it does not.

    A bare timer would keep a hung daemon alive: `is_progressing` decides before every ping.
    """

    def __init__(
        self, notifier: Notifier, interval_seconds: float, is_progressing: Callable[[], bool]
    ) -> None:
        """Pings twice per `interval_seconds` (the supervisor's WATCHDOG_USEC) while `is_progressing()`."""
        self._notifier = notifier
        self._pause_seconds = interval_seconds / _PINGS_PER_INTERVAL
        self._is_progressing = is_progressing
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            if self._is_progressing():
                self._notifier.watchdog()
            if self._stopped.wait(self._pause_seconds):
                return


def _socket_address(notify_socket: str) -> str | None:
    """The socket's address for Python; None for a kind (such as vsock) that this process cannot reach."""
    if notify_socket.startswith("@"):
        return "\0" + notify_socket[1:]
    return notify_socket if notify_socket.startswith("/") else None


def _one_line(text: str) -> str:
    """A line end would start another assignment in the message."""
    return " ".join(text.split())
