"""Failures that reinforcement learning of language models has met, with their numbers.

Each test is a symptom that somebody had, on the input that showed it and on others of
its kind. tests/README.md says which test holds which failure.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np
import pytest

from algorithms import (
    aggregates,
    allocation,
    diagnostics,
    gates,
    groups,
    objective,
    ratios,
    scales,
    shapes,
)
from algorithms.aggregates import AGGREGATES
from algorithms.method import Method
from algorithms.methods import METHODS
from algorithms.ratios import RATIOS
from tests.algorithms import batches, ragged
from tests.algorithms.scored import NAN

GRPO, GSPO = METHODS["grpo"], METHODS["gspo"]
every_method = pytest.mark.parametrize("name", METHODS)


def advantages(method, reward_PG, **given):
    """Advantages of rewards, of which NaN ones are not scored; all clusters unlike."""
    reward_PG = jnp.asarray(reward_PG)
    if method.transform.needs_clusters:
        slots = jnp.arange(reward_PG.shape[1])
        given["cluster_PG"] = jnp.broadcast_to(slots, reward_PG.shape)
    return objective.advantages(
        method, groups.of(reward_PG, jnp.isfinite(reward_PG), **given)
    )


def lengths(*n):
    return np.arange(max(n)) < np.array(n)[:, None]


def mesh_of(shape, *axes):
    """Axes of an array over so many devices, each its own."""
    kinds = (AxisType.Auto,) * len(axes)
    devices = jax.devices()[: np.prod(shape)]
    mesh = jax.make_mesh(shape, axes, axis_types=kinds, devices=devices)
    return NamedSharding(mesh, PartitionSpec(*axes))


def update(method, adv, logp_NT, logo_NT, mask_NT, parts=1, limit=10):
    """Loss, metric sums and gradient by logp, summed over parts of the rows."""
    N = len(adv)
    mask_NT, keep_N = jnp.asarray(mask_NT), jnp.ones(N, bool)
    batch = objective.Batch(
        adv_N=jnp.asarray(adv, jnp.float32),
        weight_NT=method.aggregate(mask_NT, keep_N, jnp.arange(N), limit),
        logo_NT=jnp.asarray(logo_NT, jnp.float32),
        logq_NT=jnp.asarray(logo_NT, jnp.float32),
        mask_NT=mask_NT,
        group_N=jnp.arange(N),
        lag=jnp.int32(0),
    )

    def part(logp_NT, rows):
        some = jax.tree.map(lambda x: x if x.ndim == 0 else x[rows], batch)
        some = some._replace(group_N=some.group_N - some.group_N[0])
        return objective.loss(method, logp_NT[rows], some)

    def whole(logp_NT):
        out = [part(logp_NT, rows) for rows in np.split(np.arange(N), parts)]
        return jax.tree.map(lambda *x: sum(x[1:], x[0]), *out)

    logp_NT = jnp.asarray(logp_NT, jnp.float32)
    (value, sums), grad_NT = jax.value_and_grad(whole, has_aux=True)(logp_NT)
    return value, sums, grad_NT


def at_ratio_1(method, adv, mask_NT, **how):
    logp_NT = np.full(np.shape(mask_NT), -1.0)
    return update(method, adv, logp_NT, logp_NT, mask_NT, **how)


# --- rewards to advantages --------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-8, 1e-6, 1e-4])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "row", [[0.1] * 6, [0.3] * 10, [0.7] * 10, [1.0] * 8, [-1e-3] * 7, [1e5] * 3]
)
def test_a_small_epsilon_makes_no_signal_of_equal_rewards(row, dtype, eps):
    method = dataclasses.replace(GRPO, scale=scales.Std(eps=eps))
    out = advantages(method, jnp.asarray([row], dtype))
    np.testing.assert_array_equal(out.adv_PG, 0)
    assert out.constant_P.all() and out.silent_P.all()


@every_method
def test_a_group_of_one_has_no_advantage_alone_or_beside_others(name):
    """Where a reward is compared with others of its group."""
    method = METHODS[name]
    if method.by_slot:
        pytest.skip("a slot of this method is compared with its own budget")
    both = advantages(method, [[1.0, 0], [1.0, NAN]])
    assert np.isfinite(both.adv_PG).all()
    assert both.constant_P.tolist() == [False, True]
    if method.baseline.across or not method.baseline.needs_group:
        assert both.adv_PG[1, 0] != 0
        return
    assert both.adv_PG[1].tolist() == [0, 0] and both.silent_P[1]
    alone = advantages(method, [[2.1756]])
    assert alone.adv_PG.tolist() == [[0]] and alone.constant_P.all()
    if not isinstance(method.scale, scales.BatchStd):
        want = advantages(method, [[1.0, 0]])
        np.testing.assert_array_equal(both.adv_PG[0], want.adv_PG[0])


def test_advantages_are_normalised_once():
    """Whitening the groups' own again would give 1.620 and .935."""
    rows = [[1.0, 0, 0, 0], [1, 1, 0, 0]]
    two = advantages(GRPO, rows).adv_PG
    half = np.sqrt(3) / 2
    want = [[1.5, -0.5, -0.5, -0.5], [half, half, -half, -half]]
    np.testing.assert_allclose(two, want, rtol=1e-5)
    for third in ([9.0, -4, 0, 0], [NAN] * 4, [1.0] * 4):
        three = advantages(GRPO, [*rows, third]).adv_PG
        np.testing.assert_array_equal(three[:2], two)


@every_method
@pytest.mark.parametrize("shape", [(2, 1), (2, 4), (1, 2)])
def test_statistics_are_a_groups_and_not_a_devices(name, shape):
    """Eight rollouts in groups of four, also with two or one of a group on a device."""
    rows = jnp.array([[1.0, 0, 0, 0], [1, 1, 0, 0]])
    run = jax.jit(lambda r: advantages(METHODS[name], r).adv_PG)
    spread = jax.device_put(rows, mesh_of(shape, "problems", "slots"))
    assert len(spread.sharding.device_set) == np.prod(shape)
    got = run(spread)
    np.testing.assert_allclose(got, run(rows), rtol=1e-6, atol=1e-7)
    if name == "dr_grpo":
        want = [[0.75, -0.25, -0.25, -0.25], [0.5, 0.5, -0.5, -0.5]]
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_length_penalty_lies_below_the_limit_and_is_paid_once():
    """Limit and window cannot change places, and no token pays again."""
    length_PG = np.array([[79, 80, 81, 90, 100, 101, 150]])
    bare = dict(scale=scales.NoScale(), gate=gates.NoGate())
    method = dataclasses.replace(METHODS["dapo"], **bare)
    given = dict(length_PG=length_PG, limit=100)
    adv = advantages(method, np.ones((1, 7), np.float32), **given).adv_PG
    # The rewards are equal; what is left is the penalty less its mean, dropped here.
    assert not adv.any()
    mixed = np.ones((1, 7), np.float32)
    mixed[0, 0] = 0
    adv = advantages(method, mixed, **given).adv_PG[0]
    paid = np.array([0, 0, -0.05, -0.5, -1, -1, -1])
    want = mixed[0] + paid
    np.testing.assert_allclose(adv, want - want.mean(), atol=1e-6)
    for buffer in (20.0, 1.01, -0.2):
        with pytest.raises(ValueError, match="overlong.buffer"):
            shapes.Overlong(buffer=buffer)


@pytest.mark.parametrize("name", ["mc_grpo", "mc_dapo"])
@pytest.mark.parametrize("G", [3, 5])
def test_a_median_deviation_of_zero_enlarges_no_step(name, G):
    """All 0/1 groups, on policy: within ten times the gradient of the mean baseline."""

    def step(method, row):
        adv = advantages(method, [row])
        mask = lengths(*[4] * G) & np.asarray(adv.keep_PG[0])[:, None]
        return np.linalg.norm(at_ratio_1(method, adv.adv_PG[0], mask)[2])

    plain = METHODS["grpo" if name == "mc_grpo" else "dapo"]
    for row in itertools.product([0.0, 1.0], repeat=G):
        got, want = step(METHODS[name], row), step(plain, row)
        assert got <= 10 * want and (got > 0) == (want > 0)


NEXT = np.nextafter(np.float32([0.3, 1e5]), np.float32(np.inf))


@pytest.mark.parametrize(
    "row, says",
    [
        ([0.3, NEXT[0], 0.3], False),
        ([1e5, NEXT[1], 1e5], False),
        ([-0.3, -NEXT[0]], False),
        ([1e-8, 2e-8], True),
        ([1e5, 1e5 + 1], True),
        # A slot without a score is neither the largest nor the smallest.
        ([-2.0, NAN, -2.0], False),
        ([2.0, NAN, 2.0], False),
        ([-2.0, NAN, -1.0], True),
    ],
)
def test_sampling_again_and_advantages_agree_on_what_says_something(row, says):
    """Rounding is no reason to stop drawing, whatever the size of rewards."""
    reward_PG = np.array([row], np.float32)
    assert len(set(reward_PG[0].tolist())) > 1
    assert allocation.informative(reward_PG).tolist() == [says]
    assert advantages(GRPO, reward_PG).silent_P.tolist() == [not says]


@pytest.mark.parametrize("name", ["dapo", "mc_dapo"])
@pytest.mark.parametrize("said", range(4))
def test_one_informative_group_gives_the_gradient_of_itself(name, said):
    """Whether the other groups are too easy or too hard."""
    method = METHODS[name]
    data = batches.draw(method, seed=2)
    reward_PG = np.tile([[0.0], [1.0], [1.0], [0.0]], data.reward_PG.shape[1])
    reward_PG[said] = data.reward_PG[0]
    data = data._replace(reward_PG=reward_PG)
    value, _, grad = batches.evaluate(method, batches.cast(data, jnp.float32))
    alone = jax.tree.map(lambda x: x[said : said + 1], data)
    want = batches.evaluate(method, batches.cast(alone, jnp.float32))
    assert np.abs(want[2]).max() > 0
    np.testing.assert_allclose(value, want[0], rtol=1e-5)
    np.testing.assert_allclose(grad[said], want[2][0], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(np.delete(grad, said, axis=0), 0)


# --- log-probabilities to a loss --------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize(
    "name, want",
    [("token_mean", 0.1), ("sequence_mean", 0.0), ("constant", 0.05)],
)
def test_accumulation_changes_neither_loss_nor_gradient(name, want, parts):
    """Lengths 1, 3 | 8, 8: a mean of the halves' token means would be 0.25."""
    method = dataclasses.replace(GRPO, aggregate=AGGREGATES[name])
    adv, mask = np.array([1, -1, 0.5, -0.5]), lengths(1, 3, 8, 8)
    value, _, grad = at_ratio_1(method, adv, mask, parts=parts)
    np.testing.assert_allclose(value, want, atol=1e-6)
    _, _, whole = at_ratio_1(method, adv, mask)
    np.testing.assert_allclose(grad, whole, rtol=1e-6)
    weight = {
        "token_mean": np.full(4, 1 / 20),
        "sequence_mean": 1 / (4 * np.array([1, 3, 8, 8])),
        "constant": np.full(4, 1 / 40),
    }[name]
    np.testing.assert_allclose(grad, mask * (-adv * weight)[:, None], rtol=1e-6)
    constant, _, _ = at_ratio_1(METHODS["dapo"], [-2.0] * 4, mask, parts=parts)
    np.testing.assert_allclose(constant, 2.0, rtol=1e-6)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_tokens_weigh_the_same_on_a_device_with_few_of_them(devices):
    """Five tokens of loss 1 on one, one of loss 4 on the next, none on the others."""
    n = [5, 1, 0, 0]
    mask, adv = lengths(*n), jnp.array([-1.0, -4.0, 7.0, -7.0])
    rows = mesh_of((devices,), "rows")

    @jax.jit
    def run(adv, mask):
        weight_NT = aggregates.TokenMean()(mask, jnp.ones(4, bool), jnp.arange(4), 10)
        zero_NT = jnp.zeros(mask.shape)
        batch = objective.Batch(
            adv, weight_NT, zero_NT, zero_NT, mask, jnp.arange(4), jnp.int32(0)
        )
        loss = lambda logp_NT: objective.loss(METHODS["dapo"], logp_NT, batch)[0]
        return jax.value_and_grad(loss)(zero_NT)

    value, grad = run(*jax.device_put((adv, jnp.asarray(mask)), rows))
    np.testing.assert_allclose(value, 1.5, rtol=1e-6)
    np.testing.assert_allclose(grad, mask * -adv[:, None] / 6, rtol=1e-6)


@pytest.mark.parametrize("old", [-200.0, -np.inf, np.inf, np.nan, 1e4])
@pytest.mark.parametrize("new", [0.0, -np.inf, np.nan])
def test_padding_is_masked_before_anything_is_made_of_it(new, old):
    value, sums, grad = update(
        GRPO, [-1.0], [[-1.0, new]], [[-1.0, old]], [[True, False]]
    )
    assert value == 1.0
    np.testing.assert_array_equal(grad, [[1.0, 0.0]])
    assert np.isfinite([*diagnostics.summarise(sums).values()]).all()


@every_method
def test_rows_without_a_token_contribute_nothing_and_leave_no_nan(name):
    method = METHODS[name]
    data = batches.draw(method)
    data = data._replace(reward_PG=np.nan_to_num(data.reward_PG))
    one = data.mask_PGT.copy()
    one[2, 0] = False
    for mask in (one, np.zeros_like(one)):
        some = batches.cast(data._replace(mask_PGT=mask), jnp.float32)
        value, sums, grad = batches.evaluate(method, some)
        figures = np.array([*diagnostics.summarise(sums).values()])
        assert np.isfinite(value) and np.isfinite(figures).all()
        assert not np.asarray(grad)[~mask].any()
    assert value == 0 and not figures.any() and not np.asarray(grad).any()


def test_a_clip_counts_where_it_binds():
    """Ratios outside the band whose unclipped branch is live are not clipped."""
    ratio = np.array([1.5, 1.5, 0.5, 0.5, 1.1, 9.0])
    adv = np.array([1.0, -1, 1, -1, 1, 1])
    # The last row stands behind the mask and must not be counted.
    mask = np.arange(6)[:, None] < 5
    logp = np.log(ratio)[:, None]
    method = dataclasses.replace(GRPO, aggregate=aggregates.TokenMean())
    _, sums, grad = update(method, adv, logp, 0 * logp, mask)
    figures = diagnostics.summarise(sums)
    np.testing.assert_allclose(figures["gated"], 0.4, rtol=1e-6)
    # One of three tokens is held at the upper bound and one of two at the lower.
    np.testing.assert_allclose(figures["gated_up"], 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(figures["gated_down"], 1 / 2, rtol=1e-6)

    def surrogate(logp):
        r = jnp.exp(logp)
        terms = -jnp.minimum(r * adv, jnp.clip(r, 0.8, 1.2) * adv)
        return jnp.mean(terms[:5])

    assert surrogate(logp[:, 0]) == pytest.approx(-0.1)
    want = jax.grad(surrogate)(jnp.float32(logp[:, 0]))
    np.testing.assert_allclose(grad[:, 0], want, rtol=1e-5)
    np.testing.assert_array_equal(grad[:, 0] == 0, [1, 0, 0, 1, 0, 1])


@pytest.mark.parametrize(
    "low, high, up, down", [(0.2, 0.6, 0, 1), (0.6, 0.2, 1, 0), (0.6, 0.6, 0, 0)]
)
def test_both_sides_of_a_clip_are_told_apart(low, high, up, down):
    logp = np.log([[1.5], [0.5], [1.5], [0.5]])
    method = dataclasses.replace(GRPO, gate=gates.Clip(low=low, high=high))
    _, sums, _ = update(method, [1, 1, -1, -1], logp, 0 * logp, lengths(1, 1, 1, 1))
    figures = diagnostics.summarise(sums)
    assert (figures["gated_up"], figures["gated_down"]) == (up / 2, down / 2)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "gspo", "rloo"])
def test_a_loss_of_zero_is_no_gradient_of_zero(name):
    """Two actions, one sample of each sign: -A (onehot - p) / 2."""

    def run(logits):
        logp_NT = jax.nn.log_softmax(logits)[:, :1]
        fixed_NT = jax.lax.stop_gradient(logp_NT)
        mask = jnp.ones((2, 1), bool)
        weight_NT = METHODS[name].aggregate(mask, mask[:, 0], jnp.arange(2), 1)
        batch = objective.Batch(
            adv_N=jnp.array([1.0, -1.0]),
            weight_NT=weight_NT,
            logo_NT=fixed_NT,
            logq_NT=fixed_NT,
            mask_NT=mask,
            group_N=jnp.arange(2),
            lag=jnp.int32(0),
        )
        return objective.loss(METHODS[name], logp_NT, batch)[0]

    value, grad = jax.value_and_grad(run)(jnp.zeros((2, 2)))
    assert abs(value) < 1e-7
    np.testing.assert_allclose(grad, [[-0.25, 0.25], [0.25, -0.25]], atol=1e-6)


@pytest.mark.parametrize(
    "d, mean, total",
    [
        ([0.1, -0.2, 0.3], 1.068939, 1.221403),
        ([0.002] * 1000, 1.002002, 7.389056),
        ([-0.00282] * 1000, 0.997184, 0.0596),
    ],
)
def test_a_response_is_weighed_by_its_mean_log_ratio(golden, d, mean, total):
    """Neither by the sum, which length alone drives, nor by a mean of ratios."""

    def both(d_T):
        tokens = ragged.row(d_T)
        names = ("sequence_mean", "sequence_sum")
        return jnp.stack([ratios.exp(RATIOS[n](tokens))[0, 0] for n in names])

    # -2 + .002 has seven digits in float32, and a thousand of them are added.
    np.testing.assert_allclose(golden(both, np.array(d)), [mean, total], rtol=5e-4)
    twice = golden(both, np.repeat(d, 2))
    np.testing.assert_allclose(twice[0], mean, rtol=1e-5)


def test_on_policy_a_response_ratio_changes_no_gradient():
    adv, mask = np.array([1, -1, 0.5, -0.5]), lengths(1, 3, 8, 8)
    want = at_ratio_1(GRPO, adv, mask)[2]
    np.testing.assert_allclose(at_ratio_1(GSPO, adv, mask)[2], want, rtol=1e-6)


@pytest.mark.parametrize("method", [GRPO, GSPO], ids=["token", "sequence"])
@pytest.mark.parametrize("d", [[100.0, 100.0], [1e4, 1e4]])
def test_a_ratio_past_the_float_limit_is_finite(method, d):
    mask, low = lengths(2, 2), np.full((2, 2), -2.0)
    value, _, grad = update(method, [1.0, -1.0], low + [d, d], low, mask)
    assert np.isfinite(value) and np.isfinite(grad).all()
    # Held for A > 0; the exponent is capped at 20 for A < 0.
    np.testing.assert_array_equal(grad[0], 0)
    np.testing.assert_allclose(grad[1], np.exp(20.0) / 4, rtol=1e-5)


@pytest.mark.parametrize(
    "d, exponent", [([100.0, -100.0], 0), ([100.0, -50.0], 20), ([30.0, -50.0], -10)]
)
def test_the_cap_is_on_the_mean_and_not_on_its_tokens(d, exponent):
    """Tokens cut to +-20 first would all have the mean 0."""
    method = dataclasses.replace(GSPO, gate=gates.NoGate())
    low = np.full((1, 2), -2.0)
    _, _, grad = update(method, [-1.0], low + [d], low, lengths(2))
    np.testing.assert_allclose(grad[0], np.exp(exponent) / 2, rtol=1e-4)


# --- choices and shapes -----------------------------------------------------------


@pytest.mark.parametrize("name", RATIOS)
def test_every_ratio_trains_without_a_kl_term(name):
    method = dataclasses.replace(GRPO, ratio=RATIOS[name], gate=gates.NoGate())
    assert not method.kl.active
    _, _, grad = at_ratio_1(method, [1.0, -1.0], lengths(2, 3))
    assert np.linalg.norm(grad) > 0.1


@pytest.mark.parametrize("level", [None, "token", "tokn", ""])
def test_what_is_no_ratio_makes_no_method(level):
    """Names are looked up in a table before; there is no branch to fall into."""
    with pytest.raises(ValueError):
        Method(ratio=level)


SIX = jnp.zeros((4, 6))


@pytest.mark.parametrize(
    "short, n",
    [
        *itertools.product(("logp_NT", "logq_NT", "mask_NT", "weight_NT"), (1, 5)),
        ("logo_NT", 1),
        ("logo_NT", 3),
        ("logo_NT", 5),
        ("adv_N", 1),
        ("adv_N", 5),
    ],
)
def test_arrays_of_unequal_length_are_never_combined(short, n):
    """Tokens 6 and 5, or 1, which broadcasting would take for all."""
    arrays = dict(
        logp_NT=SIX,
        adv_N=SIX[:, 0],
        weight_NT=SIX,
        logo_NT=SIX,
        logq_NT=SIX,
        mask_NT=SIX == 0,
        group_N=jnp.arange(4),
        lag=jnp.int32(0),
    )
    arrays[short] = arrays[short][..., :n] if short != "adv_N" else jnp.zeros(n)
    logp_NT = arrays.pop("logp_NT")
    with pytest.raises((AssertionError, ValueError)) as caught:
        objective.loss(GRPO, logp_NT, objective.Batch(**arrays))
    said = str(caught.value)
    assert str(n) in said and ("4" if short == "adv_N" else "6") in said
