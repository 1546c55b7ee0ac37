"""Figures of an update against loops over tokens, and signs of advantages by hand."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import baselines, diagnostics, groups, keeps, objective, scales
from algorithms import tokens as tokens_lib
from algorithms.methods import METHODS
from tests.algorithms import ragged
from tests.algorithms.ragged import ADV, MASK, N, T


def rows(fill=77.0):
    """Arguments of `token_sums` and a reference, in float64; `fill` off the mask."""
    rng = np.random.default_rng(0)
    put = lambda x: np.where(MASK, np.float64(x), fill)
    logs = [put(x) for x in ragged.draw()]
    # Gates and corrections of the kinds there are: shut, open, and in between.
    gate = put(rng.choice([0.0, 1.0, 0.5], (N, T)))
    # Shut where there is no advantage to hold back.
    gate[4, 0] = 0.0
    correction = put(rng.choice([0.0, 1.0, 1.7], (N, T)))
    weight = np.where(MASK, rng.random((N, T)), 0.0)
    return logs, weight, gate, correction


def sums(rows_n=slice(None), fill=77.0):
    logs, weight, gate, correction = jax.tree.map(jnp.asarray, rows(fill))
    logp, logo, logq, logref = (x[rows_n] for x in logs)
    mask = MASK[rows_n]
    tokens = tokens_lib.of(logp, logo, mask, ADV[rows_n], logq)
    out = diagnostics.token_sums(
        tokens, weight[rows_n], gate[rows_n], correction[rows_n]
    )
    return out | diagnostics.reference_sums(tokens, logref, weight[rows_n])


def looped():
    """Every figure, token by token, as its name says."""
    (logp, logo, logq, logref), weight, gate, correction = rows()
    at = [(n, t) for n in range(N) for t in range(T) if MASK[n, t]]
    k3 = lambda l: math.exp(-l) - 1 + l

    def mean(value, among=lambda n: True):
        chosen = [(n, t) for n, t in at if among(n)]
        over = sum(weight[n, t] * value(n, t) for n, t in chosen)
        return over / sum(weight[n, t] for n, t in chosen)

    shut = lambda n, t: float(gate[n, t] == 0)
    share = lambda w: sum(w) ** 2 / (len(w) * sum(x * x for x in w))
    over_sampler = lambda n, t: logp[n, t] - logq[n, t]
    by_row = [[over_sampler(n, t) for t in range(T) if MASK[n, t]] for n in range(N)]
    return {
        "log_ratio": mean(lambda n, t: logp[n, t] - logo[n, t]),
        "log_ratio_sq": mean(lambda n, t: (logp[n, t] - logo[n, t]) ** 2),
        "gated": mean(lambda n, t: shut(n, t) * (ADV[n] != 0)),
        "gated_up": mean(shut, lambda n: ADV[n] > 0),
        "gated_down": mean(shut, lambda n: ADV[n] < 0),
        "active": mean(lambda n, t: (1 - shut(n, t)) * (correction[n, t] > 0)),
        "correction": mean(lambda n, t: correction[n, t]),
        "k1_sampler": mean(lambda n, t: -over_sampler(n, t)),
        "k3_sampler": mean(lambda n, t: k3(-over_sampler(n, t))),
        "effective_tokens": share([math.exp(over_sampler(*nt)) for nt in at]),
        "effective_rollouts": share([math.exp(sum(x)) for x in by_row if x]),
        # Of tokens alike, whatever the method's weights are.
        "entropy": sum(-logp[n, t] for n, t in at) / len(at),
        "k1_reference": mean(lambda n, t: logp[n, t] - logref[n, t]),
        "k3_reference": mean(lambda n, t: k3(logp[n, t] - logref[n, t])),
    }


@pytest.mark.parametrize("fill", [77.0, np.nan, -np.inf])
def test_figures_are_those_of_a_loop(fill):
    with jax.enable_x64(True):
        got = diagnostics.summarise(sums(fill=fill))
        want = looped()
        assert got.keys() == want.keys()
        for name in want:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-12, err_msg=name)
    # Or the loop would not tell one figure from another.
    assert len({round(x, 9) for x in want.values()}) == len(want)


@pytest.mark.parametrize("cuts", [[2], [1, 3, 4]])
def test_parts_of_a_batch_add_up(cuts):
    with jax.enable_x64(True):
        whole = diagnostics.summarise(sums())
        pieces = [sums(r) for r in np.split(np.arange(N), cuts)]
        added = jax.tree.map(lambda *x: sum(x[1:], x[0]), *pieces)
        for name, got in diagnostics.summarise(added).items():
            np.testing.assert_allclose(got, whole[name], rtol=1e-12, err_msg=name)


def test_a_common_factor_on_weights_changes_no_figure():
    """Whether weights are a mean's or a sum's; 1e-6 is below where counts start."""
    logs, weight, gate, correction = rows()
    tokens = tokens_lib.of(*logs[:2], MASK, ADV, logs[2])
    figures = lambda c: diagnostics.summarise(
        diagnostics.token_sums(tokens, jnp.float32(c * weight), gate, correction)
    )
    want = figures(1.0)
    for name, got in figures(1e-6).items():
        np.testing.assert_allclose(got, want[name], rtol=1e-5, err_msg=name)


def test_terms_of_the_loss_are_means_too():
    given = sums() | {"kl": 3.0, "bonus": -1.0, "full_entropy": 2.0}
    got = diagnostics.summarise(given)
    for name in ("kl", "bonus", "full_entropy"):
        np.testing.assert_allclose(got[name], given[name] / given["weight"], rtol=1e-6)
    bare = {k: v for k, v in sums().items() if "reference" not in k}
    assert not {"kl", "bonus", "full_entropy", "k1_reference", "k3_reference"} & set(
        diagnostics.summarise(bare)
    )


def test_figures_of_nothing_are_zero():
    zero, silent = jnp.zeros((2, 3)), np.zeros((2, 3), bool)
    nothing = tokens_lib.of(zero, zero, silent, np.ones(2))
    with jax.debug_nans(True):
        got = diagnostics.summarise(
            diagnostics.token_sums(nothing, zero, zero, zero)
            | diagnostics.reference_sums(nothing, zero, zero)
        )
    assert all(x == 0 for x in got.values())


def test_without_one_sign_its_share_of_gated_tokens_is_zero():
    tokens = ragged.row([0.5, 0.1])
    ones = jnp.ones((1, 2))
    gate = jnp.array([[0.0, 1.0]])
    got = diagnostics.summarise(diagnostics.token_sums(tokens, ones, gate, ones))
    assert got["gated"] == got["gated_up"] == 0.5 and got["gated_down"] == 0


# --- signs of advantages ----------------------------------------------------------

REWARD = np.array([[1.0, 0.0, 0.5, 0.0], [1.0, 1.0, 0.0, 0.0]])
MEAN = np.array([0.5, 0.25])
ALL = np.ones((2, 4), bool)


@pytest.mark.parametrize(
    "adv, keep, want",
    [
        # Wrong, right, at the mean, silent; right, silent, right, dropped: 2 of 6.
        ([[-1, -1, 5, 0], [2, 0, -3, 9]], [[1, 1, 1, 1], [1, 1, 1, 0]], 2 / 6),
        ([[-1, -1, 5, 0], [2, 0, -3, 9]], ALL, 3 / 7),
        (REWARD - MEAN[:, None], ALL, 0.0),
        (MEAN[:, None] - REWARD, ALL, 1.0),
        (np.zeros((2, 4)), ALL, 0.5),
        (np.zeros((2, 4)), ~ALL, 0.0),
    ],
)
def test_sign_flips_by_hand(golden, adv, keep, want):
    keep = np.array(keep, bool)
    args = (np.array(adv, float), keep, REWARD, MEAN)
    golden.check(golden(diagnostics.sign_flips, *args), want)
    # What a rollout that was not kept holds is of no account.
    junk = np.where(keep, REWARD, np.nan)
    golden.check(golden(diagnostics.sign_flips, *args[:2], junk, MEAN), want)


def of_normal(name, G, extra=0):
    """Share of wrong signs over many groups of standard normal rewards."""
    reward_PG = np.random.default_rng(G).normal(size=(40_000, G + extra))
    batch = groups.of(np.float32(reward_PG), np.ones(reward_PG.shape, bool))
    adv = objective.advantages(METHODS[name], batch)
    flips = diagnostics.sign_flips(
        adv.adv_PG, adv.keep_PG, batch.reward_PG, jnp.zeros(len(reward_PG))
    )
    return float(flips)


@pytest.mark.parametrize("G", [2, 4, 8])
def test_the_mean_of_a_small_group_flips_signs(G):
    """Reward and reward - mean correlate by sqrt(1 - 1/G): an angle over pi."""
    want = math.acos(math.sqrt(1 - 1 / G)) / math.pi
    for name in ("dr_grpo", "grpo", "rloo"):
        assert of_normal(name, G) == pytest.approx(want, abs=0.004)


@pytest.mark.parametrize("G", [2, 4, 8])
def test_a_median_flips_fewer_where_the_law_is_symmetric(G):
    """Of G + 1 in order those above the middle are wrong where they are below 0.

    The k-th largest is below 0 with the chance of fewer than k heads in G + 1 coins.
    """
    chance = lambda k: sum(math.comb(G + 1, i) for i in range(k)) / 2 ** (G + 1)
    want = sum(chance(k) for k in range(1, G // 2 + 1)) / (G // 2)
    for name in ("mc_grpo", "mc_dr_grpo"):
        assert of_normal(name, G, extra=1) == pytest.approx(want, abs=0.004)


# --- counts that advantages come with ---------------------------------------------


def test_groups_that_fall_back_are_counted_and_no_others():
    """Deviations about the median 0, 0.3, 0 and 0: of two levels the median is 0."""
    reward_PG = np.float32([[1, 0, 0], [0.2, 0.5, 0.9], [1, 1, 1], [1, 0, 0]])
    valid_PG = np.ones((4, 3), bool)
    valid_PG[3] = [True, False, False]
    batch = groups.of(reward_PG, valid_PG)
    out = objective.advantages(METHODS["mc_grpo"], batch)
    assert out.fallback_P.tolist() == [True, False, False, False]
    assert out.constant_P.tolist() == [False, False, True, True]
    assert out.silent_P.tolist() == [False, False, True, True]
    plain = dataclasses.replace(METHODS["mc_grpo"], scale=scales.Mad(floor=0.0))
    assert not objective.advantages(plain, batch).fallback_P.any()


def test_the_largest_advantage_is_told_before_it_is_cut():
    method = dataclasses.replace(
        METHODS["mc_grpo"], scale=scales.Mad(floor=0.0), max_advantage=10.0
    )
    batch = groups.of(np.float32([[1, 0, 0], [1, 1, 0]]), np.ones((2, 3), bool))
    out = objective.advantages(method, batch)
    np.testing.assert_allclose(out.raw_max, 1000.0, rtol=1e-5)
    np.testing.assert_array_equal(out.adv_PG, [[10, 0, 0], [0, 0, -10]])


def test_the_largest_advantage_may_be_that_of_a_rollout_left_out():
    """2 of 2 1 0 was cut short; it is in the statistics and not in the update."""
    keep = keeps.Everything(drop_truncated=True)
    method = dataclasses.replace(
        METHODS["dr_grpo"], baseline=baselines.Median(), keep=keep
    )
    batch = groups.of(
        np.float32([[3, 1, 0]]),
        np.ones((1, 3), bool),
        ended_PG=np.array([[False, True, True]]),
    )
    out = objective.advantages(method, batch)
    assert out.raw_max == 2 and out.adv_PG.tolist() == [[0, 0, -1]]
