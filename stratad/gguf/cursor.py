"""A cursor over the header bytes of a GGUF file that may be truncated, damaged or hostile."""

from __future__ import annotations

import re
import struct
from io import SEEK_END, FileIO
from pathlib import Path

from stratad.errors import ModelFileError

TEXT_LENGTH = struct.Struct("<Q")
WINDOW_BYTES = 1 << 18
# One match passes over a block of texts below 40 bytes, in the regular expression engine instead of a loop: a
# fourth of the time, which is a fifth of all that `stratactl plan` takes. Every alternative begins with another
# byte, the text's length, so no input makes it backtrack.
BLOCK_TEXTS = 256
SHORT_TEXTS = re.compile(
    b"(?s:%s){%d}"
    % (
        b"|".join(re.escape(bytes([length])) + rb"\0\0\0\0\0\0\0.{%d}" % length for length in range(40)),
        BLOCK_TEXTS,
    )
)


class GgufCursor:
    """Reads numbers and texts front to back through one bounded window of the file.

    Nothing is read or kept before its size has been compared with the bytes that are left. A mistake in the
    file is a ModelFileError with the offset it lies at; readers build on this by inheritance.
    """

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path = path
        self._file = file
        self._file_bytes = file.seek(0, SEEK_END)
        self._window = b""
        self._window_offset = 0
        self._offset = 0

    def _text(self, what: str, longest_bytes: int) -> str:
        start = self._offset
        length = self._length(what)
        if length > longest_bytes:
            self._offset = start
            raise self._damage(f"{what} claims {length} bytes", f"at most {longest_bytes}")
        try:
            return self._bytes(length, what).decode("utf-8")
        except UnicodeDecodeError:
            self._offset = start
            raise self._damage(f"{what} is not UTF-8", "UTF-8 text") from None

    def _length(self, what: str) -> int:
        start = self._offset
        length = self._number(8, f"the length of {what}")
        if length > self._file_bytes - self._offset:
            left = self._file_bytes - self._offset
            self._offset = start
            raise self._damage(f"{what} claims {length} bytes", f"at most {left}, which are left")
        return length

    def _number(self, size_bytes: int, what: str) -> int:
        return int.from_bytes(self._bytes(size_bytes, what), "little")

    def _bytes(self, size_bytes: int, what: str) -> bytes:
        self._fill(size_bytes, what)
        place = self._offset - self._window_offset
        self._offset += size_bytes
        return self._window[place : place + size_bytes]

    def _fill(self, size_bytes: int, what: str) -> None:
        """Move the window so that the next bytes are in it.

        Raises:
            ModelFileError: When the file ends before them.
        """
        place = self._offset - self._window_offset
        if place >= 0 and place + size_bytes <= len(self._window):
            return
        if size_bytes > self._file_bytes - self._offset:
            raise self._damage(f"the file ends inside {what}", f"{size_bytes} more bytes")
        self._file.seek(self._offset)
        chunks, wanted = [], max(WINDOW_BYTES, size_bytes)
        while wanted > 0 and (chunk := self._file.read(wanted)):
            chunks.append(chunk)
            wanted -= len(chunk)
        self._window, self._window_offset = b"".join(chunks), self._offset
        if len(self._window) < size_bytes:
            raise self._damage(f"the file ends inside {what}", f"{size_bytes} more bytes")

    def _damage(
        self, because: str, expected: str, remedy: str = "download the file again and compare its checksum"
    ) -> ModelFileError:
        return ModelFileError(
            tried=f"reading the GGUF header of {self._path}",
            because=because,
            values={"offset": self._offset, "expected": expected, "file_bytes": self._file_bytes},
            remedy=remedy,
        )

    def _skip_texts(self, count: int) -> None:
        """Pass over an array of texts: a vocabulary has 150,000, and as many merges."""
        left = count
        while left:
            left -= self._skip_block(left) or self._skip_some(left)

    def _skip_block(self, left: int) -> int:
        """Pass over a whole block of short texts inside the window at once; give its size, or 0."""
        if left < BLOCK_TEXTS:
            return 0
        block = SHORT_TEXTS.match(self._window, self._offset - self._window_offset)
        if block is None:
            return 0
        self._offset = self._window_offset + block.end()
        return BLOCK_TEXTS

    def _skip_some(self, left: int) -> int:
        """Pass over texts one by one, a block at most and inside the window; give how many, at least 1."""
        unpack = TEXT_LENGTH.unpack_from
        self._fill(8, "a text's length")
        window, place = self._window, self._offset - self._window_offset
        last = len(window) - 8
        start, skipped = place, 0
        while skipped < min(left, BLOCK_TEXTS) and place <= last:
            start = place
            place += 8 + unpack(window, place)[0]
            skipped += 1
        self._offset = self._window_offset + place
        if self._offset > self._file_bytes:
            length = place - start - 8
            self._offset = self._window_offset + start
            raise self._damage(
                f"a text claims {length} bytes", f"at most {self._file_bytes - self._offset - 8}"
            )
        return skipped
