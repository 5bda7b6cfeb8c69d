"""Check that the written file computes what was trained.

Two questions. Does the file, read by nothing but its own keys and names, give the same
logits as the network (`forward` below is a second implementation, in numpy and without
torch)? And what did quantisation cost in held-out loss?
"""

from __future__ import annotations

import copy
import logging
import math
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
from export import load_tensors, read_tensors
from model import LanguageModel
from torch.nn import functional

log = logging.getLogger("check")

# Both implementations use 32-bit floats and differ in the order of their sums.
LOGIT_TOLERANCE = 1e-3
CHECKED_TOKENS = 256
TOKENS_AT_ONCE = 4096

# One layer's tensors by the middle part of their names, and the file's numbers by their keys
# without the architecture in front.
Tensors = dict[str, numpy.ndarray]
Numbers = dict[str, Any]


def check_export(path: Path, model: LanguageModel, held_out_ids: numpy.ndarray, held_out_bytes: int) -> None:
    """Log the held-out numbers before and after quantisation, and compare the logits.

    Raises:
        SystemExit: The file's logits are not those of the network with the file's weights.
    """
    quantised = copy.deepcopy(model).eval()
    load_tensors(quantised, read_tensors(path))

    token_ids = held_out_ids[:CHECKED_TOKENS]
    from_file = forward(path, token_ids)
    with torch.no_grad():
        from_network = quantised(torch.from_numpy(token_ids)[None])[0][0].numpy()
    difference = float(numpy.abs(from_file - from_network).max())
    log.info("largest difference of a logit between file and network: %.2g", difference)
    if difference > LOGIT_TOLERANCE:
        raise SystemExit(f"{path} does not compute what was trained")

    window = model.shape.context_length
    tokens_per_byte = len(held_out_ids) / held_out_bytes
    for label, network in (("trained", model), ("quantised", quantised)):
        loss = held_out_loss(network, held_out_ids, window)
        log.info(
            "%s: held-out loss %.4f nats per token, perplexity %.2f, %.3f bits per byte",
            label,
            loss,
            math.exp(loss),
            loss * tokens_per_byte / math.log(2),
        )
    log.info("share of tokens per expert: %s", expert_shares(quantised, held_out_ids, window))


@torch.no_grad()
def held_out_loss(model: LanguageModel, token_ids: numpy.ndarray, window: int) -> float:
    """Give the mean loss per token, in nats, over consecutive windows of the text."""
    model.eval()
    count = (len(token_ids) - 1) // window
    sequences = torch.from_numpy(
        numpy.stack([token_ids[i * window : (i + 1) * window + 1] for i in range(count)])
    )
    total = 0.0
    for group in sequences.split(max(1, TOKENS_AT_ONCE // window)):
        logits, _ = model(group[:, :-1])
        targets = group[:, 1:].flatten()
        total += functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum").item()
    return total / (count * window)


@torch.no_grad()
def expert_shares(model: LanguageModel, token_ids: numpy.ndarray, window: int) -> list[list[str]]:
    """Give, for every layer, the share of choices that each expert gets."""
    choices: list[list[torch.Tensor]] = [[] for _ in model.layers]
    hooks = [
        layer.mixture.router.register_forward_hook(
            lambda _module, _inputs, scores, chosen=chosen: chosen.append(
                scores.topk(model.shape.experts_per_token).indices.flatten()
            )
        )
        for layer, chosen in zip(model.layers, choices, strict=True)
    ]
    held_out_loss(model, token_ids[: 16 * window + 1], window)
    for hook in hooks:
        hook.remove()
    shares = []
    for chosen in choices:
        counts = torch.bincount(torch.cat(chosen), minlength=model.shape.expert_count)
        shares.append([f"{share:.2f}" for share in (counts / counts.sum()).tolist()])
    return shares


def forward(path: Path, token_ids: numpy.ndarray) -> numpy.ndarray:
    """Give the logits (position, token) that the file gives for one sequence."""
    fields = gguf.GGUFReader(path).fields
    number = {
        name.removeprefix("qwen3moe."): field.contents()
        for name, field in fields.items()
        if name.startswith("qwen3moe.")
    }
    tensors = read_tensors(path)
    epsilon = number["attention.layer_norm_rms_epsilon"]
    states = tensors["token_embd.weight"][token_ids]
    for index in range(number["block_count"]):
        prefix = f"blk.{index}."
        weights = {
            name.removeprefix(prefix).removesuffix(".weight"): values
            for name, values in tensors.items()
            if name.startswith(prefix)
        }
        states = states + _attention(_norm(states, weights["attn_norm"], epsilon), weights, number)
        states = states + _experts(_norm(states, weights["ffn_norm"], epsilon), weights, number)
    return _norm(states, tensors["output_norm.weight"], epsilon) @ tensors["token_embd.weight"].T


def _norm(states: numpy.ndarray, weight: numpy.ndarray, epsilon: float) -> numpy.ndarray:
    return states / numpy.sqrt((states**2).mean(-1, keepdims=True) + epsilon) * weight


def _softmax(scores: numpy.ndarray) -> numpy.ndarray:
    powers = numpy.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _attention(states: numpy.ndarray, weights: Tensors, number: Numbers) -> numpy.ndarray:
    positions, width = len(states), number["attention.key_length"]
    epsilon = number["attention.layer_norm_rms_epsilon"]

    def heads(name: str) -> numpy.ndarray:
        return (states @ weights[name].T).reshape(positions, -1, width).transpose(1, 0, 2)

    query = _rotate(_norm(heads("attn_q"), weights["attn_q_norm"], epsilon), number)
    key = _rotate(_norm(heads("attn_k"), weights["attn_k_norm"], epsilon), number)
    group = number["attention.head_count"] // number["attention.head_count_kv"]
    key, value = key.repeat(group, axis=0), heads("attn_v").repeat(group, axis=0)
    scores = query @ key.transpose(0, 2, 1) / numpy.sqrt(width)
    scores = numpy.where(numpy.tri(positions, dtype=bool), scores, -numpy.inf)
    attended = (_softmax(scores) @ value).transpose(1, 0, 2).reshape(positions, -1)
    return attended @ weights["attn_output"].T


def _rotate(heads: numpy.ndarray, number: Numbers) -> numpy.ndarray:
    half = heads.shape[-1] // 2
    angles = numpy.outer(
        numpy.arange(heads.shape[1]), number["rope.freq_base"] ** (-numpy.arange(half) / half)
    )
    turn = numpy.exp(1j * angles)
    turned = (heads[..., :half] + 1j * heads[..., half:]) * turn
    return numpy.concatenate([turned.real, turned.imag], axis=-1).astype(numpy.float32)


def _experts(states: numpy.ndarray, weights: Tensors, number: Numbers) -> numpy.ndarray:
    probabilities = _softmax(states @ weights["ffn_gate_inp"].T)
    chosen = probabilities.argsort(-1)[:, -number["expert_used_count"] :]
    mixed = numpy.zeros_like(states)
    for position, experts in enumerate(chosen):
        share = probabilities[position, experts] / probabilities[position, experts].sum()
        for expert, weight in zip(experts, share, strict=True):
            gate = weights["ffn_gate_exps"][expert] @ states[position]
            up = weights["ffn_up_exps"][expert] @ states[position]
            activated = gate / (1 + numpy.exp(-gate)) * up
            mixed[position] += weight * (weights["ffn_down_exps"][expert] @ activated)
    return mixed
