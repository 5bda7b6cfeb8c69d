"""What the next step computes: which sequences, how many tokens of each, in which decode calls. Pure.

Every answer that runs gets its next token in every step. Prompts come after them, in the order in which they
came: a whole batch while nobody waits for a token, else no more than `chunk_tokens`, so that an answer never
waits longer than that for its next token.

A prompt is a call of its own. In one call with the answers it would save reading what the answers read, a few
experts of many; but then what comes out for it, to the last bit, would depend on who else is served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What one step may hold.

    Attributes:
        batch_tokens: Most tokens of one decode call.
        chunk_tokens: Most prompt tokens of a step in which answers run.
        pool_tokens: Most tokens of a call that the pool computes; None when it takes any. More answers than that
            are several calls: a larger one would go to ggml as a whole.
    """

    batch_tokens: int
    chunk_tokens: int
    pool_tokens: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """How many tokens of a sequence: those it needs (above 0), or those a call takes of them."""

    sequence: int
    token_count: int


Call = tuple[Share, ...]


def compose_step(needs: Sequence[Share], limits: StepLimits) -> tuple[Call, ...]:
    """The decode calls of the next step, for what each running sequence needs, in order of arrival.

    A need of one token is an answer's next one, or the last of a prompt, which costs no more.
    """
    # llama.cpp makes one pass over the model for neighbouring sequences in ascending order.
    answers = sorted(need for need in needs if need.token_count == 1)
    size = min(limits.batch_tokens, limits.pool_tokens or limits.batch_tokens)
    calls = [tuple(answers[start : start + size]) for start in range(0, len(answers), size)]
    prompt_tokens = min(limits.batch_tokens, limits.chunk_tokens) if answers else limits.batch_tokens
    prompts = _fitting([need for need in needs if need.token_count > 1], prompt_tokens)
    return (*calls, *((prompt,) for prompt in prompts))


def _fitting(prompts: Sequence[Share], token_count: int) -> list[Share]:
    """The first prompts that fit into `token_count`; the very first is cut when it does not."""
    if prompts and prompts[0].token_count > token_count:
        return [Share(prompts[0].sequence, token_count)]
    fitting = []
    for prompt in prompts:
        token_count -= prompt.token_count
        if token_count < 0:
            break
        fitting.append(prompt)
    return fitting
