"""Writes GGUF headers byte by byte, right and wrong: tests need files the gguf package refuses to write."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from stratad.gguf.tensor_types import GGML_TYPES

TYPE_IDS = {ggml_type.name: type_id for type_id, ggml_type in GGML_TYPES.items()}
UINT32, BOOL, TEXT, ARRAY, UINT64 = 4, 7, 8, 9, 10


@dataclass(frozen=True, slots=True)
class TensorShape:
    """A tensor to write: innermost length first. `offset` None follows the one before."""

    name: str
    shape: tuple[int, ...]
    type_name: str = "F32"
    offset: int | None = None


def text(value: str | bytes) -> bytes:
    """Give a length and the bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, value: object) -> bytes:
    """Give one metadata entry: text, bool, whole number, or a list of texts or numbers."""
    if isinstance(value, str):
        return text(key) + struct.pack("<I", TEXT) + text(value)
    if isinstance(value, bool):
        return text(key) + struct.pack("<IB", BOOL, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", UINT32, value)
    assert isinstance(value, list)
    if value and isinstance(value[0], str):
        body = struct.pack("<IQ", TEXT, len(value)) + b"".join(text(item) for item in value)
    else:
        body = struct.pack("<IQ", UINT32, len(value)) + struct.pack(f"<{len(value)}I", *value)
    return text(key) + struct.pack("<I", ARRAY) + body


def size_bytes(tensor: TensorShape) -> int:
    """Give the bytes of a tensor's data."""
    ggml_type = GGML_TYPES[TYPE_IDS[tensor.type_name]]
    element_count = 1
    for length in tensor.shape:
        element_count *= length
    return element_count // ggml_type.block_elements * ggml_type.block_bytes


def gguf_bytes(
    entries: Sequence[bytes],
    tensors: Sequence[TensorShape] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    magic: bytes = b"GGUF",
) -> bytes:
    """Give a whole file: header, padding, zeroed tensor data."""
    head = [magic, struct.pack("<IQQ", version, len(tensors), len(entries)), *entries]
    end = 0
    for tensor in tensors:
        offset = end if tensor.offset is None else tensor.offset
        lengths = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += [text(tensor.name), lengths, struct.pack("<IQ", TYPE_IDS[tensor.type_name], offset)]
        end = -(-(offset + size_bytes(tensor)) // alignment) * alignment
    header = b"".join(head)
    if not tensors:
        return header
    return header + bytes(-len(header) % alignment) + bytes(end)


def moe_entries(architecture: str = "qwen3moe", **changes: object) -> list[bytes]:
    """Give the metadata of a small MoE model; `changes` override by key (`__` for a dot), None leaves out."""
    values: dict[str, object] = {
        "block_count": 2,
        "expert_count": 8,
        "expert_used_count": 2,
        "context_length": 4096,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    values |= {name.replace("__", "."): value for name, value in changes.items()}
    named = [entry("general.architecture", architecture), entry("general.name", "tiny")]
    stated = ((f"{architecture}.{name}", value) for name, value in values.items() if value is not None)
    return [
        *named,
        *(entry(key, value) for key, value in stated),
        entry("tokenizer.ggml.tokens", ["a", "b", "c"]),
    ]


def moe_tensors() -> list[TensorShape]:
    """Give the tensors of the small MoE model: one dense and three expert tensors a layer."""
    tensors = [TensorShape("token_embd.weight", (64, 3))]
    for layer in range(2):
        tensors.append(TensorShape(f"blk.{layer}.attn_q.weight", (64, 64), "Q8_0"))
        tensors.append(TensorShape(f"blk.{layer}.ffn_gate_exps.weight", (64, 32, 8), "Q8_0"))
        tensors.append(TensorShape(f"blk.{layer}.ffn_up_exps.weight", (64, 32, 8), "Q8_0"))
        tensors.append(TensorShape(f"blk.{layer}.ffn_down_exps.weight", (32, 64, 8), "Q8_0"))
        tensors.append(TensorShape(f"blk.{layer}.ffn_down_exps.bias", (64, 8)))
    return tensors


def moe_file() -> bytes:
    """Give a valid small MoE model file of about 30 KiB."""
    return gguf_bytes(moe_entries(), moe_tensors())
