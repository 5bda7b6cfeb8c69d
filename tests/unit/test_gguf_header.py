from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratad.errors import ModelFileError, render_error
from stratad.gguf.header import (
    LONGEST_KEPT_ARRAY,
    LONGEST_KEPT_TEXT_BYTES,
    LONGEST_TENSOR_NAME_BYTES,
    GgufHeader,
    SkippedValue,
    read_gguf_header,
)
from stratad.gguf.tensor_types import GGML_TYPES
from tests.support.gguf_bytes import (
    ARRAY,
    TEXT,
    TYPE_IDS,
    UINT32,
    TensorShape,
    entry,
    gguf_bytes,
    moe_entries,
    moe_file,
    moe_tensors,
    text,
)

MEMORY_BOUND_BYTES = 8 << 20


def header_of(tmp_path: Path, content: bytes) -> GgufHeader:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return read_gguf_header(path)


def refusal_of(tmp_path: Path, content: bytes) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        header_of(tmp_path, content)
    assert str(tmp_path / "model.gguf") in caught.value.tried
    assert caught.value.remedy
    return caught.value


def with_count(content: bytes, at: int, count: int) -> bytes:
    return content[:at] + struct.pack("<Q", count) + content[at + 8 :]


def test_a_valid_file_reads_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    header = header_of(tmp_path, moe_file())
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    theirs = [(t.name, tuple(map(int, t.shape)), t.data_offset, t.n_bytes) for t in reader.tensors]
    assert [(t.name, t.shape, t.offset, t.size_bytes) for t in header.tensors] == theirs
    assert header.metadata["qwen3moe.expert_count"] == 8
    assert header.metadata["general.architecture"] == "qwen3moe"
    assert header.metadata["tokenizer.ggml.tokens"] == SkippedValue(TEXT, 3)


def test_every_type_has_the_sizes_of_the_gguf_package() -> None:
    # Q8_1 never stands in a file, and the package still has its size of before 2024.
    theirs = {int(t): (t.name, *size) for t, size in gguf.GGML_QUANT_SIZES.items() if t.name != "Q8_1"}
    ours = {i: (t.name, t.block_elements, t.block_bytes) for i, t in GGML_TYPES.items()}
    assert theirs.items() <= ours.items()
    assert set(ours) - set(theirs) == {TYPE_IDS["Q8_1"], TYPE_IDS["Q2_0"]}


@pytest.mark.parametrize("version", [2, 3])
def test_versions_2_and_3_are_read(tmp_path: Path, version: int) -> None:
    assert header_of(tmp_path, gguf_bytes([], version=version)).version == version


@pytest.mark.parametrize(
    ("version", "words"),
    [(1, "version 1"), (4, "version 4"), (0x03000000, "big endian"), (0, "big endian")],
)
def test_other_versions_are_refused_by_name(tmp_path: Path, version: int, words: str) -> None:
    assert words in refusal_of(tmp_path, gguf_bytes([], version=version)).because


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    error = refusal_of(tmp_path, b"PK\x03\x04 something else")
    assert error.values["expected"] == "b'GGUF'"
    assert error.values["offset"] == 0
    assert "\x03" not in render_error(error)


def test_every_truncation_is_refused_and_named(tmp_path: Path) -> None:
    content = moe_file()
    for length in [*range(0, 200, 7), 600, 1000, len(content) // 2, len(content) - 1]:
        error = refusal_of(tmp_path, content[:length])
        assert "ends" in error.because or "claims" in error.because
    assert header_of(tmp_path, content).file_bytes == len(content)


def test_the_last_tensor_may_end_without_padding(tmp_path: Path) -> None:
    content = gguf_bytes([], [TensorShape("t", (5,))])
    start = len(content) - 32
    assert header_of(tmp_path, content[: start + 20]).tensors[0].size_bytes == 20
    assert "inside tensor 't'" in refusal_of(tmp_path, content[: start + 19]).because


@pytest.mark.parametrize("at", [8, 16])
@pytest.mark.parametrize("count", [2**63, 2**64 - 1, 10**6, 20_000])
def test_counts_beyond_the_file_are_refused_before_anything_is_kept(
    tmp_path: Path, at: int, count: int
) -> None:
    error = refusal_of(tmp_path, with_count(moe_file(), at, count))
    assert f"claims {count}" in error.because
    assert error.values["offset"] == at


def test_a_text_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    content = gguf_bytes([text("k") + struct.pack("<IQ", TEXT, 2**62) + b"abc"])
    assert "claims" in refusal_of(tmp_path, content).because


def test_an_array_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    for element_type in (UINT32, TEXT):
        content = gguf_bytes([text("k") + struct.pack("<IIQ", ARRAY, element_type, 2**62)])
        assert "elements" in refusal_of(tmp_path, content).because


def test_a_text_inside_an_array_may_not_pass_the_end(tmp_path: Path) -> None:
    body = struct.pack("<IIQ", ARRAY, TEXT, 2) + text("fine") + struct.pack("<Q", 2**40)
    assert "claims" in refusal_of(tmp_path, gguf_bytes([text("k") + body])).because


def test_arrays_inside_arrays_are_refused(tmp_path: Path) -> None:
    content = gguf_bytes([text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1)])
    assert "array inside an array" in refusal_of(tmp_path, content).because


@pytest.mark.parametrize("type_id", [13, 255, 2**32 - 1])
def test_unknown_value_types_are_refused(tmp_path: Path, type_id: int) -> None:
    assert (
        f"type {type_id}"
        in refusal_of(tmp_path, gguf_bytes([text("k") + struct.pack("<I", type_id)])).because
    )
    array = gguf_bytes([text("k") + struct.pack("<IIQ", ARRAY, type_id, 0)])
    assert f"type {type_id}" in refusal_of(tmp_path, array).because


def test_repeated_and_empty_names_are_refused(tmp_path: Path) -> None:
    assert "repeated" in refusal_of(tmp_path, gguf_bytes([entry("a", 1), entry("a", 2)])).because
    assert "empty" in refusal_of(tmp_path, gguf_bytes([entry("", 1)])).because
    assert "repeated" in refusal_of(tmp_path, gguf_bytes([], [TensorShape("t", (1,))] * 2)).because
    assert "empty" in refusal_of(tmp_path, gguf_bytes([], [TensorShape("", (1,))])).because


def test_tensor_names_are_as_long_as_the_engine_allows(tmp_path: Path) -> None:
    longest = "x" * LONGEST_TENSOR_NAME_BYTES
    assert header_of(tmp_path, gguf_bytes([], [TensorShape(longest, (1,))])).tensors[0].name == longest
    assert (
        "claims 64 bytes" in refusal_of(tmp_path, gguf_bytes([], [TensorShape(longest + "x", (1,))])).because
    )


def test_names_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    assert (
        "UTF-8"
        in refusal_of(tmp_path, gguf_bytes([text(b"\xff\xfe") + struct.pack("<II", UINT32, 1)])).because
    )


def test_long_values_are_passed_over_and_not_kept(tmp_path: Path) -> None:
    short, long = "x" * LONGEST_KEPT_TEXT_BYTES, "x" * (LONGEST_KEPT_TEXT_BYTES + 1)
    numbers = [1] * LONGEST_KEPT_ARRAY
    entries = [
        entry("short", short),
        entry("long", long),
        entry("few", numbers),
        entry("many", [*numbers, 1]),
    ]
    metadata = header_of(tmp_path, gguf_bytes(entries)).metadata
    assert metadata["short"] == short
    assert metadata["long"] == SkippedValue(TEXT, len(long))
    assert metadata["few"] == tuple(numbers)
    assert metadata["many"] == SkippedValue(UINT32, LONGEST_KEPT_ARRAY + 1)


def test_many_long_values_together_are_not_kept_either(tmp_path: Path) -> None:
    entries = [entry(f"k{number}", "x" * LONGEST_KEPT_TEXT_BYTES) for number in range(20)]
    metadata = header_of(tmp_path, gguf_bytes(entries)).metadata
    assert sum(isinstance(value, str) for value in metadata.values()) == 15
    assert metadata["k19"] == SkippedValue(TEXT, LONGEST_KEPT_TEXT_BYTES)


def test_names_of_metadata_together_are_bounded(tmp_path: Path) -> None:
    entries = [entry(f"{number:03}" + "x" * 65_000, 1) for number in range(260)]
    assert "names" in refusal_of(tmp_path, gguf_bytes(entries)).because
    assert len(header_of(tmp_path, gguf_bytes(entries[:250])).metadata) == 250


@pytest.mark.parametrize(("dimensions", "is_read"), [(0, True), (4, True), (5, False)])
def test_a_tensor_has_at_most_four_dimensions(tmp_path: Path, dimensions: int, is_read: bool) -> None:
    content = gguf_bytes([], [TensorShape("t", (1,) * dimensions)])
    if is_read:
        assert len(header_of(tmp_path, content).tensors[0].shape) == dimensions
    else:
        assert "5 dimensions" in refusal_of(tmp_path, content).because


def test_shapes_that_overflow_are_refused(tmp_path: Path) -> None:
    lengths = struct.pack("<I4Q", 4, 2**32, 2**31, 1, 1)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + lengths + struct.pack("<IQ", 0, 0) + bytes(64)
    assert "2**63" in str(refusal_of(tmp_path, head).values["expected"])


def test_zero_elements_do_not_hide_an_overflow(tmp_path: Path) -> None:
    lengths = struct.pack("<I3Q", 3, 2**62, 2**62, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + lengths + struct.pack("<IQ", 0, 0) + bytes(64)
    assert refusal_of(tmp_path, head).values["expected"] == "fewer than 2**63 elements"


@pytest.mark.parametrize("type_id", [4, 31, 43, 2**31])
def test_removed_and_unknown_tensor_types_are_refused(tmp_path: Path, type_id: int) -> None:
    head = (
        b"GGUF"
        + struct.pack("<IQQ", 3, 1, 0)
        + text("t")
        + struct.pack("<IQIQ", 1, 32, type_id, 0)
        + bytes(99)
    )
    assert f"type {type_id}" in refusal_of(tmp_path, head).because


def test_rows_are_whole_blocks(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t")
    wrong = head + struct.pack("<IQIQ", 1, 33, TYPE_IDS["Q8_0"], 0) + bytes(200)
    assert "multiple of 32" in str(refusal_of(tmp_path, wrong).values["expected"])


@pytest.mark.parametrize("offset", [1, 32, 2**63, 2**64 - 32])
def test_tensors_follow_each_other_without_gap_or_overlap(tmp_path: Path, offset: int) -> None:
    head = (
        b"GGUF"
        + struct.pack("<IQQ", 3, 1, 0)
        + text("t")
        + struct.pack("<IQIQ", 1, 4, 0, offset)
        + bytes(200)
    )
    assert f"starts at {offset}" in refusal_of(tmp_path, head).because


@pytest.mark.parametrize(
    ("alignment", "is_read"), [(1, True), (64, True), (0, False), (48, False), (2**31, False)]
)
def test_alignment_is_a_power_of_two(tmp_path: Path, alignment: int, is_read: bool) -> None:
    tensors = [TensorShape("t", (3,))] if is_read else []
    content = gguf_bytes([entry("general.alignment", alignment)], tensors, alignment=alignment or 1)
    if is_read:
        assert header_of(tmp_path, content).data_offset % alignment == 0
    else:
        assert "general.alignment" in refusal_of(tmp_path, content).because


def test_alignment_of_another_kind_is_refused(tmp_path: Path) -> None:
    assert "general.alignment" in refusal_of(tmp_path, gguf_bytes([entry("general.alignment", "32")])).because


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "missing", Path("/dev/zero"), Path("nul\x00")):
        with pytest.raises(ModelFileError) as caught:
            read_gguf_header(path)
        assert caught.value.values["path"] == path


def test_a_large_vocabulary_is_read_through_a_small_window(tmp_path: Path) -> None:
    tokens = [f"token-{number}" for number in range(100_000)]
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes([entry("tokenizer.ggml.tokens", tokens), *moe_entries()[:-1]], moe_tensors()))
    tracemalloc.start()
    header = read_gguf_header(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert header.metadata["tokenizer.ggml.tokens"] == SkippedValue(TEXT, 100_000)
    assert header.metadata["general.architecture"] == "qwen3moe"
    assert peak_bytes < 2 << 20


VALID = moe_file()
HEADER_BYTES = 1400
INTERESTING_NUMBERS = (0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    content = bytearray(VALID)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, HEADER_BYTES))
        kind = draw(st.sampled_from(["byte", "number", "delete", "insert"]))
        if kind == "byte":
            content[at] = draw(st.integers(0, 255))
        elif kind == "number":
            content[at : at + 8] = struct.pack("<Q", draw(st.sampled_from(INTERESTING_NUMBERS)))
        elif kind == "delete":
            del content[at : at + draw(st.integers(1, 16))]
        else:
            content[at:at] = draw(st.binary(min_size=1, max_size=16))
    return bytes(content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged_files())
def test_damage_is_a_typed_error_or_a_header_and_takes_little_memory(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        header = read_gguf_header(path)
    except ModelFileError as error:
        assert render_error(error).count("\n") == 3
    else:
        assert all(tensor.offset + tensor.size_bytes <= len(content) for tensor in header.tensors)
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < MEMORY_BOUND_BYTES


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
def test_noise_behind_the_magic_number_is_a_typed_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + content)
    try:
        read_gguf_header(path)
    except ModelFileError as error:
        assert error.values["offset"] is not None


@pytest.mark.parametrize("longest", [3, 39, 40, 41, 3000])
def test_a_large_vocabulary_is_passed_over_whatever_its_lengths(longest: int, tmp_path: Path) -> None:
    """Blocks of short texts, long ones between them, and window borders anywhere."""
    words = ["w" * (index * 7919 % (longest + 1)) for index in range(2000)]
    entries = [entry("tokenizer.ggml.tokens", words), entry("after.the.vocabulary", 77)]
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(entries))
    assert read_gguf_header(path).metadata["after.the.vocabulary"] == 77


def test_a_text_of_a_large_vocabulary_that_claims_too_much_is_refused_at_its_place(tmp_path: Path) -> None:
    words = [f"token{index}" for index in range(1000)]
    whole = gguf_bytes([entry("tokenizer.ggml.tokens", words), entry("after.the.vocabulary", 77)])
    place = whole.index(b"token700") - 8
    path = tmp_path / "model.gguf"
    path.write_bytes(whole[:place] + (1 << 60).to_bytes(8, "little") + whole[place + 8 :])
    with pytest.raises(ModelFileError) as caught:
        read_gguf_header(path)
    assert caught.value.values["offset"] == place
    assert str(1 << 60) in caught.value.because
