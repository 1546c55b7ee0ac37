"""Trust regions that look at probabilities, not at their ratio alone.

A ratio of 2 is a small change of a token at 0.01 and impossible for one at 0.9.
Probabilities are those of the sampled token under the policy, p, and the anchor, p'.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from algorithms import ratios, trust
from algorithms.parts import setting
from algorithms.tokens import Tokens
from algorithms.trust import Gate


@dataclasses.dataclass(frozen=True)
class Tv(Gate):
    """Drops tokens whose probability moved too far and would move further.

    A > 0 drops p - p' > high, A < 0 drops p' - p > low, and the ratio of what stays
    is capped, as in the loss -A min(r, cap) logp. Bounds are differences of
    probabilities: 0.15 is 15 percentage points. With bounds eps p' it is PPO's gate.
    Source: DPPO with total variation, arXiv:2602.04879, and verl. The authors cap at
    10, verl's code at 20, its example at 1e4. The published anchor is the sampler's
    own log-probabilities. verl counts A = 0 among the negative, which changes no
    gradient.
    """

    varies: ClassVar[bool] = True
    reads_ratio: ClassVar[bool] = False

    low: float = setting(0.15, "with A < 0 keeps p >= p' - low")
    high: float = setting(0.15, "with A > 0 keeps p <= p' + high")
    cap: float = setting(20.0, "largest ratio that weighs a token", low=1.0)

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """0 or min(1, cap / ratio)."""
        keep_NT = trust.clipped(change(tokens), tokens, -self.low, self.high)
        return jnp.where(keep_NT > 0, trust.capped(log_ratio_NT, self.cap), 0.0)


@dataclasses.dataclass(frozen=True)
class Kl(Gate):
    """Tv's rule with a divergence in nats: KL between sampled token and all others.

    A > 0 drops tokens with p > p' and divergence > high, A < 0 those with p < p' and
    divergence > low. Source: DPPO, arXiv:2602.04879, and verl; cap and anchor as for
    Tv.
    """

    varies: ClassVar[bool] = True
    reads_ratio: ClassVar[bool] = False

    low: float = setting(0.05, "with A < 0 and p < p' keeps divergences <= low, nats")
    high: float = setting(0.05, "with A > 0 and p > p' keeps divergences <= high, nats")
    cap: float = setting(20.0, "largest ratio that weighs a token", low=1.0)

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """0 or min(1, cap / ratio)."""
        far_NT = binary_kl(tokens)
        signed_NT = jnp.where(tokens.logp_NT > tokens.logo_NT, far_NT, -far_NT)
        keep_NT = trust.clipped(signed_NT, tokens, -self.low, self.high)
        return jnp.where(keep_NT > 0, trust.capped(log_ratio_NT, self.cap), 0.0)


@dataclasses.dataclass(frozen=True)
class Ipo(Gate):
    """Drops tokens with |p - p'| > width, whichever way they would move.

    Source: the "ipo" loss of prime-rl. Its default width is not known to us; ours is
    that of Tv. prime-rl's quadratic term in the log ratio is a penalty, not a gate.
    """

    varies: ClassVar[bool] = True
    reads_ratio: ClassVar[bool] = False

    width: float = setting(0.15, "keeps |p - p'| <= width")

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """1 inside, 0 outside."""
        return trust.dropped(jnp.abs(change(tokens)) > self.width, log_ratio_NT)


@dataclasses.dataclass(frozen=True)
class Probability(Gate):
    """PPO's clip with bounds that widen as the anchor's probability p' falls.

    They solve |r - 1| p <= low or high, that is |r (r - 1)| p' <= it:

      1/2 + sqrt(max(1 - 4 low / p', 0)) / 2 <= r <= 1/2 + sqrt(1 + 4 high / p') / 2

    so the lower bound is never under 1/2. `dual` is a dual clip and caps the upper
    bound as well. Source: DCPO, arXiv:2509.02333, and its released code, which caps
    the upper bound at max(dual, 10); the two agree at the published 10.
    """

    varies: ClassVar[bool] = True

    low: float = setting(0.16, "largest |r - 1| p on the way down")
    high: float = setting(0.20, "largest |r - 1| p on the way up")
    dual: float = setting(10.0, "keeps ratios <= dual, a number above 1; 0 is off")

    def bounds(self, tokens: Tokens) -> tuple[jax.Array, jax.Array]:
        """Bounds on the ratio, [N, T] each, before `dual`."""
        # exp(80) is near float32's limit.
        scarcity_NT = 4.0 * jnp.exp(jnp.minimum(-tokens.logo_NT, 80.0))
        low_NT = jnp.sqrt(jnp.maximum(1.0 - self.low * scarcity_NT, 0.0))
        high_NT = jnp.sqrt(1.0 + self.high * scarcity_NT)
        return (1.0 + low_NT) / 2.0, (1.0 + high_NT) / 2.0

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """1 inside, 0 outside."""
        low_NT, high_NT = self.bounds(tokens)
        dual = trust.unless_off(self.dual)
        high_NT = jnp.minimum(high_NT, dual)
        return trust.clipped(ratios.exp(log_ratio_NT), tokens, low_NT, high_NT, dual)


def change(tokens: Tokens) -> jax.Array:
    """p - p' of the sampled token; 0 off the mask."""
    return jnp.exp(tokens.logp_NT) - jnp.exp(tokens.logo_NT)


# Keeps the divergence finite where a probability is 1; the value is verl's.
_TINY = 1e-8


def binary_kl(tokens: Tokens) -> jax.Array:
    """KL(anchor || policy) between sampled token and all others, nats; 0 off the mask.

    p' log(p' / p) + (1 - p') log((1 - p' + 1e-8) / (1 - p + 1e-8))
    """
    anchor_NT = jnp.exp(tokens.logo_NT)
    # 0 log 0 is 0, also where the policy's probability is 0 as well.
    gap_NT = jnp.where(anchor_NT > 0, tokens.logo_NT - tokens.logp_NT, 0.0)
    # expm1, not 1 - exp: near 1 the latter has no digits left in float32.
    rest_NT, rest_anchor_NT = (
        -jnp.expm1(x_NT) for x_NT in (tokens.logp_NT, tokens.logo_NT)
    )
    others_NT = jnp.log((rest_anchor_NT + _TINY) / (rest_NT + _TINY))
    return anchor_NT * gap_NT + rest_anchor_NT * others_NT
