"""How many slots have room beside the weights, each with the key-value cache of one request, and what prompt cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner import Effect, Reason, Topology
from planner.facts import node_headroom_bytes
from planner.quantity import GIB
from stratad.gguf.model import ModelFacts
from stratad.plan.facts import slot_context_tokens

if TYPE_CHECKING:
    # pydantic takes its time, and `stratactl plan` often needs no configuration.
    from stratad.config import Configuration

# Left to itself the prompt cache stays small beside what else may need the memory: other programs, the page cache,
# and the engine's own buffers for computing, which nobody counts.
_PROMPT_CACHE_SHARE = 8
_PROMPT_CACHE_BYTES_MOST = 8 * GIB
_PROMPT_CACHE_BYTES_UNTOLD = GIB // 2


def with_fitting_memory(
    configuration: Configuration, model: ModelFacts, topology: Topology
) -> tuple[Configuration, tuple[Reason, ...]]:
    """Give the configuration with as many slots and as large a prompt cache as there is memory for, and why."""
    configuration, slots_reason = with_fitting_slots(configuration, model, topology)
    configuration, cache_reason = with_fitting_prompt_cache(configuration, model, topology)
    return configuration, tuple(reason for reason in (slots_reason, cache_reason) if reason is not None)


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


def with_fitting_prompt_cache(
    configuration: Configuration, model: ModelFacts, topology: Topology
) -> tuple[Configuration, Reason | None]:
    """Give the configuration with what the memory has room for of a configured prompt cache, and a Reason when less."""
    asked = configuration.model.prompt_cache_bytes
    left = _bytes_beside_slots(configuration, model, topology)
    if asked is None or left is None or asked <= left:
        return configuration, None
    fitting = max(0, left)
    reason = Reason(
        code="prompt-cache-reduced",
        effect=Effect.WARNS,
        message=f"memory has room for a prompt cache of {fitting} of {asked} bytes beside weights and slots",
        evidence={
            "prompt_cache_bytes": fitting,
            "asked_bytes": asked,
            "slots": configuration.model.slots,
            "slot_bytes": _slot_bytes(configuration, model),
            "weight_bytes": model.tensor_bytes_total,
            "available_bytes": available_bytes(topology),
        },
        remedy="free memory, or set model.prompt_cache_bytes to what fits, or leave it out",
    )
    return replace(configuration, model=replace(configuration.model, prompt_cache_bytes=fitting)), reason


def prompt_cache_limit(configuration: Configuration, model: ModelFacts, topology: Topology) -> int:
    """Give the bytes that the prompt cache may take: as configured, else a part of what is left beside the slots."""
    configured = configuration.model.prompt_cache_bytes
    if configured is not None:
        return configured
    left = _bytes_beside_slots(configuration, model, topology)
    if left is None:
        return _PROMPT_CACHE_BYTES_UNTOLD
    return max(0, min(_PROMPT_CACHE_BYTES_MOST, left // _PROMPT_CACHE_SHARE))


def _bytes_beside_slots(configuration: Configuration, model: ModelFacts, topology: Topology) -> int | None:
    """Give what is available beyond weights and slots, below 0 when that is too little; None when not told."""
    available = available_bytes(topology)
    if available is None:
        return None
    slot_bytes = configuration.model.slots * _slot_bytes(configuration, model)
    return available - model.tensor_bytes_total - slot_bytes


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
