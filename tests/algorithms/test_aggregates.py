"""Token weights against printed values, and what splits and padding may not change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.aggregates import AGGREGATES, PromptMean, StepConstant
from tests.algorithms import ragged
from tests.algorithms.ragged import GROUP, MASK, N

every = pytest.mark.parametrize("part", AGGREGATES.values(), ids=AGGREGATES)
LIMIT = 10
KEEP = np.array([1, 1, 1, 0, 1, 1], bool)


def lengths(*n):
    return np.arange(max(n)) < np.array(n)[:, None]


def weigh(part, mask_NT=MASK, keep_N=None, group_N=None, limit=LIMIT):
    keep_N = np.ones(len(mask_NT), bool) if keep_N is None else keep_N
    group_N = np.arange(len(mask_NT)) if group_N is None else jnp.asarray(group_N)
    return part(jnp.asarray(mask_NT), jnp.asarray(keep_N), jnp.asarray(group_N), limit)


@pytest.mark.parametrize(
    "name, group, want",
    [
        ("token_mean", [0, 0, 1, 1], 0.1),
        ("sequence_mean", [0, 0, 1, 1], 0.0),
        ("sequence_sum", [0, 0, 1, 1], 0.5),
        ("constant", [0, 0, 1, 1], 0.05),
        # Rows in pairs: (-2 / 4 + 0 / 16) / 2, and (5 / 9 - 7 / 11) / 2.
        ("prompt_mean", [0, 0, 1, 1], 0.25),
        ("prompt_mean", [3, 1, 3, 1], -(5 / 9 - 7 / 11) / 2),
        ("prompt_mean", [2, 2, 2, 2], 0.1),
        ("prompt_mean", [3, 1, 0, 2], 0.0),
        ("step_constant", [0, 0, 1, 1], 0.01),
    ],
)
def test_losses_that_tell_aggregations_apart(golden, name, group, want):
    """Advantages 1, -1, .5, -.5 over 1, 3, 8 and 8 tokens, at ratio 1."""

    def loss(adv):
        weight_NT = weigh(AGGREGATES[name], lengths(1, 3, 8, 8), group_N=group)
        return -jnp.sum(weight_NT * adv[:, None])

    golden.check(golden(loss, np.array([1.0, -1.0, 0.5, -0.5])), want)


@pytest.mark.parametrize(
    "name, ratio", [("sequence_mean", 10), ("token_mean", 1), ("constant", 1)]
)
def test_length_bias_of_a_failure(name, ratio):
    """A token of 10 against a token of 100."""
    weight_NT = weigh(AGGREGATES[name], lengths(10, 100), limit=200)
    assert weight_NT[0, 0] / weight_NT[1, 0] == pytest.approx(ratio)


def test_tokens_of_unequal_ranks_weigh_alike():
    """Five tokens of loss 1 on one device and one of 4 on another: 9 / 6."""
    weight_NT = weigh(AGGREGATES["token_mean"], lengths(5, 1))
    per_rank = [float(weight_NT[0].sum() * 1.0), float(weight_NT[1].sum() * 4.0)]
    assert sum(per_rank) == pytest.approx(1.5)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_constant_loss_survives_any_split(parts):
    weight_NT = weigh(AGGREGATES["token_mean"], lengths(1, 3, 8, 8))
    sums = [jnp.sum(2.0 * part) for part in jnp.split(weight_NT, parts)]
    assert float(sum(sums)) == pytest.approx(2.0)


@pytest.mark.parametrize("steps", [1.0, 5.0, 12.5])
def test_steps_divide_the_token_mean(golden, steps):
    mask = jnp.asarray(lengths(2, 3))
    keep, group = jnp.ones(2, bool), jnp.arange(2)
    got = golden(
        lambda steps: StepConstant(steps=steps)(mask, keep, group, LIMIT), steps
    )
    golden.check(got, np.where(mask, 1 / (5 * steps), 0))


def test_totals():
    """What a loss of 1 at every token is worth; row 2 is empty, row 3 not kept."""
    total = {
        name: weigh(part, keep_N=KEEP, group_N=GROUP).sum()
        for name, part in AGGREGATES.items()
    }
    tokens, rows = 4 + 7 + 0 + 2 + 5, 5
    want = dict(
        token_mean=1,
        sequence_mean=4 / rows,  # The empty completion counts as one.
        sequence_sum=tokens / rows,
        constant=tokens / (rows * LIMIT),
        prompt_mean=1,
        step_constant=0.1,
    )
    assert total == pytest.approx(want)


def test_a_problem_without_kept_tokens_does_not_count():
    mask = lengths(2, 2, 4, 0)
    keep = np.array([1, 0, 1, 1], bool)
    got = weigh(PromptMean(), mask, keep, [1, 1, 3, 0])
    np.testing.assert_allclose(got, mask * np.array([[1 / 4], [0], [1 / 8], [0]]))


def test_a_prompt_mean_of_one_problem_or_of_one_row_each():
    mask = lengths(1, 3, 8, 8)
    one, each = (weigh(PromptMean(), mask, group_N=g) for g in ([2] * 4, [3, 0, 1, 2]))
    np.testing.assert_allclose(one, weigh(AGGREGATES["token_mean"], mask))
    np.testing.assert_allclose(each, weigh(AGGREGATES["sequence_mean"], mask))


@every
def test_dropped_rows_and_empty_batches_weigh_nothing(part):
    with jax.debug_nans(True), jax.debug_infs(True):
        for keep in (KEEP, ~KEEP, KEEP & False):
            for mask in (MASK, MASK & False):
                for run in (weigh, jax.jit(weigh, static_argnums=(0, 4))):
                    got = run(part, jnp.asarray(mask), keep, GROUP, LIMIT)
                    assert got.dtype == jnp.float32
                    counted = mask & keep[:, None]
                    np.testing.assert_array_equal(got > 0, counted)
                    assert np.isfinite(got).all()


@every
def test_padding_and_the_order_of_rows_change_no_weight(part):
    want = weigh(part, MASK, KEEP, GROUP)
    wide = weigh(part, np.pad(MASK, ((0, 0), (2, 3))), KEEP, GROUP)
    np.testing.assert_array_equal(wide[:, 2:-3], want)
    order = np.array([3, 0, 5, 2, 1, 4])
    moved = weigh(part, MASK[order], KEEP[order], GROUP[order])
    np.testing.assert_allclose(moved, want[order], rtol=1e-6)
    # A row that is not kept is as if it were not there.
    fewer = weigh(part, MASK[KEEP], None, np.array([4, 1, 4, 4, 2]))
    np.testing.assert_allclose(fewer, want[KEEP], rtol=1e-6)


@every
def test_numbers_of_problems_are_names(part):
    other = np.array([0, 3, 0, 3, 0, 5])
    np.testing.assert_allclose(
        weigh(part, MASK, KEEP, other), weigh(part, MASK, KEEP, GROUP), rtol=1e-6
    )


@every
def test_settings_may_be_traced(part):
    ragged.check_settings(part, lambda part: weigh(part, MASK, KEEP, GROUP))


@every
def test_other_shapes_are_refused(part):
    mask, keep, group = jnp.asarray(MASK), jnp.ones(N, bool), jnp.asarray(GROUP)
    for bad in (
        (mask.astype(float), keep, group),
        (mask, keep.astype(int), group),
        (mask[0], keep, group),
        (mask, keep[:, None], group),
    ):
        with pytest.raises(AssertionError):
            part(*bad, LIMIT)
