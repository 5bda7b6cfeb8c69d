"""From an answer's text to OpenAI's parts, as early as each is certain: thinking, text, calls of tools.

What comes out does not depend on where the pieces of text end: joined, it is what the whole answer gives.
"""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass

from stratad import journal
from stratad.chat.answer_format import AnswerParts, AnswerPlan, ToolCall

# Mistral's templates take ids of nine letters and digits only, and others take any.
_CALL_ID_LETTERS = string.ascii_letters + string.digits
_CALL_ID_LENGTH = 9


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of the call `index`: first its id and name, then pieces of its arguments."""

    index: int
    arguments: str
    call_id: str | None = None
    name: str | None = None


Delta = ReasoningDelta | ContentDelta | CallDelta


class AnswerReader:
    """Reads one answer by its plan."""

    def __init__(self, plan: AnswerPlan) -> None:
        self._plan = plan
        self._text = ""
        # What has gone out.
        self._reasoning = ""
        self._content = ""
        self._calls: list[ToolCall] = []

    @property
    def answer(self) -> AnswerParts:
        """Everything that has come out so far."""
        return AnswerParts(self._reasoning, self._content, tuple(self._calls))

    def push(self, text: str) -> list[Delta]:
        """What more of the answer's text makes certain."""
        self._text += text
        try:
            parts = self._plan.parse(self._text, is_partial=True)
        except ValueError:
            return []  # nothing of it can be read yet
        return self._deltas(parts, is_whole=False)

    def finish(self, *, is_cut: bool) -> list[Delta]:
        """The rest, when there is no more text; `is_cut` when the model had not come to its end."""
        return self._deltas(self._last_parts(is_cut=is_cut), is_whole=True)

    def _last_parts(self, *, is_cut: bool) -> AnswerParts:
        """The whole answer's parts; an answer against its own format is text where nothing better is known."""
        for is_partial in (True,) if is_cut else (False, True):
            try:
                parts = self._plan.parse(self._text, is_partial=is_partial)
            except ValueError:
                continue
            if parts != AnswerParts() or not self._text:
                return parts
        if self.answer == AnswerParts() and self._text.strip() and not is_cut:
            journal.warn("server", "an answer does not follow the model's own format; it is given as text")
            return AnswerParts(content=self._text)
        return self.answer

    def _deltas(self, parts: AnswerParts, *, is_whole: bool) -> list[Delta]:
        deltas: list[Delta] = []
        if more := _more(self._reasoning, parts.reasoning):
            self._reasoning += more
            deltas.append(ReasoningDelta(more))
        if more := _more(self._content, parts.content):
            self._content += more
            deltas.append(ContentDelta(more))
        for index, call in enumerate(parts.tool_calls):
            # A name may still grow until something follows it.
            is_named = is_whole or bool(call.arguments) or index + 1 < len(parts.tool_calls)
            if is_named and call.name:
                deltas += self._call_deltas(index, call)
        return deltas

    def _call_deltas(self, index: int, call: ToolCall) -> list[Delta]:
        if index > len(self._calls):
            return []
        if index == len(self._calls):
            call_id = call.call_id or _new_call_id()
            self._calls.append(ToolCall(call_id, call.name, call.arguments))
            return [CallDelta(index, call.arguments, call_id, call.name)]
        sent = self._calls[index]
        more = _more(sent.arguments, call.arguments)
        if not more:
            return []
        self._calls[index] = ToolCall(sent.call_id, sent.name, sent.arguments + more)
        return [CallDelta(index, more)]


def _more(sent: str, text: str) -> str:
    """What `text` has beyond what was sent; nothing while it is read otherwise than before."""
    return text[len(sent) :] if text.startswith(sent) else ""


def _new_call_id() -> str:
    return "".join(secrets.choice(_CALL_ID_LETTERS) for _ in range(_CALL_ID_LENGTH))
