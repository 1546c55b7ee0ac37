"""Ratios against their definitions, against each other, and behind the mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import ratios
from algorithms.ratios import RATIOS, ClippedMean, PrefixMin
from tests.algorithms import ragged
from tests.algorithms.ragged import MASK

PARTS = RATIOS | {"prefix_min_capped": PrefixMin(capped=True)}
every = pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)

D = np.array([0.10, -0.20, 0.05, 0.30])
FAMILY = {
    "none": [1.0] * 4,
    "token": [1.105171, 0.818731, 1.051271, 1.349859],
    "prefix_sum": [1.105171, 0.904837, 0.951229, 1.284025],
    "prefix_mean": [1.105171, 0.951229, 0.983471, 1.064494],
    "prefix_min": [1.105171, 0.904837, 0.860708, 1.105171],
    "prefix_min_capped": [1.105171, 0.818731, 0.860708, 1.105171],
    "sequence_mean": [1.064494] * 4,
    "sequence_token": [1.064494] * 4,
    "sequence_sum": [1.284025] * 4,
}


def test_the_table_names_every_ratio():
    assert {*FAMILY, "clipped_mean"} == set(PARTS)


@pytest.mark.parametrize("name", FAMILY)
def test_ratios_of_one_response(golden, name):
    ratio = lambda d: jnp.exp(PARTS[name](ragged.row(d)))[0]
    golden.check(golden(ratio, D), FAMILY[name])


HOLE = [0.02, -0.01, 0.5, 0.03, 0.0], [1, 1, 0, 1, 1]


@pytest.mark.parametrize(
    "name, d, mask, want",
    [
        # The published example: exponents, then their exponentials.
        ("prefix_mean", HOLE[0], HOLE[1], [0.02, 0.005, 0, 0.013333, 0.01]),
        ("prefix_mean", [0.02, -0.01, 0.03, 0], None, [0.02, 0.005, 0.013333, 0.01]),
        ("sequence_mean", *HOLE, [0.01, 0.01, 0, 0.01, 0.01]),
        ("prefix_sum", *HOLE, [0.02, 0.01, 0, 0.04, 0.04]),
        ("sequence_sum", *HOLE, [0.04, 0.04, 0, 0.04, 0.04]),
        ("prefix_min", *HOLE, [0.02, 0.01, 0, 0.02, -0.01]),
        # The mean comes before any cap: two far tokens may cancel.
        ("sequence_mean", [100.0, -100.0], None, [0, 0]),
        ("sequence_mean", [100.0, -50.0], None, [25, 25]),
        ("prefix_sum", [100.0, -50.0], None, [100, 50]),
        ("sequence_sum", [100.0, -50.0], None, [50, 50]),
    ],
)
def test_exponents(golden, name, d, mask, want):
    got = golden(lambda d: PARTS[name](ragged.row(d, mask=mask))[0], np.float64(d))
    # -2 + 100 + 2 loses what 98 rounds.
    golden.check(got, want, 5)


@pytest.mark.parametrize(
    "d, want", [([0.1, -0.2, 0.3], 1.068939), ([0.002] * 1000, 1.002002)]
)
def test_a_sequence_ratio_is_of_the_mean_not_of_the_sum(golden, d, want):
    ratio = lambda d: jnp.exp(RATIOS["sequence_mean"](ragged.row(d)))[0, -1]
    golden.check(golden(ratio, np.array(d)), want, 5)
    twice = golden(ratio, np.repeat(d, 2))
    golden.check(twice, want, 5)


@pytest.mark.parametrize(
    "adv, want", [(1.0, 0.951229), (-1.0, 1.025315), (0.0, 1.0), (2.0, 0.951229)]
)
def test_a_clipped_mean_is_clipped_by_the_sign_of_the_advantage(golden, adv, want):
    ratio = lambda d: jnp.exp(ClippedMean()(ragged.row(d, adv)))[0]
    golden.check(golden(ratio, np.array([0.5, -0.6, 0.1, -0.1])), [want] * 4)


@pytest.mark.parametrize("adv", [1.0, -1.0])
def test_a_wide_clipped_mean_is_the_sequence_mean(adv):
    tokens = ragged.row(jnp.array([0.5, -0.6, 0.1, -0.1]), adv)
    got = ClippedMean(low=1e9, high=1e9)(tokens)
    np.testing.assert_array_equal(got, RATIOS["sequence_mean"](tokens))
    one_sided = ClippedMean(low=0.4 if adv > 0 else 1e9, high=1e9 if adv > 0 else 0.4)
    np.testing.assert_array_equal(one_sided(tokens), got)


def test_prefix_ratios_lie_between_token_and_sequence():
    """At the first token of a row, and at its last."""
    tokens, _ = ragged.make()
    ratio = {name: np.asarray(part(tokens)) for name, part in PARTS.items()}
    for n in np.flatnonzero(MASK.any(1)):
        first, last = np.flatnonzero(MASK[n])[[0, -1]]
        for name in ("prefix_mean", "prefix_sum", "prefix_min", "prefix_min_capped"):
            assert ratio[name][n, first] == ratio["token"][n, first]
        for prefix, whole in (
            ("prefix_mean", "sequence_mean"),
            ("prefix_sum", "sequence_sum"),
        ):
            np.testing.assert_allclose(
                ratio[prefix][n, last], ratio[whole][n, last], rtol=1e-5, atol=1e-7
            )


@pytest.mark.parametrize("d", [0.1, -0.1])
def test_a_constant_drift_doubles_under_prefix_min(d):
    tokens = ragged.row(jnp.full(4, d), mask=[1, 0, 1, 1])
    np.testing.assert_allclose(PrefixMin()(tokens)[0], [d, 0, 2 * d, 2 * d], rtol=1e-5)
    kept = [d, 0, d + min(d, 0), d + min(d, 0)]
    capped = PrefixMin(capped=True)(tokens)[0]
    np.testing.assert_allclose(capped, kept, rtol=1e-5)


@pytest.mark.parametrize(
    "name, ahead, behind",
    [
        ("none", False, False),
        ("token", False, False),
        ("prefix_mean", False, True),
        ("prefix_sum", False, True),
        ("sequence_mean", True, True),
        ("sequence_sum", True, True),
    ],
)
def test_what_a_ratio_looks_at(name, ahead, behind):
    """By Jacobian, on a row with holes."""
    tokens, _ = ragged.make()
    f = lambda logp_NT: PARTS[name](tokens._replace(logp_NT=logp_NT))
    jac = np.asarray(jax.jacobian(f)(tokens.logp_NT))
    own = np.flatnonzero(MASK[0])
    seen = jac[0][np.ix_(own, [0], own)][:, 0] != 0
    want = np.eye(4, dtype=bool) & (name != "none")
    want |= np.triu(np.ones((4, 4), bool), 1) & ahead
    want |= np.tril(np.ones((4, 4), bool), -1) & behind
    np.testing.assert_array_equal(seen, want)
    assert not jac[0, :, 1:].any()


@every
def test_the_mask_decides_what_is_seen(part):
    ragged.check(lambda tokens, _: part(tokens))


@every
def test_on_policy_every_ratio_is_1(part):
    tokens, _ = ragged.make()
    got = part(tokens._replace(logo_NT=tokens.logp_NT))
    np.testing.assert_array_equal(got, 0.0)


@every
def test_settings_may_be_traced(part):
    tokens, _ = ragged.make(spread=1.0)
    ragged.check_settings(part, lambda part: part(tokens))


def test_whole_responses_have_one_ratio():
    tokens, _ = ragged.make()
    for part in PARTS.values():
        x = np.asarray(part(tokens))
        same = all(np.ptp(x[n, MASK[n]]) == 0 for n in range(6) if MASK[n].any())
        assert same or not part.whole_response
    whole = {name for name, part in RATIOS.items() if part.whole_response}
    assert whole == {"sequence_mean", "sequence_sum"}


@pytest.mark.parametrize("x, want", [(1e4, 20.0), (-1e4, -20.0), (3.0, 3.0)])
def test_exp_is_capped_at_both_ends(x, want):
    np.testing.assert_allclose(ratios.exp(jnp.float32(x)), np.exp(want), rtol=1e-6)
