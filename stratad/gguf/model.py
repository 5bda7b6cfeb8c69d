"""Facts of a model from its GGUF headers alone: what the planner, the start-up and `stratactl` need before
loading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stratad.errors import ModelFileError
from stratad.gguf.header import GgufHeader, MetadataValue, TensorEntry, read_gguf_header

# The tensors the arena holds: one for each layer and projection, all experts in one. Biases and shared
# experts stay dense.
EXPERT_TENSOR_NAME = re.compile(r"blk\.(\d{1,5})\.ffn_(?:gate|up|down|gate_up)_exps\.weight")
# What it holds besides with arena.scope = "weights": the same pattern as in native/engine/model.cpp.
DENSE_TENSOR_NAME = re.compile(
    r"(?:output|blk\.(\d{1,5})\.(?:attn_(?:q|k|v|qkv|gate|output|q_a|q_b|kv_a_mqa|kv_b|k_b|v_b)|ssm_(?:in|out)"
    r"|ffn_gate_inp|ffn_(?:up|gate|down|gate_up)(?:_shexp|_chexps)?))\.weight"
)
SPLIT_FILE_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
# The engine's default KV cache type is F16.
KV_ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class ExpertTensor:
    """One tensor that holds every expert's matrix of one projection in one layer."""

    name: str
    layer: int
    shape: tuple[int, ...]
    type_name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DenseTensor:
    """One large matrix that every token reads; the output head belongs to no layer."""

    name: str
    layer: int | None
    type_name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the headers of a model's files say. Counts that the file does not state are None.

    `kv_bytes_per_token` is an estimate for the F16 cache, all layers. `expert_tensors` is sorted by layer and
    name. `dense_tensors` are those that may lie in the arena beside the experts.
    """

    paths: tuple[Path, ...]
    architecture: str
    name: str | None
    layer_count: int | None
    expert_count: int | None
    experts_used: int | None
    context_length: int | None
    embedding_length: int | None
    file_bytes: int
    tensor_bytes_total: int
    expert_tensors: tuple[ExpertTensor, ...]
    dense_tensors: tuple[DenseTensor, ...]
    kv_bytes_per_token: int | None
    has_chat_template: bool

    @property
    def expert_bytes(self) -> int:
        """Bytes of all expert tensors; 0 for a dense model."""
        return sum(tensor.size_bytes for tensor in self.expert_tensors)

    @property
    def dense_bytes(self) -> int:
        """Bytes of every other tensor."""
        return self.tensor_bytes_total - self.expert_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors that may lie in the arena: experts and the other large matrices."""
        return self.expert_bytes + sum(tensor.size_bytes for tensor in self.dense_tensors)

    @property
    def expert_bytes_per_token(self) -> int | None:
        """Expert bytes one decoded token reads (used over all experts), or None when the counts are not
        stated.
        """
        if not self.expert_count or self.experts_used is None:
            return None
        return self.expert_bytes * min(self.experts_used, self.expert_count) // self.expert_count

    @property
    def smallest_expert_bytes(self) -> int | None:
        """Bytes of the smallest matrix of one expert, which a slice border cuts; None without experts."""
        sizes = (
            tensor.size_bytes // tensor.shape[-1] for tensor in self.expert_tensors if tensor.shape[-1] > 0
        )
        return min(sizes, default=None)

    @property
    def layer_expert_bytes(self) -> tuple[int, ...]:
        """Expert bytes of each layer that has experts, in layer order."""
        return _bytes_by_layer(self.expert_tensors)

    @property
    def layer_weight_bytes(self) -> tuple[int, ...]:
        """Bytes of each layer's tensors that may lie in the arena, in layer order."""
        return _bytes_by_layer((*self.expert_tensors, *self.dense_tensors))


def _bytes_by_layer(tensors: Iterable[ExpertTensor | DenseTensor]) -> tuple[int, ...]:
    sizes: dict[int, int] = {}
    for tensor in tensors:
        if tensor.layer is not None:
            sizes[tensor.layer] = sizes.get(tensor.layer, 0) + tensor.size_bytes
    return tuple(sizes[layer] for layer in sorted(sizes))


def read_model_facts(path: Path) -> ModelFacts:
    """Give the facts of the model at `path`; for a split model the path of its first file.

    Raises:
        ModelFileError: When a file is missing, damaged, or no language model.
    """
    first = read_gguf_header(path)
    headers = (first, *_further_parts(first))
    architecture = _architecture(first)
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    _check_unique(path, tensors)
    return ModelFacts(
        paths=tuple(header.path for header in headers),
        architecture=architecture,
        name=_text(first.metadata.get("general.name")),
        layer_count=_count(first, f"{architecture}.block_count"),
        expert_count=_count(first, f"{architecture}.expert_count"),
        experts_used=_count(first, f"{architecture}.expert_used_count"),
        context_length=_count(first, f"{architecture}.context_length"),
        embedding_length=_count(first, f"{architecture}.embedding_length"),
        file_bytes=sum(header.file_bytes for header in headers),
        tensor_bytes_total=sum(tensor.size_bytes for tensor in tensors),
        expert_tensors=_expert_tensors(tensors),
        dense_tensors=_dense_tensors(tensors),
        kv_bytes_per_token=_kv_bytes_per_token(first, architecture),
        has_chat_template="tokenizer.chat_template" in first.metadata,
    )


def _architecture(header: GgufHeader) -> str:
    architecture = _text(header.metadata.get("general.architecture"))
    if not architecture:
        raise _unsuitable(header.path, "the header names no architecture (general.architecture)")
    kind = _text(header.metadata.get("general.type"))
    if kind in ("adapter", "mmproj", "imatrix") or architecture == "clip":
        raise _unsuitable(header.path, f"the file is of kind {kind or architecture!r}, not a language model")
    return architecture


def _expert_tensors(tensors: tuple[TensorEntry, ...]) -> tuple[ExpertTensor, ...]:
    found = []
    for tensor in tensors:
        match = EXPERT_TENSOR_NAME.fullmatch(tensor.name)
        if match:
            found.append(
                ExpertTensor(tensor.name, int(match[1]), tensor.shape, tensor.type_name, tensor.size_bytes)
            )
    return tuple(sorted(found, key=lambda expert: (expert.layer, expert.name)))


def _dense_tensors(tensors: tuple[TensorEntry, ...]) -> tuple[DenseTensor, ...]:
    found = []
    for tensor in tensors:
        match = DENSE_TENSOR_NAME.fullmatch(tensor.name)
        if match:
            layer = None if match[1] is None else int(match[1])
            found.append(DenseTensor(tensor.name, layer, tensor.type_name, tensor.size_bytes))
    return tuple(sorted(found, key=lambda tensor: tensor.name))


def _kv_bytes_per_token(header: GgufHeader, architecture: str) -> int | None:
    """Estimate the F16 KV cache bytes of one token over all layers, or None when the header lacks the
    numbers.

    Latent attention (deepseek2) caches one compressed row a layer instead of keys and values for each head.
    """
    layer_count = _count(header, f"{architecture}.block_count")
    if layer_count is None:
        return None
    latent_rank = _count(header, f"{architecture}.attention.kv_lora_rank")
    if latent_rank is not None:
        rope_length = _count(header, f"{architecture}.rope.dimension_count") or 0
        return layer_count * (latent_rank + rope_length) * KV_ELEMENT_BYTES
    key_length, value_length = _head_lengths(header, architecture)
    head_count = _kv_head_total(header, architecture, layer_count)
    if key_length is None or value_length is None or head_count is None:
        return None
    return head_count * (key_length + value_length) * KV_ELEMENT_BYTES


def _head_lengths(header: GgufHeader, architecture: str) -> tuple[int | None, int | None]:
    embedding_length = _count(header, f"{architecture}.embedding_length")
    head_count = header.metadata.get(f"{architecture}.attention.head_count")
    most_heads = max(head_count, default=0) if isinstance(head_count, tuple) else head_count
    even_length = None
    if embedding_length is not None and isinstance(most_heads, int) and most_heads > 0:
        even_length = embedding_length // most_heads
    key_length = _count(header, f"{architecture}.attention.key_length")
    value_length = _count(header, f"{architecture}.attention.value_length")
    return (
        even_length if key_length is None else key_length,
        even_length if value_length is None else value_length,
    )


def _kv_head_total(header: GgufHeader, architecture: str, layer_count: int) -> int | None:
    """Sum the KV heads of all layers; the setting is one number or one for each layer."""
    heads = header.metadata.get(f"{architecture}.attention.head_count_kv")
    if heads is None:
        heads = header.metadata.get(f"{architecture}.attention.head_count")
    if isinstance(heads, tuple):
        return sum(head for head in heads[:layer_count] if isinstance(head, int) and head > 0)
    return heads * layer_count if isinstance(heads, int) and heads >= 0 else None


def _further_parts(first: GgufHeader) -> tuple[GgufHeader, ...]:
    """Read the headers of a split model's other files.

    Raises:
        ModelFileError: When the path is not the first part, when parts are missing or belong to another
            model.
    """
    part_count = _count(first, "split.count") or 1
    if part_count <= 1:
        return ()
    match = SPLIT_FILE_NAME.fullmatch(first.path.name)
    if match is None or int(match[3]) != part_count:
        raise _unsuitable(
            first.path,
            f"it is part of a model in {part_count} files and its name does not say which",
            f"name the files NAME-00001-of-{part_count:05d}.gguf and so on",
        )
    names = [f"{match[1]}-{number:05d}-of-{part_count:05d}.gguf" for number in range(1, part_count + 1)]
    if _count(first, "split.no") or int(match[2]) != 1:
        raise _unsuitable(
            first.path, "it is not the first file of a split model", f"give the path of {names[0]}"
        )
    missing = [name for name in names if not first.path.with_name(name).is_file()]
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        raise _unsuitable(
            first.path, f"parts of the model are missing: {shown}", "download the missing files"
        )
    headers = tuple(read_gguf_header(first.path.with_name(name)) for name in names[1:])
    for index, header in enumerate(headers, start=1):
        if _count(header, "split.no") != index or _count(header, "split.count") != part_count:
            raise _unsuitable(
                header.path, f"it is not part {index + 1} of {part_count}", "download the file again"
            )
    stated = _count(first, "split.tensors.count")
    found = len(first.tensors) + sum(len(header.tensors) for header in headers)
    if stated is not None and stated != found:
        raise _unsuitable(first.path, f"the parts hold {found} tensors, the header states {stated}")
    return headers


def _check_unique(path: Path, tensors: tuple[TensorEntry, ...]) -> None:
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise _unsuitable(path, f"tensor {tensor.name!r} stands in two parts of the model")
        names.add(tensor.name)


def _count(header: GgufHeader, key: str) -> int | None:
    """Give a non-negative whole number of the metadata, or None; an array (per layer) gives its largest."""
    value = header.metadata.get(key)
    if isinstance(value, tuple):
        value = max((item for item in value if isinstance(item, int)), default=None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: MetadataValue | None) -> str | None:
    return value if isinstance(value, str) and value else None


def _unsuitable(
    path: Path, because: str, remedy: str = "give the path of a language model in GGUF format"
) -> ModelFileError:
    return ModelFileError(tried=f"reading {path}", because=because, values={"path": path}, remedy=remedy)
