"""What a reward is compared with.

A baseline maps (reward_PG, valid_PG) to float32 [P, G]. It reads valid slots only.
"""

import jax
import jax.numpy as jnp

from algorithms import stats


def mean(reward_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """The group's mean, the reward itself included. Source: GRPO, arXiv:2402.03300."""
    return jnp.broadcast_to(stats.mean(reward_PG, valid_PG), reward_PG.shape)


def median(reward_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """The group's median; of an even count the mean of the middle two.

    Source: MC-GRPO, arXiv:2601.22582, which samples an odd group so that the median
    is one of its rewards. The reference code takes the lower of the middle two of an
    even group, which is biased low; that case arises here only when an odd group
    lost a rollout that could not be scored.
    """
    return jnp.broadcast_to(stats.median(reward_PG, valid_PG), reward_PG.shape)


def leave_one_out(reward_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Mean of the others: reward - baseline = (reward - mean) n / (n - 1).

    A lone reward is its own baseline, which gives it no advantage.
    Source: RLOO, arXiv:2402.14740.
    """
    n_P1 = stats.count(valid_PG)
    others_PG = stats.total(reward_PG, valid_PG) - reward_PG
    return jnp.where(n_P1 > 1, others_PG / jnp.maximum(n_P1 - 1.0, 1.0), reward_PG)
