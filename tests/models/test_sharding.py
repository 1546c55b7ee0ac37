"""Tests for models/sharding.py: the table, and that no mesh changes a result."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import params, sampler, sharding, transformer
from models.config import ModelConfig
from models.sampling import SamplingConfig

P = jax.sharding.PartitionSpec
MESHES = [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4)]
CFG = ModelConfig(
    layers=1,
    width=16,
    heads=8,
    kv_heads=4,
    head_dim=4,
    ffn=24,
    vocab=32,
    qkv_bias=True,
    tied=False,
)
DEFS = transformer.param_defs(CFG)
PROMPTS, GROUP, WIDTH, NEW = 8, 2, 5, 4


def test_table_covers_every_declared_axis():
    tied = transformer.param_defs(dataclasses.replace(CFG, tied=True))
    for tree in (DEFS, tied):
        for d in jax.tree.leaves(tree, is_leaf=params.is_def):
            assert len(sharding.spec(d.axes)) == len(d.axes) == len(d.shape)


def test_spec_and_parts():
    mesh = sharding.make_mesh((2, 1, 4))
    assert mesh.shape == {"data": 2, "fsdp": 1, "tensor": 4}
    assert sharding.spec(("batch", "seq", "vocab")) == P(
        ("data", "fsdp"), None, "tensor"
    )
    got = [sharding.parts(mesh, axis) for axis in ("batch", "embed", "heads", "seq")]
    assert got == [2, 1, 4, 1]
    with pytest.raises(ValueError, match="'hedas'"):
        sharding.spec(("batch", "hedas"))


@pytest.mark.parametrize("shape", [(2, 2, 1), (16, 1, 1)])
def test_make_mesh_rejects_other_device_counts(shape):
    with pytest.raises(ValueError, match="there are 8"):
        sharding.make_mesh(shape)


def test_constrain_pins_only_where_a_mesh_is_set():
    x = jnp.ones((8, 4))
    assert sharding.constrain(x, "batch", "seq") is x
    mesh = sharding.make_mesh((2, 2, 2))
    with jax.set_mesh(mesh):
        y = jax.jit(lambda x: sharding.constrain(x * 2, "batch", "seq"))(x)
    assert y.sharding.shard_shape(y.shape) == (2, 4)


@jax.jit
def outputs(tree, prompt, mask, key):
    """Logits of the prompts and rollouts after them."""
    problem, sample = jnp.arange(PROMPTS), jnp.tile(jnp.arange(GROUP), (PROMPTS, 1))
    rolled = sampler.sample(
        tree,
        CFG,
        SamplingConfig(),
        prompt,
        mask,
        key,
        problem,
        sample,
        new_tokens=NEW,
        end_ids=(3,),
        pad_id=0,
    )
    return transformer.forward(tree, CFG, prompt, mask), rolled


@jax.jit
def gradient(tree, prompt, mask, tokens, cotangent):
    """Of completion log-probs weighted by `cotangent`."""
    full = jnp.ones_like(tokens, bool)

    def loss(tree):
        logp = transformer.completion_logprobs(tree, CFG, prompt, mask, tokens, full)
        return jnp.vdot(logp, cotangent)

    return jax.grad(loss)(tree)


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    tree = params.init(DEFS, jax.random.key(0))
    tree = jax.tree.map(lambda x: x + 0.2 * rng.normal(size=x.shape).astype("f"), tree)
    prompt = rng.integers(CFG.vocab, size=(PROMPTS, WIDTH))
    mask = np.arange(WIDTH) >= rng.integers(WIDTH, size=(PROMPTS, 1))
    tokens = rng.integers(CFG.vocab, size=(PROMPTS * GROUP, NEW))
    cotangent = rng.normal(size=tokens.shape).astype("f")
    return tree, (prompt, mask), (tokens, cotangent)


@pytest.fixture(scope="module")
def alone(inputs):
    """What one device computes, without a mesh."""
    tree, prompts, completions = inputs
    with jax.default_device(jax.devices()[0]):
        return jax.device_get(
            (
                *outputs(tree, *prompts, jax.random.key(1)),
                gradient(tree, *prompts, *completions),
            )
        )


def place(mesh, tree, arrays):
    """Weights by their declaration and batches by row, with what a device holds."""
    placed = jax.device_put(tree, params.shardings(DEFS, mesh))
    for d, x in zip(
        jax.tree.leaves(DEFS, is_leaf=params.is_def),
        jax.tree.leaves(placed),
        strict=True,
    ):
        parts = [sharding.parts(mesh, axis) for axis in d.axes]
        held = tuple(n // k for n, k in zip(d.shape, parts, strict=True))
        assert {s.data.shape for s in x.addressable_shards} == {held}
    rows = sharding.named(mesh, ("batch", "seq"))
    return placed, *jax.device_put(arrays, rows)


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_no_mesh_changes_logits_or_rollouts(shape, inputs, alone):
    tree, prompts, _ = inputs
    mesh = sharding.make_mesh(shape)
    params.check_divisible(DEFS, mesh)
    with jax.set_mesh(mesh):
        placed = place(mesh, tree, prompts)
        logits, rolled = jax.device_get(outputs(*placed, jax.random.key(1)))
    close(logits[prompts[1]], alone[0][prompts[1]])
    for name in ("tokens_PGT", "mask_PGT", "ended_PG"):
        np.testing.assert_array_equal(getattr(rolled, name), getattr(alone[1], name))
    for name in ("logq_PGT", "logp_PGT"):
        close(getattr(rolled, name), getattr(alone[1], name))


@pytest.mark.parametrize("shape", MESHES[2:], ids=str)
def test_no_mesh_changes_the_gradient(shape, inputs, alone):
    tree, prompts, completions = inputs
    mesh = sharding.make_mesh(shape)
    with jax.set_mesh(mesh):
        got = gradient(*place(mesh, tree, (*prompts, *completions)))
    jax.tree.map(close, jax.device_get(got), alone[2])


def test_the_one_device_run_ends_some_rows_and_not_others(alone):
    assert 0 < alone[1].ended_PG.sum() < alone[1].ended_PG.size
