"""A loaded model as the daemon sees it: `stratad.runner.protocol.ModelRunner` over the native module."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from planner import Effect, Plan, Reason
from stratad import _native
from stratad.gpu.offload import ExpertProfile, gpu_counters
from stratad.gpu.runtime import PinnedArenas, pin_arenas
from stratad.machine.memlock import memlock_limit
from stratad.runner.protocol import (
    Grammar,
    GrammarDeadEnd,
    NativeCounters,
    PlacementReport,
    Sampler,
    SamplingParameters,
    SequenceTokens,
    SliceCounters,
    StateShape,
    TokenLikelihood,
)
from stratad.runner.verify import projected_arena_bytes, slice_placement


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


@dataclass(frozen=True, slots=True)
class ContextShape:
    """What the context was made for; see the properties of `stratad.runner.protocol.ModelRunner`."""

    sequence_count: int
    context_tokens: int
    batch_tokens: int
    pool_tokens: int | None


class NativeRunner:
    """A loaded model behind `stratad.runner.protocol.ModelRunner`: one context, weights in the placed arena."""

    def __init__(
        self,
        pool: _native.Pool,
        model: _native.Model,
        context: _native.Context,
        plan: Plan,
        shape: ContextShape,
        *,
        opening_reasons: tuple[Reason, ...] = (),
    ) -> None:
        self._pool = pool
        self._model = model
        self._context = context
        self._plan = plan
        self._batch = _native.Batch()
        self._shape = shape
        # Where the logits of each sequence stand in the last batch.
        self._logits_index: dict[int, int] = {}
        self._vocabulary = NativeVocabulary(model)
        self._repaired_pages = sum(arena.outcome.repaired_pages for arena in model.arenas)
        self._pinned: PinnedArenas | None = None
        self._opening_reasons = opening_reasons

    @property
    def vocabulary(self) -> NativeVocabulary:
        """The model's tokens."""
        return self._vocabulary

    @property
    def sequence_count(self) -> int:
        """Number of sequences that can be held side by side."""
        return self._shape.sequence_count

    @property
    def context_tokens(self) -> int:
        """Tokens that each sequence can hold."""
        return self._shape.context_tokens

    @property
    def batch_tokens(self) -> int:
        """Most tokens one `decode` call accepts."""
        return self._shape.batch_tokens

    @property
    def pool_tokens(self) -> int | None:
        """Most tokens of a call that the pool computes; None when it takes any."""
        return self._shape.pool_tokens

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
        """What the kernel refused while the arena was placed, as warnings, and what became of GPUs' memory."""
        placement = tuple(
            reason
            for arena in self._model.arenas
            for reason in _placement_reasons(arena.outcome, arena.size_bytes)
        )
        return (*placement, *self._opening_reasons)

    @property
    def device_failure(self) -> str | None:
        """Why a GPU has failed; None while all is well, and without one."""
        return None if self._model.gpu is None else self._model.gpu.failure

    def expert_profile(self) -> ExpertProfile:
        """How much the experts of each layer were used lately; empty without a cache."""
        return {} if self._model.gpu is None else self._model.gpu.profile()

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
                grammar=_native_grammar(sampling.grammar),
                logit_bias=sampling.logit_bias,
            )
        )

    def decode(self, parts: Sequence[SequenceTokens]) -> None:
        """Computes the tokens of several sequences, and keeps the logits of the last where they are wanted."""
        self._batch.clear()
        self._logits_index.clear()
        for part in parts:
            last = len(part.tokens) - 1
            for index, token in enumerate(part.tokens):
                wants_logits = part.wants_logits and index == last
                self._batch.add(token, part.position + index, part.sequence, wants_logits)
            if part.wants_logits:
                self._logits_index[part.sequence] = len(self._batch) - 1
        self._context.decode(self._batch)

    def sample(self, sampler: Sampler, sequence: int) -> int:
        """The next token of a sequence, accepted into the sampler's state. Raises GrammarDeadEnd."""
        assert isinstance(sampler, NativeSampler)
        try:
            return sampler.chain.sample(self._context, self._logits_index[sequence])
        except _native.GrammarDeadEnd as error:
            raise GrammarDeadEnd(str(error)) from error

    def likelihoods(self, sequence: int, token: int, count: int) -> tuple[TokenLikelihood, ...]:
        """That of `token` as the next of a sequence, then the `count` largest, in order."""
        logits = self._context.logits(self._logits_index[sequence]).astype(np.float64)
        largest = logits.max()
        logarithms = logits - (largest + np.log(np.exp(logits - largest).sum()))
        count = min(count, len(logits))
        candidates = [int(one) for one in np.argpartition(-logits, count - 1)[:count]] if count else []
        likeliest = sorted(candidates, key=lambda one: (-logits[one], one))
        return tuple(TokenLikelihood(one, float(logarithms[one])) for one in (token, *likeliest))

    def truncate(self, sequence: int, position: int) -> None:
        """Forgets a sequence from `position` on. Raises RuntimeError when the cache cannot be cut there."""
        if not self._context.cut(sequence, position):
            raise RuntimeError(f"this model's memory cannot be cut at position {position}")

    def first_cut(self, sequence: int) -> int:
        """The first position from which on a sequence can be cut, besides 0."""
        return self._context.first_cut(sequence)

    def state_shape(self, sequence: int) -> StateShape:
        """What saving a sequence now would give."""
        return StateShape(
            self._context.state_bytes(sequence), self._context.first_cut_when_restored(sequence)
        )

    def save_state(self, sequence: int, into: memoryview) -> None:
        """Copies a sequence's memory into `into`."""
        self._context.save_state(sequence, into)

    def restore_state(self, sequence: int, state: memoryview) -> None:
        """Gives a sequence the memory of a saved one. Raises ValueError when it is of another model or context."""
        self._context.restore_state(sequence, state)

    def adopt_decode_thread(self) -> None:
        """Pins the calling thread to worker 0's CPU."""
        self._pool.adopt_calling_thread()

    def counters(self) -> NativeCounters:
        """Running totals of pool and device."""
        device, calls = _native.device_counters(), self._context.counters
        return NativeCounters(
            slices=tuple(
                SliceCounters(
                    counters.wait_seconds,
                    counters.drain_seconds,
                    counters.tasks,
                    device.expert_bytes[index],
                    device.dense_bytes[index],
                    self._pool.workers_of(index),
                )
                for index, counters in enumerate(self._pool.counters())
            ),
            fused_chains=device.fused_chains,
            fallback_operations=device.fallback_operations,
            repaired_pages=self._repaired_pages,
            locked_bytes=sum(arena.size_bytes for arena in self._model.arenas if arena.outcome.is_locked),
            jobs=(
                ("attention", device.attentions),
                ("dense", device.dense_jobs),
                ("lane-product", device.lane_products),
            ),
            small_runs=device.stretches,
            pool_graphs=device.graphs - device.whole_graphs,
            ggml_graphs=device.whole_graphs,
            calls=calls.calls,
            call_tokens=calls.tokens,
            call_seconds=calls.seconds,
            gpus=() if self._model.gpu is None else gpu_counters(self._model.gpu),
            pinned_bytes=self._pinned.pinned_bytes if self._pinned else 0,
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

    def repair_placement(self) -> int:
        """Moves pages of slices that have one node back to it, and gives how many it moved."""
        moved = sum(arena.repair() for arena in self._model.arenas)
        self._repaired_pages += moved
        return moved

    def pin_arenas(self) -> tuple[Reason, ...]:
        """Registers the arenas with the GPUs that this model uses, and gives what to tell; () without a GPU.

        To be called once placement is verified: from then on no page is moved.
        """
        if self._model.gpu is None:
            return ()
        backends = [device.backend for device in self._model.gpu.inner_devices()]
        self._pinned = pin_arenas(self._model.arenas, backends)
        return self._pinned.reasons

    def _home_nodes(self, slice_index: int) -> tuple[int, ...]:
        """Nodes the slice's pages belong on; on a machine with one node that is the one, placed or not."""
        slices = self._plan.layout.slices
        planned = slices[slice_index].node_ids if slice_index < len(slices) else ()
        return planned or (self._plan.memory_nodes if len(self._plan.memory_nodes) == 1 else ())

    def close(self) -> None:
        """Frees context, model and arena; a GPU's copies have ended before its pages are unregistered."""
        del self._context, self._model, self._vocabulary
        self._pinned = None


def _native_grammar(grammar: Grammar | None) -> _native.Grammar | None:
    if grammar is None:
        return None
    return _native.Grammar(
        grammar.text,
        prefix=grammar.prefix,
        trigger_words=grammar.trigger_words,
        trigger_patterns=grammar.trigger_patterns,
        thinking_start=grammar.thinking_start,
        thinking_ends=grammar.thinking_ends,
    )


def _sample(arena: _native.Arena, slice_index: int, page_count: int) -> npt.NDArray[np.int32]:
    """The sampled pages' nodes; where move_pages itself is refused, one page that nobody can tell."""
    try:
        return arena.sample_placement(slice_index, page_count)
    except OSError as error:
        return np.array([-(error.errno or 0)], dtype=np.int32)


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
    if outcome.repaired_pages:
        reasons.append(
            Reason(
                code="placement-repaired",
                effect=Effect.INFORMS,
                message=f"{outcome.repaired_pages} pages did not lie on their slice's node at first touch "
                "and were moved there",
                evidence={"repaired_pages": outcome.repaired_pages},
            )
        )
    if outcome.lock_error_number:
        reasons.append(
            Reason(
                code="arena-not-locked",
                effect=Effect.WARNS,
                message=f"the arena's {size_bytes} bytes cannot be locked in memory: "
                f"{os.strerror(outcome.lock_error_number)}",
                evidence={"arena_bytes": size_bytes, "errno": outcome.lock_error_number, **memlock_limit()},
                remedy="set LimitMEMLOCK=infinity in the unit (or `ulimit -l unlimited`), "
                "or placement.lock_memory = false",
            )
        )
    return reasons


def build_digest() -> str:
    """A digest of the native module and the libraries beside it: another build, another digest."""
    module = Path(_native.__file__)
    digest = hashlib.sha256()
    for path in (module, *sorted((module.parent / "lib").glob("*.so*"))):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
