"""The cost model: seconds of one decode step from where bytes lie and which workers read them.

Formulas and constants are explained with their sources in docs/PLANNER.md. They are consistent with the
measured cases and not predictive: the model may veto a gain it does not see, and never promises one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from planner.plan import Estimate


@dataclass(frozen=True, slots=True)
class CostConstants:
    """Times in seconds, factors without a unit. Each can be replaced by a measurement."""

    norm_power: float = 2.5
    same_package_factor: float = 1.1
    remote_factor: float = 1.3
    base_seconds: float = 25e-6
    local_seconds: float = 0.1e-6
    cross_seconds: float = 40e-6
    wake_seconds: float = 80e-6
    claim_seconds: float = 0.5e-6
    tasks_per_worker: int = 3
    phase_count: int = 2
    gpu_rest_seconds_per_layer: float = 0.37e-3
    large_model_rest_factor: float = 2.5
    cpu_rest_share: float = 0.2
    # Host to GPU over PCIe 3.0 x16: 11.6 to 12.8 GB/s on three boxes. From another package's memory 1.08 times
    # (seed 3708-c) to 3.2 times (pub-gearshifft-82) as long.
    host_to_gpu_rate: float = 12e9
    host_to_gpu_remote_factor: float = 1.3
    # Two workers on one core lost 2 to 2900 times; right in direction only (cost-model: hard rules).
    oversubscribed_factor: float = 8.0
    needed_gain: float = 0.07


# A model's own count is used when known; 48 layers and a sixteenth of the experts are typical of current MoE
# models.
TYPICAL_LAYER_COUNT = 48
TYPICAL_EXPERTS_PER_USED = 16
# From about 200 billion parameters on, at four to five bits, the part that runs beside the experts grows too.
LARGE_MODEL_BYTES = 110_000_000_000


class Rates(Protocol):
    """What the cost model needs of a machine: bytes a second, `node_bandwidth` by memory node."""

    @property
    def node_bandwidth(self) -> Mapping[int, float]:
        """What one node's memory gives to all its readers together."""

    @property
    def link_bandwidth(self) -> float:
        """What one direction between two packages carries."""

    @property
    def core_rate(self) -> float:
        """Expert bytes one core multiplies out of its own node's memory."""

    def swept_rate(self, worker_count: int) -> float | None:
        """Measured bytes a second of so many workers of one node, or None when nobody measured."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run a step.

    `read_bytes` is bytes[reader node][memory node], `workers` counts by reader node, `package_of` maps every
    node to its package. `slice_workers` are the workers that share one claim counter. `rest_seconds` is
    everything but the experts. `cores` are physical cores by node, where somebody asks for more workers.
    """

    read_bytes: Mapping[int, Mapping[int, float]]
    workers: Mapping[int, int]
    package_of: Mapping[int, int]
    slice_workers: int
    is_sliced: bool
    layer_count: int
    rest_seconds: float
    must_wake: bool
    cores: Mapping[int, int] | None = None


def step_estimate(arm: Arm, rates: Rates, constants: CostConstants) -> Estimate:
    """Give the estimated seconds of one decode step: streaming, working together, and everything else."""
    factor = constants.oversubscribed_factor if _is_oversubscribed(arm) else 1.0
    stream = factor * stream_seconds(arm, rates, constants)
    layer_seconds = layer_synchronization_seconds(arm, constants) if stream > 0 else 0.0
    synchronization = factor * arm.layer_count * layer_seconds
    return Estimate(
        step_seconds=stream + synchronization + arm.rest_seconds,
        stream_seconds=stream,
        synchronization_seconds=synchronization,
        rest_seconds=arm.rest_seconds,
    )


def stream_seconds(arm: Arm, rates: Rates, constants: CostConstants) -> float:
    """Give the seconds to read and multiply a step's expert bytes: memory, link and cores, near their p-norm.

    With a worker sweep of this machine, purely local reads take what was measured instead.
    """
    swept = _swept_seconds(arm, rates)
    if swept is not None:
        return swept
    parts = (_memory_seconds(arm, rates), _link_seconds(arm, rates), _worker_seconds(arm, rates, constants))
    return float(sum(part**constants.norm_power for part in parts) ** (1 / constants.norm_power))


def _swept_seconds(arm: Arm, rates: Rates) -> float | None:
    slowest = 0.0
    for reader, row in arm.read_bytes.items():
        rate = rates.swept_rate(arm.workers.get(reader, 0))
        if not rate or any(memory != reader and size for memory, size in row.items()):
            return None
        slowest = max(slowest, row.get(reader, 0.0) / rate)
    return slowest


def _memory_seconds(arm: Arm, rates: Rates) -> float:
    loads: dict[int, float] = {}
    for row in arm.read_bytes.values():
        for memory_node, size_bytes in row.items():
            loads[memory_node] = loads.get(memory_node, 0.0) + size_bytes
    return max((size_bytes / rates.node_bandwidth[node] for node, size_bytes in loads.items()), default=0.0)


def _link_seconds(arm: Arm, rates: Rates) -> float:
    crossing: dict[tuple[int, int], float] = {}
    for reader, row in arm.read_bytes.items():
        for memory_node, size_bytes in row.items():
            pair = (arm.package_of[memory_node], arm.package_of[reader])
            if pair[0] != pair[1]:
                crossing[pair] = crossing.get(pair, 0.0) + size_bytes
    return max(crossing.values(), default=0.0) / rates.link_bandwidth


def _worker_seconds(arm: Arm, rates: Rates, constants: CostConstants) -> float:
    costs = {
        reader: _weighted_bytes(arm, reader, row, constants) / rates.core_rate
        for reader, row in arm.read_bytes.items()
    }
    if arm.is_sliced:
        return max((cost / max(1, arm.workers[node]) for node, cost in costs.items()), default=0.0)
    return sum(costs.values()) / max(1, sum(arm.workers.values()))


def _weighted_bytes(arm: Arm, reader: int, row: Mapping[int, float], constants: CostConstants) -> float:
    """Weigh a row's bytes by how far they are: own node 1, neighbours and other packages more."""
    weighted = 0.0
    for memory_node, size_bytes in row.items():
        if memory_node == reader:
            weighted += size_bytes
        elif arm.package_of[memory_node] == arm.package_of[reader]:
            weighted += constants.same_package_factor * size_bytes
        else:
            weighted += constants.remote_factor * size_bytes
    return weighted


def layer_synchronization_seconds(arm: Arm, constants: CostConstants) -> float:
    """Give what working together costs per layer.

    Contended claims grow with unsliced workers over packages: without this term 22 unsliced workers tie a
    placed split that the field measured 20 to 37 % faster (seed 3413).
    """
    worker_count = sum(arm.workers.values())
    packages = {arm.package_of[node] for node, count in arm.workers.items() if count}
    seconds = constants.base_seconds + constants.phase_count * constants.local_seconds * arm.slice_workers
    if len(packages) < 2:
        return seconds
    seconds += constants.cross_seconds
    if arm.must_wake:
        # The GPU's part of a layer leaves a gap longer than the pool spins, so workers must be woken.
        seconds += constants.wake_seconds
    if not arm.is_sliced:
        seconds += constants.phase_count * constants.tasks_per_worker * worker_count * constants.claim_seconds
    return seconds


def prompt_seconds(
    held: Mapping[int, float],
    package_of: Mapping[int, int],
    gpu_nodes: tuple[int, ...],
    constants: CostConstants,
) -> float | None:
    """Give the seconds the GPUs need to read the whole arena once, as a long prompt does; None without a node.

    Each GPU reads its share of the layers over its own link; pages of another package take longer.
    """
    if not gpu_nodes:
        return None
    weighted = 0.0
    for gpu_node in gpu_nodes:
        for node, size in held.items():
            is_near = package_of.get(node) == package_of.get(gpu_node)
            weighted += size * (1.0 if is_near else constants.host_to_gpu_remote_factor)
    return weighted / len(gpu_nodes) ** 2 / constants.host_to_gpu_rate


def _is_oversubscribed(arm: Arm) -> bool:
    return arm.cores is not None and any(
        count > arm.cores.get(node, count) for node, count in arm.workers.items()
    )


@dataclass(frozen=True, slots=True)
class Rest:
    """What decides how long everything but the experts takes."""

    step_bytes: float
    layer_count: int
    has_gpu: bool
    is_large_model: bool
    package_bandwidth: float
    package_cores: int


def rest_seconds(rest: Rest, rates: Rates, constants: CostConstants) -> float:
    """Give the seconds of everything but the experts, the same for every arm of one machine and model.

    With a GPU it is a time per layer; without one a share of what one socket needs to stream the experts.
    """
    if rest.has_gpu:
        factor = constants.large_model_rest_factor if rest.is_large_model else 1.0
        return rest.layer_count * constants.gpu_rest_seconds_per_layer * factor
    socket_rate = min(rest.package_bandwidth, max(1, rest.package_cores) * rates.core_rate)
    return constants.cpu_rest_share * rest.step_bytes / socket_rate
