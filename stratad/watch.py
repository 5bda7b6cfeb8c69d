"""What looks at something again and again on a thread of its own while the daemon serves."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Watch(ABC):
    """Calls `look` every `pause_seconds` while the context is open; 0 never does."""

    def __init__(self, name: str, pause_seconds: float) -> None:
        self._pause_seconds = pause_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def look(self) -> None:
        """Looks once and tells what has changed."""

    def __enter__(self) -> Self:
        if self._pause_seconds > 0:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_seconds):
            self.look()
