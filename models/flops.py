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


def cache_bytes(cfg: ModelConfig, tokens: int) -> int:
    """Keys and values of `tokens` positions in the compute type."""
    size = {"float32": 4, "bfloat16": 2}[cfg.dtype]
    return 2 * cfg.layers * cfg.kv_heads * cfg.head_dim * size * tokens


def activation_bytes(
    cfg: ModelConfig, rows: int, prompt: int, prompts: int, length: int
) -> int:
    """What a forward pass keeps for its backward pass, float count times size.

    An estimate: it counts the tensors of `transformer.block` that the gradient
    reads under each remat policy, and the logits of one chunk.

    Args:
      cfg: the model.
      rows: completions in a microbatch.
      prompt: S, padded prompt width.
      prompts: prompts in the microbatch; their blocks run once each.
      length: T, padded completion width.
    """
    size = {"float32": 4, "bfloat16": 2}[cfg.dtype]
    D, Q, K, H, F = cfg.width, cfg.heads, cfg.kv_heads, cfg.head_dim, cfg.ffn
    tokens = prompts * prompt + rows * length
    scores = prompts * prompt * prompt + rows * length * (prompt + length)
    per_token = {
        "none": 6 * D + 3 * (Q + 2 * K) * H + Q * H + 4 * F,
        "dots": 3 * D + (Q + 2 * K) * H + 2 * F,
        "block": D,
    }[cfg.remat]
    kept_scores = 2 * Q * scores if cfg.remat == "none" else 0
    total = cfg.layers * (per_token * tokens + kept_scores) * size
    if cfg.remat == "block":  # One block's insides are alive while it is redone.
        inside = (6 * D + 3 * (Q + 2 * K) * H + Q * H + 4 * F) * tokens
        total += (inside + 2 * Q * scores) * size
    logits = min(cfg.logprob_chunk, rows * length) * cfg.vocab
    return total + 3 * 4 * logits
