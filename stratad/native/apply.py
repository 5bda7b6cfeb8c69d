"""Carries a plan out on this process: memory policy, pool, placed arena, loaded model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from planner import ArenaScope, Effect, MemoryMode, Plan, ProcessMemory, Reason, WorkerLayout, unpinned_layout
from planner.sysfs import Tree
from stratad import _native
from stratad.config import Configuration, KernelChoice
from stratad.errors import (
    ConfigurationError,
    DeviceError,
    EngineError,
    LoadCancelled,
    ModelFileError,
    PlacementError,
)
from stratad.gguf.model import ModelFacts
from stratad.gguf.tensor_types import GGML_TYPES
from stratad.gpu.offload import (
    ExpertProfile,
    layer_count,
    measured_threshold,
    open_memory,
    open_offload,
)
from stratad.gpu.runtime import FoundGpu
from stratad.machine.free_blocks import free_huge_page_bytes
from stratad.machine.memlock import memlock_limit
from stratad.native.batch_limits import PoolLimits
from stratad.native.runner import ContextShape, NativeRunner

Progress = Callable[[str, float], bool]

_POLICY_MODES = {
    MemoryMode.DEFAULT: _native.PolicyMode.DEFAULT,
    MemoryMode.PREFERRED: _native.PolicyMode.PREFERRED,
    MemoryMode.INTERLEAVE: _native.PolicyMode.INTERLEAVE,
}
_SCOPES = {
    ArenaScope.EXPERTS: _native.ArenaScope.EXPERTS,
    ArenaScope.WEIGHTS: _native.ArenaScope.WEIGHTS,
}


def memory_policy_failures() -> tuple[str, ...]:
    """Which memory-policy calls this process may not make, as "call: error"; () when it may place memory."""
    return tuple(
        f"{failure.call}: {os.strerror(failure.error_number)}" for failure in _native.probe_memory_policy()
    )


def apply_process_memory(memory: ProcessMemory) -> None:
    """Sets the policy for everything but the arena, for this thread and all that it starts later.

    The unit file declares the same policy; setting it here gives the same result without systemd.

    Raises:
        PlacementError: The kernel refuses.
    """
    if memory.mode is MemoryMode.DEFAULT:
        return
    try:
        _native.set_thread_policy(_POLICY_MODES[memory.mode], memory.node_ids)
    except OSError as error:
        raise PlacementError(
            tried=f"setting the process's memory policy to {memory.mode}",
            because=os.strerror(error.errno or 0),
            values={"node_ids": memory.node_ids},
            remedy="let the service use set_mempolicy (SystemCallFilter=@system-service), "
            "or set placement.policy = 'off'",
        ) from error


def open_runner(
    plan: Plan,
    model: ModelFacts,
    configuration: Configuration,
    progress: Progress,
    *,
    gpus: Sequence[FoundGpu] = (),
    profile: ExpertProfile | None = None,
    limits: PoolLimits | None = None,
) -> NativeRunner:
    """Builds the pool, places and fills the arena, and opens a context: everything the plan says, in its order.

    `gpus` take part where the plan leaves them something; `profile` is what an earlier run counted. `limits` says
    from how many tokens on the pool multiplies how; None for what the configuration and the built-in ones say.
    `progress` is called with the stage and how much of it is done, 0 to 1; False cancels.

    Raises:
        LoadCancelled: `progress` said so.
        ModelFileError: llama.cpp refuses the model.
        PlacementError: A worker cannot be pinned to its CPU.
        EngineError: Memory ran out, or no context can be made.
        ConfigurationError: The CPU lacks what the configuration asks for.
    """
    layout = _layout(plan, configuration)
    pool = _start_pool(layout, configuration.placement.spin_microseconds * 1e-6)
    limits = PoolLimits.of(configuration.placement) if limits is None else limits
    tiles = _set_device_options(configuration, limits, pool)
    gpu = open_offload(configuration.gpu, gpus, plan)
    loaded = _load(plan, model, configuration, pool=pool, gpu=gpu, progress=progress)
    _require_vocabulary(loaded, model)
    if configuration.placement.lock_memory is True:
        _require_lock(loaded)
    pool_tokens = limits.pool_tokens(model, _built_in_pool_tokens(configuration))
    context, shape = _open_context(loaded, layout, configuration, pool_tokens)
    reasons: tuple[Reason, ...] = ()
    if gpu is not None:
        shape, reasons = _share_out(
            gpu,
            context,
            shape,
            configuration=configuration,
            profile=profile or {},
            token_count=loaded.token_count,
            progress=progress,
        )
    return NativeRunner(pool, loaded, context, plan, shape, opening_reasons=(*tiles, *reasons))


def _share_out(
    gpu: _native.GpuOffload,
    context: _native.Context,
    shape: ContextShape,
    *,
    configuration: Configuration,
    profile: ExpertProfile,
    token_count: int,
    progress: Progress,
) -> tuple[ContextShape, tuple[Reason, ...]]:
    """What the GPUs have left goes to large batches and hot experts; the shape says then what is the pool's."""
    wanted = configuration.gpu.prefill_threshold
    measured: tuple[Reason, ...] = ()
    threshold = _native.DEFAULT_GPU_POOL_TOKENS if wanted == "auto" else wanted
    try:
        if wanted == "auto":
            # Before there is a cache: what is computed here says nothing about which experts are used.
            threshold, measured = measured_threshold(gpu, context, shape.batch_tokens, token_count)
        reasons = (*open_memory(gpu, configuration.gpu, profile, progress), *measured)
    except RuntimeError as error:
        raise DeviceError(
            tried="computing the first batches on the GPU",
            because=str(error),
            values={"devices": ", ".join(name for name, _ in gpu.counters())},
            remedy="look at the driver's messages (`dmesg`, `nvidia-smi`), or set gpu.mode = 'off'",
        ) from error
    gpu.set_pool_tokens(threshold)
    has_staging = all(reason.code != "gpu-prefill-off" for reason in reasons)
    return replace(shape, pool_tokens=threshold if has_staging else None), reasons


def _open_context(
    loaded: _native.Model, layout: WorkerLayout, configuration: Configuration, pool_tokens: int | None
) -> tuple[_native.Context, ContextShape]:
    """A context in which each of `model.slots` sequences can hold `model.context_tokens`."""
    context_tokens = min(configuration.model.context_tokens, loaded.trained_context_tokens)
    shape = ContextShape(
        sequence_count=configuration.model.slots,
        context_tokens=context_tokens,
        batch_tokens=min(configuration.model.batch_tokens, context_tokens),
        pool_tokens=pool_tokens,
    )
    try:
        context = _native.Context(
            loaded,
            context_tokens=shape.sequence_count * context_tokens,
            batch_tokens=shape.batch_tokens,
            sequence_count=shape.sequence_count,
            thread_count=configuration.model.threads or len(layout.workers),
            cpu_ids=[worker.cpu_id for worker in layout.workers if worker.cpu_id is not None],
        )
    except RuntimeError as error:
        raise EngineError(
            tried=f"making a context of {context_tokens} tokens for each of {shape.sequence_count} slots",
            because=str(error),
            values={
                "context_tokens": context_tokens,
                "slots": shape.sequence_count,
                "batch_tokens": shape.batch_tokens,
            },
            remedy="lower model.slots, model.context_tokens or model.batch_tokens",
        ) from error
    return context, shape


def _built_in_pool_tokens(configuration: Configuration) -> int | None:
    """Most tokens of one call that the pool computes where nothing was measured: what the row kernels take."""
    has_panels = _native.has_panels(chosen_kernels(configuration.placement.kernels))
    return None if has_panels else _native.ROW_BY_ROW_TOKENS


def _set_device_options(
    configuration: Configuration, limits: PoolLimits, pool: _native.Pool
) -> tuple[Reason, ...]:
    """Tells the device how to multiply; the Reason where tiles were asked for and may not be used."""
    kernels = chosen_kernels(configuration.placement.kernels)
    by_type = _limits_by_type(limits, kernels)
    refused = None
    if any(of_type.tile_tokens != _native.NO_TOKENS for of_type in by_type.values()):
        refused = _native.prepare_tiles(pool)
    if refused is not None:
        by_type = {name: replace(of_type, tile_tokens=_native.NO_TOKENS) for name, of_type in by_type.items()}
    _native.set_device_options(
        max_pool_tokens=limits.max_pool_tokens,
        kernels=kernels,
        limits={name: _native.BatchLimits(**asdict(of_type)) for name, of_type in by_type.items()},
    )
    if refused is None:
        return ()
    return (
        Reason(
            code="tiles-not-usable",
            effect=Effect.INFORMS,
            message=f"panels take the place of tiles: {refused}",
            remedy="look whether a container or virtual machine hides them, or set placement.tile_tokens = 0",
        ),
    )


@dataclass(frozen=True, slots=True)
class _DeviceLimits:
    """Of one weight type, as the native side takes them; None for what is built in."""

    panel_tokens: int
    tile_tokens: int
    expert_pool_tokens: int | None = None
    dense_pool_tokens: int | None = None


def _limits_by_type(limits: PoolLimits, kernels: str) -> dict[str, _DeviceLimits]:
    """The measured types' limits; of all others only what is configured."""
    by_type = {}
    if limits.panel_tokens is not None or limits.tile_tokens is not None:
        panels = limits.panel_tokens or _native.PANEL_TOKENS
        tiles = max(panels, limits.tile_tokens or _native.NO_TOKENS)
        by_type = {name.upper(): _DeviceLimits(panels, tiles) for name in _native.kernel_types(kernels)}
    known = {kind.name for kind in GGML_TYPES.values()}
    return by_type | {
        of_type.weight_type: _DeviceLimits(
            of_type.panel_tokens,
            of_type.tile_tokens,
            of_type.expert_pool_tokens,
            of_type.dense_pool_tokens,
        )
        for of_type in limits.measured
        if of_type.weight_type in known
    }


def _layout(plan: Plan, configuration: Configuration) -> WorkerLayout:
    """The plan's layout, or in test mode that many slices without CPUs and nodes."""
    test_slices = configuration.placement.test_slices
    if test_slices is None:
        return plan.layout
    return unpinned_layout(test_slices, max(test_slices, len(plan.layout.workers)))


def chosen_kernels(choice: KernelChoice) -> str:
    """The row kernels to use. Raises ConfigurationError when this CPU lacks the chosen instruction set."""
    supported = _native.supported_kernels()
    if choice == "auto":
        return supported[0]
    if choice not in supported:
        raise ConfigurationError(
            tried=f"using the {choice} row kernels (placement.kernels)",
            because="this CPU does not have the instructions",
            values={"supported": supported},
            remedy='set placement.kernels = "auto"',
        )
    return choice


def _start_pool(layout: WorkerLayout, spin_seconds: float) -> _native.Pool:
    slices = [_native.SliceSeat(list(part.node_ids), part.weight) for part in layout.slices]
    workers = [_native.WorkerSeat(worker.cpu_id, worker.slice_index) for worker in layout.workers]
    try:
        return _native.Pool(slices, workers, spin_seconds)
    except OSError as error:
        raise PlacementError(
            tried="starting the pool's workers on the plan's CPUs",
            because=str(error.strerror or error),
            values={"cpu_ids": [worker.cpu_id for worker in layout.workers]},
            remedy="run `stratactl plan` again: the cpuset of this process has changed since the plan was made",
        ) from error


def _load(
    plan: Plan,
    model: ModelFacts,
    configuration: Configuration,
    *,
    pool: _native.Pool,
    gpu: _native.GpuOffload | None,
    progress: Progress,
) -> _native.Model:
    lock = configuration.placement.lock_memory
    place = _native.PlaceOptions(
        allow_huge_pages=plan.transparent_huge_pages,
        huge_page_bytes=_huge_page_bytes(plan),
        lock=_native.LockMode.NEVER if lock is False else _native.LockMode.TRY,
        limit_ratio=configuration.placement.limit_ratio,
        repair=configuration.placement.repair,
    )
    try:
        return _native.Model.load(
            [str(path) for path in model.paths],
            pool,
            place=place,
            scope=_SCOPES[plan.arena_scope],
            gpu=gpu,
            gpu_layer_count=layer_count(configuration.gpu),
            release_page_cache=plan.release_page_cache,
            progress=progress,
        )
    except _native.LoadCancelled as error:
        raise LoadCancelled from error
    except (_native.ModelLoadError, ValueError) as error:
        raise ModelFileError(
            tried=f"loading {model.paths[0]}",
            because=str(error),
            values={"architecture": model.architecture},
            remedy="check that this llama.cpp knows the architecture (`stratactl plan --model FILE` reads the header), "
            "or fetch the file again" + ("" if gpu is None else "; with too little VRAM lower gpu.layers"),
        ) from error
    except OSError as error:
        arena_bytes = sum(part.size_bytes for part in plan.arena_slices)
        raise EngineError(
            tried=f"placing and filling an arena of {arena_bytes} bytes",
            because=str(error.strerror or error),
            values={"arena_bytes": arena_bytes},
            remedy="free memory on the plan's nodes, or serve a smaller quantisation",
        ) from error


def _huge_page_bytes(plan: Plan) -> int:
    """As many bytes of huge pages as the arena's nodes have ready."""
    if not plan.transparent_huge_pages:
        return 0
    node_ids = plan.layout.slices[0].node_ids or plan.memory_nodes
    return free_huge_page_bytes(Tree(Path("/")), node_ids)


def _require_vocabulary(loaded: _native.Model, model: ModelFacts) -> None:
    """Raises ModelFileError for a model of token ids only: llama.cpp aborts the process when it has to tokenise."""
    kind = loaded.metadata("tokenizer.ggml.model")
    if kind in (None, "none", "no_vocab"):
        raise ModelFileError(
            tried=f"serving {model.paths[0]}",
            because="the file has no vocabulary, so no text can be read or written",
            values={"tokenizer.ggml.model": kind},
            remedy="convert the model again, with its tokenizer",
        )


def _require_lock(model: _native.Model) -> None:
    """Raises PlacementError when an arena that has to be locked is not."""
    for arena in model.arenas:
        if not arena.outcome.is_locked:
            raise PlacementError(
                tried=f"locking the arena's {arena.size_bytes} bytes in memory (placement.lock_memory = true)",
                because=os.strerror(arena.outcome.lock_error_number)
                if arena.outcome.lock_error_number
                else "its pages are not where the plan says, and locked pages cannot be moved",
                values={"arena_bytes": arena.size_bytes, **memlock_limit()},
                remedy='set LimitMEMLOCK=infinity in the unit (or `ulimit -l unlimited`), or lock_memory = "auto"',
            )
