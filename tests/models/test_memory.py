"""Tests for models/memory.py: estimates near what JAX keeps for the gradient."""

import jax
import pytest

from models import memory, params, transformer
from tests.models.shapes import G, N, P, S, T, abstract, config


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cache_is_the_size_of_the_cache(dtype):
    cfg = config(dtype=dtype)
    cache = jax.eval_shape(lambda: transformer.init_cache(cfg, P, G, T))
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
    assert memory.cache(cfg, N * T) == held


@pytest.mark.parametrize("remat", ["none", "dots", "block"])
def test_what_a_layer_adds_to_an_update_is_near_what_jax_keeps(remat):
    """The difference that a layer makes, to a third."""
    kept, estimated = [], []
    for layers in (2, 6):
        cfg = config(layers=layers, remat=remat)
        tree, *batch = abstract(cfg)
        residuals = jax.eval_shape(
            lambda tree, *batch, cfg=cfg: jax.vjp(
                lambda tree: transformer.completion_logprobs(tree, cfg, *batch), tree
            )[1],
            tree,
            *batch,
        )
        sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(residuals)]
        kept.append(sum(sizes) - 4 * params.count(transformer.param_defs(cfg)))
        estimated.append(memory.update(cfg, N, S, P, T))
    ratio = (estimated[1] - estimated[0]) / (kept[1] - kept[0])
    assert 0.75 < ratio < 1.33
