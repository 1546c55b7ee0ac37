"""Log importance ratios between the trained and the anchor policy.

Each maps (logp_NT, logo_NT, mask_NT) to float32 [N, T] nats, 0 where the mask is
False. `logp` scores tokens under the policy being trained, `logo` under the anchor,
which is the policy that sampled unless stated.
"""

import chex
import jax
import jax.numpy as jnp


def token(logp_NT: jax.Array, logo_NT: jax.Array, mask_NT: jax.Array) -> jax.Array:
    """Position t looks at token t alone, as in PPO and GRPO."""
    chex.assert_rank([logp_NT, logo_NT, mask_NT], 2)
    chex.assert_equal_shape([logp_NT, logo_NT, mask_NT])
    chex.assert_type(mask_NT, bool)
    # `where`, not a product with the mask: padding may hold inf - inf, and whether
    # NaN * False is 0 or NaN depends on what XLA fuses. Inside as well as outside,
    # so that no NaN arises on the way to be discarded.
    new_NT = jnp.where(mask_NT, logp_NT, 0.0).astype(jnp.float32)
    old_NT = jnp.where(mask_NT, logo_NT, 0.0).astype(jnp.float32)
    return new_NT - old_NT
