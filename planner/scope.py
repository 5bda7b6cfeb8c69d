"""What the arena holds: the experts alone, or every large weight matrix of the model."""

from __future__ import annotations

from dataclasses import replace

from planner.facts import Facts
from planner.quantity import format_bytes
from planner.reason import Effect, Reason
from planner.request import ArenaScope


def with_arena_scope(facts: Facts) -> tuple[Facts, ArenaScope, tuple[Reason, ...]]:
    """Give the facts with the arena of the right scope in their request, the scope, and why.

    Where no GPU takes part everything is computed on the CPU, and attention, router and output head are a third of the
    bytes that a token reads: they are placed and read like the experts. With one they belong to it. Moving
    them into the arena takes them out of the other host buffers.

    Source: docs/adr/0006-own-mode.md.
    """
    request = facts.request
    if request.weights is None:
        return facts, ArenaScope.EXPERTS, ()
    scope = request.requested_scope or (ArenaScope.EXPERTS if facts.has_gpu else ArenaScope.WEIGHTS)
    dense_bytes = request.weights.size_bytes - request.arena.size_bytes
    reason = _reason(facts, scope, dense_bytes)
    if scope is ArenaScope.EXPERTS:
        return facts, scope, (reason,)
    other_bytes = max(0, request.other_host_bytes - dense_bytes)
    held = replace(request, arena=request.weights, other_host_bytes=other_bytes)
    return replace(facts, request=held), scope, (reason,)


def _reason(facts: Facts, scope: ArenaScope, dense_bytes: int) -> Reason:
    dense = f"{format_bytes(dense_bytes)} of attention, router and output weights"
    evidence = {"scope": scope.value, "dense_bytes": dense_bytes, "has_gpu": facts.has_gpu}
    if facts.request.requested_scope is not None:
        message = f"arena.scope = '{scope}' was asked for"
        return Reason("arena-scope-requested", Effect.CHOOSES, message, evidence)
    if scope is ArenaScope.WEIGHTS:
        idle = facts.topology.accelerators and facts.request.has_gpu is False
        remedy = (
            "build ggml's module for the GPU (`make setup GPU=...`) and leave gpu.mode on" if idle else None
        )
        message = f"no GPU takes part, so {dense} lie in the arena with the experts and are read by slices"
        return Reason("arena-holds-weights", Effect.CHOOSES, message, evidence, remedy)
    return Reason(
        "arena-holds-experts",
        Effect.CHOOSES,
        f"a GPU takes part, so {dense} stay out of the arena",
        evidence,
        "set gpu.mode = 'off' when the GPU is not for this model",
    )
