"""Tests for jaxrl/optimizer.py: the schedule on its one clock, decay and clipping."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import optimizer
from jaxrl.config import OptimizerConfig
from models import params, transformer
from tests.jaxrl import small


def rate(step, updates=100, **changes):
    config = small.config(
        updates=updates, optimizer=OptimizerConfig(learning_rate=0.5, **changes)
    )
    return float(optimizer.learning_rate(config, jnp.int32(step)))


@pytest.mark.parametrize(
    "changes, step, want",
    [
        (dict(), 0, 1.0),
        (dict(), 99, 1.0),
        (dict(schedule="cosine"), 0, 1.0),
        (dict(schedule="cosine"), 40, 0.654508),
        (dict(schedule="cosine"), 99, 0.5 * (1 + math.cos(0.99 * math.pi))),
        (dict(schedule="linear"), 25, 0.75),
        (dict(schedule="linear"), 100, 0.0),
        (dict(schedule="linear"), 1000, 0.0),
        (dict(warmup=4), 0, 0.25),
        (dict(warmup=4), 3, 1.0),
        (dict(warmup=4), 4, 1.0),
        (dict(warmup=20, schedule="linear"), 9, 0.5),
        (dict(warmup=20, schedule="linear"), 20, 1.0),
        (dict(warmup=20, schedule="linear"), 60, 0.5),
        # A batch of 32 rollouts, a quarter or four times the one of the rate.
        (dict(scale_batch=128), 0, 0.5),
        (dict(scale_batch=8, schedule="linear"), 50, 1.0),
    ],
)
def test_rate_as_a_share_of_the_peak(changes, step, want):
    np.testing.assert_allclose(rate(step, **changes) / 0.5, want, rtol=1e-5, atol=1e-7)


# The share of the peak at these shares of the run, by phi; 2 is the cosine.
UBA = {
    0.25: [1, 0.979004, 0.888889, 0.578518, 0.167142, 0],
    0.5: [1, 0.958871, 0.8, 0.406983, 0.091192, 0],
    1.0: [1, 0.920991, 0.666667, 0.255479, 0.047774, 0],
    2.0: [1, 0.853553, 0.5, 0.146447, 0.024472, 0],
}


@pytest.mark.parametrize("phi", UBA)
def test_the_budget_aware_schedule(phi):
    steps = (0, 25, 50, 75, 90, 100)
    got = [rate(step, schedule="uba", phi=phi) / 0.5 for step in steps]
    np.testing.assert_allclose(got, UBA[phi], atol=1e-6)
    assert rate(40, schedule="uba", phi=2.0) == pytest.approx(
        rate(40, schedule="cosine")
    )


@pytest.mark.parametrize("bias, tied", [(True, False), (False, True)])
def test_decay_acts_on_matrices_only(bias, tied):
    model = dataclasses.replace(small.MODEL, vocab=7, qkv_bias=bias, tied=tied)
    weights = jax.tree.map(
        lambda d: np.full(d.shape, 2.0, np.float32),
        transformer.param_defs(model),
        is_leaf=params.is_def,
    )
    zeros = jax.tree.map(np.zeros_like, weights)
    tx = optimizer.make(OptimizerConfig(weight_decay=0.1))
    moved, _ = tx.update(zeros, tx.init(weights), weights)
    for path, leaf in jax.tree_util.tree_leaves_with_path(moved):
        name = path[-1].key
        before = weights["layers"].get(name, weights.get(name))
        plain = "norm" in name or name in ("bq", "bk", "bv")
        np.testing.assert_allclose(leaf, 0 * before if plain else 0.1 * before)


def test_gradients_are_clipped_by_their_global_norm():
    cfg = OptimizerConfig(max_grad_norm=0.5, b1=0.0, b2=0.0, eps=1.0)
    tx = optimizer.make(cfg)
    grads = {"wa": jnp.array([3.0]), "wb": jnp.array([-4.0])}
    moved, _ = tx.update(grads, tx.init(grads), grads)
    # Clipped to 0.3 and -0.4; Adam without memory then gives g / (|g| + eps).
    np.testing.assert_allclose(moved["wa"], [0.3 / 1.3], rtol=1e-6)
    np.testing.assert_allclose(moved["wb"], [-0.4 / 1.4], rtol=1e-6)


def test_adam_by_hand():
    cfg = OptimizerConfig(b1=0.5, b2=0.75, eps=0.1, max_grad_norm=1e9)
    tx = optimizer.make(cfg)
    params = {"w": jnp.zeros(1)}
    state, m, v = tx.init(params), 0.0, 0.0
    for t, g in enumerate((2.0, -1.0, 0.5), start=1):
        m, v = 0.5 * m + 0.5 * g, 0.75 * v + 0.25 * g * g
        moved, state = tx.update({"w": jnp.array([g])}, state, params)
        want = m / (1 - 0.5**t) / (math.sqrt(v / (1 - 0.75**t)) + 0.1)
        np.testing.assert_allclose(moved["w"], [want], rtol=1e-5)
