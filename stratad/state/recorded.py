"""Measurements kept in the state directory: when they hold, and how they get there in one step or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from planner import Topology, machine_fingerprint
from stratad.errors import StratadError
from stratad.replaced_file import replaced_file
from stratad.version import stratad_version

# What `stratactl bench` keeps in the state directory.
BENCH_FILE_NAME = "bench.json"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a measurement holds for. The planner ignores one of another machine, and a benchmark of another kernel.

    `measured_at` is a UTC time as ISO 8601 writes it.
    """

    machine_fingerprint: str
    kernel_release: str | None
    numa_balancing: bool | None
    measured_at: str
    stratad_version: str


def circumstances_of(topology: Topology) -> Circumstances:
    """Give what a measurement that ends now on this machine holds for."""
    return Circumstances(
        machine_fingerprint=machine_fingerprint(topology),
        kernel_release=topology.kernel_release,
        numa_balancing=topology.numa_balancing,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        stratad_version=stratad_version(),
    )


def require_writable(path: Path, command: str) -> None:
    """Raises StratadError when a result could not be kept there: said before anything is measured."""
    folder = next(place for place in (path.parent, *path.parent.parents) if place.exists())
    if not os.access(folder, os.W_OK | os.X_OK) or path.is_dir():
        raise _not_written(path, f"this user may not write in {folder}", command)


def write_document(path: Path, document: Mapping[str, object], command: str) -> None:
    """Replaces the file in one step: a reader sees the old text or the new one. Raises StratadError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as file:
            file.write(f"{json.dumps(document, indent=1)}\n".encode())
    except OSError as error:
        raise _not_written(path, str(error.strerror or error), command) from error


def _not_written(path: Path, because: str, command: str) -> StratadError:
    return StratadError(
        tried=f"writing {path}",
        because=because,
        remedy=f"run `sudo {command}`, or keep the results elsewhere with --output FILE",
        summary="the measurements cannot be kept",
    )
