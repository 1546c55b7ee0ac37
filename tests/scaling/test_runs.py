"""Tests for scaling/runs.py: what a whole, a killed and a wrong folder give."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from jaxrl import schema
from scaling import runs
from tests.scaling import folders


@pytest.fixture
def folder(tmp_path):
    correct_EP = folders.successes(folders.COMPUTE, problems=5, samples=8)
    return folders.write_run(tmp_path / "run", correct_EP)


def test_a_whole_folder_comes_back_as_it_was_written(folder):
    run = runs.read_run(folder)
    correct_EP = folders.successes(folders.COMPUTE, problems=5, samples=8)
    assert run.config == {"train": {"rollouts": 8}} and run.status == "finished"
    assert set(run.metrics) == set(schema.METRICS)
    np.testing.assert_array_equal(run.metrics["step"], np.arange(1, 121))
    np.testing.assert_array_equal(run.evals["ledger/flops"], folders.COMPUTE)
    np.testing.assert_allclose(run.evals["avg"], correct_EP.mean(axis=1) / 8)
    np.testing.assert_array_equal(run.problems["correct"], correct_EP.ravel())
    assert run.evals["step"].dtype == run.problems["step"].dtype == np.int64
    assert run.torn == () and set(run.repeated.values()) == {0}


def test_every_field_relied_on_is_documented_where_runs_are_written():
    for file, fields in runs.FIELDS.items():
        assert set(fields) <= set(schema.FILES[file])
    assert runs.VERSION == schema.VERSION


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s | {"version": schema.VERSION + 1}, "newer"),
        (lambda s: s | {"version": "1"}, "version"),
        (lambda s: s["files"]["eval.jsonl"].pop("avg_low") and s, "avg_low"),
        (lambda s: [s], "object"),
    ],
)
def test_other_schemas_are_refused(folder, change, says):
    changed = change(json.loads(json.dumps(schema.document())))
    (folder / "schema.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=says):
        runs.read_run(folder)


def test_a_folder_without_schema_is_refused(folder):
    (folder / "schema.json").unlink()
    with pytest.raises(FileNotFoundError, match="schema.json"):
        runs.read_run(folder)


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_torn_last_line_is_dropped_and_told(folder, cut):
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[: -1 - cut])
    run = runs.read_run(folder)
    assert run.torn == ("metrics.jsonl",)
    assert run.metrics["step"][-1] == 119


def test_a_last_line_that_lacks_only_its_newline_is_whole(folder):
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    run = runs.read_run(folder)
    assert run.torn == () and run.metrics["step"][-1] == 120


def test_of_a_repeated_step_the_last_stays(folder):
    """Logged to 249, killed, resumed at 203."""
    first = [{"step": s, "reward": 1.0} for s in range(1, 250)]
    second = [{"step": s, "reward": 2.0} for s in range(203, 260)]
    folders.lines(folder / "metrics.jsonl", first + second)
    run = runs.read_run(folder)
    np.testing.assert_array_equal(run.metrics["step"], np.arange(1, 260))
    want = np.where(run.metrics["step"] < 203, 1.0, 2.0)
    np.testing.assert_array_equal(run.metrics["reward"], want)
    assert run.repeated["metrics.jsonl"] == 249 - 203 + 1


def test_of_a_repeated_problem_the_last_stays(folder):
    path = folder / "problems.parquet"
    table = pyarrow.parquet.read_table(path)
    again = table.slice(0, 5).set_column(
        3, "correct", pyarrow.array(np.full(5, 7, np.int32))
    )
    pyarrow.parquet.write_table(pyarrow.concat_tables([table, again]), path)
    run = runs.read_run(folder)
    assert run.repeated["problems.parquet"] == 5
    assert len(run.problems["step"]) == len(table)
    np.testing.assert_array_equal(run.problems["correct"][:5], 7)
    np.testing.assert_array_equal(
        run.problems["correct"][5:], table["correct"].to_numpy()[5:]
    )


def test_missing_files_of_a_young_run_are_empty(folder):
    for name in ("metrics.jsonl", "eval.jsonl", "problems.parquet", "summary.json"):
        (folder / name).unlink()
    run = runs.read_run(folder)
    assert run.metrics == run.evals == run.summary == {}
    assert run.problems is None and run.status == "unknown"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"step": 1, "reward": "high"}', r"metrics.jsonl, line 2, field 'reward'"),
        ('{"step": 1, "reward": true}', r"line 2, field 'reward'"),
        ('{"reward": 1.0}', r"line 2, field 'step'"),
        ('{"step": 1.5}', r"line 2, field 'step'"),
        ("[1]", r"line 2: \[1\] is not an object"),
        ('{"step": 1, "rew', r"line 2 is not JSON"),
    ],
)
def test_errors_name_file_line_and_field(folder, line, says):
    text = f'{{"step": 0}}\n{line}\n{{"step": 2}}\n'
    (folder / "metrics.jsonl").write_text(text)
    with pytest.raises(ValueError, match=says):
        runs.read_run(folder)


def test_a_parquet_file_that_lacks_a_field_or_is_cut_is_named(folder):
    path = folder / "problems.parquet"
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.drop_columns(["correct"]), path)
    with pytest.raises(ValueError, match="problems.parquet, field 'correct'"):
        runs.read_run(folder)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="problems.parquet is not readable"):
        runs.read_run(folder)


def test_values_that_are_no_numbers_are_kept_as_such(folder):
    text = '{"step": 1, "loss": NaN, "reward": 1}\n{"step": 2, "loss": Infinity}\n'
    (folder / "metrics.jsonl").write_text(text + '{"step": 3, "loss": null}\n')
    run = runs.read_run(folder)
    np.testing.assert_array_equal(run.metrics["loss"], [np.nan, np.inf, np.nan])
    np.testing.assert_array_equal(run.metrics["reward"], [1.0, np.nan, np.nan])


def test_usable_rows_count_each_row_once():
    columns = {
        "x": np.array([1.0, 0.0, -2.0, np.nan, np.inf, 5.0, 6.0]),
        "y": np.array([1.0, np.nan, 0.0, np.nan, 1.0, np.nan, 0.0]),
    }
    keep_N, counts = runs.usable_rows(columns, positive=["x"])
    np.testing.assert_array_equal(keep_N, [True] + [False] * 5 + [True])
    assert counts == {"x not finite": 2, "x not positive": 2, "y not finite": 1}


def test_scaling_imports_nothing_of_the_engine():
    """In a process of its own, since other tests import everything."""
    root = pathlib.Path(__file__).parents[2]
    code = "import sys, scaling.fit, scaling.runs; print(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, check=True
    )
    packages = {name.split(".")[0] for name in out.stdout.decode().split()}
    assert not packages & {"jax", "jaxrl", "models", "algorithms", "matplotlib"}
