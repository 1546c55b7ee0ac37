"""Tests for jaxrl/runlog.py: rows as documented, cut on resume, one run a folder."""

import dataclasses
import json
import math

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest

from algorithms.methods import METHODS
from jaxrl import config_io, estimators, evaluate, runlog, schema
from jaxrl.config import OptimizerConfig
from tests.jaxrl import small

CONFIG = small.config()


def documented(samples):
    """Names in eval.jsonl, patterns written out."""
    names = set()
    for name in schema.EVAL:
        # The k of maj@k is all samples; K of the others is each size.
        some = [samples] if name.endswith("@k") else estimators.sizes(samples)
        stem = name[:-1] if name.endswith(("@K", "@k")) else None
        names |= {f"{stem}{k}" for k in some} if stem else {name}
    bounded = {n for n in names if "@" in n} | {"reward"}
    return names | {f"{n}_{side}" for n in bounded for side in ("low", "high")}


@pytest.mark.parametrize("name", ["metrics", "timing", "eval", "problems"])
def test_rows_hold_what_is_documented_and_nothing_else(finished, name):
    config, folder, _ = finished
    want = {
        "metrics": set(schema.METRICS),
        "timing": set(schema.TIMING),
        "eval": documented(config.evaluation.samples),
        "problems": set(schema.PROBLEMS),
    }[name]
    if name == "problems":
        table = pq.read_table(folder / "problems.parquet")
        assert set(table.column_names) == want
        for column, text in schema.PROBLEMS.items():
            kind = str(table.schema.field(column).type)
            assert text.startswith({"float": "float32"}.get(kind, kind))
        return
    rows = small.rows(folder / f"{name}.jsonl")
    assert rows and all(set(row) == want for row in rows)


def test_a_run_folder_holds_the_documented_files(finished):
    config, folder, _ = finished
    assert {p.name for p in folder.iterdir()} == {f.rstrip("/") for f in schema.FILES}
    assert runlog.read_json(folder / "schema.json") == schema.document()
    stored = config_io.from_dict(type(config), runlog.read_json(folder / "config.json"))
    assert stored == config
    (attempt,) = runlog.read_json(folder / "environment.json")
    assert attempt["packages"]["jax"] == jax.__version__


def evaluation(rewards):
    """Of two problems, [2, K]."""
    return evaluate.Evaluation(
        row={},
        problem_P=np.array([11, 22], np.int32),
        reward_PK=np.array(rewards, np.float32),
        texts=[["a"], ["b"]],
        index_P=np.arange(2),
        tokens=1,
        flops=1,
    )


@pytest.fixture
def log(tmp_path):
    """A run that got to update 3 and was evaluated at 0 and 2."""
    log = runlog.RunLog(tmp_path / "run", CONFIG)
    log.start(-1)
    problems = dataclasses.make_dataclass("P", ["prompts"])(("p", "q"))
    for step in range(4):
        if step:
            log.metrics({"step": step, "loss": math.nan if step == 2 else 0.5})
            log.timing(step, {"sample": 1.0})
        if step % 2 == 0:
            out = evaluation([[1, 0.5], [0, math.nan]])
            log.evaluation({"step": step}, out)
            log.samples(step, problems, out, count=1)
    log.close()
    return log


def stored_steps(folder):
    out = {
        name: [row["step"] for row in small.rows(folder / f"{name}.jsonl")]
        for name in ("metrics", "timing", "eval", "samples")
    }
    table = pq.read_table(folder / "problems.parquet")
    return out | {"problems": table["step"].to_pylist()}


@pytest.mark.parametrize(
    "step, updates, evals",
    [(3, [1, 2, 3], [0, 2]), (2, [1, 2], [0, 2]), (1, [1], [0]), (-1, [], [])],
)
def test_resuming_drops_what_will_be_made_again(log, step, updates, evals):
    folder = log.folder
    before = (folder / "metrics.jsonl").read_bytes()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # Killed while writing.
    again = runlog.RunLog(folder, CONFIG)
    again.start(step)
    assert before.startswith((folder / "metrics.jsonl").read_bytes())
    assert stored_steps(folder) == {
        "metrics": updates,
        "timing": updates,
        "eval": evals,
        "samples": evals,
        "problems": [e for e in evals for _ in range(2)],
    }
    again.metrics({"step": step + 1})
    again.timing(step + 1, {})
    again.close()
    assert stored_steps(folder)["metrics"] == [*updates, step + 1]
    attempts = [row["attempt"] for row in small.rows(folder / "timing.jsonl")]
    assert attempts == [0] * len(updates) + [1]


def test_numbers_are_written_as_they_are(log):
    losses = [row["loss"] for row in small.rows(log.folder / "metrics.jsonl")]
    assert losses[0] == losses[2] == 0.5 and math.isnan(losses[1])
    table = pq.read_table(log.folder / "problems.parquet").to_pydict()
    assert table["problem"] == [11, 22, 11, 22]
    # What could not be scored counts nowhere.
    assert table["samples"] == [2, 1, 2, 1] and table["correct"] == [1, 0, 1, 0]
    assert table["reward_sum"] == [1.5, 0.0, 1.5, 0.0]
    (first, _) = small.rows(log.folder / "samples.jsonl")
    assert first == {
        "step": 0,
        "problem": 11,
        "prompt": "p",
        "completion": "a",
        "reward": 1.0,
    }


LONGER = dict(updates=12)
COSINE = dict(optimizer=OptimizerConfig(schedule="cosine"))


@pytest.mark.parametrize(
    "old, new, named",
    [
        ({}, {}, []),
        ({}, dict(save_every=9, keep_last=9, run_dir="x", wandb="offline"), []),
        ({}, dict(log_samples=0, cache_dir="x"), []),
        ({}, LONGER, []),
        (LONGER, {}, ["updates: was 12, now 6"]),
        (COSINE, COSINE | LONGER, ["updates: was 6, now 12"]),
        ({}, dict(seed=1), ["seed: was 0, now 1"]),
        (
            {},
            dict(seed=1, objective=METHODS["rloo"]),
            ["seed: was 0", "objective.name: was 'grpo', now 'rloo'"],
        ),
    ],
)
def test_a_folder_belongs_to_one_run(tmp_path, old, new, named):
    old, new = small.config(**old), small.config(**new)
    assert runlog.finished(tmp_path / "run", old) is None
    log = runlog.RunLog(tmp_path / "run", old)
    log.close()
    if not named:
        assert runlog.finished(tmp_path / "run", new) is None
        return
    with pytest.raises(ValueError) as error:
        runlog.finished(tmp_path / "run", new)
    assert all(text in str(error.value) for text in [*named, "--run_dir"])


@pytest.mark.parametrize(
    "summary, left_alone",
    [
        (dict(status="finished", step=6), True),
        (dict(status="finished", step=4), False),
        (dict(status="stopped", step=6), False),
        (dict(status="failed", error="x"), False),
    ],
)
def test_only_a_whole_run_is_finished(tmp_path, summary, left_alone):
    log = runlog.RunLog(tmp_path, CONFIG)
    log.summary(summary)
    log.close()
    assert runlog.finished(tmp_path, CONFIG) == (summary if left_alone else None)


def test_a_config_that_is_none_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not valid JSON"):
        runlog.finished(tmp_path, CONFIG)
    (tmp_path / "config.json").write_text('{"seeds": 1}')
    with pytest.raises(ValueError, match=r"config\.json: unknown key seeds"):
        runlog.finished(tmp_path, CONFIG)


def test_json_files_are_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    runlog.write_json(path, {"a": 1})

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runlog.os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            runlog.write_json(path, {"a": 2})
    assert runlog.read_json(path) == {"a": 1}
    runlog.write_json(path, {"a": 3})
    assert json.loads(path.read_text()) == {"a": 3} and len([*tmp_path.iterdir()]) == 1
