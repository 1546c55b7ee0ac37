"""Penalties by exact enumeration: what each one's expected gradient is.

The policy is a softmax over three tokens, the reference and the sampler others, so
every expectation is a sum of three terms, or of nine for responses of two tokens.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import penalties
from algorithms.penalties import (
    K2,
    K3,
    PENALTIES,
    Balance,
    Forward,
    NoPenalty,
    Reverse,
    RewardK1,
)
from tests.algorithms import ragged
from tests.algorithms.ragged import GROUP, MASK, N

every = pytest.mark.parametrize("part", PENALTIES.values(), ids=PENALTIES)
local = pytest.mark.parametrize("cls", [Reverse, Forward, K2, K3])

Z, REFERENCE = np.array([0.3, -0.2, 0.9]), np.array([0.0, 0.5, 0.1])
SAMPLER = np.log([0.2, 0.5, 0.3])
REVERSE = [-0.025905, -0.192613, 0.218518]
FORWARD = [0.025270, -0.262302, 0.237033]
NAIVE_K3 = [0.189480, -0.636968, 0.447487]


def choices(z, other, sampler):
    """Three rows, each one token: every choice of the policy softmax(z)."""
    logp, logref, logq = (jax.nn.log_softmax(x)[:, None] for x in (z, other, sampler))
    full = jnp.ones((3, 1), bool)
    tokens = ragged.of(logp, logref, logq, full, z * 0, jnp.arange(3))
    return tokens, logref


def expected_gradient(z, other, sampler, part):
    """By z, of the term's slopes at choices weighed by the sampler."""
    tokens, logref = choices(z, other, sampler)
    slope = part(tokens, logref).slope_NT[:, 0]
    p, q = jax.nn.softmax(z), jnp.exp(tokens.logq_NT[:, 0])
    return jnp.sum((q * slope)[:, None] * (jnp.eye(3) - p[None]), axis=0)


def expected_value(z, other, sampler, part):
    tokens, logref = choices(z, other, sampler)
    return jnp.sum(jnp.exp(tokens.logq_NT) * part(tokens, logref).value_NT)


@pytest.mark.parametrize(
    "part, on, off",
    [
        (Reverse(coef=1.0), REVERSE, REVERSE),
        (Forward(coef=1.0), FORWARD, FORWARD),
        (K2(coef=1.0), REVERSE, None),
        (K3(coef=1.0), FORWARD, NAIVE_K3),
        (K3(coef=2.0), [2 * x for x in FORWARD], [2 * x for x in NAIVE_K3]),
        (Reverse(coef=1.0, to_sampler=True), REVERSE, REVERSE),
        (NoPenalty(), [0, 0, 0], [0, 0, 0]),
        (RewardK1(coef=1.0), [0, 0, 0], [0, 0, 0]),
    ],
    ids=str,
)
def test_expected_gradients(golden, part, on, off):
    """Sampler = policy, then another."""
    golden.check(golden(expected_gradient, Z, REFERENCE, Z, part=part), on, 5)
    got = golden(expected_gradient, Z, REFERENCE, SAMPLER, part=part)
    if off is None:
        assert np.abs(got - np.array(on)).max() > 0.05
    else:
        golden.check(got, off, 5)


@pytest.mark.parametrize(
    "part, want",
    [
        (Reverse(coef=1.0), 0.179446),
        (Forward(coef=1.0), 0.201373),
        (Reverse(coef=0.5), 0.089723),
    ],
    ids=str,
)
def test_expected_values_are_the_kl_whatever_samples(golden, part, want):
    for sampler in (Z, SAMPLER):
        golden.check(golden(expected_value, Z, REFERENCE, sampler, part=part), want)


@pytest.mark.parametrize(
    "part, want", [(K2(coef=1.0), 0.167036), (K3(coef=1.0), 0.179446)], ids=str
)
def test_expected_values_on_policy(golden, part, want):
    golden.check(golden(expected_value, Z, REFERENCE, Z, part=part), want)


def test_estimates_of_the_kl(golden):
    """Policy .5 .3 .2, reference .2 .3 .5."""
    p, ref = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    l = np.log(p) - np.log(ref)
    want = {
        "k1": ([0.91629, 0, -0.91629], 0.274887),
        "k2": ([0.41979, 0, 0.41979], 0.293856),
        "k3": ([0.31629, 0, 0.58371], 0.274887),
    }
    for name, (each, mean) in want.items():
        got = golden(getattr(penalties, name), l)
        golden.check(got, each, 5)
        golden.check(p @ got, mean)
    golden.check(p @ golden(penalties.k3, -l), 0.355113)


@local
def test_slopes_are_derivatives_of_values(cls):
    tokens, logref = ragged.make(spread=1.0)
    f = lambda logp_NT: jnp.sum(
        cls(coef=0.7)(tokens._replace(logp_NT=logp_NT), logref).value_NT
    )
    slope = cls(coef=0.7)(tokens, logref).slope_NT
    got = jnp.where(MASK, jax.grad(f)(tokens.logp_NT), 0.0)
    np.testing.assert_allclose(got, slope, rtol=1e-4, atol=1e-5)
    assert np.abs(slope[MASK]).min() > 0


@pytest.mark.parametrize("cls", [Reverse, Forward, K2, K3, Balance])
def test_at_the_reference_there_is_no_pull(cls):
    tokens, _ = ragged.make()
    for x in cls()(tokens, tokens.logp_NT):
        np.testing.assert_allclose(x, 0.0, atol=1e-6)


@local
@pytest.mark.parametrize("far", [25.0, 1e4])
def test_a_policy_that_drifted_far_is_still_pulled_back(cls, far):
    """Towards the reference, finite, with a value that is not negative."""
    d = jnp.array([[far, -far]])
    full, one = jnp.ones((1, 2), bool), jnp.ones(1)
    tokens = ragged.of(d, d * 0, d, full, one, jnp.zeros(1, int))
    with jax.debug_nans(True):
        value, slope = cls(coef=1.0)(tokens, d * 0)
    assert np.isfinite(value).all() and np.isfinite(slope).all()
    assert slope[0, 0] >= 0.5 and slope[0, 1] <= -0.5 and (value > 0).all()


def test_the_pull_to_the_sampler_is_to_the_anchor():
    tokens, logref = ragged.make()
    for cls in (Reverse, Forward, K2, K3, Balance):
        near, far = cls(to_sampler=True), cls()
        want = far(tokens, tokens.logo_NT)
        jax.tree.map(np.testing.assert_array_equal, near(tokens, None), want)
        assert far.needs_reference and not near.needs_reference
        with pytest.raises(ValueError, match=f"{cls().name} needs log-prob"):
            far(tokens, None)
    assert RewardK1().needs_reference and not NoPenalty().needs_reference


def responses(z):
    """Log-probabilities [9, 2] of every response of two tokens; z [4, 3].

    The first token is drawn from softmax(z[0]), the second from softmax(z[1 + first]).
    """
    log = jax.nn.log_softmax(z, axis=-1)
    pairs = np.array(list(itertools.product(range(3), repeat=2)))
    return jnp.stack([log[0, pairs[:, 0]], log[1 + pairs[:, 0], pairs[:, 1]]], axis=1)


TREE, OTHER = np.random.default_rng(0).normal(size=(2, 4, 3))


def score_sum(z, weight_NT):
    """Gradient by z of sum weight logp, the weights held."""
    return jax.grad(lambda z: jnp.sum(weight_NT * responses(z)))(z)


def test_k1_in_the_reward_is_the_kl_of_whole_responses(golden):
    """Which a term of the loss is not: its slope at a token ignores what follows."""

    def both(z, ref):
        logp, logref = responses(z), responses(ref)
        share = jnp.exp(jnp.sum(logp, axis=1))
        mask = jnp.ones(logp.shape, bool)
        cost = RewardK1(coef=0.3).cost(logp, logref, mask)
        got = score_sum(z, (share * cost)[:, None] * jnp.ones_like(logp))
        tokens = ragged.of(logp, logp, logp, mask, share, jnp.arange(9))
        slope = Reverse(coef=0.3)(tokens, logref).slope_NT
        return got, score_sum(z, share[:, None] * slope)

    def kl(z, ref):
        logp, logref = jnp.sum(responses(z), 1), jnp.sum(responses(ref), 1)
        return 0.3 * jnp.sum(jnp.exp(logp) * (logp - logref))

    want = golden(jax.grad(kl), TREE, OTHER)
    in_reward, in_loss = golden(both, TREE, OTHER)
    golden.check(in_reward, want)
    assert np.abs(in_loss[0] - want[0]).max() > 0.01
    golden.check(in_loss[1:], want[1:])


def test_the_cost_in_the_reward_counts_the_mask_only():
    logp, logref, *_ = (np.where(MASK, x, np.nan) for x in ragged.draw())
    want = [0.5 * np.sum((logp - logref)[n, MASK[n]]) for n in range(N)]
    with jax.debug_nans(True):
        cost = RewardK1(coef=0.5).cost
        np.testing.assert_allclose(cost(logp, logref, MASK), want, rtol=1e-5)
        grouped = cost(*(x.reshape(2, 3, -1) for x in (logp, logref, MASK)))
    np.testing.assert_allclose(grouped.reshape(-1), want, rtol=1e-5)
    assert cost(logp, logref, MASK)[2] == 0
    assert RewardK1.in_reward and NoPenalty().cost(logp, logref, MASK) == 0.0


X = np.array([[-5.0, 0.0], [-6.0, 0.0], [-4.0, 0.0], [-5.0, -2.0]])
X0 = np.array([[-5.5, 0.0], [-5.5, 0.0], [-4.5, 0.0], [-4.0, -2.0]])


def test_balance_is_half_of_b_times_the_gradient_of_trajectory_balance(golden):
    """Rewards 1 0 1 0, b = .5: the equivalent advantages, with weight 1 / 4 a row."""

    def both(l, l0):
        mask = jnp.array([[1, 0], [1, 0], [1, 0], [1, 1]], bool)
        adv = jnp.array([0.5, -0.5, 0.5, -0.5], l.dtype)
        tokens = ragged.of(l, l, l, mask, adv, jnp.zeros(4, int))
        term = Balance(coef=0.5)(tokens, l0)
        per_row = jnp.sum(term.value_NT, axis=1)
        return jnp.where(mask, adv[:, None] - term.slope_NT, 0.0), per_row

    def loss(l, l0):
        x, r = jnp.sum(l - l0, axis=1), jnp.array([1.0, 0.0, 1.0, 0.0])
        log_z = jax.lax.stop_gradient(jnp.mean(r / 0.5 - x))
        return jnp.mean(jnp.square(log_z + x - r / 0.5))

    adv, value = golden(both, X, X0)
    want = np.array([0.1875, -0.3125, 0.1875, -0.0625])
    golden.check(adv, [[0.1875, 0], [-0.3125, 0], [0.1875, 0], [-0.0625, -0.0625]])
    gradient = golden(jax.grad(loss), X, X0)[:, 0]
    golden.check(gradient, [-0.1875, 0.3125, -0.1875, 0.0625])
    golden.check(0.5 / 2 * gradient, -want / 4)
    # x is .5 -.5 .5 -1: its mean -.125.
    golden.check(value, 0.25 * np.array([0.625, -0.375, 0.625, -0.875]) ** 2)


def test_balance_rests_where_the_policy_is_the_tilted_reference():
    """log policy = log reference + R / b - log Z: rewards and slopes cancel."""
    *_, logref = ragged.draw()
    reward = np.array([1.0, 0.0, 9.0, 1.0, 0.5, 0.0])
    length = np.maximum(MASK.sum(1), 1)
    logp = logref + (reward / (0.7 * length))[:, None] - np.where(MASK, 0, np.nan)
    tokens = ragged.of(logp, logref, logref)
    slope = Balance(coef=0.7)(tokens, jnp.asarray(logref)).slope_NT
    # Row 2 is empty: groups are rows 0 and 4, 1 and 3, and 5 alone.
    centred = [0.25, -0.5, 0, 0.5, -0.25, 0]
    np.testing.assert_allclose(
        slope, np.where(MASK, np.array(centred)[:, None], 0), atol=1e-5
    )


def test_balance_slopes_are_derivatives_of_its_value():
    """By all tokens of a row alike, the mean held or not: over a group both agree."""
    tokens, logref = ragged.make()
    f = lambda logp_NT: jnp.sum(
        Balance()(tokens._replace(logp_NT=logp_NT), logref).value_NT
    )
    got = jnp.where(MASK, jax.grad(f)(tokens.logp_NT), 0.0)
    np.testing.assert_allclose(got, Balance()(tokens, logref).slope_NT, atol=1e-7)


def test_balance_sees_its_group_only_and_needs_two_rows():
    tokens, logref = ragged.make()
    slope = np.asarray(Balance()(tokens, logref).slope_NT)
    np.testing.assert_array_equal(slope[5], 0.0)
    moved = tokens._replace(logp_NT=tokens.logp_NT.at[0].add(-1.0 * MASK[0]))
    now = np.asarray(Balance()(moved, logref).slope_NT)
    changed = np.abs(now - slope).max(1) > 0
    np.testing.assert_array_equal(changed, (GROUP == 4) & MASK.any(1))
    other = tokens._replace(group_N=jnp.array([0, 3, 0, 3, 0, 5]))
    np.testing.assert_array_equal(Balance()(other, logref).slope_NT, slope)


@every
def test_the_mask_decides_what_is_seen(part):
    ragged.check(part)


@every
def test_settings_may_be_traced(part):
    tokens, logref = ragged.make()
    ragged.check_settings(part, lambda part: part(tokens, logref))


@every
def test_no_gradient_flows_through_a_reference(part):
    tokens, logref = ragged.make()
    f = lambda logref_NT: sum(map(jnp.sum, part(tokens, logref_NT)))
    assert not jax.grad(f)(logref).any()


def test_what_callers_branch_on():
    active = {name for name, part in PENALTIES.items() if part.active}
    assert active == set(PENALTIES) - {"none"}
    assert [n for n, p in PENALTIES.items() if p.in_reward] == ["reward_k1"]
    assert [n for n, p in PENALTIES.items() if p.whole_groups] == ["balance"]
    assert NoPenalty().coef == 0 and not NoPenalty().to_sampler
