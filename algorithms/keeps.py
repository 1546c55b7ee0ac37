"""Which rollouts of a group the update may see.

A keep rule maps (centred_PG, Groups) to bool [P, G], False wherever valid is. What
is not kept counts in no weight either: not as a completion and not as its tokens.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from algorithms import stats
from algorithms.groups import Groups
from algorithms.parts import Part, setting, table


@dataclasses.dataclass(frozen=True)
class Keep(Part):
    """(centred_PG, Groups) -> keep_PG.

    Attributes:
      extra: rollouts sampled per problem beyond those that reach the optimizer.
    """

    extra: ClassVar[int] = 0

    drop_constant: bool = setting(
        False, "leave out groups that score all equal before shaping, tokens and all"
    )
    drop_truncated: bool = setting(
        False, "leave out completions that were cut; they stay in the statistics"
    )

    def __call__(self, centred_PG: jax.Array, groups: Groups) -> jax.Array:
        """Rollouts that the update may see."""
        keep_PG = groups.valid_PG
        if self.drop_constant:
            # The task's own term: rewards shaped by length are hardly ever equal.
            keep_PG &= ~stats.constant(groups.terms_KPG[0], groups.valid_PG)
        if self.drop_truncated:
            keep_PG &= groups.ended_PG
        return keep_PG


@dataclasses.dataclass(frozen=True)
class Everything(Keep):
    """Every scored rollout."""


@dataclasses.dataclass(frozen=True)
class AllButPivot(Keep):
    """Drops one rollout a group: the one whose reward is nearest the baseline.

    With a median of an odd group that reward is the median itself. Ties go to the
    lowest index, so the choice repeats. Source: MC-GRPO, arXiv:2601.22582.
    """

    extra: ClassVar[int] = 1

    def __call__(self, centred_PG: jax.Array, groups: Groups) -> jax.Array:
        """Rollouts that the update may see."""
        distance_PG = jnp.where(groups.valid_PG, jnp.abs(centred_PG), jnp.inf)
        pivot_P1 = jnp.argmin(distance_PG, axis=1, keepdims=True)
        slot_1G = jnp.arange(groups.valid_PG.shape[1])[None]
        return super().__call__(centred_PG, groups) & (slot_1G != pivot_P1)


def pack(keep_PG: jax.Array, width: int) -> jax.Array:
    """Slots of the kept rollouts first, in order: int32 [P, width].

    Lets a method that drops rollouts pay for the update of those it keeps only. The
    tail of a group that kept fewer than `width` points at dropped slots.
    """
    return jnp.argsort(~keep_PG, axis=1, stable=True)[:, :width].astype(jnp.int32)


KEEPS: dict[str, Keep] = table(Everything, AllButPivot)
