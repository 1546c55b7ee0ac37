"""Shaped rewards against printed tables, and what they do to advantages."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import groups, scales, shapes, transforms
from algorithms.shapes import SHAPES
from tests.algorithms.scored import NAN, chain


def shaped(golden, shape, reward, length, limit, ended=None):
    """The reward of every slot."""

    def run(reward_PG, length_PG):
        valid_PG = jnp.isfinite(reward_PG)
        ended_PG = None if ended is None else jnp.asarray(ended)
        return shape(
            groups.of(reward_PG, valid_PG, length_PG, ended_PG, limit)
        ).reward_PG

    return golden(run, np.array(reward, float), np.array(length))


# Lengths whose penalty is printed.
PENALTY = [
    ([16000, 16384, 18432, 20480], 20480, [0, 0, -0.5, -1]),
    (
        [79, 80, 81, 90, 100, 101, 150],
        100,
        [0, 0, -0.05, -0.5, -1, -1, -1],
    ),
]


@pytest.mark.parametrize("length, limit, want", PENALTY)
def test_the_overlong_penalty_of_printed_lengths(golden, length, limit, want):
    reward = np.linspace(-1, 2, len(length))[None]
    got = shaped(golden, shapes.Overlong(), reward, [length], limit)
    golden.check(got, reward + want)
    thrice = shaped(golden, shapes.Overlong(factor=3.0), reward, [length], limit)
    golden.check(thrice, reward + 3 * np.array(want))


def test_length_never_pays(golden):
    length = np.arange(1, 130)[None]
    for buffer in (0.0, 0.01, 0.2, 1.0):
        shape = shapes.Overlong(buffer=buffer)
        got = shaped(golden, shape, np.zeros_like(length), length, 100)
        assert (np.diff(got) <= 0).all() and got.min() == -1 and got[0, -1] == -1
        assert (got[0, length[0] <= 100 * (1 - buffer)] == 0).all()


def test_without_a_buffer_only_what_is_over_the_limit_pays(golden):
    part, length = shapes.Overlong(buffer=0.0), [[1, 99, 100, 101]]
    with jax.debug_nans(True):
        got = shaped(golden, part, np.ones((1, 4)), length, 100)
    golden.check(got, [[1, 1, 1, 0]])


def test_a_factor_of_zero_is_off(golden):
    for shape in (shapes.Overlong(factor=0.0), shapes.DifficultyLength(factor=0.0)):
        got = shaped(golden, shape, [[1.0, 0.5]], [[100, 120]], 100, [[False, True]])
        golden.check(got, [[1, 0.5]])


def test_difficulty_spares_successes_only(golden):
    reward, length = [[1.0, 0, 0, 1.5, NAN]], [[90, 90, 80, 95, 100]]
    run = lambda power, ended=None: shaped(
        golden,
        shapes.DifficultyLength(factor=2.0, power=power),
        reward,
        length,
        100,
        ended,
    )
    # Half of the four succeed; 90 is half of the penalty of 2, 95 three quarters.
    golden.check(run(1.0), [[1 - 0.5, -1, 0, 1.5 - 0.75, 0]])
    golden.check(run(2.0), [[1 - 0.25, -1, 0, 1.5 - 0.375, 0]])
    golden.check(run(0.0), [[1 - 1, -1, 0, 1.5 - 1.5, 0]])
    # A success that was cut pays it all, whatever its length.
    cut = [[False, True, False, True, False]]
    golden.check(run(1.0, cut), [[1 - 2, -1, -2, 1.5 - 0.75, 0]])


def test_where_all_succeed_difficulty_is_plain_overlong(golden):
    length = np.array([[70, 85, 99, 100]])
    args = np.ones((1, 4)), length, 100
    golden.check(
        shaped(golden, shapes.DifficultyLength(), *args),
        shaped(golden, shapes.Overlong(), *args),
    )


# ALP.


@pytest.mark.parametrize(
    "correct, reward, adv",
    [
        (
            [1, 1, 1, 1],
            [0.9999, 0.9998, 0.9997, 0.9996],
            [1.152964, 0.384321, -0.384321, -1.152964],
        ),
        (
            [1, 0, 0, 0],
            [1 - 2.5e-5, -5e-5, -7.5e-5, -1e-4],
            [1.499997, -0.499949, -0.499999, -0.500049],
        ),
        (
            [0, 0, 0, 0],
            [-2.5e-5, -5e-5, -7.5e-5, -1e-4],
            [1.126977, 0.375659, -0.375659, -1.126977],
        ),
    ],
)
def test_a_price_per_token_of_printed_groups(golden, correct, reward, adv):
    correct, length = np.array([correct], float), np.array([[1000, 2000, 3000, 4000]])
    part = shapes.SolveRateLength()
    golden.check(shaped(golden, part, correct, length, 4096), [reward], digits=9)
    got = golden(chain, correct, length, shape=part, scale=scales.Std(), limit=4096)
    # What a reward near 1 is rounded by, in units of the group's deviation.
    rounding = np.finfo(golden.dtype).eps * max(correct.max(), 1e-4)
    slack = rounding / np.std(reward, ddof=1)
    np.testing.assert_allclose(got, [adv], atol=0.51e-6 + 4e-6 * (slack > 0) + slack)


def test_the_price_is_the_solve_rates_but_never_nothing(golden):
    reward = [[1.0, 1, 0, NAN], [0, 0, NAN, NAN]]
    length = [[10, 20, 30, 999], [10, 20, 999, 999]]
    got = shaped(golden, shapes.SolveRateLength(beta=0.01), reward, length, 4096)
    want = [[1 - 0.2 / 3, 1 - 0.4 / 3, -0.2, 0], [-0.05, -0.1, 0, 0]]
    golden.check(got, want)


def test_terms_stay_apart_so_that_a_small_one_keeps_its_digits():
    length = np.array([[1000, 2001, 3002, 4003]])
    batch = groups.of(np.ones((1, 4), np.float32), np.ones((1, 4), bool), length)
    terms = shapes.SolveRateLength()(batch).terms_KPG
    np.testing.assert_array_equal(terms[0], 1)
    np.testing.assert_allclose(terms[1], -1e-7 * length, rtol=1e-6)


# HBPO, budgets by slot.

LENGTHS = [300, 512, 1000, 2000, 3000, 4096, 5000]
PAID = {
    512: [0.980785, 0.980785, 0.878563, 0.571203, 0.159244, -0.3584, 0],
    1024: [0.923880, 0.923880, 0.923880, 0.622403, 0.210444, -0.3072, 0],
    2048: [0.707107, 0.707107, 0.707107, 0.707107, 0.312844, -0.2048, 0],
    2560: [0.555570, 0.555570, 0.555570, 0.555570, 0.364044, -0.1536, 0],
}


@pytest.mark.parametrize("budget", PAID)
def test_a_success_is_paid_by_length_and_budget(golden, budget):
    part = shapes.HierarchicalBudget(budgets=(budget / 4096,))
    got = shaped(golden, part, np.ones((1, 7)), [LENGTHS], 4096)
    golden.check(got, [PAID[budget]])
    lost = shaped(golden, part, np.full((1, 7), 0.9), [LENGTHS], 4096)
    golden.check(lost, np.zeros((1, 7)))


@pytest.mark.parametrize("G", [3, 4, 6, 16])
def test_budgets_are_runs_of_slots(golden, G):
    part = shapes.HierarchicalBudget(alpha=0.0)
    got = shaped(golden, part, np.ones((2, G)), np.ones((2, G), int), 4096)
    want = [PAID[round(4096 * part.budgets[g * 4 // G])][0] for g in range(G)]
    golden.check(got, [want, want])


PAIR = dict(
    shape=shapes.HierarchicalBudget(budgets=(0.125, 0.5)),
    scale=scales.Std(eps=0.0),
    limit=4096,
)


def test_two_budgets_of_a_printed_group(golden):
    correct, length = np.array([[1.0, 1, 1, 0]]), np.array([[400, 900, 700, 1500]])
    reward = shaped(golden, PAIR["shape"], correct, length, 4096)
    golden.check(reward, [[0.980785, 0.902226, 0.707107, 0]])
    inter = golden(chain, correct, length, **PAIR)
    golden.check(inter, [[0.745945, 0.570102, 0.133355, -1.449402]])
    push = transforms.BudgetPush(budgets=(0.125, 0.5))
    both = golden(chain, correct, length, transform=push, **PAIR)
    golden.check(both, [[0.706666, 0.530822, -0.220198, -1.802955]])
    golden.check(both - inter, [[-0.039280, -0.039280, -0.353553, -0.353553]])


def test_one_budget_that_nobody_exceeds_leaves_the_order_to_the_task(golden):
    correct = np.array([[1.0, 1, 0, 0, 1], [0, 0, 0, 0, 0]])
    length = np.arange(10).reshape(2, 5) + 50
    given = dict(
        shape=shapes.HierarchicalBudget(budgets=(0.5,)),
        scale=scales.Std(eps=0.0),
        limit=128,
    )
    plain = golden(chain, correct, scale=scales.Std(eps=0.0))
    golden.check(golden(chain, correct, length, **given), plain)
    push = transforms.BudgetPush(budgets=(0.5,))
    got = golden(chain, correct, length, transform=push, **given)
    # -(1 - p) f2(b); the group that solved nothing is pushed down by all of f2(b).
    want = np.array([[-0.4], [-1]]) * math.cos(math.pi / 4)
    golden.check(got - plain, np.broadcast_to(want, (2, 5)))


@pytest.mark.parametrize("kind", [shapes.HierarchicalBudget, transforms.BudgetPush])
def test_impossible_budgets_are_refused(kind):
    for bad in ((), (0.0, 0.5), (-0.3,), (0.5, 1.0)):
        with pytest.raises(ValueError, match="budgets"):
            kind(budgets=bad)


# AEC, and two objectives.


@pytest.mark.parametrize(
    "ratio, want",
    [(0.8, [1, 1, 0, 0]), (1.25, [1, 1, 1, 0]), (1e9, [1, 1, 1, 0]), (0.1, [0] * 4)],
)
def test_effort_rewards_what_is_short_of_the_mean(golden, ratio, want):
    length = [[1000, 2000, 3000, 4000]]
    got = shaped(golden, shapes.Effort(ratio=ratio), [[1.0, 1, 1, 0]], length, 4096)
    golden.check(got, [want])


def test_the_mean_length_is_of_scored_rollouts_and_its_bound_is_allowed(golden):
    reward, length = [[1.0, 1, NAN], [1, NAN, NAN]], [[100, 300, 9999], [77, 1, 1]]
    got = shaped(golden, shapes.Effort(), reward, length, 4096)
    golden.check(got, [[1, 0, 0], [1, 0, 0]])
    # All of one length are at the mean, whatever the rounding of a mean.
    same = np.full((1, 7), 333)
    golden.check(
        shaped(golden, shapes.Effort(), np.ones((1, 7)), same, 999), np.ones((1, 7))
    )


def test_effort_does_not_let_length_pay(golden):
    got = shaped(golden, shapes.Effort(), [[-1.0, -1, 2, 2]], [[1, 9, 1, 9]], 99)
    golden.check(got, [[-1, -1, 2, 0]])


def test_within_the_target_to_the_token(golden):
    # 0.29 * 100 is 28.999999999999996.
    part = shapes.Within(target=0.29, weight=0.25)
    got = shaped(golden, part, [[1.0, 1, 0, 0, NAN]], [[29, 30, 1, 100, 1]], 100)
    golden.check(got, [[1, 0.75, 0.25, 0, 0]])


def test_within_of_weight_zero_is_off_and_one_forgets_the_task(golden):
    args = [[1.0, 0.5, 0]], [[50, 51, 2]], 100
    golden.check(shaped(golden, shapes.Within(weight=0.0), *args), [[1, 0.5, 0]])
    golden.check(shaped(golden, shapes.Within(weight=1.0), *args), [[1, 0, 1]])


def test_within_feeds_the_scale_that_weighs_objectives_apart(golden):
    reward, length = np.array([[1.0, 1, 0, 0]]), np.array([[10, 90, 20, 30]])
    got = golden(
        chain,
        reward,
        length,
        shape=shapes.Within(),
        scale=scales.TermsStd(eps=0.0, population=True),
        limit=100,
    )
    golden.check(got, [[0.803848, -0.267949, -0.267949, -0.267949]])


# All of them.

OFF = [
    shapes.NoShape(),
    shapes.Overlong(factor=0.0),
    shapes.DifficultyLength(factor=0.0),
    shapes.SolveRateLength(beta=0.0),
    shapes.Effort(ratio=1e9),
    shapes.Within(weight=0.0),
]


@pytest.mark.parametrize("shape", OFF, ids=str)
def test_a_shape_that_is_off_leaves_grpo(golden, shape):
    rng = np.random.default_rng(0)
    reward = np.where(rng.random((9, 5)) < 0.2, NAN, rng.random((9, 5)))
    length = rng.integers(1, 200, (9, 5))
    got = golden(chain, reward, length, shape=shape, scale=scales.Std(), limit=150)
    golden.check(got, golden(chain, reward, scale=scales.Std()))


def test_every_shape_has_a_way_to_be_off_or_a_budget():
    assert {type(s) for s in OFF} | {shapes.HierarchicalBudget} == {
        type(s) for s in SHAPES.values()
    }


def test_successes_that_all_keep_their_budget_push_nothing(golden):
    """Their mean is the value of the budget up to rounding, which is no signal."""
    share = dict(budgets=(0.25,))
    got = golden(
        chain,
        np.ones((1, 8)),
        np.full((1, 8), 50),
        shape=shapes.HierarchicalBudget(**share),
        transform=transforms.BudgetPush(**share),
        scale=scales.Std(),
        limit=4096,
    )
    np.testing.assert_array_equal(got, 0)
