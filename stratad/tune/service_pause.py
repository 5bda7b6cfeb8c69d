"""A running service keeps cores and memory that a trial needs: refused, or stopped for the time and started again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from stratad.errors import DaemonError
from stratad.systemd.unit_files import UNIT


class ServiceSwitch(Protocol):
    """What has to be asked of systemd."""

    def is_active(self, unit: str) -> bool:
        """Whether the unit runs, or is on its way up."""

    def stop(self, unit: str) -> None:
        """Stops the unit and waits for it."""

    def start(self, unit: str) -> None:
        """Starts the unit and waits until it is ready or has failed."""


@contextlib.contextmanager
def service_paused(switch: ServiceSwitch | None, *, may_stop: bool) -> Iterator[None]:
    """Keeps the service stopped while the context lasts, and starts it again at the end, however that comes.

    Args:
        switch: systemd; None where it does not run.
        may_stop: Whether the operator said so.

    Raises:
        DaemonError: The service runs and may not be stopped.
        SystemdError: systemd refuses.
    """
    if switch is None or not switch.is_active(UNIT):
        yield
        return
    if not may_stop:
        raise DaemonError(
            tried="looking for a running service",
            because=f"{UNIT} runs and holds the cores and the memory that the arms are to be measured with",
            remedy="run `sudo stratactl tune --stop-service`, which starts it again at the end",
            summary="this machine serves",
        )
    switch.stop(UNIT)
    try:
        yield
    finally:
        switch.start(UNIT)
