"""From rewards to advantages, and from log-probabilities to a loss.

The policy term of every method has the same gradient:

  sum over tokens of  weight * gate * ratio * advantage * grad logp

with all but the last factor held constant. A method chooses the factors.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from algorithms import gates, stats
from algorithms.methods import Method

# exp(20) = 5e8: beyond any ratio that means something, far below float32's limit.
MAX_LOG_RATIO = 20.0

# Rewards of a group that differ by less than this share of their size are equal:
# rounding must not be blown up to a full-size advantage.
SAME_REWARD = 1e-6


class Advantages(NamedTuple):
    """What the rewards of a batch say, before any log-probability is known.

    Attributes:
      adv_PG: float32, 0 on rollouts not kept and on constant groups.
      keep_PG: bool, the rollouts an update may see.
      constant_P: bool, groups whose scored rewards are all equal, singletons too.
      fallback_P: bool, groups whose scale fell back and whose advantages are not 0.
    """

    adv_PG: jax.Array
    keep_PG: jax.Array
    constant_P: jax.Array
    fallback_P: jax.Array


def advantages(method: Method, reward_PG: jax.Array, valid_PG: jax.Array) -> Advantages:
    """(reward - baseline) / scale of every kept rollout, group by group.

    Args:
      method: its baseline, scale and keep parts are used.
      reward_PG: float; invalid slots may hold anything, NaN included.
      valid_PG: bool, True on scored rollouts. Others leave the group's statistics.

    Returns:
      The advantages. No group sees another.

    Raises:
      AssertionError: shapes differ or valid_PG is not bool; while tracing.
    """
    chex.assert_rank([reward_PG, valid_PG], 2)
    chex.assert_equal_shape([reward_PG, valid_PG])
    chex.assert_type(valid_PG, bool)
    reward_PG = jnp.where(valid_PG, reward_PG, 0.0).astype(jnp.float32)
    size_P1 = stats.magnitude(reward_PG, valid_PG)
    constant_P1 = stats.spread(reward_PG, valid_PG) <= SAME_REWARD * size_P1
    centred_PG = reward_PG - method.baseline(reward_PG, valid_PG)
    scale = method.scale(centred_PG, valid_PG)
    keep_PG = method.keep(centred_PG, valid_PG)
    # A constant group may have scale 0 as well; 1 keeps 0 / 0 from arising at all.
    safe_P1 = jnp.where(constant_P1, 1.0, scale.scale_P1)
    adv_PG = jnp.where(keep_PG & ~constant_P1, centred_PG / safe_P1, 0.0)
    return Advantages(
        adv_PG, keep_PG, constant_P1[:, 0], (scale.fallback_P1 & ~constant_P1)[:, 0]
    )


class Batch(NamedTuple):
    """Rows of an update, all that is not the trained policy.

    Attributes:
      adv_N: float32.
      weight_NT: float32 from the method's aggregation over the whole batch.
      logo_NT: float32 nats, the anchor's log-probabilities.
      mask_NT: bool, completion tokens.
    """

    adv_N: jax.Array
    weight_NT: jax.Array
    logo_NT: jax.Array
    mask_NT: jax.Array


def loss(
    method: Method, gate: gates.Gate, logp_NT: jax.Array, batch: Batch
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """What some rows of a batch add to the loss, to be minimised, and to metrics.

    Args:
      method: its ratio part is used.
      gate: the method's gate with its widths.
      logp_NT: float nats under the trained policy; the only source of gradient.
      batch: the rows.

    Returns:
      The loss, and sums of metrics. All are sums over tokens with the batch's own
      weights: adding them over the parts of a batch gives the batch's.
      On policy the loss is minus the weighted mean advantage, often near 0 while its
      gradient is not.
    """
    chex.assert_equal_shape([logp_NT, batch.weight_NT, batch.mask_NT])
    # Masked before any arithmetic: padding may hold -inf, and -inf + inf is NaN.
    logp_NT = jnp.where(batch.mask_NT, logp_NT, 0.0)
    fixed_NT = jax.lax.stop_gradient(logp_NT)
    log_ratio_NT = method.ratio(fixed_NT, batch.logo_NT, batch.mask_NT)
    gate_NT = gate(log_ratio_NT, batch.adv_N, batch.mask_NT)
    ratio_NT = jnp.exp(jnp.minimum(log_ratio_NT, MAX_LOG_RATIO))
    coef_NT = batch.weight_NT * gate_NT * ratio_NT * batch.adv_N[:, None]
    # 1 with the gradient of logp.
    moving_NT = 1.0 + logp_NT - fixed_NT
    sums = {
        "log_ratio": jnp.sum(batch.weight_NT * log_ratio_NT),
        "log_ratio_sq": jnp.sum(batch.weight_NT * jnp.square(log_ratio_NT)),
        "gated": jnp.sum(batch.weight_NT * (1.0 - gate_NT)),
        "weight": jnp.sum(batch.weight_NT),
        "surprisal": -jnp.sum(fixed_NT),
        "tokens": jnp.sum(batch.mask_NT).astype(jnp.float32),
    }
    return -jnp.sum(coef_NT * moving_NT), sums
