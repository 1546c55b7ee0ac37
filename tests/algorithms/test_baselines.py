"""Baselines against loops over one group in float64, and printed values."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import baselines, groups, scales
from algorithms.baselines import BASELINES
from tests.algorithms.scored import NAN, chain

# Loops: rewards and lengths of one group's scored rollouts, to what each is
# compared with.


def interval_median(R, frac=0.5, mean=False):
    k = min(max(math.ceil(len(R) * frac - 1e-9), 1), len(R))
    s = sorted(R)
    best = 0
    for i in range(len(R) - k + 1):
        if s[i + k - 1] - s[i] < s[best + k - 1] - s[best] - 1e-9:
            best = i
    return [(np.mean if mean else np.median)(s[best : best + k])] * len(R)


def shrunk(R, prior, low=0.0, high=1.0, weight=1.0, others=False):
    out = []
    for i in range(len(R)):
        rest = [r for j, r in enumerate(R) if j != i] if others else R
        if not rest:
            out.append(prior)
            continue
        vbar, noise = np.mean(rest), (high - low) ** 2 / (4 * len(rest))
        excess = max(0.0, (vbar - prior) ** 2 - noise)
        w = 1 - weight * (1 - excess / (excess + noise))
        out.append(w * vbar + (1 - w) * prior)
    return out


LOOPS = {
    "none": lambda R, L: [0.0] * len(R),
    "mean": lambda R, L: [np.mean(R)] * len(R),
    "median": lambda R, L: [np.median(R)] * len(R),
    "lower_median": lambda R, L: [sorted(R)[(len(R) - 1) // 2]] * len(R),
    "leave_one_out": lambda R, L: [
        np.mean(np.delete(R, i)) if len(R) > 1 else R[0] for i in range(len(R))
    ],
    "interval_median": lambda R, L: interval_median(R),
    "length_weighted": lambda R, L: [np.dot(R, L) / np.sum(L)] * len(R),
}


def table(seed=0, P=40, G=7):
    """Rewards with NaN where there is none, lengths and priors."""
    rng = np.random.default_rng(seed)
    reward_PG = rng.choice([0.0, 0.3, 0.35, 1.0, 1.5, -0.4], (P, G))
    reward_PG[: P // 2] = rng.random((P // 2, G))
    reward_PG[rng.random((P, G)) < 0.25] = NAN
    reward_PG[0] = NAN
    return reward_PG, rng.integers(1, 900, (P, G)), rng.random(P)


def against(golden, baseline, loop, **given):
    """The part on a ragged batch, and the loop on every group of it."""
    reward_PG, length_PG, _ = table()
    adv = golden(chain, reward_PG, length_PG, baseline=baseline, **given)
    for p, (R, L) in enumerate(zip(reward_PG, length_PG, strict=True)):
        scored = np.isfinite(R)
        if scored.any():
            golden.check(adv[p, scored], R[scored] - loop(p, R[scored], L[scored]))
        np.testing.assert_array_equal(adv[p, ~scored], 0)


@pytest.mark.parametrize("name", LOOPS)
def test_a_group_baseline_is_its_loop(golden, name):
    against(golden, BASELINES[name], lambda p, R, L: LOOPS[name](list(R), L))


@pytest.mark.parametrize("frac", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("mean", [False, True])
def test_windows_of_any_share(golden, frac, mean):
    part = baselines.IntervalMedian(frac=frac, mean=mean)
    against(golden, part, lambda p, R, L: interval_median(list(R), frac, mean))


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("low, high, weight", [(0, 1, 1), (-1, 1, 1), (-1, 3, 0.4)])
def test_shrinking_is_its_loop(golden, others, low, high, weight):
    prior_P = table()[2]
    part = baselines.Shrunk(float(low), float(high), float(weight), others)
    loop = lambda p, R, L: shrunk(list(R), prior_P[p], low, high, weight, others)
    against(golden, part, loop, prior_P=prior_P)


def test_without_a_prior_it_is_the_other_groups_mean(golden):
    reward_PG, _, _ = table()
    total = np.nansum(reward_PG)
    n = np.isfinite(reward_PG).sum()
    prior_P = (total - np.nansum(reward_PG, axis=1)) / (
        n - np.isfinite(reward_PG).sum(axis=1)
    )
    loop = lambda p, R, L: shrunk(list(R), prior_P[p])
    against(golden, baselines.Shrunk(), loop)


def test_a_batch_of_one_group_has_its_own_mean_as_the_prior(golden):
    reward_PG = np.array([[0.2, 0.9, NAN, 0.4]])
    adv = golden(chain, reward_PG, baseline=baselines.Shrunk())
    golden.check(adv, np.nan_to_num(reward_PG - 0.5))
    for others in (False, True):
        part = baselines.Shrunk(leave_one_out=others)
        np.testing.assert_array_equal(golden(chain, [[NAN, 0.7]], baseline=part), 0)


@pytest.mark.parametrize("name", ["none", "batch_mean"])
def test_a_batch_mean_is_over_scored_rollouts(golden, name):
    reward_PG, _, _ = table()
    less = np.nanmean(reward_PG) if name == "batch_mean" else 0.0
    adv = golden(chain, reward_PG, baseline=BASELINES[name])
    golden.check(adv, np.nan_to_num(reward_PG - less))
    assert not BASELINES[name].needs_group


# Printed values.


@pytest.mark.parametrize(
    "name, want",
    [
        ("mean", [0.75, -0.25, -0.25, -0.25]),
        ("leave_one_out", [1, -1 / 3, -1 / 3, -1 / 3]),
        ("median", [1, 0, 0, 0]),
        ("none", [1, 0, 0, 0]),
    ],
)
def test_one_success_of_four(golden, name, want):
    golden.check(golden(chain, [[1.0, 0, 0, 0]], baseline=BASELINES[name]), [want])


@pytest.mark.parametrize(
    "name, hit, miss",
    [("mean", 0.625, -0.375), ("leave_one_out", 0.714286, -0.428571)],
)
def test_three_successes_of_eight(golden, name, hit, miss):
    row = np.array([[1.0, 0, 1, 0, 0, 1, 0, 0]])
    adv = golden(chain, row, baseline=BASELINES[name])
    golden.check(adv, np.where(row > 0, hit, miss))
    golden.check(adv.sum(), 0)


@pytest.mark.parametrize("lost", [NAN, float("inf")])
def test_an_unscored_rollout_is_in_no_mean(golden, lost):
    row = [[1.0, 0, lost, 0]]
    adv = golden(chain, row, baseline=baselines.LeaveOneOut())
    golden.check(adv, [[1, -0.5, 0, -0.5]])
    golden.check(golden(chain, row), [[2 / 3, -1 / 3, 0, -1 / 3]])


DENSE = [0.1, 0.5, 0.52, 0.55, 0.9, 0.2, 0, 0.6]
GAPO = dict(baseline=baselines.IntervalMedian(), scale=scales.Deviation())


@pytest.mark.parametrize(
    "row, middle, adv",
    [
        (
            DENSE,
            0.535,
            "-1.349987 -.108620 -.046551 .046551 1.132747 -1.039645 -1.660328 .201722",
        ),
        ([1, 0, 0, 0], 0, "1.732048 0 0 0"),
        ([1, 1, 0, 0], 0, "1.224743 1.224743 0 0"),
        ([0.7] * 5, 0.7, "0 0 0 0 0"),
    ],
)
def test_the_interval_median_of_printed_groups(golden, row, middle, adv):
    row = np.array([row], float)
    baseline = lambda r: baselines.IntervalMedian()(groups.of(r, jnp.isfinite(r)))
    golden.check(golden(baseline, row)[0, 0], middle)
    got = golden(chain, row, **GAPO)
    # Printed to six digits, of advantages that float32 has to seven.
    golden.check(got, [[float(x) for x in adv.split()]])


def test_of_windows_equally_narrow_the_lowest_counts(golden):
    # 0.2 - 0.1 and 0.3 - 0.2 differ by rounding only, and not alike in every precision.
    row = np.array([[0.4, 0.3, 0.2, 0.1], [0.7, 0.9, 0.8, 1.0]])
    adv = golden(chain, row, baseline=baselines.IntervalMedian())
    golden.check(adv, row - [[0.15], [0.75]])


def test_a_share_of_the_count_is_not_rounded_up_by_rounding(golden):
    # 10 * 0.3 is 3.0000000000000004 in some orders; of 3 the narrowest are 7 to 7.2.
    row = np.array([[0.0, 1, 2, 3, 4, 5, 6, 7, 7.1, 7.2]])
    part = baselines.IntervalMedian(frac=0.1 + 0.2)
    golden.check(golden(chain, row, baseline=part), row - 7.1)


def test_a_window_holds_at_least_one_reward(golden):
    row = np.array([[0.5, 0.2, NAN, 0.9], [NAN] * 4])
    part = baselines.IntervalMedian(frac=0.0)
    golden.check(golden(chain, row, baseline=part), np.nan_to_num(row - 0.2))


@pytest.mark.parametrize(
    "row, prior, adv, gain, more",
    [
        ([1, 1, -1, -1], 0.2, [0.8, 0.8, -1.2, -1.2], 0, False),
        ([-1] * 4, 0.6, [-0.15625] * 4, 0.041522, True),
        ([1, 1, 1, -1], -0.9, [0.678571] * 3 + [-1.321429], 0.039055, True),
        ([1] * 4, 1.0, [0] * 4, 0, False),
    ],
)
def test_a_shrunk_baseline_and_its_look_ahead(golden, row, prior, adv, gain, more):
    part = baselines.Shrunk(low=-1.0)
    rows, prior_P = np.array([row], float), np.array([prior])
    golden.check(golden(chain, rows, baseline=part, prior_P=prior_P), [adv])

    def ahead(reward_PG, prior_P):
        batch = groups.of(reward_PG, jnp.isfinite(reward_PG), prior_P=prior_P)
        return baselines.continue_sampling(part, batch)

    gain_P, more_P = golden(ahead, rows, prior_P)
    golden.check(gain_P, [gain])
    assert more_P.tolist() == [more]


def ahead(rows, **given):
    reward_PG = np.array(rows, np.float32)
    batch = groups.of(reward_PG, np.isfinite(reward_PG), prior_P=np.ones(len(rows)))
    return baselines.continue_sampling(baselines.Shrunk(low=-1.0), batch, **given)


def test_sampling_goes_on_to_sixteen_under_a_useless_prior_and_no_further():
    # The prior says 1, all rewards are -1: the gain is nearly 1/k - 1/(k + 1).
    rows = [[-1.0] * k + [NAN] * (20 - k) for k in range(21)]
    gain_P, more_P = ahead(rows)
    assert more_P.tolist() == [k < 16 for k in range(21)]
    assert (gain_P > 0.0039).tolist() == [0 < k < 16 for k in range(21)]
    assert ahead(rows, cost=0.0)[1].tolist() == [k < 16 for k in range(21)]
    assert ahead(rows, cost=0.05, most=9)[1].tolist() == [k < 4 for k in range(21)]
    assert ahead(rows, most=9)[1].tolist() == [k < 9 for k in range(21)]
    assert ahead(rows, cost=1.0, least=2)[1].tolist() == [k < 2 for k in range(21)]


def test_length_weighted_by_hand(golden):
    adv = golden(
        chain, [[1.0, 0]], np.array([[100, 300]]), baseline=baselines.LengthWeighted()
    )
    golden.check(adv, [[0.75, -0.25]])


# Reductions.


def test_no_weight_on_the_prior_is_the_mean(golden):
    reward_PG, _, prior_P = table(1)
    for others, name in ((False, "mean"), (True, "leave_one_out")):
        part = baselines.Shrunk(weight=0.0, leave_one_out=others)
        rows = reward_PG[np.isfinite(reward_PG).sum(axis=1) > 1]
        golden.check(
            golden(chain, rows, baseline=part),
            golden(chain, rows, baseline=BASELINES[name]),
        )


def test_without_noise_it_is_the_mean_and_in_noise_the_prior(golden):
    reward_PG, _, prior_P = table(1)
    given = dict(prior_P=prior_P)
    still = baselines.Shrunk(low=0.0, high=1e-9)
    golden.check(
        golden(chain, reward_PG, baseline=still, **given), golden(chain, reward_PG)
    )
    loud = baselines.Shrunk(low=0.0, high=1e6)
    want = np.nan_to_num(reward_PG - prior_P[:, None])
    golden.check(golden(chain, reward_PG, baseline=loud, **given), want)
    # A prior that is right is kept whatever the noise.
    mean_P = np.nanmean(
        np.where(np.isfinite(reward_PG).any(1)[:, None], reward_PG, 0), 1
    )
    got = golden(chain, reward_PG, baseline=baselines.Shrunk(), prior_P=mean_P)
    golden.check(got, np.nan_to_num(reward_PG - mean_P[:, None]))


def test_a_window_of_everything_is_the_mean_or_median(golden):
    reward_PG, _, _ = table(1)
    for mean, name in ((True, "mean"), (False, "median")):
        part = baselines.IntervalMedian(frac=1.0, mean=mean)
        golden.check(
            golden(chain, reward_PG, baseline=part, scale=scales.Deviation()),
            golden(
                chain, reward_PG, baseline=BASELINES[name], scale=scales.Deviation()
            ),
        )


def test_equal_lengths_weigh_alike(golden):
    reward_PG, _, _ = table(1)
    length_PG = np.full(reward_PG.shape, 37)
    part = baselines.LengthWeighted()
    golden.check(
        golden(chain, reward_PG, length_PG, baseline=part), golden(chain, reward_PG)
    )


# Properties.


@pytest.mark.parametrize("name", [n for n in BASELINES if n not in ("none", "shrunk")])
def test_a_shift_of_all_rewards_changes_no_advantage(golden, name):
    reward_PG, length_PG, _ = table(2)
    run = lambda rows: golden(chain, rows, length_PG, baseline=BASELINES[name])
    np.testing.assert_allclose(run(reward_PG + 3), run(reward_PG), atol=3e-6)


@pytest.mark.parametrize("name", ["mean", "leave_one_out"])
def test_advantages_of_a_group_add_up_to_zero(golden, name):
    adv = golden(chain, table(3)[0], baseline=BASELINES[name])
    np.testing.assert_allclose(adv.sum(axis=1), 0, atol=5e-6)


@pytest.mark.parametrize("name", [n for n, b in BASELINES.items() if b.needs_group])
@pytest.mark.parametrize(
    "row", [[0.1] * 6, [0.3] * 10, [0.7] * 10, [1.0] * 8, [2.1756], [NAN, 0.3, NAN]]
)
def test_equal_rewards_and_lone_ones_carry_no_signal(golden, name, row):
    length_PG = np.arange(1, len(row) + 1)[None]
    adv = golden(chain, np.array([row]), length_PG, baseline=BASELINES[name])
    np.testing.assert_array_equal(adv, 0)


@pytest.mark.parametrize("name", BASELINES)
def test_only_a_look_across_tells_equal_rewards_from_their_baseline(name):
    adv = chain(np.array([[1.0] * 4, [0, 0, 0, 1]]), baseline=BASELINES[name])
    assert (adv[0] != 0).all() == BASELINES[name].across


def test_a_shrunk_baseline_learns_from_groups_that_agree(golden):
    adv = golden(chain, [[1.0] * 8, [0.0] * 8], baseline=baselines.Shrunk())
    assert (adv[0] > 0.01).all() and (adv[1] < -0.01).all()


def test_a_lone_rollout_of_others_is_judged_by_the_prior(golden):
    part = baselines.Shrunk(leave_one_out=True)
    adv = golden(chain, [[0.7, NAN]], baseline=part, prior_P=np.array([0.25]))
    golden.check(adv, [[0.45, 0]])


def test_no_group_baseline_flips_the_sign_of_a_binary_reward():
    rows = np.array(list(itertools.product([0.0, 1.0], repeat=5)))
    for name in ("mean", "median", "lower_median", "leave_one_out", "interval_median"):
        adv = chain(rows, baseline=BASELINES[name])
        assert (adv * (2 * rows - 1) >= 0).all()


def test_bounds_the_wrong_way_round_are_refused():
    for bad in (dict(low=1.0), dict(low=2.0, high=-2.0)):
        with pytest.raises(ValueError, match="shrunk.low"):
            baselines.Shrunk(**bad)
    with pytest.raises(ValueError, match="weight=1.5"):
        baselines.Shrunk(weight=1.5)
