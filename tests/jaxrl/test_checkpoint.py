"""Tests for jaxrl/checkpoint.py: what is kept, what comes back, what is broken."""

import dataclasses
import logging
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import checkpoint, learn, optimizer
from models import params as params_lib
from models import sharding, transformer
from tests.jaxrl import small

CONFIG = small.resolved()
DEFS = transformer.param_defs(CONFIG.model)
HOST = {"round": 2**60 + 1, "best": -math.inf, "base": None, "ledger": {"flops": 3}}


@jax.jit
def one_step(state):
    """An update on a gradient that depends on the weights."""
    tx = optimizer.make(CONFIG.optimizer)
    grads = jax.tree.map(jnp.cos, state.params)
    direction, opt_state = tx.update(grads, state.opt_state, state.params)
    params = jax.tree.map(lambda p, d: p - 0.1 * d, state.params, direction)
    return dataclasses.replace(
        state, params=params, opt_state=opt_state, step=state.step + 1
    )


@pytest.fixture(scope="module")
def state():
    """With moments that are not zero."""
    return one_step(learn.init_state(small.weights(CONFIG), CONFIG))


@pytest.fixture
def write(tmp_path):
    """Saves a state at steps, with a metric each; returns the folder."""
    folder = tmp_path / "checkpoints"

    def run(state, metrics, keep_last=9):
        with checkpoint.manager(folder, keep_last) as saved:
            for step, avg in metrics.items():
                now = dataclasses.replace(state, step=jnp.int32(step))
                checkpoint.save(saved, step, now, HOST, avg)
        return folder

    return run


def read(folder, like):
    with checkpoint.manager(folder, 9) as saved:
        return checkpoint.restore_newest(saved, like)


def steps(folder):
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


nan = math.nan


@pytest.mark.parametrize(
    "metrics, keep_last, kept",
    [
        ([0.9, 0.8, 0.7, 0.6, 0.5], 3, [1, 3, 4, 5]),
        ([0.5, 0.6, 0.7, 0.8, 0.9], 3, [3, 4, 5]),
        ([0.1, 0.9, 0.1, 0.2, 0.3], 1, [2, 5]),
        ([nan, 0.5, nan, 0.2, nan], 2, [2, 4, 5]),
        ([None, 0.9, None, None, None], 2, [2, 4, 5]),
        ([None] * 5, 2, [4, 5]),
        ([0.3, None, nan, None, None], 1, [1, 5]),
    ],
)
def test_the_newest_and_the_best_are_kept(write, metrics, keep_last, kept):
    tiny = learn.TrainState({"w": jnp.zeros(1)}, (), 0, 0, 0)
    saves = list(enumerate(metrics, start=1))
    # In two processes, as it were: the second knows what the first measured.
    write(tiny, dict(saves[:2]), keep_last)
    assert steps(write(tiny, dict(saves[2:]), keep_last)) == kept


def test_all_comes_back_as_it_was(write, state):
    folder = write(state, {2: None, 7: 0.5})
    like = learn.init_state(small.weights(CONFIG, seed=5), CONFIG)
    restored, host = read(folder, like)
    assert host == HOST and int(restored.step) == 7
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    restored = dataclasses.replace(restored, step=state.step)
    small.assert_same_bits(restored, state)
    small.assert_same_bits(one_step(restored), one_step(state))
    assert read(folder.parent / "other", like) is None


@pytest.mark.parametrize("shape", [(1, 4, 2), (8, 1, 1), None])
def test_a_checkpoint_of_one_mesh_is_read_on_another(write, state, shape):
    mesh = sharding.make_mesh((2, 2, 2))
    params = jax.device_put(state.params, params_lib.shardings(DEFS, mesh))
    folder = write(dataclasses.replace(state, params=params), {3: None})
    like = small.weights(CONFIG)
    if shape:
        other = params_lib.shardings(DEFS, sharding.make_mesh(shape))
        like = jax.device_put(like, other)
    restored, _ = read(folder, dataclasses.replace(state, params=like))
    small.assert_same_bits(restored.params, state.params)
    only = checkpoint.load_run_params(folder, like)
    small.assert_same_bits(only, state.params)
    for tree in (restored.params, only):
        jax.tree.map(lambda a, b: assert_equal(a.sharding, b.sharding), tree, like)


def assert_equal(a, b):
    assert a == b


def test_a_save_is_not_disturbed_by_donating_the_state(tmp_path, state):
    """Writing goes on while the next updates overwrite the buffers it started from."""
    want = jax.tree.map(np.array, state)
    donated = jax.jit(one_step, donate_argnums=0)
    now = jax.tree.map(jnp.copy, state)
    with checkpoint.manager(tmp_path / "c", 9) as saved:
        checkpoint.save(saved, 1, now, HOST, None)
        for _ in range(5):
            now = donated(now)
    restored, _ = read(tmp_path / "c", state)
    small.assert_same_bits(restored, want)


def data_files(step):
    """Some hold the same arrays twice, so damage has to meet all of them."""
    return [p for p in (step / "state").rglob("*") if p.parent.name == "d"]


def halve(step):
    for path in data_files(step):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])


def empty(step):
    for path in sorted(step.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


DAMAGE = {
    "empty folder": empty,
    "half a data file": halve,
    "no data file": lambda step: [p.unlink() for p in data_files(step)],
    "no array metadata": lambda step: (step / "state" / "_METADATA").unlink(),
    "half the host state": lambda step: (step / "host" / "metadata").write_text(
        '{"rou'
    ),
    "no host state": lambda step: [p.unlink() for p in (step / "host").iterdir()],
    "no marker": lambda step: (step / "_CHECKPOINT_METADATA").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_checkpoint_is_passed_over(write, state, caplog, damage):
    folder = write(state, {2: 0.5, 3: 0.6, 9: 0.4})
    DAMAGE[damage](folder / "9")
    with caplog.at_level(logging.WARNING, logger="jaxrl.checkpoint"):
        with checkpoint.manager(folder, 2) as saved:
            restored, host = checkpoint.restore_newest(saved, state)
            assert int(restored.step) == 3 and host == HOST
            assert steps(folder) == [2, 3]
            # The broken one is in nobody's way, and counts for no rule.
            now = dataclasses.replace(state, step=jnp.int32(9))
            checkpoint.save(saved, 5, restored, host, 0.1)
            checkpoint.save(saved, 9, now, host, 0.1)
    assert steps(folder) == [3, 5, 9]
    assert "checkpoint 9" in caplog.text
    assert (folder.parent / "incomplete" / "checkpoints-9").is_dir()
    assert int(read(folder, state)[0].step) == 9


def test_a_state_of_another_shape_is_an_error_and_not_a_fresh_start(write, state):
    folder = write(state, {2: None, 3: None})
    wider = dataclasses.replace(CONFIG.model, ffn=32)
    other = dataclasses.replace(CONFIG, model=wider)
    changed = {
        "shape": learn.init_state(small.weights(other), other),
        "one leaf more": dataclasses.replace(
            state, params=state.params | {"extra": jnp.zeros(2)}
        ),
        "one leaf less": dataclasses.replace(
            state, params={k: v for k, v in state.params.items() if k != "embed"}
        ),
    }
    for like in changed.values():
        with pytest.raises(ValueError):
            read(folder, like)
        with pytest.raises(ValueError):
            checkpoint.load_run_params(folder, like.params)
    assert steps(folder) == [2, 3]


def test_weights_alone(tmp_path, write, state):
    checkpoint.save_params(tmp_path / "weights", state.params)
    like = small.weights(CONFIG, seed=5)
    small.assert_same_bits(
        checkpoint.load_params(tmp_path / "weights", like), state.params
    )
    run = write(one_step(state), {1: None}).parent
    write(state, {4: None})
    (run / "checkpoints" / "8").mkdir()  # Not whole: no marker.
    for folder in (run, run / "checkpoints"):
        got = checkpoint.load_run_params(folder, like)
        small.assert_same_bits(got, state.params)
    with pytest.raises(FileNotFoundError, match="holds no complete checkpoint"):
        checkpoint.load_run_params(tmp_path / "weights", like)
