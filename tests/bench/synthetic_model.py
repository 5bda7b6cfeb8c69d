"""A bandwidth-bound mixture-of-experts model: the shape of Qwen3-30B-A3B, cut to a few layers, random weights.

Four experts per matrix are quantised by ggml; the others are the same rows rotated, each by its own amount, so
every byte has a place of its own in memory while quantising takes seconds. Routers are random, so routing is spread
over all experts. The file is kept in the user's cache directory, never in the repository.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

from tests.support.gguf_models import quantise

SEED_EXPERTS = 4
# Ends an answer where the tokens stand for text; a request that must not end by chance forbids it.
END_TOKEN = 255


@dataclass(frozen=True, slots=True)
class BenchShape:
    """Sizes in elements; the defaults give an arena of 2.7 GB in Q4_K, far beyond any cache."""

    layer_count: int = 8
    embedding: int = 2048
    expert_hidden: int = 768
    expert_count: int = 128
    experts_used: int = 8
    head_count: int = 32
    kv_head_count: int = 4
    head: int = 128
    vocabulary: int = 512
    has_text: bool = False  # tokens stand for text, so that a daemon can serve the model
    expert_type: str = "Q4_K"  # or "Q4_K_M": Q4_K, with Q6_K where llama.cpp's mix of that name has it

    def type_of(self, matrix: str, layer: int) -> str:
        """The weight type of a matrix: "down", "attn_v", "output" or any other."""
        if self.expert_type != "Q4_K_M":
            return self.expert_type
        is_finer = matrix == "output" or (matrix in ("down", "attn_v") and layer % 2 == 0)
        return "Q6_K" if is_finer else "Q4_K"


def cached_model(shape: BenchShape) -> Path:
    """The model's path, written on first use."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratad" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    text = f"-text{shape.vocabulary}" if shape.has_text else ""
    path = folder / f"moe-{shape.layer_count}x{shape.expert_count}-{shape.expert_type}{text}.gguf"
    if not path.exists():
        print(f"writing the synthetic model {path.name} (once)", flush=True)
        partial = path.with_suffix(".partial")
        write_model(partial, shape)
        partial.rename(path)
    return path


@dataclass(frozen=True, slots=True)
class Seeds:
    """A few quantised experts of one matrix: (experts, rows, bytes of a row)."""

    weight_type: str
    blocks: np.ndarray


class _Writer:
    def __init__(self, path: Path, shape: BenchShape) -> None:
        self.shape = shape
        self.random = np.random.default_rng(1)
        self.gguf = GGUFWriter(path, "qwen3moe", use_temp_file=False)

    def values(self, *dimensions: int, scale: float = 1.0) -> np.ndarray:
        return self.random.standard_normal(dimensions, dtype=np.float32) * np.float32(
            scale / np.sqrt(dimensions[-1])
        )

    def matrix(self, name: str, rows: int, columns: int, weight_type: str) -> None:
        kind = GGMLQuantizationType[weight_type]
        self.gguf.add_tensor(name, quantise(self.values(rows, columns), weight_type), raw_dtype=kind)

    def vector(self, name: str, size: int) -> None:
        self.gguf.add_tensor(name, np.ones(size, dtype=np.float32))

    def experts(self, name: str, layer: int, rows: int, columns: int, seeds: Seeds) -> None:
        """All experts of one matrix: rotations of the seed experts' quantised rows."""
        count = self.shape.expert_count
        tiled = np.stack(
            [
                np.roll(
                    seeds.blocks[expert % SEED_EXPERTS],
                    (37 * (expert // SEED_EXPERTS) + 101 * layer) % rows,
                    axis=0,
                )
                for expert in range(count)
            ]
        )
        kind = GGMLQuantizationType[seeds.weight_type]
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
        assert tiled.shape[-1] == columns // block_elements * block_bytes
        self.gguf.add_tensor(name, tiled, raw_dtype=kind)


def write_model(path: Path, shape: BenchShape) -> None:
    """Writes the model."""
    writer = _Writer(path, shape)
    _header(writer)
    seeds = {
        (name, weight_type): Seeds(weight_type, quantise(writer.values(SEED_EXPERTS, *size), weight_type))
        for name, size in (
            ("gate", (shape.expert_hidden, shape.embedding)),
            ("up", (shape.expert_hidden, shape.embedding)),
            ("down", (shape.embedding, shape.expert_hidden)),
        )
        for weight_type in sorted({shape.type_of(name, layer) for layer in range(shape.layer_count)})
    }
    writer.matrix("token_embd.weight", shape.vocabulary, shape.embedding, shape.type_of("token_embd", 0))
    writer.vector("output_norm.weight", shape.embedding)
    writer.matrix("output.weight", shape.vocabulary, shape.embedding, shape.type_of("output", 0))
    for layer in range(shape.layer_count):
        _layer(writer, layer, seeds)
    writer.gguf.write_header_to_file()
    writer.gguf.write_kv_data_to_file()
    writer.gguf.write_tensors_to_file(progress=False)
    writer.gguf.close()


def _short_texts() -> list[str]:
    """256 tokens of whole ASCII characters: each gives text at once, so that chunks of a stream are its tokens."""
    return [chr(index) if 33 <= index < 127 else f"{index:02x}" for index in range(256)]


def _header(writer: _Writer) -> None:
    shape, gguf = writer.shape, writer.gguf
    gguf.add_name("stratad-bench")
    gguf.add_block_count(shape.layer_count)
    gguf.add_context_length(8192)
    gguf.add_embedding_length(shape.embedding)
    gguf.add_feed_forward_length(shape.expert_hidden * shape.experts_used)
    gguf.add_expert_feed_forward_length(shape.expert_hidden)
    gguf.add_head_count(shape.head_count)
    gguf.add_head_count_kv(shape.kv_head_count)
    gguf.add_key_length(shape.head)
    gguf.add_value_length(shape.head)
    gguf.add_layer_norm_rms_eps(1e-6)
    gguf.add_rope_freq_base(1e6)
    gguf.add_expert_count(shape.expert_count)
    gguf.add_expert_used_count(shape.experts_used)
    gguf.add_vocab_size(shape.vocabulary)
    if not shape.has_text:
        gguf.add_tokenizer_model("none")
        return
    gguf.add_tokenizer_model("gpt2")
    gguf.add_tokenizer_pre("gpt-2")
    gguf.add_token_list([*_short_texts(), *(f" word{index}" for index in range(256, shape.vocabulary))])
    gguf.add_token_types([1] * shape.vocabulary)
    gguf.add_token_merges(["t h", "h e"])
    gguf.add_eos_token_id(END_TOKEN)
    gguf.add_add_bos_token(False)


def _layer(writer: _Writer, layer: int, seeds: dict[tuple[str, str], Seeds]) -> None:
    shape, prefix = writer.shape, f"blk.{layer}"
    query, key = shape.head_count * shape.head, shape.kv_head_count * shape.head
    for name in ("attn_norm", "ffn_norm"):
        writer.vector(f"{prefix}.{name}.weight", shape.embedding)
    for name in ("attn_q_norm", "attn_k_norm"):
        writer.vector(f"{prefix}.{name}.weight", shape.head)
    for name, rows, columns in (
        ("attn_q", query, shape.embedding),
        ("attn_k", key, shape.embedding),
        ("attn_v", key, shape.embedding),
        ("attn_output", shape.embedding, query),
    ):
        writer.matrix(f"{prefix}.{name}.weight", rows, columns, shape.type_of(name, layer))
    writer.gguf.add_tensor(
        f"{prefix}.ffn_gate_inp.weight", writer.values(shape.expert_count, shape.embedding, scale=2.0)
    )
    for name, rows, columns in (
        ("gate", shape.expert_hidden, shape.embedding),
        ("up", shape.expert_hidden, shape.embedding),
        ("down", shape.embedding, shape.expert_hidden),
    ):
        chosen = seeds[name, shape.type_of(name, layer)]
        writer.experts(f"{prefix}.ffn_{name}_exps.weight", layer, rows, columns, chosen)
