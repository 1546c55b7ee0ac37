"""Baselines, scales and keep rules, alone and composed into advantages.

Values come from closed forms and from hand arithmetic; groups are tiny.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import baselines, keep, objective, scales, stats
from algorithms.methods import METHODS

NAN = float("nan")


def advantages(name, rewards):
    """Advantages of rewards given as rows; None and NaN are not scored."""
    reward_PG = np.array(
        [[NAN if r is None else r for r in row] for row in rewards], np.float32
    )
    return objective.advantages(METHODS[name], reward_PG, np.isfinite(reward_PG))


def ragged(rows):
    """Rows of unequal length as a padded table and its mask."""
    width = max(map(len, rows))
    table = np.full((len(rows), width), 77.0, np.float32)
    valid = np.zeros((len(rows), width), bool)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
        valid[i, : len(row)] = True
    return table, valid


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_median_is_numpys_and_antisymmetric(size, dtype):
    rng = np.random.default_rng(size)
    # Coarse values, so that ties are common.
    x_PG = jnp.asarray(rng.integers(-3, 4, (20, size)) / 2, dtype)
    valid_PG = jnp.ones(x_PG.shape, bool)
    got = stats.median(x_PG, valid_PG)[:, 0]
    np.testing.assert_array_equal(got, np.median(np.float32(x_PG), axis=1))
    np.testing.assert_array_equal(stats.median(-x_PG, valid_PG)[:, 0], -got)


@pytest.mark.parametrize(
    "name, reference",
    [
        ("mean", np.mean),
        ("median", np.median),
        ("std", lambda x: np.std(x, ddof=1) if len(x) > 1 else 0.0),
        ("total", np.sum),
        ("spread", np.ptp),
        ("magnitude", lambda x: np.max(np.abs(x))),
    ],
)
def test_statistics_skip_invalid_slots(name, reference):
    rows = [[1.0, -2.0, 4.0], [3.0], [0.5, 0.25], [2.0, 2.0, -7.0, 1.0]]
    table, valid = ragged(rows)
    for junk in (77.0, -99.0, np.nan, np.inf):
        x_PG = np.where(valid, table, np.float32(junk))
        got = getattr(stats, name)(x_PG, valid)[:, 0]
        np.testing.assert_allclose(got, [reference(r) for r in rows], rtol=1e-6)


@pytest.mark.parametrize("name", ["mean", "median", "std", "total", "spread"])
def test_an_empty_group_has_statistic_zero(name):
    x_PG = np.full((1, 3), np.nan, np.float32)
    with jax.debug_nans(True):
        out = getattr(stats, name)(np.zeros((1, 3), np.float32), np.zeros((1, 3), bool))
    assert out == 0
    assert getattr(stats, name)(x_PG, np.zeros((1, 3), bool)) == 0


# Three successes of eight: mean-centred, leave-one-out, over sample deviation.
EIGHT = [1.0, 0, 1, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    "name, hit, miss",
    [
        ("dr_grpo", 0.625, -0.375),
        ("rloo", 0.714286, -0.428571),
        ("grpo", 1.207615, -0.724569),
    ],
)
def test_conventions_of_the_mean_baseline(name, hit, miss):
    got = advantages(name, [EIGHT]).adv_PG[0]
    want = np.where(np.array(EIGHT) > 0, hit, miss)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert abs(got.sum()) < 1e-5


@pytest.mark.parametrize(
    "name, want",
    [
        ("grpo", [1.5, -0.5, -0.5, -0.5]),
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1, -1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_one_success_of_four(name, want):
    np.testing.assert_allclose(
        advantages(name, [[1, 0, 0, 0]]).adv_PG[0], want, rtol=1e-5
    )


def test_groups_do_not_see_each_other():
    rows = [[1, 1, 0, 0], [0, 0, 0, 1]]
    both = advantages("grpo", rows).adv_PG
    np.testing.assert_allclose(both[0], [0.8660, 0.8660, -0.8660, -0.8660], atol=1e-4)
    np.testing.assert_allclose(both[1], [-0.5, -0.5, -0.5, 1.5], atol=1e-4)
    for name in METHODS:
        both = advantages(name, rows).adv_PG
        for i, row in enumerate(rows):
            np.testing.assert_array_equal(both[i], advantages(name, [row]).adv_PG[0])
        np.testing.assert_array_equal(both[::-1], advantages(name, rows[::-1]).adv_PG)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "row",
    [[0.1] * 6, [0.3] * 10, [0.7] * 10, [1.0] * 8, [0.0] * 5, [-2.0] * 3, [5.0]],
)
def test_equal_rewards_carry_no_signal(name, dtype, row):
    reward_PG = jnp.asarray([row], dtype)
    with jax.debug_nans(True):
        out = objective.advantages(
            METHODS[name], reward_PG, jnp.ones(reward_PG.shape, bool)
        )
    np.testing.assert_array_equal(out.adv_PG, 0)
    assert out.constant_P.all() and not out.fallback_P.any()


@pytest.mark.parametrize("name", METHODS)
def test_rewards_equal_up_to_rounding_carry_no_signal(name):
    """0.1 + 0.2 is not 0.3 in floats; the difference is no reason to learn."""
    third = np.float32(0.1) + np.float32(0.2)
    row = [third, np.nextafter(third, np.float32(1)), third, np.float32(0.3), third]
    out = advantages(name, [row])
    np.testing.assert_array_equal(out.adv_PG, 0)
    assert out.constant_P.all() and not out.fallback_P.any()


@pytest.mark.parametrize("scale", [scales.std(eps=0.0), scales.mad(eps=0.0, floor=0.0)])
def test_a_scale_of_zero_is_never_divided_by(scale):
    method = METHODS["grpo"]._replace(scale=scale)
    with jax.debug_nans(True), jax.debug_infs(True):
        out = objective.advantages(method, np.ones((1, 4)), np.ones((1, 4), bool))
    np.testing.assert_array_equal(out.adv_PG, 0)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("value", [2.1756, 0.0, -1.0])
def test_a_lone_rollout_has_advantage_zero_and_is_counted(name, value):
    rows, valid = ragged([[1, 0, 0], [value]])
    out = objective.advantages(METHODS[name], rows, valid)
    np.testing.assert_array_equal(out.adv_PG[1], 0)
    assert out.constant_P.tolist() == [False, True]
    alone = advantages(name, [[1, 0, 0]])
    np.testing.assert_array_equal(out.adv_PG[0], alone.adv_PG[0])


@pytest.mark.parametrize("missing", [None, NAN, float("inf")])
@pytest.mark.parametrize(
    "name, want",
    [
        ("grpo", [1.1547, -0.5774, 0, -0.5774]),
        ("rloo", [1, -0.5, 0, -0.5]),
        ("dr_grpo", [2 / 3, -1 / 3, 0, -1 / 3]),
    ],
)
def test_an_unscored_rollout_leaves_the_statistics(name, want, missing):
    out = advantages(name, [[1, 0, missing, 0]])
    np.testing.assert_allclose(out.adv_PG[0], want, atol=1e-4)
    assert not out.keep_PG[0, 2]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("row", [[None, None, None, 1], [None] * 4])
def test_groups_with_one_or_no_score_are_finite_and_silent(name, row):
    with jax.debug_nans(True):
        out = advantages(name, [row])
    np.testing.assert_array_equal(out.adv_PG, 0)
    assert not out.keep_PG[0, :3].any()


def test_median_centring_of_three_levels():
    """(r - 0.5) / (MAD + 1e-3) with MAD 0.3: hand arithmetic."""
    out = advantages("mc_grpo", [[0.2, 0.5, 0.9]])
    np.testing.assert_allclose(out.adv_PG[0], [-0.3 / 0.301, 0, 0.4 / 0.301], rtol=1e-5)
    assert out.keep_PG[0].tolist() == [True, False, True]
    assert not out.fallback_P[0]


@pytest.mark.parametrize(
    "row, mad, want",
    [
        ([1, 0, 0], 0, [1000, 0, 0]),
        ([1, 1, 0], 0, [0, 0, -1000]),
        ([2, 1.5, 0], 0.5, [0.998004, 0, -2.994012]),
        (
            [0.1, 0.5, 0.9, 0.3, 0.7],
            0.2,
            [-1.990050, 0, 1.990050, -0.995025, 0.995025],
        ),
    ],
)
def test_floor_zero_is_the_published_deviation(row, mad, want):
    reward_PG = np.array([row], np.float32)
    valid_PG = np.ones(reward_PG.shape, bool)
    centred_PG = reward_PG - baselines.median(reward_PG, valid_PG)
    out = scales.mad(floor=0.0)(centred_PG, valid_PG)
    np.testing.assert_allclose(out.scale_P1, [[mad + 1e-3]], rtol=1e-5)
    np.testing.assert_allclose(centred_PG / out.scale_P1, [want], rtol=1e-4, atol=1e-4)
    assert not out.fallback_P1.any()


@pytest.mark.parametrize("G", [3, 5, 9])
def test_binary_groups_stay_of_order_one(G):
    """With 0/1 rewards the MAD is always 0: the fallback fires and bounds |A|."""
    rows = [list(r) for r in itertools.product([0.0, 1.0], repeat=G)]
    out = advantages("mc_grpo", rows)
    mixed = np.array([0 < sum(r) < G for r in rows])
    np.testing.assert_array_equal(out.fallback_P, mixed)
    assert np.abs(out.adv_PG).max() <= math.sqrt(G) + 1e-5
    assert (np.abs(out.adv_PG[mixed]).max(axis=1) >= 1).all()
    signs = np.sign(np.array(rows) - np.median(rows, axis=1)[:, None])
    np.testing.assert_array_equal(np.sign(out.adv_PG), signs)


@pytest.mark.parametrize("G", [3, 5, 9])
def test_any_reward_stays_within_the_documented_bound(G):
    """Also deviations that are tiny but not 0, as with partial credit of 0.01."""
    rng = np.random.default_rng(G)
    levels = np.array([0.0, 0.01, 1.0, 1e-4], np.float32)
    rows = rng.choice(levels, (3000, G), p=[0.3, 0.3, 0.3, 0.1])
    out = advantages("mc_grpo", rows)
    assert np.abs(out.adv_PG).max() <= math.sqrt(G) / 0.1


@pytest.mark.parametrize("name", METHODS)
def test_advantages_ignore_shifts_and_follow_permutations(name):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(4, 5)).astype(np.float32)
    base = advantages(name, rows)
    moved = advantages(name, rows + 3)
    np.testing.assert_allclose(moved.adv_PG, base.adv_PG, atol=2e-5)
    order = rng.permutation(5)
    np.testing.assert_allclose(
        advantages(name, rows[:, order]).adv_PG, base.adv_PG[:, order], atol=1e-5
    )


@pytest.mark.parametrize("G", [3, 5, 9])
def test_the_pivot_is_one_row_a_group_and_ties_take_the_lowest(G):
    rng = np.random.default_rng(G)
    free = rng.normal(size=(50, G)).astype(np.float32)
    out = advantages("mc_grpo", free)
    assert (out.keep_PG.sum(axis=1) == G - 1).all()
    # Tie-free rewards: exactly one advantage is 0, and it is the one dropped.
    np.testing.assert_array_equal(out.adv_PG == 0, ~out.keep_PG)
    tied = advantages("mc_grpo", [[1, 0, 1, 0, 0]])
    assert tied.keep_PG[0].tolist() == [True, False, True, True, True]


def test_an_unscored_rollout_is_never_the_pivot():
    """Of 0 and 1 the median is 0.5, as far from both as the slot's own filling."""
    out = advantages("mc_grpo", [[None, 0, 1]])
    assert out.keep_PG[0].tolist() == [False, False, True]


def test_the_fallback_divides_by_the_sample_deviation():
    """Of 1, 0, 0 that is 1 / sqrt(3), so the lone success gets sqrt(3)."""
    out = advantages("mc_grpo", [[1, 0, 0], [0, 2, 2]])
    root = math.sqrt(3)
    np.testing.assert_allclose(out.adv_PG, [[root, 0, 0], [-root, 0, 0]], rtol=1e-5)
    assert out.fallback_P.all()


def test_pack_puts_kept_slots_first_in_order():
    keep_PG = np.array([[1, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 0]], bool)
    index_PG = keep.pack(keep_PG, 3)
    assert index_PG[:2].tolist() == [[0, 2, 3], [1, 2, 3]]
    assert index_PG[2, 0] == 2 and index_PG.dtype == jnp.int32


def test_inputs_of_another_type_are_refused():
    ones = np.ones((2, 3), np.float32)
    for bad in (ones, np.ones((2, 4), bool), np.ones(3, bool)):
        with pytest.raises(AssertionError):
            objective.advantages(METHODS["grpo"], ones, bad)
    with pytest.raises(ValueError, match="floor=-1"):
        scales.mad(floor=-1)
