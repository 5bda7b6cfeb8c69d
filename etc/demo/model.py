"""The network, in the exact form that llama.cpp computes for the architecture `qwen3moe`.

Pre-norm transformer; grouped-query attention with RMS-normalised queries and keys and
rotary positions that pair element i with element i + half; SwiGLU experts; a router that
takes the softmax over all experts, keeps the largest and rescales them to sum to one. The
output matrix is the token embedding: a file without `output.weight` is read that way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the network. Row widths are multiples of 32, the block of Q8_0."""

    token_count: int = 1280
    model_width: int = 192
    layer_count: int = 4
    head_count: int = 4
    key_value_head_count: int = 2
    # GPU attention kernels of llama.cpp start at heads of 64; smaller ones fall back.
    head_width: int = 64
    expert_count: int = 8
    experts_per_token: int = 2
    expert_width: int = 160
    context_length: int = 1024
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-6


class Expert(nn.Module):
    """One SwiGLU feed-forward block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.model_width, shape.expert_width, bias=False)
        self.up = nn.Linear(shape.model_width, shape.expert_width, bias=False)
        self.down = nn.Linear(shape.expert_width, shape.model_width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(states)) * self.up(states))


class MixtureOfExperts(nn.Module):
    """A router and its experts; each token is computed by `experts_per_token` of them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.experts_per_token = shape.experts_per_token
        self.router = nn.Linear(shape.model_width, shape.expert_count, bias=False)
        self.experts = nn.ModuleList(Expert(shape) for _ in range(shape.expert_count))

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Give the mixed outputs for `states` (token, model), and the balancing loss.

        The loss is 1 when tokens are spread evenly and grows to the number of experts when
        one takes all (Fedus et al. 2021, "Switch Transformers", equation 4, with shares
        counted over all chosen experts).
        """
        probabilities = self.router(states).float().softmax(dim=-1)
        weights, chosen = probabilities.topk(self.experts_per_token, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        mixed = torch.zeros_like(states)
        for expert_index, expert in enumerate(self.experts):
            token_index, slot = torch.where(chosen == expert_index)
            output = expert(states[token_index]) * weights[token_index, slot, None]
            mixed = mixed.index_add(0, token_index, output.to(mixed.dtype))
        expert_count = len(self.experts)
        share = torch.bincount(chosen.flatten(), minlength=expert_count) / chosen.numel()
        return mixed, expert_count * (share * probabilities.mean(dim=0)).sum()


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        query_width = shape.head_count * shape.head_width
        key_width = shape.key_value_head_count * shape.head_width
        self.query = nn.Linear(shape.model_width, query_width, bias=False)
        self.key = nn.Linear(shape.model_width, key_width, bias=False)
        self.value = nn.Linear(shape.model_width, key_width, bias=False)
        self.output = nn.Linear(query_width, shape.model_width, bias=False)
        self.query_norm = nn.RMSNorm(shape.head_width, eps=shape.norm_epsilon)
        self.key_norm = nn.RMSNorm(shape.head_width, eps=shape.norm_epsilon)

    def forward(self, states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Give the attention's output for `states` (batch, position, model)."""
        batch, positions, _ = states.shape
        by_head = (batch, positions, -1, self.shape.head_width)
        query = self.query_norm(self.query(states).view(by_head)).transpose(1, 2)
        key = self.key_norm(self.key(states).view(by_head)).transpose(1, 2)
        value = self.value(states).view(by_head).transpose(1, 2)
        query, key = rotate(query, rotation), rotate(key, rotation)
        group = self.shape.head_count // self.shape.key_value_head_count
        attended = functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(group, dim=1),
            value.repeat_interleave(group, dim=1),
            is_causal=True,
        )
        return self.output(attended.transpose(1, 2).reshape(batch, positions, -1))


class Layer(nn.Module):
    """Attention, then experts, each added to the residual stream."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.model_width, eps=shape.norm_epsilon)
        self.attention = Attention(shape)
        self.experts_norm = nn.RMSNorm(shape.model_width, eps=shape.norm_epsilon)
        self.mixture = MixtureOfExperts(shape)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        states = states + self.dropout(self.attention(self.attention_norm(states), rotation))
        mixed, imbalance = self.mixture(self.experts_norm(states).flatten(0, 1))
        return states + self.dropout(mixed.view_as(states)), imbalance


class LanguageModel(nn.Module):
    """Token ids in, logits over the next token out."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.token_count, shape.model_width)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(shape.layer_count))
        self.output_norm = nn.RMSNorm(shape.model_width, eps=shape.norm_epsilon)
        self.dropout = nn.Dropout(dropout)
        self.apply(self._initialise)

    def forward(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Give logits (batch, position, token) and the mean balancing loss of the layers."""
        rotation = rotation_table(self.shape, token_ids.shape[1])
        states = self.dropout(self.embedding(token_ids))
        imbalances = []
        for layer in self.layers:
            states, imbalance = layer(states, rotation)
            imbalances.append(imbalance)
        logits = functional.linear(self.output_norm(states), self.embedding.weight)
        return logits, torch.stack(imbalances).mean()

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, nn.Embedding):
            # The same matrix gives the logits, so it starts small: near-uniform guesses.
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, Attention):
            nn.init.normal_(module.output.weight, std=0.02)
        elif isinstance(module, Expert):
            nn.init.normal_(module.down.weight, std=0.02)


def rotation_table(shape: Shape, positions: int) -> tuple[Tensor, Tensor]:
    """Give cosines and sines (position, half a head) of the rotary embedding's angles."""
    exponents = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), shape.rope_base**-exponents)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn `heads` (batch, head, position, width) by their positions, in halves (NEOX)."""
    cosine, sine = (table.to(heads.dtype) for table in rotation)
    first, second = heads.chunk(2, dim=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(turned, dim=-1)
