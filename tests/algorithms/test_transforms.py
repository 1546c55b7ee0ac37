"""What is done to advantages, against printed values and hand arithmetic."""

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import groups, scales, transforms
from algorithms.transforms import TRANSFORMS
from tests.algorithms.scored import NAN, chain

HALF = np.array([[1.0, 1, 1, 0, 0, 0]])
CLUSTERS = np.array([[5, 5, 2, 0, 0, 0]])
STD = dict(scale=scales.Std(eps=0.0))


def unique(golden, rewards, clusters, alpha, **given):
    part = transforms.Uniqueness(alpha=alpha, **given)
    return golden(chain, rewards, transform=part, cluster_PG=np.array(clusters), **STD)


@pytest.mark.parametrize(
    "alpha, common, rare, failed, total",
    [
        (0.5, 0.645497, 0.912871, -0.527046, 0.622727),
        (1.0, 0.456435, 0.912871, -0.304290, 0.912871),
        (0.0, 0.912871, 0.912871, -0.912871, 0),
    ],
)
def test_common_solutions_weigh_less(golden, alpha, common, rare, failed, total):
    got = unique(golden, HALF, CLUSTERS, alpha)
    golden.check(got, [[common, common, rare, failed, failed, failed]])
    golden.check(got.sum(), total, digits=5)


def test_positives_only_leaves_failures_alone(golden):
    got = unique(golden, HALF, CLUSTERS, 0.5, positives_only=True)
    golden.check(got, [[0.645497, 0.645497, 0.912871] + [-0.912871] * 3])


def test_one_cluster_shrinks_all_and_all_alone_is_the_identity(golden):
    plain = golden(chain, HALF, **STD)
    golden.check(unique(golden, HALF, [[4] * 6], 0.5), plain * 6**-0.5)
    golden.check(unique(golden, HALF, [[0, 1, 2, 3, 4, 5]], 0.5), plain)


def test_a_rollout_of_no_cluster_counts_as_the_commonest(golden):
    """Not as alone, nor as the others of no cluster."""
    plain = golden(chain, HALF, **STD)
    got = unique(golden, HALF, [[-1, 0, 0, -1, 1, 2]], 1.0)
    golden.check(got / plain, [[1 / 6, 1 / 2, 1 / 2, 1 / 6, 1, 1]])


def test_unscored_rollouts_are_in_no_cluster(golden):
    rewards = np.array([[1.0, 1, NAN, 0]])
    plain = golden(chain, rewards, **STD)
    got = unique(golden, rewards, [[7, 7, 7, -1]], 1.0)
    golden.check(got, plain * [[1 / 2, 1 / 2, 0, 1 / 3]])


def test_clusters_are_needed_and_of_one_group():
    batch = groups.of(np.ones((1, 2)), np.ones((1, 2), bool))
    with pytest.raises(ValueError, match="uniqueness needs Groups.cluster_PG"):
        transforms.Uniqueness()(batch.reward_PG, batch)
    needing = [n for n, t in TRANSFORMS.items() if t.needs_clusters]
    assert needing == ["uniqueness"]
    two = groups.of(
        np.ones((2, 2)), np.ones((2, 2), bool), cluster_PG=jnp.zeros((2, 2), int)
    )
    got = transforms.Uniqueness(alpha=1.0)(jnp.ones((2, 2)), two)
    np.testing.assert_allclose(got, 0.5)


def test_successes_get_one_and_near_misses_more(golden):
    part = transforms.Amplify()
    got = golden(chain, [[1.0, 0.6, 0.1, 0.1, NAN], [1.5, 1, 0, 0, 0]], transform=part)
    # Means 0.45 and 0.5; 1.5 and 1 both count as solved, and only that.
    want = [[1, 0.45, -0.35, -0.35, 0], [1, 1, -0.5, -0.5, -0.5]]
    golden.check(got, want)
    kept = golden(
        chain, [[1.0, 0.6, 0.1, 0.1]], transform=transforms.Amplify(alpha=1.0)
    )
    golden.check(kept, [[1, 0.15, -0.35, -0.35]])


def test_a_success_below_the_mean_is_raised_too(golden):
    got = golden(chain, [[1.0, 5, 0]], transform=transforms.Amplify())
    golden.check(got, [[1, 1, -2]])


@pytest.mark.parametrize("row", [[1.0] * 4, [0.0] * 4, [1.0, NAN, NAN, NAN]])
def test_a_group_that_agrees_is_not_amplified(golden, row):
    got = golden(chain, [row], transform=transforms.Amplify())
    np.testing.assert_array_equal(got, 0)


def test_what_is_at_zero_is_shared_out(golden):
    def run(adv_PG, valid_PG):
        batch = groups.of(adv_PG, valid_PG)
        return transforms.NonzeroRescale()(batch.reward_PG, batch)

    adv = np.array([[2.0, 0, 0, 5e-7], [0, 0, 0, 0], [1, -1, 9, 9], [3, 0, 9, 0]])
    valid = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 1]], bool)
    want = [[8, 0, 0, 5e-7], [0, 0, 0, 0], [1, -1, 0, 0], [9, 0, 0, 0]]
    golden.check(golden(run, adv, valid), want, digits=7)


def test_no_transform_is_the_identity():
    adv_PG = np.array([[1.0, -2.0]], np.float32)
    batch = groups.of(adv_PG, np.ones((1, 2), bool))
    np.testing.assert_array_equal(transforms.NoTransform()(adv_PG, batch), adv_PG)


# Pure functions.


def test_a_first_visit_is_its_own_group_and_later_ones_are_smoothed(golden):
    new = np.array([[1.0, -2.0]] * 4)
    total = np.array([[1.0, -2.0], [0.4, 2.0], [0.4, 2.0], [-1.0, -6.0]])
    got = golden(transforms.visit_mixing, new, total, np.array([1, 2, 4, 3]))
    want = [
        [1, -2],
        [0.7, 0],
        # (3 * 1 + .4) / 4 = .85 or (1 + 3 * .4) / 4 = .55; -4 / 4 or 4 / 4, a tie.
        [0.55, -1],
        # 1 / 3 or -1 / 3, a tie; -10 / 3 or -14 / 3.
        [1 / 3, -10 / 3],
    ]
    golden.check(got, want)


def test_a_visit_without_spread_keeps_a_share_of_the_total(golden):
    total = np.array([[0.9, -0.6]])
    for visit in (2, 3, 10):
        got = golden(transforms.visit_mixing, 0 * total, total, np.array([visit]))
        golden.check(got, total / visit)


def test_a_step_is_normalised_by_its_episode_or_by_a_horizon(golden):
    adv, steps, rows = np.array([1.0, 1.0]), np.array([5, 12.5]), np.array([0, 1, 1, 0])
    golden.check(golden(transforms.step_norm, adv, rows, steps), [0.2, 0.08, 0.08, 0.2])
    got = golden(transforms.step_norm, adv, rows, steps, horizon=10)
    golden.check(got, [0.1] * 4)


def test_a_horizon_that_every_episode_has_is_the_own_steps(golden):
    adv, rows = np.array([2.0, -1.0, 0.5]), np.array([2, 2, 0, 1, 1])
    steps = np.array([4, 4, 4])
    own = golden(transforms.step_norm, adv, rows, steps)
    golden.check(golden(transforms.step_norm, adv, rows, steps, horizon=4), own)
    golden.check(own, np.array([0.5, 0.5, 2, -1, -1]) / 4)


def test_episodes_of_a_group_over_their_population_deviation(golden):
    """c of 8 succeed: sqrt((8 - c) / c) and -sqrt(c / (8 - c))."""
    for c in (1, 3, 4, 7):
        row = np.array([[1.0] * c + [0.0] * (8 - c)])
        adv = golden(chain, row, scale=scales.Std(eps=0.0, population=True))
        hit, miss = np.sqrt((8 - c) / c), -np.sqrt(c / (8 - c))
        golden.check(adv, np.where(row > 0, hit, miss))
