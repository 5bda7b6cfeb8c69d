"""Reads the header of a GGUF file: metadata and tensor list, never tensor data.

The file may be truncated, damaged or hostile. Every count is checked against the bytes that are left before
anything is kept, names and depth are bounded, arrays of text are skipped, and the memory used stays near the
size of the tensor list itself. What upstream's loader (ggml/src/gguf.cpp at ggml 0.25) refuses is refused
here too, with the offset.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import MappingProxyType

from stratad.errors import ModelFileError
from stratad.gguf.cursor import TEXT_LENGTH, GgufCursor
from stratad.gguf.tensor_types import GGML_TYPES, GgmlType

Scalar = int | float | bool | str

# Limits. The largest header known (Kimi-K2, 61 layers) has 1,100 tensors; old layouts with one tensor for
# each expert reach 50,000. Key length is the format's, name length is ggml's GGML_MAX_NAME - 1.
LARGEST_TENSOR_COUNT = 262_144
LARGEST_KEY_COUNT = 65_536
LONGEST_KEY_BYTES = 65_535
LONGEST_TENSOR_NAME_BYTES = 63
MOST_DIMENSIONS = 4
# Texts above this are skipped; the longest useful one, a chat template, has some 100 KiB.
LONGEST_KEPT_TEXT_BYTES = 1 << 20
# All kept texts and numbers together: many values below the limits above must not fill memory either.
KEPT_METADATA_BYTES = 16 << 20
LARGEST_NAME_BYTES = 16 << 20
# Per-layer settings (head counts, expert counts) are arrays of a few hundred numbers; token scores have
# 250,000.
LONGEST_KEPT_ARRAY = 4096
DEFAULT_ALIGNMENT = 32
LARGEST_ALIGNMENT = 1 << 20
SMALLEST_ENTRY_BYTES = 8 + 1 + 4
SMALLEST_TENSOR_ENTRY_BYTES = 8 + 1 + 4 + 4 + 8
LARGEST_ELEMENT_COUNT = 2**63 - 1

_TEXT_TYPE = 8
_ARRAY_TYPE = 9
_BOOL_TYPE = 7
_SCALARS: Mapping[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}


@dataclass(frozen=True, slots=True)
class SkippedValue:
    """A metadata value that was checked and passed over: an array of text, or one too large to keep.

    `count` is the number of elements, or the bytes of a long text.
    """

    type_id: int
    count: int


MetadataValue = Scalar | tuple[Scalar, ...] | SkippedValue


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of the list: shape innermost first as GGUF writes it, `offset` from the file's start."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A checked header. Every tensor's data lies inside the file and none overlap."""

    path: Path
    version: int
    file_bytes: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorEntry, ...]
    data_offset: int


def read_gguf_header(path: Path) -> GgufHeader:
    """Give the checked header of one GGUF file.

    Raises:
        ModelFileError: When the file cannot be opened, is no GGUF version 2 or 3 file, or its header
            contradicts itself or the file's size. The error names the path, the offset and what was expected.
    """
    try:
        # Opening a pipe would wait for a writer, so the kind is checked first.
        if not stat.S_ISREG(path.stat().st_mode):
            raise _unreadable(path, "not a regular file")
        with path.open("rb", buffering=0) as file:
            return _HeaderReader(path, file).read()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, because: str) -> ModelFileError:
    return ModelFileError(
        tried=f"reading {path}",
        because=because,
        values={"path": path},
        remedy="check the path and that the service's user may read it",
    )


class _HeaderReader(GgufCursor):
    """Walks a header once, front to back."""

    def __init__(self, path: Path, file: FileIO) -> None:
        super().__init__(path, file)
        self._kept_bytes = 0
        self._name_bytes = 0

    def read(self) -> GgufHeader:
        version = self._version()
        tensor_count = self._count("tensors", LARGEST_TENSOR_COUNT, SMALLEST_TENSOR_ENTRY_BYTES)
        key_count = self._count("metadata entries", LARGEST_KEY_COUNT, SMALLEST_ENTRY_BYTES)
        metadata: dict[str, MetadataValue] = {}
        for _ in range(key_count):
            key = self._text("a metadata key", LONGEST_KEY_BYTES)
            if not key or key in metadata:
                raise self._damage(
                    f"metadata key {key!r} is {'repeated' if key else 'empty'}", "unique names"
                )
            self._name_bytes += len(key)
            if self._name_bytes > LARGEST_NAME_BYTES:
                raise self._damage("the metadata's names are too long", f"{LARGEST_NAME_BYTES} bytes in all")
            metadata[key] = self._value(self._number(4, "a value type"))
        alignment = self._alignment(metadata)
        entries = self._tensor_entries(tensor_count)
        data_offset = -(-self._offset // alignment) * alignment if entries else self._offset
        return GgufHeader(
            path=self._path,
            version=version,
            file_bytes=self._file_bytes,
            metadata=MappingProxyType(metadata),
            tensors=self._placed(entries, data_offset, alignment),
            data_offset=data_offset,
        )

    def _version(self) -> int:
        magic = self._bytes(4, "the magic number")
        if magic != b"GGUF":
            self._offset = 0
            raise self._damage(
                f"the file starts with {magic!r}", "b'GGUF'", remedy="give the path of a GGUF model file"
            )
        version = self._number(4, "the version")
        if version in (2, 3):
            return version
        self._offset = 4
        if version & 0xFFFF == 0:
            raise self._damage(
                "the file is big endian", "little endian", remedy="convert it with gguf_convert_endian.py"
            )
        if version == 1:
            raise self._damage(
                "GGUF version 1 is no longer read", "version 2 or 3", remedy="convert the model again"
            )
        raise self._damage(f"GGUF version {version} is not known", "version 2 or 3", remedy="update stratad")

    def _count(self, what: str, largest: int, smallest_bytes: int) -> int:
        start = self._offset
        count = self._number(8, f"the number of {what}")
        possible = (self._file_bytes - self._offset) // smallest_bytes
        if count > min(largest, possible):
            self._offset = start
            raise self._damage(f"the header claims {count} {what}", f"at most {min(largest, possible)}")
        return count

    def _value(self, type_id: int) -> MetadataValue:
        if type_id == _TEXT_TYPE:
            return self._text_value()
        if type_id == _ARRAY_TYPE:
            return self._array()
        scalar = self._scalar(type_id)
        value: Scalar = scalar.unpack(self._bytes(scalar.size, "a metadata value"))[0]
        return bool(value) if type_id == _BOOL_TYPE else value

    def _scalar(self, type_id: int) -> struct.Struct:
        scalar = _SCALARS.get(type_id)
        if scalar is None:
            self._offset -= 4
            raise self._damage(f"metadata type {type_id} is not known", "a GGUF value type")
        return scalar

    def _text_value(self) -> str | SkippedValue:
        length = self._length("a text value")
        if length > LONGEST_KEPT_TEXT_BYTES or not self._may_keep(length):
            self._offset += length
            return SkippedValue(_TEXT_TYPE, length)
        return self._bytes(length, "a text value").decode("utf-8", errors="replace")

    def _array(self) -> tuple[Scalar, ...] | SkippedValue:
        """Read an array; one inside another is refused, as by the engine, so depth is bounded at one."""
        type_id = self._number(4, "an array's element type")
        if type_id == _ARRAY_TYPE:
            self._offset -= 4
            raise self._damage("an array inside an array", "an array of numbers or texts")
        start = self._offset
        if type_id == _TEXT_TYPE:
            count = self._array_count(start, TEXT_LENGTH.size)
            self._skip_texts(count)
            return SkippedValue(_TEXT_TYPE, count)
        self._offset = start
        scalar = self._scalar(type_id)
        count = self._array_count(start, scalar.size)
        size_bytes = count * scalar.size
        if count > LONGEST_KEPT_ARRAY or not self._may_keep(size_bytes):
            self._offset += size_bytes
            return SkippedValue(type_id, count)
        values = tuple(item[0] for item in scalar.iter_unpack(self._bytes(size_bytes, "an array")))
        return tuple(map(bool, values)) if type_id == _BOOL_TYPE else values

    def _array_count(self, start: int, element_bytes: int) -> int:
        count = self._number(8, "an array's length")
        possible = (self._file_bytes - self._offset) // element_bytes
        if count > possible:
            self._offset = start
            raise self._damage(f"an array claims {count} elements", f"at most {possible} in the bytes left")
        return count

    def _may_keep(self, size_bytes: int) -> bool:
        # A Python number or short text takes some 40 bytes beside its content.
        if self._kept_bytes + size_bytes + 40 > KEPT_METADATA_BYTES:
            return False
        self._kept_bytes += size_bytes + 40
        return True

    def _alignment(self, metadata: Mapping[str, MetadataValue]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        is_power = (
            isinstance(alignment, int)
            and 0 < alignment <= LARGEST_ALIGNMENT
            and not alignment & (alignment - 1)
        )
        if not is_power or isinstance(alignment, bool) or not isinstance(alignment, int):
            raise self._damage(
                f"general.alignment is {alignment!r}", f"a power of two up to {LARGEST_ALIGNMENT}"
            )
        return alignment

    def _tensor_entries(self, count: int) -> list[tuple[str, tuple[int, ...], GgmlType, int]]:
        entries: list[tuple[str, tuple[int, ...], GgmlType, int]] = []
        names: set[str] = set()
        for _ in range(count):
            start = self._offset
            name = self._text("a tensor name", LONGEST_TENSOR_NAME_BYTES)
            if not name or name in names:
                self._offset = start
                raise self._damage(
                    f"tensor name {name!r} is {'repeated' if name else 'empty'}", "unique names"
                )
            names.add(name)
            shape = self._shape(name)
            entries.append((name, shape, self._type(name, shape), self._number(8, "a tensor's offset")))
        return entries

    def _shape(self, name: str) -> tuple[int, ...]:
        start = self._offset
        dimension_count = self._number(4, "a tensor's dimension count")
        if dimension_count > MOST_DIMENSIONS:
            self._offset = start
            raise self._damage(
                f"tensor {name!r} has {dimension_count} dimensions", f"at most {MOST_DIMENSIONS}"
            )
        shape = tuple(self._number(8, "a tensor's dimension") for _ in range(dimension_count))
        element_count = 1
        for length in shape:
            element_count *= max(length, 1)
        if element_count > LARGEST_ELEMENT_COUNT:
            self._offset = start
            raise self._damage(f"tensor {name!r} has shape {shape}", "fewer than 2**63 elements")
        return shape

    def _type(self, name: str, shape: tuple[int, ...]) -> GgmlType:
        type_id = self._number(4, "a tensor's type")
        ggml_type = GGML_TYPES.get(type_id)
        if ggml_type is None:
            self._offset -= 4
            raise self._damage(
                f"tensor {name!r} has type {type_id}", "a type of ggml 0.25", remedy="update stratad"
            )
        if (shape[0] if shape else 1) % ggml_type.block_elements:
            self._offset -= 4
            expected = f"a multiple of {ggml_type.block_elements} for {ggml_type.name}"
            raise self._damage(f"tensor {name!r} has rows of {shape[0] if shape else 1} elements", expected)
        return ggml_type

    def _placed(
        self, entries: list[tuple[str, tuple[int, ...], GgmlType, int]], data_offset: int, alignment: int
    ) -> tuple[TensorEntry, ...]:
        """Check that tensors follow each other without gap or overlap and end inside the file."""
        tensors = []
        expected = 0
        for name, shape, ggml_type, offset in entries:
            if offset != expected:
                raise self._damage(f"tensor {name!r} starts at {offset} of the data", f"{expected}")
            size_bytes = _tensor_bytes(shape, ggml_type)
            end = data_offset + offset + size_bytes
            if end > self._file_bytes:
                self._offset = data_offset + offset
                raise self._damage(
                    f"the file ends at byte {self._file_bytes}, inside tensor {name!r}", f"{end} bytes"
                )
            tensors.append(TensorEntry(name, shape, ggml_type.name, data_offset + offset, size_bytes))
            expected = -(-(offset + size_bytes) // alignment) * alignment
        return tuple(tensors)


def _tensor_bytes(shape: tuple[int, ...], ggml_type: GgmlType) -> int:
    element_count = 1
    for length in shape:
        element_count *= length
    return element_count // ggml_type.block_elements * ggml_type.block_bytes
