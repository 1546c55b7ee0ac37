"""What is done to advantages once they are scaled.

A transform maps (adv_PG, Groups) to float [P, G].
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from algorithms import shapes, stats
from algorithms.groups import Groups
from algorithms.parts import Part, setting, table


@dataclasses.dataclass(frozen=True)
class Transform(Part):
    """(adv_PG, Groups) -> adv_PG.

    Attributes:
      needs_clusters: whether it reads Groups.cluster_PG.
      by_slot: whether the slots of a group are treated unlike each other.
    """

    needs_clusters: ClassVar[bool] = False
    by_slot: ClassVar[bool] = False

    def __call__(self, adv_PG: jax.Array, groups: Groups) -> jax.Array:
        """Advantages as the update uses them."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class NoTransform(Transform):
    """Advantages as they are."""

    def __call__(self, adv_PG: jax.Array, groups: Groups) -> jax.Array:
        """The advantages unchanged."""
        return adv_PG


@dataclasses.dataclass(frozen=True)
class Uniqueness(Transform):
    """advantage * f^-alpha, f the group's rollouts in the same cluster as this one.

    A rollout of no cluster (-1) counts as the commonest there could be, f = n: garbage
    must not pass for originality. Sums are no longer 0, and aren't put back to it.

    Source: Uniqueness-aware RL, arXiv:2601.08763, from third-party readings: it weighs
    all signs, and its alpha is unknown. Unclustered rollouts, positives_only and the
    default alpha are ours.
    """

    needs_clusters: ClassVar[bool] = True

    alpha: float = setting(0.5, "how much common solutions lose", high=1)
    positives_only: bool = setting(False, "leave advantages under 0 as they are")

    def __call__(self, adv_PG: jax.Array, groups: Groups) -> jax.Array:
        """Advantages, less for common solutions.

        Raises:
          ValueError: there are no clusters.
        """
        cluster_PG = groups.cluster_PG
        if cluster_PG is None:
            raise ValueError(f"transform {self.name} needs Groups.cluster_PG")
        same_PGG = cluster_PG[:, :, None] == cluster_PG[:, None, :]
        size_PG = jnp.sum(same_PGG & groups.valid_PG[:, None, :], axis=2)
        size_PG = size_PG.astype(adv_PG.dtype)
        size_PG = jnp.where(cluster_PG < 0, stats.count(groups.valid_PG), size_PG)
        weight_PG = jnp.maximum(size_PG, 1) ** -self.alpha
        if self.positives_only:
            weight_PG = jnp.where(adv_PG > 0, weight_PG, 1)
        return adv_PG * weight_PG


@dataclasses.dataclass(frozen=True)
class Amplify(Transform):
    """1 for a success; of others, advantages of 0 and more times alpha.

    Meant for mean-centred advantages without a scale. A group whose rewards are all
    equal stays as it is: there the authors' code would give every success 1.

    Source: R3L, arXiv:2601.03715, as its authors' code has it.
    """

    alpha: float = setting(3.0, "factor on advantages of rollouts short of success")

    def __call__(self, adv_PG: jax.Array, groups: Groups) -> jax.Array:
        """Advantages, larger where they are positive."""
        more_PG = jnp.where(adv_PG >= 0, self.alpha * adv_PG, adv_PG)
        more_PG = jnp.where(groups.success_PG, 1, more_PG)
        same_P1 = stats.constant(groups.reward_PG, groups.valid_PG)
        return jnp.where(same_P1 | ~groups.valid_PG, adv_PG, more_PG)


@dataclasses.dataclass(frozen=True)
class BudgetPush(Transform):
    """advantage + mean reward of the slots with the same budget - value of the budget.

    For the shape `hierarchical_budget`, with the same budgets and beta: the value is
    its reward for a success of exactly that length, which no reward exceeds, so all of
    a budget's rollouts are pushed down together, those of unsolved problems most. The
    push is in units of reward whatever the scale of the rest.

    Source: HBPO, arXiv:2507.15844.
    """

    by_slot: ClassVar[bool] = True

    budgets: tuple[float, ...] = setting(
        (0.125, 0.25, 0.5, 0.625), "shares of the limit, slot by slot"
    )
    beta: float = setting(1.0, "reward of a success of length 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        shapes.check_budgets(self.name, self.budgets)

    def __call__(self, adv_PG: jax.Array, groups: Groups) -> jax.Array:
        """Advantages with the push of each slot's budget."""
        budget_1G = shapes.slot_budgets(self.budgets, groups)
        value_1G = shapes.budget_value(budget_1G, groups.limit, self.beta)
        for budget in sorted(set(shapes.token_budgets(self.budgets, groups.limit))):
            here_PG = groups.valid_PG & (budget_1G == budget)
            push_PG = stats.mean(groups.reward_PG, here_PG) - value_1G
            # A mean of successes is their value up to rounding, which says nothing.
            near_PG = jnp.abs(push_PG) <= stats.SAME * jnp.abs(value_1G)
            push_PG = jnp.where(here_PG & ~near_PG, push_PG, 0.0)
            adv_PG = adv_PG + push_PG
        return adv_PG


@dataclasses.dataclass(frozen=True)
class NonzeroRescale(Transform):
    """advantage * n / (rollouts of the group whose advantage is not 0).

    What is lost to rollouts at the median is shared out among the rest; within 1e-6 of
    0 is 0. Source: MC-GRPO, arXiv:2601.22582, the GSM8K trainer of its reference code
    only; the abstract doesn't have it.
    """

    def __call__(self, adv_PG: jax.Array, groups: Groups) -> jax.Array:
        """Advantages, larger where few aren't 0."""
        some_PG = groups.valid_PG & (jnp.abs(adv_PG) > 1e-6)
        factor_P1 = stats.count(groups.valid_PG) / jnp.maximum(stats.count(some_PG), 1)
        return jnp.where(some_PG, adv_PG * factor_P1, adv_PG)


def visit_mixing(
    adv_new_PG: jax.Array, adv_total_PG: jax.Array, visit_P: jax.Array
) -> jax.Array:
    """Advantage of a problem's rollouts, smoothed over its visits.

      ((i - 1) new + total) / i   or   (new + (i - 1) total) / i,   the nearer to 0

    On the first visit the two advantages agree, and so does this. A later group
    without spread keeps total / i. Equally near, the first is taken.

    Source: DCPO, arXiv:2509.02333, as its authors' README has it; the tie is ours.

    Args:
      adv_new_PG: against this visit's rollouts.
      adv_total_PG: against all rollouts of the problem so far.
      visit_P: int, 1 on the first.

    Returns:
      float [P, G].
    """
    share_P1 = (1 / jnp.maximum(visit_P, 1).astype(adv_new_PG.dtype))[:, None]
    near_PG = (1 - share_P1) * adv_new_PG + share_P1 * adv_total_PG
    far_PG = share_P1 * adv_new_PG + (1 - share_P1) * adv_total_PG
    return jnp.where(jnp.abs(near_PG) <= jnp.abs(far_PG), near_PG, far_PG)


def step_norm(
    adv_E: jax.Array,
    episode_N: jax.Array,
    steps_E: jax.Array,
    horizon: float | None = None,
) -> jax.Array:
    """Advantage of each step of episodes of several: adv / steps, or adv / horizon.

    A constant horizon takes out the bias that dividing by the own steps has, which is
    towards long failures. With it, and with episodes of one step, all that is left is
    a factor 1 / horizon. Source: AsyncWebRL, arXiv:2606.05597, and its design note.

    Args:
      adv_E: of E episodes.
      episode_N: int, the episode of each of N rows, a row being one step.
      steps_E: steps of each episode.
      horizon: steps that stand for every episode's, 10 as published, or None.

    Returns:
      float [N].
    """
    per_E = jnp.maximum(steps_E, 1) if horizon is None else horizon
    return (adv_E / per_E)[episode_N]


TRANSFORMS: dict[str, Transform] = table(
    NoTransform, Uniqueness, Amplify, BudgetPush, NonzeroRescale
)
