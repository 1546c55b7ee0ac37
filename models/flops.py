"""Floating-point operations of each pass, counted from shapes.

Convention: a multiply-add is two operations; matrix products and attention
products count, element-wise work does not. The embedding look-up is free, the
output head is not, tied or untied. `tokens` are real tokens and `pairs` the
(query, key) pairs that attention must score, so padding costs nothing here; pass
padded counts to get what the machine executes, which is what XLA reports.

Backward costs twice the forward. A rematerialised pass repeats what its policy
does not keep: whole blocks for "block", attention products for "dots".
"""

from typing import TypeVar

import numpy as np

from models.config import ModelConfig

# Lengths may come one at a time or as an array.
Length = TypeVar("Length", int, np.ndarray)


def matmul_params(cfg: ModelConfig) -> int:
    """Weights that multiply every token inside the blocks; no head, no norms."""
    D, Q, K, H = cfg.width, cfg.heads, cfg.kv_heads, cfg.head_dim
    attention = D * (Q + 2 * K) * H + Q * H * D
    return cfg.layers * (attention + 3 * D * cfg.ffn)


def attention(cfg: ModelConfig, pairs: int) -> int:
    """Scores and mixtures of `pairs` (query, key) pairs, over all heads and layers."""
    return 4 * cfg.layers * cfg.heads * cfg.head_dim * pairs


def head(cfg: ModelConfig, tokens: int) -> int:
    """Logits of `tokens` positions."""
    return 2 * cfg.width * cfg.vocab * tokens


def forward(cfg: ModelConfig, tokens: int, pairs: int, head_tokens: int) -> int:
    """One forward pass: `tokens` through the blocks, `head_tokens` to logits."""
    blocks = 2 * matmul_params(cfg) * tokens + attention(cfg, pairs)
    return blocks + head(cfg, head_tokens)


def backward(cfg: ModelConfig, tokens: int, pairs: int, head_tokens: int) -> int:
    """Gradient of `forward`, without what it recomputes."""
    return 2 * forward(cfg, tokens, pairs, head_tokens)


def recompute(cfg: ModelConfig, tokens: int, pairs: int, head_tokens: int) -> int:
    """What the backward pass computes a second time.

    The logits always, since they are never held whole.
    """
    again = {
        "none": 0,
        "dots": attention(cfg, pairs),
        "block": forward(cfg, tokens, pairs, 0),
    }
    return again[cfg.remat] + head(cfg, head_tokens)


def causal_pairs(length: Length) -> Length:
    """Pairs of a row that sees itself: position t looks at t + 1 keys."""
    return length * (length + 1) // 2


def completion_pairs(prompt: Length, length: Length) -> Length:
    """Pairs of `length` tokens, each seeing the prompt and itself upwards."""
    return prompt * length + causal_pairs(length)
