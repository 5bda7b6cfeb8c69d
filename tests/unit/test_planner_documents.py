"""The plan as JSON, as text and as log lines, and the cost model's parts."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from planner import (
    Effect,
    PlanDocumentError,
    Policy,
    explain_plan,
    explain_refusal,
    explain_topology,
    log_lines,
    plan_from_dict,
    plan_from_json,
    plan_to_dict,
    plan_to_json,
)
from planner.quantity import format_bytes
from tests.support.machines import GIB, GpuShape, MachineShape, even_nodes, machine_topology
from tests.support.planning import planned, refused

MACHINE = MachineShape(
    even_nodes(2, 12, total_gib=32, free_gib=31), (GpuShape("0000:3b:00.0", -1),), numa_balancing=1
)


def test_a_plan_survives_the_way_through_json() -> None:
    for policy in (None, *Policy):
        plan = planned(MACHINE, 20, requested_policy=policy)
        assert plan_from_json(plan_to_json(plan)) == plan


def test_the_document_is_the_same_byte_for_byte() -> None:
    assert plan_to_json(planned(MACHINE, 44)) == plan_to_json(planned(MACHINE, 44))


def set_at(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target: Any = changed
    for part in parents:
        target = target[part]
    target[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("schema_version", 2, "schema_version is 2"),
        ("schema_version", True, "schema_version is not a int"),
        ("policy", "mirror", "policy is 'mirror'"),
        ("layout", [], "layout is not an object"),
        ("layout.workers", {}, "workers is not a list"),
        ("layout.workers.0", 7, r"workers\[0\] is not an object"),
        ("layout.workers.0.cpu_id", -1, "cpu_id is negative"),
        ("layout.workers.0.cpu_id", "1", "cpu_id is not a int"),
        ("layout.workers.1.cpu_id", 1, "name a CPU twice"),
        ("layout.workers.0.slice_index", 9, "give every slice a worker"),
        ("layout.slices.0.weight", 0, "weight of 1 or more"),
        ("layout.slices.0.node_ids", [True], "node_ids is not a list of ids"),
        ("process_memory.mode", "bind", "mode is 'bind'"),
        ("release_page_cache", 1, "release_page_cache is not a bool"),
        ("reasons.0.code", "because", "'because' is not known"),
        ("reasons.0.evidence", {"a": {"b": 1}}, "evidence.a is no plain value"),
        ("candidates.0.estimate.step_seconds", "fast", "step_seconds is not a number"),
        ("candidates.0.objection_codes", [1], "objection_codes is not a list of words"),
        ("fingerprint", None, "fingerprint is not a str"),
    ],
)
def test_a_wrong_document_names_the_field(path: str, value: object, words: str) -> None:
    document = plan_to_dict(planned(MACHINE, 44))
    assert plan_from_dict(document).policy is Policy.SPLIT
    with pytest.raises(PlanDocumentError, match=words):
        plan_from_dict(set_at(document, path, value))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", "[" * 100_000])
def test_text_that_is_no_document_is_a_typed_error(text: str) -> None:
    with pytest.raises(PlanDocumentError):
        plan_from_json(text)


def test_every_field_is_required() -> None:
    document = plan_to_dict(planned(MACHINE, 44))
    for name in document:
        with pytest.raises(PlanDocumentError, match=name):
            plan_from_dict({key: value for key, value in document.items() if key != name})


def test_log_lines_are_names_and_values() -> None:
    lines = log_lines(planned(MACHINE, 44))
    assert lines[0].startswith(
        "plan: policy=split nodes=0-1 workers=22 slices=2 confidence=likely fingerprint="
    )
    assert lines[1] == "plan: split chosen: most-local-feasible nodes=0,1"
    assert any(
        line.startswith("plan: single-socket rejected: arena-exceeds-nodes nodes=0 ") for line in lines
    )
    assert all("\n" not in line for line in lines)


def test_counts_are_logged_in_their_order_and_not_as_a_set() -> None:
    lopsided = MachineShape(even_nodes(2, 16), allowed_cpus="0-11,16-24")
    assert "plan: split note: workers-lopsided cores=12,9 workers=9,9" in log_lines(planned(lopsided, 44))


def test_the_explanation_has_every_reason_and_remedy() -> None:
    plan = planned(MACHINE, 44)
    text = explain_plan(plan)
    for code in {reason.code for reason in plan.reasons}:
        assert f"[{code}]" in text
    for reason in plan.reasons_with(Effect.WARNS):
        assert f"-> {reason.remedy}" in text
    assert "11 workers on CPUs 1-11" in text
    assert "(estimated)" in text


def test_sockets_refused_alike_share_a_line() -> None:
    lines = explain_plan(
        planned(MachineShape(even_nodes(8, 4)), 44, requested_policy=Policy.SPLIT)
    ).splitlines()
    assert sum("single-socket" in line for line in lines) == 1
    assert any("(and 7 like it)" in line for line in lines)


def test_a_refusal_is_explained_with_its_remedy() -> None:
    text = explain_refusal(refused(MACHINE, 100))
    assert "[arena-exceeds-memory]" in text
    assert "-> use a smaller model" in text


def test_the_machine_is_shown_with_what_is_unknown_and_forbidden() -> None:
    text = explain_topology(machine_topology(MACHINE))
    assert "2 packages, 24 cores, 24 CPUs, 2 nodes" in text
    assert "0000:3b:00.0 [0x10de:0x2204] node unknown" in text
    narrowed = MachineShape(MACHINE.nodes, allowed_cpus="0-3", allowed_nodes="0", memory_max_bytes=GIB)
    limited = explain_topology(machine_topology(narrowed))
    assert "not allowed by the cpuset" in limited
    assert "usable    CPUs 0-3" in limited
    assert "limit     1.0 GiB by the cgroup" in limited


def test_sizes_read_as_people_write_them() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1024, 44 * GIB)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "44.0 GiB",
    ]


def test_the_document_is_json() -> None:
    assert json.loads(plan_to_json(planned(MACHINE, 44)))["schema_version"] == 1
