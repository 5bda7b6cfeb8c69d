"""What the server asks of a loaded model: the border between Python and the native engine.

`stratad.native.runner.NativeRunner` implements `ModelRunner` over the native module; tests implement it
with a scripted one. The engine sees nothing else of the native side. Only `counters`,
`device_failure` and `placement` may be called from any thread; everything else belongs to the decode thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must match.

    Attributes:
        text: GBNF with a rule named root.
        prefix: The end of the prompt, where the grammar begins before the answer does.
        trigger_words: With these or patterns, the grammar holds only from where the answer first has one.
        trigger_patterns: Regular expressions; the first group, or all of the match, is where it begins.
        thinking_start: Behind this mark nothing triggers the grammar; empty when the model does not think.
        thinking_ends: Until one of these.
    """

    text: str
    prefix: str = ""
    trigger_words: tuple[str, ...] = ()
    trigger_patterns: tuple[str, ...] = ()
    thinking_start: str = ""
    thinking_ends: tuple[str, ...] = ()


class GrammarDeadEnd(Exception):
    """No token of the model fits the grammar where the answer stands; the text says so to the client."""


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How the next token is chosen, with llama.cpp's meanings and defaults.

    Attributes:
        temperature: 0 takes the most likely token; otherwise logits are divided by it.
        top_k: Keep this many most likely tokens; 0 keeps all.
        top_p: Keep the smallest set whose probability reaches this; 1 keeps all.
        min_p: Drop tokens less likely than this share of the most likely one; 0 drops none.
        seed: Fixes the random choices; None takes a fresh seed.
        repeat_penalty: Divides the logits of tokens seen lately; 1 changes nothing.
        frequency_penalty: Subtracted once per earlier occurrence; 0 changes nothing.
        presence_penalty: Subtracted once when the token occurred; 0 changes nothing.
        penalty_last_tokens: How many last tokens the penalties look at; 0 switches them off.
        grammar: What the output must match; None allows everything.
        logit_bias: Pairs of token id and the value added to its logit, sorted by token id.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_tokens: int = 64
    grammar: Grammar | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SliceCounters:
    """What one slice of the pool has done since it was built.

    `wait_seconds` is time its workers stood at barriers, `drain_seconds` time from its first idle
    worker to the end of a batch, `tasks` the row blocks it computed, `expert_bytes` and `dense_bytes` the weight
    bytes it read, `workers` how many take tasks from it.
    """

    wait_seconds: float
    drain_seconds: float
    tasks: int
    expert_bytes: int
    dense_bytes: int = 0
    workers: int = 0


@dataclass(frozen=True, slots=True)
class GpuCounters:
    """What one GPU has done since its model was loaded.

    `steps` are passes over the model. In them the decode thread waited `wait_seconds` for the GPU to reach a layer's
    experts, the pool computed for `pool_seconds`, and `copy_seconds` went into handing over activations and waiting
    for weights; meanwhile, on a thread of its own, weights were copied for `upload_seconds`. `prefill_bytes` of them
    were for large batches, `cache_swap_bytes` for `cache_swaps` exchanges of hot experts. Hits and misses are choices
    of the router that were computed in VRAM or by the pool, `cache_hit_bytes` the weights of the hits. The cache has
    `cache_slots` in `cache_bytes`, of which `cache_resident` hold an expert.
    """

    device: str
    steps: int
    wait_seconds: float
    pool_seconds: float
    copy_seconds: float
    upload_seconds: float
    prefill_bytes: int
    cache_hits: int
    cache_misses: int
    cache_hit_bytes: int
    cache_swaps: int
    cache_swap_bytes: int
    cache_slots: int
    cache_resident: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class NativeCounters:
    """Running totals of the native side; slices in the order of their index.

    Attributes:
        slices: The pool's, one for each slice.
        fused_chains: Expert layers computed as one job.
        fallback_operations: Operations of expert layers that ran by themselves.
        repaired_pages: Pages moved back to their slice's node.
        pinned_bytes: Of the arena, registered with a GPU's runtime.
        locked_bytes: Of the arena, locked in memory.
        jobs: Pairs of kind and number of the pool's other jobs, sorted by kind.
        small_runs: Runs of small operations on the decode thread alone.
        pool_graphs: Passes over the model that the pool computed.
        ggml_graphs: Passes handed to ggml's own threads.
        calls: Calls of llama.cpp.
        call_tokens: Tokens computed in them.
        call_seconds: Time in them.
        gpus: One for each GPU in use.
    """

    slices: tuple[SliceCounters, ...]
    fused_chains: int
    fallback_operations: int
    repaired_pages: int = 0
    pinned_bytes: int = 0
    locked_bytes: int = 0
    jobs: tuple[tuple[str, int], ...] = ()
    small_runs: int = 0
    pool_graphs: int = 0
    ggml_graphs: int = 0
    calls: int = 0
    call_tokens: int = 0
    call_seconds: float = 0.0
    gpus: tuple[GpuCounters, ...] = ()


@dataclass(frozen=True, slots=True)
class SlicePlacement:
    """Where a sample of one slice's pages lies.

    Attributes:
        slice_index: Index of the slice in the plan's layout.
        home_nodes: Nodes the plan puts it on, sorted: one, or several when it is interleaved over them; empty
            when the plan places nothing (off, test mode).
        pages_per_node: Pairs of node id and sampled pages found there, sorted by node id.
        unknown_pages: Sampled pages whose node the kernel did not tell.
    """

    slice_index: int
    home_nodes: tuple[int, ...]
    pages_per_node: tuple[tuple[int, int], ...]
    unknown_pages: int

    @property
    def known_pages(self) -> int:
        """Sampled pages whose node is known."""
        return sum(page_count for _, page_count in self.pages_per_node)

    @property
    def local_ratio(self) -> float | None:
        """Share of known pages on home nodes; None without a home node or without a known page."""
        if not self.home_nodes or self.known_pages == 0:
            return None
        local_pages = sum(pages for node_id, pages in self.pages_per_node if node_id in self.home_nodes)
        return local_pages / self.known_pages


@dataclass(frozen=True, slots=True)
class PlacementReport:
    """One check of the arena: slices by index, and its bytes per node as the sample projects them.

    `arena_bytes_per_node` holds pairs of node id and bytes, sorted by node id; `page_bytes` is the page
    size the arena was asked to use.
    """

    slices: tuple[SlicePlacement, ...]
    arena_bytes_per_node: tuple[tuple[int, int], ...]
    page_bytes: int


class Vocabulary(Protocol):
    """The model's tokens. Reading it is safe from any thread."""

    @property
    def token_count(self) -> int:
        """Number of tokens; ids are 0 up to, not including, this."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokens of `text`.

        `add_special` adds the start token where the model wants one; `parse_special` reads marks such as <s>.
        """

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for: possibly a part of one UTF-8 character, or nothing."""

    def is_end_of_generation(self, token: int) -> bool:
        """True when the model says it has finished by this token."""


@dataclass(frozen=True, slots=True)
class SequenceTokens:
    """What one sequence has in a decode call: `tokens` at `position` and following.

    With `wants_logits` the last token's logits are kept, so that the next one can be sampled.
    """

    sequence: int
    position: int
    tokens: Sequence[int]
    wants_logits: bool


@dataclass(frozen=True, slots=True)
class TokenLikelihood:
    """How likely the model itself finds a token, before any sampling parameter: its probability's logarithm."""

    token: int
    log_probability: float


@dataclass(frozen=True, slots=True)
class StateShape:
    """What saving a sequence now would give: its bytes, and from which position on it can be cut once restored.

    A memory that keeps no earlier positions (recurrent layers, a window that has moved on) can be used as a whole
    only: `first_cut` is then its length, or near it.
    """

    size_bytes: int
    first_cut: int


class Sampler(Protocol):
    """The sampling state of one request. Opaque: only the runner that opened it reads it."""


class ModelRunner(Protocol):
    """A loaded model with key-value memory for several sequences, numbered from 0."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens."""

    @property
    def sequence_count(self) -> int:
        """Number of sequences that can be held side by side."""

    @property
    def context_tokens(self) -> int:
        """Tokens that each sequence can hold, however many the others hold."""

    @property
    def batch_tokens(self) -> int:
        """Most tokens one `decode` call accepts."""

    @property
    def pool_tokens(self) -> int | None:
        """Most tokens of a `decode` call that the pool computes, rather than ggml; None when it takes any."""

    @property
    def chat_template(self) -> str | None:
        """The Jinja template that the model file carries, or None."""

    @property
    def bos_text(self) -> str:
        """Text of the start token, for templates; empty when the model has none."""

    @property
    def eos_text(self) -> str:
        """Text of the end token, for templates; empty when the model has none."""

    @property
    def device_failure(self) -> str | None:
        """Why a GPU has failed, after which `decode` always raises; None while all is well. Safe from any thread."""

    def open_sampler(self, sampling: SamplingParameters) -> Sampler:
        """A sampler for one request. Raises ValueError when the grammar does not parse."""

    def decode(self, parts: Sequence[SequenceTokens]) -> None:
        """Computes the tokens of several sequences, each in one part at most. Blocks without the GIL.

        After an exception nobody knows which of the tokens are held.
        """

    def sample(self, sampler: Sampler, sequence: int) -> int:
        """The next token of a sequence by its logits of the last `decode`, accepted into the sampler's state.

        Raises GrammarDeadEnd, having changed nothing.
        """

    def likelihoods(self, sequence: int, token: int, count: int) -> tuple[TokenLikelihood, ...]:
        """That of `token` as the next of a sequence by the last `decode`, then the `count` largest, in order."""

    def truncate(self, sequence: int, position: int) -> None:
        """Forgets everything of a sequence from `position` on.

        Raises RuntimeError, having forgotten nothing, when the model's memory cannot be cut there (recurrent
        layers, sliding windows); 0 always works.
        """

    def first_cut(self, sequence: int) -> int:
        """The first position from which on `truncate` works for what a sequence holds now, besides 0."""

    def state_shape(self, sequence: int) -> StateShape:
        """What `save_state` would give now."""

    def save_state(self, sequence: int, into: memoryview) -> None:
        """Copies a sequence's memory into `into`, which has as many bytes as `state_shape` says."""

    def restore_state(self, sequence: int, state: memoryview) -> None:
        """Gives a sequence the memory that `save_state` copied; what is computed from there on has the same bits.

        Raises ValueError, with the sequence empty, when the state is of another model or context.
        """

    def adopt_decode_thread(self) -> None:
        """Pins the calling thread to the seat of worker 0. Called once, on the decode thread."""

    def counters(self) -> NativeCounters:
        """Running totals. Cheap; safe from any thread. Waits for no step, and no step waits for it."""

    def placement(self, pages_per_slice: int) -> PlacementReport:
        """Asks the kernel where at most `pages_per_slice` pages of each slice lie. Safe from any thread."""

    def repair_placement(self) -> int:
        """Moves pages of slices that have one home node back to it, as far as the kernel can.

        Gives how many it moved. Safe from any thread while decoding goes on; takes seconds for a large arena.
        Raises OSError when the kernel refuses.
        """

    def close(self) -> None:
        """Frees model and arena and joins the pool. Nothing else may be called afterwards."""
