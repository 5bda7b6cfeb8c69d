"""Slots: the sequences of the model's memory, what each holds, and which one suits a request best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stratad.engine.generation import Generation
from stratad.engine.prompt import common_length
from stratad.engine.status import SlotStatus
from stratad.runner.protocol import ModelRunner, Sampler, SequenceTokens


@dataclass(frozen=True, slots=True)
class Assignment:
    """A request in its slot, with the sampler that writes its answer."""

    generation: Generation
    sampler: Sampler


@dataclass(slots=True)
class Slot:
    """One sequence: the tokens its memory holds from position 0 on, and the request that it serves now.

    Only the decode thread touches it. `last_use` grows with every request that a slot is given. A suspect was in
    a call that failed and is computed alone until it has its next token.
    """

    sequence: int
    held_tokens: list[int] = field(default_factory=list)
    assignment: Assignment | None = None
    last_use: int = 0
    is_suspect: bool = False

    @property
    def generation(self) -> Generation:
        """The request that it serves."""
        assert self.assignment is not None
        return self.assignment.generation

    @property
    def needed_tokens(self) -> int:
        """How many tokens its request needs computed before the next one can be sampled."""
        return len(self.generation.tokens) - len(self.held_tokens)

    def next_part(self, token_count: int) -> SequenceTokens:
        """The next `token_count` of the tokens it needs, with logits when they are the last."""
        held_count = len(self.held_tokens)
        tokens = self.generation.tokens[held_count : held_count + token_count]
        return SequenceTokens(self.sequence, held_count, tokens, token_count == self.needed_tokens)

    def status(self) -> SlotStatus:
        """What it holds and does."""
        if self.assignment is None:
            return SlotStatus(len(self.held_tokens))
        generation = self.generation
        return SlotStatus(len(self.held_tokens), len(generation.prompt), generation.predicted_tokens)

    def keep_beginning(self, length: int, runner: ModelRunner) -> None:
        """Cuts the memory to its first `length` tokens, or empties it where the model's cannot be cut there."""
        try:
            runner.truncate(self.sequence, length)
        except RuntimeError:
            if length == 0:
                raise
            # Recurrent layers keep no state of earlier positions; starting over always works.
            length = 0
            runner.truncate(self.sequence, 0)
        del self.held_tokens[length:]

    def reusable_tokens(self, prompt: Sequence[int], runner: ModelRunner) -> int:
        """How many tokens of `prompt` it holds already; 0 when its memory cannot be cut where they part.

        One token at least is left to compute: its logits give the first token of the answer.
        """
        length = common_length(self.held_tokens, prompt[:-1])
        return length if length and length >= runner.first_cut(self.sequence) else 0


def suitable_slot(slots: Sequence[Slot], prompt: Sequence[int], runner: ModelRunner) -> Slot | None:
    """The free slot that holds most of the prompt's beginning, of equal ones the longest unused; None: all serve.

    A beginning that is the smaller part of both the prompt and what the slot holds, such as a start token, does
    not count: it saves less than is lost with the rest of the slot.
    """

    def preference(slot: Slot) -> tuple[int, int]:
        length = slot.reusable_tokens(prompt, runner)
        counts = 2 * length >= min(len(prompt), len(slot.held_tokens))
        return (-length if counts else 0, slot.last_use)

    return min((slot for slot in slots if slot.assignment is None), key=preference, default=None)


def longest_unused_slot(slots: Sequence[Slot]) -> Slot | None:
    """The free slot that was given a request longest ago, empty ones first; None: all serve."""
    free = (slot for slot in slots if slot.assignment is None)
    return min(free, key=lambda slot: (bool(slot.held_tokens), slot.last_use), default=None)
