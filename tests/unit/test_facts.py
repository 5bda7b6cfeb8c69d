from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner import ArenaScope, Effect, Policy, Reason
from planner.plan import PlanRefused
from stratad.errors import StratadError
from stratad.gguf.model import ModelFacts, read_model_facts
from stratad.plan.facts import PlanOptions, machine_facts, plan_request, refusal_error
from tests.support.gguf_bytes import moe_file
from tests.support.machines import MachineShape, even_nodes, machine_files, write_tree


@pytest.fixture
def model(tmp_path: Path) -> ModelFacts:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(moe_file())
    return read_model_facts(path)


def test_a_models_experts_are_the_arena_and_the_rest_is_other_memory(model: ModelFacts) -> None:
    request = plan_request(model, PlanOptions(context_tokens=100, extra_host_bytes=7))
    assert request.arena.size_bytes == model.expert_bytes
    assert request.arena.bytes_per_token == model.expert_bytes_per_token
    assert request.arena.layer_bytes == model.layer_expert_bytes
    assert request.other_host_bytes == model.dense_bytes + 100 * (model.kv_bytes_per_token or 0) + 7


def test_all_large_weights_are_offered_as_an_arena(model: ModelFacts) -> None:
    request = plan_request(model, PlanOptions(arena_scope=ArenaScope.WEIGHTS))
    assert request.requested_scope is ArenaScope.WEIGHTS
    assert request.weights is not None
    dense_bytes = model.weight_bytes - model.expert_bytes
    assert request.weights.size_bytes == request.arena.size_bytes + dense_bytes
    assert request.weights.bytes_per_token == (model.expert_bytes_per_token or 0) + dense_bytes
    assert request.weights.layer_bytes == model.layer_weight_bytes


@pytest.mark.parametrize(
    "options", [PlanOptions(dense_on_gpu=True), PlanOptions(gpu_expert_layers=1), PlanOptions(arena_bytes=1)]
)
def test_weights_that_lie_elsewhere_are_not_offered(model: ModelFacts, options: PlanOptions) -> None:
    assert plan_request(model, options).weights is None


def test_dense_weights_in_vram_take_no_host_memory(model: ModelFacts) -> None:
    assert plan_request(model, PlanOptions(context_tokens=100, dense_on_gpu=True)).other_host_bytes == 0


def test_a_smaller_arena_is_read_in_proportion(model: ModelFacts) -> None:
    request = plan_request(model, PlanOptions(arena_bytes=model.expert_bytes // 2))
    assert request.arena.size_bytes == model.expert_bytes // 2
    assert request.arena.bytes_per_token == (model.expert_bytes_per_token or 0) // 2
    unknown = replace(model, expert_count=None)
    assert plan_request(unknown, PlanOptions(arena_bytes=8)).arena.bytes_per_token is None


def test_an_arena_size_stands_in_for_a_model() -> None:
    request = plan_request(
        None, PlanOptions(arena_bytes=42, policy=Policy.SPLIT, worker_count=3, cpu_share=0.5)
    )
    assert request.arena.size_bytes == 42
    assert request.arena.layer_count is None
    assert (request.requested_policy, request.requested_worker_count, request.cpu_share) == (
        Policy.SPLIT,
        3,
        0.5,
    )
    assert plan_request(None, PlanOptions()).arena.size_bytes == 0


def test_a_machine_is_read_or_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(StratadError) as caught:
        machine_facts(tmp_path)
    assert caught.value.values["root"] == tmp_path
    write_tree(tmp_path, machine_files(MachineShape(even_nodes(2, 2))))
    assert len(machine_facts(tmp_path).nodes) == 2


def test_a_refusal_becomes_an_error_with_every_reason() -> None:
    first = Reason("arena-exceeds-memory", Effect.REJECTS, "too much")
    second = Reason("arena-exceeds-cgroup-limit", Effect.REJECTS, "too much here", remedy="raise it")
    error = refusal_error(PlanRefused((first, second)))
    assert error.exit_status == 3
    assert error.because == "arena-exceeds-memory: too much"
    assert error.reason_lines == ("arena-exceeds-cgroup-limit: too much here",)
    assert error.remedy == "raise it"
