"""From token bytes to text that may be sent: whole characters only, and nothing past a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Collects the bytes of one answer and gives out text as early as it is certain.

    A character split over tokens is held back until it is whole, and text that may become a stop string
    until it is known. What comes out does not depend on where the token borders lie: the stop string
    that is complete first ends the text, and of two complete at once the one that began earlier.
    """

    def __init__(self, stop_strings: Sequence[str] = ()) -> None:
        self._stop_strings = tuple(text for text in stop_strings if text)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._is_stopped = False

    @property
    def is_stopped(self) -> bool:
        """True once a stop string was found; later bytes are ignored."""
        return self._is_stopped

    def push(self, token_bytes: bytes) -> str:
        """The text that these bytes make certain; bytes that are not UTF-8 become U+FFFD."""
        if self._is_stopped:
            return ""
        self._held += self._decoder.decode(token_bytes)
        end = self._first_stop()
        if end is not None:
            self._is_stopped = True
            certain, self._held = self._held[:end], ""
            return certain
        held_length = self._undecided_length()
        certain, self._held = (
            self._held[: len(self._held) - held_length],
            self._held[len(self._held) - held_length :],
        )
        return certain

    def finish(self) -> str:
        """The text still held back when the answer ends; a character cut in the middle is dropped."""
        held, self._held = self._held, ""
        return "" if self._is_stopped else held

    def _first_stop(self) -> int | None:
        """Where the stop string begins that is complete first; None when none is complete."""
        found = []
        for text in self._stop_strings:
            start = self._held.find(text)
            if start >= 0:
                found.append((start + len(text), start))
        return min(found)[1] if found else None

    def _undecided_length(self) -> int:
        """Length of the longest end of the held text that begins some stop string."""
        return max((_overlap_length(self._held, text) for text in self._stop_strings), default=0)


def _overlap_length(text: str, stop_string: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop_string`."""
    for length in range(min(len(text), len(stop_string) - 1), 0, -1):
        if stop_string.startswith(text[-length:]):
            return length
    return 0
