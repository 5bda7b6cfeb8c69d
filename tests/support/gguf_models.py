"""Tiny random mixture-of-experts models in GGUF, written for tests: no download, every architecture and type.

Weights are normal deviates quantised by ggml's own `ggml_quantize_chunk`, so every block is one that ggml would
have written. Sizes are the smallest that every quantised type allows (rows of 256) with an odd number of experts
used and enough rows for three unequal slices.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

ARCHITECTURES = ("qwen3moe", "olmoe", "mixtral", "deepseek2", "gpt-oss")
# F32 because nothing is quantised between its products: a difference in the last bit anywhere comes through.
EXPERT_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4")

# What GGUF calls the architecture of each family.
_GGUF_ARCHITECTURE = {"mixtral": "llama", "deepseek2-merged": "deepseek2", "dense": "qwen3"}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a test model, in elements."""

    layer_count: int = 2
    embedding: int = 256
    expert_hidden: int = 256
    dense_hidden: int = 512
    expert_count: int = 8
    experts_used: int = 3
    head_count: int = 4
    kv_head_count: int = 2
    head: int = 64
    vocabulary: int = 320
    context_tokens: int = 2048
    has_tied_output: bool = False  # the output head is the token embeddings


@cache
def _quantise_library() -> ctypes.CDLL:
    import stratad._native as native

    library = ctypes.CDLL(str(Path(native.__file__).parent / "lib" / "libggml-base.so"))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    return library


def quantise(values: np.ndarray, type_name: str) -> np.ndarray:
    """The values' rows in ggml's format: bytes of shape (..., row bytes)."""
    kind = GGMLQuantizationType[type_name]
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    source = np.ascontiguousarray(values, dtype=np.float32)
    columns = source.shape[-1]
    row_bytes = columns // block_elements * block_bytes
    quantised = np.zeros((*source.shape[:-1], row_bytes), dtype=np.uint8)
    written = _quantise_library().ggml_quantize_chunk(
        int(kind), source.ctypes.data, quantised.ctypes.data, 0, source.size // columns, columns, None
    )
    assert written == quantised.nbytes, f"{type_name}: {written} bytes written, {quantised.nbytes} expected"
    return quantised


class _Builder:
    def __init__(
        self, path: Path, family: str, expert_type: str, dense_type: str, shape: ModelShape, *, seed: int
    ) -> None:
        self.shape = shape
        self.expert_type = expert_type
        self.dense_type = dense_type
        self.family = family
        self.random = np.random.default_rng(seed)
        self.writer = GGUFWriter(path, _GGUF_ARCHITECTURE.get(family, family))

    def matrix(self, name: str, *dimensions: int, type_name: str | None = None, scale: float = 1.0) -> None:
        """Adds a weight with `dimensions` in numpy order (rows before columns).

        Without `type_name` in the model's dense type, or in Q8_0 where that does not divide its rows.
        """
        if type_name is None:
            block_elements, _ = GGML_QUANT_SIZES[GGMLQuantizationType[self.dense_type]]
            type_name = "Q8_0" if dimensions[-1] % block_elements else self.dense_type
        values = self.random.standard_normal(dimensions, dtype=np.float32) * np.float32(
            scale / np.sqrt(dimensions[-1])
        )
        kind = GGMLQuantizationType[type_name]
        if kind is GGMLQuantizationType.F32:
            self.writer.add_tensor(name, values)
        else:
            self.writer.add_tensor(name, quantise(values, type_name), raw_dtype=kind)

    def vector(self, name: str, *dimensions: int, mean: float = 1.0, deviation: float = 0.1) -> None:
        values = mean + deviation * self.random.standard_normal(dimensions)
        self.writer.add_tensor(name, values.astype(np.float32))

    def experts(self, prefix: str) -> None:
        shape, kind = self.shape, self.expert_type
        self.matrix(
            f"{prefix}.ffn_gate_inp.weight", shape.expert_count, shape.embedding, type_name="F32", scale=2.0
        )
        if self.family == "deepseek2-merged":
            self.matrix(
                f"{prefix}.ffn_gate_up_exps.weight",
                shape.expert_count,
                2 * shape.expert_hidden,
                shape.embedding,
                type_name=kind,
            )
        else:
            for part in ("gate", "up"):
                self.matrix(
                    f"{prefix}.ffn_{part}_exps.weight",
                    shape.expert_count,
                    shape.expert_hidden,
                    shape.embedding,
                    type_name=kind,
                )
        self.matrix(
            f"{prefix}.ffn_down_exps.weight",
            shape.expert_count,
            shape.embedding,
            shape.expert_hidden,
            type_name=kind,
        )

    def header(self) -> None:
        shape, writer = self.shape, self.writer
        writer.add_name(f"test-{self.family}-{self.expert_type}")
        writer.add_block_count(shape.layer_count)
        writer.add_context_length(shape.context_tokens)
        writer.add_embedding_length(shape.embedding)
        writer.add_head_count(shape.head_count)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(10000.0)
        if self.family not in ("dense", "mamba"):
            writer.add_expert_count(shape.expert_count)
            writer.add_expert_used_count(shape.experts_used)
        writer.add_vocab_size(shape.vocabulary)

    def vocabulary(self, kind: str) -> None:
        if kind == "none":
            self.writer.add_tokenizer_model("none")
            return
        tokens = [*_byte_tokens(), "<|end|>", "<|start|>"]
        types = [1] * 256 + [3, 3]
        while len(tokens) < self.shape.vocabulary:
            tokens.append(f"<unused{len(tokens)}>")
            types.append(5)
        self.writer.add_tokenizer_model("gpt2")
        self.writer.add_tokenizer_pre("gpt-2")
        self.writer.add_token_list(tokens)
        self.writer.add_token_types(types)
        self.writer.add_token_merges(["t h", "h e"])
        self.writer.add_bos_token_id(257)
        self.writer.add_eos_token_id(256)
        self.writer.add_add_bos_token(False)

    def embeddings(self) -> None:
        shape = self.shape
        self.matrix(
            "token_embd.weight",
            shape.vocabulary,
            shape.embedding,
            type_name="Q8_0",
            scale=np.sqrt(shape.embedding),
        )
        self.vector("output_norm.weight", shape.embedding)
        if not shape.has_tied_output:
            # In floats: quantising its input would round away differences in the last bits, which tests want to see.
            self.matrix("output.weight", shape.vocabulary, shape.embedding, type_name="F32")

    def finish(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def _byte_tokens() -> list[str]:
    """GPT-2's printable stand-ins for the 256 byte values."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins, next_code = [], 256
    for byte in range(256):
        if byte in printable:
            stand_ins.append(chr(byte))
        else:
            stand_ins.append(chr(next_code))
            next_code += 1
    return stand_ins


def _attention(
    build: _Builder, prefix: str, *, norm_columns: tuple[int, int] | None, biases: bool = False
) -> None:
    shape = build.shape
    query, key = shape.head_count * shape.head, shape.kv_head_count * shape.head
    build.vector(f"{prefix}.attn_norm.weight", shape.embedding)
    for part, rows in (("q", query), ("k", key), ("v", key)):
        build.matrix(f"{prefix}.attn_{part}.weight", rows, shape.embedding)
        if biases:
            build.vector(f"{prefix}.attn_{part}.bias", rows, mean=0.0)
    build.matrix(f"{prefix}.attn_output.weight", shape.embedding, query)
    if norm_columns is not None:
        build.vector(f"{prefix}.attn_q_norm.weight", norm_columns[0])
        build.vector(f"{prefix}.attn_k_norm.weight", norm_columns[1])


def _plain_header(build: _Builder, *, hidden: int) -> None:
    shape = build.shape
    build.writer.add_feed_forward_length(hidden)
    build.writer.add_head_count_kv(shape.kv_head_count)
    build.writer.add_key_length(shape.head)
    build.writer.add_value_length(shape.head)
    build.writer.add_rope_dimension_count(shape.head)


def _write_plain_family(build: _Builder) -> None:
    """qwen3moe, olmoe and mixtral: ordinary attention, experts in every layer."""
    shape = build.shape
    _plain_header(build, hidden=shape.expert_hidden)
    if build.family == "qwen3moe":
        build.writer.add_expert_feed_forward_length(shape.expert_hidden)
    query, key = shape.head_count * shape.head, shape.kv_head_count * shape.head
    norm_columns = {"qwen3moe": (shape.head, shape.head), "olmoe": (query, key), "mixtral": None}[
        build.family
    ]
    for layer in range(shape.layer_count):
        prefix = f"blk.{layer}"
        _attention(build, prefix, norm_columns=norm_columns)
        build.vector(f"{prefix}.ffn_norm.weight", shape.embedding)
        build.experts(prefix)


def _write_gpt_oss(build: _Builder) -> None:
    """Sliding windows, attention sinks, biases everywhere and an activation of its own."""
    shape = build.shape
    _plain_header(build, hidden=shape.expert_hidden)
    build.writer.add_expert_feed_forward_length(shape.expert_hidden)
    build.writer.add_sliding_window(128)
    for layer in range(shape.layer_count):
        prefix = f"blk.{layer}"
        _attention(build, prefix, norm_columns=None, biases=True)
        build.vector(f"{prefix}.attn_output.bias", shape.embedding, mean=0.0)
        build.vector(f"{prefix}.attn_sinks.weight", shape.head_count, mean=0.0)
        build.vector(f"{prefix}.post_attention_norm.weight", shape.embedding)
        build.experts(prefix)
        build.vector(f"{prefix}.ffn_gate_inp.bias", shape.expert_count, mean=0.0)
        for part, rows in (
            ("gate", shape.expert_hidden),
            ("up", shape.expert_hidden),
            ("down", shape.embedding),
        ):
            # Wide enough that the activation's clamp at 7 is reached now and then.
            build.vector(f"{prefix}.ffn_{part}_exps.bias", shape.expert_count, rows, mean=0.0, deviation=4.0)


def _write_deepseek2(build: _Builder) -> None:
    """Latent attention, a leading dense layer, a shared expert beside the routed ones."""
    shape, writer = build.shape, build.writer
    query_rank, kv_rank, rope, no_rope, value = 128, 128, 32, 32, 64
    writer.add_feed_forward_length(shape.dense_hidden)
    writer.add_head_count_kv(1)
    writer.add_key_length(kv_rank + rope)
    writer.add_value_length(kv_rank)
    writer.add_key_length_mla(no_rope + rope)
    writer.add_value_length_mla(value)
    writer.add_rope_dimension_count(rope)
    writer.add_q_lora_rank(query_rank)
    writer.add_kv_lora_rank(kv_rank)
    writer.add_expert_feed_forward_length(shape.expert_hidden)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_scale(2.5)
    writer.add_expert_weights_norm(True)
    writer.add_leading_dense_block_count(1)
    for layer in range(shape.layer_count):
        prefix = f"blk.{layer}"
        build.vector(f"{prefix}.attn_norm.weight", shape.embedding)
        build.vector(f"{prefix}.attn_q_a_norm.weight", query_rank)
        build.vector(f"{prefix}.attn_kv_a_norm.weight", kv_rank)
        build.matrix(f"{prefix}.attn_q_a.weight", query_rank, shape.embedding)
        build.matrix(f"{prefix}.attn_q_b.weight", shape.head_count * (no_rope + rope), query_rank)
        build.matrix(f"{prefix}.attn_kv_a_mqa.weight", kv_rank + rope, shape.embedding)
        build.matrix(f"{prefix}.attn_k_b.weight", shape.head_count, kv_rank, no_rope)
        build.matrix(f"{prefix}.attn_v_b.weight", shape.head_count, value, kv_rank)
        build.matrix(f"{prefix}.attn_output.weight", shape.embedding, shape.head_count * value)
        build.vector(f"{prefix}.ffn_norm.weight", shape.embedding)
        if layer == 0:
            _dense_feed_forward(build, prefix, "", shape.dense_hidden)
            continue
        build.experts(prefix)
        _dense_feed_forward(build, prefix, "_shexp", shape.expert_hidden)


def _dense_feed_forward(build: _Builder, prefix: str, suffix: str, hidden: int) -> None:
    build.matrix(f"{prefix}.ffn_gate{suffix}.weight", hidden, build.shape.embedding)
    build.matrix(f"{prefix}.ffn_up{suffix}.weight", hidden, build.shape.embedding)
    build.matrix(f"{prefix}.ffn_down{suffix}.weight", build.shape.embedding, hidden)


def _write_dense(build: _Builder) -> None:
    """qwen3 without experts."""
    shape = build.shape
    _plain_header(build, hidden=shape.dense_hidden)
    for layer in range(shape.layer_count):
        prefix = f"blk.{layer}"
        _attention(build, prefix, norm_columns=(shape.head, shape.head))
        build.vector(f"{prefix}.ffn_norm.weight", shape.embedding)
        _dense_feed_forward(build, prefix, "", shape.dense_hidden)


def _write_mamba(build: _Builder) -> None:
    """Recurrent layers only: what it remembers of a sequence is the state after its last token."""
    shape, writer = build.shape, build.writer
    inner, state, rank, kernel = 2 * shape.embedding, 16, 32, 4
    writer.add_feed_forward_length(0)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    for layer in range(shape.layer_count):
        prefix = f"blk.{layer}"
        build.vector(f"{prefix}.attn_norm.weight", shape.embedding)
        build.matrix(f"{prefix}.ssm_in.weight", 2 * inner, shape.embedding)
        build.matrix(f"{prefix}.ssm_conv1d.weight", inner, kernel, type_name="F32")
        build.vector(f"{prefix}.ssm_conv1d.bias", inner, mean=0.0)
        build.matrix(f"{prefix}.ssm_x.weight", rank + 2 * state, inner)
        build.matrix(f"{prefix}.ssm_dt.weight", inner, rank, type_name="F32")
        build.vector(f"{prefix}.ssm_dt.bias", inner, mean=0.0)
        build.vector(f"{prefix}.ssm_a", inner, state, mean=-1.0)
        build.vector(f"{prefix}.ssm_d", inner)
        build.matrix(f"{prefix}.ssm_out.weight", shape.embedding, inner)


_LAYERS = {
    "qwen3moe": _write_plain_family,
    "olmoe": _write_plain_family,
    "mixtral": _write_plain_family,
    "gpt-oss": _write_gpt_oss,
    "deepseek2": _write_deepseek2,
    "deepseek2-merged": _write_deepseek2,
    "dense": _write_dense,
    "mamba": _write_mamba,
}


def write_model(
    path: Path,
    family: str = "qwen3moe",
    expert_type: str = "Q8_0",
    *,
    dense_type: str = "Q8_0",
    shape: ModelShape | None = None,
    vocabulary: str = "none",
    seed: int = 1,
) -> Path:
    """Writes a model of `family` (one of ARCHITECTURES, "deepseek2-merged", "dense" or "mamba") and returns its path.

    vocabulary: "none" (token ids only) or "bytes" (every text can be tokenised).
    """
    shape = shape or ModelShape()
    if family == "olmoe":  # has as many key heads as query heads
        shape = replace(shape, kv_head_count=shape.head_count)
    build = _Builder(path, family, expert_type, dense_type, shape, seed=seed)
    build.header()
    build.vocabulary(vocabulary)
    build.embeddings()
    _LAYERS[family](build)
    build.finish()
    return path
