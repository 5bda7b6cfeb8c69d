"""What a benchmark asks of a machine: real (stratad.bench.native_probe) or a test's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stratad.bench.batch_cases import BatchForm, BatchPath
from stratad.bench.cases import LayerCase, ReadCase
from stratad.bench.results import PlacedMemory


class Probe(Protocol):
    """Places memory, reads it and works together, as a case says. Raises MeasuringError where the kernel refuses."""

    def place(self, node_ids: tuple[int, ...], size_bytes: int) -> PlacedMemory:
        """Places a block on these nodes, filled with weights, for the cases that read from them."""

    def read(self, case: ReadCase, seconds: float) -> float:
        """Bytes a second of all readers together, over about so many seconds."""

    def layers(self, case: LayerCase, layer_count: int, limit_seconds: float) -> Sequence[float]:
        """Seconds of each layer beyond its work; fewer layers than asked for when the limit has passed."""


class DeviceCopies(Protocol):
    """Copies from host memory to the accelerators in use. The copying may run on another thread than the reads."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices by name; () when no GPU is in use."""

    def copy(self, device: str, node_id: int, seconds: float) -> float:
        """Bytes a second from pinned memory of this node to the device, over about so many seconds."""


class BatchProbe(Protocol):
    """One case's weights, placed and ready to be multiplied."""

    @property
    def paths(self) -> tuple[BatchPath, ...]:
        """The paths that this machine has for the case's weight type; ggml's is always one."""

    def multiply(self, path: BatchPath, form: BatchForm, tokens: int) -> float:
        """Seconds of one pass over all matrices with `tokens` tokens each."""


class NoDevices:
    """`DeviceCopies` of a build or machine without a GPU."""

    devices: tuple[str, ...] = ()

    def copy(self, device: str, node_id: int, seconds: float) -> float:
        """Never asked: there is no device."""
        raise AssertionError(f"there is no device {device}")
