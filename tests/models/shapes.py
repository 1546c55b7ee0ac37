"""Abstract inputs of a model, for tests that count what a program would do."""

import jax
import jax.numpy as jnp

from models import params, transformer
from models.config import ModelConfig

P, G, S, T = 2, 2, 32, 32
N = P * G


def config(**changes) -> ModelConfig:
    """Dominated by its matrix products."""
    shape = dict(layers=2, width=128, heads=6, kv_heads=2, head_dim=32)
    return ModelConfig(**shape | dict(ffn=256, vocab=512) | changes)


def abstract(cfg):
    """Weights, prompts, completions and their masks, without any values."""
    tree = jax.tree.map(
        lambda d: jax.ShapeDtypeStruct(d.shape, jnp.float32),
        transformer.param_defs(cfg),
        is_leaf=params.is_def,
    )
    prompt, mask = (jax.ShapeDtypeStruct((P, S), d) for d in (jnp.int32, bool))
    tokens, full = (jax.ShapeDtypeStruct((N, T), d) for d in (jnp.int32, bool))
    return tree, prompt, mask, tokens, full
