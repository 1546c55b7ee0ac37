"""The sampled bonus by exact enumeration, and what callers ask of a bonus."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.entropies import ENTROPIES, Exact, NoEntropy, Sampled
from tests.algorithms import ragged
from tests.algorithms.test_penalties import REFERENCE, SAMPLER, Z, choices

every = pytest.mark.parametrize("part", ENTROPIES.values(), ids=ENTROPIES)
H, GRADIENT = 1.001753, np.array([0.067202, 0.129211, -0.196413])


def expected(z, sampler, part):
    """Value, gradient by z, and variance of the slope, over the sampler's choices."""
    tokens, _ = choices(z, jnp.asarray(REFERENCE, z.dtype), sampler)
    value, slope = (x[:, 0] for x in part(tokens))
    p, q = jax.nn.softmax(z), jnp.exp(tokens.logq_NT[:, 0])
    each = slope[:, None] * (jnp.eye(3) - p[None])
    mean = jnp.sum(q[:, None] * each, axis=0)
    noise = jnp.sum(q[:, None] * jnp.square(each - mean[None]))
    return jnp.sum(q * value), mean, noise


@pytest.mark.parametrize("baseline", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("sampler", [Z, SAMPLER], ids=["on", "off"])
def test_the_sampled_bonus_is_minus_the_entropy(golden, sampler, baseline):
    """In value and gradient, whatever samples and whatever the baseline."""
    part = Sampled(coef=0.5, baseline=baseline)
    value, gradient, _ = golden(expected, Z, sampler, part=part)
    golden.check(value, -0.5 * H)
    golden.check(gradient, -0.5 * GRADIENT, 5)


def test_a_baseline_near_the_entropy_lessens_noise():
    noise = [
        expected(jnp.asarray(Z), jnp.asarray(Z), Sampled(coef=1.0, baseline=b))[2]
        for b in (0.0, 1.0)
    ]
    assert noise[1] < noise[0] / 4


def test_a_token_that_the_policy_has_left_gives_a_finite_slope():
    d = jnp.array([[1e4, -1e4]])
    full, one, zero = jnp.ones((1, 2), bool), jnp.ones(1), jnp.zeros(1, int)
    with jax.debug_nans(True):
        value, slope = Sampled()(ragged.of(d, d, d * 0, full, one, zero))
    assert np.isfinite(value).all() and np.isfinite(slope).all()


@every
@pytest.mark.parametrize("baseline", [0.0, 2.0])
def test_the_mask_decides_what_is_seen(part, baseline):
    if isinstance(part, Sampled):
        part = Sampled(baseline=baseline)
    ragged.check(lambda tokens, _: part(tokens))


@every
def test_settings_may_be_traced(part):
    tokens, _ = ragged.make()
    ragged.check_settings(part, lambda part: part(tokens))


def test_what_callers_branch_on():
    assert [part.active for part in ENTROPIES.values()] == [False, True, True]
    assert [part.exact for part in ENTROPIES.values()] == [False, True, False]
    assert NoEntropy().coef == 0 and Exact(coef=0.3).coef == 0.3
    tokens, _ = ragged.make()
    for part in (NoEntropy(), Exact()):  # The model's entropy is not theirs to add.
        assert not any(x.any() for x in part(tokens))
