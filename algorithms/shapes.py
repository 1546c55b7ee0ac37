"""What is added to a task's reward before rollouts are compared.

A shape maps Groups to Groups: its reward becomes a sum of terms, the task's own first,
which scales that weigh objectives apart can tell from each other. `success_PG` stays
what the task said. Lengths are completion tokens, the end token included.
"""

from collections.abc import Sequence
import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from algorithms import groups as groups_lib
from algorithms import stats
from algorithms.groups import Groups
from algorithms.parts import Part, setting, table


@dataclasses.dataclass(frozen=True)
class Shape(Part):
    """Groups -> Groups.

    Attributes:
      by_slot: whether the slots of a group are rewarded unlike each other.
    """

    by_slot: ClassVar[bool] = False

    def __call__(self, groups: Groups) -> Groups:
        """The same rollouts with another reward."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class NoShape(Shape):
    """The task's reward as it is."""

    def __call__(self, groups: Groups) -> Groups:
        """The groups unchanged."""
        return groups


@dataclasses.dataclass(frozen=True)
class Overlong(Shape):
    """reward - factor * clip(1 - (limit - length) / (buffer * limit), 0, 1).

    A penalty that starts `buffer` short of the limit, reaches `factor` at it and stays
    there beyond. buffer=0 penalises lengths beyond the limit alone, of which a sampler
    that stops at the limit has none. Published: a limit of 20480 with 4096 of them as
    the buffer, and groups filtered by accuracy, not by the reward shaped here.

    Source: DAPO, arXiv:2503.14476, and its reference recipe.
    """

    buffer: float = setting(0.2, "share of the limit over which it grows", high=1)
    factor: float = setting(1.0, "penalty at the limit and beyond")

    def __call__(self, groups: Groups) -> Groups:
        """Task reward, less the penalty of length."""
        penalty_PG = self.factor * overrun(groups, self.buffer)
        return groups_lib.with_terms(groups, groups.reward_PG, -penalty_PG)


@dataclasses.dataclass(frozen=True)
class DifficultyLength(Shape):
    """reward - weight * factor * clip(1 - (limit - length) / (buffer * limit), 0, 1).

    The weight is (share of the group that succeeded)^power for a success and 1 for a
    failure: what succeeds on a hard problem may be long. A completion that was cut
    pays the whole factor. power=0 is `overlong` wherever that penalises cut ones so.

    Source: Apriel-Reasoner, arXiv:2604.02007; the rule as its training code has it.
    Its configured power is not known to us, so 1 is our choice.
    """

    buffer: float = setting(0.2, "share of the limit over which it grows", high=1)
    factor: float = setting(1.0, "penalty at the limit and beyond")
    power: float = setting(1.0, "how much harder problems are spared", high=16)

    def __call__(self, groups: Groups) -> Groups:
        """Task reward, less the penalty of length by difficulty."""
        eased_PG = jnp.where(groups.success_PG, solve_rate(groups) ** self.power, 1.0)
        share_PG = jnp.where(
            groups.ended_PG, eased_PG * overrun(groups, self.buffer), 1.0
        )
        return groups_lib.with_terms(groups, groups.reward_PG, -self.factor * share_PG)


@dataclasses.dataclass(frozen=True)
class SolveRateLength(Shape):
    """reward - beta * length * max(p, 1 / n), p the group's solve rate of n rollouts.

    beta=1e-7 is no slip: in groups that agree on the task's reward length is all the
    variance there is, and dividing by the deviation brings it to order 1, failures
    included; in others the task decides. Without such a scale it does nothing. Beside
    a reward of 1, length differences under 1e-6 / (beta p), 10 tokens, count as
    rounding (`stats.SAME`).

    Source: ALP, arXiv:2506.05256; abstract and third-party readings, which disagree on
    a factor of the longest or the own length. Ours is the token count.
    """

    beta: float = setting(1e-7, "penalty of a token where all succeed")

    def __call__(self, groups: Groups) -> Groups:
        """Task reward, less a price per token."""
        n_P1 = jnp.maximum(stats.count(groups.valid_PG), 1.0)
        price_P1 = self.beta * jnp.maximum(solve_rate(groups), 1 / n_P1)
        penalty_PG = price_P1 * _length(groups)
        return groups_lib.with_terms(groups, groups.reward_PG, -penalty_PG)


@dataclasses.dataclass(frozen=True)
class HierarchicalBudget(Shape):
    """A success is paid by its length and by the budget b of its slot; else 0.

      beta cos(pi b / 2 limit)                                   length <= b
      beta cos(pi length / 2 limit) - alpha (length - b)         b < length <= limit
      0                                                failures and length > limit

    Slot g of G has budget number g K // G of K. A long success may score below 0, under
    a failure. It replaces the task's reward: partial credit is gone. The published
    prompts announce their budget; ours don't, so a policy cannot tell which applies.

    Source: HBPO, arXiv:2507.15844, with 512, 1024, 2048 and 2560 of 4096 tokens. alpha
    and beta are not in the text; these are our choice.
    """

    by_slot: ClassVar[bool] = True

    budgets: tuple[float, ...] = setting(
        (0.125, 0.25, 0.5, 0.625), "shares of the limit, slot by slot"
    )
    alpha: float = setting(1e-4, "penalty of a token beyond the budget")
    beta: float = setting(1.0, "reward of a success of length 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budgets(self.name, self.budgets)

    def __call__(self, groups: Groups) -> Groups:
        """Reward by budget."""
        budget_1G = slot_budgets(self.budgets, groups)
        length_PG = _length(groups)
        paid_PG = budget_value(
            jnp.maximum(length_PG, budget_1G), groups.limit, self.beta
        )
        paid_PG -= self.alpha * jnp.maximum(length_PG - budget_1G, 0.0)
        earns_PG = groups.success_PG & (groups.length_PG <= groups.limit)
        reward_PG = jnp.where(earns_PG, paid_PG, 0.0)
        return _replaced(groups, reward_PG)


@dataclasses.dataclass(frozen=True)
class Effort(Shape):
    """reward * [length <= ratio * mean length of the group].

    A large ratio is off; one under 1 shortens for as long as it acts, since the mean
    moves along. All scored rollouts are in the mean (whether the published one is over
    successes is not known), so a lone one is never too long at 1. A reward under 0 is
    kept, lest length pay. Our prompts don't announce the ratio, and it isn't drawn.

    Source: Adaptive Effort Control, arXiv:2510.27042; abstract and a third-party
    summary. The law of the published ratio is unknown.
    """

    ratio: float = setting(1.0, "longest completion rewarded, in means", low=1e-3)

    def __call__(self, groups: Groups) -> Groups:
        """Task reward where the effort is small enough."""
        mean_P1 = stats.mean(_length(groups), groups.valid_PG)
        short_PG = _length(groups) <= self.ratio * mean_P1
        kept_PG = jnp.where(
            short_PG, groups.reward_PG, jnp.minimum(groups.reward_PG, 0)
        )
        return _replaced(groups, kept_PG)


@dataclasses.dataclass(frozen=True)
class Within(Shape):
    """(1 - weight) * reward + weight * [length <= target * limit].

    Two objectives for a scale that weighs them apart; the target is taken to the
    nearest token, and a failure earns its share as well. Source: the runs of DVAO,
    arXiv:2605.25604, with 4000 of 8192 tokens; from a third-party reading.
    """

    target: float = setting(0.5, "share of the limit that counts as short", high=1)
    weight: float = setting(0.5, "share of the reward that is for length", high=1)

    def __call__(self, groups: Groups) -> Groups:
        """Weighted task reward and weighted length."""
        short_PG = _length(groups) <= jnp.round(self.target * groups.limit)
        return groups_lib.with_terms(
            groups,
            (1 - self.weight) * groups.reward_PG,
            self.weight * short_PG.astype(groups.reward_PG.dtype),
        )


def solve_rate(groups: Groups) -> jax.Array:
    """Share of each group's scored rollouts that succeeded, [P, 1]."""
    success_PG = groups.success_PG.astype(groups.reward_PG.dtype)
    return stats.mean(success_PG, groups.valid_PG)


def overrun(groups: Groups, buffer: float) -> jax.Array:
    """How much of the buffer below the limit is used up, in [0, 1], [P, G]."""
    # Counted back from the limit, where the difference of integers is exact.
    left_PG = groups.limit - _length(groups)
    width = jnp.asarray(buffer * groups.limit, left_PG.dtype)
    used_PG = 1 - left_PG / jnp.where(width > 0, width, 1)
    used_PG = jnp.where(width > 0, used_PG, -left_PG)
    return jnp.clip(used_PG, 0, 1)


def check_budgets(name: str, budgets: Sequence[float]) -> None:
    """Refuses what is not one or more shares of the limit."""
    if not budgets or not all(0 < share < 1 for share in budgets):
        raise ValueError(
            f"{name}.budgets={budgets} must be one or more shares between 0 and 1"
        )


def token_budgets(budgets: Sequence[float], limit: int) -> list[int]:
    """Budgets to the nearest token, at least 1."""
    return [max(round(share * limit), 1) for share in budgets]


def slot_budgets(budgets: Sequence[float], groups: Groups) -> jax.Array:
    """The budget of every slot, tokens in the reward's type, [1, G]: runs, in order."""
    G, tokens = groups.reward_PG.shape[1], token_budgets(budgets, groups.limit)
    slots = [tokens[g * len(tokens) // G] for g in range(G)]
    return jnp.asarray([slots], groups.reward_PG.dtype)


def budget_value(length: jax.Array, limit: int, beta: float) -> jax.Array:
    """Worth of a success so long: beta at 0 tokens, falling to 0 at the limit."""
    return beta * jnp.cos(math.pi / 2 * length / limit)


def _replaced(groups: Groups, reward_PG: jax.Array) -> Groups:
    """The groups with this reward; its second term is what was added to the task's."""
    return groups_lib.with_terms(groups, groups.reward_PG, reward_PG - groups.reward_PG)


def _length(groups: Groups) -> jax.Array:
    """Tokens in the reward's type."""
    return groups.length_PG.astype(groups.reward_PG.dtype)


SHAPES: dict[str, Shape] = table(
    NoShape,
    Overlong,
    DifficultyLength,
    SolveRateLength,
    HierarchicalBudget,
    Effort,
    Within,
)
