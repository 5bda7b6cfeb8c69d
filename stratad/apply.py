"""Carries a plan out on this process: memory policy, pool, placed arena, loaded model.

The one importer of the native module.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner import Effect, MemoryMode, Plan, ProcessMemory, Reason, WorkerLayout, unpinned_layout
from stratad import _native
from stratad.config import Configuration
from stratad.errors import EngineError, LoadCancelled, ModelFileError, PlacementError
from stratad.model import ModelFacts
from stratad.runner import (
    NativeCounters,
    PlacementReport,
    Sampler,
    SamplingParameters,
    SliceCounters,
)
from stratad.verify import projected_arena_bytes, slice_placement

Progress = Callable[[str, float], bool]

_POLICY_MODES = {
    MemoryMode.DEFAULT: _native.PolicyMode.DEFAULT,
    MemoryMode.PREFERRED: _native.PolicyMode.PREFERRED,
    MemoryMode.INTERLEAVE: _native.PolicyMode.INTERLEAVE,
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


class NativeVocabulary:
    """The model's tokens, read from libllama."""

    def __init__(self, model: _native.Model) -> None:
        self._model = model

    @property
    def token_count(self) -> int:
        """Number of tokens."""
        return self._model.token_count

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokens of `text`."""
        return self._model.tokenize(text, add_special=add_special, parse_special=parse_special)

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for."""
        return self._model.token_bytes(token)

    def is_end_of_generation(self, token: int) -> bool:
        """True when the model says it has finished by this token."""
        return self._model.is_end_of_generation(token)

    def token_text(self, token: int) -> str:
        """The token's name in the vocabulary; empty for the id -1 of an absent token."""
        return self._model.token_text(token) if token >= 0 else ""


@dataclass(frozen=True, slots=True)
class NativeSampler:
    """One request's chain of samplers."""

    chain: _native.Sampler


class NativeRunner:
    """A loaded model behind `stratad.runner.ModelRunner`: one sequence, experts in the placed arena."""

    def __init__(
        self,
        pool: _native.Pool,
        model: _native.Model,
        context: _native.Context,
        plan: Plan,
        batch_tokens: int,
    ) -> None:
        self._pool = pool
        self._model = model
        self._context = context
        self._plan = plan
        self._batch = _native.Batch()
        self._batch_tokens = batch_tokens
        self._vocabulary = NativeVocabulary(model)

    @property
    def vocabulary(self) -> NativeVocabulary:
        """The model's tokens."""
        return self._vocabulary

    @property
    def context_tokens(self) -> int:
        """Tokens the one sequence can hold."""
        return self._context.context_tokens

    @property
    def batch_tokens(self) -> int:
        """Most tokens one `decode` call accepts."""
        return self._batch_tokens

    @property
    def chat_template(self) -> str | None:
        """The model file's Jinja template, or None."""
        return self._model.chat_template

    @property
    def bos_text(self) -> str:
        """Text of the start token; empty when the model has none."""
        return self._vocabulary.token_text(self._model.bos_token)

    @property
    def eos_text(self) -> str:
        """Text of the end token; empty when the model has none."""
        return self._vocabulary.token_text(self._model.eos_token)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What the kernel refused while the arena was placed, as warnings."""
        return tuple(
            reason
            for arena in self._model.arenas
            for reason in _placement_reasons(arena.outcome, arena.size_bytes)
        )

    def open_sampler(self, sampling: SamplingParameters) -> NativeSampler:
        """A sampler for one request. Raises ValueError when the grammar does not parse."""
        return NativeSampler(
            _native.Sampler(
                self._model,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
                seed=sampling.seed,
                repeat_penalty=sampling.repeat_penalty,
                frequency_penalty=sampling.frequency_penalty,
                presence_penalty=sampling.presence_penalty,
                penalty_last_tokens=sampling.penalty_last_tokens,
                grammar=sampling.grammar or "",
                logit_bias=sampling.logit_bias,
            )
        )

    def decode(self, tokens: Sequence[int], position: int) -> None:
        """Computes `tokens` at `position` and following, and keeps the last one's logits."""
        self._batch.clear()
        last = len(tokens) - 1
        for index, token in enumerate(tokens):
            self._batch.add(token, position + index, 0, index == last)
        self._context.decode(self._batch)

    def sample(self, sampler: Sampler) -> int:
        """The next token from the last logits, accepted into the sampler's state."""
        assert isinstance(sampler, NativeSampler)
        return sampler.chain.sample(self._context)

    def truncate(self, position: int) -> None:
        """Forgets everything from `position` on. Raises RuntimeError when the cache cannot be cut there."""
        if not self._context.forget(0, position):
            raise RuntimeError(f"this model's memory cannot be cut at position {position}")

    def adopt_decode_thread(self) -> None:
        """Pins the calling thread to worker 0's CPU."""
        self._pool.adopt_calling_thread()

    def counters(self) -> NativeCounters:
        """Running totals of pool and device."""
        device = _native.device_counters()
        slices = self._pool.counters()
        expert_bytes = device.expert_bytes or [0] * len(slices)
        return NativeCounters(
            slices=tuple(
                SliceCounters(counters.wait_seconds, counters.drain_seconds, counters.tasks, size_bytes)
                for counters, size_bytes in zip(slices, expert_bytes, strict=True)
            ),
            fused_chains=device.fused_chains,
            fallback_operations=device.fallback_operations,
        )

    def placement(self, pages_per_slice: int) -> PlacementReport:
        """Asks the kernel where a sample of each slice's pages lies."""
        slices, sizes = [], []
        for arena in self._model.arenas:
            for index in range(arena.slice_count):
                pages = _sample(arena, index, pages_per_slice)
                slices.append(slice_placement(index, self._home_nodes(index), pages))
                sizes.append(arena.slice_bytes(index))
        return PlacementReport(tuple(slices), projected_arena_bytes(slices, sizes), self._plan.page_bytes)

    def _home_nodes(self, slice_index: int) -> tuple[int, ...]:
        """Nodes the slice's pages belong on; on a machine with one node that is the one, placed or not."""
        slices = self._plan.layout.slices
        planned = slices[slice_index].node_ids if slice_index < len(slices) else ()
        return planned or (self._plan.memory_nodes if len(self._plan.memory_nodes) == 1 else ())

    def close(self) -> None:
        """Frees context, model and arena."""
        del self._context, self._model, self._vocabulary


def open_runner(
    plan: Plan, model: ModelFacts, configuration: Configuration, progress: Progress
) -> NativeRunner:
    """Builds the pool, places and fills the arena, and opens a context: everything the plan says, in its order.

    `progress` is called with the stage and how much of it is done, 0 to 1; False cancels.

    Raises:
        LoadCancelled: `progress` said so.
        ModelFileError: llama.cpp refuses the model.
        PlacementError: A worker cannot be pinned to its CPU.
        EngineError: Memory ran out, or no context can be made.
    """
    layout = _layout(plan, configuration)
    pool = _start_pool(layout, configuration.placement.spin_microseconds * 1e-6)
    _native.set_device_options(max_pool_tokens=configuration.placement.max_pool_tokens)
    loaded = _load(plan, model, configuration, pool, progress)
    _require_vocabulary(loaded, model)
    if configuration.placement.lock_memory is True:
        _require_lock(loaded)
    batch_tokens = min(configuration.model.batch_tokens, configuration.model.context_tokens)
    context_tokens = min(configuration.model.context_tokens, loaded.trained_context_tokens)
    cpu_ids = [worker.cpu_id for worker in layout.workers if worker.cpu_id is not None]
    try:
        context = _native.Context(
            loaded,
            context_tokens=context_tokens,
            batch_tokens=batch_tokens,
            thread_count=configuration.model.threads or len(layout.workers),
            cpu_ids=cpu_ids,
        )
    except RuntimeError as error:
        raise EngineError(
            tried=f"making a context of {context_tokens} tokens",
            because=str(error),
            values={"context_tokens": context_tokens, "batch_tokens": batch_tokens},
            remedy="lower model.context_tokens or model.batch_tokens",
        ) from error
    return NativeRunner(pool, loaded, context, plan, batch_tokens)


def _layout(plan: Plan, configuration: Configuration) -> WorkerLayout:
    """The plan's layout, or in test mode that many slices without CPUs and nodes."""
    test_slices = configuration.placement.test_slices
    if test_slices is None:
        return plan.layout
    return unpinned_layout(test_slices, max(test_slices, len(plan.layout.workers)))


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
    plan: Plan, model: ModelFacts, configuration: Configuration, pool: _native.Pool, progress: Progress
) -> _native.Model:
    lock = configuration.placement.lock_memory
    place = _native.PlaceOptions(
        allow_huge_pages=plan.transparent_huge_pages,
        lock=_native.LockMode.NEVER if lock is False else _native.LockMode.TRY,
        limit_ratio=configuration.placement.limit_ratio,
    )
    try:
        return _native.Model.load(
            [str(path) for path in model.paths],
            pool,
            place=place,
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
            remedy="check that this llama.cpp knows the architecture (`stratactl plan --model` reads the header), "
            "or fetch the file again",
        ) from error
    except OSError as error:
        raise EngineError(
            tried=f"placing and filling an arena of {model.expert_bytes} bytes",
            because=str(error.strerror or error),
            values={"expert_bytes": model.expert_bytes},
            remedy="free memory on the plan's nodes, or serve a smaller quantisation",
        ) from error


def _sample(arena: _native.Arena, slice_index: int, page_count: int) -> npt.NDArray[np.int32]:
    """The sampled pages' nodes; where move_pages itself is refused, one page that nobody can tell."""
    try:
        return arena.sample_placement(slice_index, page_count)
    except OSError as error:
        return np.array([-(error.errno or 0)], dtype=np.int32)


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
                values={"arena_bytes": arena.size_bytes, **_memlock_limit()},
                remedy='set LimitMEMLOCK=infinity in the unit (or `ulimit -l unlimited`), or lock_memory = "auto"',
            )


def _placement_reasons(outcome: _native.PlaceOutcome, size_bytes: int) -> list[Reason]:
    reasons = [
        Reason(
            code="placement-not-possible",
            effect=Effect.WARNS,
            message=f"the kernel refuses {failure.call} ({os.strerror(failure.error_number)}): "
            "workers are pinned, pages lie where they were touched first",
            evidence={"call": failure.call, "errno": failure.error_number},
            remedy="let the service use mbind, set_mempolicy and move_pages (SystemCallFilter=@system-service)",
        )
        for failure in outcome.failures
    ]
    if outcome.lock_error_number:
        reasons.append(
            Reason(
                code="arena-not-locked",
                effect=Effect.WARNS,
                message=f"the arena's {size_bytes} bytes cannot be locked in memory: "
                f"{os.strerror(outcome.lock_error_number)}",
                evidence={"arena_bytes": size_bytes, "errno": outcome.lock_error_number, **_memlock_limit()},
                remedy="set LimitMEMLOCK=infinity in the unit (or `ulimit -l unlimited`), "
                "or placement.lock_memory = false",
            )
        )
    return reasons


def _memlock_limit() -> dict[str, int | None]:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {"memlock_limit_bytes": None if limit == resource.RLIM_INFINITY else limit}
