"""What a centred reward is divided by.

A scale maps (centred_PG, Groups) to a Scale.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from algorithms import stats
from algorithms.groups import Groups
from algorithms.parts import Part, setting, table


class Divisor(NamedTuple):
    """Divisors >= 0, float [P, 1], and which groups fell back on a second rule."""

    scale_P1: jax.Array
    fallback_P1: jax.Array


def plain(scale_P1: jax.Array) -> Divisor:
    """A divisor without a second rule."""
    return Divisor(scale_P1, jnp.zeros(scale_P1.shape, bool))


@dataclasses.dataclass(frozen=True)
class Scale(Part):
    """(centred_PG, Groups) -> Divisor.

    Attributes:
      within: whether it may be 0 in a group that, as a whole, differs from its
        baseline.
    """

    within: ClassVar[bool] = False

    def __call__(self, centred_PG: jax.Array, groups: Groups) -> Divisor:
        """What each group's centred rewards are divided by."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class NoScale(Scale):
    """1: advantages stay in units of reward."""

    def __call__(self, centred_PG: jax.Array, groups: Groups) -> Divisor:
        """Ones."""
        return plain(jnp.ones((centred_PG.shape[0], 1), centred_PG.dtype))


@dataclasses.dataclass(frozen=True)
class Std(Scale):
    """Standard deviation of the group plus eps, over n - 1 or, of a population, over n.

    Source: GRPO, arXiv:2402.03300, whose implementations divide by n - 1 and add 1e-6,
    1e-4 or 1e-8; AsyncWebRL, arXiv:2606.05597, divides by n. A constant group gets no
    advantage under any, since `objective.advantages` zeroes it before the division.
    """

    within: ClassVar[bool] = True

    eps: float = setting(1e-6, "added to the deviation")
    population: bool = setting(False, "divide by n, not by n - 1")

    def __call__(self, centred_PG: jax.Array, groups: Groups) -> Divisor:
        """Deviation of the group's rewards about their mean."""
        std_P1 = stats.std(groups.reward_PG, groups.valid_PG, self.population)
        return plain(std_P1 + self.eps)


@dataclasses.dataclass(frozen=True)
class BatchStd(Scale):
    """Sample deviation of all centred rewards of the batch, about their mean, plus eps.

    It couples problems by definition, and leaves their sizes relative to each other
    alone. Constant groups count. Source: ScaleRL, arXiv:2510.13786, which names the
    statistic only: n - 1 and the constant groups are our reading.
    """

    eps: float = setting(1e-6, "added to the deviation")

    def __call__(self, centred_PG: jax.Array, groups: Groups) -> Divisor:
        """The batch's deviation for every group."""
        flat = lambda x_PG: x_PG.reshape(1, -1)
        std_11 = stats.std(flat(centred_PG), flat(groups.valid_PG))
        return plain(jnp.broadcast_to(std_11 + self.eps, (centred_PG.shape[0], 1)))


@dataclasses.dataclass(frozen=True)
class Deviation(Scale):
    """sqrt(sum(centred^2) / (n - 1)) + eps: deviation about the baseline, not the mean.

    With the baseline `mean` it is `std`. Source: GAPO, arXiv:2510.21830, and its code.
    """

    eps: float = setting(1e-6, "added to the deviation")

    def __call__(self, centred_PG: jax.Array, groups: Groups) -> Divisor:
        """Root of the mean squared centred reward."""
        square_P1 = stats.total(jnp.square(centred_PG), groups.valid_PG)
        less_P1 = jnp.maximum(stats.count(groups.valid_PG) - 1, 1)
        return plain(jnp.sqrt(square_P1 / less_P1) + self.eps)


@dataclasses.dataclass(frozen=True)
class TermsStd(Scale):
    """Sum over the reward's terms of each one's deviation, plus eps.

    Terms come weighted from the shape. Every objective then has the advantage
    (r_k - mean_k) / std_k with weight in proportion to w_k std_k, without the 0 / 0 of
    one that doesn't vary. Never under the deviation of the sum, so advantages are never
    larger than with `std`, which it is for a lone term.

    Source: DVAO, arXiv:2605.25604, from a third-party reading. Whether it divides by n
    or n - 1 is unknown: weights don't depend on it, advantages do by sqrt(n / (n - 1)).
    """

    within: ClassVar[bool] = True

    eps: float = setting(1e-6, "added to the sum")
    population: bool = setting(False, "divide by n, not by n - 1")

    def __call__(self, centred_PG: jax.Array, groups: Groups) -> Divisor:
        """Sum of the deviations of the terms."""
        std = lambda x_PG: stats.std(x_PG, groups.valid_PG, self.population)
        return plain(jnp.sum(jax.vmap(std)(groups.terms_KPG), axis=0) + self.eps)


@dataclasses.dataclass(frozen=True)
class GroupMean(Scale):
    """The group's mean reward plus eps, so |advantage| < n for rewards of 0 and more.

    A problem solved once in n counts like one always solved: the gradient is that of
    log p and not of p. Of a group with rewards below 0 that means nothing, and such
    a group falls back on its standard deviation and is counted, which is ours.

    Source: MaxRL, as its authors' scripts compute it; eps there is not known to us.
    """

    within: ClassVar[bool] = True

    eps: float = setting(1e-6, "added to the mean")

    def __call__(self, centred_PG: jax.Array, groups: Groups) -> Divisor:
        """Mean of the group's rewards."""
        mean_P1 = stats.mean(groups.reward_PG, groups.valid_PG)
        std_P1 = stats.std(groups.reward_PG, groups.valid_PG)
        low_P1 = jnp.min(groups.reward_PG, axis=1, keepdims=True)
        return Divisor(jnp.where(low_P1 < 0, std_P1, mean_P1) + self.eps, low_P1 < 0)


@dataclasses.dataclass(frozen=True)
class Mad(Scale):
    """Median absolute deviation plus eps, or the standard deviation where it is tiny.

    The published rule is median(|r - median|) + eps. With rewards of two levels at
    least half of an odd group equals the median, so the deviation is always 0 and the
    rule divides by eps alone: advantages of +-1000 for 0/1 rewards. Here a group whose
    deviation is under `floor` times its standard deviation falls back on the latter,
    and is counted. Hence |advantage| <= sqrt(n) / floor for a group of n, and
    <= sqrt(n) where the deviation is 0. floor=0 gives the published rule, lower=True
    with the baseline `lower_median` what its code does with even groups.

    Source: MC-GRPO, arXiv:2601.22582, and its reference code; the fallback is ours.
    """

    eps: float = setting(1e-3, "added to the deviation")
    floor: float = setting(0.1, "share of the standard deviation it must reach")
    lower: bool = setting(False, "of an even count take the lower middle deviation")

    def __call__(self, centred_PG: jax.Array, groups: Groups) -> Divisor:
        """Median of |centred| over the group, or its standard deviation."""
        mad_P1 = stats.median(jnp.abs(centred_PG), groups.valid_PG, self.lower)
        std_P1 = stats.std(groups.reward_PG, groups.valid_PG)
        fallback_P1 = mad_P1 < self.floor * std_P1
        return Divisor(jnp.where(fallback_P1, std_P1, mad_P1 + self.eps), fallback_P1)


SCALES: dict[str, Scale] = table(
    NoScale, Std, BatchStd, Mad, Deviation, TermsStd, GroupMean
)
