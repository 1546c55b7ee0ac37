"""The smallest run that still learns: a one-layer copier of three letters."""

import dataclasses
import functools
import json
import pathlib
import unittest.mock

import jax
import numpy as np

from algorithms.methods import METHODS
from jaxrl import checkpoint, plan
from jaxrl import train as train_lib
from jaxrl.config import (
    Config,
    EvaluationConfig,
    MeshConfig,
    OptimizerConfig,
    TaskConfig,
)
from jaxrl.tasks.registry import make_task
from models import params, sharding, transformer
from models.config import ModelConfig

TASK = TaskConfig(
    name="sequence",
    kind="copy",
    symbols=3,
    length=3,
    train_problems=16,
    heldout_problems=6,
    reward="fraction",
)
MODEL = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, head_dim=8, ffn=16)


def config(**changes) -> Config:
    """8 problems x 4 rollouts of at most 5 tokens, 6 updates."""
    whole = Config(
        problems=8,
        rollouts=4,
        updates=6,
        new_tokens=5,
        save_every=2,
        log_samples=2,
        task=TASK,
        model=MODEL,
        objective=METHODS["grpo"],
        optimizer=OptimizerConfig(learning_rate=1e-2),
        evaluation=EvaluationConfig(every=3, samples=3, problems=5),
        mesh=MeshConfig(),
    )
    return dataclasses.replace(whole, **changes)


def resolved(**changes) -> Config:
    """`config` with the vocabulary of its task."""
    whole = config(**changes)
    return plan.resolve(whole, make_task(whole.task))


def weights(cfg: Config, seed: int = 0) -> params.Params:
    """Random weights of a resolved config."""
    defs = transformer.param_defs(cfg.model)
    return jax.jit(lambda key: params.init(defs, key))(jax.random.key(seed))


def train(cfg: Config) -> dict:
    """`jaxrl.train.train` on one device, as if there were no more."""
    one = functools.partial(sharding.make_mesh, devices=jax.devices()[:1])
    with unittest.mock.patch.object(sharding, "make_mesh", one):
        return train_lib.train(cfg, quiet=True)


def rows(path: pathlib.Path) -> list[dict]:
    """Of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def final_params(cfg: Config) -> params.Params:
    """Weights of the newest checkpoint of a run."""
    return checkpoint.load_run_params(pathlib.Path(cfg.run_dir), weights(cfg))


def assert_same_bits(got, want) -> None:
    """Two trees have one structure and the same arrays."""
    jax.tree.map(np.testing.assert_array_equal, got, want)
