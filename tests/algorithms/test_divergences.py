"""Trust regions on probabilities, against worked values and what they reduce to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import divergences, gates
from algorithms import tokens as tokens_lib
from tests.algorithms import rows

# p' and p of three tokens: a large drop of a likely one, a doubling of a rare one.
OLD, NEW = [0.90, 0.01, 0.50], [0.70, 0.02, 0.66]


@pytest.mark.parametrize(
    "part, up, down",
    [
        (gates.Tv(), [1, 1, 0], [0, 1, 1]),
        (gates.Kl(), [1, 1, 0], [0, 1, 1]),
        (gates.Clip(), [1, 0, 0], [0, 1, 1]),
        (gates.Ipo(), [0, 1, 0], [0, 1, 0]),
    ],
    ids=str,
)
def test_tokens_kept_by_hand(golden, part, up, down):
    args = rows.probabilities(NEW, OLD, rows.BOTH)
    np.testing.assert_array_equal(golden(rows.gate, *args, part=part), [up, down])


def test_binary_kl_golden(golden):
    """Sampled token against all others, and the side it counts on."""

    def far(*args):
        return divergences.binary_kl(tokens_lib.of(*args))

    args = rows.probabilities(NEW, OLD, [1.0])
    golden.check(golden(far, *args), [[0.116322, 0.003119, 0.054015]])
    np.testing.assert_array_equal(golden(far, args[1], *args[1:]), 0.0)


def test_binary_kl_at_the_ends(golden):
    """Certainty costs no digits: 1 - p is 2e-7 here, which 1 - exp rounds to 2.4e-7."""

    def far(*args):
        return divergences.binary_kl(tokens_lib.of(*args))

    mask_NT, adv_N = np.ones((1, 1), bool), np.ones(1)
    logp, logo = (np.array([[np.log1p(-x)]]) for x in (2e-7, 4e-7))
    want = (1 - 4e-7) * (logo - logp) + 4e-7 * np.log(4.1e-7 / 2.1e-7)
    got = golden(far, logp, logo, mask_NT, adv_N)
    np.testing.assert_allclose(got, want, rtol=2e-3 if golden.rtol > 1e-9 else 1e-9)
    certain = golden(far, np.zeros((1, 1)), np.array([[-0.5]]), mask_NT, adv_N)
    p = np.exp(-0.5)
    want = p * -0.5 + (1 - p) * np.log((1 - p + 1e-8) / 1e-8)
    np.testing.assert_allclose(certain, [[want]], rtol=1e-5)


@pytest.mark.parametrize("part", [gates.Tv(0.3, 0.3), gates.Kl(0.4, 0.4)], ids=str)
def test_cap_bounds_the_weight_of_rare_tokens(golden, part):
    """0.001 -> 0.1 is a ratio of 100."""
    args = rows.probabilities([0.1, 0.5], [0.001, 0.4], rows.BOTH)
    golden.check(golden(rows.coef, *args, part=part), [[20, 1.25], [-20, -1.25]], 4)


def test_tv_with_bounds_in_ratios_is_a_clip():
    """delta = eps p', one token at a time."""
    logp_NT, logo_NT, mask_NT, adv_N = rows.random(2)
    want_NT = rows.gate(logp_NT, logo_NT, mask_NT, adv_N, gates.Clip(0.2, 0.3))
    for n, t in np.argwhere(mask_NT):
        p = float(np.exp(logo_NT[n, t]))
        part = gates.Tv(low=0.2 * p, high=0.3 * p)
        one = [x[n : n + 1, t : t + 1] for x in (logp_NT, logo_NT, mask_NT)]
        assert rows.gate(*one, adv_N[n : n + 1], part) == want_NT[n, t]


def test_tv_of_everything_is_a_capped_weight():
    args = rows.random(4, scale=2.0)
    want_NT = rows.gate(*args, part=gates.Cap(high=1.5))
    got_NT = rows.gate(*args, part=gates.Tv(1.0, 1.0, cap=1.5))
    np.testing.assert_allclose(got_NT, want_NT, rtol=1e-6)
    assert (want_NT < 1).any()


def test_sides_of_the_bounds_are_not_mixed_up():
    """A > 0 is stopped on its way up only, and by `high` only; A < 0 the mirror."""
    args = rows.probabilities([0.6, 0.4], [0.5, 0.5], rows.BOTH)
    for kind, size in ((gates.Tv, 0.1), (gates.Kl, 0.0204)):
        wide, tight = size * 1.1, size * 0.9
        keep = lambda kind=kind, **bounds: rows.gate(*args, part=kind(**bounds))
        np.testing.assert_array_equal(keep(low=tight, high=wide), [[1, 1], [1, 0]])
        np.testing.assert_array_equal(keep(low=wide, high=tight), [[0, 1], [1, 1]])
        np.testing.assert_array_equal(keep(low=wide, high=wide), 1)


def test_probability_bounds_golden(golden):
    def bounds(*args):
        return gates.Probability().bounds(tokens_lib.of(*args))

    old = [0.9, 0.5, 0.1, 0.01]
    low_NT, high_NT = golden(bounds, *rows.probabilities(old, old, [1.0]))
    golden.check(low_NT, [[0.768742, 0.5, 0.5, 0.5]])
    golden.check(high_NT, [[1.187184, 1.306226, 2, 5]])


def test_probability_bounds_solve_their_equation():
    """|r - 1| p is the bound wherever it can be reached."""
    part = gates.Probability(low=0.01, high=0.02)
    old = np.array([0.9, 0.5, 0.1])
    tokens = tokens_lib.of(*rows.probabilities(old, old, [1.0]))
    low_NT, high_NT = map(np.asarray, part.bounds(tokens))
    np.testing.assert_allclose((1 - low_NT) * low_NT * old, [[0.01] * 3], rtol=1e-4)
    np.testing.assert_allclose((high_NT - 1) * high_NT * old, [[0.02] * 3], rtol=1e-4)
    # A certain token and small bounds: PPO's.
    sure = tokens_lib.of(*rows.probabilities([1.0], [1.0], [1.0]))
    low_11, high_11 = gates.Probability(1e-3, 2e-3).bounds(sure)
    np.testing.assert_allclose([low_11[0, 0], high_11[0, 0]], [0.999, 1.002], atol=5e-6)


def test_probability_gate_by_hand(golden):
    """Rare tokens may grow fivefold, and no token of A < 0 tenfold."""
    old = np.full(4, 0.01)
    args = rows.probabilities(old * [4.9, 5.1, 0.51, 0.49], old, rows.BOTH)
    got_NT = golden(rows.gate, *args, part=gates.Probability())
    np.testing.assert_array_equal(got_NT, [[1, 0, 1, 1], [1, 1, 1, 0]])
    old = np.full(2, 1e-4)
    args = rows.probabilities(old * [9.9, 10.1], old, rows.BOTH)
    got_NT = golden(rows.gate, *args, part=gates.Probability())
    np.testing.assert_array_equal(got_NT, [[1, 0], [1, 0]])
    got_NT = golden(rows.gate, *args, part=gates.Probability(dual=0.0))
    np.testing.assert_array_equal(got_NT, 1)


def test_probability_bounds_of_0_at_probability_0():
    args = [np.full((2, 1), x, np.float32) for x in (-199.0, -200.0)]
    with jax.debug_nans(True):
        part = gates.Probability(low=0.0, high=0.0)
        got_NT = rows.gate(*args, np.ones((2, 1), bool), rows.BOTH, part=part)
    np.testing.assert_array_equal(got_NT, [[0], [1]])


def test_change_of_probability_is_0_off_the_mask():
    tokens = tokens_lib.of(*rows.random())
    assert not jnp.any(divergences.change(tokens)[~tokens.mask_NT])
