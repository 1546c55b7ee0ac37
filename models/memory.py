"""Bytes that a pass holds on one device, estimated from shapes.

Counted are weights-sized trees by the caller, and here the arrays that a decoder's
block makes; what XLA fuses or reuses is not known before it compiles.
"""

from models.config import ModelConfig

_SIZE = {"float32": 4, "bfloat16": 2}


def cache(cfg: ModelConfig, tokens: int) -> int:
    """Keys and values of `tokens` positions in the compute type."""
    return 2 * cfg.layers * cfg.kv_heads * cfg.head_dim * _SIZE[cfg.dtype] * tokens


def block(cfg: ModelConfig, tokens: int, scores: int) -> int:
    """All that one block makes and its gradient reads.

    Args:
      cfg: the decoder.
      tokens: positions that go through it.
      scores: (query, key) pairs, masked ones included.
    """
    D, Q, H, F = cfg.width, cfg.heads, cfg.head_dim, cfg.ffn
    heads = (Q + 2 * cfg.kv_heads) * H
    per_token = 8 * D + 3 * heads + Q * H + 5 * F
    return _SIZE[cfg.dtype] * (per_token * tokens + 2 * Q * scores)


def update(cfg: ModelConfig, rows: int, prompt: int, prompts: int, length: int) -> int:
    """What a microbatch's forward pass keeps, and its backward pass adds.

    Args:
      cfg: the decoder; its remat policy decides what each layer keeps.
      rows: completions in the microbatch.
      prompt: S, padded prompt width.
      prompts: prompts in the microbatch; their blocks run once each.
      length: T, padded completion width.
    """
    D, F = cfg.width, cfg.ffn
    heads = (cfg.heads + 2 * cfg.kv_heads) * cfg.head_dim
    tokens = prompts * prompt + rows * length
    scores = prompts * prompt * prompt + rows * length * (prompt + length)
    whole = block(cfg, tokens, scores)
    kept = {
        "none": whole,
        "dots": _SIZE[cfg.dtype] * (3 * D + heads + 2 * F) * tokens,
        "block": _SIZE[cfg.dtype] * D * tokens,
    }[cfg.remat]
    # Logits, their exponentials and their gradient, float32, a chunk at a time.
    logits = 3 * 4 * min(cfg.logprob_chunk, rows * length) * cfg.vocab
    # One block's insides are alive while its gradient is taken.
    return cfg.layers * kept + whole + logits
