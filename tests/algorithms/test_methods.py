"""One body of tests over every method: what must hold whatever its parts are."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import pytest

from algorithms import diagnostics, methods
from algorithms.methods import METHODS
from tests.algorithms import batches

every = pytest.mark.parametrize("name", METHODS)


@functools.cache
def compiled(name, parts=1):
    method = METHODS[name]
    return jax.jit(lambda data: batches.evaluate(method, data, parts))


@functools.cache
def reference(name):
    """Data in float32, and loss, sums and gradient on it."""
    data = batches.cast(batches.draw(METHODS[name]), jnp.float32)
    return data, jax.device_get(compiled(name)(data))


def assert_near(got, want, rtol=2e-5):
    def same(a, b):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * (np.abs(b).max() + 0.1))

    jax.tree.map(same, got, want)


@every
def test_something_is_learned_and_everything_is_finite(name):
    _, (value, sums, grad) = reference(name)
    assert np.isfinite(value) and all(np.isfinite(x) for x in jax.tree.leaves(sums))
    assert np.isfinite(grad).all() and np.abs(grad).max() > 0
    figures = diagnostics.summarise(sums)
    assert all(np.isfinite(x) for x in figures.values())


@every
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_add_up_to_the_batch(name, parts):
    data, want = reference(name)
    assert_near(compiled(name, parts)(data), want)


@every
@pytest.mark.parametrize("shape", [(2, 1), (4, 2), (8, 1)])
def test_no_mesh_changes_a_number(name, shape):
    data = batches.cast(batches.draw(METHODS[name], P=8), jnp.float32)
    want = compiled(name)(data)
    mesh = jax.make_mesh(
        shape,
        ("rows", "other"),
        devices=jax.devices()[: np.prod(shape)],
        axis_types=(jax.sharding.AxisType.Auto,) * 2,
    )
    sharded = jax.device_put(data, NamedSharding(mesh, PartitionSpec("rows")))
    assert_near(compiled(name)(sharded), want)


@every
def test_the_order_of_problems_changes_nothing(name):
    data, (value, sums, grad) = reference(name)
    order = np.array([2, 0, 3, 1])
    got = compiled(name)(jax.tree.map(lambda x: x[order], data))
    assert_near(got, (value, sums, grad[order]))


@every
def test_the_order_of_rollouts_changes_nothing(name):
    method = METHODS[name]
    if method.by_slot:
        pytest.skip("slots of this method mean different things")
    # No ties, of which a rule that drops one rollout takes the first; nor an even
    # count, whose middle two are as near to their median.
    data = batches.draw(method)
    rng = np.random.default_rng(1)
    untied_PG = np.nan_to_num(data.reward_PG) + 0.3 * rng.random(data.reward_PG.shape)
    data = batches.cast(data._replace(reward_PG=untied_PG), jnp.float32)
    order = rng.permutation(data.reward_PG.shape[1])
    value, sums, grad = compiled(name)(data)
    got = compiled(name)(jax.tree.map(lambda x: x[:, order], data))
    assert_near(got, (value, sums, grad[:, order]))


@every
@pytest.mark.parametrize("junk", [0.0, -np.inf, np.nan, 1e4])
def test_padding_changes_nothing(name, junk):
    """Three more columns and whatever stands behind the mask."""
    data, want = reference(name)

    def pad(x):
        if x.ndim < 3:
            return x
        fill = False if x.dtype == bool else junk
        x = jnp.where(data.mask_PGT, x, fill) if x.dtype != bool else x
        return jnp.pad(x, ((0, 0), (0, 0), (0, 3)), constant_values=fill)

    value, sums, grad = compiled(name)(jax.tree.map(pad, data))
    assert (np.asarray(grad)[..., -3:] == 0).all()
    assert_near((value, sums, grad[..., :-3]), want, rtol=1e-6)


@every
def test_equal_rewards_give_exactly_no_gradient(name):
    """At equal lengths, where shapes that look at lengths say nothing either."""
    method = METHODS[name]
    if method.by_slot:
        pytest.skip("slots of this method are rewarded differently")
    data = batches.on_policy(batches.draw(method))
    data = data._replace(
        reward_PG=np.full(data.reward_PG.shape, 0.3),
        mask_PGT=np.broadcast_to(np.arange(8) < 5, data.mask_PGT.shape),
        ended_PG=np.ones_like(data.ended_PG),
    )
    data = batches.cast(data, jnp.float32)
    _, _, grad = compiled(name)(data)
    np.testing.assert_array_equal(grad, 0)


@every
def test_on_policy_a_method_is_its_advantages_and_weights(name):
    """No ratio, gate or correction acts where all policies are one."""
    method = METHODS[name]
    data = batches.cast(batches.on_policy(batches.draw(method)), jnp.float32)
    batch, _ = batches.prepare(method, data)
    _, _, grad = compiled(name)(data)
    want = -batch.weight_NT * batch.adv_N[:, None]
    assert_near(grad, want.reshape(grad.shape), rtol=1e-6)


@every
def test_single_and_double_precision_agree(name):
    method = METHODS[name]
    _, (value, _, grad) = reference(name)
    with jax.enable_x64(True):
        exact = batches.evaluate(
            method, batches.cast(batches.draw(method), jnp.float64)
        )
        assert exact[2].dtype == jnp.float64
    assert_near((value, grad), (exact[0], exact[2]), rtol=1e-4)


@every
def test_eager_is_jitted(name):
    data, want = reference(name)
    assert_near(batches.evaluate(METHODS[name], data), want)


@every
@pytest.mark.parametrize("case", ["huge", "tiny", "empty", "unscored", "certain"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_extremes_stay_finite(name, case, dtype):
    data = batches.draw(METHODS[name])
    if case in ("huge", "tiny"):
        shift = 100.0 if case == "huge" else -100.0
        data = data._replace(
            logo_PGT=data.logo_PGT - shift, logq_PGT=data.logq_PGT + 50
        )
    elif case == "empty":
        data = data._replace(mask_PGT=np.zeros_like(data.mask_PGT))
    elif case == "unscored":
        data = data._replace(reward_PG=np.full(data.reward_PG.shape, np.nan))
    else:
        zero = np.zeros_like(data.logp_PGT)
        data = data._replace(logp_PGT=zero, logo_PGT=zero, logq_PGT=zero)
    data = data._replace(
        logp_PGT=np.where(data.mask_PGT, data.logp_PGT, -np.inf),
        logo_PGT=np.where(data.mask_PGT, data.logo_PGT, -np.inf),
    )
    data = batches.cast(data, dtype)
    # A missing reward is NaN by definition; what is made of it may not be.
    reward_PG = jnp.where(jnp.isnan(data.reward_PG), jnp.inf, data.reward_PG)
    with jax.debug_nans(True):
        value, sums, grad = compiled(name)(data._replace(reward_PG=reward_PG))
    assert np.isfinite(value) and np.isfinite(np.float32(grad)).all()
    assert all(np.isfinite(x) for x in jax.tree.leaves(sums))
    if case in ("empty", "unscored"):
        assert (np.asarray(grad) == 0).all() and value == 0


@every
def test_a_second_call_does_not_compile(name):
    method = METHODS[name]
    run = jax.jit(lambda data: batches.evaluate(method, data))
    for seed in (0, 1):
        run(batches.cast(batches.draw(method, seed=seed), jnp.float32))
    assert run._cache_size() == 1


def test_names_and_labels():
    for name, method in METHODS.items():
        assert method.name == name == methods.label(method)
    changed = dataclasses.replace(METHODS["grpo"], scale=METHODS["dr_grpo"].scale)
    assert methods.label(changed) == "grpo scale=none"
