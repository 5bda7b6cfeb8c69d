from __future__ import annotations

from pathlib import Path

import pytest

from stratad.errors import ModelFileError
from stratad.gguf.model import ModelFacts, read_model_facts
from tests.support.gguf_bytes import TensorShape, entry, gguf_bytes, moe_entries, moe_file, moe_tensors

EXPERT_TENSOR_BYTES = 64 * 32 * 8 // 32 * 34


def facts_of(tmp_path: Path, content: bytes, name: str = "model.gguf") -> ModelFacts:
    path = tmp_path / name
    path.write_bytes(content)
    return read_model_facts(path)


def refusal_of(tmp_path: Path, content: bytes, name: str = "model.gguf") -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        facts_of(tmp_path, content, name)
    return caught.value


def part(number: int, count: int, tensors: list[TensorShape], total: int | None = None) -> bytes:
    entries = [*moe_entries(), entry("split.no", number), entry("split.count", count)]
    return gguf_bytes(entries if total is None else [*entries, entry("split.tensors.count", total)], tensors)


def test_expert_and_dense_bytes_are_told_apart(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, moe_file())
    assert [tensor.name for tensor in facts.expert_tensors if tensor.layer == 1] == [
        "blk.1.ffn_down_exps.weight",
        "blk.1.ffn_gate_exps.weight",
        "blk.1.ffn_up_exps.weight",
    ]
    assert facts.expert_bytes == 6 * EXPERT_TENSOR_BYTES
    assert facts.layer_expert_bytes == (3 * EXPERT_TENSOR_BYTES,) * 2
    # Biases of experts are small and stay with the dense tensors.
    assert facts.dense_bytes == 64 * 3 * 4 + 2 * (64 * 64 // 32 * 34 + 64 * 8 * 4)
    assert facts.tensor_bytes_total == facts.expert_bytes + facts.dense_bytes


def test_large_matrices_beside_the_experts_are_counted_and_small_tensors_are_not(tmp_path: Path) -> None:
    taken = (
        "output",
        "blk.0.attn_q",
        "blk.0.attn_kv_b",
        "blk.1.ffn_gate_inp",
        "blk.1.ffn_down_shexp",
        "blk.1.ffn_up",
    )
    left = ("token_embd", "output_norm", "blk.0.attn_q_norm", "blk.1.ffn_gate_inp_shexp", "v.blk.0.attn_q")
    tensors = [TensorShape(f"{name}.weight", (64, 8), "F32") for name in (*taken, *left)]
    facts = facts_of(tmp_path, gguf_bytes(moe_entries(), tensors))
    assert {tensor.name.removesuffix(".weight") for tensor in facts.dense_tensors} == set(taken)
    assert facts.weight_bytes == len(taken) * 64 * 8 * 4
    assert facts.layer_weight_bytes == (2 * 64 * 8 * 4, 3 * 64 * 8 * 4)


def test_a_token_reads_the_used_share_of_the_experts(tmp_path: Path) -> None:
    assert facts_of(tmp_path, moe_file()).expert_bytes_per_token == 6 * EXPERT_TENSOR_BYTES * 2 // 8
    unknown = gguf_bytes(moe_entries(expert_used_count=None), moe_tensors())
    assert facts_of(tmp_path, unknown).expert_bytes_per_token is None


def test_a_joined_gate_and_up_tensor_is_an_expert_tensor(tmp_path: Path) -> None:
    tensors = [TensorShape("blk.0.ffn_gate_up_exps.weight", (64, 64, 8), "Q8_0")]
    assert facts_of(tmp_path, gguf_bytes(moe_entries(), tensors)).expert_bytes == 2 * EXPERT_TENSOR_BYTES


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.ffn_up_shexp.weight",
        "blk.0.ffn_gate_inp.weight",
        "v.blk.0.ffn_up_exps.weight",
        "blk.0.ffn_up.weight",
    ],
)
def test_a_model_without_expert_tensors_is_dense(tmp_path: Path, name: str) -> None:
    facts = facts_of(tmp_path, gguf_bytes(moe_entries(), [TensorShape(name, (64, 8))]))
    assert facts.expert_bytes == 0
    assert facts.expert_tensors == ()


def test_counts_come_from_the_architectures_own_keys(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, moe_file())
    assert (facts.architecture, facts.name, facts.layer_count) == ("qwen3moe", "tiny", 2)
    assert (facts.expert_count, facts.experts_used, facts.context_length) == (8, 2, 4096)
    assert facts.embedding_length == 64
    missing = facts_of(tmp_path, gguf_bytes([entry("general.architecture", "llama")]))
    assert (missing.layer_count, missing.expert_count, missing.kv_bytes_per_token) == (None, None, None)


def test_kv_bytes_count_keys_and_values_of_every_layer(tmp_path: Path) -> None:
    assert facts_of(tmp_path, moe_file()).kv_bytes_per_token == 2 * 2 * (16 + 16) * 2
    stated = moe_entries(attention__key_length=128, attention__value_length=64)
    assert facts_of(tmp_path, gguf_bytes(stated)).kv_bytes_per_token == 2 * 2 * (128 + 64) * 2
    by_layer = moe_entries(attention__head_count_kv=[2, 0])
    assert facts_of(tmp_path, gguf_bytes(by_layer)).kv_bytes_per_token == 2 * (16 + 16) * 2


def test_latent_attention_caches_one_row_a_layer(tmp_path: Path) -> None:
    latent = moe_entries(attention__kv_lora_rank=512, rope__dimension_count=64)
    assert facts_of(tmp_path, gguf_bytes(latent)).kv_bytes_per_token == 2 * (512 + 64) * 2


def test_a_chat_template_is_noticed(tmp_path: Path) -> None:
    assert not facts_of(tmp_path, moe_file()).has_chat_template
    with_template = gguf_bytes([*moe_entries(), entry("tokenizer.chat_template", "{{ messages }}")])
    assert facts_of(tmp_path, with_template).has_chat_template


def test_what_is_no_language_model_is_refused(tmp_path: Path) -> None:
    assert "no architecture" in refusal_of(tmp_path, gguf_bytes([])).because
    adapter = [entry("general.architecture", "llama"), entry("general.type", "adapter")]
    assert "adapter" in refusal_of(tmp_path, gguf_bytes(adapter)).because
    assert "clip" in refusal_of(tmp_path, gguf_bytes([entry("general.architecture", "clip")])).because


def test_a_split_model_is_read_as_one(tmp_path: Path) -> None:
    tensors = moe_tensors()
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(part(1, 2, tensors[4:]))
    facts = facts_of(tmp_path, part(0, 2, tensors[:4], len(tensors)), "m-00001-of-00002.gguf")
    assert [path.name for path in facts.paths] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    whole = facts_of(tmp_path, moe_file())
    assert facts.expert_tensors == whole.expert_tensors
    assert facts.file_bytes == sum(path.stat().st_size for path in facts.paths)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    error = refusal_of(tmp_path, part(0, 7, moe_tensors()), "m-00001-of-00007.gguf")
    assert "m-00002-of-00007.gguf" in error.because
    assert "and 2 more" in error.because


def test_a_later_part_names_the_first(tmp_path: Path) -> None:
    error = refusal_of(tmp_path, part(1, 2, moe_tensors()), "m-00002-of-00002.gguf")
    assert "m-00001-of-00002.gguf" in error.remedy


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    tensors = moe_tensors()
    second = tmp_path / "m-00002-of-00002.gguf"
    second.write_bytes(part(0, 2, tensors[4:]))
    assert "not part 2" in refusal_of(tmp_path, part(0, 2, tensors[:4]), "m-00001-of-00002.gguf").because
    second.write_bytes(part(1, 2, tensors[3:]))
    assert "two parts" in refusal_of(tmp_path, part(0, 2, tensors[:4]), "m-00001-of-00002.gguf").because
    second.write_bytes(part(1, 2, tensors[5:]))
    error = refusal_of(tmp_path, part(0, 2, tensors[:4], len(tensors)), "m-00001-of-00002.gguf")
    assert f"states {len(tensors)}" in error.because


def test_a_part_under_another_name_says_how_to_name_it(tmp_path: Path) -> None:
    assert "NAME-00001-of-00002.gguf" in refusal_of(tmp_path, part(0, 2, moe_tensors())).remedy
