"""What a reward is compared with.

A baseline maps Groups to float [P, G]. It reads valid slots only.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from algorithms import stats
from algorithms.groups import Groups
from algorithms.parts import Part, setting, table


@dataclasses.dataclass(frozen=True)
class Baseline(Part):
    """Groups -> baseline_PG.

    Attributes:
      needs_group: whether a lone rollout has nothing to be compared with.
      across: whether a group of equal rewards can differ from it.
    """

    needs_group: ClassVar[bool] = True
    across: ClassVar[bool] = False

    def __call__(self, groups: Groups) -> jax.Array:
        """What each reward is compared with, float [P, G]."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class NoBaseline(Baseline):
    """0: a rollout is judged by its own reward. REINFORCE as it was, Williams 1992."""

    needs_group: ClassVar[bool] = False
    across: ClassVar[bool] = True

    def __call__(self, groups: Groups) -> jax.Array:
        """Zeros."""
        return jnp.zeros_like(groups.reward_PG)


@dataclasses.dataclass(frozen=True)
class BatchMean(Baseline):
    """The mean over all scored rollouts of the batch, whatever their problem.

    A moving baseline of REINFORCE with a memory of one batch. It couples problems by
    definition: rollouts of an easy one gain from hard ones beside it.
    """

    needs_group: ClassVar[bool] = False
    across: ClassVar[bool] = True

    def __call__(self, groups: Groups) -> jax.Array:
        """Mean of the batch at every slot."""
        flat = lambda x_PG: x_PG.reshape(1, -1)
        mean_11 = stats.mean(flat(groups.reward_PG), flat(groups.valid_PG))
        return jnp.broadcast_to(mean_11, groups.reward_PG.shape)


@dataclasses.dataclass(frozen=True)
class Mean(Baseline):
    """The group's mean, the reward itself included. Source: GRPO, arXiv:2402.03300."""

    def __call__(self, groups: Groups) -> jax.Array:
        """Mean of the group at every slot."""
        mean_P1 = stats.mean(groups.reward_PG, groups.valid_PG)
        return jnp.broadcast_to(mean_P1, groups.reward_PG.shape)


@dataclasses.dataclass(frozen=True)
class Median(Baseline):
    """The group's median; of an even count the mean of the middle two.

    Source: MC-GRPO, arXiv:2601.22582, which samples an odd group so that the median
    is one of its rewards. The reference code takes the lower of the middle two of an
    even group, which is biased low; that case arises here only when an odd group
    lost a rollout that could not be scored, or where all rollouts are kept.
    """

    def __call__(self, groups: Groups) -> jax.Array:
        """Median of the group at every slot."""
        median_P1 = stats.median(groups.reward_PG, groups.valid_PG)
        return jnp.broadcast_to(median_P1, groups.reward_PG.shape)


@dataclasses.dataclass(frozen=True)
class LeaveOneOut(Baseline):
    """Mean of the others: reward - baseline = (reward - mean) n / (n - 1).

    A lone reward is its own baseline, which gives it no advantage.
    Source: RLOO, arXiv:2402.14740.
    """

    def __call__(self, groups: Groups) -> jax.Array:
        """Mean of the group's other rewards."""
        n_P1 = stats.count(groups.valid_PG)
        total_P1 = stats.total(groups.reward_PG, groups.valid_PG)
        others_PG = total_P1 - groups.reward_PG
        mean_PG = others_PG / jnp.maximum(n_P1 - 1.0, 1.0)
        return jnp.where(n_P1 > 1, mean_PG, groups.reward_PG)


@dataclasses.dataclass(frozen=True)
class LowerMedian(Baseline):
    """The group's median; of an even count the lower of the middle two.

    What MC-GRPO's reference code takes, arXiv:2601.22582. It is always one of the
    rewards, and biased low where the count is even.
    """

    def __call__(self, groups: Groups) -> jax.Array:
        """Lower median of the group at every slot."""
        median_P1 = stats.median(groups.reward_PG, groups.valid_PG, lower=True)
        return jnp.broadcast_to(median_P1, groups.reward_PG.shape)


@dataclasses.dataclass(frozen=True)
class IntervalMedian(Baseline):
    """The median, or mean, of the narrowest window that holds ceil(n frac) rewards.

    Of windows equally narrow the lowest counts, so a group half 0 and half 1 has
    baseline 0. Advantages needn't sum to 0: they reward what is above the densest
    cluster. frac=1 takes the whole group.

    Source: GAPO, arXiv:2510.21830, and its code. There a tie must be exact; here
    widths are equal within 1e-6 of the rewards' size, or rounding would choose. There
    a lone rollout keeps its reward as advantage; here it gets none.
    """

    frac: float = setting(0.5, "share of the group in the window", high=1)
    mean: bool = setting(False, "take the window's mean, not its median")

    def __call__(self, groups: Groups) -> jax.Array:
        """The window's middle at every slot."""
        ordered_PG = stats.ordered(groups.reward_PG, groups.valid_PG)
        n_P1 = jnp.sum(groups.valid_PG, axis=1, keepdims=True)
        # Less a little: 10 * 0.3 must be 3 in any precision.
        k_P1 = jnp.ceil(n_P1 * self.frac - 1e-4).astype(n_P1.dtype)
        k_P1 = jnp.clip(k_P1, 1, jnp.maximum(n_P1, 1))
        rank_1G = jnp.arange(ordered_PG.shape[1])[None]
        last_PG = jnp.minimum(rank_1G + k_P1, jnp.maximum(n_P1, 1)) - 1
        width_PG = jnp.take_along_axis(ordered_PG, last_PG, axis=1) - ordered_PG
        width_PG = jnp.where(rank_1G + k_P1 <= n_P1, width_PG, jnp.inf)
        slack_P1 = stats.SAME * stats.magnitude(groups.reward_PG, groups.valid_PG)
        narrow_PG = width_PG <= jnp.min(width_PG, axis=1, keepdims=True) + slack_P1
        start_P1 = jnp.argmax(narrow_PG, axis=1, keepdims=True)
        if self.mean:
            inside_PG = (rank_1G >= start_P1) & (rank_1G < start_P1 + k_P1)
            middle_P1 = stats.mean(ordered_PG, inside_PG)
        else:
            middle_P1 = stats.middle(ordered_PG, start_P1, k_P1)
        return jnp.broadcast_to(middle_P1, groups.reward_PG.shape)


@dataclasses.dataclass(frozen=True)
class LengthWeighted(Baseline):
    """sum(length * reward) / sum(length) over the group.

    The baseline of least variance if the squared score of a completion grows with its
    length. Source: OPO, arXiv:2505.23585, as verl computes it, but for a lone rollout,
    which keeps its reward as advantage there and gets none here.
    """

    def __call__(self, groups: Groups) -> jax.Array:
        """Length-weighted mean of the group at every slot."""
        length_PG = groups.length_PG.astype(groups.reward_PG.dtype)
        total_P1 = stats.total(length_PG * groups.reward_PG, groups.valid_PG)
        tokens_P1 = stats.total(length_PG, groups.valid_PG)
        mean_P1 = total_P1 / jnp.maximum(tokens_P1, 1)
        return jnp.broadcast_to(mean_P1, groups.reward_PG.shape)


@dataclasses.dataclass(frozen=True)
class Shrunk(Baseline):
    """The group's mean drawn to a prior V, by as much as the two agree.

      noise = (high - low)^2 / 4k       the mean's variance at worst, of k rewards
      excess = max(0, (mean - V)^2 - noise)            what V is wrong by, squared
      baseline = mean + weight * noise / (excess + noise) * (V - mean)

    A group whose rewards are all equal still has an advantage where V is another: it
    is no constant group to a baseline that looks elsewhere. Dividing by the group's
    deviation would undo that, so it goes with no scale. weight=0 is `mean`.

    V is `Groups.prior_P` or, without one, the mean reward of the batch's other groups:
    empirical Bayes in place of the published frozen value model, and a batch statistic.
    With neither, V is the group's own mean. `leave_one_out` takes the row's own reward
    out of mean and k, and gives V to a lone rollout.

    Source: V_0.5, arXiv:2603.10848, from a third-party reading; there rewards lie in
    [-1, 1], so noise is 1/k, and k is at least 4. weight and leave_one_out are ours.
    """

    needs_group: ClassVar[bool] = False
    across: ClassVar[bool] = True

    low: float = setting(0.0, "least reward there is", low=-1e9)
    high: float = setting(1.0, "greatest reward there is", low=-1e9)
    weight: float = setting(1.0, "share of the prior's weight that is used", high=1)
    leave_one_out: bool = setting(False, "compare a reward with the others' mean")

    def __post_init__(self) -> None:
        super().__post_init__()
        bounds = (self.low, self.high)
        if all(isinstance(x, int | float) for x in bounds) and self.low >= self.high:
            raise ValueError(f"{self.name}.low={self.low} is not under {self.high}")

    def __call__(self, groups: Groups) -> jax.Array:
        """Prior and mean, mixed, at every slot."""
        n_PG = jnp.broadcast_to(stats.count(groups.valid_PG), groups.reward_PG.shape)
        total_PG = stats.total(groups.reward_PG, groups.valid_PG)
        if self.leave_one_out:
            n_PG, total_PG = n_PG - 1, total_PG - groups.reward_PG
        mean_PG = total_PG / jnp.maximum(n_PG, 1)
        prior_P1 = _prior(groups)
        excess_PG, noise_PG = self.errors(mean_PG, prior_P1, n_PG)
        share_PG = self.weight * noise_PG / (excess_PG + noise_PG)
        # Without others there is nothing that the prior could be weighed against.
        share_PG = jnp.where(n_PG < 1, 1.0, share_PG)
        return mean_PG + share_PG * (prior_P1 - mean_PG)

    def errors(
        self, mean: jax.Array, prior: jax.Array, n: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The prior's squared error, less what chance explains, and that chance."""
        noise = jnp.square(self.high - self.low) / (4 * jnp.maximum(n, 1))
        return jnp.maximum(jnp.square(mean - prior) - noise, 0), noise


def continue_sampling(
    shrunk: Shrunk,
    groups: Groups,
    cost: float = 0.0039,
    least: int = 4,
    most: int = 16,
) -> tuple[jax.Array, jax.Array]:
    """Whether one more rollout of a problem is worth its cost.

    The mixed baseline's squared error is excess * noise / (excess + noise). One more
    rollout lowers the noise; the look-ahead takes the excess as it is now. The default
    cost is about 1/16^2, so a useless prior samples on to about 16.

    Source: V_0.5, arXiv:2603.10848, from a third-party reading; the look-ahead's excess
    is our reading. With fewer than 4 rollouts the rule is said to misfire.

    Args:
      shrunk: the baseline; its bounds are used, weight and leave_one_out aren't.
      groups: rollouts so far.
      cost: of one rollout, in squared reward.
      least: rollouts that every problem gets.
      most: rollouts that no problem goes beyond.

    Returns:
      gain_P, by how much the error falls, and more_P, bool.
    """
    n_P1 = stats.count(groups.valid_PG)
    mean_P1 = stats.mean(groups.reward_PG, groups.valid_PG)
    prior_P1 = _prior(groups)
    excess_P1, now_P1 = shrunk.errors(mean_P1, prior_P1, n_P1)
    _, then_P1 = shrunk.errors(mean_P1, prior_P1, n_P1 + 1)
    error = lambda noise_P1: excess_P1 * noise_P1 / (excess_P1 + noise_P1)
    gain_P1 = error(now_P1) - error(then_P1)
    more_P1 = (n_P1 < least) | ((gain_P1 > cost) & (n_P1 < most))
    return gain_P1[:, 0], more_P1[:, 0]


def _prior(groups: Groups) -> jax.Array:
    """The given guess, else the other groups' mean reward, else the own: [P, 1]."""
    if groups.prior_P is not None:
        return stats.wide(groups.prior_P)[:, None]
    total_P1 = stats.total(groups.reward_PG, groups.valid_PG)
    n_P1 = stats.count(groups.valid_PG)
    others_P1 = jnp.sum(n_P1) - n_P1
    mean_P1 = (jnp.sum(total_P1) - total_P1) / jnp.maximum(others_P1, 1)
    own_P1 = stats.mean(groups.reward_PG, groups.valid_PG)
    return jnp.where(others_P1 > 0, mean_P1, own_P1)


BASELINES: dict[str, Baseline] = table(
    NoBaseline,
    BatchMean,
    Mean,
    Median,
    LeaveOneOut,
    LowerMedian,
    IntervalMedian,
    LengthWeighted,
    Shrunk,
)
