"""From a request's prompt to tokens that fit the context."""

from __future__ import annotations

from collections.abc import Sequence

from stratad.engine.generation import GenerationRequest, InvalidRequest, PromptTooLong
from stratad.runner.protocol import SamplingParameters, Vocabulary


def tokenize_prompt(request: GenerationRequest, vocabulary: Vocabulary, start_text: str) -> tuple[int, ...]:
    """The tokens of the request's prompt.

    `start_text` is the text of the model's start token, empty when it has none. A rendered prompt that begins
    with it gets no second one from the vocabulary.

    Raises:
        InvalidRequest: Token ids were given that the vocabulary does not have.
    """
    if isinstance(request.prompt, tuple):
        if any(not 0 <= token < vocabulary.token_count for token in request.prompt):
            raise InvalidRequest(f"token ids must be from 0 to {vocabulary.token_count - 1}", "prompt")
        return request.prompt
    has_start = request.is_rendered and start_text != "" and request.prompt.startswith(start_text)
    return tuple(vocabulary.tokenize(request.prompt, add_special=not has_start, parse_special=True))


def require_fit(prompt: tuple[int, ...], context_tokens: int, parameter: str) -> None:
    """Does nothing when the prompt, given as `parameter`, leaves room for one token at least.

    Raises:
        InvalidRequest: The prompt has no token.
        PromptTooLong: It fills the context or more.
    """
    if not prompt:
        raise InvalidRequest("the prompt is empty", parameter)
    if len(prompt) >= context_tokens:
        raise PromptTooLong(len(prompt), context_tokens, parameter)


def require_known_biases(sampling: SamplingParameters, vocabulary: Vocabulary) -> None:
    """Does nothing when every biased token exists.

    Raises:
        InvalidRequest: One does not; silently ignored it would look as if the bias had no effect.
    """
    for token, _ in sampling.logit_bias:
        if token >= vocabulary.token_count:
            raise InvalidRequest(f"token ids must be from 0 to {vocabulary.token_count - 1}", "logit_bias")


def mark_tokens(marks: Sequence[str], vocabulary: Vocabulary) -> dict[int, bytes]:
    """The tokens among `marks`, with their texts; a mark of several tokens is ordinary text."""
    found = {}
    for mark in marks:
        tokens = vocabulary.tokenize(mark, add_special=False, parse_special=True)
        if len(tokens) == 1:
            found[tokens[0]] = mark.encode()
    return found


def common_length(held: Sequence[int], prompt: Sequence[int]) -> int:
    """Length of the longest beginning that both share."""
    for index, (left, right) in enumerate(zip(held, prompt, strict=False)):
        if left != right:
            return index
    return min(len(held), len(prompt))
