"""Trust regions that many tokens share: a budget, or a statistic over all of them.

Whether a token is kept depends on what others do. Where those are in other rows the
rule is one for all rows of an update, whatever part of them a device holds.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from algorithms import divergences, ratios, stats, trust
from algorithms import tokens as tokens_lib
from algorithms.parts import setting
from algorithms.tokens import Tokens
from algorithms.trust import Gate


def _rounding(x: jax.Array) -> float:
    """Relative error that a sum is allowed: a mean that close to a budget equals it."""
    return 16.0 * float(jnp.finfo(x.dtype).eps)


class Ranked(NamedTuple):
    """Values of K tokens, n of them under the budget, [1, K] but for n.

    Attributes:
      value_1K: ascending, then zeros.
      total_1K: sums of values up to and including each.
      rank_1K: float, from 0.
      n: float scalar.
    """

    value_1K: jax.Array
    total_1K: jax.Array
    rank_1K: jax.Array
    n: jax.Array


def _ranked(x_NT: jax.Array, among_NT: jax.Array) -> Ranked:
    value_1K = stats.ordered(x_NT.reshape(1, -1), among_NT.reshape(1, -1))
    rank_1K = jnp.arange(value_1K.size, dtype=value_1K.dtype)[None]
    n = jnp.sum(among_NT).astype(value_1K.dtype)
    return Ranked(value_1K, jnp.cumsum(value_1K, axis=1), rank_1K, n)


@dataclasses.dataclass(frozen=True)
class _SecondMoment(Gate):
    """Drops the largest squared log ratios until a budget holds.

    Equal squares stand or fall together, so that neither the order of rows nor where
    they are computed can matter; they fall where not all can stay. Means within
    rounding of the budget count as equal to it.
    """

    compares_rows: ClassVar[bool] = True

    budget: float = setting(0.04, "mean squared log ratio, nats squared")

    def _among(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """Tokens under the budget, which alone can be dropped."""
        return trust.outward(log_ratio_NT, tokens)

    def _over(self, ranked: Ranked) -> jax.Array:
        """Values too large to stay, bool [1, K]; once True, True up to n."""
        raise NotImplementedError

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """1 under the smallest value that is over the budget, 0 from there on."""
        square_NT = jnp.square(trust.bounded(log_ratio_NT))
        among_NT = self._among(log_ratio_NT, tokens)
        ranked = _ranked(square_NT, among_NT)
        over_1K = self._over(ranked) & (ranked.rank_1K < ranked.n)
        limit = jnp.min(jnp.where(over_1K, ranked.value_1K, jnp.inf))
        return trust.dropped(among_NT & (square_NT >= limit), log_ratio_NT)


@dataclasses.dataclass(frozen=True)
class M2Mask(_SecondMoment):
    """Second-moment mask as published: the kept mean is at most the budget.

    Only tokens that PPO's clip could bind compete: A > 0 and r > 1, or A < 0 and
    r < 1. Of these the largest (log r)^2 are dropped until the mean over the rest is
    within the budget; all may go. A budget of 1e9 drops nothing.

    Source: M2PO, arXiv:2510.01161; its Algorithm 1 is known from an image. There one
    of several equal tokens is dropped at a time, here all of them. The scope is the
    update; the paper's is not stated.
    """

    def _over(self, ranked: Ranked) -> jax.Array:
        allowed = self.budget * (1.0 + _rounding(ranked.n))
        return ranked.total_1K > allowed * (ranked.rank_1K + 1.0)


@dataclasses.dataclass(frozen=True)
class M2Winsor(_SecondMoment):
    """Second-moment rule as released: the mean with capped values meets the budget.

    Of the same tokens as in M2Mask, let theta^2 be the largest value such that the
    mean, with larger values cut to the next one, is below the budget, 0 if there is
    none. PPO's clip at |log r| <= theta then drops what lies beyond. Cut values still
    count, so theta is far tighter than M2Mask's: with half-normal log ratios of
    deviation 0.25 it drops 23 % of the competing tokens, and M2Mask 9 %. A mean
    within the budget drops nothing.

    Source: the code of M2PO (Infini-AI-Lab/M2PO). There a token at theta itself is
    dropped or kept by rounding, the rule is applied to each microbatch of each device
    apart, and |A| <= 1e-12 is 0; here theta is kept and the scope is the update.
    """

    def _over(self, ranked: Ranked) -> jax.Array:
        beyond_1K = ranked.n - 1.0 - ranked.rank_1K
        cut_1K = ranked.total_1K + ranked.value_1K * beyond_1K
        allowed, slack = self.budget * ranked.n, _rounding(ranked.n)
        exceeds = ranked.total_1K[0, -1] > allowed * (1.0 + slack)
        return (cut_1K >= allowed * (1.0 - slack)) & exceeds


@dataclasses.dataclass(frozen=True)
class M2All(_SecondMoment):
    """Second-moment mask over all tokens, whatever their advantage.

    The kept mean is below the budget, not at it, and the smallest value always stays.

    Source: AReaL, which reads the ratio of sampler and anchor, fixed for a round; here
    the rule reads the method's own ratio, as the other two do.
    """

    def _among(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        return tokens.mask_NT

    def _over(self, ranked: Ranked) -> jax.Array:
        allowed = self.budget * (1.0 - _rounding(ranked.n))
        over_1K = ranked.total_1K >= allowed * (ranked.rank_1K + 1.0)
        return over_1K & (ranked.value_1K > ranked.value_1K[:, :1])


@dataclasses.dataclass(frozen=True)
class Sat(Gate):
    """PPO's clip, narrower for tokens in the tail of all log ratios of the update.

    With d = log r, and q the quantile of |d| over all tokens, linear between ranks,
    the bound that a token with |d| > q is about to cross is contracted to

      1 + high c if d > 0,  1 - low c if d < 0,  c = 1 / (1 + (|d| / q)^power)

    so c falls from 1 to 1/2 at q; `smooth` doubles it, which removes the step.
    Widths 1e9 drop nothing, quantile 1 is PPO.

    Source: SAT, arXiv:2607.18722, known from its abstract and a third-party reading:
    the kernel is the standard Hill form, not a confirmed one. The interpolation is
    not stated. The quantile was over a microbatch; here it is over the update.
    """

    compares_rows: ClassVar[bool] = True

    low: float = setting(0.2, "keeps ratios >= 1 - low outside the tail")
    high: float = setting(0.2, "keeps ratios <= 1 + high outside the tail")
    quantile: float = setting(0.9, "share of tokens outside the tail", high=1.0)
    power: float = setting(2.0, "how fast bounds contract along the tail")
    smooth: bool = setting(False, "contract from 1 instead of from 1/2")

    def bounds(
        self, log_ratio_NT: jax.Array, tokens: Tokens
    ) -> tuple[jax.Array, jax.Array]:
        """Bounds on the ratio, [N, T] each."""
        size_NT = jnp.abs(trust.bounded(log_ratio_NT))
        q_11 = quantile(
            size_NT.reshape(1, -1), tokens.mask_NT.reshape(1, -1), self.quantile
        )
        tail_NT = (size_NT > q_11) & (q_11 > 0)
        excess_NT = jnp.where(tail_NT, size_NT / jnp.where(q_11 > 0, q_11, 1.0), 1.0)
        hill_NT = (2.0 if self.smooth else 1.0) / (1.0 + excess_NT**self.power)
        width = lambda eps, side_NT: eps * jnp.where(tail_NT & side_NT, hill_NT, 1.0)
        return (
            1.0 - width(self.low, log_ratio_NT < 0),
            1.0 + width(self.high, log_ratio_NT > 0),
        )

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """1 inside, 0 outside."""
        low_NT, high_NT = self.bounds(log_ratio_NT, tokens)
        return trust.clipped(ratios.exp(log_ratio_NT), tokens, low_NT, high_NT)


@dataclasses.dataclass(frozen=True)
class PrefixBudget(Gate):
    r"""Tv's rule with a bound that tightens as a response uses up its divergence.

    With D_t = |p - p'| and weights w_t from 1 at the first token to `last` at the
    last, an outward token is kept where

      w_t D_t <= min(delta, delta + growth \sum_{s<t} w_s - \sum_{s<t} w_s D_s)

    Dropped tokens and those that move back spend as well. `growth` is the response's
    own quantile of D times `tail`, kept within [floor, 2 floor]. A floor of 1e9 never
    runs out: with last = 1 that is Tv(delta, delta).

    Source: CPPO, arXiv:2606.10968, and its released code, with binary total
    variation; the paper's main runs use the top 20 tokens. 0.15 is for dense models,
    0.2 for a mixture of experts. The anchor is the sampler's own log-probabilities.
    """

    varies: ClassVar[bool] = True
    reads_ratio: ClassVar[bool] = False

    delta: float = setting(0.15, "largest weighted |p - p'| of a token")
    last: float = setting(0.8, "weight of the last token", high=1.0)
    floor: float = setting(0.02, "least growth of the budget per token, in |p - p'|")
    quantile: float = setting(0.9, "quantile of a response's |p - p'|", high=1.0)
    tail: float = setting(1.0, "growth of the budget in units of that quantile")
    cap: float = setting(20.0, "largest ratio that weighs a token", low=1.0)

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """0 or min(1, cap / ratio)."""
        change_NT = divergences.change(tokens)
        moved_NT = jnp.abs(change_NT)
        place_NT = (tokens_lib.index(tokens.mask_NT) - 1).astype(moved_NT.dtype)
        gaps_N1 = jnp.maximum(tokens_lib.length(tokens.mask_NT) - 1, 1)
        weight_NT = 1.0 - (1.0 - self.last) * place_NT / gaps_N1
        weight_NT = jnp.where(tokens.mask_NT, weight_NT, 0.0)
        spent_NT = weight_NT * moved_NT
        quantile_N1 = quantile(moved_NT, tokens.mask_NT, self.quantile)
        growth_N1 = jnp.clip(self.tail * quantile_N1, self.floor, 2.0 * self.floor)
        earned_NT = growth_N1 * _before(weight_NT)
        left_NT = jnp.minimum(self.delta, self.delta + earned_NT - _before(spent_NT))
        over_NT = trust.outward(change_NT, tokens) & (spent_NT > left_NT)
        return jnp.where(over_NT, 0.0, trust.capped(log_ratio_NT, self.cap))


@dataclasses.dataclass(frozen=True)
class Balanced(Gate):
    r"""PPO's clip with bounds that rise until what is rewarded outweighs the rest.

    First the lower bound rises from `low` to `low_max`, then the upper one from
    `high` to `high_max`, by `step` each time, until P / Q >= target, with

      P = \sum_{A > 0} min(r, upper) A,   Q = \sum_{A < 0} max(r, lower) |A|

    over all tokens of the update. Raising the lower bound raises Q, since what is cut
    counts at the bound: once begun, that search runs to low_max. `gradient` counts
    live tokens only, P = \sum r A [r <= upper], Q = \sum r |A| [r >= lower], and
    searches as intended. Bounds are ratios, not distances from 1. With both ends of
    either range equal it is an asymmetric dual clip.

    Source: BAPO, arXiv:2510.18927, as its released code has it; the paper's own order
    and measure are not known to us. Ranges there are [0.6, 0.8] and [1.2, 2] in the
    settings, [0.6, 0.9] and [1.2, 3] in the text. A bound does not pass its end here,
    and takes at most 64 steps, longer ones if need be.
    """

    compares_rows: ClassVar[bool] = True

    low: float = setting(0.6, "lower bound on the ratio, to begin with", high=1.0)
    low_max: float = setting(0.8, "highest lower bound", high=1.0)
    high: float = setting(1.2, "upper bound on the ratio, to begin with", low=1.0)
    high_max: float = setting(2.0, "highest upper bound", low=1.0)
    step: float = setting(0.05, "what a bound rises by at a time")
    target: float = setting(1.0, "rewarded over punished mass that ends the search")
    dual: float = setting(
        3.0, "with A < 0 keeps ratios <= dual, a number above 1; 0 is off"
    )
    gradient: bool = setting(False, "weigh live tokens only")

    def bounds(
        self, log_ratio_NT: jax.Array, tokens: Tokens
    ) -> tuple[jax.Array, jax.Array]:
        """Lower and upper bound on the ratio, scalars."""
        ratio_NT = ratios.exp(log_ratio_NT)
        adv_NT = jnp.where(tokens.mask_NT, tokens.adv_N[:, None], 0.0)
        up_NT, down_NT = jnp.maximum(adv_NT, 0.0), jnp.maximum(-adv_NT, 0.0)

        def rewarded(high: jax.Array) -> jax.Array:
            outside = 0.0 if self.gradient else high
            return jnp.sum(jnp.where(ratio_NT <= high, ratio_NT, outside) * up_NT)

        def punished(low: jax.Array) -> jax.Array:
            outside = 0.0 if self.gradient else low
            return jnp.sum(jnp.where(ratio_NT >= low, ratio_NT, outside) * down_NT)

        # Each mass depends on one bound alone, so two lines of a grid tell all of it.
        low_S = self._climb(self.low, self.low_max, ratio_NT.dtype)
        high_S = self._climb(self.high, self.high_max, ratio_NT.dtype)
        up_S, down_S = jax.vmap(rewarded)(high_S), jax.vmap(punished)(low_S)
        needed_S = self.target * down_S * (1.0 - _rounding(ratio_NT))
        at_low = _first(up_S[0] >= needed_S)
        at_high = _first(up_S >= needed_S[at_low])
        return low_S[at_low], high_S[at_high]

    def _climb(
        self, start: jax.Array | float, end: jax.Array | float, dtype: jnp.dtype
    ) -> jax.Array:
        """Values that a bound goes through, ascending, the last one repeated."""
        step = jnp.maximum(self.step, (end - start) / _STEPS)
        climbing_S = start + step * jnp.arange(_STEPS + 1, dtype=dtype)
        return jnp.maximum(start, jnp.minimum(climbing_S, end)).astype(dtype)

    def __call__(self, log_ratio_NT: jax.Array, tokens: Tokens) -> jax.Array:
        """1 inside, 0 outside."""
        low, high = self.bounds(log_ratio_NT, tokens)
        dual = trust.unless_off(self.dual)
        return trust.clipped(ratios.exp(log_ratio_NT), tokens, low, high, dual)


# The published ranges take 4 to 36.
_STEPS = 64


def _first(found_S: jax.Array) -> jax.Array:
    """Index of the first True, or of the last entry if there is none."""
    return jnp.where(jnp.any(found_S), jnp.argmax(found_S), found_S.size - 1)


def _before(x_NT: jax.Array) -> jax.Array:
    """Sums over what comes before each token."""
    return jnp.cumsum(x_NT, axis=1) - x_NT


def quantile(
    x_RK: jax.Array, valid_RK: jax.Array, share: jax.Array | float
) -> jax.Array:
    """Quantile of each row's valid values, linear between ranks, [R, 1]; 0 if none."""
    ordered_RK = stats.ordered(x_RK, valid_RK)
    last_R1 = jnp.maximum(jnp.sum(valid_RK, axis=1, keepdims=True) - 1, 0)
    place_R1 = share * last_R1.astype(ordered_RK.dtype)
    # float32 may round a rank past 2^24 up, and with it past the last.
    low_R1 = jnp.minimum(jnp.floor(place_R1).astype(last_R1.dtype), last_R1)
    high_R1 = jnp.minimum(low_R1 + 1, last_R1)
    below_R1 = stats.at(ordered_RK, low_R1)
    rise_R1 = stats.at(ordered_RK, high_R1) - below_R1
    return below_R1 + (place_R1 - low_R1) * rise_R1
