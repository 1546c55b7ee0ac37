"""What trust regions share: their interface, and the gradient of a clipped loss."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from algorithms import ratios
from algorithms.parts import Part
from algorithms.tokens import Tokens


@dataclasses.dataclass(frozen=True)
class Gate(Part):
    """(log_ratio_NT, Tokens) -> gate_NT.

    Attributes:
      compares_rows: whether a row's gate depends on other rows, so that it must be
        decided for all rows of an update at once.
      varies: whether tokens of a response can be told apart even where their ratio is
        the same.
      reads_ratio: whether it does nothing where the ratio is 1 everywhere.
    """

    compares_rows: ClassVar[bool] = False
    varies: ClassVar[bool] = False
    reads_ratio: ClassVar[bool] = True

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """Factors >= 0; what stands off the mask is of no account."""
        raise NotImplementedError


def bounded(log_ratio_NT: jax.Array) -> jax.Array:
    """The log ratio as the loss exponentiates it: never so large that exp overflows."""
    return jnp.clip(log_ratio_NT, -ratios.MAX_LOG_RATIO, ratios.MAX_LOG_RATIO)


def unless_off(bound: jax.Array | float) -> jax.Array:
    """The bound, or infinity for 0; a traced setting must not meet a Python branch."""
    return jnp.where(bound > 0, bound, jnp.inf)


def outward(x_NT: jax.Array, tokens: Tokens) -> jax.Array:
    """Tokens that the advantage pushes further from the anchor, bool [N, T].

    x is positive where the token has become likelier, negative where less likely.
    """
    up_N1, down_N1 = tokens.adv_N[:, None] > 0, tokens.adv_N[:, None] < 0
    return tokens.mask_NT & ((up_N1 & (x_NT > 0)) | (down_N1 & (x_NT < 0)))


def clipped(
    x_NT: jax.Array,
    tokens: Tokens,
    low: jax.Array | float,
    high: jax.Array | float,
    dual: jax.Array | float = jnp.inf,
) -> jax.Array:
    """1 where PPO's clipped minimum with these bounds has a gradient, else 0.

    x is any increasing function of what the loss is clipped by, bounds are on its
    scale, and a token that stands on a bound is inside.
    """
    up_N1, down_N1 = tokens.adv_N[:, None] > 0, tokens.adv_N[:, None] < 0
    outside_NT = up_N1 & (x_NT > high)
    outside_NT |= down_N1 & ((x_NT < low) | (x_NT > dual))
    return dropped(outside_NT, x_NT)


def dropped(out_NT: jax.Array, like_NT: jax.Array) -> jax.Array:
    """0 where out_NT, else 1, with the other array's dtype."""
    return jnp.where(out_NT, 0.0, jnp.ones_like(like_NT))


def capped(log_ratio_NT: jax.Array, cap: jax.Array | float) -> jax.Array:
    """min(r, cap) / r: a gate that leaves r at cap and no more."""
    return jnp.minimum(1.0, cap / ratios.exp(log_ratio_NT))
