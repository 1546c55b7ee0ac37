"""Frozen rollouts: what is stored, what is measured on them, and the figure of it."""

import dataclasses
import unittest.mock

import jax
from matplotlib import figure
import numpy as np
import pytest

from algorithms import gates
from algorithms.methods import METHODS
from experiments import frozen, objective_atlas
from jaxrl import rollout
from models import sharding
from tests.jaxrl import small

DRAWS = 4


@pytest.fixture(scope="module", autouse=True)
def one_device():
    """The run is on one device, as if there were no more."""
    make = sharding.make_mesh
    one = lambda shape: make(shape, devices=jax.devices()[:1])
    with unittest.mock.patch.object(sharding, "make_mesh", one):
        yield


def config(**changes):
    """Six updates on sequences, whose reward is the share of symbols right."""
    task = dataclasses.replace(small.TASK, reward="fraction")
    return small.config(task=task, seed=3, **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return frozen.Frozen(config(), tmp_path_factory.mktemp("atlas"), 3)


@pytest.fixture(scope="module")
def pools(run):
    return {lag: run.pool(lag, 8, DRAWS * frozen.room(run.config)) for lag in (0, 2)}


@pytest.fixture(scope="module")
def halves(run):
    return run.on_policy(8, 4 * frozen.CHUNK)


def measured(run, pools, halves, method, lag=0):
    return run.measure(method, lag, pools[lag], halves[0], DRAWS)


def test_versions_are_those_of_the_updates(run):
    newest, older = run.version(0), run.version(2)
    assert not np.array_equal(newest["embed"], older["embed"])
    final = small.final_params(run.config)
    np.testing.assert_array_equal(newest["embed"], final["embed"])


def test_what_is_stored_is_not_sampled_again(run, pools, halves):
    again = frozen.Frozen(config(), run._folder, 3)
    with unittest.mock.patch.object(rollout, "make_sample", side_effect=AssertionError):
        with pytest.raises(AssertionError):
            again.pool(1, 8, 5)
    with unittest.mock.patch.object(frozen.Frozen, "_sample", side_effect=KeyError):
        pool = again.pool(2, 8, DRAWS * frozen.room(run.config))
        halves_again = again.on_policy(8, 4 * frozen.CHUNK)
    jax.tree.map(np.testing.assert_array_equal, pool, pools[2])
    jax.tree.map(np.testing.assert_array_equal, halves_again, halves)


def test_halves_of_the_on_policy_gradient_agree(halves):
    assert 0.7 < frozen.cosine(*halves) < 1.0


def test_the_policy_gradient_points_where_the_large_group_does(run, pools, halves):
    """On policy, without bias: mean cosine above each draw's, and rising with them."""
    got = measured(run, pools, halves, frozen.UNBIASED)
    assert got.mean_cosine > got.cosine_R.mean() > 0.2
    assert got.gated == 0 and got.noise > 0 and got.signal > 0
    assert got.cosine_R.shape == (DRAWS,)


def test_methods_that_are_one_on_policy_measure_the_same(run, pools, halves):
    """Where the ratio is 1 a clip does nothing, and costs nothing."""
    a = measured(run, pools, halves, METHODS["dr_grpo"])
    unclipped = dataclasses.replace(METHODS["dr_grpo"], gate=gates.NoGate())
    b = measured(run, pools, halves, unclipped)
    np.testing.assert_allclose(a.cosine_R, b.cosine_R, rtol=1e-5)
    assert a.flops == b.flops


def test_costs_count_every_pass_and_every_rollout(run, pools, halves):
    flops = {
        name: measured(run, pools, halves, METHODS[name]).flops
        for name in ("grpo", "mc_grpo", "icepop", "ppo_ewma")
    }
    assert flops["mc_grpo"] > flops["grpo"]  # One rollout more is sampled.
    assert flops["icepop"] == flops["ppo_ewma"] > flops["grpo"]  # One pass more.


def test_a_stale_pool_is_held_by_a_narrow_clip(run, pools, halves):
    narrow = dataclasses.replace(METHODS["grpo"], gate=gates.Clip(1e-4, 1e-4))
    assert measured(run, pools, halves, narrow, lag=0).gated == 0
    assert measured(run, pools, halves, narrow, lag=2).gated > 0.05


def test_flips_are_against_the_mean_of_the_pool(run, pools):
    """With two levels a mean baseline flips no sign: it says nothing, half the time."""
    two = pools[0]._replace(reward_PG=np.float32(pools[0].reward_PG > 0))
    width, n = frozen.room(run.config), run.config.rollouts
    mean_P = two.reward_PG.mean(axis=1)
    shares = []
    for i in range(DRAWS):
        draw_PG = two.reward_PG[:, i * width :][:, :n]
        silent_P = np.ptp(draw_PG, axis=1) == 0
        varied_P = (mean_P > 0) & (mean_P < 1)
        shares.append(0.5 * (silent_P & varied_P).sum() / max(varied_P.sum(), 1))
    assert 0 < np.mean(shares) < 0.5
    got = run.sign_flips(METHODS["grpo"], 0, two, DRAWS)
    np.testing.assert_allclose(got, np.mean(shares), rtol=1e-5)


def rows():
    one = frozen.Measured(np.array([0.5, 0.7]), 0.9, 2.0, 4.0, 0.1, 10**12)
    return [
        objective_atlas.row(name, lag, one)
        for name in ("grpo", "mc_grpo")
        for lag in (0, 8)
    ]


def test_a_row_by_hand():
    row = rows()[0]
    assert row["cosine"] == pytest.approx(0.6) and row["at_limit"] == 0.9
    assert row["snr_per_tflop"] == pytest.approx(0.5)
    assert 0.5 <= row["cosine_low"] <= row["cosine_high"] <= 0.7
    assert "0.600" in objective_atlas.line(row | {"sign_flips": 0.25})


def test_the_figure_has_every_method_and_lag():
    canvas = figure.Figure()
    axes = canvas.subplots(1, 3, sharey=True)
    objective_atlas.draw(rows(), axes)
    assert [t.get_text() for t in axes[0].get_yticklabels()] == ["grpo", "mc_grpo"]
    legend = [t.get_text() for t in axes[0].get_legend().get_texts()]
    assert legend == ["lag 0", "lag 8"]
    assert axes[2].get_xscale() == "log" and all(a.get_xlabel() for a in axes)
