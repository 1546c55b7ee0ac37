"""Statistics against NumPy's on the valid slots alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import stats


def sample_std(x, less=1):
    return np.std(x, ddof=less) if len(x) > 1 else 0.0


REFERENCES = {
    "total": (stats.total, np.sum),
    "mean": (stats.mean, np.mean),
    "std": (stats.std, sample_std),
    "population std": (lambda x, v: stats.std(x, v, population=True), np.std),
    "median": (stats.median, np.median),
    "lower median": (
        lambda x, v: stats.median(x, v, lower=True),
        lambda x: np.sort(x)[(len(x) - 1) // 2],
    ),
    "spread": (stats.spread, np.ptp),
    "magnitude": (stats.magnitude, lambda x: np.max(np.abs(x))),
    "count": (lambda x, v: stats.count(v), len),
}

each = pytest.mark.parametrize("name", REFERENCES)


@each
@pytest.mark.parametrize("junk", [77.0, -99.0, np.nan, np.inf, -np.inf])
def test_a_statistic_is_that_of_the_valid_slots(golden, name, junk):
    rng = np.random.default_rng(0)
    x_PG = rng.integers(-4, 5, (40, 7)) / 2
    valid_PG = rng.random((40, 7)) < 0.7
    valid_PG[:, 0] |= ~valid_PG.any(axis=1)
    fn, reference = REFERENCES[name]
    got = golden(fn, np.where(valid_PG, x_PG, junk), valid_PG)
    want = [[reference(x[v])] for x, v in zip(x_PG, valid_PG, strict=True)]
    assert got.dtype == golden.dtype
    golden.check(got, want, digits=12)


@each
def test_an_empty_group_has_statistic_zero(golden, name):
    with jax.debug_nans(True):
        got = golden(REFERENCES[name][0], np.full((2, 3), 5.0), np.zeros((2, 3), bool))
    np.testing.assert_array_equal(got, 0)


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_median_is_numpys_and_antisymmetric(size, dtype):
    rng = np.random.default_rng(size)
    # Coarse values, so that ties are common.
    x_PG = jnp.asarray(rng.integers(-3, 4, (20, size)) / 2, dtype)
    valid_PG = jnp.ones(x_PG.shape, bool)
    got = stats.median(x_PG, valid_PG)[:, 0]
    np.testing.assert_array_equal(got, np.median(np.float32(x_PG), axis=1))
    np.testing.assert_array_equal(stats.median(-x_PG, valid_PG)[:, 0], -got)
    mapped = jax.vmap(stats.median)(x_PG[:, None], valid_PG[:, None])
    np.testing.assert_array_equal(mapped[:, 0, 0], got)


@pytest.mark.parametrize(
    "row, median, lower", [([0, 0, 1, 1], 0.5, 0), ([3, 1, 4, 2], 2.5, 2)]
)
def test_the_two_medians_of_an_even_count(golden, row, median, lower):
    args = np.array([row], float), np.ones((1, 4), bool)
    assert golden(stats.median, *args) == median
    assert golden(stats.median, *args, lower=True) == lower
    assert golden(stats.median, -args[0], args[1]) == -median


def test_a_median_near_the_float_limit_is_finite():
    big = np.full((1, 2), 3e38, np.float32)
    assert stats.median(big, np.ones((1, 2), bool)) == np.float32(3e38)


def test_ordered_puts_valid_values_first():
    x_PG = np.array([[3.0, 9.0, 1.0, 2.0]])
    got = stats.ordered(x_PG, np.array([[True, False, True, True]]))
    assert got.tolist() == [[1, 2, 3, 0]]


@pytest.mark.parametrize(
    "row, equal",
    [
        ([0.1] * 6, True),
        ([0.1 + 0.2, 0.3, 0.3], True),
        ([1e6, 1e6 + 0.5], True),
        ([1e6, 1e6 + 2], False),
        ([0.0, 1e-30], False),
        ([-1.0, 1.0], False),
        ([5.0], True),
    ],
)
def test_values_within_a_millionth_of_their_size_are_equal(golden, row, equal):
    valid_PG = np.ones((1, len(row)), bool)
    assert golden(stats.constant, np.array([row]), valid_PG).tolist() == [[equal]]


def test_wide_is_single_precision_at_least():
    assert stats.wide(jnp.ones(2, jnp.bfloat16)).dtype == jnp.float32
    with jax.enable_x64(True):
        assert stats.wide(jnp.ones(2, jnp.float32)).dtype == jnp.float32
        assert stats.wide(jnp.ones(2, jnp.float64)).dtype == jnp.float64


def test_masks_of_another_type_or_shape_are_refused():
    ones = np.ones((2, 3), np.float32)
    for bad in (ones, np.ones((2, 4), bool), np.ones(3, bool)):
        with pytest.raises(AssertionError):
            stats.mean(ones, bad)
