"""How much of its coefficient a token keeps as the policy moves away.

A gate maps (log_ratio_NT, adv_N, mask_NT) to float32 [N, T] >= 0: 1 keeps, 0 drops.
The log ratio is 0 off the mask. Gates see no gradient.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Gate = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def clip(low: float, high: float) -> Gate:
    """Drops tokens that left [1 - low, 1 + high] and would move further out.

    The gradient of PPO's min(r A, clip(r) A). Infinite bounds drop nothing.
    Source: arXiv:1707.06347; unequal bounds are DAPO's clip-higher.
    """

    def gate(
        log_ratio_NT: jax.Array, adv_N: jax.Array, mask_NT: jax.Array
    ) -> jax.Array:
        ratio_NT = jnp.exp(log_ratio_NT)
        up_N1 = adv_N[:, None] > 0
        down_N1 = adv_N[:, None] < 0
        outside_NT = (up_N1 & (ratio_NT > 1 + high)) | (down_N1 & (ratio_NT < 1 - low))
        return jnp.where(outside_NT, 0.0, 1.0)

    return gate
