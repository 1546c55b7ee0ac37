"""Tests for jaxrl/learn.py: splits, meshes, anchors, skipped updates, dropped rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import anchors, keeps
from algorithms.methods import METHODS
from jaxrl import learn, optimizer, rollout
from jaxrl import rows as rows_lib
from jaxrl.config import MeshConfig, OptimizerConfig
from jaxrl.tasks.registry import make_task
from models import params as params_lib
from models import sharding, transformer
from models.sampling import SamplingConfig
from tests.jaxrl import small

GRPO = small.resolved()
MC_GRPO = small.resolved(objective=METHODS["mc_grpo"])
# An update that is all but the gradient itself: no momentum, no clipping.
PLAIN = dataclasses.replace(
    MC_GRPO,
    optimizer=OptimizerConfig(
        learning_rate=1.0, eps=1.0, b1=0.0, b2=0.0, max_grad_norm=1e9
    ),
)
# Two epochs of one update each, so that the second is off policy.
TWICE = {
    anchor: dataclasses.replace(
        GRPO,
        epochs=2,
        updates=4,
        objective=dataclasses.replace(METHODS["grpo"], anchor=anchors.ANCHORS[anchor]),
    )
    for anchor in ("sampler", "rescored")
}


@functools.cache
def learner(config):
    return jax.jit(learn.make_learn(config))


@functools.cache
def sampler(group, temperature=1.0):
    """Several tokens end a completion, so that lengths differ a lot."""
    tokenizer = dataclasses.make_dataclass("T", ["end_ids", "pad_id"])((1, 2, 3), 0)
    sampling = SamplingConfig(temperature=temperature)
    return jax.jit(
        rollout.make_sample(GRPO.model, sampling, tokenizer, GRPO.new_tokens, group)
    )


@functools.cache
def batch(group=4):
    """A state, rollouts sampled from it, and rewards that differ within groups."""
    problems = make_task(GRPO.task).train
    params = small.weights(GRPO)
    rollouts = sampler(group)(
        params,
        jnp.asarray(problems.prompt_PS[:8]),
        jnp.asarray(problems.mask_PS[:8]),
        jnp.asarray(problems.id_P[:8]),
        jax.random.key(1),
    )
    rng = np.random.default_rng(0)
    reward_PG = jnp.asarray(rng.random((8, group)), jnp.float32)
    return learn.init_state(params, GRPO), rollouts, reward_PG


def rows_of(config, rollouts, reward_PG):
    adv = learn.advantages(config, batch()[0], rollouts, reward_PG)
    index_PG = keeps.pack(adv.keep_PG, config.rollouts)
    return rows_lib.gather(config, rollouts, adv, index_PG)


@functools.cache
def gradient(config):
    """(params, rollouts, reward_PG) -> gradient, loss and sums of the first update."""

    @jax.jit
    def first(params, rollouts, reward_PG):
        rows = rows_of(config, rollouts, reward_PG)
        order = learn._order(config, jnp.int32(0))
        state = learn.init_state(params, config)
        return learn._gradient(config, state, rows, order[0], jnp.int32(0))

    return first


def off_policy():
    """Weights under which ratios differ from 1, some of them beyond the clip."""
    return jax.tree.map(lambda x: 1.3 * x, batch()[0].params)


def assert_near(got, want, rtol=1e-5):
    """Leaf by leaf, relative to the largest entry of the leaf."""

    def same(a, b):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max() + 1e-7)

    jax.tree.map(same, got, want)


def assert_same_bits(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


def skewed(reward_PG):
    """A group without signal, one unscored, one with one rollout left."""
    reward_PG = reward_PG.at[0].set(0.25)
    reward_PG = reward_PG.at[3].set(jnp.nan)
    return reward_PG.at[5, 1:].set(jnp.nan)


@pytest.mark.parametrize("microbatches", [2, 4, 8])
def test_microbatches_change_nothing(microbatches):
    split = dataclasses.replace(GRPO, microbatches=microbatches)
    _, rollouts, reward_PG = batch()
    inputs = off_policy(), rollouts, skewed(reward_PG)
    assert np.ptp(rollouts.mask_PGT.sum(axis=(1, 2))) >= 4
    got, want = gradient(split)(*inputs), gradient(GRPO)(*inputs)
    assert want[2]["gated"] > 0
    assert_near(got, want)


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 2, 2), (1, 4, 2)])
def test_no_mesh_changes_an_update_or_a_metric(shape):
    """Groups of one method that drops rows, with groups dropped on some devices."""
    _, rollouts, reward_PG = batch(5)
    reward_PG, params = skewed(reward_PG), off_policy()
    state = learn.init_state(params, PLAIN)
    new, *want = learner(PLAIN)(state, rollouts, reward_PG, jnp.int32(0))
    mesh = sharding.make_mesh(shape)
    rows = sharding.named(mesh, ("batch",))
    weights = params_lib.shardings(transformer.param_defs(PLAIN.model), mesh)
    sharded = jax.device_put(params, weights)
    rollouts, reward_PG = jax.device_put((rollouts, reward_PG), rows)
    config = dataclasses.replace(PLAIN, mesh=MeshConfig(*shape))
    with jax.set_mesh(mesh):
        state = learn.init_state(sharded, config)
        got_new, *got = learner(config)(state, rollouts, reward_PG, jnp.int32(0))
    moved = lambda new: jax.tree.map(lambda a, b: np.asarray(a) - b, new, params)
    assert optax.tree.norm(moved(new.params)) > 0.01
    assert_near(moved(got_new.params), moved(new.params))
    assert_near(got, want)


@pytest.mark.parametrize("epochs, minibatches, microbatches", [(1, 1, 1), (3, 2, 2)])
def test_every_problem_comes_once_an_epoch(epochs, minibatches, microbatches):
    config = dataclasses.replace(
        GRPO,
        updates=12,
        epochs=epochs,
        minibatches=minibatches,
        microbatches=microbatches,
    )
    orders = [np.asarray(learn._order(config, jnp.int32(r))) for r in (0, 0, 1)]
    per_part = 8 // (minibatches * microbatches)
    assert orders[0].shape == (epochs * minibatches, microbatches, per_part)
    for epoch in orders[0].reshape(epochs, -1):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(8))
    np.testing.assert_array_equal(orders[0], orders[1])
    if minibatches > 1:
        other = dataclasses.replace(config, seed=1)
        orders.append(np.asarray(learn._order(other, jnp.int32(0))))
        passes = [o.reshape(epochs, -1)[i] for o in orders[1:] for i in range(epochs)]
        assert len({tuple(p) for p in passes}) == len(passes)


def test_minibatches_and_epochs_are_plain_updates_in_a_row():
    """A round's updates by `learn` equal single gradients and single steps by hand."""
    config = dataclasses.replace(
        GRPO,
        updates=4,
        epochs=2,
        minibatches=2,
        microbatches=2,
        optimizer=OptimizerConfig(learning_rate=0.05, eps=1.0, b1=0.0, b2=0.5),
    )
    state, rollouts, reward_PG = batch()
    new, metrics, trained_PG = learner(config)(state, rollouts, reward_PG, jnp.int32(3))
    rows = rows_of(config, rollouts, reward_PG)
    order = learn._order(config, jnp.int32(3))

    @jax.jit
    def one(params, parts):
        now = state.replace(params=params)
        return learn._gradient(config, now, rows, parts, jnp.int32(0))[:2]

    tx = optimizer.make(config.optimizer)
    params, opt_state, told = state.params, tx.init(state.params), []
    for parts in order:
        grads, loss = one(params, parts)
        told.append((optax.tree.norm(grads), loss))
        direction, opt_state = tx.update(grads, opt_state, params)
        params = jax.tree.map(lambda p, d: p - 0.05 * d, params, direction)
    assert_near(new.params, params)
    norms, losses = np.transpose(told)
    assert_near((metrics["grad_norm"], metrics["loss"]), (norms, losses))
    np.testing.assert_array_equal(metrics["step"], [1, 2, 3, 4])
    assert int(new.step) == 4 and int(new.skipped) == 0
    assert bool(trained_PG.all())
    # A minibatch weighs as much as a whole batch would.
    per_update = jnp.array([rows.weight_PGT[p].sum() for p in order])
    np.testing.assert_allclose(per_update, np.ones(4), rtol=1e-5)


@pytest.mark.parametrize("anchor, near", [("rescored", 1e-6), ("sampler", 1e-5)])
def test_ratio_is_one_on_the_first_update_only(anchor, near):
    state, rollouts, reward_PG = batch()
    _, metrics, _ = learner(TWICE[anchor])(state, rollouts, reward_PG, jnp.int32(0))
    first, second = np.sqrt(np.asarray(metrics["log_ratio_sq"]))
    assert first < near and second > 1e-3
    # On policy the loss says nothing, and the gradient does.
    assert abs(metrics["loss"][0]) < 1e-6 and metrics["grad_norm"][0] > 1e-2


@pytest.mark.parametrize("anchor", ["sampler", "rescored"])
def test_which_log_probabilities_are_the_anchor(anchor):
    state, rollouts, reward_PG = batch()
    # Several problems in each part: rescored rows must come back in order.
    config = dataclasses.replace(TWICE[anchor], minibatches=2)
    run = learner(config)
    moved = rollouts.replace(logp_PGT=rollouts.logp_PGT + 0.1)
    (a, metrics, _), (b, other, _) = (
        run(state, r, reward_PG, jnp.int32(0)) for r in (rollouts, moved)
    )
    if anchor == "rescored":
        assert_same_bits(a.params, b.params)
        assert metrics["log_ratio_sq"][0] < 1e-12
    else:
        assert (metrics["loss"] != other["loss"]).all()
        np.testing.assert_allclose(other["log_ratio"][0], -0.1, atol=1e-4)


def test_rollouts_come_from_the_policy_of_the_moment():
    state, rollouts, reward_PG = batch()
    prompts = rollouts.prompt_PS, rollouts.prompt_mask_PS, rollouts.problem_P
    draw = sampler(4)
    run = learner(TWICE["sampler"])
    new, _, _ = run(state, rollouts, reward_PG, jnp.int32(0))
    fresh = draw(new.params, *prompts, jax.random.key(1))
    assert not np.array_equal(fresh.logp_PGT, rollouts.logp_PGT)
    _, metrics, _ = run(new, fresh, reward_PG, jnp.int32(1))
    assert metrics["log_ratio_sq"][0] < 1e-10
    greedy = sampler(1, temperature=0.0)
    tokens = [
        greedy(p, *prompts, jax.random.key(1)).tokens_PGT
        for p in (state.params, small.weights(GRPO, seed=1))
    ]
    assert not np.array_equal(*tokens)


@pytest.mark.parametrize("case", ["equal rewards", "unscored", "nan logp"])
def test_an_update_without_a_usable_gradient_changes_nothing(case):
    state, rollouts, reward_PG = batch()
    run = learner(TWICE["sampler"])
    # Momentum that would move the weights even under a zero gradient.
    state, _, _ = run(state, rollouts, reward_PG, jnp.int32(0))
    bad, rewards = rollouts, reward_PG
    if case == "equal rewards":
        rewards = jnp.full_like(reward_PG, 0.1)
    elif case == "unscored":
        rewards = jnp.full_like(reward_PG, jnp.nan)
    else:
        bad = rollouts.replace(logp_PGT=rollouts.logp_PGT.at[2, 1, 0].set(jnp.nan))
    new, metrics, _ = run(state, bad, rewards, jnp.int32(1))
    assert_same_bits((new.params, new.opt_state), (state.params, state.opt_state))
    nonfinite = 2 if case == "nan logp" else 0
    assert (int(new.skipped), int(new.nonfinite)) == (2, nonfinite)
    assert int(new.step) == int(state.step) + 2
    np.testing.assert_array_equal(metrics["skipped"], [1, 2])
    if case == "nan logp":
        assert np.isnan(metrics["loss"]).all()
    else:
        assert np.isfinite(list(metrics.values())).all()
    after, _, _ = run(new, rollouts, reward_PG, jnp.int32(2))
    assert int(after.skipped) == 2
    assert not np.array_equal(after.params["embed"], new.params["embed"])


def test_weights_are_float32_and_keep_tiny_steps():
    config = dataclasses.replace(
        GRPO,
        model=dataclasses.replace(GRPO.model, dtype="bfloat16"),
        optimizer=OptimizerConfig(learning_rate=1e-6),
    )
    state, rollouts, reward_PG = batch()
    new, _, _ = learner(config)(state, rollouts, reward_PG, jnp.int32(0))
    floats = [
        x.dtype
        for x in jax.tree.leaves((new.params, new.opt_state))
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    assert set(floats) == {jnp.dtype("float32")}
    assert not np.array_equal(new.params["embed"], state.params["embed"])

    tx = optimizer.make(config.optimizer)
    tiny = {"w": jnp.float32(0.02)}
    figures = {"active": jnp.float32(1)}
    state = learn.init_state(tiny, config)
    step = lambda state, _: learn._apply(
        config, tx, state, {"w": jnp.float32(0.5)}, jnp.bool(True), figures
    )
    state, _ = jax.jit(lambda s: jax.lax.scan(step, s, length=1000))(state)
    np.testing.assert_allclose(state.params["w"], 0.019, rtol=1e-4)


def test_mc_grpo_updates_on_all_but_the_pivot():
    state, rollouts, reward_PG = batch(5)
    reward_PG = reward_PG.at[2, 0].set(jnp.nan)
    run = learner(MC_GRPO)
    new, _, trained_PG = run(state, rollouts, reward_PG, jnp.int32(0))
    trained_PG = np.asarray(trained_PG)
    np.testing.assert_array_equal(trained_PG.sum(axis=1), [4, 4, 3, 4, 4, 4, 4, 4])
    for p in range(8):
        scored = np.flatnonzero(np.isfinite(reward_PG[p]))
        centred = np.abs(reward_PG[p] - np.median(reward_PG[p, scored]))
        pivot = scored[np.argmin(centred[scored])]
        assert set(np.flatnonzero(trained_PG[p])) == set(scored) - {pivot}
    assert rows_of(MC_GRPO, rollouts, reward_PG).tokens_PGT.shape[:2] == (8, 4)

    def changed(rows_PG):
        other = jnp.where(rows_PG[..., None], 4, rollouts.tokens_PGT)
        moved = rollouts.replace(tokens_PGT=other)
        return run(state, moved, reward_PG, jnp.int32(0))[0].params

    assert_same_bits(changed(~trained_PG), new.params)
    assert not np.array_equal(changed(trained_PG)["embed"], new.params["embed"])
