"""Parts of an objective that the engine has a hand in: anchors, passes, refills."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    anchors,
    corrections,
    entropies,
    gates,
    keeps,
    penalties,
    transforms,
)
from algorithms.methods import METHODS
from jaxrl import learn, schema
from jaxrl import rows as rows_lib
from jaxrl import run as run_lib
from jaxrl.tasks.registry import make_task
from jaxrl.types import Average
from models import sharding
from models.sampling import SamplingConfig
from tests.jaxrl import small
from tests.jaxrl.test_learn import batch, off_policy

GRPO = METHODS["grpo"]
PARTS = {
    "m2_mask": dict(gate=gates.M2Mask(budget=0.02)),
    "sat": dict(gate=gates.Sat(low=0.1, high=0.1, quantile=0.5)),
    "balanced": dict(gate=gates.Balanced()),
    "ewma": dict(anchor=anchors.Ewma()),
    "corrected": dict(
        anchor=anchors.Rescored(), correction=corrections.TokenTruncate()
    ),
    "kl": dict(kl=penalties.Reverse(coef=0.1)),
    "kl to sampler": dict(kl=penalties.K2(coef=0.1, to_sampler=True)),
    "kl in reward": dict(kl=penalties.RewardK1(coef=0.1)),
    "balance": dict(kl=penalties.Balance(coef=0.1)),
    "entropy": dict(entropy=entropies.Exact(coef=0.1)),
    "sampled entropy": dict(entropy=entropies.Sampled(coef=0.1)),
    "uniqueness": dict(transform=transforms.Uniqueness()),
    "dropped": dict(keep=keeps.Everything(drop_constant=True, drop_truncated=True)),
}


def configured(case, **changes):
    method = dataclasses.replace(GRPO, **PARTS[case]) if case else GRPO
    return small.resolved(objective=method, **changes)


@functools.cache
def learned(case, microbatches=1):
    """Two epochs from weights and a reference unlike what sampled."""
    config = configured(case, epochs=2, updates=4, microbatches=microbatches)
    _, rollouts, reward_PG = batch()
    state = learn.init_state(off_policy(), config)
    if state.reference is not None:
        reference = jax.tree.map(lambda x: 0.8 * x, state.params)
        state = dataclasses.replace(state, reference=reference)
    run = jax.jit(learn.make_learn(config))
    new, metrics, trained_PG = run(state, rollouts, reward_PG, jnp.int32(0))
    return jax.device_get((new, metrics, trained_PG))


@pytest.mark.parametrize("case", PARTS)
def test_a_part_acts_and_microbatches_change_nothing(case):
    """Gates that compare rows, terms over groups and passes of other weights."""
    new, metrics, _ = learned(case)
    assert all(np.isfinite(x).all() for x in metrics.values())
    plain = learned(None)[0]
    moved = np.abs(new.params["embed"] - plain.params["embed"]).max()
    assert moved > 1e-5
    split, split_metrics, _ = learned(case, 4)

    def same(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)

    jax.tree.map(same, (new.params, metrics), (split.params, split_metrics))


@pytest.mark.parametrize("case", PARTS)
def test_metrics_are_those_documented(case):
    names = set(learned(case)[1]) | {"round", "phases"}
    known = {m for m in schema.METRICS if not m.startswith("ledger/")}
    assert known <= names <= known | set(schema.TERMS)


def test_only_what_is_asked_for_is_kept():
    params = small.weights(small.resolved())
    states = {c: learn.init_state(params, configured(c)) for c in PARTS}
    held = {
        c: (s.reference is not None, s.average is not None) for c, s in states.items()
    }
    references = {"kl", "kl in reward", "balance"}
    for case, (reference, average) in held.items():
        assert reference == (case in references) and average == (case == "ewma")


def test_the_running_average_is_that_of_the_weights():
    """After each update: the bias-corrected mean of all versions, by hand."""
    anchor = anchors.Ewma(window=2.0, reset=0.0)
    config = dataclasses.replace(
        configured("ewma", epochs=3, updates=3),
        objective=dataclasses.replace(GRPO, anchor=anchor),
    )
    _, rollouts, reward_PG = batch()
    run = jax.jit(learn.make_learn(dataclasses.replace(config, epochs=1)))
    state = learn.init_state(small.weights(config), config)
    versions = [np.asarray(state.params["embed"], np.float64)]
    for i in range(3):
        state, _, _ = run(state, rollouts, reward_PG, jnp.int32(i))
        versions.append(np.asarray(state.params["embed"], np.float64))
    beta = 2.0 / 4.0
    weight = beta ** np.arange(len(versions))[::-1]
    want = np.tensordot(weight, np.stack(versions), axes=1) / weight.sum()
    np.testing.assert_allclose(state.average.params["embed"], want, atol=1e-6)
    np.testing.assert_allclose(state.average.count, weight.sum(), rtol=1e-6)


def test_the_running_average_by_hand():
    """Versions 1, 2, 4, 8 at beta 1/2: averages 1, 5/3, 3, 17/3."""
    config = configured("ewma")
    assert config.objective.anchor.beta == 4.0 / 6.0
    anchor = anchors.Ewma(window=2.0, reset=0.0)
    config = dataclasses.replace(
        config, objective=dataclasses.replace(GRPO, anchor=anchor)
    )
    average = Average(params=jnp.float32(1), count=jnp.float32(1))
    told = [(1.0, 1.0)]
    for version in (2.0, 4.0, 8.0):
        average = learn._averaged(config, average, jnp.float32(version), jnp.float32(1))
        told.append((float(average.params), float(average.count)))
    want = [(1, 1), (1.666667, 1.5), (3, 1.75), (5.666667, 1.875)]
    np.testing.assert_allclose(told, want, rtol=1e-6)
    ages = [anchors.Ewma(window=w).beta for w in (1.0, 2.0, 4.0, 8.0)]
    np.testing.assert_allclose(ages, [1 / 3, 0.5, 2 / 3, 0.8])


def test_the_running_average_restarts_where_little_is_active():
    anchor = anchors.Ewma(window=2.0, reset=1.0)
    method = dataclasses.replace(GRPO, anchor=anchor, gate=gates.Clip(0.0, 0.0))
    config = small.resolved(objective=method)
    _, rollouts, reward_PG = batch()
    state = learn.init_state(off_policy(), config)
    # An average apart from the weights, so that the clip holds some tokens.
    away = dataclasses.replace(state.average, params=small.weights(config))
    state = dataclasses.replace(state, average=away)
    new, metrics, _ = jax.jit(learn.make_learn(config))(
        state, rollouts, reward_PG, jnp.int32(0)
    )
    assert metrics["active"][0] < 1
    jax.tree.map(np.testing.assert_array_equal, new.average.params, new.params)
    assert new.average.count == 1


def test_the_anchor_is_the_average_of_weights():
    config = configured("ewma")
    _, rollouts, reward_PG = batch()
    state = learn.init_state(off_policy(), config)
    _, metrics, _ = jax.jit(learn.make_learn(config))(
        state, rollouts, reward_PG, jnp.int32(0)
    )
    # The average starts as the weights themselves: the first ratio is 1.
    assert metrics["log_ratio_sq"][0] < 1e-10
    assert metrics["k3_sampler"][0] > 1e-3


def test_lag_is_counted_in_updates_since_sampling():
    """Between sampler and policy in log space: ratio ** (1 / lag)."""
    method = dataclasses.replace(GRPO, anchor=anchors.Loglinear())
    config = small.resolved(objective=method, epochs=3, updates=3)
    _, rollouts, reward_PG = batch()
    run = jax.jit(learn.make_learn(config))
    _, metrics, _ = run(batch()[0], rollouts, reward_PG, jnp.int32(0))
    plain = dataclasses.replace(config, objective=GRPO)
    _, want, _ = jax.jit(learn.make_learn(plain))(
        batch()[0], rollouts, reward_PG, jnp.int32(0)
    )
    # Updates 0 and 1 are at lag 0 and 1, where the anchor is the sampler's.
    np.testing.assert_allclose(
        metrics["log_ratio"][:2], want["log_ratio"][:2], rtol=1e-4, atol=1e-7
    )
    assert metrics["log_ratio_sq"][2] < 0.5 * want["log_ratio_sq"][2]


def test_a_truncated_sampler_is_made_up_for():
    """The correction is the untruncated anchor over what was sampled from."""
    base = small.resolved()
    config = dataclasses.replace(
        base,
        sampling=SamplingConfig(top_k=3),
        objective=dataclasses.replace(
            GRPO,
            anchor=anchors.Rescored(),
            correction=corrections.TokenTruncate(cap=100.0),
        ),
    )
    _, rollouts, reward_PG = batch()
    logq_PGT = rollouts.logp_PGT + 0.5
    _, metrics, _ = jax.jit(learn.make_learn(config))(
        batch()[0], rollouts.replace(logq_PGT=logq_PGT), reward_PG, jnp.int32(0)
    )
    np.testing.assert_allclose(metrics["correction"][0], np.exp(-0.5), rtol=1e-4)


def test_clusters_are_equal_completions():
    _, rollouts, _ = batch()
    tokens = np.asarray(rollouts.tokens_PGT).copy()
    mask = np.ones_like(tokens, bool)
    mask[:, :, -1] = False
    tokens[0] = 5
    tokens[0, 1, 0] = 6
    tokens[0, 3, -1] = 7  # Behind the mask.
    got = rows_lib.clusters(
        rollouts.replace(tokens_PGT=jnp.asarray(tokens), mask_PGT=jnp.asarray(mask))
    )
    np.testing.assert_array_equal(got[0], [0, 1, 0, 0])


def test_dropped_groups_weigh_nothing():
    """One informative group of eight: the update of that group alone."""
    config = configured("dropped")
    state, rollouts, _ = batch()
    rollouts = rollouts.replace(ended_PG=jnp.ones_like(rollouts.ended_PG))
    reward_PG = jnp.zeros((8, 4)).at[3].set(jnp.array([1.0, 0, 0, 1]))
    alone = jax.tree.map(lambda x: x[3:4], rollouts)
    order = lambda c: learn._order(c, jnp.int32(0))[0]

    def gradient(config, rollouts, reward_PG):
        adv = learn.advantages(config, state, rollouts, reward_PG)
        index_PG = keeps.pack(adv.keep_PG, config.rollouts)
        rows = rows_lib.gather(config, rollouts, adv, index_PG)
        return learn._gradient(config, state, rows, order(config), jnp.int32(0))

    one = dataclasses.replace(config, problems=1)
    got, want = (
        gradient(config, rollouts, reward_PG),
        gradient(one, alone, reward_PG[3:4]),
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, want
    )


def driven(config, rewards):
    """A run whose task scores what the test says, and the calls made to it."""
    task = make_task(config.task)
    calls = []

    def score(problems, index_P, tokens, mask):
        calls.append(index_P)
        return rewards(len(calls), *tokens.shape[:2])

    task = dataclasses.replace(task, score=score)
    mesh = sharding.make_mesh(config.mesh.shape, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        state = learn.init_state(small.weights(config), config)
        run = run_lib.Run(config, task, mesh, state, run_lib.Host())
        before = jax.device_get(state.params)
        rows, tokens = run.round()
    return run, rows, tokens, calls, before


def refilled(refills, **changes):
    keep = keeps.Everything(drop_constant=True)
    return small.resolved(
        objective=dataclasses.replace(GRPO, keep=keep, refills=refills), **changes
    )


def test_rounds_without_signal_end_and_change_nothing():
    run, rows, tokens, calls, before = driven(
        refilled(9), lambda call, P, G: np.zeros((P, G))
    )
    assert len(calls) == 10 and rows[0]["phases"] == 10
    jax.tree.map(np.testing.assert_array_equal, run.state.params, before)
    assert rows[0]["skipped"] == 1 and rows[0]["loss"] == 0
    spent = run.host.ledger
    assert spent.rollouts == 10 * 8 * 4 and spent.generated_tokens == tokens
    # Nothing was kept, so all that was generated is discarded.
    assert spent.discarded_tokens == spent.generated_tokens


def test_a_batch_fills_up_with_groups_that_say_something():
    """Three informative groups a phase: the third phase completes a batch of eight."""

    def rewards(call, P, G):
        out = np.zeros((P, G))
        out[[1, 4, 6], call % G] = 1
        return out

    run, rows, tokens, calls, _ = driven(refilled(5), rewards)
    assert len(calls) == 3 and rows[0]["phases"] == 3
    assert rows[0]["constant_groups"] == 0
    assert len(set(np.concatenate(calls[:2]))) == 16
    spent = run.host.ledger
    assert spent.rollouts == 3 * 8 * 4 and spent.generated_tokens == tokens
    assert spent.discarded_tokens + spent.trained_tokens == spent.generated_tokens


def test_without_refills_a_batch_takes_what_comes():
    _, rows, _, calls, _ = driven(refilled(0), lambda call, P, G: np.zeros((P, G)))
    assert len(calls) == 1 and rows[0]["phases"] == 1
