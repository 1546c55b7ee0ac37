"""How much of its coefficient a token keeps as the policy moves away.

A gate maps (log_ratio_NT, Tokens) to float [N, T] >= 0, which multiplies weight,
ratio and advantage: 1 keeps, 0 drops, min(r, cap) / r caps. Gates see no gradient.
Every gate is 1 where the policy is the anchor. Here are those that decide token by
token from the ratio, and the table of all.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from algorithms import ratios, trust
from algorithms import tokens as tokens_lib
from algorithms.budgets import Balanced, M2All, M2Mask, M2Winsor, PrefixBudget, Sat
from algorithms.divergences import Ipo, Kl, Probability, Tv
from algorithms.parts import setting, table
from algorithms.tokens import Tokens
from algorithms.trust import Gate


@dataclasses.dataclass(frozen=True)
class NoGate(Gate):
    """No trust region."""

    reads_ratio: ClassVar[bool] = False

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """Ones."""
        return jnp.ones_like(log_ratio_NT)


@dataclasses.dataclass(frozen=True)
class Clip(Gate):
    """Drops tokens that left [1 - low, 1 + high] and would move further out.

    The gradient of PPO's min(r A, clip(r) A), and of its dual clip, which holds the
    loss of A < 0 at -dual * A. Source: arXiv:1707.06347; unequal bounds are DAPO's
    clip-higher; the dual clip is arXiv:1912.09729.
    """

    low: float = setting(0.2, "keeps ratios >= 1 - low", high=1.0)
    high: float = setting(0.2, "keeps ratios <= 1 + high")
    dual: float = setting(
        0.0, "with A < 0 keeps ratios <= dual, a number above 1; 0 is off"
    )

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """1 inside, 0 outside."""
        dual = trust.unless_off(self.dual)
        return trust.clipped(
            ratios.exp(log_ratio_NT), tokens, 1.0 - self.low, 1.0 + self.high, dual
        )


@dataclasses.dataclass(frozen=True)
class Cap(Gate):
    """Weighs a token by clip(r, low, high) instead of r; no token is dropped.

    The gradient of -A clip(r, low, high) logp with the weight held constant. Bounds
    are ratios. Equals the importance-weighted policy gradient where high = 1e9.

    Source: CISPO, arXiv:2506.13585. TRL takes its epsilon for the cap itself, as here,
    without a lower bound; verl clips to 1 - low and 1 + high; ScaleRL,
    arXiv:2510.13786, caps at 4, 5 or 8 and finds no difference.
    """

    high: float = setting(5.0, "largest ratio that weighs a token", low=1.0)
    low: float = setting(0.0, "smallest ratio that weighs a token", high=1.0)

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """clip(r, low, high) / r."""
        # Not clip(r) / r: that this is 1 inside must not hang on how r / r rounds.
        ratio_NT = ratios.exp(log_ratio_NT)
        return jnp.clip(1.0, self.low / ratio_NT, self.high / ratio_NT)


@dataclasses.dataclass(frozen=True)
class Soft(Gate):
    """Fades with the distance of the ratio from 1, on both sides.

    4 s (1 - s) with s = sigmoid(tau (r - 1)), the derivative of 4 s / tau by r. tau = 0
    gates nothing. Source: SAPO, arXiv:2511.20347, as in TRL and verl: tau is `up` for
    A > 0, else `down`.
    """

    up: float = setting(1.0, "tau where A > 0")
    down: float = setting(1.05, "tau where A <= 0")

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """In (0, 1]."""
        tau_N1 = jnp.where(tokens.adv_N[:, None] > 0, self.up, self.down)
        x_NT = tau_N1 * (ratios.exp(log_ratio_NT) - 1.0)
        return 4.0 * jax.nn.sigmoid(x_NT) * jax.nn.sigmoid(-x_NT)


@dataclasses.dataclass(frozen=True)
class Gamma(Gate):
    """Weighs by phi(r) = r^k exp(lam (1 - r)) instead of r, meant for r of a sequence.

    phi(1) = 1, its peak is at k / lam, and it vanishes smoothly on both sides. k = 1
    and lam = 0 leave r, k = lam = 0 leave 1. The power and decay are k and lam. log r
    is cut to [log 1e-8, 20].

    Source: VESPO, arXiv:2602.10693, and its released code as it is run: docstrings
    there name other defaults. It adds the logs of truncated sampler corrections to
    log r before phi; here a correction multiplies what phi leaves.
    """

    up_power: float = setting(2.0, "k where A >= 0")
    up_decay: float = setting(3.0, "lam where A >= 0")
    down_power: float = setting(3.0, "k where A < 0")
    down_decay: float = setting(2.0, "lam where A < 0")

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """phi(r) / r, from its logarithm: neither factor can overflow alone."""
        down_N1 = tokens.adv_N[:, None] < 0
        power_N1 = jnp.where(down_N1, self.down_power, self.up_power)
        decay_N1 = jnp.where(down_N1, self.down_decay, self.up_decay)
        bounded_NT = trust.bounded(log_ratio_NT)
        log_NT = jnp.maximum(bounded_NT, _LOG_FLOOR)
        log_phi_NT = power_N1 * log_NT + decay_N1 * (1.0 - jnp.exp(log_NT))
        return jnp.exp(log_phi_NT - bounded_NT)


_LOG_FLOOR = -18.420680743952367  # log 1e-8


@dataclasses.dataclass(frozen=True)
class Envelope(Gate):
    """Keeps ratios in [1 - low h_t, 1 + high h_t], whatever the advantage.

    h_t = sqrt(L / t) at token t of a response of L, meant for the mean over a prefix,
    whose noise shrinks as 1 / sqrt(t). A dropped token leaves later ones eligible.

    The published widths are for responses of about 8 thousand tokens and drop nearly
    everything in short ones: what decides is width x sqrt(L). With `reference` > 0
    widths are therefore those of a response of that length, h_t =
    sqrt(reference / t), the same for every L and the published rule at L = reference.
    0 is the published rule at any length.

    Source: PNPO, arXiv:2608.01418; `reference` is ours.
    """

    varies: ClassVar[bool] = True

    low: float = setting(7e-4, "keeps ratios >= 1 - low h")
    high: float = setting(9.5e-4, "keeps ratios <= 1 + high h")
    reference: float = setting(8192.0, "tokens that widths are for; 0 takes L")

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """1 inside, 0 outside."""
        length_N1 = tokens_lib.length(tokens.mask_NT).astype(log_ratio_NT.dtype)
        span_N1 = jnp.where(self.reference > 0, self.reference, length_N1)
        h_NT = jnp.sqrt(span_N1 / tokens_lib.index(tokens.mask_NT))
        ratio_NT = ratios.exp(log_ratio_NT)
        outside_NT = ratio_NT < 1.0 - self.low * h_NT
        outside_NT |= ratio_NT > 1.0 + self.high * h_NT
        return trust.dropped(outside_NT, log_ratio_NT)


@dataclasses.dataclass(frozen=True)
class Widening(Gate):
    """PPO's clip of log r to [-low h_t, high h_t], h_t = t^power at token t.

    Meant for the product over a prefix, whose log wanders as sqrt(t). A < 0 is kept
    up to high h_t as well, a dual clip at the upper bound, so there the band has two
    sides. power -0.5 fits the mean over a prefix, 0 is one width for all.

    Source: CTPO, arXiv:2605.07331, and its released code: the settings file has power
    0, the script of the method 0.5. That code cuts log r at 10, which the upper bound
    drops anyway for any t under 40,000.
    """

    varies: ClassVar[bool] = True

    low: float = setting(0.025, "keeps log ratios >= -low h, nats")
    high: float = setting(0.05, "keeps log ratios <= high h, nats")
    power: float = setting(0.5, "h = t^power", low=-2.0, high=2.0)

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """1 inside, 0 outside."""
        place_NT = tokens_lib.index(tokens.mask_NT).astype(log_ratio_NT.dtype)
        h_NT = place_NT**self.power
        high_NT = self.high * h_NT
        return trust.clipped(
            trust.bounded(log_ratio_NT), tokens, -self.low * h_NT, high_NT, high_NT
        )


@dataclasses.dataclass(frozen=True)
class Live(Gate):
    """PPO's clip by each token's own log ratio, whatever the ratio of the response.

    The gradient of a response's mean of clipped log ratios: a token that was clipped
    has none. Bounds are nats and belong with those of such a ratio. Source: GMPO,
    arXiv:2507.20673, as in verl.
    """

    varies: ClassVar[bool] = True
    reads_ratio: ClassVar[bool] = False

    low: float = setting(0.4, "with A < 0 keeps logp - logo >= -low, nats")
    high: float = setting(0.4, "with A > 0 keeps logp - logo <= high, nats")

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """1 inside, 0 outside."""
        own_NT = tokens.logp_NT - tokens.logo_NT
        return trust.clipped(own_NT, tokens, -self.low, self.high)


GATES: dict[str, Gate] = table(
    NoGate,
    Clip,
    Cap,
    Soft,
    Gamma,
    Envelope,
    Widening,
    Live,
    Tv,
    Kl,
    Ipo,
    Probability,
    PrefixBudget,
    M2Mask,
    M2Winsor,
    M2All,
    Sat,
    Balanced,
)
