"""Corrections against printed values, their limits, and the sizes of samples left."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import corrections, ratios
from algorithms.corrections import (
    CORRECTIONS,
    GeometricReject,
    NegativeReject,
    SequenceMask,
    SequenceTruncate,
    SparseReject,
    TokenMask,
    TokenReject,
    TokenTruncate,
    TotalTruncate,
)
from tests.algorithms import ragged
from tests.algorithms.ragged import MASK

every = pytest.mark.parametrize("part", CORRECTIONS.values(), ids=CORRECTIONS)
# Largest finite cap; log ratios stop far below it, so it is none.
NO_CAP = 1e9


def rows(D, part, mask=None, adv=1.0):
    """Weights [N, T] where anchor over sampler is D; the policy is elsewhere."""
    D = jnp.asarray(D)
    mask = jnp.ones(D.shape, bool) if mask is None else jnp.asarray(mask, bool)
    group = jnp.arange(len(D))
    return part(ragged.of(D - 5, D - 2, D * 0 - 2, mask, D[:, 0] * 0 + adv, group))


D = np.array([[-1.0, -0.69, -0.1, 0.1, 1.6, 1.7]])
FACTOR = [0.367879, 0.501576, 0.904837, 1.105171, 4.953032, 5.473947]


@pytest.mark.parametrize(
    "part, want",
    [
        (TokenMask(), [0, *FACTOR[1:5], 0]),
        (TokenMask(low=0.0, high=NO_CAP), FACTOR),
        (TokenMask(low=0.0), [*FACTOR[:5], 0]),
        (TokenTruncate(), [*FACTOR[:4], 2, 2]),
        (TokenTruncate(cap=NO_CAP), FACTOR),
        (TokenReject(), [0, 1, 1, 1, 0, 0]),
        (TokenReject(low=0.0, high=5.0), [1, 1, 1, 1, 1, 0]),
        (SparseReject(), [*FACTOR[:4], 2, 2]),
        (SparseReject(floor=0.4), [0] * 6),
        # The sum is 1.61, the mean 0.268333.
        (SequenceTruncate(), [3] * 6),
        (SequenceTruncate(cap=NO_CAP), [5.002811] * 6),
        (SequenceMask(), [0] * 6),
        (SequenceMask(high=6.0), [5.002811] * 6),
        (GeometricReject(), [0] * 6),
        (GeometricReject(high=1.31), [1] * 6),
        (GeometricReject(high=1.307), [0] * 6),
    ],
    ids=str,
)
def test_weights_of_one_response(golden, part, want):
    golden.check(golden(rows, D, part=part)[0], want)


@pytest.mark.parametrize("part", [TokenTruncate, SequenceTruncate, TokenMask])
def test_weights_without_a_cap_are_finite(golden, part):
    part = part(high=NO_CAP) if part is TokenMask else part(cap=NO_CAP)
    got = golden(lambda D: jnp.log(rows(D, part)), np.array([[100.0]]))
    golden.check(got, [[20.0]])


@pytest.mark.parametrize(
    "part, want",
    [
        (SequenceMask(low=0.5), [0, 0.606531, 1]),
        (SequenceTruncate(), [0.367879, 0.606531, 1]),
        (GeometricReject(low=0.6), [1, 1, 1]),
        (GeometricReject(low=0.61), [0, 0, 1]),
    ],
    ids=str,
)
def test_lower_bounds_and_lengths_of_sequences(golden, part, want):
    """Two tokens, one and none: sums -1, -0.5 and 0, means -0.5, -0.5 and 0."""
    D = np.array([[-0.75, -0.25], [-0.5, 9.0], [9.0, 9.0]])
    mask = [[1, 1], [1, 0], [0, 0]]
    want = np.where(np.array(mask), np.array(want)[:, None], 0.0)
    golden.check(golden(rows, D, part=part, mask=mask), want)


def test_sparse_rollouts_with_an_anomalous_token_are_dropped_whole(golden):
    D = np.array([[0.1, -0.2, 0.05], [0.1, np.log(6.8e-5), 0.05], [0.1, -9.0, 0.05]])
    first = [1.105171, 0.818731, 1.051271]
    golden.check(
        golden(rows, D, part=SparseReject()),
        [first, [0] * 3, [first[0], 0.000123, first[2]]],
    )
    # Behind the mask nothing is anomalous.
    mask = [[1, 1, 1], [1, 0, 1], [1, 1, 1]]
    got = golden(rows, D, part=SparseReject(), mask=mask)
    golden.check(got[1], [1.105171, 0, 1.051271])


@pytest.mark.parametrize(
    "delta, adv, want",
    [(0.5, -1, 0), (0.7, -1, 1), (0.5, 0, 1), (0.5, 1, 1), (0.0, -1, 0)],
)
def test_failures_that_the_policy_has_left_are_dropped(golden, delta, adv, want):
    """mean(logq - logp) is 0.6; the anchor is of no account."""

    def weight(logp, logo, logq):
        mask = jnp.array([[True, True, False]])
        return NegativeReject(delta=delta)(
            ragged.of(logp, logo, logq, mask, logp[:, 0] * 0 + adv, jnp.zeros(1, int))
        )

    logq, logo = np.array([[-1.0, -1.0, 5.0]]), np.array([[-7.0, -7.0, 7.0]])
    got = golden(weight, logq - [[0.4, 0.8, 9.0]], logo, logq)
    golden.check(got, [[want, want, 0]])
    # The sampler is likelier than the policy on average, not the other way round.
    golden.check(golden(weight, logq + [[0.4, 0.8, 9.0]], logo, logq), [[1, 1, 0]])


def test_total_truncation_is_minirls_weight(golden):
    """Sampler .5 .4 .3, anchor .52 .38 .33, policy .6 .3 .5."""

    def product(logp, logo, logq, part):
        one = jnp.ones(1)
        tokens = ragged.of(logp, logo, logq, logp < 0, one, jnp.zeros(1, int))
        ratio = ratios.exp(ratios.Token()(tokens))
        return (ratio * part(tokens))[0], ratio[0]

    p = [0.6, 0.3, 0.5], [0.52, 0.38, 0.33], [0.5, 0.4, 0.3]
    logs = [np.log([x]) for x in p]
    weight, ratio = golden(product, *logs, part=TotalTruncate())
    golden.check(weight, [1.2, 0.75, 1.666667])
    golden.check(ratio, [1.153846, 0.789474, 1.515152])
    low = golden(product, *logs, part=TotalTruncate(cap=1.3))[0]
    golden.check(low, [1.2, 0.75, 1.3])


@every
def test_the_mask_decides_what_is_seen(part):
    ragged.check(lambda tokens, _: part(tokens))


@every
def test_a_sampler_that_is_the_anchor_needs_none(part):
    tokens, _ = ragged.make()
    same = tokens._replace(logo_NT=tokens.logp_NT, logq_NT=tokens.logp_NT)
    np.testing.assert_array_equal(part(same), np.where(MASK, 1.0, 0.0))


@every
def test_only_parts_that_say_so_vary_within_a_response(part):
    tokens, _ = ragged.make(spread=0.5)
    x = np.asarray(part(tokens))
    assert part.varies == any(
        np.ptp(x[n, MASK[n]]) > 0 for n in range(6) if MASK[n].any()
    )


def test_settings_that_their_sources_use():
    assert {str(part) for part in CORRECTIONS.values()} == {
        "none",
        "token_truncate(cap=2.0)",
        "token_mask(low=0.5, high=5.0)",
        "token_reject(low=0.5, high=2.0)",
        "sequence_truncate(cap=3.0)",
        "sequence_mask(low=0.0, high=3.0)",
        "geometric_reject(low=0.99, high=1.01)",
        "sparse_reject(floor=0.0001, cap=2.0)",
        "negative_reject(delta=0.5)",
        "total_truncate(cap=10.0)",
    }


@every
def test_settings_may_be_traced(part):
    tokens, _ = ragged.make(spread=1.0)
    ragged.check_settings(part, lambda part: part(tokens))


@pytest.mark.parametrize(
    "cls, change",
    [
        (TokenMask, dict(high=0.9)),
        (TokenMask, dict(low=1.1)),
        (TokenTruncate, dict(cap=0.0)),
        (SparseReject, dict(floor=2.0)),
    ],
)
def test_bands_without_1_are_refused(cls, change):
    with pytest.raises(ValueError, match="is not in"):
        cls(**change)


W = np.log([[1.0, 3.0, 9.0], [2.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
HOLD = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]], bool)


def test_effective_share_of_tokens_and_of_sequences(golden):
    """Tokens 1 3 2: 36 / (3 x 14). Sequences 3 2: 25 / (2 x 13)."""
    sums = lambda name: lambda w: getattr(corrections, name)(w, jnp.asarray(HOLD))
    tokens = golden(sums("token_weight_sums"), W)
    golden.check(tuple(tokens), [6, 14, 3], 5)
    rows = golden(sums("sequence_weight_sums"), W)
    golden.check(tuple(rows), [5, 13, 2], 5)
    share = lambda x: corrections.effective_share(corrections.WeightSums(*x))
    golden.check(golden(share, np.array([6.0, 14.0, 3.0])), 36 / 42)
    golden.check(golden(share, np.array([5.0, 13.0, 2.0])), 25 / 26)


@pytest.mark.parametrize("name", ["token_weight_sums", "sequence_weight_sums"])
def test_weight_sums_of_parts_add_up(name):
    sums = getattr(corrections, name)
    tokens, _ = ragged.make(np.nan)
    log = jnp.where(MASK, tokens.logo_NT - tokens.logq_NT, jnp.nan)
    whole = sums(log, MASK)
    parts = jax.tree.map(jnp.add, sums(log[:2], MASK[:2]), sums(log[2:], MASK[2:]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), whole, parts)


def test_effective_share_at_its_ends():
    share = lambda log, mask: corrections.effective_share(
        corrections.token_weight_sums(jnp.asarray(log), jnp.asarray(mask))
    )
    with jax.debug_nans(True):
        assert share([0.7] * 4, [True] * 4) == pytest.approx(1)
        assert share([1e4, 0.0, -1e4, 0.0], [True] * 4) == pytest.approx(0.25)
        assert share([-1e4] * 4, [True] * 4) == pytest.approx(1)
        assert share([0.7] * 4, [False] * 4) == 0
