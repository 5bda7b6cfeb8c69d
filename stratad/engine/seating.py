"""Which slot a request gets, and how much of its prompt it finds there: in the slot, or from the prompt cache.

A slot that another prompt takes over is saved first, where computing its tokens again would take longer than copying
them out and back. Both rates are measured as the daemon runs. Everything here belongs to the decode thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from stratad import journal
from stratad.engine.prompt_cache import PromptCache, PromptCacheStatus, SavedPrompt
from stratad.engine.slots import Assignment, Slot, longest_unused_slot, suitable_slot
from stratad.runner.protocol import ModelRunner

# Until a copy was measured: 1 GB/s, which any machine with memory for a model copies.
_COPY_SECONDS_PER_BYTE = 1e-9

# The cache's best entry for a prompt, and how many tokens of it that spares.
Match = tuple[SavedPrompt, int]


@dataclass(slots=True)
class MeasuredRates:
    """How long copying and computing took so far, to say which of them is the shorter way to a prompt's memory."""

    copied_bytes: int = 0
    copy_seconds: float = 0.0
    computed_tokens: int = 0
    compute_seconds: float = 0.0

    def note_copied(self, size_bytes: int, seconds: float) -> None:
        """A state of this size was saved or restored."""
        self.copied_bytes += size_bytes
        self.copy_seconds += seconds

    def note_computed(self, token_count: int, seconds: float) -> None:
        """So many tokens of prompts took so long."""
        self.computed_tokens += token_count
        self.compute_seconds += seconds

    def pays(self, spared_tokens: int, copied_bytes: int) -> bool:
        """Whether copying so much takes less time than computing the tokens; yes while none was computed yet."""
        if spared_tokens <= 0 or not self.computed_tokens:
            return spared_tokens > 0
        per_byte = self.copy_seconds / self.copied_bytes if self.copied_bytes else _COPY_SECONDS_PER_BYTE
        return copied_bytes * per_byte < spared_tokens * self.compute_seconds / self.computed_tokens


class Seating:
    """The slots of one runner, and the prompts that had to leave them."""

    def __init__(self, runner: ModelRunner, prompt_cache_bytes: int) -> None:
        """At most `prompt_cache_bytes` of host memory hold what slots lose; 0 keeps nothing."""
        self.slots = [Slot(sequence) for sequence in range(runner.sequence_count)]
        self.cache = PromptCache(prompt_cache_bytes)
        self._runner = runner
        self._use_count = 0
        self._lookups = self._restores = self._restored_tokens = self._saves = 0
        self.rates = MeasuredRates()

    def seat(self, assignment: Assignment) -> tuple[Slot, Match | None]:
        """Puts a request into the slot that suits it best; there must be a free one. Gives it and the cache's match.

        The slot's memory is as it was: `fill` comes next, and may fail.
        """
        prompt = assignment.generation.prompt
        slot = suitable_slot(self.slots, prompt, self._runner)
        assert slot is not None
        match = self.cache.best(prompt)
        if self._pays(match, slot.reusable_tokens(prompt, self._runner)):
            # What the suitable slot holds can stay there.
            slot = longest_unused_slot(self.slots) or slot
        slot.assignment, slot.last_use, slot.is_suspect = assignment, self.next_use(), False
        return slot, match

    def next_use(self) -> int:
        """A `last_use` for a slot, larger than all before."""
        self._use_count += 1
        return self._use_count

    def fill(self, slot: Slot, match: Match | None) -> int:
        """Leaves the beginning of its request's prompt in a slot, as much as there is, and gives its length.

        Raises whatever the native module does; what the slot holds is unknown then.
        """
        prompt = slot.generation.prompt
        kept = slot.reusable_tokens(prompt, self._runner)
        match = match if self._pays(match, kept) else None
        self._lookups += self.cache.limit_bytes > 0
        if 2 * kept < len(slot.held_tokens) or match is not None:
            self._keep(slot, spared=match[0] if match else None)
        if match is not None:
            kept = self._restore(slot, *match)
        slot.keep_beginning(kept, self._runner)
        return len(slot.held_tokens)

    def status(self) -> PromptCacheStatus:
        """What the cache holds and did."""
        return PromptCacheStatus(
            limit_bytes=self.cache.limit_bytes,
            size_bytes=self.cache.size_bytes,
            entries=len(self.cache.entries),
            lookups=self._lookups,
            restores=self._restores,
            restored_tokens=self._restored_tokens,
            saves=self._saves,
            evictions=self.cache.evictions,
            copy_seconds=self.rates.copy_seconds,
        )

    def _pays(self, match: Match | None, kept: int) -> bool:
        """Whether there is a match, and copying it beats computing what `kept` tokens lack of it."""
        return match is not None and self.rates.pays(match[1] - kept, match[0].state_bytes)

    def _keep(self, slot: Slot, spared: SavedPrompt | None) -> None:
        """Saves what a slot holds before it is lost, unless the cache has it or copying does not pay.

        `spared` is about to be restored and must not go.
        """
        if not slot.held_tokens or not self.cache.limit_bytes or self.cache.holds(slot.held_tokens):
            return
        shape = self._runner.state_shape(slot.sequence)
        # Copied out now, and back later.
        if not self.rates.pays(len(slot.held_tokens), 2 * shape.size_bytes):
            return
        try:
            entry = self.cache.make_room(slot.held_tokens, shape, spared)
        except OSError as error:
            journal.warn("prompt cache", "no memory for another entry", reason=str(error))
            return
        if entry is None:
            return
        start_seconds = time.perf_counter()
        try:
            with entry.state() as state:
                self._runner.save_state(slot.sequence, state)
        except Exception:
            self.cache.drop(entry)
            raise
        self._saves += 1
        self.rates.note_copied(entry.state_bytes, time.perf_counter() - start_seconds)

    def _restore(self, slot: Slot, entry: SavedPrompt, token_count: int) -> int:
        """Gives a slot an entry's memory, and tells how many tokens of it the prompt begins with."""
        start_seconds = time.perf_counter()
        slot.held_tokens.clear()
        try:
            with entry.state() as state:
                self._runner.restore_state(slot.sequence, state)
        except ValueError as error:
            journal.warn("prompt cache", "an entry cannot be used and is dropped", reason=str(error))
            self.cache.drop(entry)
            return 0
        slot.held_tokens.extend(entry.tokens.tolist())
        self.cache.touch(entry)
        self._restores += 1
        self._restored_tokens += token_count
        self.rates.note_copied(entry.state_bytes, time.perf_counter() - start_seconds)
        return token_count
