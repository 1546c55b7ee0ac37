"""Statistics of a group that skip unused and unscored slots.

Every function reduces the G axis of x_PG to x_P1 and reads only slots where
valid_PG is True; what invalid slots hold, NaN included, cannot leak through.
"""

import chex
import jax
import jax.numpy as jnp


def wide(x: jax.Array) -> jax.Array:
    """x in float32, or in float64 where it is that already."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def count(valid_PG: jax.Array) -> jax.Array:
    """Valid slots of each group, float [P, 1]."""
    return jnp.sum(valid_PG, axis=1, keepdims=True).astype(float)


def total(x_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Sum over valid slots, float [P, 1]."""
    chex.assert_rank([x_PG, valid_PG], 2)
    chex.assert_equal_shape([x_PG, valid_PG])
    chex.assert_type(valid_PG, bool)
    x_PG = wide(jnp.where(valid_PG, x_PG, 0.0))
    return jnp.sum(x_PG, axis=1, keepdims=True)


def mean(x_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Mean over valid slots, [P, 1]; 0 for an empty group."""
    return total(x_PG, valid_PG) / jnp.maximum(count(valid_PG), 1.0)


def std(x_PG: jax.Array, valid_PG: jax.Array, population: bool = False) -> jax.Array:
    """Standard deviation, [P, 1]: over n - 1, or over n for a population's.

    0 for an empty group and for a lone value.
    """
    centred_PG = x_PG - mean(x_PG, valid_PG)
    square_P1 = total(jnp.square(jnp.where(valid_PG, centred_PG, 0.0)), valid_PG)
    less = 0.0 if population else 1.0
    return jnp.sqrt(square_P1 / jnp.maximum(count(valid_PG) - less, 1.0))


def ordered(x_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Valid values in ascending order, then zeros, [P, G]."""
    chex.assert_equal_shape([x_PG, valid_PG])
    ordered_PG = jnp.sort(wide(jnp.where(valid_PG, x_PG, jnp.inf)), axis=1)
    rank_1G = jnp.arange(x_PG.shape[1])[None]
    n_P1 = jnp.sum(valid_PG, axis=1, keepdims=True)
    return jnp.where(rank_1G < n_P1, ordered_PG, 0.0)


def at(x_PG: jax.Array, index_P1: jax.Array) -> jax.Array:
    """One entry of each group, [P, 1]."""
    return jnp.take_along_axis(x_PG, index_P1, axis=1)


def middle(x_PG: jax.Array, start_P1: jax.Array, n_P1: jax.Array) -> jax.Array:
    """Median of the n entries of an ordered row from `start` on, [P, 1]."""
    low_P1 = start_P1 + jnp.maximum(n_P1 - 1, 0) // 2
    # Halved before they are added: the middle two may be near the float limit.
    return at(x_PG, low_P1) / 2 + at(x_PG, start_P1 + n_P1 // 2) / 2


def median(x_PG: jax.Array, valid_PG: jax.Array, lower: bool = False) -> jax.Array:
    """Median over valid slots, [P, 1]; 0 for an empty group.

    Of an even count it is the mean of the middle two, which keeps median(-x) =
    -median(x), or the lower of them.
    """
    n_P1 = jnp.sum(valid_PG, axis=1, keepdims=True)
    if lower:
        # An odd count has one middle value, and an even one the same as one fewer.
        n_P1 = jnp.maximum(n_P1 - (n_P1 + 1) % 2, 0)
    return middle(ordered(x_PG, valid_PG), jnp.zeros_like(n_P1), n_P1)


def spread(x_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Largest less smallest valid value, [P, 1]; 0 for an empty group."""
    high_P1 = jnp.max(jnp.where(valid_PG, x_PG, -jnp.inf), axis=1, keepdims=True)
    low_P1 = jnp.min(jnp.where(valid_PG, x_PG, jnp.inf), axis=1, keepdims=True)
    return jnp.where(count(valid_PG) > 0, high_P1 - low_P1, 0.0)


def magnitude(x_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Largest valid |x|, [P, 1]; 0 for an empty group."""
    return jnp.max(jnp.where(valid_PG, jnp.abs(x_PG), 0.0), axis=1, keepdims=True)


# Rewards of a group that differ by less than this share of their size are equal:
# rounding must not be blown up to a full-size advantage.
SAME = 1e-6


def constant(x_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Whether all valid values are equal up to rounding, bool [P, 1]."""
    return spread(x_PG, valid_PG) <= SAME * magnitude(x_PG, valid_PG)
