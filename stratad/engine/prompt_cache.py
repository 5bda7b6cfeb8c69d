"""Prompts kept in host RAM: the memory of sequences whose slot went to another prompt, for when they come back.

Every entry is a mapping of its own, made and first touched by the decode thread: its pages follow the plan's policy
for the process, and the kernel gets them back at once when the entry goes. Only the decode thread uses the cache.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stratad.runner.protocol import StateShape

_TOKEN_BYTES = 4

# Every lookup compares the prompt with each entry, some microseconds for one.
MAX_ENTRIES = 512


@dataclass(frozen=True, slots=True)
class PromptCacheStatus:
    """What the cache holds now, and its totals since start.

    `lookups` are requests for which it was asked, `restores` those that went on from an entry, `restored_tokens`
    what they did not need to compute; `copy_seconds` is the time in saving and restoring.
    """

    limit_bytes: int = 0
    size_bytes: int = 0
    entries: int = 0
    lookups: int = 0
    restores: int = 0
    restored_tokens: int = 0
    saves: int = 0
    evictions: int = 0
    copy_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class SavedPrompt:
    """The tokens a sequence held, int32, and its memory; `last_use` grows with every use of any entry."""

    tokens: npt.NDArray[np.int32]
    first_cut: int
    state_bytes: int
    # Host memory that it takes, in whole pages.
    size_bytes: int
    buffer: mmap.mmap
    last_use: int = 0

    def state(self) -> memoryview:
        """The sequence's memory; to be released before the entry goes."""
        return memoryview(self.buffer)[: self.state_bytes]

    def reusable_tokens(self, prompt: npt.NDArray[np.int32]) -> int:
        """How many tokens of `prompt` it spares, 0 when its memory cannot be cut where they part."""
        length = shared_length(self.tokens, prompt)
        return length if length >= self.first_cut else 0


@dataclass(slots=True)
class PromptCache:
    """Saved prompts within `limit_bytes`, the longest unused of which go first. Never holds more, not for a moment."""

    limit_bytes: int
    entries: list[SavedPrompt] = field(default_factory=list)
    size_bytes: int = 0
    evictions: int = 0
    _use_count: int = 0

    def best(self, prompt: Sequence[int]) -> tuple[SavedPrompt, int] | None:
        """The entry that spares most tokens of `prompt`, and how many; None when none spares any.

        One token of the prompt at least is left to compute: its logits give the first token of the answer.
        """
        wanted = as_tokens(prompt[:-1])
        matches = ((entry, entry.reusable_tokens(wanted)) for entry in self.entries)
        best = max(matches, key=lambda match: (match[1], match[0].last_use), default=None)
        return best if best is not None and best[1] > 0 else None

    def holds(self, tokens: Sequence[int]) -> bool:
        """Whether an entry gives all that a sequence with these tokens does; it counts as used then."""
        wanted = as_tokens(tokens)
        for entry in self.entries:
            if entry.reusable_tokens(wanted) == len(wanted):
                self.touch(entry)
                return True
        return False

    def make_room(
        self, tokens: Sequence[int], shape: StateShape, spared: SavedPrompt | None = None
    ) -> SavedPrompt | None:
        """A new entry with an unwritten state; None when there is no room for it beside `spared`.

        What it replaces goes, and then the longest unused, until it fits.

        Raises:
            OSError: There is no memory for it; the others that went are gone.
        """
        state_bytes = whole_pages(shape.size_bytes)
        needed = state_bytes + whole_pages(len(tokens) * _TOKEN_BYTES)
        if needed + (spared.size_bytes if spared else 0) > self.limit_bytes:
            return None
        kept = as_tokens(tokens)
        others = [entry for entry in self.entries if entry is not spared]
        for entry in [entry for entry in others if gives_all(kept, shape.first_cut, entry.tokens)]:
            others.remove(entry)
            self.drop(entry)
        others.sort(key=lambda entry: entry.last_use)
        while self.size_bytes + needed > self.limit_bytes or len(self.entries) >= MAX_ENTRIES:
            self.drop(others.pop(0))
            self.evictions += 1
        entry = SavedPrompt(kept, shape.first_cut, shape.size_bytes, needed, mmap.mmap(-1, state_bytes))
        self.entries.append(entry)
        self.size_bytes += entry.size_bytes
        self.touch(entry)
        return entry

    def touch(self, entry: SavedPrompt) -> None:
        """The entry is the last used from now on."""
        self._use_count += 1
        entry.last_use = self._use_count

    def drop(self, entry: SavedPrompt) -> None:
        """Gives an entry's memory back."""
        self.entries.remove(entry)
        self.size_bytes -= entry.size_bytes
        entry.buffer.close()


def as_tokens(tokens: Sequence[int]) -> npt.NDArray[np.int32]:
    """Token ids as an array of their own."""
    return np.array(tokens, dtype=np.int32)


def shared_length(one: npt.NDArray[np.int32], other: npt.NDArray[np.int32]) -> int:
    """Length of the longest beginning that both have."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def gives_all(tokens: npt.NDArray[np.int32], first_cut: int, other: npt.NDArray[np.int32]) -> bool:
    """Whether memory with `tokens`, which can be cut from `first_cut` on, gives all that memory with `other` does."""
    return first_cut <= len(other) and shared_length(tokens, other) == len(other)


def whole_pages(size_bytes: int) -> int:
    """The bytes of the pages that this many bytes need."""
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
