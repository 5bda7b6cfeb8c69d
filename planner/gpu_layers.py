"""Which GPU computes the attention and dense part of which layers, and where its uploads come from."""

from __future__ import annotations

from planner.candidates import Draft
from planner.facts import Facts
from planner.plan import GpuLayers
from planner.reason import Effect, Reason


def assign_layers(facts: Facts, draft: Draft) -> tuple[GpuLayers, ...]:
    """Give every GPU in use its run of layers, GPUs at the arena's nodes first; () where layers are not known.

    Shares follow the GPUs' memory when all state it and are equal otherwise. One run for each GPU: activations
    then cross between GPUs once for each neighbouring pair and step.
    """
    layer_count = facts.request.layer_count
    if not facts.has_gpu or not layer_count or not facts.gpu_homes:
        return ()
    homes = sorted(
        facts.gpu_homes,
        key=lambda pair: (pair[1] not in draft.node_ids, pair[1] is None, pair[1] or 0, pair[0].pci_address),
    )
    sizes = facts.gpu_memory_bytes
    weights = [sizes.get(gpu.pci_address) for gpu, _ in homes]
    known = [weight for weight in weights if weight]
    counts = _shares(layer_count, known if len(known) == len(weights) else [1] * len(weights))
    assigned, first = [], 0
    for (gpu, home), count in zip(homes, counts, strict=True):
        if count:
            assigned.append(GpuLayers(gpu.pci_address, home, first, count))
        first += count
    return tuple(assigned)


def gpu_layers_assigned(facts: Facts, draft: Draft) -> Reason | None:
    """Say which layers belong to which GPU where there are several."""
    layers = assign_layers(facts, draft)
    if len(layers) < 2:
        return None
    runs = ", ".join(
        f"{part.first_layer}-{part.first_layer + part.layer_count - 1} on {part.pci_address} ({_place(part.node_id)})"
        for part in layers
    )
    return Reason(
        code="gpu-layers-assigned",
        effect=Effect.INFORMS,
        message=f"layers {runs}",
        evidence={"layer_counts": tuple(part.layer_count for part in layers)},
    )


def gpu_far_from_arena(facts: Facts, draft: Draft) -> Reason | None:
    """Note GPUs that read expert weights over the link between nodes because no part of the arena is at theirs.

    With slices on every GPU's node each reads its share at home and the rest over the link, whatever the layer:
    rows are cut, not layers, so that all cores work on each.
    """
    if not facts.has_gpu or facts.request.arena.size_bytes == 0:
        return None
    placed = {node_id for part in draft.arena_slices for node_id in part.node_ids}
    far = [
        (gpu.pci_address, home)
        for gpu, home in facts.gpu_homes
        if home is not None and placed and home not in placed
    ]
    if not far:
        return None
    names = ", ".join(f"{address} at node {home}" for address, home in far)
    return Reason(
        code="gpu-far-from-arena",
        effect=Effect.INFORMS,
        message=f"{names}: expert weights come from {_nodes(placed)}, over the link between nodes",
        evidence={
            "gpu_nodes": tuple(sorted({home for _, home in far})),
            "arena_nodes": tuple(sorted(placed)),
        },
        remedy="prefer the GPU's node with --objective prompt when prompts matter more than answers",
    )


def _shares(total: int, weights: list[int]) -> list[int]:
    """Give `total` in whole parts by weight: largest remainders first, earlier ones on ties."""
    scale = sum(weights)
    counts = [total * weight // scale for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda index: (-(total * weights[index] % scale), index))
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def _place(node_id: int | None) -> str:
    return "node unknown" if node_id is None else f"node {node_id}"


def _nodes(node_ids: set[int]) -> str:
    return ("node " if len(node_ids) == 1 else "nodes ") + ", ".join(map(str, sorted(node_ids)))
