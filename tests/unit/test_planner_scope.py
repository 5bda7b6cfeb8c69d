"""What the arena holds: experts alone, or all large weights where no GPU takes part."""

from __future__ import annotations

import pytest

from planner import ArenaScope, ArenaSpec, Effect, Plan, Policy, parse_scope
from tests.support.machines import GIB, MachineShape, even_nodes
from tests.support.planning import codes, planned, reason_of, refused

MACHINE = MachineShape(even_nodes(2, 12, total_gib=32))
WEIGHTS = ArenaSpec(50 * GIB, 9 * GIB, (GIB,) * 48)


def held(plan: Plan) -> int:
    return sum(part.size_bytes for part in plan.arena_slices)


def test_without_a_gpu_the_arena_holds_all_weights() -> None:
    plan = planned(MACHINE, 44, weights=WEIGHTS, other_host_bytes=7 * GIB)
    assert plan.arena_scope is ArenaScope.WEIGHTS
    assert held(plan) == 50 * GIB
    reason = reason_of(plan, "arena-holds-weights")
    assert reason.effect is Effect.CHOOSES
    assert reason.evidence["dense_bytes"] == 6 * GIB


def test_with_a_gpu_the_arena_holds_the_experts() -> None:
    plan = planned(MACHINE, 44, weights=WEIGHTS, has_gpu=True)
    assert plan.arena_scope is ArenaScope.EXPERTS
    assert held(plan) == 44 * GIB
    assert reason_of(plan, "arena-holds-experts").remedy


def test_the_operators_scope_is_taken_with_and_without_a_gpu() -> None:
    for has_gpu in (False, True):
        for scope, size in ((ArenaScope.EXPERTS, 44), (ArenaScope.WEIGHTS, 50)):
            plan = planned(MACHINE, 44, weights=WEIGHTS, has_gpu=has_gpu, requested_scope=scope)
            assert (plan.arena_scope, held(plan)) == (scope, size * GIB)
            assert "arena-scope-requested" in codes(plan)


def test_weights_in_the_arena_are_not_counted_among_the_other_buffers_again() -> None:
    # 44 GiB of experts, 6 of dense weights and 8 of cache need 58 of 64 GiB either way.
    fits = {"weights": WEIGHTS, "other_host_bytes": 14 * GIB - 2 * 2 * GIB}
    assert planned(MACHINE, 44, **fits).arena_scope is ArenaScope.WEIGHTS
    assert refused(MACHINE, 44, weights=WEIGHTS, other_host_bytes=30 * GIB)[0].code == "arena-exceeds-memory"


def test_nothing_is_said_about_scope_when_only_experts_may_be_placed() -> None:
    plan = planned(MACHINE, 44)
    assert plan.arena_scope is ArenaScope.EXPERTS
    assert not [code for code in codes(plan) if code.startswith(("arena-holds", "arena-scope"))]


def test_a_dense_model_is_placed_as_well() -> None:
    plan = planned(MACHINE, 0, weights=ArenaSpec(20 * GIB, 20 * GIB, (GIB,) * 20), other_host_bytes=21 * GIB)
    assert held(plan) == 20 * GIB
    assert plan.policy is not Policy.OFF
    assert "no-experts" not in codes(plan)


def test_a_scope_is_a_word_of_the_configuration() -> None:
    assert parse_scope("auto") is None
    assert parse_scope("weights") is ArenaScope.WEIGHTS
    with pytest.raises(ValueError, match="all"):
        parse_scope("all")
