"""What an update tells about itself: sums that parts of a batch add up to.

Every figure is a ratio of two sums over tokens, each taken with the batch's own
weights, so microbatches, devices and padding cannot change it. `token_sums` makes the
sums of some rows, `summarise` divides those of the whole batch.
"""

from typing import Any

import jax
import jax.numpy as jnp

from algorithms import corrections, penalties, stats
from algorithms.tokens import Tokens


def token_sums(
    tokens: Tokens, weight_NT: jax.Array, gate_NT: jax.Array, correction_NT: jax.Array
) -> dict[str, Any]:
    """Sums over the tokens of some rows of an update."""
    total = lambda x_NT: jnp.sum(jnp.where(tokens.mask_NT, weight_NT * x_NT, 0.0))
    log_ratio_NT = tokens.logp_NT - tokens.logo_NT
    up_NT = jnp.broadcast_to(tokens.adv_N[:, None] > 0, weight_NT.shape)
    down_NT = jnp.broadcast_to(tokens.adv_N[:, None] < 0, weight_NT.shape)
    held_NT = gate_NT == 0
    # Policy over sampler: what importance weights would have to be.
    off_NT = tokens.logp_NT - tokens.logq_NT
    ones_NT = jnp.ones_like(weight_NT)
    return {
        "weight": total(ones_NT),
        "log_ratio": total(log_ratio_NT),
        "log_ratio_sq": total(jnp.square(log_ratio_NT)),
        "gated": total(jnp.where((up_NT | down_NT) & held_NT, 1.0, 0.0)),
        "up": total(jnp.where(up_NT, 1.0, 0.0)),
        "gated_up": total(jnp.where(up_NT & held_NT, 1.0, 0.0)),
        "down": total(jnp.where(down_NT, 1.0, 0.0)),
        "gated_down": total(jnp.where(down_NT & held_NT, 1.0, 0.0)),
        "active": total(jnp.where(~held_NT & (correction_NT > 0), 1.0, 0.0)),
        "correction": total(correction_NT),
        "k1_sampler": total(-off_NT),
        # The sampler's own tokens, so the estimate is of KL(sampler || policy).
        "k3_sampler": total(penalties.k3(-off_NT)),
        "effective_tokens": corrections.token_weight_sums(off_NT, tokens.mask_NT),
        "effective_rollouts": corrections.sequence_weight_sums(off_NT, tokens.mask_NT),
        "surprisal": jnp.sum(jnp.where(tokens.mask_NT, -tokens.logp_NT, 0.0)),
        "tokens": jnp.sum(tokens.mask_NT).astype(float),
    }


def reference_sums(
    tokens: Tokens, logref_NT: jax.Array, weight_NT: jax.Array
) -> dict[str, jax.Array]:
    """Sums of the estimates of KL(policy || reference)."""
    log_NT = tokens.logp_NT - jnp.where(tokens.mask_NT, logref_NT, 0.0)
    return {
        "k1_reference": jnp.sum(weight_NT * penalties.k1(log_NT)),
        "k3_reference": jnp.sum(weight_NT * penalties.k3(log_NT)),
    }


def summarise(sums: dict[str, Any]) -> dict[str, jax.Array]:
    """The figures that the sums of a whole update stand for; 0 where there are none."""
    over = lambda name, by: sums[name] / jnp.where(sums[by] > 0, sums[by], 1.0)
    out = {
        name: over(name, "weight")
        for name in (
            "log_ratio",
            "log_ratio_sq",
            "gated",
            "active",
            "correction",
            "k1_sampler",
            "k3_sampler",
        )
    }
    out |= {
        "gated_up": over("gated_up", "up"),
        "gated_down": over("gated_down", "down"),
        "effective_tokens": corrections.effective_share(sums["effective_tokens"]),
        "effective_rollouts": corrections.effective_share(sums["effective_rollouts"]),
        "entropy": over("surprisal", "tokens"),
    }
    out |= {
        name: over(name, "weight")
        for name in ("kl", "bonus", "k1_reference", "k3_reference", "full_entropy")
        if name in sums
    }
    return out


def sign_flips(
    adv_PG: jax.Array, keep_PG: jax.Array, reward_PG: jax.Array, mean_P: jax.Array
) -> jax.Array:
    """Share of kept rollouts whose advantage has the wrong sign.

    Args:
      adv_PG: float, advantages estimated from a small group.
      keep_PG: bool.
      reward_PG: float, the rewards they were made from.
      mean_P: float, mean reward of each problem from a much larger group. The sign
        that an advantage should have is that of reward - mean; a rollout whose reward
        is the mean has none and is left out.

    Returns:
      Wrong over counted, a scalar; an advantage of 0 counts as half wrong: it says
      nothing, as a coin would.
    """
    right_PG = jnp.sign(stats.wide(reward_PG) - mean_P[:, None])
    counted_PG = keep_PG & (right_PG != 0)
    wrong_PG = (1.0 - jnp.sign(adv_PG) * right_PG) / 2.0
    total = jnp.sum(jnp.where(counted_PG, wrong_PG, 0.0))
    return total / jnp.maximum(jnp.sum(counted_PG), 1)
