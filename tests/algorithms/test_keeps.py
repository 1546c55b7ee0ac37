"""Which rollouts an update sees, and in which order they are packed."""

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import baselines, groups, keeps, shapes
from algorithms.keeps import KEEPS
from tests.algorithms.scored import NAN


def kept(golden, part, rewards, ended=None, shape=None):
    """The mask of a keep rule on median-centred rewards."""

    def run(reward_PG):
        ended_PG = None if ended is None else jnp.asarray(ended)
        length_PG = jnp.arange(reward_PG.size).reshape(reward_PG.shape) + 1
        valid_PG = jnp.isfinite(reward_PG)
        batch = groups.of(reward_PG, valid_PG, length_PG, ended_PG, limit=10)
        batch = shape(batch) if shape else batch
        centred_PG = batch.reward_PG - baselines.Median()(batch)
        return part(jnp.where(batch.valid_PG, centred_PG, 0.0), batch)

    return golden(run, np.array(rewards, float)).astype(int).tolist()


def test_everything_is_what_was_scored(golden):
    assert kept(golden, keeps.Everything(), [[1, NAN, 0], [NAN] * 3]) == [
        [1, 0, 1],
        [0, 0, 0],
    ]


@pytest.mark.parametrize("G", [3, 5, 9])
def test_the_pivot_is_one_row_a_group_at_the_median(golden, G):
    rewards = np.random.default_rng(G).normal(size=(50, G))
    mask = np.array(kept(golden, keeps.AllButPivot(), rewards), bool)
    assert (mask.sum(axis=1) == G - 1).all()
    np.testing.assert_array_equal(rewards[~mask], np.median(rewards, axis=1))


@pytest.mark.parametrize(
    "row, want",
    [
        ([1, 0, 1, 0, 0], [1, 0, 1, 1, 1]),
        ([0, 0, 0], [0, 1, 1]),
        ([5], [0]),
        # Of 0 and 1 the median is as far from both; an unscored slot is nearer.
        ([NAN, 0, 1], [0, 0, 1]),
        ([NAN, NAN], [0, 0]),
    ],
)
def test_ties_take_the_lowest_and_never_what_was_not_scored(golden, row, want):
    assert kept(golden, keeps.AllButPivot(), [row]) == [want]


@pytest.mark.parametrize("part", KEEPS.values(), ids=str)
def test_groups_that_agree_and_rollouts_that_were_cut_may_be_left_out(golden, part):
    rewards = [[1, 0, 0], [1, 1, 1], [0.1 + 0.2, 0.3, NAN], [NAN, 1, NAN]]
    ended = [[False, True, True]] * 4
    plain = np.array(kept(golden, part, rewards, ended))
    drop = lambda **given: kept(golden, type(part)(**given), rewards, ended)
    assert drop(drop_constant=True) == (plain * [[1], [0], [0], [0]]).tolist()
    assert drop(drop_truncated=True) == (plain * [0, 1, 1]).tolist()
    both = drop(drop_constant=True, drop_truncated=True)
    assert both == (plain * [0, 1, 1] * [[1], [0], [0], [0]]).tolist()


def test_a_group_agrees_by_what_the_task_said_and_not_by_length(golden):
    part = keeps.Everything(drop_constant=True)
    shape = shapes.Overlong(buffer=1.0)
    # Shaped, the second is 0.5 in both slots and the first is not equal.
    rewards = [[1, 1], [0.8, 0.9], [0, 1]]
    assert kept(golden, part, rewards, shape=shape) == [[0, 0], [1, 1], [1, 1]]


def test_sampling_pays_for_the_pivot():
    assert {n: k.extra for n, k in KEEPS.items()} == {
        "everything": 0,
        "all_but_pivot": 1,
    }


def test_pack_puts_kept_slots_first_in_order():
    keep_PG = np.array([[1, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 0]], bool)
    index_PG = keeps.pack(keep_PG, 3)
    assert index_PG.tolist() == [[0, 2, 3], [1, 2, 3], [2, 0, 1]]
    assert index_PG.dtype == jnp.int32
