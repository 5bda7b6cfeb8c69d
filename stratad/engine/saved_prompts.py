"""Saved prompts on disk: what slots and prompt cache hold when the daemon stops, for its next start.

One file of the state directory, replaced in one step. Its header names version, fingerprint and every entry's sizes;
then come the entries, longest unused first, each with a checksum. What belongs to another model, build or number of
slots, or is damaged, is ignored and said so: a start never fails for it.

    magic, header bytes (u64) and their CRC-32 (u32), header (JSON)
    per entry: tokens (int32), state, CRC-32 of both (u32); numbers are little-endian
"""

from __future__ import annotations

import json
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from stratad.replaced_file import replaced_file

FILE_NAME = "prompts.bin"
_DRAFT_NAME = "prompts.bin.draft"
_MAGIC = b"stratad prompts\n"
_VERSION = 1
_FRONT = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_TOKEN_TYPE = np.dtype("<i4")
# A header has some 60 bytes for an entry; more is no header of ours.
_MAX_HEADER_BYTES = 1 << 20


class SavedPromptsUnusable(Exception):
    """The file, or the rest of it, does not fit or is damaged; the text says why."""


@dataclass(frozen=True, slots=True)
class SavedPromptsPlace:
    """Where prompts are saved, for whom, and within how many bytes of disk."""

    directory: Path
    fingerprint: str
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """Sizes of one entry: so many tokens and bytes of state, which can be cut from `first_cut` on."""

    tokens: int
    state_bytes: int
    first_cut: int

    @property
    def file_bytes(self) -> int:
        """What it takes of the file, beside its part of the header."""
        return self.tokens * _TOKEN_TYPE.itemsize + self.state_bytes + _CHECKSUM.size


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """An entry to save; `copy_state` writes its state into a buffer of `record.state_bytes`."""

    record: PromptRecord
    tokens: npt.NDArray[np.int32]
    copy_state: Callable[[memoryview], None]


def save_prompts(place: SavedPromptsPlace, prompts: Sequence[StoredPrompt]) -> int:
    """Replaces the file by these prompts, the last used first, as many as the limit allows; gives how many.

    Raises:
        OSError: The directory cannot be written or the disk is full; the former file is unchanged then.
    """
    kept = _within(place, prompts)
    # Prompts are private.
    with replaced_file(place.directory / FILE_NAME, 0o600, _DRAFT_NAME) as file:
        file.write(_header(place.fingerprint, [prompt.record for prompt in kept]))
        for prompt in kept:
            _write_prompt(file, prompt)
    _sync_directory(place.directory)
    return len(kept)


def load_prompts(place: SavedPromptsPlace) -> Iterator[tuple[PromptRecord, int, BinaryPrompt]]:
    """Gives every prompt of the file, longest unused first, with how many follow; none when there is no file.

    Each must be read before the next is asked for.

    Raises:
        SavedPromptsUnusable: It does not fit or is damaged; what was given before is good.
    """
    try:
        descriptor = os.open(place.directory / FILE_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SavedPromptsUnusable(f"it cannot be opened: {error.strerror}") from error
    with _opened(descriptor) as file:
        records = _read_header(file, place)
        for index, record in enumerate(records):
            yield record, len(records) - index - 1, BinaryPrompt(file, record)


@dataclass(frozen=True, slots=True)
class BinaryPrompt:
    """An entry of an open file, of which nothing has been read."""

    file: BinaryIO
    record: PromptRecord

    def read(self, state: memoryview) -> npt.NDArray[np.int32]:
        """Reads the state into a buffer of `record.state_bytes`, and gives the tokens.

        Raises:
            SavedPromptsUnusable: The entry is damaged; the buffer's content means nothing then.
        """
        tokens = bytearray(self.record.tokens * _TOKEN_TYPE.itemsize)
        checksum = bytearray(_CHECKSUM.size)
        try:
            is_whole = all(_read_into(self.file, memoryview(part)) for part in (tokens, state, checksum))
        except OSError as error:
            raise SavedPromptsUnusable(f"it cannot be read: {error.strerror}") from error
        if not is_whole or _CHECKSUM.unpack(checksum)[0] != zlib.crc32(state, zlib.crc32(tokens)):
            raise SavedPromptsUnusable("an entry is damaged")
        return np.frombuffer(tokens, dtype=_TOKEN_TYPE).astype(np.int32)


def _within(place: SavedPromptsPlace, prompts: Sequence[StoredPrompt]) -> list[StoredPrompt]:
    """Those of the prompts that the limit allows, the last used preferred, and the longest unused first."""
    kept: list[StoredPrompt] = []
    size_bytes = len(_header(place.fingerprint, []))
    for prompt in prompts:
        # Its place in the header's list, with the comma after the first, and its own part of the file.
        added_bytes = len(_json(asdict(prompt.record))) + bool(kept) + prompt.record.file_bytes
        if size_bytes + added_bytes <= place.limit_bytes:
            kept.append(prompt)
            size_bytes += added_bytes
    return kept[::-1]


def _header(fingerprint: str, records: Sequence[PromptRecord]) -> bytes:
    content = _json(
        {
            "version": _VERSION,
            "fingerprint": fingerprint,
            "prompts": [asdict(record) for record in records],
        }
    )
    return _MAGIC + _FRONT.pack(len(content), zlib.crc32(content)) + content


def _json(document: dict[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _opened(descriptor: int) -> BinaryIO:
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_uid in (os.getuid(), 0):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise SavedPromptsUnusable("it is not a file of this user's own")


def _read_header(file: BinaryIO, place: SavedPromptsPlace) -> list[PromptRecord]:
    size_bytes_found = os.fstat(file.fileno()).st_size
    front = file.read(len(_MAGIC) + _FRONT.size)
    if len(front) < len(_MAGIC) + _FRONT.size or not front.startswith(_MAGIC):
        raise SavedPromptsUnusable("it is no file of saved prompts")
    size_bytes, checksum = _FRONT.unpack(front[len(_MAGIC) :])
    content = file.read(size_bytes) if size_bytes <= _MAX_HEADER_BYTES else b""
    if len(content) != size_bytes or zlib.crc32(content) != checksum:
        raise SavedPromptsUnusable("its header is damaged")
    records = _records(content, place.fingerprint)
    if size_bytes_found != len(front) + size_bytes + sum(record.file_bytes for record in records):
        raise SavedPromptsUnusable("it is not as long as its header says")
    return records


def _records(content: bytes, fingerprint: str) -> list[PromptRecord]:
    try:
        document = json.loads(content)
        version, found, prompts = (document[key] for key in ("version", "fingerprint", "prompts"))
        records = [PromptRecord(**prompt) for prompt in prompts]
    except (ValueError, TypeError, KeyError) as error:
        raise SavedPromptsUnusable("its header is of another version") from error
    if version != _VERSION:
        raise SavedPromptsUnusable(f"its version is {version}, this daemon reads {_VERSION}")
    if found != fingerprint:
        raise SavedPromptsUnusable(
            "it was saved with another model, build, number of slots, row kernels or limits of batches"
        )
    return records


def _write_prompt(file: BinaryIO, prompt: StoredPrompt) -> None:
    tokens = prompt.tokens.astype(_TOKEN_TYPE).tobytes()
    state = memoryview(bytearray(prompt.record.state_bytes))
    prompt.copy_state(state)
    file.write(tokens)
    file.write(state)
    file.write(_CHECKSUM.pack(zlib.crc32(state, zlib.crc32(tokens))))


def _read_into(file: BinaryIO, buffer: memoryview) -> bool:
    """Fills the buffer; False when the file ends before."""
    while buffer:
        count = file.readinto(buffer)  # type: ignore[attr-defined]
        if not count:
            return False
        buffer = buffer[count:]
    return True


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
