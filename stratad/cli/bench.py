"""`stratactl bench`: measures memory, cores and links of this machine for the planner."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner import Effect, Topology
from planner.sysfs import Tree
from stratad.bench.batch_cases import BatchPlan, WeightShape, batch_cases, shapes_of, usual_shapes
from stratad.bench.cases import Programme, bench_nodes, largest_node, programme
from stratad.bench.conclude import conclude
from stratad.bench.document import bench_document
from stratad.bench.measure import (
    BenchmarkRefused,
    Bounds,
    Instruments,
    block_bytes,
    measure,
    shared_cache_bytes,
)
from stratad.bench.measure_batches import measure_batches
from stratad.bench.probe import DeviceCopies, NoDevices
from stratad.bench.report import report_lines
from stratad.cli.output import json_option, print_json, print_report
from stratad.cli.parameters import byte_size
from stratad.cli.progress import Progress
from stratad.machine.load import look_at_load, require_quiet
from stratad.plan.facts import STATE_DIRECTORY, machine_facts
from stratad.state.recorded import circumstances_of, require_writable, write_document

if TYPE_CHECKING:
    from stratad.bench.native_probe import NativeProbe
    from stratad.bench.results import Measurements

DEFAULT_SECONDS = 30.0
DEFAULT_CONFIGURATION = Path("/etc/stratad/stratad.toml")


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=1, max=3600),
    default=DEFAULT_SECONDS,
    show_default=True,
    help="Time to measure for; placing memory, batches and copying to GPUs come on top.",
)
@click.option(
    "--bytes",
    "node_bytes",
    callback=byte_size,
    metavar="SIZE",
    help="Memory to read on each node. Default: 1 GiB, more where caches are large; at most a quarter of what is free.",
)
@click.option("--force", is_flag=True, help="Measure although the machine is busy.")
@click.option(
    "--config",
    "configuration_path",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Configuration that says which GPUs to copy to, which row kernels to use and which model's weight types to "
    "multiply in batches. Default: the GPUs that are found; kernels and types as the service has them.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=STATE_DIRECTORY / "bench.json",
    show_default=True,
    help="Where to keep the results.",
)
@json_option
def bench(
    seconds: float,
    node_bytes: int | None,
    force: bool,
    *,
    configuration_path: Path | None,
    output: Path,
    as_json: bool,
) -> int:
    """Measure what this machine's memory, cores and links do for the pool, and keep it for the planner.

    It replaces the cost model's defaults and explains a plan; it never chooses: only `stratactl tune` does.
    Exit status 1 means that the machine was busy, or that rates varied too much to conclude anything.
    """
    require_writable(output, "stratactl bench")
    load = look_at_load(Tree(Path("/")), time.sleep)
    if not force:
        require_quiet(load, "stratactl bench")
    topology = machine_facts()
    cases = programme(bench_nodes(topology))
    _require_cores(cases)
    caches = tuple((cache.cpu_ids, cache.size_bytes) for cache in topology.last_level_caches)
    cache_bytes = shared_cache_bytes(cases, caches)
    bounds = Bounds(seconds, block_bytes(cases.nodes, cache_bytes, node_bytes))
    plan = _batch_plan(configuration_path, cases, cache_bytes, bounds.node_bytes)
    progress = Progress(is_quiet=as_json)
    # The native module is loaded only where there is something to measure.
    from stratad.bench.native_probe import NativeBatches, NativeProbe

    probe = NativeProbe(cases.nodes)
    copies = _copies(probe, configuration_path, topology)
    try:
        measured = measure(cases, Instruments(probe, copies, time.monotonic), bounds, progress.report)
        batches = measure_batches(
            plan.cases, partial(NativeBatches, plan), time.monotonic, seconds, progress.report
        )
    finally:
        progress.clear()
    measured = replace(measured, batches=batches)
    _tell_slow_uploads(copies, measured, topology)
    conclusions = conclude(measured, cache_bytes)
    document = bench_document(circumstances_of(topology), measured, conclusions, plan.kernels) | {
        "load": load.as_document()
    }
    if conclusions.is_trustworthy:
        write_document(output, document, "stratactl bench")
    if as_json:
        print_json(document)
    else:
        kept = (
            f"kept in {output}"
            if conclusions.is_trustworthy
            else "not kept: run it again on a quieter machine"
        )
        print_report("\n".join([*report_lines(measured, conclusions), f"result    {kept}"]) + "\n")
    return 0 if conclusions.is_trustworthy else 1


def _batch_plan(
    configuration_path: Path | None, cases: Programme, cache_bytes: int | None, most_bytes: int
) -> BatchPlan:
    """What to multiply, by the cores of the largest node: the configured model's types, or the usual ones."""
    from stratad.bench.native_probe import is_measurable
    from stratad.config import load_configuration
    from stratad.gguf.model import read_model_facts
    from stratad.native.apply import chosen_kernels, memory_policy_failures

    node = largest_node(tuple(node for node in cases.nodes if node.cpu_ids))
    shapes: tuple[WeightShape, ...] = usual_shapes()
    kernels = chosen_kernels("auto")
    path = _services_configuration() if configuration_path is None else configuration_path
    if path is not None:
        configuration = load_configuration(path)
        kernels = chosen_kernels(configuration.placement.kernels)
        # An installed configuration may name a model that is not there yet.
        if configuration_path is not None or configuration.model.path.exists():
            shapes = shapes_of(read_model_facts(configuration.model.path))
    return BatchPlan(
        cases=batch_cases(filter(is_measurable, shapes), cache_bytes, most_bytes),
        node_id=node.node_id,
        cpu_ids=node.cpu_ids,
        kernels=kernels,
        places_memory=len(cases.nodes) > 1 and not memory_policy_failures(),
    )


def _services_configuration() -> Path | None:
    """The service's configuration where there is one that this user may read."""
    return DEFAULT_CONFIGURATION if os.access(DEFAULT_CONFIGURATION, os.R_OK) else None


def _copies(probe: NativeProbe, configuration_path: Path | None, topology: Topology) -> DeviceCopies:
    """Copies to the GPUs that the daemon would use; what keeps it from using one is told."""
    from stratad.bench.gpu_copies import GpuCopies
    from stratad.config import GpuSection, load_configuration
    from stratad.gpu.runtime import open_gpus

    settings = GpuSection() if configuration_path is None else load_configuration(configuration_path).gpu
    findings = open_gpus(settings, topology)
    for reason in findings.reasons:
        if reason.effect is Effect.WARNS:
            click.echo(f"{reason.code}: {reason.message}", err=True)
    return GpuCopies(findings.gpus, probe) if findings.gpus else NoDevices()


def _tell_slow_uploads(copies: DeviceCopies, measured: Measurements, topology: Topology) -> None:
    from stratad.bench.gpu_copies import GpuCopies
    from stratad.gpu.rates import slow_upload

    if not isinstance(copies, GpuCopies):
        return
    slow = slow_upload(copies.rates(measured.copies), Tree(Path("/")), topology.iommu)
    if slow is not None:
        click.echo(f"{slow.code}: {slow.message}; {slow.remedy}", err=True)


def _require_cores(cases: Programme) -> None:
    if not cases.reads:
        raise BenchmarkRefused(
            tried="finding cores to measure with",
            because="no usable node has both CPUs and memory this process may use",
            remedy="run it outside the narrow cpuset (`stratactl topology` shows what is left)",
        )
