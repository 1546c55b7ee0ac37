"""How much each token counts: the weights that turn a sum over tokens into a mean.

An aggregation maps (mask_NT, keep_N, limit) to float32 weight_NT, 0 off the mask and
on rows not kept. It sees the whole batch once, before any split, so the loss of a
batch is the plain sum of the losses of its parts: microbatches, devices and padding
drop out of the mathematics. `limit` is the configured longest completion, never a
padded width.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

Aggregate = Callable[[jax.Array, jax.Array, int], jax.Array]


def _counted(mask_NT: jax.Array, keep_N: jax.Array) -> jax.Array:
    chex.assert_rank([mask_NT, keep_N], [2, 1])
    chex.assert_type([mask_NT, keep_N], bool)
    return mask_NT & keep_N[:, None]


def _rows(keep_N: jax.Array) -> jax.Array:
    return jnp.maximum(jnp.sum(keep_N), 1).astype(jnp.float32)


def token_mean(mask_NT: jax.Array, keep_N: jax.Array, limit: int) -> jax.Array:
    """Every token of the batch alike: 1 / tokens. Source: DAPO, arXiv:2503.14476."""
    counted_NT = _counted(mask_NT, keep_N)
    tokens = jnp.maximum(jnp.sum(counted_NT), 1).astype(jnp.float32)
    return jnp.where(counted_NT, 1.0 / tokens, 0.0)


def sequence_mean(mask_NT: jax.Array, keep_N: jax.Array, limit: int) -> jax.Array:
    """Every completion alike: 1 / (completions x its length). Source: GRPO."""
    counted_NT = _counted(mask_NT, keep_N)
    length_N1 = jnp.maximum(jnp.sum(counted_NT, axis=1, keepdims=True), 1)
    return jnp.where(counted_NT, 1.0 / (_rows(keep_N) * length_N1), 0.0)


def sequence_sum(mask_NT: jax.Array, keep_N: jax.Array, limit: int) -> jax.Array:
    """Tokens summed, completions averaged: 1 / completions, as in REINFORCE."""
    return jnp.where(_counted(mask_NT, keep_N), 1.0 / _rows(keep_N), 0.0)


def constant(mask_NT: jax.Array, keep_N: jax.Array, limit: int) -> jax.Array:
    """1 / (completions x limit), whatever the lengths. Source: Dr. GRPO, 2503.20783."""
    return jnp.where(_counted(mask_NT, keep_N), 1.0 / (_rows(keep_N) * limit), 0.0)
