"""Statistics of a group that skip unused and unscored slots.

Every function reduces the G axis of x_PG to x_P1 and reads only slots where
valid_PG is True; what invalid slots hold, NaN included, cannot leak through.
"""

import chex
import jax
import jax.numpy as jnp


def count(valid_PG: jax.Array) -> jax.Array:
    """Valid slots of each group, float32 [P, 1]."""
    return jnp.sum(valid_PG, axis=1, keepdims=True).astype(jnp.float32)


def total(x_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Sum over valid slots, float32 [P, 1]."""
    chex.assert_rank([x_PG, valid_PG], 2)
    chex.assert_equal_shape([x_PG, valid_PG])
    chex.assert_type(valid_PG, bool)
    x_PG = jnp.where(valid_PG, x_PG, 0.0).astype(jnp.float32)
    return jnp.sum(x_PG, axis=1, keepdims=True)


def mean(x_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Mean over valid slots, [P, 1]; 0 for an empty group."""
    return total(x_PG, valid_PG) / jnp.maximum(count(valid_PG), 1.0)


def std(x_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Sample standard deviation (n - 1), [P, 1]; 0 for groups of fewer than two."""
    centred_PG = x_PG - mean(x_PG, valid_PG)
    square_P1 = total(jnp.square(jnp.where(valid_PG, centred_PG, 0.0)), valid_PG)
    return jnp.sqrt(square_P1 / jnp.maximum(count(valid_PG) - 1.0, 1.0))


def median(x_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Median over valid slots, [P, 1]; the mean of the middle two of an even count.

    0 for an empty group. Averaging keeps median(-x) = -median(x).
    """
    chex.assert_equal_shape([x_PG, valid_PG])
    x_PG = jnp.where(valid_PG, x_PG, jnp.inf).astype(jnp.float32)
    ordered_PG = jnp.sort(x_PG, axis=1)
    n_P1 = jnp.sum(valid_PG, axis=1, keepdims=True)
    # Indices of the middle two; equal where the count is odd.
    low_P1 = jnp.maximum(n_P1 - 1, 0) // 2
    high_P1 = jnp.maximum(n_P1, 1) // 2
    high_P1 = jnp.where(n_P1 % 2 == 1, low_P1, high_P1)
    at = lambda index_P1: jnp.take_along_axis(ordered_PG, index_P1, axis=1)
    # Halved before they are added: the middle two may be near the float limit.
    return jnp.where(n_P1 > 0, at(low_P1) / 2 + at(high_P1) / 2, 0.0)


def spread(x_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Largest less smallest valid value, [P, 1]; 0 for an empty group."""
    high_P1 = jnp.max(jnp.where(valid_PG, x_PG, -jnp.inf), axis=1, keepdims=True)
    low_P1 = jnp.min(jnp.where(valid_PG, x_PG, jnp.inf), axis=1, keepdims=True)
    return jnp.where(count(valid_PG) > 0, high_P1 - low_P1, 0.0)


def magnitude(x_PG: jax.Array, valid_PG: jax.Array) -> jax.Array:
    """Largest valid |x|, [P, 1]; 0 for an empty group."""
    return jnp.max(jnp.where(valid_PG, jnp.abs(x_PG), 0.0), axis=1, keepdims=True)
