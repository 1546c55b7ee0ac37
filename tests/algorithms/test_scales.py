"""Scales in the chain that they are part of, against printed values and NumPy."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import baselines, groups, scales, transforms
from algorithms.scales import SCALES
from tests.algorithms.scored import NAN, chain


def divisor(golden, scale, reward_PG, terms_KPG=None):
    """Scale and fallback of mean-centred rewards, or of terms that add up to them."""

    def run(reward_PG, *terms_PG):
        batch = groups.of(reward_PG, jnp.isfinite(reward_PG))
        if terms_PG:
            batch = groups.with_terms(batch, *terms_PG)
        centred_PG = batch.reward_PG - baselines.Mean()(batch)
        return scale(jnp.where(batch.valid_PG, centred_PG, 0.0), batch)

    return golden(run, np.array(reward_PG, float), *(terms_KPG or ()))


def rows(seed=0, shape=(30, 6)):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < 0.2, NAN, rng.normal(size=shape))


# Three successes of eight, under every convention of dividing.
@pytest.mark.parametrize(
    "scale, hit, miss",
    [
        (scales.Std(), 1.207615, -0.724569),
        (scales.Std(population=True), 1.290994, -0.774597),
        (scales.GroupMean(), 1.666667, -1),
        (scales.NoScale(), 0.625, -0.375),
    ],
)
def test_conventions_of_dividing(golden, scale, hit, miss):
    row = np.array([[1.0, 0, 1, 0, 0, 1, 0, 0]])
    adv = golden(chain, row, scale=scale)
    # 1e-6 in the divisor shows in the sixth digit.
    golden.check(adv, np.where(row > 0, hit, miss), digits=5)
    golden.check(adv.sum(), 0)


def test_printed_groups_of_the_sample_deviation(golden):
    run = lambda *row: golden(chain, [list(map(float, row))], scale=scales.Std(eps=0.0))
    golden.check(run(1, 0, 0, 0), [[1.5, -0.5, -0.5, -0.5]])
    golden.check(run(1, 0, NAN, 0), [[1.154701, -0.577350, 0, -0.577350]])
    both = np.array([[1.0, 1, 0, 0], [0, 0, 0, 1]])
    want = [[0.866025, 0.866025, -0.866025, -0.866025], [-0.5, -0.5, -0.5, 1.5]]
    golden.check(golden(chain, both, scale=scales.Std(eps=0.0)), want)


def test_the_deviation_is_of_the_rewards_and_the_group(golden):
    x_PG = rows()
    for population, less in ((False, 1), (True, 0)):
        got, fallback = divisor(
            golden, scales.Std(eps=0.5, population=population), x_PG
        )
        want = [np.std(r[np.isfinite(r)], ddof=less) + 0.5 for r in x_PG]
        golden.check(got[:, 0], want)
        assert not fallback.any()


def test_the_batchs_deviation_is_of_centred_rewards(golden):
    x_PG = rows()
    centred = x_PG - np.nanmean(x_PG, axis=1, keepdims=True)
    got, _ = divisor(golden, scales.BatchStd(eps=0.5), x_PG)
    golden.check(got, np.full((30, 1), np.nanstd(centred, ddof=1) + 0.5))
    # Its own mean is taken off where the baseline left one.
    adv = golden(chain, x_PG, baseline=baselines.NoBaseline(), scale=scales.BatchStd())
    golden.check(adv, np.nan_to_num(x_PG) / (np.nanstd(x_PG, ddof=1) + 1e-6))


@pytest.mark.parametrize("scale", [scales.Std(eps=0.0), scales.BatchStd(eps=0.0)])
def test_a_deviation_does_not_see_shifts_and_follows_size(golden, scale):
    x_PG = rows(1)
    base = golden(chain, x_PG, scale=scale)
    np.testing.assert_allclose(golden(chain, x_PG + 5, scale=scale), base, atol=3e-5)
    np.testing.assert_allclose(golden(chain, 7 * x_PG, scale=scale), base, atol=3e-5)


@pytest.mark.parametrize(
    "baseline", [baselines.IntervalMedian(), baselines.Mean(), baselines.Median()]
)
def test_deviation_is_about_the_baseline(golden, baseline):
    x_PG = rows(2)
    raw = np.asarray(
        chain(x_PG.astype(np.float32), baseline=baseline), dtype=np.float64
    )
    want = (
        raw
        / (np.sqrt((raw**2).sum(1) / (np.isfinite(x_PG).sum(1) - 1)) + 1e-6)[:, None]
    )
    got = golden(chain, x_PG, baseline=baseline, scale=scales.Deviation())
    np.testing.assert_allclose(got, want, atol=3e-6)


def test_deviation_about_the_mean_is_the_sample_deviation(golden):
    golden.check(
        golden(chain, rows(3), scale=scales.Deviation()),
        golden(chain, rows(3), scale=scales.Std()),
    )


# MC-GRPO.

MC = "rewards, middle, deviation, want, rescaled"
PRINTED = [
    ("1 0 0", 0, 0, "1000 0 0", 3),
    ("1 1 0", 1, 0, "0 0 -1000", 3),
    ("0 0 0", 0, 0, "0 0 0", 1),
    ("2 1.5 0", 1.5, 0.5, "0.998004 0 -2.994012", 1.5),
    (".1 .5 .9 .3 .7", 0.5, 0.2, "-1.990050 0 1.990050 -.995025 .995025", 1.25),
    ("1 0 0 1", 0, 0, "1000 0 0 1000", 2),
]
PUBLISHED = dict(
    baseline=baselines.LowerMedian(), scale=scales.Mad(floor=0.0, lower=True)
)
row_of = lambda text: np.array([[float(x) for x in text.split()]])


@pytest.mark.parametrize(MC, PRINTED)
def test_the_published_rule_gives_the_published_table(
    golden, rewards, middle, deviation, want, rescaled
):
    row, want = row_of(rewards), row_of(want)
    # Advantages of 1000 have as many digits behind the point less.
    size = max(1.0, np.abs(want).max())
    got = golden(chain, row, **PUBLISHED)
    golden.check(got / size, want / size)
    again = golden(chain, row, transform=transforms.NonzeroRescale(), **PUBLISHED)
    golden.check(again / size / rescaled, want / size)

    def parts(reward_PG):
        batch = groups.of(reward_PG, jnp.isfinite(reward_PG))
        median_PG = baselines.LowerMedian()(batch)
        scale = PUBLISHED["scale"](batch.reward_PG - median_PG, batch)
        return median_PG, scale.scale_P1, scale.fallback_P1

    median_PG, scale_P1, fallback_P1 = golden(parts, row)
    golden.check(median_PG, np.full(row.shape, middle))
    golden.check(scale_P1, [[deviation + 1e-3]])
    assert not fallback_P1.any()


def test_even_groups_of_the_two_medians(golden):
    row = np.array([[0.0, 1, 5, 6]])
    adv = golden(chain, row, baseline=baselines.Median(), scale=scales.Mad(eps=0.0))
    golden.check(adv, (row - 3) / 2.5)
    adv = golden(
        chain,
        row,
        baseline=baselines.LowerMedian(),
        scale=scales.Mad(eps=0.0, lower=True),
    )
    golden.check(adv, (row - 1) / 1)


def test_three_levels_by_hand(golden):
    given = dict(baseline=baselines.Median(), scale=scales.Mad())
    adv = golden(chain, [[0.2, 0.5, 0.9]], **given)
    golden.check(adv, [[-0.3 / 0.301, 0, 0.4 / 0.301]])


def test_the_fallback_is_the_sample_deviation(golden):
    given = dict(baseline=baselines.Median(), scale=scales.Mad())
    root = math.sqrt(3)
    adv = golden(chain, [[1.0, 0, 0], [0, 2, 2]], **given)
    golden.check(adv, [[root, 0, 0], [-root, 0, 0]])


@pytest.mark.parametrize("G", [3, 5, 9])
def test_binary_groups_stay_of_order_one(G):
    """With 0/1 rewards the MAD is always 0: the fallback fires and bounds |A|."""
    table = np.array(list(itertools.product([0.0, 1.0], repeat=G)), np.float32)
    adv = chain(table, baseline=baselines.Median(), scale=scales.Mad())
    mixed = (0 < table.sum(1)) & (table.sum(1) < G)
    assert np.abs(adv).max() <= math.sqrt(G) + 1e-5
    assert (np.abs(adv[mixed]).max(axis=1) >= 1).all()
    signs = np.sign(table - np.median(table, axis=1)[:, None])
    np.testing.assert_array_equal(np.sign(adv), signs)
    batch = groups.of(table, np.ones(table.shape, bool))
    centred_PG = batch.reward_PG - baselines.Median()(batch)
    fallback_P1 = scales.Mad()(centred_PG, batch).fallback_P1
    np.testing.assert_array_equal(fallback_P1[:, 0], mixed)


@pytest.mark.parametrize("G", [3, 5, 9])
@pytest.mark.parametrize("lower", [False, True])
def test_any_reward_stays_within_the_documented_bound(G, lower):
    """Also deviations that are tiny but not 0, as with partial credit of 0.01."""
    rng = np.random.default_rng(G)
    levels = np.array([0.0, 0.01, 1.0, 1e-4], np.float32)
    table = rng.choice(levels, (3000, G), p=[0.3, 0.3, 0.3, 0.1])
    adv = chain(table, baseline=baselines.Median(), scale=scales.Mad(lower=lower))
    assert np.abs(adv).max() <= math.sqrt(G) / 0.1


# DVAO: two objectives of weight 1/2 each, population deviations.


def objectives(golden, r1, r2, scale, weight=(0.5, 0.5)):
    """Advantages of two weighted objectives, and the shares that they have in them."""
    r1, r2 = np.array([r1], float), np.array([r2], float)
    terms = weight[0] * r1, weight[1] * r2
    scale_P1, _ = divisor(golden, scale, terms[0] + terms[1], terms)
    reward = terms[0] + terms[1]
    return (reward - reward.mean()) / np.where(scale_P1 > 0, scale_P1, 1)


@pytest.mark.parametrize(
    "r1, r2, dvao, combined",
    [
        ((1, 1, 0, 0), (1, 0, 1, 1), "0.803848 -.267949 -.267949 -.267949", 1.732051),
        ((1, 0, 0, 0), (1, 1, 1, 1), "1.732051 -.577350 -.577350 -.577350", 1.732051),
        ((1, 0, 1, 0), (0, 1, 0, 1), "0 0 0 0", 0),
    ],
)
def test_two_objectives_of_printed_groups(golden, r1, r2, dvao, combined):
    got = objectives(golden, r1, r2, scales.TermsStd(eps=0.0, population=True))
    golden.check(got, row_of(dvao))
    combo = objectives(golden, r1, r2, scales.Std(eps=0.0, population=True))
    golden.check(combo.max(), combined)


def test_shares_are_in_proportion_to_weighted_deviations(golden):
    first, _ = divisor(golden, scales.Std(eps=0.0, population=True), [[1, 1, 0, 0]])
    second, _ = divisor(golden, scales.Std(eps=0.0, population=True), [[1, 0, 1, 1]])
    golden.check(first / (first + second), [[0.535898]])


def test_a_lone_term_and_equal_objectives_are_the_deviation(golden):
    x_PG = rows(4)
    std, _ = divisor(golden, scales.Std(), x_PG)
    golden.check(divisor(golden, scales.TermsStd(), x_PG)[0], std)
    terms = (0.3 * np.nan_to_num(x_PG), 0.7 * np.nan_to_num(x_PG))
    golden.check(divisor(golden, scales.TermsStd(), x_PG, terms)[0], std)
    for population in (False, True):
        golden.check(
            divisor(golden, scales.TermsStd(population=population), x_PG)[0],
            divisor(golden, scales.Std(population=population), x_PG)[0],
        )


def test_weighing_terms_apart_never_enlarges_and_ignores_a_common_factor(golden):
    rng = np.random.default_rng(5)
    r1, r2 = rng.random((2, 40, 5))
    std, _ = divisor(golden, scales.Std(eps=0.0), r1 + r2)
    apart, _ = divisor(golden, scales.TermsStd(eps=0.0), r1 + r2, (r1, r2))
    assert (apart >= std * (1 - 1e-6)).all() and (apart > 1.01 * std).any()
    tripled = divisor(
        golden, scales.TermsStd(eps=0.0), 3 * r1 + 3 * r2, (3 * r1, 3 * r2)
    )
    np.testing.assert_allclose(tripled[0], 3 * apart, rtol=3e-6)


# MaxRL.


def test_a_group_mean_lets_rare_successes_weigh_as_much(golden):
    table = np.array([[1.0, 0, 0, 0], [1, 1, 1, 0]])
    adv = golden(chain, table, scale=scales.GroupMean(eps=0.0))
    golden.check(adv, [[3, -1, -1, -1], [1 / 3, 1 / 3, 1 / 3, -1]])


def test_rewards_below_zero_have_no_mean_to_divide_by(golden):
    table = [[1.0, -1, 0], [1, 0, 0], [0, 0, 0], [NAN, 0, 1]]
    scale, fallback = divisor(golden, scales.GroupMean(eps=0.5), table)
    golden.check(scale, [[1.5], [5 / 6], [0.5], [1.0]])
    assert fallback[:, 0].tolist() == [True, False, False, False]


# All of them.


@pytest.mark.parametrize("scale", SCALES.values(), ids=str)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "row", [[0.1] * 6, [0.3] * 10, [0.7] * 10, [1.0] * 8, [0.0] * 5, [-2.0] * 3, [5.0]]
)
def test_equal_rewards_carry_no_signal(scale, dtype, row):
    for baseline in (baselines.Mean(), baselines.Median(), baselines.LeaveOneOut()):
        with jax.debug_nans(True), jax.debug_infs(True):
            adv = chain(jnp.asarray([row], dtype), baseline=baseline, scale=scale)
        np.testing.assert_array_equal(adv, 0)


@pytest.mark.parametrize("scale", SCALES.values(), ids=str)
def test_rewards_equal_up_to_rounding_carry_no_signal(scale):
    """0.1 + 0.2 is not 0.3 in floats; the difference is no reason to learn."""
    third = np.float32(0.1) + np.float32(0.2)
    row = [third, np.nextafter(third, np.float32(1)), third, np.float32(0.3), third]
    np.testing.assert_array_equal(chain(np.array([row]), scale=scale), 0)


@pytest.mark.parametrize(
    "scale", [s for s in SCALES.values() if not isinstance(s, scales.BatchStd)], ids=str
)
def test_a_third_problem_changes_nothing_for_two(scale):
    two = np.array([[1.0, 0, 0, 0], [1, 1, 0, 0]], np.float32)
    three = np.concatenate([two, [[1.0, 5.0, 9.0, -4.0]]]).astype(np.float32)
    np.testing.assert_array_equal(
        chain(three, scale=scale)[:2], chain(two, scale=scale)
    )


def test_settings_out_of_range_are_refused():
    for make in (lambda: scales.Mad(floor=-1.0), lambda: scales.Std(eps=float("nan"))):
        with pytest.raises(ValueError, match="is not in"):
            make()
