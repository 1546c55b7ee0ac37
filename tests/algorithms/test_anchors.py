"""Anchors: the proxy between sampler and trainer, and the age of an average."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import ratios
from algorithms.anchors import ANCHORS, Ewma, Loglinear
from algorithms.corrections import CORRECTIONS
from tests.algorithms import ragged
from tests.algorithms.ragged import MASK

every = pytest.mark.parametrize("part", ANCHORS.values(), ids=ANCHORS)
R = np.array([1.1, 1.3, 1.5, 0.7])


def proxy_ratio(r, lag):
    """Ratio of the policy over the proxy, where it is r over the sampler."""
    logp, logq = jnp.log(r) - 2, r * 0 - 2
    return jnp.exp(logp - Loglinear()(logp, logq, lag))


@pytest.mark.parametrize(
    "lag, want",
    [
        (0, R),
        (1, R),
        (2, [1.048809, 1.140175, 1.224745, 0.836660]),
        (4, R**0.25),
    ],
)
def test_the_proxy_takes_a_root_of_the_ratio(golden, lag, want):
    golden.check(golden(proxy_ratio, R, np.array(lag)), want)


def test_the_proxy_widens_the_clip(golden):
    """At lag 2 a band of [.8, 1.2] is one of [.64, 1.44] on the whole ratio."""
    golden.check(golden(proxy_ratio, np.array([0.64, 1.44]), np.array(2)), [0.8, 1.2])


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_proxy_and_correction_multiply_to_the_whole_ratio(lag):
    logp, _, logq, _ = map(jnp.asarray, ragged.draw())
    tokens = ragged.of(logp, Loglinear()(logp, logq, jnp.int32(lag)), logq)
    plain = CORRECTIONS["token_mask"].__class__(low=0.0, high=1e9)
    got = jnp.exp(ratios.Token()(tokens)) * plain(tokens)
    want = np.where(MASK, np.exp(np.asarray(logp - logq)), 0.0)
    np.testing.assert_allclose(got * MASK, want, rtol=1e-5)
    if lag <= 1:  # The sampler is the anchor.
        np.testing.assert_array_equal(plain(tokens), np.where(MASK, 1.0, 0.0))


@every
def test_only_the_proxy_moves_the_anchor(part):
    logp, logo, *_ = map(jnp.asarray, ragged.draw())
    for lag in (0, 1, 2):
        moved = part(logp, logo, jnp.int32(lag)) != logo
        assert moved.any() == (isinstance(part, Loglinear) and lag > 1)


@pytest.mark.parametrize("window, beta", [(1, 1 / 3), (2, 0.5), (4, 2 / 3), (8, 0.8)])
def test_the_mean_age_of_an_average_is_half_its_window(window, beta):
    part = Ewma(window=float(window))
    assert part.beta == pytest.approx(beta)
    assert part.beta / (1 - part.beta) == pytest.approx(window / 2)
    assert Ewma(window=0.0).beta == 0


def test_where_each_anchor_comes_from():
    source = {name: part.source for name, part in ANCHORS.items()}
    assert source == dict(
        sampler="sampler", rescored="start", ewma="average", loglinear="sampler"
    )


def test_a_lag_may_be_traced():
    logp, logo, *_ = map(jnp.asarray, ragged.draw())
    got = jax.jit(Loglinear())(logp, logo, jnp.int32(3))
    np.testing.assert_allclose(got, logo + 2 / 3 * (logp - logo), rtol=1e-5, atol=1e-6)
