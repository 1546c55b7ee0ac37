"""What a centred reward is divided by.

A scale maps (centred_PG, valid_PG) to a Scale. Adding a constant to every reward
leaves it unchanged, since it sees centred rewards only.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algorithms import stats


class Scale(NamedTuple):
    """Divisors > 0, float32 [P, 1], and which groups fell back on a second rule."""

    scale_P1: jax.Array
    fallback_P1: jax.Array


ScaleFn = Callable[[jax.Array, jax.Array], Scale]


def none(centred_PG: jax.Array, valid_PG: jax.Array) -> Scale:
    """1: advantages stay in units of reward."""
    ones_P1 = jnp.ones((centred_PG.shape[0], 1), jnp.float32)
    return Scale(ones_P1, jnp.zeros(ones_P1.shape, bool))


def std(eps: float = 1e-6) -> ScaleFn:
    """Sample standard deviation (n - 1) plus eps. Source: GRPO, arXiv:2402.03300.

    Reference implementations add 1e-6, 1e-4 or 1e-8; a constant group gets no
    advantage under any, since `objective.advantages` zeroes it before the division.
    """

    def scale(centred_PG: jax.Array, valid_PG: jax.Array) -> Scale:
        scale_P1 = stats.std(centred_PG, valid_PG) + eps
        return Scale(scale_P1, jnp.zeros(scale_P1.shape, bool))

    return scale


def mad(eps: float = 1e-3, floor: float = 0.1) -> ScaleFn:
    """Median absolute deviation plus eps, or the standard deviation where it is tiny.

    The published rule is median(|r - median|) + eps. With rewards of two levels at
    least half of an odd group equals the median, so the deviation is always 0 and the
    rule divides by eps alone: advantages of +-1000 for 0/1 rewards. Here a group whose
    deviation is under `floor` times its standard deviation falls back on the latter,
    and is counted. Hence |advantage| <= sqrt(n) / floor for a group of n, and
    <= sqrt(n) where the deviation is 0. floor=0 gives the published rule.

    Source: MC-GRPO, arXiv:2601.22582, and its reference code; the fallback is ours.
    """
    if eps < 0 or floor < 0:
        raise ValueError(f"mad needs eps >= 0 and floor >= 0, got {eps=}, {floor=}")

    def scale(centred_PG: jax.Array, valid_PG: jax.Array) -> Scale:
        mad_P1 = stats.median(jnp.abs(centred_PG), valid_PG)
        std_P1 = stats.std(centred_PG, valid_PG)
        fallback_P1 = mad_P1 < floor * std_P1
        return Scale(jnp.where(fallback_P1, std_P1, mad_P1 + eps), fallback_P1)

    return scale
