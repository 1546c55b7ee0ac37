"""Log-probabilities to a loss: coefficients, extra terms, and what may not move them.

Ratios, gates, corrections and aggregations are tested in files of their own, here is
what the loss makes of them. Values are hand arithmetic on one or two rows.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    aggregates,
    anchors,
    corrections,
    diagnostics,
    entropies,
    gates,
    objective,
    penalties,
    ratios,
)
from algorithms import tokens as tokens_lib
from algorithms.methods import METHODS

GRPO = METHODS["grpo"]
DECOUPLED = METHODS["decoupled_ppo"]
# Everything that reads a log-probability, at once.
LOADED = dataclasses.replace(
    GRPO,
    anchor=anchors.Loglinear(),
    ratio=ratios.PrefixSum(),
    correction=corrections.NegativeReject(),
    kl=penalties.Reverse(coef=0.1),
    entropy=entropies.Sampled(coef=0.1),
)


def with_parts(method=GRPO, **parts):
    return dataclasses.replace(method, **parts)


def batch(adv, weight, logo, mask, logq=None, logref=None, lag=0):
    """A batch whose sampler is the anchor and whose rows are groups, unless given."""
    logo = jnp.asarray(logo)
    return objective.Batch(
        adv_N=jnp.asarray(adv, logo.dtype),
        weight_NT=jnp.asarray(weight),
        logo_NT=logo,
        logq_NT=logo if logq is None else jnp.asarray(logq),
        mask_NT=jnp.asarray(mask),
        group_N=jnp.arange(len(adv)),
        lag=jnp.int32(lag),
        logref_NT=None if logref is None else jnp.asarray(logref),
    )


def run(method, logp, some, **given):
    """Loss, sums and gradient by logp."""
    f = lambda logp: objective.loss(method, logp, some, **given)
    (value, sums), grad = jax.value_and_grad(f, has_aux=True)(jnp.asarray(logp))
    return value, sums, grad


# --- coefficients -----------------------------------------------------------------


@pytest.mark.parametrize(
    "part, want",
    # Gains: (1/4)(1 - 1 + .5 - .5) = 0; (1 - 3 + 4 - 4)/20 = -.1; .. / (4 * 10).
    [
        (aggregates.SequenceMean(), 0.0),
        (aggregates.TokenMean(), 0.1),
        (aggregates.SequenceSum(), 0.5),
        (aggregates.Constant(), 0.05),
    ],
    ids=str,
)
def test_aggregations_on_unequal_lengths(part, want):
    mask_NT = np.arange(8)[None] < np.array([1, 3, 8, 8])[:, None]
    weight_NT = part(mask_NT, np.ones(4, bool), jnp.arange(4), 10)
    logp_NT = jnp.full(mask_NT.shape, -1.0)
    some = batch([1, -1, 0.5, -0.5], weight_NT, logp_NT, mask_NT)
    np.testing.assert_allclose(run(GRPO, logp_NT, some)[0], want, atol=1e-6)


def test_the_coefficient_is_a_product_of_five():
    """One row: ratios 1.1, 1.5, 0.5 over the anchor, whose weights are 2, 1, 0.5.

    With A = 3 the second token is gated, with A = -3 the third; the correction is cut
    at 1.25. Weights are 0.2, 0.3, 0.5.
    """
    weight, mask = np.array([[0.2, 0.3, 0.5]]), np.ones((1, 3), bool)
    logo = np.full((1, 3), -2.0)
    logp, logq = logo + np.log([[1.1, 1.5, 0.5]]), logo - np.log([[2.0, 1.0, 0.5]])
    method = with_parts(DECOUPLED, correction=corrections.TokenTruncate(cap=1.25))
    up = [0.2 * 1.1 * 1.25 * 3, 0.0, 0.5 * 0.5 * 0.5 * 3]
    down = [-0.2 * 1.1 * 1.25 * 3, -0.3 * 1.5 * 3, 0.0]
    for adv, want in ((3.0, up), (-3.0, down)):
        value, _, grad = run(method, logp, batch([adv], weight, logo, mask, logq))
        np.testing.assert_allclose(grad, [np.negative(want)], rtol=1e-5)
        np.testing.assert_allclose(value, -np.sum(want), rtol=1e-5)


def test_gate_is_where_ppos_clipped_minimum_has_no_gradient():
    """Binding clips of a worked table, and autodiff through the published form."""
    adv, at = np.array([1.0, -1.0, 1.0, -1.0, 1.0]), np.log([1.5, 1.5, 0.5, 0.5, 1.1])
    some = batch(adv, np.ones((5, 1)), np.zeros((5, 1)), np.ones((5, 1), bool))
    gate_NT = objective.gates(GRPO, jnp.asarray(at)[:, None], some)
    np.testing.assert_array_equal(gate_NT[:, 0], [0, 1, 1, 0, 1])

    def published(logp_N):
        r_N = jnp.exp(logp_N)
        return -jnp.sum(jnp.minimum(r_N * adv, jnp.clip(r_N, 0.8, 1.2) * adv))

    want = jax.grad(published)(jnp.asarray(at))
    np.testing.assert_allclose(run(GRPO, at[:, None], some)[2][:, 0], want, rtol=1e-5)


def test_zero_loss_is_not_zero_gradient():
    """Centred advantages at ratio 1: the value says nothing of the learning."""

    def through(logits):
        logp_NT = jax.nn.log_softmax(logits)[:, :1]
        some = batch(
            [1.0, -1.0],
            jnp.full((2, 1), 0.5),
            jax.lax.stop_gradient(logp_NT),
            np.ones((2, 1), bool),
        )
        return objective.loss(GRPO, logp_NT, some)[0]

    value, grad = jax.value_and_grad(through)(jnp.zeros((2, 2)))
    assert abs(value) < 1e-7
    # -A (onehot - p) / 2 with p = 1/2.
    np.testing.assert_allclose(grad, [[-0.25, 0.25], [0.25, -0.25]], atol=1e-6)


@pytest.mark.parametrize("adv", [1.0, -1.0])
@pytest.mark.parametrize("far", [100.0, 1000.0])
def test_a_huge_ratio_is_finite(adv, far):
    some = batch([adv], jnp.ones((1, 1)), [[-far]], np.ones((1, 1), bool))
    with jax.debug_nans(True):
        value, sums, grad = run(GRPO, jnp.zeros((1, 1)), some)
    assert np.isfinite(value) and np.isfinite(grad).all()
    assert (grad == 0) == (adv > 0)
    assert all(np.isfinite(x) for x in jax.tree.leaves(sums))


def test_gates_decided_beforehand_are_the_ones_that_act():
    """Rows in two parts with one budget, as `gates` sees it, and as each part would."""
    rng = np.random.default_rng(0)
    logo = np.float32(-rng.exponential(size=(4, 5)))
    # The second half has hardly moved, and so leaves the first a larger budget.
    drift = rng.normal(size=(4, 5)) * np.array([0.3, 0.3, 0.05, 0.05])[:, None]
    logp = jnp.asarray(np.float32(logo + drift))
    mask, adv = np.ones((4, 5), bool), [1.0, -1.0, 0.5, -0.5]
    some = batch(adv, np.full((4, 5), 0.05), logo, mask)
    method = with_parts(gate=gates.M2Mask(budget=0.02))
    gate_NT = objective.gates(method, logp, some)
    assert 0 < (np.asarray(gate_NT) == 0).sum() < 20
    whole = run(method, logp, some)[2]
    np.testing.assert_array_equal(run(method, logp, some, gate_NT=gate_NT)[2], whole)
    half = jax.tree.map(lambda x: x[:2] if x.ndim else x, some)
    ours = run(method, logp[:2], half, gate_NT=gate_NT[:2])[2]
    np.testing.assert_array_equal(ours, whole[:2])
    assert (run(method, logp[:2], half)[2] != ours).any()
    shut = run(method, logp, some, gate_NT=jnp.zeros((4, 5)))[2]
    np.testing.assert_array_equal(shut, 0)


def test_the_anchor_is_moved_by_lag():
    """Half way at lag 2: a ratio of 1.44 is one of 1.2, whose square root is taken."""
    method = with_parts(gate=gates.NoGate(), anchor=anchors.Loglinear())
    logo = np.full((1, 1), -1.0)
    for lag, want in ((0, 1.44), (1, 1.44), (2, 1.2)):
        some = batch([1.0], np.ones((1, 1)), logo, np.ones((1, 1), bool), lag=lag)
        grad = run(method, logo + np.log(1.44), some)[2]
        np.testing.assert_allclose(grad, [[-want]], rtol=1e-5)
        moved = objective.tokens_of(method, jnp.asarray(logo + np.log(1.44)), some)
        np.testing.assert_allclose(
            moved.logp_NT - moved.logo_NT, np.log([[want]]), 1e-5
        )


# --- terms beside the policy's ----------------------------------------------------

LOGP, LOGREF = np.array([[-1.0, -2.0]]), np.array([[-1.5, -1.0]])
WEIGHT = np.array([[0.25, 0.75]])


def terms_batch(adv=0.0, logref=LOGREF):
    """One row without advantage, so that only extra terms are left."""
    return batch([adv], WEIGHT, LOGP, np.ones((1, 2), bool), logref=logref)


def test_a_penalty_adds_its_value_and_slope():
    """l = .5, -1: k2 is l^2 / 2 with slope l, both times 0.1 and the weights."""
    method = with_parts(kl=penalties.K2(coef=0.1))
    value, sums, grad = run(method, LOGP, terms_batch())
    want = 0.1 * (0.25 * 0.125 + 0.75 * 0.5)
    np.testing.assert_allclose(value, want, rtol=1e-6)
    np.testing.assert_allclose(sums["kl"], want, rtol=1e-6)
    np.testing.assert_allclose(grad, [[0.1 * 0.25 * 0.5, -0.1 * 0.75]], rtol=1e-5)
    # It is not multiplied by what the policy term is.
    with_policy = run(method, LOGP, terms_batch(adv=2.0))
    np.testing.assert_allclose(with_policy[0] - value, -2.0, rtol=1e-6)
    np.testing.assert_allclose(with_policy[2] - grad, -2.0 * WEIGHT, rtol=1e-5)


def test_a_penalty_in_the_reward_is_none_in_the_loss():
    method = with_parts(kl=penalties.RewardK1(coef=0.1))
    value, sums, grad = run(method, LOGP, terms_batch())
    assert value == 0 and not grad.any() and "kl" not in sums


def test_a_reference_is_measured_whether_or_not_it_pulls():
    """k1 = .25 (.5) - .75; k3 = exp(-l) - 1 + l at l = .5, -1."""
    k3 = 0.25 * (np.exp(-0.5) - 0.5) + 0.75 * (np.exp(1.0) - 2.0)
    for method in (GRPO, with_parts(kl=penalties.K3())):
        sums = run(method, LOGP, terms_batch())[1]
        np.testing.assert_allclose(sums["k1_reference"], -0.625, rtol=1e-6)
        np.testing.assert_allclose(sums["k3_reference"], k3, rtol=1e-5)
    assert "kl" not in run(GRPO, LOGP, terms_batch())[1]
    assert "k3_reference" not in run(GRPO, LOGP, terms_batch(logref=None))[1]
    with pytest.raises(ValueError, match="k3 needs log-probabilities of a reference"):
        run(with_parts(kl=penalties.K3()), LOGP, terms_batch(logref=None))


def test_an_exact_bonus_is_the_entropy_times_its_coefficient():
    method = with_parts(entropy=entropies.Exact(coef=0.1))
    entropy = jnp.array([[2.0, 1.0]])
    loss = lambda h: objective.loss(method, jnp.asarray(LOGP), terms_batch(), h)
    (value, sums), grad = jax.value_and_grad(loss, has_aux=True)(entropy)
    np.testing.assert_allclose(sums["full_entropy"], 0.25 * 2 + 0.75, rtol=1e-6)
    np.testing.assert_allclose(value, -0.1 * 1.25, rtol=1e-6)
    np.testing.assert_allclose(grad, -0.1 * WEIGHT, rtol=1e-6)
    assert "bonus" not in sums
    # Without the part it is a figure and no more.
    value, sums, _ = run(GRPO, LOGP, terms_batch(), entropy_NT=entropy)
    assert value == 0 and sums["full_entropy"] == 1.25


def test_a_sampled_bonus_is_a_term():
    """On policy: value coef logp, slope coef (logp + b)."""
    method = with_parts(entropy=entropies.Sampled(coef=0.1, baseline=1.5))
    value, sums, grad = run(method, LOGP, terms_batch())
    np.testing.assert_allclose(value, 0.1 * (-0.25 - 1.5), rtol=1e-6)
    np.testing.assert_allclose(sums["bonus"], value, rtol=1e-6)
    np.testing.assert_allclose(grad, 0.1 * WEIGHT * (LOGP + 1.5), rtol=1e-5)


# --- tokens -----------------------------------------------------------------------


def test_places_and_lengths_count_completion_tokens_only():
    mask_NT = np.array([[0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)
    places = tokens_lib.index(mask_NT)
    want = [[1, 1, 2, 2, 3], [1, 1, 1, 1, 1], [1, 2, 3, 4, 5]]
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(tokens_lib.length(mask_NT), [[3], [1], [5]])


def test_what_tokens_are_unless_given():
    """The sampler is the anchor, and every row a group."""
    logp, logo = np.full((2, 3), -1.0), np.full((2, 3), -2.0)
    mask = np.ones((2, 3), bool)
    tokens = tokens_lib.of(logp, logo, mask, np.ones(2))
    np.testing.assert_array_equal(tokens.logq_NT, logo)
    assert tokens.group_N.tolist() == [0, 1]
    given = tokens_lib.of(logp, logo, mask, np.ones(2), logp, jnp.array([1, 1]))
    np.testing.assert_array_equal(given.logq_NT, logp)
    assert given.group_N.tolist() == [1, 1]
    for bad in (mask.astype(np.float32), mask[:, :1], mask[:1], mask[0]):
        with pytest.raises(AssertionError):
            tokens_lib.of(logp, logo, bad, np.ones(2))
    for adv in (np.ones(3), np.ones((2, 1))):
        with pytest.raises(AssertionError):
            tokens_lib.of(logp, logo, mask, adv)


# --- what may not matter ----------------------------------------------------------


@pytest.mark.parametrize("junk", [1e4, -np.inf, np.inf, np.nan, -200.0])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_what_stands_behind_the_mask_is_inert(junk, wrap):
    method = dataclasses.replace(LOADED, entropy=entropies.Exact(coef=0.1))
    mask = np.array([[True, False], [False, False]])
    weight = jnp.asarray(np.where(mask, 1.0, 0.0), jnp.float32)
    fill = lambda x, behind: jnp.asarray(np.where(mask, x, behind), jnp.float32)

    @wrap
    def both(logp, entropy, logo, logq, logref):
        some = batch([-1.0, 1.0], weight, logo, mask, logq, logref, lag=2)
        f = lambda *x: objective.loss(method, x[0], some, entropy_NT=x[1])
        return jax.value_and_grad(f, argnums=(0, 1), has_aux=True)(logp, entropy)

    values = (-1.0, 2.0, -1.2, -1.1, -1.4)
    want, grads = both(*(fill(x, 0.0) for x in values))
    assert np.isfinite(want[0]) and want[0] != 0
    for one in range(5):
        dirty = [fill(x, junk if i == one else 0.0) for i, x in enumerate(values)]
        with jax.debug_nans(not np.isnan(junk)):
            got = both(*dirty)
        jax.tree.map(np.testing.assert_array_equal, got, (want, grads))
    for grad in grads:
        assert (np.asarray(grad)[~mask] == 0).all() and grad[0, 0] != 0


@pytest.mark.parametrize("method", [GRPO, LOADED, METHODS["ctpo"]], ids=["", "+", "c"])
def test_nothing_to_train_on_gives_zero(method):
    mask = np.zeros((2, 3), bool)
    keep = np.array([True, False])
    with jax.debug_nans(True):
        weight = method.aggregate(mask, keep, jnp.arange(2), 5)
        zero = jnp.zeros((2, 3))
        some = batch([1, 1], weight, zero, mask, logref=zero)
        value, sums, grad = run(method, zero, some)
        figures = diagnostics.summarise(sums)
    assert value == 0 and (grad == 0).all()
    assert all(x == 0 for x in figures.values())


@pytest.mark.parametrize("method", [GRPO, LOADED, METHODS["vespo"], METHODS["cppo"]])
def test_only_each_tokens_own_score_is_differentiated(method):
    """No gradient by anchor, sampler, reference or advantage; none of second order."""
    rng = np.random.default_rng(0)
    logp, logo, logq, logref = jnp.float32(-rng.exponential(size=(4, 2, 3)))
    some = batch([1.0, -0.5], np.full((2, 3), 0.2), logo, np.ones((2, 3), bool))
    fixed = (some.adv_N, logo, logq, logref)

    def value(logp, fixed):
        adv, logo, logq, logref = fixed
        now = some._replace(adv_N=adv, logo_NT=logo, logq_NT=logq, logref_NT=logref)
        now = now._replace(lag=jnp.int32(3))
        return objective.loss(method, logp, now)[0]

    assert jax.grad(value)(logp, fixed).any()
    for grad in jax.grad(value, argnums=1)(logp, fixed):
        np.testing.assert_array_equal(grad, 0)
    slope = lambda logp: jnp.sum(jnp.sin(jax.grad(value)(logp, fixed)))
    np.testing.assert_array_equal(jax.grad(slope)(logp), 0)


def test_half_precision_is_widened_before_anything_is_computed():
    """exp(2^-7) = 1.007843 is 1.0078125 to bfloat16, whose next number is 1.015625."""
    logp = jnp.full((1, 64), -1.0, jnp.bfloat16)
    logo = jnp.full((1, 64), -1.0078125, jnp.bfloat16)
    some = batch([1.0], np.full((1, 64), 1 / 64), logo, np.ones((1, 64), bool))
    value, sums, grad = run(GRPO, logp, some)
    np.testing.assert_allclose(value, -np.exp(2.0**-7), rtol=1e-6)
    assert value.dtype == jnp.float32 and grad.dtype == jnp.bfloat16
    np.testing.assert_allclose(sums["log_ratio"], 2.0**-7, rtol=1e-6)
    tokens = objective.tokens_of(GRPO, logp, some)
    for x in (tokens.logp_NT, tokens.logo_NT, tokens.logq_NT, tokens.adv_N):
        assert x.dtype == jnp.float32


@pytest.mark.parametrize("field", ["weight_NT", "mask_NT", "logq_NT", "adv_N"])
def test_arrays_of_another_shape_are_refused(field):
    good = batch([1.0, 1.0], np.ones((2, 3)), np.zeros((2, 3)), np.ones((2, 3), bool))
    short = good._replace(**{field: getattr(good, field)[:1]})
    with pytest.raises(AssertionError):
        objective.loss(GRPO, jnp.zeros((2, 3)), short)
