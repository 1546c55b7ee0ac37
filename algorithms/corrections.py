"""Weights that make up for a sampler that is not the anchor policy.

A correction maps Tokens to float [N, T] >= 0, a function of D = logo - logq. It is
apart from the gate, whose ratio is logp - logo: one repairs the distribution that
rollouts came from, the other limits an update. Where the anchor is the sampler D is
0 and, without truncated sampling, every weight is 1. Two rules read more than D and
say so.

A weight multiplies the policy term alone, and a token that gets 0 keeps its share in
every denominator. Sequence rules take the sum of D, which grows with length; the
geometric one its mean. Bands and caps hold the 1 of a sampler that is the anchor.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from algorithms import ratios
from algorithms.parts import Part, setting, table
from algorithms.tokens import Tokens, length


@dataclasses.dataclass(frozen=True)
class Correction(Part):
    """Tokens -> weight_NT.

    Attributes:
      varies: whether tokens of one response get different weights.
    """

    varies: ClassVar[bool] = False

    def __call__(self, tokens: Tokens) -> jax.Array:
        """Factors >= 0, and 0 off the mask."""
        raise NotImplementedError


def _factor(tokens: Tokens) -> jax.Array:
    """exp(D), token by token."""
    return ratios.exp(tokens.logo_NT - tokens.logq_NT)


def _sum(tokens: Tokens) -> jax.Array:
    """Sum of D over every response, [N, 1]."""
    return jnp.sum(tokens.logo_NT - tokens.logq_NT, axis=1, keepdims=True)


def _share(
    weight: jax.Array, tokens: Tokens, keep: jax.Array | None = None
) -> jax.Array:
    """The weight [N, T] or [N, 1] at tokens that are kept, 0 elsewhere."""
    keep_NT = tokens.mask_NT if keep is None else tokens.mask_NT & keep
    return jnp.where(keep_NT, weight, 0.0)


@dataclasses.dataclass(frozen=True)
class NoCorrection(Correction):
    """The sampler is taken for the anchor."""

    def __call__(self, tokens: Tokens) -> jax.Array:
        """Ones."""
        return _share(jnp.ones_like(tokens.logp_NT), tokens)


@dataclasses.dataclass(frozen=True)
class TokenTruncate(Correction):
    """Truncated importance sampling: min(exp(D), cap). Source: TIS, read in code.

    FP8-RL, arXiv:2601.18150, is this with cap 2.
    """

    varies: ClassVar[bool] = True

    cap: float = setting(2.0, "largest weight", low=1.0)

    def __call__(self, tokens: Tokens) -> jax.Array:
        """min(exp(D), cap)."""
        return _share(jnp.minimum(_factor(tokens), self.cap), tokens)


@dataclasses.dataclass(frozen=True)
class TokenMask(Correction):
    """exp(D) where it lies in [low, high], else 0.

    With (0, 1e9) it is plain token importance sampling; AsyncWebRL drops tokens with
    (0, 5). Source: IcePop, arXiv:2510.18855, and MIS, both read in code.
    """

    varies: ClassVar[bool] = True

    low: float = setting(0.5, "keeps weights >= low", high=1.0)
    high: float = setting(5.0, "keeps weights <= high", low=1.0)

    def __call__(self, tokens: Tokens) -> jax.Array:
        """exp(D) inside the band."""
        factor_NT = _factor(tokens)
        return _share(factor_NT, tokens, _inside(factor_NT, self.low, self.high))


@dataclasses.dataclass(frozen=True)
class TokenReject(Correction):
    """1 where exp(D) lies in [low, high], else 0. Source: read in code."""

    varies: ClassVar[bool] = True

    low: float = setting(0.5, "keeps tokens with exp(D) >= low", high=1.0)
    high: float = setting(2.0, "keeps tokens with exp(D) <= high", low=1.0)

    def __call__(self, tokens: Tokens) -> jax.Array:
        """1 inside the band."""
        factor_NT = _factor(tokens)
        keep_NT = _inside(factor_NT, self.low, self.high)
        return _share(jnp.ones_like(factor_NT), tokens, keep_NT)


@dataclasses.dataclass(frozen=True)
class SequenceTruncate(Correction):
    """min(exp(sum D), cap), one weight a response. Source: sequence TIS, in code.

    CTPO, arXiv:2605.07331, uses it with cap 5.
    """

    cap: float = setting(3.0, "largest weight", low=1.0)

    def __call__(self, tokens: Tokens) -> jax.Array:
        """min(exp(sum D), cap)."""
        return _share(jnp.minimum(ratios.exp(_sum(tokens)), self.cap), tokens)


@dataclasses.dataclass(frozen=True)
class SequenceMask(Correction):
    """exp(sum D) where it lies in [low, high], else 0. Source: MIS, read in code.

    The sum grows with length, so with these bounds a large share of long responses
    is dropped.
    """

    low: float = setting(0.0, "keeps weights >= low", high=1.0)
    high: float = setting(3.0, "keeps weights <= high", low=1.0)

    def __call__(self, tokens: Tokens) -> jax.Array:
        """exp(sum D) inside the band."""
        factor_N1 = ratios.exp(_sum(tokens))
        return _share(factor_N1, tokens, _inside(factor_N1, self.low, self.high))


@dataclasses.dataclass(frozen=True)
class GeometricReject(Correction):
    """1 for responses whose exp(mean D) lies in [low, high], else 0.

    Source: geometric rejection, read in code.
    """

    low: float = setting(0.99, "keeps responses with exp(mean D) >= low", high=1.0)
    high: float = setting(1.01, "keeps responses with exp(mean D) <= high", low=1.0)

    def __call__(self, tokens: Tokens) -> jax.Array:
        """1 inside the band."""
        mean_N1 = ratios.exp(_sum(tokens) / length(tokens.mask_NT))
        keep_N1 = _inside(mean_N1, self.low, self.high)
        return _share(jnp.ones_like(mean_N1), tokens, keep_N1)


@dataclasses.dataclass(frozen=True)
class SparseReject(Correction):
    """min(exp(D), cap), and nothing of a response with any exp(D) < floor.

    For rollouts with a compressed cache, where a token may come from a state that the
    dense model would never be in. Source: Sparse-RL, arXiv:2601.10079 (third-party
    readings; the smallest token as the test, floor and cap are inferred).
    """

    varies: ClassVar[bool] = True

    floor: float = setting(1e-4, "drops responses with any weight < floor", high=1.0)
    cap: float = setting(2.0, "largest weight", low=1.0)

    def __call__(self, tokens: Tokens) -> jax.Array:
        """min(exp(D), cap) in responses that are kept."""
        factor_NT = _factor(tokens)
        # 1 off the mask, which is below no floor.
        keep_N1 = ~jnp.any(factor_NT < self.floor, axis=1, keepdims=True)
        return _share(jnp.minimum(factor_NT, self.cap), tokens, keep_N1)


@dataclasses.dataclass(frozen=True)
class NegativeReject(Correction):
    """Drops responses with A < 0 that the policy has left: mean(logq - logp) > delta.

    The mean estimates KL(sampler || policy). It reads the policy as it is now, so a
    response may be dropped half-way through a round.
    Source: DeepSeek-V3.2, as read in code; no delta is published.
    """

    delta: float = setting(0.5, "nats a token, the largest mean kept where A < 0")

    def __call__(self, tokens: Tokens) -> jax.Array:
        """1 for responses that are kept."""
        sum_N1 = jnp.sum(tokens.logq_NT - tokens.logp_NT, axis=1, keepdims=True)
        left_N1 = sum_N1 / length(tokens.mask_NT) > self.delta
        keep_N1 = ~(left_N1 & (tokens.adv_N[:, None] < 0))
        return _share(jnp.ones_like(sum_N1), tokens, keep_N1)


@dataclasses.dataclass(frozen=True)
class TotalTruncate(Correction):
    """Caps ratio and correction as one: min(exp(logp - logq), cap) / exp(logp - logo).

    For the token ratio, with which it multiplies to min(exp(logp - logq), cap): the
    gate then looks at policy over anchor and the weight at policy over sampler.
    Source: MiniRL, arXiv:2512.01374 (third-party digest; cap read in code).
    """

    varies: ClassVar[bool] = True

    cap: float = setting(10.0, "largest product", low=1.0)

    def __call__(self, tokens: Tokens) -> jax.Array:
        """min(exp(logp - logq), cap) / exp(logp - logo)."""
        total_NT = ratios.exp(tokens.logp_NT - tokens.logq_NT)
        ratio_NT = ratios.exp(tokens.logp_NT - tokens.logo_NT)
        return _share(jnp.minimum(total_NT, self.cap) / ratio_NT, tokens)


def _inside(
    factor: jax.Array, low: jax.Array | float, high: jax.Array | float
) -> jax.Array:
    return (factor >= low) & (factor <= high)


class WeightSums(NamedTuple):
    """Sums over importance weights w; those of parts of a batch add up."""

    weight: jax.Array
    square: jax.Array
    number: jax.Array


def token_weight_sums(log_weight_NT: jax.Array, mask_NT: jax.Array) -> WeightSums:
    """Sums of w, w^2 and 1 over tokens, w = exp(log weight)."""
    weight = ratios.exp(jnp.where(mask_NT, log_weight_NT, 0.0))
    weight = jnp.where(mask_NT, weight, 0.0)
    number = jnp.sum(mask_NT).astype(weight.dtype)
    return WeightSums(jnp.sum(weight), jnp.sum(jnp.square(weight)), number)


def sequence_weight_sums(log_weight_NT: jax.Array, mask_NT: jax.Array) -> WeightSums:
    """The same over responses with any token, w = exp(sum of a response's logs)."""
    log_N = jnp.sum(jnp.where(mask_NT, log_weight_NT, 0.0), axis=1)
    return token_weight_sums(log_N, jnp.any(mask_NT, axis=1))


def effective_share(sums: WeightSums) -> jax.Array:
    """(sum w)^2 / (n sum w^2): what share of n samples the weights leave.

    1 for equal weights, 1 / n where one holds them all, 0 where there are none.
    Source: Kish's effective sample size over n.
    """
    spread = sums.number * sums.square
    return jnp.square(sums.weight) / jnp.where(spread > 0, spread, 1.0)


CORRECTIONS: dict[str, Correction] = table(
    NoCorrection,
    TokenTruncate,
    TokenMask,
    TokenReject,
    SequenceTruncate,
    SequenceMask,
    GeometricReject,
    SparseReject,
    NegativeReject,
    TotalTruncate,
)
