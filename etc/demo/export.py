"""Write the trained network as a GGUF file of architecture `qwen3moe`.

Matrices are stored as Q8_0 (blocks of 32 weights, one scale each), which costs next to no
accuracy and which every backend computes. Norms and routers stay in 32-bit floats: they are
small, and a rounded router would send tokens to other experts.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy
import torch
from model import LanguageModel, Layer, Shape
from torch import nn
from vocabulary import Vocabulary

ARCHITECTURE = "qwen3moe"
ROUTER_SUFFIX = "ffn_gate_inp.weight"

# The model knows prose, not dialogue: what was said so far is the beginning of a text that
# it goes on writing. Instructions from a system message would only be read as more prose.
CHAT_TEMPLATE = (
    "{%- for message in messages if message['role'] != 'system' -%}"
    "{{- message['content'] | trim -}}"
    "{%- if not loop.last -%}{{- '\\n' -}}{%- endif -%}"
    "{%- endfor -%}"
)

DESCRIPTION = (
    "A very small mixture-of-experts model that continues text in the manner of "
    "Jane Austen's novels. It demonstrates serving; it knows nothing and answers nothing."
)


def write_gguf(path: Path, model: LanguageModel, vocabulary: Vocabulary) -> None:
    """Write metadata, vocabulary and quantised weights to `path`, replacing the file."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    _add_description(writer)
    _add_shape(writer, model.shape)
    _add_vocabulary(writer, vocabulary)
    for name, parameters in named_parameters(model).items():
        values = _values(parameters)
        if values.ndim == 1 or name.endswith(ROUTER_SUFFIX):
            writer.add_tensor(name, values)
        else:
            blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_tensors(path: Path) -> dict[str, numpy.ndarray]:
    """Give every tensor of the file as 32-bit floats, quantised ones decoded."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
    }


def load_tensors(model: LanguageModel, tensors: dict[str, numpy.ndarray]) -> None:
    """Replace the model's weights by those of a file."""
    for name, parameters in named_parameters(model).items():
        values = torch.from_numpy(numpy.array(tensors[name], dtype=numpy.float32))
        with torch.no_grad():
            if isinstance(parameters, nn.Parameter):
                parameters.copy_(values)
            else:
                for parameter, expert_values in zip(parameters, values, strict=True):
                    parameter.copy_(expert_values)


def named_parameters(model: LanguageModel) -> dict[str, nn.Parameter | list[nn.Parameter]]:
    """Give the parameters under their GGUF names; a list holds one matrix per expert.

    A matrix is (output, input) in both worlds, and numpy's order of axes is the reverse of
    GGUF's, so nothing is transposed. There is no `output.weight`: the embedding is used.
    """
    named: dict[str, nn.Parameter | list[nn.Parameter]] = {
        "token_embd.weight": model.embedding.weight,
        "output_norm.weight": model.output_norm.weight,
    }
    for index, layer in enumerate(model.layers):
        for name, parameters in _named_layer_parameters(layer).items():
            named[f"blk.{index}.{name}.weight"] = parameters
    return named


def _named_layer_parameters(layer: Layer) -> dict[str, nn.Parameter | list[nn.Parameter]]:
    attention, experts = layer.attention, layer.mixture.experts
    return {
        "attn_norm": layer.attention_norm.weight,
        "attn_q": attention.query.weight,
        "attn_k": attention.key.weight,
        "attn_v": attention.value.weight,
        "attn_q_norm": attention.query_norm.weight,
        "attn_k_norm": attention.key_norm.weight,
        "attn_output": attention.output.weight,
        "ffn_norm": layer.experts_norm.weight,
        "ffn_gate_inp": layer.mixture.router.weight,
        "ffn_gate_exps": [expert.gate.weight for expert in experts],
        "ffn_up_exps": [expert.up.weight for expert in experts],
        "ffn_down_exps": [expert.down.weight for expert in experts],
    }


def _values(parameters: nn.Parameter | list[nn.Parameter]) -> numpy.ndarray:
    if isinstance(parameters, list):
        return torch.stack([parameter.detach() for parameter in parameters]).numpy()
    return parameters.detach().numpy()


def _add_description(writer: gguf.GGUFWriter) -> None:
    writer.add_type("model")
    writer.add_name("stratad demo MoE")
    writer.add_description(DESCRIPTION)
    writer.add_license("MIT")
    writer.add_languages(["en"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.model_width)
    writer.add_block_count(shape.layer_count)
    # The width of a dense feed-forward block, which this model does not have. Readers that
    # ask for it get what a token passes through.
    writer.add_feed_forward_length(shape.expert_width * shape.experts_per_token)
    writer.add_expert_feed_forward_length(shape.expert_width)
    writer.add_expert_count(shape.expert_count)
    writer.add_expert_used_count(shape.experts_per_token)
    writer.add_head_count(shape.head_count)
    writer.add_head_count_kv(shape.key_value_head_count)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.token_count)


def _add_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    types = [gguf.TokenType.NORMAL] * len(vocabulary.tokens)
    types[vocabulary.end_of_text_id] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(types)
    writer.add_token_merges(vocabulary.merges)
    # Training puts the mark between chapters, so it also stands where a text begins; it is
    # not put in front of a prompt, which is more often the middle of something.
    writer.add_bos_token_id(vocabulary.end_of_text_id)
    writer.add_eos_token_id(vocabulary.end_of_text_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
