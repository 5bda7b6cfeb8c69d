"""Which slot a request gets, and what of its memory is kept."""

from __future__ import annotations

import pytest

from stratad.engine.generation import Generation, GenerationRequest
from stratad.engine.slots import Assignment, Slot, suitable_slot
from stratad.runner.protocol import SamplingParameters
from tests.serving.support.scripted_runner import ScriptedRunner, ScriptedSampler


def _slot(sequence: int, held: list[int], *, last_use: int = 0, serves: list[int] | None = None) -> Slot:
    slot = Slot(sequence, list(held), last_use=last_use)
    if serves is not None:
        sampling = SamplingParameters()
        generation = Generation(tuple(serves), GenerationRequest("", sampling), lambda event: None, 10)
        slot.assignment = Assignment(generation, ScriptedSampler(sampling))
    return slot


def _chosen(slots: list[Slot], prompt: list[int]) -> int | None:
    slot = suitable_slot(slots, prompt, ScriptedRunner(sequence_count=4))
    return None if slot is None else slot.sequence


def test_the_slot_that_holds_most_of_the_prompt_is_chosen() -> None:
    slots = [_slot(0, [1, 2]), _slot(1, [1, 2, 3, 4], last_use=9), _slot(2, [])]
    assert _chosen(slots, [1, 2, 3, 4, 5]) == 1


def test_of_equal_slots_the_longest_unused_is_chosen() -> None:
    slots = [_slot(0, [7, 8], last_use=3), _slot(1, [9, 9], last_use=1), _slot(2, [6, 6], last_use=2)]
    assert _chosen(slots, [1, 2, 3]) == 1


def test_a_slot_that_serves_is_never_chosen() -> None:
    slots = [_slot(0, [1, 2, 3], serves=[1, 2, 3]), _slot(1, [], last_use=5)]
    assert _chosen(slots, [1, 2, 3, 4]) == 1
    assert _chosen(slots[:1], [1, 2, 3, 4]) is None


def test_a_common_start_token_does_not_cost_another_conversation_its_slot() -> None:
    held = [256, *range(20)]
    slots = [_slot(0, held, last_use=1), _slot(1, [])]
    assert _chosen(slots, [256, *range(100, 120)]) == 1


@pytest.mark.parametrize(
    ("held", "prompt"),
    [
        (list(range(10)), [*range(10), *range(100, 190)]),
        ([*range(10), *range(200, 290)], [*range(10), 500]),
    ],
    ids=["most-of-what-it-holds", "most-of-the-prompt"],
)
def test_half_of_either_side_is_enough_to_count(held: list[int], prompt: list[int]) -> None:
    assert _chosen([_slot(0, []), _slot(1, held, last_use=1)], prompt) == 1


def test_one_token_of_the_prompt_is_always_left_to_compute() -> None:
    runner = ScriptedRunner()
    assert _slot(0, [1, 2, 3]).reusable_tokens([1, 2, 3], runner) == 2
    assert _slot(0, [1, 2, 3, 4]).reusable_tokens([1, 2, 3], runner) == 2


def test_memory_that_cannot_be_cut_counts_as_a_whole_only() -> None:
    runner = ScriptedRunner(sequence_count=2)
    runner.memories = [[1, 2, 3], [1, 2]]
    runner.truncate_failure = RuntimeError("recurrent")
    slots = [_slot(0, [1, 2, 3], last_use=2), _slot(1, [1, 2], last_use=1)]
    assert [slot.reusable_tokens([1, 2, 4], runner) for slot in slots] == [0, 2]
    chosen = suitable_slot(slots, [1, 2, 4], runner)
    assert chosen is slots[1]


def test_its_next_part_follows_what_it_holds_and_wants_logits_at_the_end_only() -> None:
    slot = _slot(3, [1, 2], serves=[1, 2, 3, 4, 5])
    assert slot.needed_tokens == 3
    part, last = slot.next_part(2), slot.next_part(3)
    assert (part.sequence, part.position, list(part.tokens), part.wants_logits) == (3, 2, [3, 4], False)
    assert (list(last.tokens), last.wants_logits) == ([3, 4, 5], True)


def test_memory_that_cannot_be_cut_is_emptied() -> None:
    runner = ScriptedRunner(sequence_count=2)
    runner.memories[1] = [1, 2, 3]
    slot = _slot(1, [1, 2, 3])
    runner.truncate_failure = RuntimeError("recurrent")
    slot.keep_beginning(2, runner)
    assert (slot.held_tokens, runner.memories[1]) == ([], [])


def test_memory_that_can_be_cut_keeps_its_beginning() -> None:
    runner = ScriptedRunner(sequence_count=2)
    runner.memories[1] = [1, 2, 3]
    slot = _slot(1, [1, 2, 3])
    slot.keep_beginning(2, runner)
    assert (slot.held_tokens, runner.memories[1]) == ([1, 2], [1, 2])
