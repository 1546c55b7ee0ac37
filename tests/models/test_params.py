"""Tests for models/params.py: draws addressed by path, derived counts and layouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import params, sharding
from models.config import ModelConfig
from models.params import ParamDef
from models.transformer import param_defs

normal = jax.nn.initializers.normal
DEFS = {
    "a": ParamDef((64, 48), ("embed", "ffn"), normal(0.5)),
    "b": {"a": ParamDef((64, 48), ("embed", "ffn"), normal(0.5))},
    "c": ParamDef((3,), ("layers",), jax.nn.initializers.ones),
}


@pytest.fixture(scope="module")
def tree():
    return params.init(DEFS, jax.random.key(0))


def test_init_follows_the_declaration(tree):
    assert jax.tree.structure(tree) == jax.tree.structure(DEFS, is_leaf=params.is_def)
    for d, x in zip(
        jax.tree.leaves(DEFS, is_leaf=params.is_def), jax.tree.leaves(tree), strict=True
    ):
        assert (x.shape, x.dtype) == (d.shape, jnp.float32)
    np.testing.assert_allclose(np.std(tree["a"]), 0.5, rtol=0.05)
    np.testing.assert_array_equal(tree["c"], 1.0)


def test_draws_are_addressed_by_path(tree):
    """Dropping or adding an entry moves no other; paths and keys do."""
    extra = {"0": DEFS["a"], "b": DEFS["b"]}
    other = params.init(extra, jax.random.key(0))
    np.testing.assert_array_equal(other["b"]["a"], tree["b"]["a"])
    for different in (other["0"], tree["b"]["a"]):
        assert abs(np.corrcoef(np.ravel(tree["a"]), np.ravel(different))[0, 1]) < 0.1
    again = params.init(extra, jax.random.key(1))
    assert not np.array_equal(again["b"]["a"], other["b"]["a"])


def test_count_of_a_released_shape_without_allocating():
    """28 layers of Qwen3-0.6B: matrices, embedding, then the norms."""
    cfg = ModelConfig(28, 1024, 16, 8, 128, 3072, 151936)
    norms = 28 * (2 * 1024 + 2 * 128) + 1024
    assert params.count(param_defs(cfg)) == 440401920 + 155582464 + norms
    assert params.count(DEFS) == 2 * 64 * 48 + 3


def test_a_deeper_stack_writes_as_much_into_the_residual_stream():
    layers, width, ffn = 8, 64, 96
    defs = param_defs(ModelConfig(layers, width, 4, 2, 16, ffn, 5))["layers"]
    for name, fan_in in (("wo", 4 * 16), ("w_down", ffn)):
        d = defs[name]
        std = np.std(d.init(jax.random.key(0), d.shape, jnp.float32))
        np.testing.assert_allclose(std**2 * fan_in * 2 * layers, 1.0, rtol=0.1)


def test_shardings_mirror_the_tree():
    mesh = sharding.make_mesh((2, 2, 2))
    planned = params.shardings(DEFS, mesh)
    specs = jax.tree.map(lambda s: s.spec, planned)
    P = jax.sharding.PartitionSpec
    assert specs == {
        "a": P("fsdp", "tensor"),
        "b": {"a": P("fsdp", "tensor")},
        "c": P(None),
    }


def test_check_divisible_names_every_bad_dim():
    mesh = sharding.make_mesh((1, 2, 4))
    params.check_divisible(DEFS, mesh)
    odd = {"x": ParamDef((7, 6), ("embed", "ffn"), normal()), "y": DEFS["a"]}
    with pytest.raises(ValueError) as error:
        params.check_divisible({"m": odd}, mesh)
    bad = str(error.value).split(": ", 1)[1].split("; ")
    assert bad == [
        "m/x: embed=7 does not divide by 2",
        "m/x: ffn=6 does not divide by 4",
    ]
