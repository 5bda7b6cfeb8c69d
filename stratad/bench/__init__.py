"""`stratactl bench`: what this machine's memory, cores and links do for our pool, as facts for the planner.

It explains a plan's estimates and replaces the cost model's defaults; it never chooses (ADR 0012).
"""

from __future__ import annotations

from stratad.bench.cases import BenchNode, Programme, bench_nodes, programme
from stratad.bench.conclude import conclude, layer_costs
from stratad.bench.document import bench_document
from stratad.bench.measure import Bounds, Instruments, block_bytes, measure
from stratad.bench.results import Conclusions, Measurements, Spread

__all__ = [
    "BenchNode",
    "Bounds",
    "Conclusions",
    "Instruments",
    "Measurements",
    "Programme",
    "Spread",
    "bench_document",
    "bench_nodes",
    "block_bytes",
    "conclude",
    "layer_costs",
    "measure",
    "programme",
]
