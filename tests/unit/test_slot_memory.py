"""How many slots fit beside the weights: both sides of the limit, and what is said when they do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner import Topology
from planner.facts import node_headroom_bytes
from stratad.config import Configuration, ModelSection
from stratad.gguf.model import ModelFacts, read_model_facts
from stratad.plan.facts import configured_options
from stratad.plan.slot_memory import (
    available_bytes,
    fitting_slots,
    prompt_cache_limit,
    with_fitting_memory,
    with_fitting_slots,
)
from tests.support.gguf_bytes import moe_file
from tests.support.machines import GIB, MachineShape, even_nodes, machine_topology

CONTEXT_TOKENS = 1000


@pytest.fixture
def model(tmp_path: Path) -> ModelFacts:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(moe_file())
    return replace(read_model_facts(path), context_length=None)


def _configuration(slots: int) -> Configuration:
    return Configuration(ModelSection(Path("tiny.gguf"), context_tokens=CONTEXT_TOKENS, slots=slots))


def _machine(*, memory_max_bytes: int | None = None) -> Topology:
    return machine_topology(MachineShape(even_nodes(2, cores_per_node=2), memory_max_bytes=memory_max_bytes))


@pytest.mark.parametrize(
    ("available", "slots"), [(1000 + 399, 3), (1000 + 400, 4), (1000 + 900, 4), (1000 + 99, 1), (0, 1)]
)
def test_as_many_fit_as_have_room_beside_the_weights_and_one_always_does(available: int, slots: int) -> None:
    assert fitting_slots(4, slot_bytes=100, weight_bytes=1000, available=available) == slots


def test_what_is_not_told_takes_no_slot_away() -> None:
    assert fitting_slots(4, slot_bytes=100, weight_bytes=1000, available=None) == 4
    assert fitting_slots(4, slot_bytes=0, weight_bytes=1000, available=1000) == 4


def test_available_is_what_the_nodes_have_beyond_their_headroom_within_the_cgroups_limit() -> None:
    machine = _machine()
    beyond = sum(
        (node.available_bytes or 0) - node_headroom_bytes(node.memory_total_bytes) for node in machine.nodes
    )
    assert available_bytes(machine) == beyond
    assert available_bytes(_machine(memory_max_bytes=GIB)) == GIB
    untold = replace(
        machine,
        nodes=tuple(replace(node, free_bytes=None, memory_total_bytes=None) for node in machine.nodes),
    )
    assert available_bytes(untold) is None


def test_slots_without_room_are_left_out_with_a_reason_that_has_the_numbers(model: ModelFacts) -> None:
    slot_bytes = CONTEXT_TOKENS * (model.kv_bytes_per_token or 0)
    limit = model.tensor_bytes_total + 2 * slot_bytes
    fitted, reason = with_fitting_slots(_configuration(5), model, _machine(memory_max_bytes=limit))
    assert fitted.model.slots == 2
    assert reason is not None
    assert (reason.code, reason.evidence["slots"], reason.evidence["asked_slots"]) == ("slots-reduced", 2, 5)
    assert reason.evidence["available_bytes"] == limit
    assert reason.remedy is not None
    assert "model.slots = 2" in reason.remedy


def test_slots_with_room_are_left_as_they_are(model: ModelFacts) -> None:
    configuration = _configuration(5)
    assert with_fitting_slots(configuration, model, _machine()) == (configuration, None)


def test_the_plan_counts_the_cache_of_every_slot_within_the_trained_length(model: ModelFacts) -> None:
    assert configured_options(_configuration(3), model, has_gpu=False).context_tokens == 3 * CONTEXT_TOKENS
    short = replace(model, context_length=100)
    assert configured_options(_configuration(3), short, has_gpu=False).context_tokens == 3 * 100


def _with_cache(prompt_cache_bytes: int | None) -> Configuration:
    configuration = _configuration(1)
    return replace(configuration, model=replace(configuration.model, prompt_cache_bytes=prompt_cache_bytes))


def _left_bytes(model: ModelFacts, machine: Topology) -> int:
    available = available_bytes(machine)
    assert available is not None
    return available - model.tensor_bytes_total - CONTEXT_TOKENS * (model.kv_bytes_per_token or 0)


def test_a_configured_prompt_cache_counts_when_it_fits_exactly_and_is_reduced_above(
    model: ModelFacts,
) -> None:
    machine = _machine(memory_max_bytes=GIB)
    left = _left_bytes(model, machine)
    fitting = _with_cache(left)
    assert with_fitting_memory(fitting, model, machine) == (fitting, ())
    assert prompt_cache_limit(fitting, model, machine) == left
    reduced, reasons = with_fitting_memory(_with_cache(left + 1), model, machine)
    assert [reason.code for reason in reasons] == ["prompt-cache-reduced"]
    assert reduced.model.prompt_cache_bytes == left
    assert configured_options(reduced, model, has_gpu=False).extra_host_bytes == left, "the plan counts it"


def test_left_to_itself_the_prompt_cache_takes_a_part_of_what_is_left(model: ModelFacts) -> None:
    machine = _machine(memory_max_bytes=GIB)
    assert prompt_cache_limit(_with_cache(None), model, machine) == _left_bytes(model, machine) // 8
    assert prompt_cache_limit(_with_cache(0), model, machine) == 0
    large = machine_topology(MachineShape(even_nodes(2, cores_per_node=2), memory_max_bytes=None))
    assert prompt_cache_limit(_with_cache(None), model, large) == min(8 * GIB, _left_bytes(model, large) // 8)
    assert prompt_cache_limit(_with_cache(None), model, _machine(memory_max_bytes=1000)) == 0
