"""Fingerprints: short stable names for a machine and for a decision, to notice drift."""

from __future__ import annotations

import hashlib
import json

from planner.candidates import Draft
from planner.facts import Facts
from planner.topology import Topology

FINGERPRINT_DIGITS = 12


def machine_fingerprint(topology: Topology) -> str:
    """Give 12 hex digits over the hardware: CPUs, cores, packages, nodes, distances, accelerators.

    Limits, free memory and kernel settings are left out: they change while the machine stays the same, and
    the plan's own drop-in narrows the cpuset the daemon sees.
    """
    return _digest(_hardware(topology))


def plan_fingerprint(facts: Facts, draft: Draft) -> str:
    """Give 12 hex digits over the hardware, what was asked for, and every decision that follows."""
    request, layout = facts.request, draft.layout
    decisions = {
        "policy": draft.policy.value,
        "slices": [[list(part.node_ids), part.weight] for part in layout.slices] if layout else [],
        "workers": [[worker.cpu_id, worker.slice_index] for worker in layout.workers] if layout else [],
        "host_cpus": list(layout.host_cpu_ids) if layout else [],
        "arena": [[part.slice_index, list(part.node_ids), part.size_bytes] for part in draft.arena_slices],
        "process_memory": [draft.process_memory.mode.value, list(draft.process_memory.node_ids)],
    }
    asked = {"objective": request.objective.value, "other_host_bytes": request.other_host_bytes}
    return _digest({"hardware": _hardware(facts.topology), "asked": asked, "decisions": decisions})


def _hardware(topology: Topology) -> dict[str, object]:
    return {
        "cores": topology.cores,
        "packages": topology.packages,
        "nodes": [[node.node_id, node.cpu_ids, node.has_memory, node.distances] for node in topology.nodes],
        "accelerators": [[gpu.pci_address, gpu.node_id] for gpu in topology.accelerators],
    }


def _digest(document: object) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_DIGITS]
