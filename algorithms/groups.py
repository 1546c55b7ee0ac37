"""Scored rollouts, group by group: what advantages are made of."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from algorithms import stats


class Groups(NamedTuple):
    """A batch of P problems with G rollout slots each, all detached.

    Attributes:
      reward_PG: float, at least float32; 0 on invalid slots.
      valid_PG: bool, scored rollouts. Others are in no statistic.
      length_PG: int32, completion tokens, the end token included.
      ended_PG: bool, False where the completion was cut.
      success_PG: bool, rollouts that the task scored 1 or more, before any shaping.
      limit: the configured longest completion, tokens.
      terms_KPG: K terms that the reward is the sum of, the task's own first; 0 on
        invalid slots.
      prior_P: an outside guess of the group's mean reward, or None.
      cluster_PG: int32, equal for rollouts that solve the problem in the same way, or
        None. -1 stands for a rollout that could not be told.
    """

    reward_PG: jax.Array
    valid_PG: jax.Array
    length_PG: jax.Array
    ended_PG: jax.Array
    success_PG: jax.Array
    limit: int
    terms_KPG: jax.Array
    prior_P: jax.Array | None = None
    cluster_PG: jax.Array | None = None


def of(
    reward_PG: jax.Array,
    valid_PG: jax.Array,
    length_PG: jax.Array | None = None,
    ended_PG: jax.Array | None = None,
    limit: int = 1,
    prior_P: jax.Array | None = None,
    cluster_PG: jax.Array | None = None,
) -> Groups:
    """Groups of rewards; what is not given is as if all completions were one token.

    Args:
      reward_PG: float; invalid slots may hold anything, NaN included.
      valid_PG: bool, True on scored rollouts.
      length_PG: int, or None.
      ended_PG: bool, or None.
      limit: longest completion allowed, tokens.
      prior_P: float, or None.
      cluster_PG: int, or None.

    Raises:
      AssertionError: shapes differ or valid_PG is not bool; while tracing.
    """
    reward_PG, valid_PG = jnp.asarray(reward_PG), jnp.asarray(valid_PG)
    chex.assert_rank([reward_PG, valid_PG], 2)
    chex.assert_type(valid_PG, bool)
    if length_PG is None:
        length_PG = jnp.ones(reward_PG.shape, jnp.int32)
    if ended_PG is None:
        ended_PG = jnp.ones(reward_PG.shape, bool)
    chex.assert_equal_shape([reward_PG, valid_PG, length_PG, ended_PG])
    if cluster_PG is not None:
        chex.assert_equal_shape([reward_PG, cluster_PG])
    if prior_P is not None:
        chex.assert_shape(prior_P, reward_PG.shape[:1])
    reward_PG = jnp.where(valid_PG, stats.wide(reward_PG), 0.0)
    return Groups(
        reward_PG=reward_PG,
        valid_PG=valid_PG,
        length_PG=length_PG,
        ended_PG=ended_PG,
        success_PG=reward_PG >= 1,
        limit=limit,
        terms_KPG=reward_PG[None],
        prior_P=prior_P,
        cluster_PG=cluster_PG,
    )


def with_terms(groups: Groups, *terms_PG: jax.Array) -> Groups:
    """The same rollouts with the reward that these terms add up to."""
    terms_KPG = jnp.where(groups.valid_PG, stats.wide(jnp.stack(terms_PG)), 0.0)
    return groups._replace(reward_PG=jnp.sum(terms_KPG, axis=0), terms_KPG=terms_KPG)
