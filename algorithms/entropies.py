"""Rewards for keeping the policy's choices open.

With H the entropy of the next-token distribution, at the temperature that samples,
the loss gets - coef H at every token, weighed like the policy term. Note that the
sampled surprisal -logp, which averages to H, is no bonus when differentiated: its
slope is -1 at every token, and the expectation of the plain score is 0.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from algorithms.parts import Part, setting, table
from algorithms.penalties import Term, none, over_sampler
from algorithms.tokens import Tokens


@dataclasses.dataclass(frozen=True)
class Entropy(Part):
    """A bonus on the entropy of the next-token distribution, nats a token.

    Attributes:
      active: whether there is a bonus at all.
      exact: whether it needs the entropy of the whole distribution, differentiable:
        the caller then adds - coef sum(weight_NT entropy_NT) to the loss.
    """

    active: ClassVar[bool] = True
    exact: ClassVar[bool] = False

    @property
    def coef(self) -> float:
        """Weight of the bonus; 0 for a part that has no such setting."""
        return 0.0

    def __call__(self, tokens: Tokens) -> Term:
        """The bonus as a term of the loss, so far as sampled tokens alone make it."""
        return none(tokens)


@dataclasses.dataclass(frozen=True)
class NoEntropy(Entropy):
    """No bonus."""

    active: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class Exact(Entropy):
    """Of the whole distribution: no noise, at the cost of a pass over the vocabulary.

    dH / dlogit_a = - p_a (log p_a + H). Tokens come from the sampler, so off policy
    the mean is over the sampler's prefixes, with the policy's entropy at each.
    """

    exact: ClassVar[bool] = True

    coef: float = setting(0.001, "weight of the bonus")


@dataclasses.dataclass(frozen=True)
class Sampled(Entropy):
    """From the sampled token alone, by the score function.

    dH = - E_policy[(logp + b) dlogp] for any constant b, so with r = policy over
    sampler the slope of - coef H is coef r (logp + b), and its value coef r logp.
    Unbiased whatever drew the tokens; noise is least near b = H.
    Source: our derivation, checked by enumeration.
    """

    coef: float = setting(0.001, "weight of the bonus")
    baseline: float = setting(
        0.0, "b, nats, about the entropy: less noise, same expectation"
    )

    def __call__(self, tokens: Tokens) -> Term:
        """Slope coef r (logp + b)."""
        r_NT = over_sampler(tokens)
        # r is 1 off the mask, where logp is 0 and a baseline is not.
        slope_NT = jnp.where(tokens.mask_NT, tokens.logp_NT + self.baseline, 0.0)
        return Term(r_NT * tokens.logp_NT, r_NT * slope_NT).times(self.coef)


ENTROPIES: dict[str, Entropy] = table(NoEntropy, Exact, Sampled)
