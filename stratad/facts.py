"""Builds what the planner takes: the machine under a root, and a request from model facts and options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planner import (
    ArenaSpec,
    Objective,
    PlanRefused,
    PlanRequest,
    Policy,
    Topology,
    TopologyUnreadable,
    parse_policy,
    read_topology,
)
from stratad.errors import PlanRefusedError, StratadError
from stratad.model import ModelFacts

if TYPE_CHECKING:
    # pydantic takes its time, and `stratactl plan` often needs no configuration.
    from stratad.config import Configuration


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
    """Give the topology of the machine under `root`.

    Raises:
        StratadError: When the root shows no machine at all.
    """
    try:
        return read_topology(root)
    except TopologyUnreadable as error:
        raise StratadError(
            tried=f"reading the machine under {root}",
            because="neither /sys nor /proc there names a CPU",
            values={"root": root},
            remedy="give the directory that holds sys/ and proc/ of a captured machine, or leave --root out",
            summary="the machine cannot be read",
        ) from error


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
