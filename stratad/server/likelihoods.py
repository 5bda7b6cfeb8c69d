"""Likelihoods of tokens in OpenAI's two shapes; None where none were asked for."""

from __future__ import annotations

from collections.abc import Sequence

from stratad.engine.generation import ChosenToken, LikelyToken, TextPiece


def chat_likelihoods(tokens: Sequence[ChosenToken]) -> dict[str, object] | None:
    """`logprobs` of a chat's choice: every token with its bytes, and the likeliest in its place."""
    if not tokens:
        return None
    content = [
        {**_entry(token.chosen), "top_logprobs": [_entry(likely) for likely in token.likeliest]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_likelihoods(piece: TextPiece, start: int) -> dict[str, object] | None:
    """`logprobs` of a completion's choice: columns of the same length; `start` is where the piece begins."""
    if not piece.tokens:
        return None
    texts = [_text(token.chosen) for token in piece.tokens]
    offsets = [start + sum(map(len, texts[:index])) for index in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [token.chosen.log_probability for token in piece.tokens],
        "top_logprobs": [_by_text(token.likeliest) for token in piece.tokens],
        "text_offset": offsets,
    }


def _by_text(likeliest: Sequence[LikelyToken]) -> dict[str, float]:
    """Bytes that are no character by themselves look alike as text: the likeliest of them counts."""
    found: dict[str, float] = {}
    for token in likeliest:
        found.setdefault(_text(token), token.log_probability)
    return found


def _entry(token: LikelyToken) -> dict[str, object]:
    return {"token": _text(token), "logprob": token.log_probability, "bytes": list(token.token_bytes)}


def _text(token: LikelyToken) -> str:
    return token.token_bytes.decode("utf-8", errors="replace")
