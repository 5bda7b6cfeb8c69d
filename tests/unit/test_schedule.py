"""What a step computes: every answer's next token, and no more of the prompts than answers can wait for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratad.engine.schedule import Share, StepLimits, compose_step

LIMITS = StepLimits(batch_tokens=32, chunk_tokens=8)


def _needs(*token_counts: int) -> list[Share]:
    """Needs of the sequences 0, 1, ... in order of arrival."""
    return [Share(sequence, token_count) for sequence, token_count in enumerate(token_counts)]


def test_nothing_to_compute_is_no_call() -> None:
    assert compose_step([], LIMITS) == ()


def test_all_answers_share_one_call_in_the_order_of_their_sequences() -> None:
    needs = [Share(2, 1), Share(0, 1), Share(1, 1)]
    assert compose_step(needs, LIMITS) == ((Share(0, 1), Share(1, 1), Share(2, 1)),)


def test_a_prompt_alone_takes_a_whole_batch() -> None:
    assert compose_step(_needs(100), LIMITS) == ((Share(0, 32),),)
    assert compose_step(_needs(32), LIMITS) == ((Share(0, 32),),)


def test_a_prompt_beside_answers_takes_a_chunk_in_a_call_of_its_own() -> None:
    assert compose_step(_needs(1, 100, 1), LIMITS) == ((Share(0, 1), Share(2, 1)), (Share(1, 8),))


def test_prompts_are_computed_in_the_order_in_which_they_came() -> None:
    assert compose_step(_needs(50, 3), LIMITS) == ((Share(0, 32),),)


def test_short_prompts_share_a_step_and_only_the_first_is_cut() -> None:
    assert compose_step(_needs(1, 3, 5, 2), LIMITS) == ((Share(0, 1),), (Share(1, 3),), (Share(2, 5),))
    assert compose_step(_needs(1, 3, 6), LIMITS) == ((Share(0, 1),), (Share(1, 3),))


def test_a_chunk_larger_than_a_batch_is_a_batch() -> None:
    limits = StepLimits(batch_tokens=4, chunk_tokens=100)
    assert compose_step(_needs(1, 100), limits) == ((Share(0, 1),), (Share(1, 4),))


def test_answers_beyond_what_the_pool_computes_are_several_calls() -> None:
    limits = StepLimits(batch_tokens=32, chunk_tokens=8, pool_tokens=2)
    calls = compose_step(_needs(1, 1, 1), limits)
    assert calls == ((Share(0, 1), Share(1, 1)), (Share(2, 1),))


@given(
    st.lists(st.integers(1, 300), max_size=12),
    st.integers(1, 64),
    st.integers(1, 64),
    st.none() | st.integers(1, 16),
)
def test_whatever_is_needed_a_step_keeps_its_limits_and_moves_on(
    token_counts: list[int], batch_tokens: int, chunk_tokens: int, pool_tokens: int | None
) -> None:
    needs = _needs(*token_counts)
    limits = StepLimits(batch_tokens, chunk_tokens, pool_tokens)
    calls = compose_step(needs, limits)
    shares = [share for call in calls for share in call]
    assert len({share.sequence for share in shares}) == len(shares), "a sequence has one share"
    assert all(0 < share.token_count <= token_counts[share.sequence] for share in shares)
    assert all(0 < sum(share.token_count for share in call) <= batch_tokens for call in calls)
    answers = {need.sequence for need in needs if need.token_count == 1}
    assert answers <= {share.sequence for share in shares}, "every answer goes on"
    prompt_tokens = sum(share.token_count for share in shares if share.sequence not in answers)
    assert prompt_tokens <= (min(chunk_tokens, batch_tokens) if answers else batch_tokens)
    if len(answers) < len(needs):
        assert prompt_tokens > 0, "prompts go on as well"
    if pool_tokens is not None:
        assert all(len(call) <= pool_tokens for call in calls)
