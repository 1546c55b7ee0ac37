"""Rewards to advantages as a whole: the order in which all parts act.

The parts are tested in files of their own. Values come from closed forms and from hand
arithmetic; groups are tiny.
"""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    baselines,
    groups,
    keeps,
    objective,
    penalties,
    scales,
    shapes,
    transforms,
)
from algorithms.methods import METHODS

INF = float("inf")
# One method of every way to centre and to divide.
SOME = ("grpo", "dr_grpo", "rloo", "mc_grpo", "gapo", "maxrl", "opo", "dvao", "scalerl")
# Those whose groups do not see each other.
APART = SOME[:-1]


def advantages(method, rewards, cost_PG=0.0, dtype=np.float32, **given):
    """Advantages of rewards given as rows; None, NaN and infinite ones have no score.

    Rows may be unequal in length: what is missing at their end is not scored.
    """
    # Filled with infinity, not NaN: a test may look for NaN on the way.
    if isinstance(method, str):
        method = METHODS[method]
    width = max(map(len, rewards))
    table = [[INF if r is None else r for r in row] for row in rewards]
    table = [row + [INF] * (width - len(row)) for row in table]
    reward_PG = jnp.asarray(table, dtype)
    valid_PG = jnp.isfinite(reward_PG)
    return objective.advantages(
        method, groups.of(reward_PG, valid_PG, **given), cost_PG
    )


def with_parts(name, **parts):
    return dataclasses.replace(METHODS[name], **parts)


# --- published conventions --------------------------------------------------------

# Three successes of eight: mean-centred, leave-one-out, over sample deviation.
EIGHT = [1.0, 0, 1, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    "name, hit, miss",
    [
        ("dr_grpo", 0.625, -0.375),
        ("rloo", 0.714286, -0.428571),
        ("grpo", 1.207615, -0.724569),
        ("maxrl", 5 / 3, -1),
        # The densest half is all failures, and the deviation about 0 sqrt(3 / 7).
        ("gapo", math.sqrt(7 / 3), 0),
    ],
)
def test_conventions_of_baseline_and_scale(name, hit, miss):
    got = advantages(name, [EIGHT]).adv_PG[0]
    want = np.where(np.array(EIGHT) > 0, hit, miss)
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize(
    "name, want",
    [
        ("grpo", [1.5, -0.5, -0.5, -0.5]),
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1, -1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_one_success_of_four(name, want):
    out = advantages(name, [[1, 0, 0, 0]])
    np.testing.assert_allclose(out.adv_PG[0], want, rtol=1e-5)
    np.testing.assert_allclose(out.raw_max, max(want), rtol=1e-5)
    assert out.keep_PG.all() and not out.constant_P.any() and not out.silent_P.any()


@pytest.mark.parametrize("name", SOME)
def test_groups_see_each_other_only_where_the_method_says_so(name):
    rows = [[1, 1, 0, 0, 0.5], [0, 0, 0, 1, 0.5], [1, 1, 1, 0, 1]]
    alone = np.concatenate([advantages(name, [row]).adv_PG for row in rows])
    together = advantages(name, rows).adv_PG
    assert np.array_equal(together, alone) == (name in APART)
    turned = advantages(name, rows[::-1]).adv_PG
    np.testing.assert_allclose(turned[::-1], together, rtol=1e-6)


# --- no signal --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", SOME)
def test_equal_rewards_carry_no_signal(name, dtype):
    rows = [[0.1] * 6, [0.3] * 10, [0.7] * 10, [1.0] * 8, [0.0] * 5, [-2.0] * 3, [5.0]]
    out = advantages(name, rows, dtype=dtype)
    np.testing.assert_array_equal(out.adv_PG, 0)
    assert out.constant_P.all() and out.silent_P.all() and not out.fallback_P.any()
    assert out.raw_max == 0 and out.adv_PG.dtype == jnp.float32


@pytest.mark.parametrize("name", SOME)
def test_rewards_equal_up_to_rounding_carry_no_signal(name):
    """0.1 + 0.2 is not 0.3 in floats; the difference is no reason to learn."""
    third = float(np.float32(0.1) + np.float32(0.2))
    above = float(np.nextafter(np.float32(third), np.float32(1)))
    # Most are equal, so a median deviation is 0 and falls back, which is not counted.
    out = advantages(name, [[third, above, third, third, third]] * 2)
    np.testing.assert_array_equal(out.adv_PG, 0)
    assert out.constant_P.all() and out.silent_P.all() and not out.fallback_P.any()
    assert out.raw_max == 0


def test_a_group_that_differs_by_little_is_no_group_that_agrees():
    out = advantages("grpo", [[1.0, 1.0, 1.0, 1.0001]])
    np.testing.assert_allclose(out.adv_PG[0], [-0.5, -0.5, -0.5, 1.5], rtol=0.05)
    assert not out.constant_P.any() and not out.silent_P.any()


@pytest.mark.parametrize(
    "scale", [scales.Std(eps=0.0), scales.Mad(eps=0.0, floor=0.0)], ids=str
)
def test_a_scale_of_zero_is_never_divided_by(scale):
    method = with_parts("grpo", scale=scale)
    with jax.debug_nans(True):
        batch = groups.of(np.ones((1, 4)), np.ones((1, 4), bool))
        out = objective.advantages(method, batch)
    np.testing.assert_array_equal(out.adv_PG, 0)


def test_a_group_whose_scale_is_zero_stays_in_units_of_reward():
    scale = scales.Mad(eps=0.0, floor=0.0)
    out = advantages(with_parts("mc_dr_grpo", scale=scale), [[1, 0, 0]])
    np.testing.assert_array_equal(out.adv_PG, [[1, 0, 0]])


@pytest.mark.parametrize("name", APART)
def test_a_lone_rollout_has_no_advantage_and_changes_no_other(name):
    alone = advantages(name, [[1, 0, 0]])
    for value in (2.1756, 0.0, -1.0):
        with jax.debug_nans(True):
            out = advantages(name, [[1, 0, 0], [value]])
        np.testing.assert_array_equal(out.adv_PG[1], 0)
        np.testing.assert_array_equal(out.adv_PG[0], alone.adv_PG[0])
        assert out.constant_P.tolist() == [False, True] == out.silent_P.tolist()


@pytest.mark.parametrize("missing", [None, float("nan"), -INF])
@pytest.mark.parametrize(
    "name, want",
    [
        ("grpo", [1.1547, -0.5774, 0, -0.5774]),
        ("rloo", [1, -0.5, 0, -0.5]),
        ("dr_grpo", [2 / 3, -1 / 3, 0, -1 / 3]),
    ],
)
def test_an_unscored_rollout_leaves_the_statistics(name, want, missing):
    out = advantages(name, [[3, 2, missing, 2]])
    np.testing.assert_allclose(out.adv_PG[0], want, atol=1e-4)
    np.testing.assert_allclose(out.raw_max, max(want), atol=1e-4)
    assert out.keep_PG[0].tolist() == [True, True, False, True]


@pytest.mark.parametrize("name", SOME)
def test_groups_with_one_or_no_score_are_finite_and_silent(name):
    valid_PG = np.array([[False, False, False, True], [False] * 4])
    reward_PG = np.where(valid_PG, 1.0, 77.0).astype(np.float32)
    with jax.debug_nans(True):
        out = objective.advantages(METHODS[name], groups.of(reward_PG, valid_PG))
    np.testing.assert_array_equal(out.adv_PG, 0)
    assert out.silent_P.all() and not out.keep_PG[~valid_PG].any()


def test_a_baseline_that_looks_elsewhere_teaches_groups_that_agree():
    """Batch mean 1/2: the solved problem gains, the unsolved one loses."""
    out = advantages("reinforce", [[1, 1], [0, 0]])
    np.testing.assert_allclose(out.adv_PG, [[0.5, 0.5], [-0.5, -0.5]])
    assert out.constant_P.all() and not out.silent_P.any()


# --- the median and its pivot -----------------------------------------------------


def test_three_levels_by_hand():
    """(r - 0.5) / (MAD + 1e-3) with MAD 0.3."""
    out = advantages("mc_grpo", [[0.2, 0.5, 0.9]])
    np.testing.assert_allclose(out.adv_PG[0], [-0.3 / 0.301, 0, 0.4 / 0.301], rtol=1e-5)
    assert out.keep_PG[0].tolist() == [True, False, True]
    assert not out.fallback_P[0]


@pytest.mark.parametrize("G", [3, 5, 9])
def test_every_binary_group_stays_of_order_one(G):
    """With 0/1 rewards the MAD is always 0: the fallback fires and bounds |A|."""
    rows = [list(r) for r in itertools.product([0.0, 1.0], repeat=G)]
    out = advantages("mc_grpo", rows)
    mixed = np.array([0 < sum(r) < G for r in rows])
    np.testing.assert_array_equal(out.fallback_P, mixed)
    np.testing.assert_array_equal(out.silent_P, ~mixed)
    assert np.abs(out.adv_PG).max() <= math.sqrt(G) + 1e-5
    assert (np.abs(out.adv_PG[mixed]).max(axis=1) >= 1).all()
    signs = np.sign(np.array(rows) - np.median(rows, axis=1)[:, None])
    np.testing.assert_array_equal(np.sign(out.adv_PG), signs)
    assert (out.keep_PG.sum(axis=1) == G - 1).all()


def test_the_pivot_of_rewards_without_ties_is_the_one_without_advantage():
    free = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    out = advantages("mc_grpo", free.tolist())
    assert (out.keep_PG.sum(axis=1) == 4).all()
    np.testing.assert_array_equal(out.adv_PG == 0, ~out.keep_PG)


@pytest.mark.parametrize(
    "row, keep",
    [
        ([1, 0, 1, 0, 0], [1, 0, 1, 1, 1]),
        # The median is 0.5, as far from both as the slot's own filling.
        ([None, 0, 1], [0, 0, 1]),
    ],
)
def test_ties_drop_the_lowest_index_and_never_what_has_no_score(row, keep):
    assert advantages("mc_grpo", [row]).keep_PG[0].tolist() == list(map(bool, keep))


def test_what_is_dropped_has_no_advantage():
    """A pivot off the median, as leaving an even group makes it: 0 of 0 2 3 9."""
    method = with_parts("mc_dr_grpo", baseline=baselines.Mean())
    out = advantages(method, [[0.0, 2.0, 3.0, 9.0]])
    np.testing.assert_allclose(out.adv_PG, [[-3.5, -1.5, 0, 5.5]])
    assert out.keep_PG[0].tolist() == [True, True, False, True]


# --- order of the steps -----------------------------------------------------------

# MAD 0.5 with the published eps: .998004, 0, -2.994012; two of three are not 0.
PRINTED = [[2.0, 1.5, 0.0]]
PUBLISHED = dict(scale=scales.Mad(floor=0.0), keep=keeps.Everything())
RESCALED = PUBLISHED | dict(transform=transforms.NonzeroRescale())


@pytest.mark.parametrize(
    "parts, limit, want",
    [
        (PUBLISHED, 0.0, [0.998004, 0, -2.994012]),
        (PUBLISHED, 1.0, [0.998004, 0, -1]),
        (PUBLISHED, 0.5, [0.5, 0, -0.5]),
        (RESCALED, 0.0, [1.497006, 0, -4.491018]),
        (RESCALED, 2.0, [1.497006, 0, -2]),
    ],
)
def test_advantages_are_scaled_then_transformed_then_cut(parts, limit, want):
    out = advantages(with_parts("mc_grpo", **parts, max_advantage=limit), PRINTED)
    np.testing.assert_allclose(out.adv_PG, [want], atol=1e-5)
    np.testing.assert_allclose(out.raw_max, 2.994012, rtol=1e-5)


def test_length_is_paid_before_rollouts_are_compared():
    """Limit 10, buffer 5: lengths 5, 7.5 (8), 10 pay 0, 0.6, 1 of a reward of 1."""
    method = with_parts("dr_grpo", shape=shapes.Overlong(buffer=0.5))
    given = dict(length_PG=np.array([[5, 8, 10]]), limit=10)
    out = advantages(method, [[1.0, 1.0, 1.0]], **given)
    left = np.array([1, 0.4, 0])
    np.testing.assert_allclose(out.adv_PG[0], left - left.mean(), rtol=1e-5)
    # They agree by what the task said, and are informative all the same.
    assert out.constant_P.all() and not out.silent_P.any()
    dropped = dataclasses.replace(method, keep=keeps.Everything(drop_constant=True))
    out = advantages(dropped, [[1.0, 1.0, 1.0]], **given)
    assert not out.keep_PG.any() and out.silent_P.all()


def test_a_cost_is_taken_off_the_shaped_reward_where_the_method_has_one():
    cost_PG = jnp.array([[0.5, 0.0, 0.25, 77.0]])
    rows = [[1.0, 0.0, 0.0, None]]
    priced = with_parts("dr_grpo", kl=penalties.RewardK1())
    paid = np.array([0.5, 0.0, -0.25])
    for shape in (shapes.NoShape(), shapes.Within(target=1.0, weight=0.0)):
        out = advantages(dataclasses.replace(priced, shape=shape), rows, cost_PG)
        want = [*(paid - paid.mean()), 0]
        np.testing.assert_allclose(out.adv_PG[0], want, rtol=1e-5)
    free = advantages("dr_grpo", rows, cost_PG)
    np.testing.assert_allclose(free.adv_PG[0], [2 / 3, -1 / 3, -1 / 3, 0], rtol=1e-5)


def test_a_cost_is_a_term_of_its_own():
    """Weighed apart: deviations of reward and cost add up, as of two objectives."""
    method = with_parts("dvao", shape=shapes.NoShape(), kl=penalties.RewardK1())
    out = advantages(method, [[1.0, 0.0, 0.0]], jnp.array([[0.0, 0.5, 0.0]]))
    # 1, -0.5 and 0 about their mean, over (1 + 0.5) / sqrt(3).
    want = np.array([5, -4, -1]) / 6 / (1.5 / math.sqrt(3))
    np.testing.assert_allclose(out.adv_PG[0], want, rtol=1e-5)
    assert not out.constant_P.any()


def test_costs_alone_are_not_what_the_task_said():
    """Equal rewards at unequal prices: constant to the task, and not silent."""
    method = with_parts("dr_grpo", kl=penalties.RewardK1())
    out = advantages(method, [[1.0, 1.0]], jnp.array([[0.0, 0.5]]))
    np.testing.assert_allclose(out.adv_PG, [[0.25, -0.25]])
    assert out.constant_P.all() and not out.silent_P.any()
    dropped = dataclasses.replace(method, keep=keeps.Everything(drop_constant=True))
    out = advantages(dropped, [[1.0, 1.0]], jnp.array([[0.0, 0.5]]))
    assert not out.keep_PG.any()


def test_a_fallback_is_counted_where_it_says_something():
    """Rewards below 0 have no mean to divide by; of the second group all are equal."""
    out = advantages("maxrl", [[-1.0, 1.0], [-1.0, -1.0], [0.0, 1.0]])
    assert out.fallback_P.tolist() == [True, False, False]
    assert out.silent_P.tolist() == [False, True, False]
    np.testing.assert_allclose(out.adv_PG[0], [-0.707106, 0.707106], rtol=1e-5)


@pytest.mark.parametrize("name", ["grpo", "rloo", "mc_grpo", "gapo", "opo", "scalerl"])
def test_advantages_ignore_shifts_and_follow_permutations(name):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(4, 5)).astype(np.float32)
    base = advantages(name, rows.tolist())
    moved = advantages(name, (rows + 3).tolist())
    np.testing.assert_allclose(moved.adv_PG, base.adv_PG, atol=2e-5)
    order = rng.permutation(5)
    turned = advantages(name, rows[:, order].tolist())
    np.testing.assert_allclose(turned.adv_PG, base.adv_PG[:, order], atol=1e-5)
