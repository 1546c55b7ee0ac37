"""Tests for jaxrl/estimators.py: subsets counted, votes, intervals that cover."""

import itertools
import math

import numpy as np
import pytest

from jaxrl import estimators


@pytest.mark.parametrize("K", [1, 2, 5, 6])
def test_extremes_equal_the_mean_over_all_subsets(K):
    rng = np.random.default_rng(K)
    # Real values, ties, all alike, and 0/1.
    reward_PK = np.concatenate(
        [
            rng.normal(size=(3, K)),
            rng.integers(3, size=(3, K)),
            np.full((1, K), 0.3),
            rng.integers(2, size=(3, K)),
        ]
    )
    for k in range(1, K + 1):
        best_P, worst_P = estimators.subset_extreme(reward_PK, k)
        for p, row in enumerate(reward_PK):
            subsets = list(itertools.combinations(row, k))
            np.testing.assert_allclose(best_P[p], np.mean([max(s) for s in subsets]))
            np.testing.assert_allclose(worst_P[p], np.mean([min(s) for s in subsets]))


@pytest.mark.parametrize("K", [4, 64, 1000])
def test_successes_give_pass_at_k(K):
    for k, c in itertools.product({1, 2, 3, K // 2, K}, {0, 1, 2, K // 2, K - 1, K}):
        row = np.arange(K)[None] < c
        best, worst = estimators.subset_extreme(row.astype(float), k)
        total = math.comb(K, k)
        np.testing.assert_allclose(best, 1 - math.comb(K - c, k) / total, atol=1e-12)
        np.testing.assert_allclose(worst, math.comb(c, k) / total, atol=1e-12)


@pytest.mark.parametrize("k", [0, 4])
def test_a_k_that_the_samples_do_not_support_is_refused(k):
    with pytest.raises(ValueError, match=rf"k={k} is not in 1..3"):
        estimators.subset_extreme(np.zeros((2, 3)), k)


@pytest.mark.parametrize(
    "answers, correct, want",
    [
        ("aab", (1, 1, 0), 1.0),
        ("aab", (0, 0, 1), 0.0),
        ("ab", (1, 0), 0.5),
        ("aabbc", (1, 1, 0, 0, 1), 0.5),
        ("abc", (1, 0, 0), 1 / 3),
        # One answer, scored apart.
        ("aaab", (1, 1, 0, 0), 2 / 3),
        # What is empty does not vote.
        (["", "", "a"], (0, 0, 1), 1.0),
        (["", ""], (1, 1), 0.0),
        ([], (), 0.0),
    ],
)
def test_majority(answers, correct, want):
    got = estimators.majority(list(answers), [bool(c) for c in correct])
    assert got == pytest.approx(want)


def test_intervals_cover_where_samples_of_a_problem_go_together():
    """95% nominal: the interval over problems covers, one over rows would not."""
    P, K, repetitions = 40, 4, 200
    clustered = by_rows = 0
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        # Problems mostly hopeless or mostly solved; their mean success is 0.5.
        p_P1 = rng.beta(0.2, 0.2, size=(P, 1))
        correct_PK = (rng.random((P, K)) < p_P1).astype(float)
        low, high = estimators.interval(correct_PK.mean(axis=1))
        clustered += low <= 0.5 <= high
        low, high = estimators.interval(correct_PK.ravel())
        by_rows += low <= 0.5 <= high
    assert 0.88 <= clustered / repetitions <= 0.99
    assert by_rows / repetitions < 0.8


def test_interval_levels_and_edges():
    value_P = np.random.default_rng(0).normal(size=30)
    wide, narrow = (estimators.interval(value_P, level=x) for x in (0.95, 0.5))
    assert wide[0] < narrow[0] < value_P.mean() < narrow[1] < wide[1]
    assert estimators.interval(value_P) == wide
    assert estimators.interval(np.full(5, 0.25)) == (0.25, 0.25)
    assert all(np.isnan(estimators.interval(np.zeros(0))))
    low, high = estimators.interval(np.arange(9.0), statistic=np.median)
    assert low in np.arange(9) and high in np.arange(9) and low < 4 < high


@pytest.mark.parametrize("samples, want", [(1, [1]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_sizes(samples, want):
    assert estimators.sizes(samples) == want


def test_summary_of_a_small_table():
    nan = np.nan
    reward_PK = np.array([[1, 0, 0.5], [0, 0, 0], [1, nan, 1], [1, 1, 0]])
    answers = [["a", "b", "c"], ["d", "d", "d"], ["e", "f", "e"], ["g", "g", "h"]]
    out = estimators.summarise(reward_PK.astype(np.float32), answers)
    assert out["unscored"] == 1
    want = {
        "avg": (1 / 3 + 0 + 2 / 3) / 3,
        "reward": (0.5 + 0 + 2 / 3) / 3,
        "pass@1": (1 / 3 + 0 + 2 / 3) / 3,
        "pass@2": (2 / 3 + 0 + 1) / 3,
        "pass@3": 2 / 3,
        "best@2": ((1 + 1 + 0.5) / 3 + 0 + 1) / 3,
        "worst@3": 0.0,
        "maj@3": (1 / 3 + 0 + 1) / 3,
    }
    for name, value in want.items():
        assert out[name] == pytest.approx(value), name
        assert out[f"{name}_low"] <= value <= out[f"{name}_high"]
    # An unscored problem weighs nothing, not zero.
    scored = estimators.summarise(reward_PK[[0, 1, 3]], [answers[i] for i in (0, 1, 3)])
    assert scored | {"unscored": 1} == out


def test_summary_of_nothing_scored_is_nan_and_not_zero():
    out = estimators.summarise(np.full((2, 2), np.nan), [["", ""]] * 2)
    assert out.pop("unscored") == 2
    assert np.isnan(list(out.values())).all()
