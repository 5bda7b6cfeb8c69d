"""How many slots have room: each holds the key-value cache of one request beside the weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner import Effect, Reason, Topology
from planner.facts import node_headroom_bytes
from stratad.facts import slot_context_tokens
from stratad.model import ModelFacts

if TYPE_CHECKING:
    # pydantic takes its time, and `stratactl plan` often needs no configuration.
    from stratad.config import Configuration


def with_fitting_slots(
    configuration: Configuration, model: ModelFacts, topology: Topology
) -> tuple[Configuration, Reason | None]:
    """Give the configuration with as many slots as there is memory for, and a Reason when those are fewer."""
    asked_slots, slot_bytes = configuration.model.slots, _slot_bytes(configuration, model)
    available = available_bytes(topology)
    slots = fitting_slots(asked_slots, slot_bytes, model.tensor_bytes_total, available)
    if slots == asked_slots:
        return configuration, None
    reason = Reason(
        code="slots-reduced",
        effect=Effect.WARNS,
        message=f"memory has room for the KV cache of {slots} of {asked_slots} slots beside the weights",
        evidence={
            "slots": slots,
            "asked_slots": asked_slots,
            "slot_bytes": slot_bytes,
            "weight_bytes": model.tensor_bytes_total,
            "available_bytes": available,
        },
        remedy=f"free memory, lower model.context_tokens, or set model.slots = {slots}",
    )
    return replace(configuration, model=replace(configuration.model, slots=slots)), reason


def fitting_slots(asked_slots: int, slot_bytes: int, weight_bytes: int, available: int | None) -> int:
    """Give how many of the slots fit into `available` bytes beside the weights: 1 at least, all when unknown.

    An uneven machine can still be too tight for a policy; the planner's own rules say so then.
    """
    if available is None or slot_bytes == 0:
        return asked_slots
    return max(1, min(asked_slots, (available - weight_bytes) // slot_bytes))


def available_bytes(topology: Topology) -> int | None:
    """Give what the usable nodes have beyond their headroom, within the cgroup's limit; None when not told."""
    limit = topology.limits.memory_limit_bytes
    nodes = [node for node in topology.nodes if node.is_allowed and node.has_memory]
    if not nodes or any(node.available_bytes is None for node in nodes):
        return limit
    free_bytes = sum(
        (node.available_bytes or 0) - node_headroom_bytes(node.memory_total_bytes) for node in nodes
    )
    return free_bytes if limit is None else min(free_bytes, limit)


def _slot_bytes(configuration: Configuration, model: ModelFacts) -> int:
    """Give the KV cache of one slot; 0 when the model does not state its shape."""
    return slot_context_tokens(configuration, model) * (model.kv_bytes_per_token or 0)
