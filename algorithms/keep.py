"""Which rollouts of a group the update may see.

A keep rule maps (centred_PG, valid_PG) to bool [P, G], False wherever valid is.
"""

import jax
import jax.numpy as jnp


def everything(centred_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Every scored rollout."""
    return valid_PG


def all_but_pivot(centred_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Drops one rollout a group: the one whose reward is nearest the baseline.

    With a median of an odd group that reward is the median itself. Ties go to the
    lowest index, so the choice repeats. Source: MC-GRPO, arXiv:2601.22582.
    """
    distance_PG = jnp.where(valid_PG, jnp.abs(centred_PG), jnp.inf)
    pivot_P1 = jnp.argmin(distance_PG, axis=1, keepdims=True)
    slot_1G = jnp.arange(valid_PG.shape[1])[None]
    return valid_PG & (slot_1G != pivot_P1)


def pack(keep_PG: jax.Array, width: int) -> jax.Array:
    """Slots of the kept rollouts first, in order: int32 [P, width].

    Lets a method that drops rollouts pay for the update of those it keeps only. The
    tail of a group that kept fewer than `width` points at dropped slots.
    """
    return jnp.argsort(~keep_PG, axis=1, stable=True)[:, :width].astype(jnp.int32)
