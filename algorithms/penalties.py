"""Pulls towards another policy: KL terms, in the loss or in the reward.

With l = logp - logref, tokens drawn from the policy: k1 = l and k3 = exp(-l) - 1 + l
average to KL(policy || reference), k2 = l^2 / 2 nearly so. What they estimate and
what their gradient is are two things, so a penalty here is named by its gradient.

  part       slope per token        expected gradient is that of
  reverse    r l                    KL(policy || reference), tokens from any sampler
  forward    r (1 - exp(-l))        KL(reference || policy), tokens from any sampler
  k2         l                      KL(policy || reference) on policy, else of neither
  k3         1 - exp(-l)            KL(reference || policy) on policy, else of neither
  reward_k1  none: sum of l in      KL(policy || reference) of whole responses,
             the reward             on policy
  balance    b (x - mean of x),     the squared error of log policy(y) against
             x = sum of l           log reference(y) + R(y) / b, see its class

with r = exp(logp - logq), policy over sampler; tokens that a truncated sampler cannot
draw are missed. The first four see one position at a time: they leave out how a token
changes the positions after it, which the last two count.

There is no k1 in the loss: the slope of l is 1 at every token, and the expectation of
the plain score is 0, so it adds noise and pulls nowhere.

Exponents are kept in +-20; l itself is never cut. So where policy and reference are
further apart than that, slopes stay finite and nonzero and go on pulling, where a
clamp inside a differentiated estimate would let go. Source of the table: exact
3-category enumeration, in tests/algorithms/test_penalties.py.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from algorithms import ratios, stats
from algorithms.parts import Part, setting, table
from algorithms.tokens import Tokens, length


class Term(NamedTuple):
    """A term of the loss, token by token.

    Attributes:
      value_NT: what it adds to the loss, for the record.
      slope_NT: its derivative by each token's own logp, the only way it acts.
    """

    value_NT: jax.Array
    slope_NT: jax.Array

    def times(self, coef: jax.Array | float) -> "Term":
        """The term with another weight."""
        return Term(coef * self.value_NT, coef * self.slope_NT)


def none(tokens: Tokens) -> Term:
    """No term."""
    zero_NT = jnp.zeros_like(tokens.logp_NT)
    return Term(zero_NT, zero_NT)


def k1(log_ratio: jax.Array) -> jax.Array:
    """l: averages to KL(policy || reference) over the policy's tokens; may be < 0."""
    return log_ratio


def k2(log_ratio: jax.Array) -> jax.Array:
    """l^2 / 2 >= 0: the KL to second order, biased beyond."""
    return jnp.square(log_ratio) / 2.0


def k3(log_ratio: jax.Array) -> jax.Array:
    """exp(-l) - 1 + l >= 0: averages to the KL, with less variance near l = 0."""
    return ratios.exp(-log_ratio) - 1.0 + log_ratio


@dataclasses.dataclass(frozen=True)
class Penalty(Part):
    """(Tokens, logref_NT) -> Term, to be weighed like the policy term.

    The term is not multiplied by advantage, gate or correction, and its coefficient
    is in it.

    Attributes:
      active: whether there is a term at all.
      in_reward: whether it is taken off the reward, before rollouts are compared.
      whole_groups: whether a row's term depends on the other rows of its group, so
        that no group may be split.
    """

    active: ClassVar[bool] = True
    in_reward: ClassVar[bool] = False
    whole_groups: ClassVar[bool] = False

    @property
    def coef(self) -> float:
        """Weight of the term; 0 for a part that has no such setting."""
        return 0.0

    @property
    def to_sampler(self) -> bool:
        """Whether the anchor stands in for the reference."""
        return False

    @property
    def needs_reference(self) -> bool:
        """Whether log-probabilities under a reference policy are read."""
        return self.active and not self.to_sampler

    def __call__(self, tokens: Tokens, logref_NT: jax.Array | None) -> Term:
        """Value and slope at every token; 0 off the mask."""
        raise NotImplementedError

    def cost(
        self, logp: jax.Array, logref: jax.Array, mask: jax.Array
    ) -> jax.Array | float:
        """What is taken off the reward of each response; 0 for a part of the loss."""
        return 0.0


@dataclasses.dataclass(frozen=True)
class NoPenalty(Penalty):
    """No pull."""

    active: ClassVar[bool] = False

    def __call__(self, tokens: Tokens, logref_NT: jax.Array | None) -> Term:
        """Zeros."""
        return none(tokens)


@dataclasses.dataclass(frozen=True)
class _Pull(Penalty):
    """A term of the loss, with its weight and where it pulls to."""

    coef: float = setting(0.001, "weight of the term")
    to_sampler: bool = setting(
        False, "pull to the ratio's anchor, by default the sampler: no reference policy"
    )

    def excess(self, tokens: Tokens, logref_NT: jax.Array | None) -> jax.Array:
        """l = logp - logref, 0 off the mask."""
        if self.to_sampler:
            return tokens.logp_NT - tokens.logo_NT
        if logref_NT is None:
            raise ValueError(f"{self.name} needs log-probabilities of a reference")
        fixed_NT = jax.lax.stop_gradient(logref_NT)
        return tokens.logp_NT - stats.wide(jnp.where(tokens.mask_NT, fixed_NT, 0.0))


def over_sampler(tokens: Tokens) -> jax.Array:
    """r: policy over sampler, at every token alone."""
    return ratios.exp(tokens.logp_NT - tokens.logq_NT)


@dataclasses.dataclass(frozen=True)
class Reverse(_Pull):
    """KL(policy || reference) at every position, whatever drew the tokens.

    Value r k3(l), whose derivative by logp, through r as well, is the slope r l.
    On policy its gradient is that of `k2`. Source: DeepSeek-V3.2's and TRL's
    unbiased KL; checked by enumeration.
    """

    def __call__(self, tokens: Tokens, logref_NT: jax.Array | None) -> Term:
        """Slope coef r l."""
        l_NT, r_NT = self.excess(tokens, logref_NT), over_sampler(tokens)
        return Term(r_NT * k3(l_NT), r_NT * l_NT).times(self.coef)


@dataclasses.dataclass(frozen=True)
class Forward(_Pull):
    """KL(reference || policy) at every position, whatever drew the tokens.

    Value r (1 - u + u log u) with u = exp(-l), >= 0, averages to the KL; its
    derivative by logp, through r as well, is the slope r (1 - u). On policy its
    gradient is that of `k3`. Source: our derivation, checked by enumeration.
    """

    def __call__(self, tokens: Tokens, logref_NT: jax.Array | None) -> Term:
        """Slope coef r (1 - exp(-l))."""
        l_NT, r_NT = self.excess(tokens, logref_NT), over_sampler(tokens)
        u_NT = ratios.exp(-l_NT)
        value_NT = 1.0 - u_NT - u_NT * l_NT
        return Term(r_NT * value_NT, r_NT * (1.0 - u_NT)).times(self.coef)


@dataclasses.dataclass(frozen=True)
class K2(_Pull):
    """Half the squared log ratio: on policy KL(policy || reference).

    With `to_sampler` it is coef / 2 times the squared log ratio to the sampler that
    MiniMax and Kimi add. Source: read in code.
    """

    def __call__(self, tokens: Tokens, logref_NT: jax.Array | None) -> Term:
        """Slope coef l."""
        l_NT = self.excess(tokens, logref_NT)
        return Term(k2(l_NT), l_NT).times(self.coef)


@dataclasses.dataclass(frozen=True)
class K3(_Pull):
    """The usual KL term of GRPO: k3 without a ratio.

    Its value estimates KL(policy || reference), its gradient on policy is that of
    KL(reference || policy), and off policy that of neither.
    Source: GRPO, arXiv:2402.03300, and most code after it.
    """

    def __call__(self, tokens: Tokens, logref_NT: jax.Array | None) -> Term:
        """Slope coef (1 - exp(-l))."""
        l_NT = self.excess(tokens, logref_NT)
        return Term(k3(l_NT), 1.0 - ratios.exp(-l_NT)).times(self.coef)


@dataclasses.dataclass(frozen=True)
class RewardK1(Penalty):
    """coef sum_t l_t taken off the reward: KL(policy || reference) of responses.

    Right where tokens come from the policy itself, and with log-probabilities as of
    then. k1 is the one estimate that may stand there: k2 and k3 in a reward pull
    elsewhere. Source: reverse-KL regularised RL; checked by enumeration.
    """

    in_reward: ClassVar[bool] = True

    coef: float = setting(0.001, "reward units a nat")

    def __call__(self, tokens: Tokens, logref_NT: jax.Array | None) -> Term:
        """Zeros: nothing is left for the loss."""
        return none(tokens)

    def cost(self, logp: jax.Array, logref: jax.Array, mask: jax.Array) -> jax.Array:
        """coef sum_t (logp - logref), [..., T] -> [...]; 0 for an empty response."""
        clean = lambda x: stats.wide(jnp.where(mask, jax.lax.stop_gradient(x), 0.0))
        return self.coef * jnp.sum(clean(logp) - clean(logref), axis=-1)


@dataclasses.dataclass(frozen=True)
class Balance(_Pull):
    """Trajectory balance: every response's log ratio to the reference, group-centred.

    With x_i = sum_t l_t of row i, as of this very update, slope coef (x_i - mean of x
    over the group's rows with tokens) at all tokens of the row; value
    coef (x_i - mean)^2 / 2, spread evenly over them. Rewards centred by their group's
    mean, no scale, no ratio, no gate and `sequence_sum` make it, together, b / 2
    times the gradient of TBA's loss mean_i (log Z + x_i - R_i / b)^2 with b = coef,
    which is right whatever drew the rows and least where policy = reference exp(R/b).
    A group of one row with tokens has no term.
    Source: TBA, arXiv:2503.18929 (read in the authors' code, whose b falls from 0.012
    to 0.004 on GSM8K).
    """

    whole_groups: ClassVar[bool] = True

    coef: float = setting(0.012, "b, reward units a nat")

    def __call__(self, tokens: Tokens, logref_NT: jax.Array | None) -> Term:
        """Slope coef (x_i - mean of its group)."""
        x_N = jnp.sum(self.excess(tokens, logref_NT), axis=1)
        member_N = jnp.any(tokens.mask_NT, axis=1)
        add = lambda y_N: jax.ops.segment_sum(y_N, tokens.group_N, y_N.shape[0])
        # An empty row has x = 0, so only the count must leave it out.
        mean_P = add(x_N) / jnp.maximum(add(member_N.astype(x_N.dtype)), 1.0)
        off_N1 = (x_N - mean_P[tokens.group_N])[:, None]
        value_N1 = jnp.square(off_N1) / (2.0 * length(tokens.mask_NT))
        on = lambda y_N1: jnp.where(tokens.mask_NT, y_N1, 0.0)
        return Term(on(value_N1), on(off_N1)).times(self.coef)


PENALTIES: dict[str, Penalty] = table(
    NoPenalty, Reverse, Forward, K2, K3, RewardK1, Balance
)
