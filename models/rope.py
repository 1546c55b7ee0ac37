"""Rotary position embedding in the half-split layout of Llama and Qwen checkpoints.

Prefill, decode and training all call `angles`, so no path can disagree with
another about scaling. Frequencies are computed in float64 NumPy while tracing.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from models.config import RopeConfig


def frequencies(cfg: RopeConfig, head_dim: int) -> np.ndarray:
    """Radians per position of each of the head_dim / 2 pairs, float64.

    Source: llama3 and yarn as in the released checkpoints' reference code;
    YaRN is arXiv:2309.00071.
    """
    freq = cfg.theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if cfg.scaling == "none":
        return freq
    if cfg.scaling == "linear":
        return freq / cfg.factor
    if cfg.scaling == "llama3":
        rotations = cfg.original_length * freq / (2 * math.pi)
        span = cfg.high_freq_factor - cfg.low_freq_factor
        keep = np.clip((rotations - cfg.low_freq_factor) / span, 0, 1)
        return freq * (keep + (1 - keep) / cfg.factor)

    def pair_of(rotations: float) -> float:
        """Index of the pair that turns this often over the original context."""
        turns = cfg.original_length / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(cfg.theta))

    low = max(math.floor(pair_of(cfg.beta_fast)), 0)
    high = min(math.ceil(pair_of(cfg.beta_slow)), head_dim - 1)
    ramp = (np.arange(head_dim // 2) - low) / max(high - low, 1e-3)
    keep = 1 - np.clip(ramp, 0, 1)
    return freq * (keep + (1 - keep) / cfg.factor)


def magnitude(cfg: RopeConfig) -> float:
    """Factor on cos and sin; 1 except for yarn, whose mscale keys may change it."""
    if cfg.scaling != "yarn":
        return 1.0

    def grow(mscale: float) -> float:
        return 0.1 * mscale * math.log(cfg.factor) + 1.0

    if cfg.mscale and cfg.mscale_all_dim:
        return grow(cfg.mscale) / grow(cfg.mscale_all_dim)
    return grow(1.0)


def angles(
    cfg: RopeConfig, head_dim: int, position: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """cos and sin, float32 [..., head_dim / 2], of int positions [...]."""
    freq = jnp.asarray(frequencies(cfg, head_dim), jnp.float32)
    angle = jnp.einsum("...,F->...F", position.astype(jnp.float32), freq)
    scale = magnitude(cfg)
    return jnp.cos(angle) * scale, jnp.sin(angle) * scale


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turns pair (i, i + H/2) of x [..., heads, H] by its angle [..., H/2]."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    c, s = cos[..., None, :], sin[..., None, :]
    return jnp.concatenate([a * c - b * s, b * c + a * s], axis=-1).astype(x.dtype)
