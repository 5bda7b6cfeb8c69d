"""SIGTERM, SIGINT and SIGHUP as requests that any thread can wait for.

Python runs its signal handlers on the main thread only, and that one may sit in a native call for minutes
while a model loads. The C side of a handler runs at once, on whichever thread the kernel picks, and writes
the signal's number to the wakeup descriptor: a thread of ours reads it there. Blocking the signals for
sigwait(3) would not do: libraries (OpenBLAS under numpy) start threads on import, with nothing blocked.
"""

from __future__ import annotations

import signal
import socket
import threading
from enum import Enum
from types import TracebackType
from typing import Any

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_RELOAD_SIGNALS = (signal.SIGHUP,)
# No signal has this number.
_CLOSE = 0


class Request(Enum):
    """What a signal asks for."""

    STOP = "stop"
    RELOAD = "reload"
    # No signal: somebody inside cannot go on.
    REPLACE = "replace"


class StopSignals:
    """Collects signals from its entry to its exit, both on the main thread.

    The first stop signal asks for an orderly end, the second for an end without waiting for anybody. A reload
    that is asked for while nobody waits is kept; several of them are one.
    """

    def __init__(self) -> None:
        self._something = threading.Condition()
        self._requested = threading.Event()
        self._is_reload_wanted = False
        self._is_replacement_wanted = False
        self._is_urgent = threading.Event()
        self._reader, self._writer = socket.socketpair()
        # The handler must not block when nobody reads; a byte more or less does not matter then.
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._handlers_before: dict[signal.Signals, Any] = {}
        self._descriptor_before = -1

    def __enter__(self) -> StopSignals:
        self._thread.start()
        self._descriptor_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (*_STOP_SIGNALS, *_RELOAD_SIGNALS):
            self._handlers_before[number] = signal.signal(number, _do_nothing)
            # System calls in progress, such as native reads of the model file, go on after the handler.
            signal.siginterrupt(number, False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._descriptor_before)
        self._writer.send(bytes([_CLOSE]))
        self._thread.join()
        self._reader.close()
        self._writer.close()

    @property
    def is_requested(self) -> bool:
        """True once the daemon is asked to stop."""
        return self._requested.is_set()

    @property
    def is_urgent(self) -> bool:
        """True once it was asked twice."""
        return self._is_urgent.is_set()

    def request_stop(self) -> None:
        """Asks for an orderly end as the first stop signal does; may be repeated, on any thread."""
        with self._something:
            self._requested.set()
            self._something.notify_all()

    def wait(self) -> Request:
        """The next thing that the daemon is asked for; to stop comes first."""
        with self._something:
            self._something.wait_for(
                lambda: self._requested.is_set() or self._is_reload_wanted or self._is_replacement_wanted
            )
            if self._requested.is_set():
                return Request.STOP
            if self._is_replacement_wanted:
                self._is_replacement_wanted = False
                return Request.REPLACE
            self._is_reload_wanted = False
            return Request.RELOAD

    def ask_for_replacement(self) -> None:
        """Has `wait` give REPLACE: what serves has failed. May be called on any thread."""
        with self._something:
            self._is_replacement_wanted = True
            self._something.notify_all()

    def _run(self) -> None:
        while (number := self._reader.recv(1)[0]) != _CLOSE:
            with self._something:
                if number in _STOP_SIGNALS:
                    if self._requested.is_set():
                        self._is_urgent.set()
                    self._requested.set()
                elif number in _RELOAD_SIGNALS:
                    self._is_reload_wanted = True
                self._something.notify_all()


def _do_nothing(number: int, frame: object) -> None:
    """The Python side of the handler: the wakeup descriptor has said everything."""
