"""Tests for jaxrl/warmstart.py: one base per address, made once, and better."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

from algorithms.methods import METHODS
from jaxrl import warmstart
from jaxrl.config import (
    EvaluationConfig,
    MeshConfig,
    OptimizerConfig,
    TaskConfig,
    WarmstartConfig,
)
from jaxrl.tasks.registry import make_task
from tests.jaxrl import small

START = WarmstartConfig(steps=60, batch=8, every=20, learning_rate=2e-2)


@pytest.fixture
def config(tmp_path):
    return small.resolved(warmstart=START, cache_dir=str(tmp_path))


def address(config):
    return warmstart.address(config, make_task(config.task))


def make(config):
    """Weights, base and what was reported, from the same initial weights."""
    told = []
    params, base = warmstart.base_policy(
        config,
        make_task(config.task),
        small.weights(config),
        lambda step, loss, avg: told.append((step, loss, avg)),
    )
    return params, base, told


def test_a_base_is_made_once_and_shared_bit_for_bit(config, tmp_path):
    params, base, told = make(config)
    assert not base.cached and base.steps == 60 and 0 < base.avg < 1
    assert [step for step, _, _ in told] == [20, 40, 60]
    assert told[-1][1] < told[0][1] < 1.0 and told[-1][2] == base.avg
    assert not np.array_equal(params["embed"], small.weights(config)["embed"])
    # Another run, which differs in what decides nothing here.
    other = dataclasses.replace(config, **UNIMPORTANT)
    again, found, told = make(other)
    small.assert_same_bits(again, params)
    assert told == [] and found == dataclasses.replace(base, cached=True)
    # It is not the cache that makes them equal.
    afresh, new, _ = make(dataclasses.replace(other, cache_dir=str(tmp_path / "b")))
    small.assert_same_bits(afresh, params)
    assert new == dataclasses.replace(base, seconds=new.seconds)
    names = [p.name for p in tmp_path.iterdir()]
    assert sorted(names) == sorted(["b", address(config)])


UNIMPORTANT = dict(
    objective=METHODS["mc_grpo"],
    optimizer=OptimizerConfig(b2=0.5, weight_decay=1.0, max_grad_norm=0.01),
    evaluation=EvaluationConfig(problems=1, samples=2, temperature=0.0),
    run_dir="elsewhere",
    seed=7,
    rollouts=6,
)


@pytest.mark.parametrize(
    "changes, same",
    [
        (UNIMPORTANT, True),
        (dict(model=dict(remat="block", logprob_chunk=8)), True),
        (dict(mesh=MeshConfig(2, 1, 1)), True),
        (dict(model=dict(width=32)), False),
        (dict(model=dict(dtype="bfloat16")), False),
        (dict(warmstart=dict(seed=1)), False),
        (dict(warmstart=dict(steps=61)), False),
        (dict(task=dict(kind="sort")), False),
        (dict(task=dict(data_seed=1)), False),
        (dict(new_tokens=6), False),
    ],
)
def test_address_is_that_of_what_decides_the_weights(config, changes, same):
    for name, value in changes.items():
        if isinstance(value, dict):
            value = dataclasses.replace(getattr(config, name), **value)
        changed = dataclasses.replace(config, **{name: value})
        assert (address(changed) == address(config)) == same, name


def test_another_answer_in_the_same_file_is_another_base(tmp_path):
    path = tmp_path / "problems.jsonl"
    lines = [json.dumps({"prompt": f"q{i}", "answer": "1"}) for i in range(4)]
    cfg = small.config(
        task=TaskConfig(name="jsonl", path=str(path), heldout_problems=1)
    )
    path.write_text("\n".join(lines))
    before = address(cfg)
    path.write_text("\n".join(lines).replace('"1"', '"2"'))
    assert address(cfg) != before


def test_it_stops_once_good_enough(config):
    cfg = dataclasses.replace(START, target=0.0, every=3)
    _, base, told = make(dataclasses.replace(config, warmstart=cfg))
    assert base.steps == 3 and len(told) == 1


def test_a_race_for_one_base_ends_well(config, monkeypatch):
    """The other run's folder appears while this one trains."""
    cfg = dataclasses.replace(config, warmstart=dataclasses.replace(START, steps=1))
    theirs = pathlib.Path(cfg.cache_dir) / address(cfg)

    def save(folder, params):
        (theirs / "params").mkdir(parents=True)

    monkeypatch.setattr(warmstart.checkpoint, "save_params", save)
    params, base, _ = make(cfg)
    assert not base.cached and list(theirs.parent.iterdir()) == [theirs]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
