"""A runner without a model: it answers what the test says, step by step when the test wants to watch."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stratad.runner.protocol import (
    NativeCounters,
    PlacementReport,
    SamplingParameters,
    SequenceTokens,
    SliceCounters,
    SlicePlacement,
    StateShape,
    TokenLikelihood,
)

START_TOKEN = 256
END_TOKEN = 257
_FIRST_PIECE_TOKEN = 258
_PIECE_CAPACITY = 1000

# A test that waits for a step longer than this hangs; it fails instead.
STEP_LIMIT_SECONDS = 20.0

Answer = Callable[[bytes], Sequence[bytes]]


class ScriptedVocabulary:
    """Tokens 0 to 255 are bytes, then start and end, then pieces of several bytes as answers need them."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    @property
    def token_count(self) -> int:
        return _FIRST_PIECE_TOKEN + _PIECE_CAPACITY

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = [START_TOKEN] if add_special else []
        rest = text
        while rest:
            if parse_special and rest.startswith("<s>"):
                tokens.append(START_TOKEN)
                rest = rest[3:]
            else:
                tokens.extend(rest[0].encode())
                rest = rest[1:]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        if token < 256:
            return bytes([token])
        if token in (START_TOKEN, END_TOKEN):
            return b""
        return self._pieces[token - _FIRST_PIECE_TOKEN]

    def is_end_of_generation(self, token: int) -> bool:
        return token == END_TOKEN

    def token_of(self, piece: bytes) -> int:
        if len(piece) == 1:
            return piece[0]
        if piece not in self._pieces:
            self._pieces.append(piece)
        return _FIRST_PIECE_TOKEN + self._pieces.index(piece)


@dataclass(slots=True)
class ScriptedSampler:
    """Walks through one answer."""

    sampling: SamplingParameters
    answer: list[int] | None = None
    next_index: int = 0


class ScriptedRunner:
    """Answers with `answer(prompt bytes)`, one piece a token, then the end token.

    With `holds_steps` every decode of a request waits until the test grants it by `grant_steps`. A decode call
    that holds one of `poison` in its tokens fails.
    """

    def __init__(
        self,
        answer: Answer = lambda prompt: [b"He", b"llo", b"!"],
        *,
        context_tokens: int = 256,
        batch_tokens: int = 16,
        sequence_count: int = 1,
        pool_tokens: int | None = None,
        chat_template: str | None = None,
        holds_steps: bool = False,
    ) -> None:
        self.vocabulary = ScriptedVocabulary()
        self.context_tokens = context_tokens
        self.batch_tokens = batch_tokens
        self.sequence_count = sequence_count
        self.pool_tokens = pool_tokens
        self.chat_template = chat_template
        self.bos_text = "<s>"
        self.eos_text = "</s>"
        self.memories: list[list[int]] = [[] for _ in range(sequence_count)]
        # For each call, pairs of sequence and number of tokens.
        self.calls: list[tuple[tuple[int, int], ...]] = []
        self.samplings: list[SamplingParameters] = []
        self.prompts: list[bytes] = []
        self.failures: list[Exception] = []
        self.poison: set[int] = set()
        self.truncate_failure: Exception | None = None
        # What saving a token takes; a page of 4096 bytes makes entries as large as they have tokens.
        self.state_token_bytes = 4096
        self.save_failures: list[Exception] = []
        self.restore_failures: list[Exception] = []
        self.decode_thread: int | None = None
        self.is_closed = False
        # What `repair_placement` makes of the report; None: no page can be moved.
        self.repaired_report: PlacementReport | None = None
        self.repair_attempts = 0
        self.report: PlacementReport | None = PlacementReport(
            (SlicePlacement(0, (0,), ((0, 64),), 0),), ((0, 1 << 20),), 4096
        )
        self._answer = answer
        self._holds_steps = holds_steps
        self._permits = threading.Semaphore(0)
        self._is_released = False
        self._step_count = 0
        self._stepped = threading.Condition()
        self._wants_logits: set[int] = set()

    def forget_start(self) -> None:
        """Forgets the engine's own first question, so that a test sees its requests only."""
        self.samplings.clear()
        self.prompts.clear()
        self.calls.clear()

    def grant_steps(self, count: int) -> None:
        """Lets `count` held decode calls go on."""
        for _ in range(count):
            self._permits.release()

    def release(self) -> None:
        """Lets every decode call go on from now on."""
        self._is_released = True
        self._permits.release()

    def wait_until_step(self, count: int) -> None:
        """Waits until `count` decode calls of requests have begun."""
        with self._stepped:
            assert self._stepped.wait_for(lambda: self._step_count >= count, STEP_LIMIT_SECONDS), (
                self._step_count
            )

    @property
    def step_count(self) -> int:
        return self._step_count

    @property
    def call_sizes(self) -> list[int]:
        """Tokens of every call."""
        return [sum(count for _, count in call) for call in self.calls]

    @property
    def device_failure(self) -> str | None:
        return None

    def open_sampler(self, sampling: SamplingParameters) -> ScriptedSampler:
        if sampling.grammar is not None and sampling.grammar.text == "broken":
            raise ValueError("the grammar does not parse")
        self.samplings.append(sampling)
        return ScriptedSampler(sampling)

    def decode(self, parts: Sequence[SequenceTokens]) -> None:
        assert threading.get_ident() == self.decode_thread
        assert len({part.sequence for part in parts}) == len(parts), "a sequence stands in one part only"
        assert 0 < sum(len(part.tokens) for part in parts) <= self.batch_tokens
        for part in parts:
            assert part.position == len(self.memories[part.sequence]), "a gap in the sequence"
            assert 0 < len(part.tokens) <= self.context_tokens - part.position
        self._wants_logits = {part.sequence for part in parts if part.wants_logits}
        if self.samplings:
            self._take_step()
        if self.failures:
            raise self.failures.pop(0)
        for part in parts:
            self.memories[part.sequence].extend(part.tokens)
        self.calls.append(tuple((part.sequence, len(part.tokens)) for part in parts))
        if any(self.poison & set(part.tokens) for part in parts):
            raise RuntimeError("poisoned")

    def _take_step(self) -> None:
        with self._stepped:
            self._step_count += 1
            self._stepped.notify_all()
        if self._holds_steps and not self._is_released:
            assert self._permits.acquire(timeout=STEP_LIMIT_SECONDS)

    def sample(self, sampler: ScriptedSampler, sequence: int) -> int:
        assert sequence in self._wants_logits, "the last call kept no logits of this sequence"
        if sampler.answer is None:
            prompt = b"".join(self.vocabulary.token_bytes(token) for token in self.memories[sequence])
            self.prompts.append(prompt)
            pieces = self._answer(prompt)
            sampler.answer = [*(self.vocabulary.token_of(piece) for piece in pieces), END_TOKEN]
        token = sampler.answer[min(sampler.next_index, len(sampler.answer) - 1)]
        sampler.next_index += 1
        return token

    def likelihoods(self, sequence: int, token: int, count: int) -> tuple[TokenLikelihood, ...]:
        """The chosen token is certain; the letters after it are less likely by one step each."""
        assert sequence in self._wants_logits
        others = range(ord("a"), ord("a") + count - 1) if count else ()
        likeliest = [token, *others][:count]
        ranked = [TokenLikelihood(one, -1.0 * rank) for rank, one in enumerate(likeliest)]
        return (TokenLikelihood(token, 0.0), *ranked)

    def truncate(self, sequence: int, position: int) -> None:
        if self.truncate_failure is not None and 0 < position < len(self.memories[sequence]):
            raise self.truncate_failure
        del self.memories[sequence][position:]

    def first_cut(self, sequence: int) -> int:
        return 0 if self.truncate_failure is None else len(self.memories[sequence])

    def state_shape(self, sequence: int) -> StateShape:
        return StateShape(self.state_token_bytes * len(self.memories[sequence]), self.first_cut(sequence))

    def save_state(self, sequence: int, into: memoryview) -> None:
        assert len(into) == self.state_shape(sequence).size_bytes
        if self.save_failures:
            raise self.save_failures.pop(0)
        saved = np.frombuffer(into, dtype=np.int32)
        saved[: len(self.memories[sequence])] = self.memories[sequence]

    def restore_state(self, sequence: int, state: memoryview) -> None:
        self.memories[sequence].clear()
        if self.restore_failures:
            raise self.restore_failures.pop(0)
        count = len(state) // self.state_token_bytes
        self.memories[sequence].extend(np.frombuffer(state, dtype=np.int32)[:count].tolist())

    def adopt_decode_thread(self) -> None:
        self.decode_thread = threading.get_ident()

    def counters(self) -> NativeCounters:
        return NativeCounters((SliceCounters(0.5, 0.25, 12, 4096),), fused_chains=7, fallback_operations=0)

    def placement(self, pages_per_slice: int) -> PlacementReport:
        assert not self.is_closed
        if self.report is None:
            raise OSError(1, "Operation not permitted")
        return self.report

    def repair_placement(self) -> int:
        assert not self.is_closed
        self.repair_attempts += 1
        if self.repaired_report is None:
            return 0
        self.report = self.repaired_report
        return 5

    def close(self) -> None:
        self.is_closed = True


class RememberingRunner(ScriptedRunner):
    """Its next letter depends on everything that the sequence holds, so that a mix-up of sequences shows."""

    def sample(self, sampler: ScriptedSampler, sequence: int) -> int:
        assert sequence in self._wants_logits, "the last call kept no logits of this sequence"
        held = ",".join(map(str, self.memories[sequence]))
        return ord("a") + zlib.crc32(held.encode()) % 26
