"""Tests for models/sampling.py: kept sets, the draw's law, and its log-probs."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from models import sampling
from models.sampling import SamplingConfig
from tests import references

draw = jax.jit(sampling.draw, static_argnums=0)
invert = jax.jit(sampling.invert)
truncate = jax.jit(sampling.truncate, static_argnums=0)
ALMOST_1 = np.nextafter(np.float32(1), np.float32(0))


@pytest.mark.parametrize(
    "bad",
    [
        dict(temperature=-1.0),
        dict(temperature=float("nan")),
        dict(temperature=float("inf")),
        dict(top_k=-1),
        dict(top_p=1.1),
        dict(top_p=-0.1),
        dict(min_p=1.5),
    ],
    ids=str,
)
def test_config_rejects_what_is_no_distribution(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        SamplingConfig(**bad)


LADDER = [3.0, 2.0, 1.0, 0.0]
HILL = np.log([0.1, 0.5, 0.3, 0.1])
KEPT = [
    (HILL, 1.0, dict(top_p=0.0), [1]),
    (HILL, 1.0, dict(top_p=1e-9), [1]),
    (HILL, 1.0, dict(top_p=1.0), [0, 1, 2, 3]),
    (HILL, 1.0, dict(top_p=0.6, top_k=3), [1, 2]),
    (HILL, 1.0, dict(top_k=0), [0, 1, 2, 3]),
    (HILL, 1.0, dict(top_k=4), [0, 1, 2, 3]),
    (HILL, 1.0, dict(top_k=5), [0, 1, 2, 3]),
    (HILL, 1.0, dict(top_k=1), [1]),
    (HILL, 1.0, dict(min_p=0.5), [1, 2]),
    (HILL, 1.0, dict(min_p=1.0), [1]),
    (LADDER, 0.5, dict(top_p=0.9), [0, 1]),
    (LADDER, 1.0, dict(top_p=0.9), [0, 1, 2]),
    (LADDER, 2.0, dict(top_p=0.9), [0, 1, 2, 3]),
    (LADDER, 1.0, dict(top_p=0.9, top_k=3), [0, 1]),
    ([1.0, 1.0, 1.0, 0.0], 1.0, dict(top_k=2), [0, 1, 2]),
    ([1.0, 1.0, 1.0, 0.0], 1.0, dict(top_p=0.1), [0, 1, 2]),
    ([0.0, 0.0, 0.0, 0.0], 1.0, dict(min_p=1.0), [0, 1, 2, 3]),
]


@pytest.mark.parametrize("logits, temperature, filters, want", KEPT)
def test_kept_set_worked_cases(logits, temperature, filters, want):
    logits = jnp.asarray([logits], jnp.float32) / temperature
    kept = np.isfinite(truncate(SamplingConfig(**filters), logits)[0])
    np.testing.assert_array_equal(np.flatnonzero(kept), want)


FILTERS = [
    dict(top_k=5),
    dict(top_p=0.8),
    dict(min_p=0.2),
    dict(top_k=7, top_p=0.7, min_p=0.15),
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_draw_follows_the_filtered_law(filters):
    """logq is the reference's log-probability of the token; logp ignores filters."""
    V, rows = 29, 64
    rng = np.random.default_rng(0)
    logits = (2 * rng.normal(size=(rows, V))).astype(np.float32)
    uniform = rng.random(rows).astype(np.float32)
    for temperature in (0.5, 1.0, 2.0):
        token, logq, logp = draw(
            SamplingConfig(**filters), temperature, logits, uniform
        )
        for i, x in enumerate(logits):
            law = references.truncated(x, temperature, **filters)
            np.testing.assert_allclose(logq[i], law[token[i]], atol=2e-6)
            plain = references.log_softmax(np.float64(x) / temperature)
            np.testing.assert_allclose(logp[i], plain[token[i]], atol=1e-5)
            below = np.cumsum(np.exp(law))
            edges = np.r_[0, below][token[i]] - 1e-5, below[token[i]] + 1e-5
            assert edges[0] <= uniform[i] <= edges[1]


def test_log_probs_are_tempered():
    for token, want in enumerate([-0.142932, -2.142932, -4.142932]):
        uniform = jnp.array([[0.5], [0.9], [0.999]])[token]
        got = draw(SamplingConfig(), 0.5, jnp.array([[2.0, 1.0, 0.0]]), uniform)
        assert got[0] == token
        np.testing.assert_allclose(np.ravel(got[1:]), [want, want], atol=1e-5)


@pytest.mark.parametrize("filters", [{}, dict(top_p=0.9)], ids=str)
def test_temperature_zero_is_argmax(filters):
    """With T traced; the point it draws from has log-probability 0."""
    logits = np.random.default_rng(0).normal(size=(50, 9)).astype(np.float32)
    logits[0, :3] = [1, 2, 0.5]
    uniform = jax.random.uniform(jax.random.key(0), 50)
    token, logq, logp = draw(SamplingConfig(**filters), 0.0, logits, uniform)
    np.testing.assert_array_equal(token, np.argmax(logits, -1))
    np.testing.assert_array_equal(logq, 0.0)
    want = [references.log_softmax(np.float64(x)).max() for x in logits]
    np.testing.assert_allclose(logp, want, atol=1e-5)
    token, logq, logp = draw(SamplingConfig(**filters), 1e-6, logits, uniform)
    np.testing.assert_array_equal(token, np.argmax(logits, -1))
    assert np.isfinite([logq, logp]).all()


def test_temperatures_share_one_program():
    run = jax.jit(chex.assert_max_traces(sampling.draw, n=1), static_argnums=0)
    for temperature in (0.0, 0.5, 1.0, 2.0):
        run(SamplingConfig(top_p=0.9), temperature, jnp.ones((1, 4)), jnp.zeros(1))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize("logits", [[2.0, 1.0, 0.0], list(np.sin(np.arange(11)))])
def test_draws_are_softmax_of_tempered_logits(logits, temperature):
    n, logits = 20_000, np.array(logits)
    uniform = jax.random.uniform(jax.random.key(0), n)
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (n, len(logits)))
    want = n * np.exp(references.log_softmax(logits / temperature))
    for token in (
        invert(rows / temperature, uniform),
        draw(SamplingConfig(), temperature, rows, uniform)[0],
    ):
        got = np.bincount(token, minlength=len(logits))
        assert scipy.stats.chisquare(got, want).pvalue > 1e-3


@functools.cache
def sparse_logits(V, rows=512):
    """Half the tokens impossible; each row's cumulative probabilities, float64."""
    rng = np.random.default_rng(V)
    logits = (3 * rng.normal(size=(rows, V))).astype(np.float32)
    hidden = rng.random(logits.shape) < 0.5
    hidden[np.arange(rows), rng.integers(V, size=rows)] = False
    logits[hidden] = -np.inf
    upto = np.cumsum(np.exp(np.float64(logits)), axis=-1)
    return logits, upto / upto[:, -1:]


@pytest.mark.parametrize("V", [1, 2, 3, 29, 64, 1000])
def test_invert_passes_the_uniform(V):
    logits, upto = sparse_logits(V)
    uniform = np.random.default_rng(0).random(len(logits)).astype(np.float32)
    want = np.sum(upto <= uniform[:, None], axis=-1)
    clear = np.min(np.abs(upto - uniform[:, None]), axis=-1) > 1e-5
    token = invert(logits, uniform)
    assert clear.mean() > 0.9 and token.dtype == jnp.int32
    np.testing.assert_array_equal(token[clear], want[clear])


@pytest.mark.parametrize("V", [1, 2, 3, 29, 64, 1000])
def test_invert_never_returns_the_impossible(V):
    """Also where the uniform is 0, all but 1, or at the edge between two tokens."""
    logits, upto = sparse_logits(V)
    rows = np.arange(len(logits))
    edge = upto[rows, np.random.default_rng(0).integers(V, size=len(rows))].astype("f")
    for uniform in (
        np.zeros_like(edge),
        np.full_like(edge, ALMOST_1),
        *(np.nextafter(edge, np.float32(side)) for side in (-1, 2)),
        edge,
    ):
        token = invert(logits, np.clip(uniform, 0, ALMOST_1))
        assert np.isfinite(logits[rows, token]).all()
