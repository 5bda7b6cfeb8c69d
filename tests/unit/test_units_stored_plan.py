"""The applied plan, held against machine, model and unit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner import (
    ArenaScope,
    ArenaSpec,
    MemoryMode,
    Plan,
    PlanRequest,
    Policy,
    ProcessMemory,
    Topology,
    make_plan,
    plan_to_json,
)
from planner.cpulist import format_id_list
from planner.dropin import plan_cpu_ids
from stratad.errors import ConfigurationError
from stratad.gguf.model import DenseTensor, ExpertTensor, ModelFacts
from stratad.plan.stored import process_policy, read_stored_plan, unit_differences
from tests.support.machines import GIB, MachineShape, MemoryTree, even_nodes, machine_topology
from tests.support.planning import planned

SHAPE = MachineShape(even_nodes(2, 4))
DENSE_BYTES = 7 * 4096
INTERLEAVED = ProcessMemory(MemoryMode.INTERLEAVE, (0, 1))


def model_of(size_bytes: int) -> ModelFacts:
    """A model with that many bytes of experts."""
    return ModelFacts(
        paths=(Path("a.gguf"),),
        architecture="qwen3moe",
        name=None,
        layer_count=1,
        expert_count=8,
        experts_used=2,
        context_length=None,
        embedding_length=None,
        file_bytes=size_bytes,
        tensor_bytes_total=size_bytes,
        expert_tensors=(ExpertTensor("blk.0.ffn_up_exps.weight", 0, (8,), "Q4_K", size_bytes),),
        dense_tensors=(DenseTensor("output.weight", None, "Q8_0", DENSE_BYTES),),
        kv_bytes_per_token=None,
        has_chat_template=False,
    )


def applied(folder: Path, plan: Plan) -> Path:
    path = folder / "plan.json"
    path.write_text(plan_to_json(plan))
    return path


def split_plan() -> Plan:
    """A plan over both nodes that uses all CPUs, whatever the planner would choose."""
    plan = planned(SHAPE, 44, requested_policy=Policy.SPLIT)
    return replace(plan, process_memory=INTERLEAVED)


def arena_bytes(plan: Plan) -> int:
    return sum(part.size_bytes for part in plan.arena_slices)


def limited(plan: Plan, cpus: tuple[int, ...] | None = None, nodes: str | None = None) -> Topology:
    """The machine as a unit with this cpuset sees it; by default the plan's own."""
    allowed = format_id_list(plan_cpu_ids(plan) if cpus is None else cpus)
    return machine_topology(replace(SHAPE, allowed_cpus=allowed, allowed_nodes=nodes))


def codes(plan: Plan, topology: Topology, policy: str | None = "interleave:0-1") -> list[str]:
    return [reason.code for reason in unit_differences(plan, topology, policy)]


def test_the_applied_plan_is_read_back_inside_its_own_cpuset(tmp_path: Path) -> None:
    plan = split_plan()
    path = applied(tmp_path, plan)
    assert read_stored_plan(path, limited(plan), model_of(arena_bytes(plan))) == plan


def test_every_byte_of_the_model_is_in_the_plans_slices() -> None:
    # What the daemon compares; a planner that rounds slices would make it refuse its own plan.
    size_bytes = 44 * GIB + 12_345
    for count in (2, 3):
        shape = MachineShape(even_nodes(count, 4))
        request = PlanRequest(arena=ArenaSpec(size_bytes), requested_policy=Policy.SPLIT)
        assert arena_bytes(make_plan(machine_topology(shape), request)) == size_bytes


def test_a_plan_for_another_machine_is_refused_with_the_way_out(tmp_path: Path) -> None:
    plan = split_plan()
    path = applied(tmp_path, replace(plan, machine_fingerprint="000000000000"))
    with pytest.raises(ConfigurationError) as refusal:
        read_stored_plan(path, limited(plan), model_of(arena_bytes(plan)))
    assert "another machine" in refusal.value.because
    assert "stratactl apply" in refusal.value.remedy
    assert refusal.value.values["plan_machine"] == "000000000000"


def test_a_plan_for_another_model_is_refused(tmp_path: Path) -> None:
    plan = split_plan()
    with pytest.raises(ConfigurationError) as refusal:
        read_stored_plan(applied(tmp_path, plan), limited(plan), model_of(arena_bytes(plan) + 1))
    assert "another model" in refusal.value.because


def test_a_plan_for_all_weights_is_held_against_all_weights(tmp_path: Path) -> None:
    plan = replace(split_plan(), arena_scope=ArenaScope.WEIGHTS)
    model = model_of(arena_bytes(plan) - DENSE_BYTES)
    assert read_stored_plan(applied(tmp_path, plan), limited(plan), model) == plan
    with pytest.raises(ConfigurationError):
        read_stored_plan(applied(tmp_path, plan), limited(plan), model_of(arena_bytes(plan)))


def test_a_plan_that_is_missing_or_damaged_is_refused(tmp_path: Path) -> None:
    plan = split_plan()
    with pytest.raises(ConfigurationError):
        read_stored_plan(tmp_path / "absent.json", limited(plan), model_of(1))
    for text in ("", "{}", "\udcff"):
        path = tmp_path / "damaged.json"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ConfigurationError) as refusal:
            read_stored_plan(path, limited(plan), model_of(1))
        assert "stratactl apply" in refusal.value.remedy


def test_a_unit_that_is_as_planned_says_nothing() -> None:
    plan = split_plan()
    assert codes(plan, limited(plan)) == []
    assert codes(plan, limited(plan), policy=None) == []


def test_a_cpuset_without_one_of_the_plans_cpus_is_told() -> None:
    plan = split_plan()
    fewer = plan_cpu_ids(plan)[:-1]
    [reason] = unit_differences(plan, limited(plan, fewer), "interleave:0-1")
    assert reason.code == "cpuset-narrower-than-plan"
    assert reason.evidence["cpus"] == fewer


def test_a_cpuset_with_more_than_the_plans_cpus_is_told() -> None:
    plan = split_plan()
    small = replace(plan, layout=replace(plan.layout, host_cpu_ids=plan.layout.host_cpu_ids[:0]))
    small = replace(small, layout=replace(small.layout, workers=small.layout.workers[:-1]))
    assert codes(small, limited(plan)) == ["cpuset-wider-than-plan"]


def test_a_memory_node_that_may_not_be_used_is_told() -> None:
    plan = split_plan()
    assert codes(plan, limited(plan, nodes="0")) == ["memory-nodes-narrower-than-plan"]


def test_another_policy_of_the_process_is_told() -> None:
    plan = split_plan()
    assert codes(plan, limited(plan), "default") == ["process-policy-differs"]
    preferred = replace(plan, process_memory=ProcessMemory(MemoryMode.PREFERRED, (1,)))
    assert codes(preferred, limited(plan), "prefer:1") == []
    assert codes(preferred, limited(plan), "prefer:0") == ["process-policy-differs"]
    default = replace(plan, process_memory=ProcessMemory(MemoryMode.DEFAULT))
    assert codes(default, limited(plan), "default") == []


def test_the_process_policy_is_that_of_the_heap() -> None:
    lines = "00400000 default file=/usr/bin/python3\n06cfe000 interleave:0-1 heap anon=2 N0=1 N1=1\n"
    assert process_policy(MemoryTree({"/proc/self/numa_maps": lines})) == "interleave:0-1"
    assert process_policy(MemoryTree({})) is None
