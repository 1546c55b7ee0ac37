"""Tests for jaxrl/evaluate.py: chunks, meshes and addresses of draws."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl import evaluate
from jaxrl.config import EvaluationConfig, MeshConfig
from jaxrl.tasks.registry import make_task
from models import sharding
from tests.jaxrl import small

CONFIG = small.resolved(
    evaluation=EvaluationConfig(problems=5, samples=3, temperature=1.0)
)
TASK = make_task(CONFIG.task)


@pytest.fixture(scope="module")
def params():
    return small.weights(CONFIG)


@pytest.fixture(scope="module")
def look():
    return evaluate.make_evaluate(CONFIG, TASK)


def assert_same(got, want):
    assert got.row == want.row and got.texts == want.texts
    assert (got.tokens, got.flops) == (want.tokens, want.flops)
    np.testing.assert_array_equal(got.reward_PK, want.reward_PK)
    np.testing.assert_array_equal(got.problem_P, want.problem_P)


# One chunk, a full and a short one, more than there are.
@pytest.mark.parametrize("batch", [1, 3, 7])
def test_chunks_do_not_show(look, params, batch):
    cfg = dataclasses.replace(CONFIG.evaluation, batch=batch)
    config = dataclasses.replace(CONFIG, evaluation=cfg)
    assert_same(evaluate.make_evaluate(config, TASK)(params, 3), look(params, 3))


def test_problems_fill_up_the_devices(look, params, monkeypatch):
    """A width that the devices do not divide would be computed whole on each."""
    widths, make = [], evaluate.rollout.make_sample

    def watched(*args):
        sample = make(*args)

        def wrapped(params, prompt_PS, *rest):
            widths.append(prompt_PS.shape[0])
            return sample(params, prompt_PS, *rest)

        return wrapped

    monkeypatch.setattr(evaluate.rollout, "make_sample", watched)
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(4, 2, 1))
    mesh = sharding.make_mesh((4, 2, 1))
    with jax.set_mesh(mesh):
        got = evaluate.make_evaluate(config, TASK)(params, 3)
    assert widths == [8]
    assert got.texts == look(params, 3).texts and len(got.texts) == 5


def test_draws_have_an_address(look, params):
    first = look(params, 0)
    assert_same(look(params, 0), first)
    assert look(params, 1).texts != first.texts
    other = dataclasses.replace(CONFIG, seed=1)
    assert evaluate.make_evaluate(other, TASK)(params, 0).texts != first.texts
    # What a problem's samples are does not depend on which others are asked.
    fewer = dataclasses.replace(
        CONFIG, evaluation=dataclasses.replace(CONFIG.evaluation, problems=2)
    )
    assert evaluate.make_evaluate(fewer, TASK)(params, 0).texts == first.texts[:2]


def test_row_says_what_was_measured(look, params):
    out = look(params, 0)
    assert out.row["problems"] == 5 and out.row["samples"] == 3
    np.testing.assert_array_equal(out.problem_P, TASK.heldout.id_P[:5])
    assert out.reward_PK.shape == (5, 3)
    assert out.row["reward"] == pytest.approx(out.reward_PK.mean())
    assert out.row["length"] == pytest.approx(out.tokens / 15)
    assert 0 < out.row["truncated"] < 1
    # Weights are an argument: others give other completions.
    assert look(small.weights(CONFIG, seed=3), 0).texts != out.texts


def test_training_problems_can_be_asked_instead(params):
    config = dataclasses.replace(
        CONFIG, evaluation=dataclasses.replace(CONFIG.evaluation, problems=99)
    )
    out = evaluate.make_evaluate(config, TASK, TASK.train)(params, 0)
    np.testing.assert_array_equal(out.problem_P, TASK.train.id_P)
