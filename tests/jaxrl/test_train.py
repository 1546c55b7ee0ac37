"""Tests for jaxrl/train.py: whole small runs, stopped, resumed, refused."""

import dataclasses
import json
import os
import pathlib
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest

from algorithms import anchors
from algorithms.methods import METHODS
from jaxrl import runlog
from jaxrl import train as train_lib
from jaxrl.config import (
    EvaluationConfig,
    MeshConfig,
    TaskConfig,
    WarmstartConfig,
)
from jaxrl.tasks.registry import make_task
from tests.jaxrl import small

# Byte for byte the same however often a run was interrupted.
STREAMS = ("metrics.jsonl", "eval.jsonl", "samples.jsonl")


def contents(folder):
    paths = (p for p in pathlib.Path(folder).rglob("*") if p.is_file())
    return {p: p.read_bytes() for p in paths}


def test_a_finished_run_says_what_it_did(finished):
    config, folder, summary = finished
    assert runlog.read_json(folder / "summary.json") == summary
    metrics = small.rows(folder / "metrics.jsonl")
    evals = small.rows(folder / "eval.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4, 5, 6]
    assert [row["round"] for row in metrics] == [0, 1, 2, 3, 4, 5]
    assert [row["step"] for row in evals] == [0, 3, 6]
    assert (summary["status"], summary["step"]) == ("finished", 6)
    for name, row in (("base", evals[0]), ("final", evals[-1])):
        assert summary[name].items() <= row.items()
    assert summary["best"] == max(row["avg"] for row in evals[1:])
    spent = {f"ledger/{k}": v for k, v in summary["ledger"].items()}
    assert spent.items() <= metrics[-1].items() and spent.items() <= evals[-1].items()
    assert spent["ledger/rollouts"] == 6 * 8 * 4
    assert summary["evaluation"]["tokens"] == evals[-1]["tokens"]
    assert min(summary["device_seconds"].values()) > 0
    # Counts of a round are those of its rows.
    total = 0
    for row in metrics:
        total += round(row["length"] * 32)
        assert row["ledger/generated_tokens"] == row["ledger/trained_tokens"] == total
    assert all(row["grad_norm"] > 0 for row in metrics)
    assert [row["log_ratio_sq"] < 1e-10 for row in metrics] == [True] * 6
    table = pq.read_table(folder / "problems.parquet")
    assert table.num_rows == 3 * 5


def test_a_finished_run_is_left_alone(finished):
    config, folder, summary = finished
    before = contents(folder)
    assert small.train(config) == summary
    assert small.train(dataclasses.replace(config, keep_last=7)) == summary
    assert contents(folder) == before


class Stopper:
    """Makes a task whose `count`-th batch of training problems meets an event."""

    def __init__(self, count, event):
        self.left, self.event = count, event

    def __call__(self, cfg):
        task = make_task(cfg)

        def score(problems, *batch):
            if problems is task.train:
                self.left -= 1
                if self.left == 0:
                    self.event()
            return task.score(problems, *batch)

        return dataclasses.replace(task, score=score)


def terminated():
    os.kill(os.getpid(), signal.SIGTERM)


def broken():
    raise RuntimeError("the scorer is gone")


@pytest.mark.parametrize(
    "event, after", [(terminated, 3), (terminated, 6), (broken, 4)]
)
def test_an_interruption_does_not_show(finished, tmp_path, monkeypatch, event, after):
    config, straight, summary = finished
    config = dataclasses.replace(config, run_dir=str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(train_lib, "make_task", Stopper(after, event))
        if event is broken:
            with pytest.raises(RuntimeError, match="the scorer is gone"):
                small.train(config)
            stored = runlog.read_json(tmp_path / "summary.json")
            assert stored["status"] == "failed" and "gone" in stored["error"]
        else:
            out = small.train(config)
            assert out["step"] == after
            assert out["status"] == ("stopped" if after < 6 else "finished")
            assert len(small.rows(tmp_path / "metrics.jsonl")) == after
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    again = small.train(config)
    assert again["status"] == "finished" and again["ledger"] == summary["ledger"]
    for name in STREAMS:
        assert (tmp_path / name).read_bytes() == (straight / name).read_bytes()
    tables = [pq.read_table(f / "problems.parquet") for f in (tmp_path, straight)]
    assert tables[0].equals(tables[1])
    small.assert_same_bits(small.final_params(config), small.final_params(finished[0]))


def test_a_longer_run_goes_on_where_the_shorter_ended(finished, tmp_path):
    config = dataclasses.replace(finished[0], run_dir=str(tmp_path), updates=4)
    assert small.train(config)["step"] == 4
    longer = dataclasses.replace(config, updates=6)
    assert small.train(longer)["step"] == 6
    name = "metrics.jsonl"
    assert (tmp_path / name).read_bytes() == (finished[1] / name).read_bytes()


def test_a_resumed_run_does_not_make_its_base_again(tmp_path, monkeypatch):
    """The base may have left the cache, and the summary still says what it was."""
    config = small.config(
        run_dir=str(tmp_path / "run"),
        cache_dir=str(tmp_path / "cache"),
        updates=2,
        warmstart=WarmstartConfig(steps=1, batch=2),
    )
    first = small.train(config)["warmstart"]
    assert first["steps"] == 1 and not first["cached"]
    monkeypatch.delattr(train_lib.warmstart, "base_policy")
    assert small.train(dataclasses.replace(config, updates=4))["warmstart"] == first


def test_a_batch_feeds_several_updates(tmp_path):
    config = small.config(
        run_dir=str(tmp_path),
        epochs=2,
        minibatches=2,
        updates=8,
        objective=dataclasses.replace(METHODS["mc_grpo"], anchor=anchors.Rescored()),
        evaluation=EvaluationConfig(every=0, samples=3, problems=5),
    )
    summary = small.train(config)
    rows = small.rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 9)) and summary["step"] == 8
    assert [row["round"] for row in rows] == [0] * 4 + [1] * 4
    assert [row["step"] for row in small.rows(tmp_path / "eval.jsonl")] == [0, 8]
    for part in (rows[:4], rows[4:]):
        assert len({row["ledger/flops"] for row in part}) == 1
    spent = summary["ledger"]
    assert spent["rollouts"] == 2 * 8 * 5
    seen = spent["generated_tokens"] - spent["discarded_tokens"]
    assert spent["trained_tokens"] == 2 * seen and spent["scored_tokens"] == seen
    ratios = np.array([row["log_ratio_sq"] for row in rows])
    assert (ratios[[0, 4]] < 1e-12).all() and (np.delete(ratios, [0, 4]) > 1e-9).all()


def test_a_mesh_gives_the_numbers_of_one_device(finished, tmp_path):
    config = dataclasses.replace(
        finished[0], run_dir=str(tmp_path), updates=1, mesh=MeshConfig(2, 2, 2)
    )
    train_lib.train(config, quiet=True)
    (row,) = small.rows(tmp_path / "metrics.jsonl")
    want = small.rows(finished[1] / "metrics.jsonl")[0]
    assert row.keys() == want.keys()
    for name, value in want.items():
        assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    # Weights of a run on a mesh start another on one device.
    other = small.resolved(
        run_dir=str(tmp_path / "next"), updates=1, initial=str(tmp_path)
    )
    small.train(other)
    first = small.rows(tmp_path / "next" / "eval.jsonl")[0]
    assert first["reward"] != small.rows(tmp_path / "eval.jsonl")[0]["reward"]


def test_completions_can_be_judged_as_text(tmp_path):
    path = tmp_path / "problems.jsonl"
    records = [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(12)]
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    task = TaskConfig(
        name="jsonl", path=str(path), train_problems=0, heldout_problems=4
    )
    config = small.config(run_dir=str(tmp_path / "run"), updates=1, task=task)
    summary = small.train(config)
    assert summary["status"] == "finished" and summary["final"]["problems"] == 4
    samples = small.rows(tmp_path / "run" / "samples.jsonl")
    assert len(samples) == 2 * 2 and all("=" in s["prompt"] for s in samples)


@pytest.mark.parametrize(
    "changes, text",
    [
        (dict(problems=24), r"problems=24 .* only 16"),
        (dict(mesh=MeshConfig(2, 1, 1)), r"needs 2 devices, and there are 8"),
        (dict(mesh=MeshConfig(1, 1, 8)), r"heads=2 does not divide by 8"),
        (
            dict(model=dataclasses.replace(small.MODEL, vocab=7)),
            r"model.vocab=7, but task=sequence has a tokenizer of 6 ids",
        ),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_leaves_a_trace(
    tmp_path, changes, text
):
    config = small.config(run_dir=str(tmp_path / "run"), **changes)
    with pytest.raises(ValueError, match=text):
        train_lib.train(config, quiet=True)
    assert not (tmp_path / "run").exists()


def test_the_default_folder_is_named_by_what_decides_the_run():
    name = lambda **changes: train_lib.default_run_dir(small.config(**changes))
    assert name() == name(save_every=3, keep_last=5, wandb="offline", cache_dir="x")
    others = [name(), name(seed=1), name(rollouts=6), name(task=TaskConfig())]
    assert len(set(others)) == 4
