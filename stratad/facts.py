"""Builds what the planner takes: the machine under a root, and a request from model facts and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from planner import (
    ArenaSpec,
    Benchmark,
    Calibration,
    CalibrationError,
    Objective,
    PlanRefused,
    PlanRequest,
    Policy,
    Topology,
    TopologyUnreadable,
    Tuning,
    benchmark_from_json,
    parse_policy,
    read_topology,
    tuning_from_json,
    with_gpu_affinity,
)
from stratad.errors import PlanRefusedError, StratadError
from stratad.model import ModelFacts

if TYPE_CHECKING:
    # pydantic takes its time, and `stratactl plan` often needs no configuration.
    from stratad.config import Configuration

LIVE_ROOT = Path("/")
Recorded = TypeVar("Recorded", Benchmark, Tuning)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The operator's wishes, from options or the configuration. None leaves the choice to the planner.

    `arena_bytes` stands in for a model. `context_tokens` sizes the KV cache, `extra_host_bytes` is host
    memory beside weights and cache; `dense_on_gpu` says that everything but the experts lies in VRAM.
    """

    policy: Policy | None = None
    objective: Objective = Objective.DECODE
    worker_count: int | None = None
    cpu_share: float = 1.0
    arena_bytes: int | None = None
    context_tokens: int | None = None
    extra_host_bytes: int = 0
    dense_on_gpu: bool = False
    gpu_node_ids: tuple[int, ...] | None = None
    placement_possible: bool | None = None


def configured_options(
    configuration: Configuration, model: ModelFacts, *, placement_possible: bool | None = None
) -> PlanOptions:
    """Give the wishes of a configuration, for the daemon and for `stratactl apply` alike."""
    placement = configuration.placement
    return PlanOptions(
        policy=parse_policy(placement.policy),
        objective=Objective(placement.objective),
        worker_count=placement.workers,
        context_tokens=min(configuration.model.context_tokens, model.context_length or 2**31),
        placement_possible=placement_possible,
    )


def machine_facts(root: Path = Path("/")) -> Topology:
    """Give the topology of the machine under `root`, a directory or an archive of `stratactl capture`.

    Raises:
        StratadError: When the root shows no machine at all.
    """
    try:
        return _archived(root) if root.is_file() else _with_library_affinity(read_topology(root), root)
    except TopologyUnreadable as error:
        raise StratadError(
            tried=f"reading the machine under {root}",
            because="neither /sys nor /proc there names a CPU",
            values={"root": root},
            remedy="give the directory that holds sys/ and proc/ of a captured machine, or leave --root out",
            summary="the machine cannot be read",
        ) from error


def _archived(path: Path) -> Topology:
    # tarfile is needed for archives only, and a plan must start at once.
    from planner.discover import topology_of
    from stratad.machine_archive import read_archive

    return topology_of(read_archive(path), str(path))


def _with_library_affinity(topology: Topology, root: Path) -> Topology:
    """Fill in the nodes of GPUs whose firmware says nothing, on the live machine with several nodes only."""
    is_asked = root == LIVE_ROOT and len(topology.nodes) > 1
    if not is_asked or all(gpu.node_id is not None for gpu in topology.accelerators):
        return topology
    # ctypes and the driver's library cost more than the rest of a plan.
    from stratad.gpu_affinity import gpu_affinity

    return with_gpu_affinity(topology, gpu_affinity())


def machine_calibration(
    state_directory: Path | None, benchmark: Path | None = None, tuning: Path | None = None
) -> Calibration:
    """Give what was measured on this machine: bench.json and tune.json of the state directory, if they are there.

    Args:
        state_directory: Where `stratactl bench` and `tune` leave their results; None for a captured machine.
        benchmark: Another file to read instead of bench.json; it must exist.
        tuning: Another file to read instead of tune.json; it must exist.

    Raises:
        StratadError: When a named file is missing, or a file is damaged.
    """
    return Calibration(
        benchmark=_recorded(benchmark, state_directory, "bench.json", benchmark_from_json),
        tuning=_recorded(tuning, state_directory, "tune.json", tuning_from_json),
    )


def _recorded(
    named: Path | None, directory: Path | None, name: str, parse: Callable[[str], Recorded]
) -> Recorded | None:
    path = named if named is not None or directory is None else directory / name
    if path is None:
        return None
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named is None:
            return None
        because = "the file does not exist"
    except CalibrationError as error:
        because = str(error)
    except (OSError, UnicodeDecodeError) as error:
        because = str(error)
    raise StratadError(
        tried=f"reading the measurements in {path}",
        because=because,
        values={"path": path},
        remedy="remove the file, or measure again with `stratactl bench` or `stratactl tune`",
        summary="recorded measurements cannot be used",
    )


def plan_request(model: ModelFacts | None, options: PlanOptions) -> PlanRequest:
    """Give the planner's request for a model, or for `options.arena_bytes` alone."""
    return PlanRequest(
        arena=_arena(model, options),
        other_host_bytes=options.extra_host_bytes + _model_host_bytes(model, options),
        requested_policy=options.policy,
        objective=options.objective,
        cpu_share=options.cpu_share,
        requested_worker_count=options.worker_count,
        gpu_node_ids=options.gpu_node_ids,
        placement_possible=options.placement_possible,
    )


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
    if options.arena_bytes is not None and model.expert_bytes:
        # Part of the experts lies in VRAM: the same share of every layer and token is left.
        per_token = model.expert_bytes_per_token
        scaled = None if per_token is None else per_token * options.arena_bytes // model.expert_bytes
        return ArenaSpec(options.arena_bytes, scaled, model.layer_expert_bytes)
    return ArenaSpec(model.expert_bytes, model.expert_bytes_per_token, model.layer_expert_bytes)


def _model_host_bytes(model: ModelFacts | None, options: PlanOptions) -> int:
    if model is None or options.dense_on_gpu:
        return 0
    tokens = options.context_tokens or 0
    return model.dense_bytes + tokens * (model.kv_bytes_per_token or 0)
