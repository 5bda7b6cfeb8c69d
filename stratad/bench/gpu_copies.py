"""Copies from host memory to this machine's GPUs, for `stratactl bench`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from stratad import _native
from stratad.bench.native_probe import MeasuringError, NativeProbe
from stratad.bench.results import CopyResult
from stratad.gpu.rates import HostToDeviceRate
from stratad.gpu.runtime import FoundGpu

# One call of the native side: long enough beside its own warm-up, short enough to end near the time that was given.
_CALL_BYTES = 256 << 20


class GpuCopies:
    """`DeviceCopies` of the GPUs that a daemon with the same [gpu] settings would use.

    The probe's blocks are what is copied, registered with the GPU's runtime where it can: the rate is that of a pinned
    arena then. Nothing may be placed by the probe any more once copies have begun.
    """

    def __init__(self, gpus: Sequence[FoundGpu], probe: NativeProbe) -> None:
        self._gpus = {gpu.name: gpu for gpu in gpus}
        self._probe = probe
        self._pinned: dict[tuple[str, int], _native.HostRegistration] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs by name."""
        return tuple(self._gpus)

    def copy(self, device: str, node_id: int, seconds: float) -> float:
        """Bytes a second from this node to the device, over at least `seconds`.

        Raises:
            MeasuringError: The GPU has no room, or has failed.
        """
        arena = self._probe.memory_of(node_id)
        backend = self._gpus[device].backend
        if (backend, node_id) not in self._pinned and _native.can_register_host(backend):
            self._pinned[backend, node_id] = _native.HostRegistration(arena, backend)
        size_bytes = min(_CALL_BYTES, arena.size_bytes)
        rates: list[float] = []
        end_seconds = time.monotonic() + seconds
        try:
            while not rates or time.monotonic() < end_seconds:
                rates.append(_native.measure_copy_rate(arena, 0, device, size_bytes))
        except RuntimeError as error:
            raise MeasuringError(
                tried=f"copying from node {node_id} to {device}",
                because=str(error),
                values={"size_bytes": size_bytes},
                remedy="free memory on the GPU, or look at the driver's messages (`dmesg`)",
            ) from error
        # Each rate is of as many bytes: their harmonic mean is the rate of all.
        return len(rates) / sum(1.0 / rate for rate in rates)

    def rates(self, results: Sequence[CopyResult]) -> tuple[HostToDeviceRate, ...]:
        """What was measured while nothing else ran, with what is known of each GPU's link."""
        return tuple(
            HostToDeviceRate(
                gpu=result.device,
                pci_address=self._gpus[result.device].pci_address,
                slice_index=0,
                node_ids=(result.node_id,),
                is_pinned=self._probe.memory_of(result.node_id).are_pages_held,
                bytes_per_second=result.alone.median,
            )
            for result in results
        )
