"""Methods that become one another at an end of a setting or on special data.

Whole gradients of two methods in float64 on ragged rollouts that are off every policy.
Reductions of single parts are in the files of those parts.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    aggregates,
    baselines,
    corrections,
    gates,
    objective,
    penalties,
    ratios,
    scales,
    shapes,
)
from algorithms.methods import METHODS
from tests.algorithms import batches

HUGE = 1e9
OPEN = dict(gate=gates.NoGate())
PLAIN = dict(gate=gates.NoGate(), correction=corrections.NoCorrection())
REINFORCE = dict(ratio=ratios.NoRatio(), gate=gates.NoGate())
PER_TOKEN = dict(aggregate=aggregates.TokenMean())
SUMMED = dict(scale=scales.NoScale(), aggregate=aggregates.SequenceSum())
NO_SCALE = dict(scale=scales.NoScale())


def as_drawn(data):
    return data


def nearer(data):
    """So near that what a clip leaves alone has a tail of its own."""
    logo_PGT = data.logp_PGT + (data.logo_PGT - data.logp_PGT) / 4
    return data._replace(logo_PGT=logo_PGT)


def sampler_is_anchor(data):
    return data._replace(logq_PGT=data.logo_PGT)


def reference_is_policy(data):
    return data._replace(logref_PGT=data.logp_PGT)


def one_token(data):
    """Responses of one token; the row without any stays as it is."""
    return data._replace(mask_PGT=data.mask_PGT & (np.arange(batches.LIMIT) == 0))


def row(name, parts, other, other_parts=None, data=as_drawn):
    label = f"{name}={other}-{data.__name__}"
    return pytest.param(name, parts, other, other_parts or {}, data, id=label)


CASES = [
    # Budgets that never bind leave the importance-weighted policy gradient.
    row("m2po", dict(gate=gates.M2Mask(HUGE)), "grpo", OPEN | PER_TOKEN),
    row("m2po_all", dict(gate=gates.M2All(HUGE)), "m2po", OPEN),
    row("cispo", dict(gate=gates.Cap(high=HUGE)), "grpo", OPEN | PER_TOKEN),
    row(
        "cppo", dict(gate=gates.PrefixBudget(HUGE, floor=HUGE, cap=HUGE)), "cppo", OPEN
    ),
    row("dppo_tv", dict(gate=gates.Tv(1.0, 1.0, cap=HUGE)), "dr_grpo", OPEN),
    row("sat_grpo", dict(gate=gates.Sat(low=HUGE, high=HUGE)), "grpo", OPEN),
    row("sapo", dict(gate=gates.Soft(0.0, 0.0)), "grpo", OPEN),
    row("vespo", dict(gate=gates.Gamma(1.0, 0.0, 1.0, 0.0)), "vespo", OPEN),
    row("ppo_ewma", dict(correction=corrections.TokenReject(0.0, HUGE)), "grpo"),
    # A weight without its ratio is REINFORCE.
    row(
        "vespo",
        dict(gate=gates.Gamma(0.0, 0.0, 0.0, 0.0)),
        "grpo",
        REINFORCE | PER_TOKEN,
    ),
    # Other rules of the same family.
    row("cppo", dict(gate=gates.PrefixBudget(last=1.0, floor=HUGE)), "dppo_tv"),
    row("sat_grpo", dict(gate=gates.Sat(quantile=1.0)), "grpo", data=nearer),
    row(
        "bapo",
        dict(gate=gates.Balanced(low=0.8, low_max=0.8, high=1.2, high_max=1.2)),
        "grpo",
        PER_TOKEN | dict(gate=gates.Clip(dual=3.0)),
    ),
    row(
        "luspo",
        dict(gate=METHODS["gspo"].gate),
        "gspo",
        dict(aggregate=aggregates.SequenceSum()),
    ),
    row("gspo_token", {}, "gspo"),
    row(
        "gmpo",
        dict(ratio=ratios.ClippedMean(HUGE, HUGE), gate=gates.Live(HUGE, HUGE)),
        "gspo",
        OPEN,
    ),
    # Advantages.
    row("v05", dict(baseline=baselines.Shrunk(weight=0.0)), "grpo", NO_SCALE),
    row(
        "gapo",
        dict(baseline=baselines.IntervalMedian(frac=1.0, mean=True), gate=gates.Clip()),
        "grpo",
    ),
    row("dvao", dict(shape=shapes.NoShape()), "grpo"),
    row("dvao", dict(shape=shapes.Within(weight=0.0)), "grpo"),
    row("alp", dict(shape=shapes.SolveRateLength(beta=0.0)), "grpo"),
    # A sampler that is the anchor needs no correction.
    row("decoupled_ppo", {}, "grpo", data=sampler_is_anchor),
    row("icepop", {}, "grpo", data=sampler_is_anchor),
    row("sequence_mis", {}, "grpo", data=sampler_is_anchor),
    row("sparse_rl", {}, "grpo", data=sampler_is_anchor),
    row(
        "ctpo",
        {},
        "ctpo",
        dict(correction=corrections.NoCorrection()),
        sampler_is_anchor,
    ),
    row(
        "mini_rl",
        dict(correction=corrections.TotalTruncate(HUGE)),
        "grpo",
        SUMMED,
        sampler_is_anchor,
    ),
    # A reference that is the policy pulls nowhere.
    row("grpo", dict(kl=penalties.K3(coef=0.5)), "grpo", data=reference_is_policy),
    row("grpo", dict(kl=penalties.Forward(coef=0.5)), "grpo", data=reference_is_policy),
    row("tba", {}, "grpo", REINFORCE | SUMMED, reference_is_policy),
    # Responses of one token: whatever a ratio looks at is that token.
    row("gspo", dict(gate=gates.Clip()), "grpo", data=one_token),
    row("luspo", dict(gate=gates.Clip()), "grpo", data=one_token),
    row("pnpo", OPEN, "grpo", OPEN, one_token),
    row("minpro", {}, "grpo", data=one_token),
    row("vespo", OPEN, "grpo", OPEN | PER_TOKEN, one_token),
    row(
        "gmpo",
        dict(gate=gates.Live(low=-np.log(0.8), high=np.log(1.2))),
        "grpo",
        data=one_token,
    ),
    row(
        "ctpo",
        PLAIN | dict(gate=gates.Widening(low=-np.log(0.8), high=np.log(1.2))),
        "grpo",
        PER_TOKEN | dict(gate=gates.Clip(dual=1.2)),
        one_token,
    ),
]


def gradient(name, parts, change=as_drawn, lag=None):
    """Of the loss by logp, [P, G, T], in float64."""
    method = dataclasses.replace(METHODS[name], **parts)
    with jax.enable_x64(True):
        # One draw for all: no method here samples more rollouts than another.
        data = batches.cast(change(batches.draw(METHODS["grpo"])), jnp.float64)
        if lag is None:
            return np.asarray(batches.evaluate(method, data)[2])
        batch = batches.prepare(method, data)[0]._replace(lag=jnp.int32(lag))
        logp_NT = jnp.reshape(data.logp_PGT, batch.mask_NT.shape)
        loss = lambda logp_NT: objective.loss(method, logp_NT, batch)[0]
        return np.asarray(jax.grad(loss)(logp_NT)).reshape(data.mask_PGT.shape)


def assert_same(got, want, rtol=1e-9):
    assert got.dtype == np.float64 and np.abs(want).max() > 0
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-12 * np.abs(want).max())


@pytest.mark.parametrize("name, parts, other, other_parts, data", CASES)
def test_one_method_is_another(name, parts, other, other_parts, data):
    assert_same(gradient(name, parts, data), gradient(other, other_parts, data))


@pytest.mark.parametrize(
    "name, other, data",
    [
        ("m2po", "dapo", as_drawn),
        ("cppo", "dppo_tv", as_drawn),
        ("sat_grpo", "grpo", nearer),
        ("sapo", "grpo", as_drawn),
        ("gspo", "grpo", as_drawn),
        ("luspo", "gspo", as_drawn),
        ("gmpo", "gspo", as_drawn),
        ("v05", "dr_grpo", as_drawn),
        ("gapo", "grpo", as_drawn),
        ("dvao", "grpo", as_drawn),
        ("decoupled_ppo", "grpo", as_drawn),
        ("icepop", "decoupled_ppo", as_drawn),
        ("mini_rl", "rloo", sampler_is_anchor),
        ("a3po", "grpo", as_drawn),
        ("minpro", "grpo", as_drawn),
    ],
)
def test_unchanged_they_differ(name, other, data):
    """Else a reduction would say nothing."""
    got, want = gradient(name, {}, data), gradient(other, {}, data)
    assert np.abs(got - want).max() > 1e-4 * np.abs(want).max()


def ends(data):
    """Rows with more than one token, and their last one."""
    length = np.asarray(data.mask_PGT).sum(-1)
    return length > 1, np.maximum(length, 1)[..., None] - 1


def test_a_prefix_mean_goes_from_the_token_to_the_response():
    several, last = ends(batches.draw(METHODS["grpo"]))
    prefix, token, whole = (gradient(name, OPEN) for name in ("pnpo", "grpo", "gspo"))
    assert_same(prefix[..., 0], token[..., 0])
    at_last = lambda x: np.take_along_axis(x, last, axis=-1)
    assert_same(at_last(prefix), at_last(whole))
    assert (at_last(prefix) != at_last(token))[several].any()


def test_a_proxy_one_update_old_is_the_sampler_and_an_old_one_the_policy():
    assert_same(gradient("a3po", {}, lag=1), gradient("grpo", {}))
    assert_same(gradient("a3po", {}, lag=0), gradient("grpo", {}))
    assert_same(gradient("a3po", {}, lag=10**9), gradient("grpo", REINFORCE), 1e-8)


def test_a_strong_balance_is_the_pull_alone():
    """Linear in b: centred rewards at 0, and b times the centred log ratio beyond."""
    at = lambda b: gradient("tba", dict(kl=penalties.Balance(coef=b)))
    rewards = gradient("grpo", REINFORCE | SUMMED)
    assert_same(at(0.0), rewards)
    assert_same(at(1e6) - rewards, 1e6 * (at(1.0) - rewards), 1e-6)


def test_a_penalty_is_linear_in_its_coefficient():
    at = lambda coef: gradient("grpo", dict(kl=penalties.Reverse(coef=coef)))
    assert_same(at(0.0), gradient("grpo", {}))
    assert_same(at(0.4) - at(0.0), 4 * (at(0.1) - at(0.0)), 1e-6)
