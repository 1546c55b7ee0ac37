"""Log importance ratios: what each token's score is weighed by, before any gate.

A ratio maps Tokens to float [N, T] nats, 0 where the mask is False. It is constant
under differentiation; the gradient of a token goes through that token's own
log-probability alone, whatever the ratio looks at. With d_t = logp - logo at the
t-th of L tokens,

  token           d_t                     prefix_sum      d_1 + ... + d_t
  sequence_mean   (d_1 + ... + d_L) / L   prefix_mean     (d_1 + ... + d_t) / t
  sequence_sum    d_1 + ... + d_L         prefix_min      d_t + min(d_1, ..., d_t-1)

Only tokens under the mask are counted: padding on either side and holes are as if
they were not there. Nothing is capped here: a cap on single tokens would change a
mean, so the caller caps what comes out.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from algorithms.parts import Part, setting, table
from algorithms.tokens import Tokens, index, length

# exp(20) = 5e8: beyond any ratio that means something, far below float32's limit.
MAX_LOG_RATIO = 20.0


def exp(log_ratio: jax.Array) -> jax.Array:
    """exp that cannot overflow, nor reach 0: of a log ratio kept in +-20."""
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


@dataclasses.dataclass(frozen=True)
class Ratio(Part):
    """Tokens -> log_ratio_NT.

    Attributes:
      whole_response: whether a response is weighed as one, so that nothing else may
        vary inside it.
    """

    whole_response: ClassVar[bool] = False

    def __call__(self, tokens: Tokens) -> jax.Array:
        """Nats, 0 off the mask."""
        raise NotImplementedError


def _spread(x_N1: jax.Array, tokens: Tokens) -> jax.Array:
    """The same number at every token of a row."""
    return jnp.where(tokens.mask_NT, x_N1, 0.0)


@dataclasses.dataclass(frozen=True)
class NoRatio(Ratio):
    """No ratio: every token weighs 1, as in REINFORCE."""

    def __call__(self, tokens: Tokens) -> jax.Array:
        """Zeros."""
        return jnp.zeros_like(tokens.logp_NT)


@dataclasses.dataclass(frozen=True)
class Token(Ratio):
    """Position t looks at token t alone, as in PPO and GRPO."""

    def __call__(self, tokens: Tokens) -> jax.Array:
        """logp - logo."""
        return tokens.logp_NT - tokens.logo_NT


@dataclasses.dataclass(frozen=True)
class PrefixMean(Ratio):
    """Mean over the tokens up to t, itself included.

    Equals `token` at the first token and `sequence_mean` at the last, and never looks
    at what comes after t. Biased towards 1; its variance falls with t.
    Source: PNPO, arXiv:2608.01418 (full text read; no code is public).
    """

    def __call__(self, tokens: Tokens) -> jax.Array:
        """(1 / t) sum_{s <= t} d_s."""
        sum_NT = jnp.cumsum(Token()(tokens), axis=1)
        return jnp.where(tokens.mask_NT, sum_NT / index(tokens.mask_NT), 0.0)


@dataclasses.dataclass(frozen=True)
class PrefixSum(Ratio):
    """Sum over the tokens up to t, the exact importance weight of the prefix.

    Its variance grows with t. Source: CTPO, arXiv:2605.07331 (read in the authors'
    code, which clips every d_s to +-20 before summing; here the sum is capped).
    """

    def __call__(self, tokens: Tokens) -> jax.Array:
        """sum_{s <= t} d_s."""
        return jnp.where(tokens.mask_NT, jnp.cumsum(Token()(tokens), axis=1), 0.0)


@dataclasses.dataclass(frozen=True)
class PrefixMin(Ratio):
    """The token's own ratio times the smallest one before it; the first has none.

    One small ratio scales down all that follows, so weights are low on average. With
    a constant d it is 2 d from the second token on.
    Source: MinPRO, arXiv:2601.22718 (known from its abstract and from a line in the
    PNPO paper; `capped` is our option).
    """

    capped: bool = setting(False, "earlier tokens may lower a ratio but not raise it")

    def __call__(self, tokens: Tokens) -> jax.Array:
        """d_t + min_{s < t} d_s, or with `capped` d_t + min(0, min_{s < t} d_s)."""
        d_NT = Token()(tokens)
        least_NT = jax.lax.cummin(jnp.where(tokens.mask_NT, d_NT, jnp.inf), axis=1)
        before_NT = jnp.roll(least_NT, 1, axis=1)
        earlier_NT = tokens.mask_NT & (index(tokens.mask_NT) > 1)
        factor_NT = jnp.where(earlier_NT, before_NT, 0.0)
        if self.capped:
            factor_NT = jnp.minimum(factor_NT, 0.0)
        return d_NT + factor_NT


@dataclasses.dataclass(frozen=True)
class SequenceMean(Ratio):
    """Mean over the whole response, the same at all its tokens.

    A length-normalised ratio, so long responses are not told apart by length alone.
    Source: GSPO, arXiv:2507.18071 (read in code).
    """

    whole_response: ClassVar[bool] = True

    def __call__(self, tokens: Tokens) -> jax.Array:
        """(1 / L) sum_s d_s."""
        sum_N1 = jnp.sum(Token()(tokens), axis=1, keepdims=True)
        return _spread(sum_N1 / length(tokens.mask_NT), tokens)


@dataclasses.dataclass(frozen=True)
class SequenceToken(SequenceMean):
    """The numbers of `sequence_mean`, where tokens may differ in all else.

    Advantages, gates and weights may vary inside a response: the gradient of a token
    goes through that token. Source: GSPO-token, arXiv:2507.18071 (read in code).
    """

    whole_response: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class SequenceSum(Ratio):
    """Sum over the whole response, its exact importance weight.

    Source: VESPO, arXiv:2602.10693 (read in the authors' code, which clips every d_s
    to +-20 before summing; here the sum is capped), and sequence-level importance
    sampling.
    """

    whole_response: ClassVar[bool] = True

    def __call__(self, tokens: Tokens) -> jax.Array:
        """sum_s d_s."""
        return _spread(jnp.sum(Token()(tokens), axis=1, keepdims=True), tokens)


@dataclasses.dataclass(frozen=True)
class ClippedMean(Ratio):
    """Mean over the response of log ratios clipped by the sign of the advantage.

    z_t = min(d_t, high) where A > 0, max(d_t, -low) where A < 0, and 0 where A = 0:
    clipped before averaging, in log units. A token that was clipped has no gradient,
    which is for the gate to say. Without clipping this is `sequence_mean`.
    Source: GMPO, arXiv:2507.20673 (read in code).
    """

    low: float = setting(0.4, "with A < 0, log ratios >= -low")
    high: float = setting(0.4, "with A > 0, log ratios <= high")

    def __call__(self, tokens: Tokens) -> jax.Array:
        """(1 / L) sum_s z_s."""
        d_NT, adv_N1 = Token()(tokens), tokens.adv_N[:, None]
        down_NT = jnp.where(adv_N1 < 0, jnp.maximum(d_NT, -self.low), 0.0)
        z_NT = jnp.where(adv_N1 > 0, jnp.minimum(d_NT, self.high), down_NT)
        sum_N1 = jnp.sum(z_NT, axis=1, keepdims=True)
        return _spread(sum_N1 / length(tokens.mask_NT), tokens)


RATIOS: dict[str, Ratio] = table(
    NoRatio,
    Token,
    PrefixMean,
    PrefixSum,
    PrefixMin,
    SequenceMean,
    SequenceToken,
    SequenceSum,
    ClippedMean,
)
