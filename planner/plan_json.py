"""The plan as a JSON document and back. The document is versioned; reading one is strict."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

from planner.plan import (
    ArenaSlice,
    Candidate,
    Confidence,
    Estimate,
    GpuLayers,
    MemoryMode,
    Plan,
    PlanRefused,
    ProcessMemory,
    Slice,
    StagingBuffer,
    Worker,
    WorkerLayout,
)
from planner.reason import REASON_CODES, Effect, Evidence, Reason
from planner.request import ArenaScope, Objective, Policy

SCHEMA_VERSION = 1

Value = TypeVar("Value")
Document = Mapping[str, object]


class PlanDocumentError(ValueError):
    """A plan document that is not one; the message starts with the path of the field at fault."""


def plan_to_json(plan: Plan) -> str:
    """Give the document as text: sorted keys, two spaces, one newline at the end; the same plan, the same
    bytes.
    """
    return json.dumps(plan_to_dict(plan), indent=2, sort_keys=True) + "\n"


def plan_to_dict(plan: Plan) -> dict[str, object]:
    """Give the document as plain values. Sizes are bytes, times seconds, ids the kernel's."""
    return {
        "schema_version": SCHEMA_VERSION,
        "policy": plan.policy.value,
        "objective": plan.objective.value,
        "confidence": plan.confidence.value,
        "fingerprint": plan.fingerprint,
        "machine_fingerprint": plan.machine_fingerprint,
        "layout": _layout_to_dict(plan.layout),
        "arena_scope": plan.arena_scope.value,
        "arena_slices": [
            {"slice_index": part.slice_index, "node_ids": list(part.node_ids), "size_bytes": part.size_bytes}
            for part in plan.arena_slices
        ],
        "process_memory": {
            "mode": plan.process_memory.mode.value,
            "node_ids": list(plan.process_memory.node_ids),
        },
        "memory_nodes": list(plan.memory_nodes),
        "gpu_staging": [
            {"pci_address": buffer.pci_address, "node_id": buffer.node_id} for buffer in plan.gpu_staging
        ],
        "gpu_layers": [
            {
                "pci_address": part.pci_address,
                "node_id": part.node_id,
                "first_layer": part.first_layer,
                "layer_count": part.layer_count,
            }
            for part in plan.gpu_layers
        ],
        "page_bytes": plan.page_bytes,
        "transparent_huge_pages": plan.transparent_huge_pages,
        "release_page_cache": plan.release_page_cache,
        "reasons": [reason_to_dict(reason) for reason in plan.reasons],
        "candidates": [candidate_to_dict(candidate) for candidate in plan.candidates],
    }


def refusal_to_dict(refusal: PlanRefused) -> dict[str, object]:
    """Give the document of a refused plan: why, and what was weighed."""
    return {
        "schema_version": SCHEMA_VERSION,
        "refused": True,
        "reasons": [reason_to_dict(reason) for reason in refusal.reasons],
        "candidates": [candidate_to_dict(candidate) for candidate in refusal.candidates],
    }


def reason_to_dict(reason: Reason) -> dict[str, object]:
    """Give one reason as plain values."""
    evidence = {
        name: list(value) if isinstance(value, tuple) else value for name, value in reason.evidence.items()
    }
    return {
        "code": reason.code,
        "effect": reason.effect.value,
        "policy": reason.policy.value if reason.policy else None,
        "message": reason.message,
        "evidence": evidence,
        "remedy": reason.remedy,
    }


def candidate_to_dict(candidate: Candidate) -> dict[str, object]:
    """Give one candidate as plain values."""
    estimate = candidate.estimate
    return {
        "policy": candidate.policy.value,
        "node_ids": list(candidate.node_ids),
        "slice_count": candidate.slice_count,
        "worker_count": candidate.worker_count,
        "is_chosen": candidate.is_chosen,
        "objection_codes": list(candidate.objection_codes),
        "estimate": None
        if estimate is None
        else {
            "step_seconds": estimate.step_seconds,
            "stream_seconds": estimate.stream_seconds,
            "synchronization_seconds": estimate.synchronization_seconds,
            "rest_seconds": estimate.rest_seconds,
            "prompt_seconds": estimate.prompt_seconds,
            "confidence": estimate.confidence.value,
        },
    }


def _layout_to_dict(layout: WorkerLayout) -> dict[str, object]:
    return {
        "slices": [{"node_ids": list(part.node_ids), "weight": part.weight} for part in layout.slices],
        "workers": [
            {"cpu_id": worker.cpu_id, "slice_index": worker.slice_index} for worker in layout.workers
        ],
        "host_cpu_ids": list(layout.host_cpu_ids),
    }


def plan_from_json(text: str) -> Plan:
    """Give the plan of a document's text.

    Raises:
        PlanDocumentError: When the text is no JSON object or no plan of this schema version.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanDocumentError(f"the plan document is not JSON: {error}") from error
    return plan_from_dict(document)


def plan_from_dict(document: object) -> Plan:
    """Give the plan of a document.

    Raises:
        PlanDocumentError: When a field is missing, of the wrong kind, or the layout contradicts itself.
    """
    reader = _Reader(document, "plan")
    version = reader.integer("schema_version")
    if version != SCHEMA_VERSION:
        raise PlanDocumentError(f"plan.schema_version is {version}, this version reads {SCHEMA_VERSION}")
    plan = Plan(
        policy=reader.word("policy", Policy),
        objective=reader.word("objective", Objective),
        layout=_layout(reader.child("layout")),
        arena_slices=tuple(map(_arena_slice, reader.children("arena_slices"))),
        process_memory=_process_memory(reader.child("process_memory")),
        memory_nodes=reader.ids("memory_nodes"),
        page_bytes=reader.integer("page_bytes"),
        transparent_huge_pages=reader.switch("transparent_huge_pages"),
        release_page_cache=reader.switch("release_page_cache"),
        reasons=tuple(map(_reason, reader.children("reasons"))),
        candidates=tuple(map(_candidate, reader.children("candidates"))),
        machine_fingerprint=reader.text("machine_fingerprint"),
        fingerprint=reader.text("fingerprint"),
        confidence=reader.word("confidence", Confidence),
        gpu_staging=tuple(
            StagingBuffer(buffer.text("pci_address"), buffer.optional("node_id", buffer.integer))
            for buffer in reader.children("gpu_staging")
        ),
        gpu_layers=tuple(map(_gpu_layers, reader.children("gpu_layers"))),
        arena_scope=reader.word("arena_scope", ArenaScope),
    )
    _check_layout(plan.layout)
    return plan


def _gpu_layers(reader: _Reader) -> GpuLayers:
    return GpuLayers(
        reader.text("pci_address"),
        reader.optional("node_id", reader.integer),
        reader.integer("first_layer"),
        reader.integer("layer_count"),
    )


def _layout(reader: _Reader) -> WorkerLayout:
    return WorkerLayout(
        slices=tuple(
            Slice(part.ids("node_ids"), part.integer("weight")) for part in reader.children("slices")
        ),
        workers=tuple(
            Worker(worker.optional("cpu_id", worker.integer), worker.integer("slice_index"))
            for worker in reader.children("workers")
        ),
        host_cpu_ids=reader.ids("host_cpu_ids"),
    )


def _check_layout(layout: WorkerLayout) -> None:
    """Refuse a layout the pool could not run: this document is read by the daemon before it pins anything."""
    pinned = [worker.cpu_id for worker in layout.workers if worker.cpu_id is not None]
    if len(pinned) != len(set(pinned)):
        raise PlanDocumentError("plan.layout.workers name a CPU twice")
    if {worker.slice_index for worker in layout.workers} != set(range(len(layout.slices))):
        raise PlanDocumentError("plan.layout.workers do not give every slice a worker")
    if not layout.slices or any(part.weight < 1 for part in layout.slices):
        raise PlanDocumentError("plan.layout.slices need at least one slice, each with a weight of 1 or more")


def _arena_slice(reader: _Reader) -> ArenaSlice:
    return ArenaSlice(reader.integer("slice_index"), reader.ids("node_ids"), reader.integer("size_bytes"))


def _process_memory(reader: _Reader) -> ProcessMemory:
    return ProcessMemory(reader.word("mode", MemoryMode), reader.ids("node_ids"))


def _reason(reader: _Reader) -> Reason:
    code = reader.text("code")
    if code not in REASON_CODES:
        raise PlanDocumentError(f"{reader.path}.code {code!r} is not known")
    return Reason(
        code=code,
        effect=reader.word("effect", Effect),
        message=reader.text("message"),
        evidence=reader.evidence("evidence"),
        remedy=reader.optional("remedy", reader.text),
        policy=reader.optional("policy", lambda name: reader.word(name, Policy)),
    )


def _candidate(reader: _Reader) -> Candidate:
    return Candidate(
        policy=reader.word("policy", Policy),
        node_ids=reader.ids("node_ids"),
        slice_count=reader.integer("slice_count"),
        worker_count=reader.integer("worker_count"),
        estimate=reader.optional("estimate", lambda name: _estimate(reader.child(name))),
        objection_codes=reader.words("objection_codes"),
        is_chosen=reader.switch("is_chosen"),
    )


def _estimate(reader: _Reader) -> Estimate:
    return Estimate(
        step_seconds=reader.number("step_seconds"),
        stream_seconds=reader.number("stream_seconds"),
        synchronization_seconds=reader.number("synchronization_seconds"),
        rest_seconds=reader.number("rest_seconds"),
        confidence=reader.word("confidence", Confidence),
        prompt_seconds=reader.optional("prompt_seconds", reader.number),
    )


class _Reader:
    """Takes typed fields out of one object of the document and names the field when it is not what it should
    be.
    """

    def __init__(self, document: object, path: str) -> None:
        if not isinstance(document, Mapping):
            raise PlanDocumentError(f"{path} is not an object")
        self._document: Document = document
        self.path = path

    def _field(self, name: str, kind: type[Value]) -> Value:
        value = self._document.get(name)
        # bool is a kind of int in Python and not in the document.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise PlanDocumentError(f"{self.path}.{name} is not a {kind.__name__}")
        return value

    def text(self, name: str) -> str:
        return self._field(name, str)

    def switch(self, name: str) -> bool:
        return self._field(name, bool)

    def integer(self, name: str) -> int:
        value = self._field(name, int)
        if value < 0:
            raise PlanDocumentError(f"{self.path}.{name} is negative")
        return value

    def number(self, name: str) -> float:
        value = self._document.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PlanDocumentError(f"{self.path}.{name} is not a number")
        return float(value)

    def word(self, name: str, kind: Callable[[str], Value]) -> Value:
        text = self.text(name)
        try:
            return kind(text)
        except ValueError as error:
            raise PlanDocumentError(f"{self.path}.{name} is {text!r}: {error}") from error

    def ids(self, name: str) -> tuple[int, ...]:
        values = self._field(name, list)
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in values):
            raise PlanDocumentError(f"{self.path}.{name} is not a list of ids")
        return tuple(values)

    def words(self, name: str) -> tuple[str, ...]:
        values = self._field(name, list)
        if not all(isinstance(item, str) for item in values):
            raise PlanDocumentError(f"{self.path}.{name} is not a list of words")
        return tuple(values)

    def child(self, name: str) -> _Reader:
        return _Reader(self._document.get(name), f"{self.path}.{name}")

    def children(self, name: str) -> tuple[_Reader, ...]:
        values = self._field(name, list)
        return tuple(_Reader(item, f"{self.path}.{name}[{index}]") for index, item in enumerate(values))

    def optional(self, name: str, read: Callable[[str], Value]) -> Value | None:
        return None if self._document.get(name) is None else read(name)

    def evidence(self, name: str) -> dict[str, Evidence]:
        found: dict[str, Evidence] = {}
        for key, value in self._field(name, dict).items():
            if isinstance(value, list) and all(isinstance(item, int) for item in value):
                found[str(key)] = tuple(value)
            elif value is None or isinstance(value, str | int | float | bool):
                found[str(key)] = value
            else:
                raise PlanDocumentError(f"{self.path}.{name}.{key} is no plain value")
        return found
