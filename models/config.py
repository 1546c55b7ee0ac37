"""What a decoder is: the typed, frozen description that every model function takes.

One set of fields covers Llama-3 (rope scaling), Qwen2 / 2.5 (bias on q, k, v),
Qwen3 (norm on q and k) and their tied and untied heads.
"""

import dataclasses
from typing import Any

SCALINGS = ("none", "linear", "llama3", "yarn")
REMAT = ("none", "dots", "block")
DTYPES = ("float32", "bfloat16")


def field(default: Any, help: str, **metadata: Any) -> Any:
    """A config field; `help` becomes the help text of its flag."""
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """How positions turn into angles; field names follow released checkpoints."""

    theta: float = field(10_000.0, "base of the rotary frequencies")
    scaling: str = field("none", f"context extension, one of {', '.join(SCALINGS)}")
    factor: float = field(1.0, "context is extended this many times")
    low_freq_factor: float = field(1.0, "llama3: fewer rotations than this scale fully")
    high_freq_factor: float = field(4.0, "llama3: more rotations than this stay")
    original_length: int = field(8192, "llama3, yarn: context before extension, tokens")
    beta_fast: float = field(32.0, "yarn: more rotations than this stay")
    beta_slow: float = field(1.0, "yarn: fewer rotations than this scale fully")
    mscale: float = field(0.0, "yarn: magnitude numerator, 0 where absent")
    mscale_all_dim: float = field(0.0, "yarn: magnitude denominator, 0 where absent")

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise ValueError(f"rope.scaling={self.scaling!r} is not one of {SCALINGS}")
        if self.theta <= 1 or self.factor < 1 or self.original_length < 1:
            raise ValueError(
                "rope needs theta > 1, factor >= 1 and original_length >= 1, got"
                f" theta={self.theta}, factor={self.factor},"
                f" original_length={self.original_length}"
            )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer."""

    layers: int = field(2, "L, number of blocks")
    width: int = field(128, "D, residual width")
    heads: int = field(4, "Q, query heads")
    kv_heads: int = field(2, "K, key-value heads; each serves Q / K query heads")
    head_dim: int = field(32, "H, size of a head; need not be width / heads")
    ffn: int = field(256, "F, width of the gated feed-forward layer")
    vocab: int = field(0, "V, number of token ids; 0 takes the tokenizer's size")
    qkv_bias: bool = field(False, "bias on q, k, v, as in Qwen2")
    qk_norm: bool = field(True, "RMS norm on each q and k head, as in Qwen3")
    tied: bool = field(True, "output head shares the embedding")
    norm_eps: float = field(1e-6, "epsilon of every RMS norm")
    rope: RopeConfig = dataclasses.field(default_factory=RopeConfig)
    dtype: str = field(
        "float32", "of activations and matrix products; weights: float32"
    )
    remat: str = field("none", "what the backward pass recomputes: none, dots or block")
    unroll: int = field(1, "blocks unrolled in each step of the scan over layers")
    logprob_chunk: int = field(
        4096, "positions whose [V] logits are held at once in the update"
    )

    def __post_init__(self) -> None:
        sizes = ("layers", "width", "heads", "kv_heads", "head_dim", "ffn")
        for name in (*sizes, "logprob_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name}={getattr(self, name)} must be >= 1")
        if self.vocab < 0:
            raise ValueError(f"model.vocab={self.vocab} must be >= 0")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"model.heads={self.heads} is not a multiple of"
                f" model.kv_heads={self.kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"model.head_dim={self.head_dim} must be even")
        if self.dtype not in DTYPES:
            raise ValueError(f"model.dtype={self.dtype!r} is not one of {DTYPES}")
        if self.remat not in REMAT:
            raise ValueError(f"model.remat={self.remat!r} is not one of {REMAT}")
        if not 1 <= self.unroll <= self.layers:
            raise ValueError(f"model.unroll={self.unroll} is not in 1..{self.layers}")
        if not 0 < self.norm_eps < 1:
            raise ValueError(f"model.norm_eps={self.norm_eps} is not in (0, 1)")
