"""What a prompt's answer is when nobody else asks, and whether an answer given under load is that one.

How many rows share a call depends on who else asks, and moves the last bits of the logits: ggml and the row kernels sum
several rows in another order than one. So a greedy choice between two tokens that the model finds all but equally
likely may turn out the other way, and the text after it is another. Everything before the first such place must be
the same, and nowhere else may an answer part from the one given alone. Another client's text, a lost token or memory
of another sequence would part where one token is clearly the likeliest.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# Nats between the two likeliest tokens below which rounding may exchange them. Measured on the demo model with AVX-512
# kernels: answers of one prompt part at gaps up to 0.01; a wrong sequence parts at the first clear choice.
NEAR_TIE_NATS = 0.05


class Likeness(StrEnum):
    """How an answer compares with the one given alone."""

    SAME = "same"
    NEAR_TIE = "near tie"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class SoloToken:
    """A token of the answer given alone, the next likely one in its place, and how much less likely that is."""

    text: str
    other_text: str
    gap_nats: float


@dataclass(frozen=True, slots=True)
class SoloAnswer:
    """A prompt and its greedy answer of `max_tokens`, given while nobody else asked."""

    prompt: str
    max_tokens: int
    tokens: tuple[SoloToken, ...]

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(token.text for token in self.tokens)

    def compare(self, text: str) -> tuple[Likeness, float]:
        """How a complete answer compares, and the gap in nats where it parts (0 where it does not)."""
        if text == self.text:
            return Likeness.SAME, 0.0
        rest = text
        for token in self.tokens:
            if rest.startswith(token.text) and rest != token.text:
                rest = rest[len(token.text) :]
                continue
            is_tie = token.gap_nats <= NEAR_TIE_NATS and rest.startswith(token.other_text)
            return (Likeness.NEAR_TIE if is_tie else Likeness.WRONG), token.gap_nats
        # It goes on where the other one ended.
        return Likeness.WRONG, self.tokens[-1].gap_nats if self.tokens else 0.0
