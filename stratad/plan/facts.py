"""Builds what the planner takes: the machine under a root, and a request from model facts and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from planner import (
    ArenaScope,
    ArenaSpec,
    GpuInUse,
    Objective,
    PlanRefused,
    PlanRequest,
    Policy,
    Running,
    Topology,
    TopologyUnreadable,
    parse_policy,
    parse_scope,
    with_gpu_affinity,
)
from planner.discover import topology_of
from planner.sysfs import MachineFiles, Tree
from stratad.errors import PlanRefusedError, StratadError
from stratad.gguf.model import ModelFacts

if TYPE_CHECKING:
    # pydantic takes its time, and `stratactl plan` often needs no configuration.
    from planner.calibration import Calibration
    from stratad.config import Configuration

LIVE_ROOT = Path("/")
Recorded = TypeVar("Recorded")


# Where `stratactl bench` and `tune` leave what they measured of this machine.
STATE_DIRECTORY = Path("/var/lib/stratad")


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The operator's wishes, from options or the configuration. None leaves the choice to the planner.

    `arena_bytes` stands in for a model. `context_tokens`, of all slots together, size the KV cache;
    `extra_host_bytes` is host memory beside weights and cache; `dense_on_gpu` says that everything but the
    experts lies in VRAM, and `gpu_expert_layers` of the layers with experts lie there too.
    `tokens_per_step` is above 1 with drafts. `has_gpu` and `gpus` say which GPUs take part; None leaves it to what
    the machine has. `is_rest_in_vram` says that with a GPU all but the experts lie there, unless the arena takes it.
    `running` is what a running daemon has measured.
    """

    policy: Policy | None = None
    arena_scope: ArenaScope | None = None
    objective: Objective = Objective.DECODE
    worker_count: int | None = None
    cpu_share: float = 1.0
    arena_bytes: int | None = None
    context_tokens: int | None = None
    extra_host_bytes: int = 0
    dense_on_gpu: bool = False
    gpu_expert_layers: int = 0
    tokens_per_step: float = 1.0
    pool_spin_seconds: float | None = None
    gpu_node_ids: tuple[int, ...] | None = None
    has_gpu: bool | None = None
    gpus: tuple[GpuInUse, ...] | None = None
    is_rest_in_vram: bool = False
    running: Running | None = None
    placement_possible: bool | None = None


def configured_options(
    configuration: Configuration,
    model: ModelFacts,
    *,
    has_gpu: bool | None,
    gpus: tuple[GpuInUse, ...] | None = None,
    placement_possible: bool | None = None,
) -> PlanOptions:
    """Give the wishes of a configuration, for the daemon and for every command that plans as it does.

    `has_gpu` and `gpus` are what the caller knows of GPUs that take part: the daemon has asked them, a command goes by
    files (`stratad.gpu.modules.is_gpu_expected`). `has_gpu` decides what the arena holds, so it has no default: None
    takes every GPU that is seen for one in use, which is right for captured machines only.
    """
    placement = configuration.placement
    scope = parse_scope(configuration.arena.scope)
    return PlanOptions(
        policy=parse_policy(placement.policy),
        arena_scope=scope,
        objective=Objective(placement.objective),
        worker_count=placement.workers,
        is_rest_in_vram=bool(has_gpu)
        and configuration.gpu.layers is None
        and scope is not ArenaScope.WEIGHTS,
        context_tokens=total_context_tokens(configuration, model),
        # Left to itself the prompt cache takes a part of what is free in the end, and needs no room in the plan.
        extra_host_bytes=configuration.model.prompt_cache_bytes or 0,
        placement_possible=placement_possible,
        has_gpu=has_gpu,
        gpus=gpus,
        pool_spin_seconds=placement.spin_microseconds * 1e-6,
    )


def slot_context_tokens(configuration: Configuration, model: ModelFacts) -> int:
    """Give the tokens that one slot holds: what is configured, within what the model was trained for."""
    return min(configuration.model.context_tokens, model.context_length or 2**31)


def total_context_tokens(configuration: Configuration, model: ModelFacts) -> int:
    """Give the tokens of all slots together."""
    return configuration.model.slots * slot_context_tokens(configuration, model)


def machine_facts(root: Path = LIVE_ROOT, files: MachineFiles | None = None) -> Topology:
    """Give the topology of the machine under `root`, a directory or an archive of `stratactl capture`.

    Args:
        root: Where the machine is.
        files: What `machine_files` gave for this root, when the caller has it already.

    Raises:
        StratadError: When the root shows no machine at all.
    """
    try:
        topology = topology_of(machine_files(root) if files is None else files, str(root))
        return _with_library_affinity(topology, root)
    except TopologyUnreadable as error:
        raise StratadError(
            tried=f"reading the machine under {root}",
            because="neither /sys nor /proc there names a CPU",
            values={"root": root},
            remedy="give the directory that holds sys/ and proc/ of a captured machine, or leave --root out",
            summary="the machine cannot be read",
        ) from error


def machine_files(root: Path) -> MachineFiles:
    """Give the files of the machine under `root`, a directory or an archive of `stratactl capture`."""
    if not root.is_file():
        return Tree(root)
    # tarfile is needed for archives only, and a plan must start at once.
    from stratad.machine.archive import read_archive

    return read_archive(root)


def _with_library_affinity(topology: Topology, root: Path) -> Topology:
    """Fill in the nodes of GPUs whose firmware says nothing, on the live machine with several nodes only."""
    is_asked = root == LIVE_ROOT and len(topology.nodes) > 1
    if not is_asked or all(gpu.node_id is not None for gpu in topology.accelerators):
        return topology
    # ctypes and the driver's library cost more than the rest of a plan.
    from stratad.gpu.affinity import gpu_affinity

    return with_gpu_affinity(topology, gpu_affinity())


def machine_calibration(
    state_directory: Path | None, benchmark: Path | None = None, tuning: Path | None = None
) -> Calibration | None:
    """Give what was measured on this machine: bench.json and tune.json of the state directory; None without either.

    Args:
        state_directory: Where `stratactl bench` and `tune` leave their results; None for a captured machine.
        benchmark: Another file to read instead of bench.json; it must exist.
        tuning: Another file to read instead of tune.json; it must exist.

    Raises:
        StratadError: When a named file is missing, or a file is damaged.
    """
    bench_path = _recorded_path(benchmark, state_directory, "bench.json")
    tune_path = _recorded_path(tuning, state_directory, "tune.json")
    if bench_path is None and tune_path is None:
        return None
    from planner.calibration import Calibration, benchmark_from_json, tuning_from_json

    return Calibration(
        benchmark=None if bench_path is None else _recorded(bench_path, benchmark_from_json),
        tuning=None if tune_path is None else _recorded(tune_path, tuning_from_json),
    )


def _recorded_path(named: Path | None, directory: Path | None, name: str) -> Path | None:
    """Give the file to read: a named one whether it exists or not, the usual one only when it does."""
    if named is not None or directory is None:
        return named
    return directory / name if (directory / name).exists() else None


def _recorded(path: Path, parse: Callable[[str], Recorded]) -> Recorded:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        # CalibrationError and a text that is not UTF-8 are ValueErrors.
        raise StratadError(
            tried=f"reading the measurements in {path}",
            because=str(error),
            values={"path": path},
            remedy="remove the file, or measure again with `stratactl bench` or `stratactl tune`",
            summary="recorded measurements cannot be used",
        ) from error


def plan_request(model: ModelFacts | None, options: PlanOptions) -> PlanRequest:
    """Give the planner's request for a model, or for `options.arena_bytes` alone."""
    request = PlanRequest(
        arena=_arena(model, options),
        weights=_weights(model, options),
        requested_scope=options.arena_scope,
        other_host_bytes=options.extra_host_bytes + _model_host_bytes(model, options),
        requested_policy=options.policy,
        objective=options.objective,
        cpu_share=options.cpu_share,
        requested_worker_count=options.worker_count,
        gpu_node_ids=options.gpu_node_ids,
        has_gpu=options.has_gpu,
        gpus=options.gpus,
        running=options.running,
        layer_count=None if model is None else model.layer_count,
        placement_possible=options.placement_possible,
        tokens_per_step=options.tokens_per_step,
    )
    if options.pool_spin_seconds is None:
        return request
    return replace(request, pool_spin_seconds=options.pool_spin_seconds)


def refusal_error(refusal: PlanRefused) -> PlanRefusedError:
    """Give the operating error for a refused plan, with every reason and the first remedy."""
    remedies = [reason.remedy for reason in refusal.reasons if reason.remedy]
    messages = tuple(f"{reason.code}: {reason.message}" for reason in refusal.reasons)
    return PlanRefusedError(
        tried="planning placement for this machine",
        because=messages[0] if messages else "no candidate is feasible",
        remedy=remedies[0] if remedies else "",
        reason_lines=messages[1:],
    )


def _arena(model: ModelFacts | None, options: PlanOptions) -> ArenaSpec:
    if model is None:
        return ArenaSpec(options.arena_bytes or 0)
    layer_bytes = model.layer_expert_bytes
    # Like llama.cpp's own option, the last layers go to the GPU first.
    held = layer_bytes[: max(0, len(layer_bytes) - options.gpu_expert_layers)]
    held_bytes = sum(held)
    if options.arena_bytes is not None and held_bytes:
        # Part of the experts lies in VRAM: the same share of every layer and token is left.
        held = tuple(size * options.arena_bytes // held_bytes for size in held)
        held_bytes = options.arena_bytes
    per_token = model.expert_bytes_per_token
    return ArenaSpec(
        size_bytes=held_bytes,
        bytes_per_token=None if per_token is None else per_token * held_bytes // max(1, model.expert_bytes),
        layer_bytes=held,
        expert_matrix_bytes=model.smallest_expert_bytes,
    )


def _weights(model: ModelFacts | None, options: PlanOptions) -> ArenaSpec | None:
    """Give all large weights as an arena; None where some of them are said to lie elsewhere."""
    if model is None or options.dense_on_gpu or options.gpu_expert_layers or options.arena_bytes is not None:
        return None
    dense_bytes = model.weight_bytes - model.expert_bytes
    # Without experts, or where their use is not stated, nothing is skipped.
    per_token = model.expert_bytes_per_token if model.expert_bytes else 0
    return ArenaSpec(
        size_bytes=model.weight_bytes,
        bytes_per_token=None if per_token is None else per_token + dense_bytes,
        layer_bytes=model.layer_weight_bytes,
        expert_matrix_bytes=model.smallest_expert_bytes,
    )


def _model_host_bytes(model: ModelFacts | None, options: PlanOptions) -> int:
    if model is None or options.dense_on_gpu or options.is_rest_in_vram:
        return 0
    tokens = options.context_tokens or 0
    return model.dense_bytes + tokens * (model.kv_bytes_per_token or 0)
