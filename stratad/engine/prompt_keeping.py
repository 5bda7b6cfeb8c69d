"""What slots and prompt cache hold, carried over a restart: saved at the daemon's end, back in place at its start.

Both run on the decode thread, when no request is computed.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from stratad import journal
from stratad.engine.prompt_cache import SavedPrompt, as_tokens, gives_all, whole_pages
from stratad.engine.saved_prompts import (
    BinaryPrompt,
    PromptRecord,
    SavedPromptsPlace,
    SavedPromptsUnusable,
    StoredPrompt,
    load_prompts,
    save_prompts,
)
from stratad.engine.seating import Seating
from stratad.engine.slots import Slot
from stratad.runner.protocol import ModelRunner, StateShape


@dataclass(frozen=True, slots=True)
class LoadedPrompts:
    """What the start found: so many prompts and tokens are back; `problem` says why others are not, None for none."""

    prompts: int = 0
    tokens: int = 0
    problem: str | None = None


def keep_prompts(seating: Seating, runner: ModelRunner, place: SavedPromptsPlace) -> None:
    """Saves what slots and cache hold; what goes wrong is logged, for the daemon is about to end."""
    try:
        prompts = _prompts_by_use(seating, runner)
        count = save_prompts(place, prompts)
    # At this point nobody is served any more, and the former file is still there.
    except (OSError, RuntimeError, MemoryError) as error:
        journal.warn("saved prompts", "prompts cannot be saved for the next start", reason=str(error))
        return
    journal.inform("saved prompts", saved=count, left_out=len(prompts) - count)


def restore_prompts(seating: Seating, runner: ModelRunner, place: SavedPromptsPlace) -> LoadedPrompts:
    """Puts saved prompts back: the last used into the slots, the others into the cache as far as they fit."""
    prompts = tokens = 0
    try:
        for record, following, prompt in load_prompts(place):
            _require_fit(record, runner)
            slot = seating.slots[following] if following < len(seating.slots) else None
            if slot is None:
                _read_into_cache(seating, prompt, runner)
            else:
                _read_into_slot(slot, prompt, runner)
                slot.last_use = seating.next_use()
            prompts, tokens = prompts + 1, tokens + record.tokens
    except SavedPromptsUnusable as error:
        return LoadedPrompts(prompts, tokens, str(error))
    except (OSError, MemoryError) as error:
        return LoadedPrompts(prompts, tokens, f"there is no memory for it: {error}")
    return LoadedPrompts(prompts, tokens)


def _prompts_by_use(seating: Seating, runner: ModelRunner) -> list[StoredPrompt]:
    """What slots and cache hold, the last used first: slots before entries, and nothing twice."""
    slots = sorted(seating.slots, key=lambda slot: -slot.last_use)
    entries = sorted(seating.cache.entries, key=lambda entry: -entry.last_use)
    found = [_of_slot(slot, runner) for slot in slots if slot.held_tokens]
    for entry in entries:
        if not any(gives_all(prompt.tokens, prompt.record.first_cut, entry.tokens) for prompt in found):
            found.append(_of_entry(entry))
    return found


def _of_slot(slot: Slot, runner: ModelRunner) -> StoredPrompt:
    shape = runner.state_shape(slot.sequence)
    record = PromptRecord(len(slot.held_tokens), shape.size_bytes, shape.first_cut)
    return StoredPrompt(record, as_tokens(slot.held_tokens), partial(runner.save_state, slot.sequence))


def _of_entry(entry: SavedPrompt) -> StoredPrompt:
    def copy_state(into: memoryview) -> None:
        with entry.state() as state:
            into[:] = state

    return StoredPrompt(
        PromptRecord(len(entry.tokens), entry.state_bytes, entry.first_cut), entry.tokens, copy_state
    )


def _require_fit(record: PromptRecord, runner: ModelRunner) -> None:
    if not 0 < record.tokens <= runner.context_tokens:
        raise SavedPromptsUnusable(
            f"a prompt has {record.tokens} tokens, the context holds {runner.context_tokens}"
        )


def _read_into_cache(seating: Seating, prompt: BinaryPrompt, runner: ModelRunner) -> None:
    record = prompt.record
    # What the limit has no room for is read all the same: its part of the file comes before the next.
    buffer = mmap.mmap(-1, whole_pages(record.state_bytes))
    with memoryview(buffer) as memory, memory[: record.state_bytes] as state:
        tokens = _known(prompt.read(state), runner)
        entry = seating.cache.make_room(tokens.tolist(), StateShape(record.state_bytes, record.first_cut))
        if entry is not None:
            with entry.state() as kept:
                kept[:] = state
    buffer.close()


def _read_into_slot(slot: Slot, prompt: BinaryPrompt, runner: ModelRunner) -> None:
    buffer = mmap.mmap(-1, whole_pages(prompt.record.state_bytes))
    with memoryview(buffer) as memory, memory[: prompt.record.state_bytes] as state:
        tokens = _known(prompt.read(state), runner)
        try:
            runner.restore_state(slot.sequence, state)
        except ValueError as error:
            raise SavedPromptsUnusable(str(error)) from error
    buffer.close()
    slot.held_tokens[:] = tokens.tolist()


def _known(tokens: npt.NDArray[np.int32], runner: ModelRunner) -> npt.NDArray[np.int32]:
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < runner.vocabulary.token_count:
        raise SavedPromptsUnusable("a prompt has tokens that the model does not know")
    return tokens
