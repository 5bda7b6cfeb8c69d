"""A terminal's second screen: drawn anew as often as one likes, and given back as it was."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self, TextIO

# xterm's control sequences, which every terminal in use knows.
_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class TerminalScreen:
    """Shows frames while the context is open. Ctrl-C ends it quietly; whatever ends it, the terminal is restored."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # A signal writes a byte here, so that a wait ends at once.
        self._woken, self._wake = socket.socketpair()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        former = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._stack.callback(signal.set_wakeup_fd, former)
        handlers = {
            signal.SIGWINCH: _ignore,
            signal.SIGTSTP: self._suspend,
            **dict.fromkeys(_ENDING, _end),
        }
        for number, handler in handlers.items():
            self._stack.callback(signal.signal, number, signal.signal(number, handler))
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        # A terminal that is gone needs no restoring.
        with contextlib.suppress(OSError):
            self._write(_LEAVE)
        self._stack.close()
        self._woken.close()
        self._wake.close()
        return kind is not None and issubclass(kind, KeyboardInterrupt)

    def show(self, frame: Callable[[], list[str]]) -> None:
        """Draws over what is there, without a flash of emptiness."""
        self._write(_HOME + f"{_CLEAR_LINE}\r\n".join(frame()) + _CLEAR_LINE + _CLEAR_BELOW)

    def wait(self, seconds: float, frame: Callable[[], list[str]]) -> None:
        """Waits, and draws again when the terminal has changed its size or shows us again."""
        import time

        end_seconds = time.monotonic() + seconds
        while (rest_seconds := end_seconds - time.monotonic()) > 0:
            if select.select([self._woken], [], [], rest_seconds)[0]:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
                self.show(frame)

    def _suspend(self, number: int, interrupted: FrameType | None) -> None:
        """Ctrl-Z: gives the terminal back, stops, and takes it again when somebody goes on with us."""
        self._write(_LEAVE)
        former = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, former)
        self._write(_ENTER)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _ignore(number: int, interrupted: FrameType | None) -> None:
    """The byte that woke the wait says it all."""


def _end(number: int, interrupted: FrameType | None) -> None:
    raise SystemExit(128 + number)
