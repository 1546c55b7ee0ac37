"""Tests for jaxrl/keys.py: one address, one key."""

import itertools

import jax
import numpy as np
import pytest

from jaxrl import keys

# Orders, lengths and zeros matter.
COORDINATES = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (2**31 - 1,)]
ADDRESSES = list(itertools.product((0, 1, 2**32 - 1), keys.PURPOSES, COORDINATES))


@pytest.mark.parametrize(
    "draw",
    [
        lambda *at: tuple(jax.random.key_data(keys.key(at[0], at[1], *at[2])).tolist()),
        lambda *at: keys.generator(at[0], at[1], *at[2]).integers(2**63),
    ],
    ids=["key", "generator"],
)
def test_addresses_give_distinct_draws_that_repeat(draw):
    drawn = [draw(*at) for at in ADDRESSES]
    # NumPy seeds with trailing zeros are one seed; no caller varies its length.
    if isinstance(drawn[0], tuple):
        assert len(set(drawn)) == len(ADDRESSES)
    assert drawn == [draw(*at) for at in ADDRESSES]


def test_traced_and_plain_coordinates_agree():
    traced = jax.jit(lambda a, b: jax.random.key_data(keys.key(3, "sample", a, b)))
    plain = jax.random.key_data(keys.key(3, "sample", 5, 7))
    np.testing.assert_array_equal(traced(5, 7), plain)


def test_an_unknown_purpose_is_refused():
    with pytest.raises(ValueError, match="tuple"):
        keys.key(0, "smaple")
