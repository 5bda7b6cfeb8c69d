"""Answers in OpenAI's shapes: whole, and as chunks of a stream."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stratad.chat.answer_format import AnswerParts
from stratad.chat.answer_reader import AnswerReader, ContentDelta, Delta, ReasoningDelta
from stratad.engine.generation import ChosenToken, Finished, TextPiece
from stratad.server.likelihoods import chat_likelihoods, completion_likelihoods

STREAM_END = "data: [DONE]\n\n"


def event_block(document: object) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n\n"


def joined(pieces: Collection[TextPiece]) -> TextPiece:
    """A whole answer of its pieces."""
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    return TextPiece("".join(piece.text for piece in pieces), tokens)


def usage_document(finished: Finished) -> dict[str, object]:
    """Token counts as OpenAI names them; reused prompt tokens count as prompt and as cached."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.timings.predicted_tokens,
        "total_tokens": finished.prompt_tokens + finished.timings.predicted_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.timings.cached_tokens},
    }


@dataclass(frozen=True, slots=True)
class _Frame:
    """What stands around the choices, the same in every part of one answer."""

    kind: str
    answer_id: str
    model: str
    created_seconds: int

    def around(self, choices: list[dict[str, object]], finished: Finished | None = None) -> dict[str, object]:
        """A document with these choices; with usage and timings when the answer is finished."""
        document: dict[str, object] = {
            "id": self.answer_id,
            "object": self.kind,
            "created": self.created_seconds,
            "model": self.model,
            "choices": choices,
        }
        if finished is None:
            return document
        return {**document, "usage": usage_document(finished), "timings": finished.timings.as_document()}


class Shape(Protocol):
    """The shapes of one answer: whole, and as the chunks of a stream."""

    def whole(self, answer: TextPiece, finished: Finished) -> dict[str, object]:
        """The answer in one piece."""

    def opening(self) -> list[dict[str, object]]:
        """The chunks before the first text."""

    def pieces(self, piece: TextPiece) -> list[dict[str, object]]:
        """Chunks with what more text makes certain."""

    def closing(self, finished: Finished) -> list[dict[str, object]]:
        """The last chunks; the last one has the finish reason and the timings."""

    def usage(self, finished: Finished) -> dict[str, object]:
        """The chunk that `stream_options.include_usage` adds."""


class ChatShape:
    """`Shape` of /v1/chat/completions: whole answers have a message, chunks a delta."""

    def __init__(self, model: str, reader: AnswerReader) -> None:
        answer_id, now_seconds = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
        self._whole = _Frame("chat.completion", answer_id, model, now_seconds)
        self._chunk = _Frame("chat.completion.chunk", answer_id, model, now_seconds)
        self._reader = reader
        # Tokens whose text is not certain yet.
        self._untold: tuple[ChosenToken, ...] = ()

    def whole(self, answer: TextPiece, finished: Finished) -> dict[str, object]:
        """The answer in one piece."""
        self._reader.push(answer.text)
        self._reader.finish(is_cut=finished.is_cut)
        choice = {
            "index": 0,
            "message": _message(self._reader.answer),
            "logprobs": chat_likelihoods(answer.tokens),
            "finish_reason": self._reason(finished),
        }
        return self._whole.around([choice], finished)

    def opening(self) -> list[dict[str, object]]:
        """One chunk, with the role."""
        return [self._delta({"role": "assistant", "content": ""})]

    def pieces(self, piece: TextPiece) -> list[dict[str, object]]:
        """Chunks with more thinking, text or calls; the tokens' likelihoods come with the first."""
        return self._chunks(self._reader.push(piece.text), piece.tokens)

    def closing(self, finished: Finished) -> list[dict[str, object]]:
        """The chunk with the finish reason and the timings, after what is certain only now."""
        rest = self._chunks(self._reader.finish(is_cut=finished.is_cut), ())
        last = self._delta({}, self._reason(finished), self._take_untold())
        return [*rest, {**last, "timings": finished.timings.as_document()}]

    def usage(self, finished: Finished) -> dict[str, object]:
        """The chunk that `stream_options.include_usage` adds."""
        return self._chunk.around([], finished)

    def _reason(self, finished: Finished) -> str:
        return (
            "tool_calls" if finished.reason == "stop" and self._reader.answer.tool_calls else finished.reason
        )

    def _chunks(self, deltas: Sequence[Delta], tokens: Sequence[ChosenToken]) -> list[dict[str, object]]:
        self._untold += tuple(tokens)
        return [self._delta(_delta_document(delta), None, self._take_untold()) for delta in deltas]

    def _take_untold(self) -> tuple[ChosenToken, ...]:
        untold, self._untold = self._untold, ()
        return untold

    def _delta(
        self, delta: Mapping[str, object], reason: str | None = None, tokens: Sequence[ChosenToken] = ()
    ) -> dict[str, object]:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": chat_likelihoods(tokens),
            "finish_reason": reason,
        }
        return self._chunk.around([choice])


def _message(answer: AnswerParts) -> dict[str, object]:
    """The assistant's message; thinking and calls are there only where there are some."""
    message: dict[str, object] = {
        "role": "assistant",
        "content": answer.content if answer.content or not answer.tool_calls else None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.tool_calls
        ]
    return message


def _delta_document(delta: Delta) -> dict[str, object]:
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text}
    if isinstance(delta, ContentDelta):
        return {"content": delta.text}
    call: dict[str, object] = {"index": delta.index, "function": {"arguments": delta.arguments}}
    if delta.name is not None:
        call |= {
            "id": delta.call_id,
            "type": "function",
            "function": {"name": delta.name, "arguments": delta.arguments},
        }
    return {"tool_calls": [call]}


class CompletionShape:
    """`Shape` of /v1/completions, where chunks look like whole answers."""

    def __init__(self, model: str) -> None:
        self._frame = _Frame("text_completion", f"cmpl-{secrets.token_hex(12)}", model, int(time.time()))
        self._sent_length = 0

    def whole(self, answer: TextPiece, finished: Finished) -> dict[str, object]:
        """The answer in one piece."""
        likelihoods = completion_likelihoods(answer, 0)
        return self._frame.around([_text_choice(answer.text, finished.reason, likelihoods)], finished)

    def opening(self) -> list[dict[str, object]]:
        """No chunk."""
        return []

    def pieces(self, piece: TextPiece) -> list[dict[str, object]]:
        """A chunk with more text."""
        likelihoods = completion_likelihoods(piece, self._sent_length)
        self._sent_length += len(piece.text)
        return [self._frame.around([_text_choice(piece.text, None, likelihoods)])]

    def closing(self, finished: Finished) -> list[dict[str, object]]:
        """The chunk with the finish reason and the timings."""
        frame = self._frame.around([_text_choice("", finished.reason)])
        return [{**frame, "timings": finished.timings.as_document()}]

    def usage(self, finished: Finished) -> dict[str, object]:
        """The chunk that `stream_options.include_usage` adds."""
        return self._frame.around([], finished)


def _text_choice(
    text: str, reason: str | None, likelihoods: dict[str, object] | None = None
) -> dict[str, object]:
    return {"index": 0, "text": text, "logprobs": likelihoods, "finish_reason": reason}
