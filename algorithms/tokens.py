"""Tokens of an update, as the rules that weigh them see them."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from algorithms import stats


class Tokens(NamedTuple):
    """N rows of T tokens, all detached.

    Log-probabilities are nats, at least float32, and 0 off the mask, so that no
    rule can be reached by what padding holds.

    Attributes:
      logp_NT: under the policy being trained.
      logo_NT: under the anchor, the policy that a trust region is drawn around.
      logq_NT: under the distribution that sampled, truncation included.
      mask_NT: bool, completion tokens of rows that are trained on.
      adv_N: float, advantages; 0 on rows that say nothing.
      group_N: int32 in [0, N), rows of one problem share a number.
    """

    logp_NT: jax.Array
    logo_NT: jax.Array
    logq_NT: jax.Array
    mask_NT: jax.Array
    adv_N: jax.Array
    group_N: jax.Array


def of(
    logp_NT: jax.Array,
    logo_NT: jax.Array,
    mask_NT: jax.Array,
    adv_N: jax.Array,
    logq_NT: jax.Array | None = None,
    group_N: jax.Array | None = None,
) -> Tokens:
    """Tokens with everything off the mask set to 0 and no gradient left.

    Args:
      logp_NT: float nats.
      logo_NT: float nats.
      mask_NT: bool.
      adv_N: float.
      logq_NT: float nats; None takes the anchor's.
      group_N: int; None makes every row a group.

    Raises:
      AssertionError: shapes differ or mask_NT is not bool; while tracing.
    """
    logq_NT = logo_NT if logq_NT is None else logq_NT
    chex.assert_rank([logp_NT, logo_NT, logq_NT, mask_NT, adv_N], [2, 2, 2, 2, 1])
    chex.assert_equal_shape([logp_NT, logo_NT, logq_NT, mask_NT])
    chex.assert_equal_shape_prefix([mask_NT, adv_N], 1)
    chex.assert_type(mask_NT, bool)
    if group_N is None:
        group_N = jnp.arange(mask_NT.shape[0])

    def clean(x_NT: jax.Array) -> jax.Array:
        # `where`, not a product with the mask: padding may hold inf or NaN, and
        # whether NaN * False is 0 or NaN depends on what XLA fuses.
        fixed_NT = jax.lax.stop_gradient(stats.wide(jnp.asarray(x_NT)))
        return jnp.where(mask_NT, fixed_NT, 0.0)

    return Tokens(
        logp_NT=clean(logp_NT),
        logo_NT=clean(logo_NT),
        logq_NT=clean(logq_NT),
        mask_NT=jnp.asarray(mask_NT),
        adv_N=jax.lax.stop_gradient(stats.wide(jnp.asarray(adv_N))),
        group_N=group_N,
    )


def index(mask_NT: jax.Array) -> jax.Array:
    """Place of every token in its completion, from 1; at least 1. int32 [N, T].

    Counts masked-in tokens only, so padding on either side and holes do not advance
    it.
    """
    return jnp.maximum(jnp.cumsum(mask_NT, axis=1), 1)


def length(mask_NT: jax.Array) -> jax.Array:
    """Tokens of every row, at least 1. int32 [N, 1]."""
    return jnp.maximum(jnp.sum(mask_NT, axis=1, keepdims=True), 1)
