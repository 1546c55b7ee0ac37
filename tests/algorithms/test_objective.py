"""Token side of an objective: ratios, gates, weights and the loss they make."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import aggregate, gates, objective, ratios
from algorithms.methods import METHODS

GRPO = METHODS["grpo"]
CLIP = gates.clip(0.2, 0.2)
AGGREGATES = {
    "token_mean": aggregate.token_mean,
    "sequence_mean": aggregate.sequence_mean,
    "sequence_sum": aggregate.sequence_sum,
    "constant": aggregate.constant,
}


def rows_of(lengths, width=None):
    """Masks of completions of these lengths."""
    return np.arange(width or max(lengths))[None] < np.array(lengths)[:, None]


def batch(adv, weight, logo, mask):
    return objective.Batch(
        jnp.asarray(adv, jnp.float32), jnp.asarray(weight), logo, jnp.asarray(mask)
    )


def on_policy_loss(adv, lengths, name, limit=10):
    """Loss at ratio 1 under an aggregation."""
    mask_NT = rows_of(lengths)
    weight_NT = AGGREGATES[name](mask_NT, np.ones(len(lengths), bool), limit)
    logp_NT = jnp.full(mask_NT.shape, -1.0)
    return objective.loss(GRPO, CLIP, logp_NT, batch(adv, weight_NT, logp_NT, mask_NT))[
        0
    ]


@pytest.mark.parametrize(
    "name, want",
    # Gains: (1/4)(1 - 1 + .5 - .5) = 0; (1 - 3 + 4 - 4)/20 = -.1; .. / (4 * 10).
    [("sequence_mean", 0.0), ("token_mean", 0.1), ("constant", 0.05)],
)
def test_aggregations_on_unequal_lengths(name, want):
    got = on_policy_loss([1, -1, 0.5, -0.5], [1, 3, 8, 8], name)
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("name", AGGREGATES)
def test_gradient_of_a_token_is_minus_advantage_times_weight(name):
    adv, mask_NT = np.array([1, -1, 0.5, 0]), rows_of([1, 3, 8, 0])
    weight_NT = AGGREGATES[name](mask_NT, np.array([1, 1, 1, 1], bool), 10)
    logo_NT = jnp.full(mask_NT.shape, -1.0)
    grad_NT = jax.grad(
        lambda logp: objective.loss(
            GRPO, CLIP, logp, batch(adv, weight_NT, logo_NT, mask_NT)
        )[0]
    )(logo_NT)
    np.testing.assert_allclose(grad_NT, -adv[:, None] * weight_NT, rtol=1e-6)
    assert (weight_NT[~mask_NT] == 0).all()


def test_weights_by_hand():
    mask_NT, keep_N = rows_of([2, 4, 1]), np.array([True, True, False])
    by_row = lambda name: AGGREGATES[name](mask_NT, keep_N, 5)[:, 0]
    np.testing.assert_allclose(by_row("token_mean"), [1 / 6, 1 / 6, 0], rtol=1e-6)
    np.testing.assert_allclose(by_row("sequence_mean"), [1 / 4, 1 / 8, 0], rtol=1e-6)
    np.testing.assert_allclose(by_row("sequence_sum"), [1 / 2, 1 / 2, 0], rtol=1e-6)
    np.testing.assert_allclose(by_row("constant"), [1 / 10, 1 / 10, 0], rtol=1e-6)


@pytest.mark.parametrize("name", AGGREGATES)
def test_padding_and_rows_left_out_change_no_weight(name):
    mask_NT, keep_N = rows_of([2, 4]), np.array([True, True])
    want = AGGREGATES[name](mask_NT, keep_N, 5)
    wide = np.pad(mask_NT, ((0, 1), (0, 3)))
    got = AGGREGATES[name](wide, np.array([True, True, False]), 5)
    np.testing.assert_array_equal(got[:2, :4], want)
    assert (got[2] == 0).all()


@pytest.mark.parametrize("name", AGGREGATES)
def test_nothing_to_train_on_gives_zero(name):
    mask_NT = np.zeros((2, 3), bool)
    with jax.debug_nans(True), jax.debug_infs(True):
        weight_NT = AGGREGATES[name](mask_NT, np.array([True, False]), 5)
        value, grad = jax.value_and_grad(
            lambda logp: objective.loss(
                GRPO, CLIP, logp, batch([1, 1], weight_NT, jnp.zeros((2, 3)), mask_NT)
            )[0]
        )(jnp.zeros((2, 3)))
    assert value == 0 and (grad == 0).all()


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_add_up_to_the_batch(parts):
    """A constant loss of 2 a token stays 2 however the rows are split."""
    lengths = [1, 3, 8, 8]
    mask_NT = rows_of(lengths)
    weight_NT = aggregate.token_mean(mask_NT, np.ones(4, bool), 10)
    logp_NT = jnp.full(mask_NT.shape, -1.0)
    total = 0.0
    for rows in np.split(np.arange(4), parts):
        part = batch(
            np.full(len(rows), -2.0), weight_NT[rows], logp_NT[rows], mask_NT[rows]
        )
        total += objective.loss(GRPO, CLIP, logp_NT[rows], part)[0]
    np.testing.assert_allclose(total, 2.0, rtol=1e-6)


def test_tokens_weigh_the_same_whatever_shard_they_are_on():
    """Five tokens of loss 1 on one device, one of loss 4 on another: 9 / 6."""
    mask_NT = rows_of([5, 1])
    weight_NT = aggregate.token_mean(mask_NT, np.ones(2, bool), 10)
    logp_NT = jnp.zeros(mask_NT.shape)
    total = sum(
        objective.loss(
            GRPO,
            CLIP,
            logp_NT[i : i + 1],
            batch([a], weight_NT[i : i + 1], logp_NT[i : i + 1], mask_NT[i : i + 1]),
        )[0]
        for i, a in enumerate([-1.0, -4.0])
    )
    np.testing.assert_allclose(total, 1.5, rtol=1e-6)


@pytest.mark.parametrize("junk", [1e4, -np.inf, np.inf, np.nan, -200.0])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_what_stands_behind_the_mask_is_inert(junk, wrap):
    mask_NT = np.array([[True, False]])
    logo_NT = jnp.array([[-1.0, junk]], jnp.float32)
    weight_NT = jnp.array([[1.0, 0.0]])

    @wrap
    def run(logp_NT):
        return objective.loss(
            GRPO, CLIP, logp_NT, batch([-1.0], weight_NT, logo_NT, mask_NT)
        )

    for behind in (0.0, junk):
        logp_NT = jnp.array([[-1.0, behind]], jnp.float32)
        (value, sums), grad = jax.value_and_grad(run, has_aux=True)(logp_NT)
        assert value == 1.0
        np.testing.assert_array_equal(grad, [[1.0, 0.0]])
        assert all(np.isfinite(v) for v in sums.values())


def test_no_nan_arises_on_the_way():
    mask_NT = np.array([[True, False], [False, False]])
    logo_NT = jnp.array([[-1.0, -jnp.inf], [0.0, 0.0]])
    with jax.debug_nans(True):
        jax.grad(
            lambda logp: objective.loss(
                GRPO,
                CLIP,
                logp,
                batch([1.0, 0.0], jnp.where(mask_NT, 1.0, 0.0), logo_NT, mask_NT),
            )[0]
        )(logo_NT)


@pytest.mark.parametrize("adv", [1.0, -1.0])
def test_a_huge_ratio_is_finite(adv):
    mask_NT = np.ones((1, 1), bool)
    run = lambda logp: objective.loss(
        GRPO, CLIP, logp, batch([adv], jnp.ones((1, 1)), jnp.array([[-100.0]]), mask_NT)
    )[0]
    value, grad = jax.value_and_grad(run)(jnp.zeros((1, 1)))
    assert np.isfinite(value) and np.isfinite(grad).all()
    assert (grad == 0) == (adv > 0)


def test_gate_is_where_ppos_clipped_minimum_has_no_gradient():
    """Binding clips of a worked table, and autodiff through the published form."""
    ratio = np.array([1.5, 1.5, 0.5, 0.5, 1.1])
    adv = np.array([1.0, -1.0, 1.0, -1.0, 1.0])
    log_ratio_NT = jnp.log(ratio)[:, None]
    gate_NT = CLIP(log_ratio_NT, jnp.asarray(adv), jnp.ones((5, 1), bool))
    np.testing.assert_array_equal(gate_NT[:, 0], [0, 1, 1, 0, 1])

    def published(logp_N):
        r_N = jnp.exp(logp_N)
        return -jnp.sum(jnp.minimum(r_N * adv, jnp.clip(r_N, 0.8, 1.2) * adv))

    def ours(logp_N):
        mask_NT = jnp.ones((5, 1), bool)
        rows = batch(adv, jnp.ones((5, 1)), jnp.zeros((5, 1)), mask_NT)
        return objective.loss(GRPO, CLIP, logp_N[:, None], rows)[0]

    at = jnp.log(ratio)
    np.testing.assert_allclose(jax.grad(ours)(at), jax.grad(published)(at), rtol=1e-5)


def test_unequal_clip_bounds_act_on_their_own_side():
    ratio = jnp.array([0.75, 0.85, 1.25, 1.35])
    gate = lambda adv: gates.clip(0.2, 0.3)(
        jnp.log(ratio)[:, None], jnp.full(4, adv), jnp.ones((4, 1), bool)
    )[:, 0].tolist()
    assert gate(1.0) == [1, 1, 1, 0]
    assert gate(-1.0) == [0, 1, 1, 1]
    assert gates.clip(np.inf, np.inf)(
        jnp.log(ratio)[:, None], jnp.ones(4), jnp.ones((4, 1), bool)
    ).all()


def test_zero_loss_is_not_zero_gradient():
    """Centred advantages at ratio 1: the value says nothing of the learning."""
    logits = jnp.zeros((2, 2))
    mask_NT, adv = np.ones((2, 1), bool), [1.0, -1.0]

    def run(logits):
        logp_NT = jax.nn.log_softmax(logits)[:, :1]
        fixed = jax.lax.stop_gradient(logp_NT)
        rows = batch(adv, jnp.full((2, 1), 0.5), fixed, mask_NT)
        return objective.loss(GRPO, CLIP, logp_NT, rows)[0]

    value, grad = jax.value_and_grad(run)(logits)
    assert abs(value) < 1e-7
    # -A (onehot - p) / 2 with p = 1/2.
    np.testing.assert_allclose(grad, [[-0.25, 0.25], [0.25, -0.25]], atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_methods_do_not_recompile_and_agree_eager_and_jitted(name):
    method = METHODS[name]
    rng = np.random.default_rng(0)
    logp, logo = -rng.exponential(size=(2, 6, 4)).astype(np.float32)
    mask_NT = rows_of([4, 2, 0, 3, 1, 4])
    reward_PG = rng.normal(size=(2, 3)).astype(np.float32)

    def whole(logp, logo, reward_PG):
        adv = objective.advantages(method, reward_PG, jnp.isfinite(reward_PG))
        weight = method.aggregate(mask_NT, adv.keep_PG.reshape(-1), 4)
        rows = objective.Batch(adv.adv_PG.reshape(-1), weight, logo, mask_NT)
        return objective.loss(method, method.gate(0.2, 0.2), logp, rows)[0]

    jitted = jax.jit(whole)
    np.testing.assert_allclose(
        jitted(logp, logo, reward_PG), whole(logp, logo, reward_PG), rtol=1e-5
    )
    jitted(logp + 1, logo, reward_PG)
    assert jitted._cache_size() == 1


def test_ratio_is_zero_off_the_mask_and_the_difference_on_it():
    mask_NT = rows_of([1, 3])
    out = ratios.token(jnp.full((2, 3), -1.0), jnp.full((2, 3), -1.5), mask_NT)
    np.testing.assert_array_equal(out, np.where(mask_NT, 0.5, 0.0))
    assert out.dtype == jnp.float32
    for bad in (mask_NT.astype(np.float32), mask_NT[:, :1]):
        with pytest.raises(AssertionError):
            ratios.token(jnp.zeros((2, 3)), jnp.zeros((2, 3)), bad)
