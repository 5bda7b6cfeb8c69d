"""The cost model: seconds of one decode step from where bytes lie and which workers read them.

Formulas and constants are those of shared/reference/cost-model.md (sections 1 and 2), row "unknown" where the
hardware is not known. They are consistent with the measured cases and not predictive: the model may veto a
gain it does not see, and never promises one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.plan import Estimate

GIGABYTE = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CostConstants:
    """Rates in bytes per second, times in seconds. Defaults are cost-model.md's; each can be replaced by a
    measurement.
    """

    norm_power: float = 2.5
    same_package_factor: float = 1.1
    remote_factor: float = 1.3
    core_rate: float = 4 * GIGABYTE
    # Six channels of DDR4-2933 at the "unknown" share of 0.75 of the pin rate, for one package.
    package_bandwidth: float = 6 * 2933e6 * 8 * 0.75
    link_bandwidth: float = 45 * GIGABYTE
    base_seconds: float = 25e-6
    local_seconds: float = 0.1e-6
    cross_seconds: float = 40e-6
    wake_seconds: float = 80e-6
    claim_seconds: float = 0.5e-6
    tasks_per_worker: int = 3
    phase_count: int = 2
    gpu_rest_seconds_per_layer: float = 0.37e-3
    cpu_rest_share: float = 0.2
    needed_gain: float = 0.07


# A model's own count is used when known; 48 layers and a sixteenth of the experts are typical of current MoE
# models.
TYPICAL_LAYER_COUNT = 48
TYPICAL_EXPERTS_PER_USED = 16


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run a step: bytes[reader node][memory node], workers by node, packages by node.

    `package_of` maps each node to its package group; `nodes_per_package` divides a package's bandwidth.
    """

    read_bytes: Mapping[int, Mapping[int, float]]
    workers: Mapping[int, int]
    package_of: Mapping[int, int]
    nodes_in_package: Mapping[int, int]
    is_sliced: bool
    layer_count: int
    has_gpu: bool


def step_estimate(arm: Arm, constants: CostConstants) -> Estimate:
    """Give the estimated seconds of one decode step: streaming, working together, and everything else."""
    stream = _stream_seconds(arm, constants)
    synchronization = arm.layer_count * layer_synchronization_seconds(arm, constants) if stream > 0 else 0.0
    if arm.has_gpu:
        rest = arm.layer_count * constants.gpu_rest_seconds_per_layer
    else:
        rest = constants.cpu_rest_share * _one_package_stream_seconds(arm, constants)
    return Estimate(stream + synchronization + rest, stream, synchronization, rest)


def _stream_seconds(arm: Arm, constants: CostConstants) -> float:
    parts = (_memory_seconds(arm, constants), _link_seconds(arm, constants), _worker_seconds(arm, constants))
    return float(sum(part**constants.norm_power for part in parts) ** (1 / constants.norm_power))


def _memory_seconds(arm: Arm, constants: CostConstants) -> float:
    loads: dict[int, float] = {}
    for row in arm.read_bytes.values():
        for memory_node, size_bytes in row.items():
            loads[memory_node] = loads.get(memory_node, 0.0) + size_bytes
    return max(
        (
            size_bytes * arm.nodes_in_package[arm.package_of[node]] / constants.package_bandwidth
            for node, size_bytes in loads.items()
        ),
        default=0.0,
    )


def _link_seconds(arm: Arm, constants: CostConstants) -> float:
    crossing: dict[tuple[int, int], float] = {}
    for reader, row in arm.read_bytes.items():
        for memory_node, size_bytes in row.items():
            pair = (arm.package_of[memory_node], arm.package_of[reader])
            if pair[0] != pair[1]:
                crossing[pair] = crossing.get(pair, 0.0) + size_bytes
    return max(crossing.values(), default=0.0) / constants.link_bandwidth


def _worker_seconds(arm: Arm, constants: CostConstants) -> float:
    costs = {reader: _reading_cost(arm, reader, row, constants) for reader, row in arm.read_bytes.items()}
    if arm.is_sliced:
        return max((cost / max(1, arm.workers[node]) for node, cost in costs.items()), default=0.0)
    return sum(costs.values()) / max(1, sum(arm.workers.values()))


def _reading_cost(arm: Arm, reader: int, row: Mapping[int, float], constants: CostConstants) -> float:
    """Core seconds to read a row: own node at the core's rate, neighbours and other packages slower."""
    cost_bytes = 0.0
    for memory_node, size_bytes in row.items():
        if memory_node == reader:
            cost_bytes += size_bytes
        elif arm.package_of[memory_node] == arm.package_of[reader]:
            cost_bytes += constants.same_package_factor * size_bytes
        else:
            cost_bytes += constants.remote_factor * size_bytes
    return cost_bytes / constants.core_rate


def layer_synchronization_seconds(arm: Arm, constants: CostConstants) -> float:
    """Give what working together costs per layer.

    Contended claims grow with unsliced workers over packages: without this term 22 unsliced workers tie a
    placed split that the field measured 20 to 37 % faster (cost-model.md, section 3).
    """
    worker_count = sum(arm.workers.values())
    packages = {arm.package_of[node] for node, count in arm.workers.items() if count}
    per_slice = max(arm.workers.values(), default=0) if arm.is_sliced else worker_count
    seconds = constants.base_seconds + constants.phase_count * constants.local_seconds * per_slice
    if len(packages) < 2:
        return seconds
    seconds += constants.cross_seconds
    if arm.has_gpu:
        # The GPU's part of a layer leaves a gap longer than the pool spins, so workers must be woken.
        seconds += constants.wake_seconds
    if not arm.is_sliced:
        seconds += constants.phase_count * constants.tasks_per_worker * worker_count * constants.claim_seconds
    return seconds


def _one_package_stream_seconds(arm: Arm, constants: CostConstants) -> float:
    total_bytes = sum(sum(row.values()) for row in arm.read_bytes.values())
    return total_bytes / constants.package_bandwidth
