"""Tests for experiments/learning_curve.py: what is drawn, fitted, said and written."""

import json
import pathlib
import shutil
import subprocess
import sys

from matplotlib import figure as mpl_figure
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from experiments import learning_curve
from jaxrl import schema
from tests.scaling import folders


def write(folder, seed=0, problems=60, samples=8, **options):
    correct_EP = folders.successes(
        options.get("compute_E", folders.COMPUTE), problems, samples, seed
    )
    return folders.write_run(folder, correct_EP, samples, **options)


def texts(figure):
    axes = mpl_figure.Figure().add_subplot()
    learning_curve.draw(figure, axes)
    return axes, [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write(tmp_path_factory.mktemp("one") / "run")


@pytest.fixture(scope="module")
def one(run):
    return learning_curve.data([run], resamples=40)


def test_one_run_is_fitted_with_its_problems_resampled(one):
    correct_EP = folders.successes(folders.COMPUTE, 60, 8)
    (curve,) = one.curves
    np.testing.assert_array_equal(curve.compute, folders.COMPUTE[1:])
    np.testing.assert_allclose(curve.avg, correct_EP[1:].mean(axis=1) / 8)
    assert (curve.problems, curve.samples, curve.failed) == (60, 8, False)
    assert one.base[0] == one.law.theta["R0"] == pytest.approx(correct_EP[0].mean() / 8)
    assert (one.bands.unit, one.bands.units) == ("held-out problems", 60)
    low, high = one.bands.theta["A"]
    assert low < one.law.theta["A"] < high
    low, high = one.bands.theta["R0"]  # The base policy's problems are drawn as well.
    np.testing.assert_allclose([low, high], one.base[1:], atol=0.04)
    assert one.notes == ()


def test_base_policy_is_a_line_and_not_a_point(one):
    axes, legend = texts(one)
    assert axes.get_xscale() == "log"
    (points,) = [c for c in axes.containers if c.has_yerr]
    assert len(points.lines[0].get_xdata()) == len(folders.COMPUTE) - 1
    levels = [
        line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"
    ]
    np.testing.assert_allclose(levels, one.base[0])
    assert any(f"before training: {one.base[0]:.3f}" in entry for entry in legend)


def test_legend_and_labels_say_what_is_shown(one):
    axes, legend = texts(one)
    entries = " ".join(legend)
    assert "60 problems x 8 samples" in entries
    assert "60 held-out problems resampled" in entries
    low, high = one.bands.theta["A"]
    assert f"A = {one.law.theta['A']:.3f} [{low:.3f}, {high:.3f}]" in entries
    assert axes.get_xlabel() == "training compute, FLOPs (sampling + update)"
    assert axes.get_ylabel() == "held-out avg@8"


@pytest.mark.parametrize("axis", learning_curve.AXES)
def test_the_axis_is_a_column_of_the_ledger(run, axis):
    figure = learning_curve.data([run], axis, resamples=2)
    rows = [json.loads(line) for line in (run / "eval.jsonl").read_text().splitlines()]
    want = [row[f"ledger/{axis}"] for row in rows[1:]]
    np.testing.assert_array_equal(figure.curves[0].compute, want)
    assert texts(figure)[0].get_xlabel() == learning_curve.AXES[axis][1]
    assert axis in schema.LEDGER


def test_a_short_range_of_compute_is_drawn_linear(tmp_path):
    compute_E = np.r_[0.0, np.linspace(1e13, 2e13, 6)]
    folder = write(tmp_path / "run", compute_E=compute_E)
    figure = learning_curve.data([folder], resamples=2)
    assert texts(figure)[0].get_xscale() == "linear"
    np.testing.assert_allclose(np.diff(figure.x), 1e13 / 199)


def test_several_runs_are_fitted_together_and_resampled_as_runs(tmp_path):
    paths = [write(tmp_path / f"seed{seed}", seed) for seed in range(3)]
    figure = learning_curve.data(paths, resamples=20)
    bases = [curve.base[0] for curve in figure.curves]
    assert figure.law.points == 3 * (len(folders.COMPUTE) - 1)
    assert (figure.bands.unit, figure.bands.units) == ("runs", 3)
    assert figure.law.theta["R0"] == pytest.approx(np.mean(bases))
    low, high = figure.bands.theta["R0"]
    assert min(bases) <= low < high <= max(bases)
    axes, legend = texts(figure)
    assert [entry[:5] for entry in legend[:3]] == ["seed0", "seed1", "seed2"]
    assert "3 runs are few" in learning_curve.describe(figure)


def test_many_runs_share_one_entry(tmp_path):
    status = ["finished"] * 4 + ["failed"] * 2
    paths = [write(tmp_path / f"{i}", i, status=s) for i, s in enumerate(status)]
    _, legend = texts(learning_curve.data(paths, resamples=2))
    assert legend[0].startswith("runs: 60 problems x 8 samples")
    assert legend[1] == "failed, not fitted"
    assert len(legend) == 5  # And the law, its limit, the policy before training.


def test_a_failed_run_is_drawn_but_not_fitted(tmp_path):
    good = write(tmp_path / "good")
    bad = write(tmp_path / "bad", seed=1, status="failed")
    figure = learning_curve.data([bad, good], resamples=2)
    alone = learning_curve.data([good], resamples=2)
    assert figure.law.theta == alone.law.theta
    assert figure.bands.theta == alone.bands.theta
    assert [curve.failed for curve in figure.curves] == [True, False]
    assert any("bad" in e and "not fitted" in e for e in texts(figure)[1])
    assert "bad failed" in learning_curve.describe(figure)
    only = learning_curve.data([bad])
    assert only.law is None and "every run failed" in learning_curve.describe(only)
    texts(only)


def test_what_a_killed_run_leaves_is_told(tmp_path):
    folder = write(tmp_path / "run", status="running")
    path = folder / "eval.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[-1], lines[-1][:50]]))
    figure = learning_curve.data([folder], resamples=2)
    says = learning_curve.describe(figure)
    assert "status running" in says and "eval.jsonl was cut" in says
    assert "1 evaluations of run were repeated" in says
    assert len(figure.curves[0].avg) == len(folders.COMPUTE) - 1


def test_without_results_by_problem_there_is_no_interval(tmp_path):
    folder = write(tmp_path / "run")
    (folder / "problems.parquet").unlink()
    figure = learning_curve.data([folder])
    assert figure.bands is None and figure.law is not None
    assert "no interval" in learning_curve.describe(figure)
    assert "held-out problems resampled" not in " ".join(texts(figure)[1])


def test_without_a_base_policy_its_score_is_fitted(tmp_path):
    folder = write(tmp_path / "run")
    path = folder / "eval.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    figure = learning_curve.data([folder], resamples=2)
    assert figure.base is None and figure.law.given == ()
    assert not any("before training" in entry for entry in texts(figure)[1])
    assert "measured and not fitted" not in learning_curve.describe(figure)


def test_step_0_stays_out_of_the_law_whatever_its_ledger_says(one, run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    path = folder / "eval.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    first = json.dumps(json.loads(first) | {"ledger/flops": 1e14}) + "\n"
    path.write_text("".join([first, *rest]))
    assert learning_curve.data([folder], resamples=40).bands.theta == one.bands.theta


def test_a_problem_without_a_score_before_training_is_not_resampled(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    table = pyarrow.parquet.read_table(folder / "problems.parquet")
    pyarrow.parquet.write_table(table.slice(1), folder / "problems.parquet")
    assert learning_curve.data([folder], resamples=2).bands.units == 59


def test_files_that_disagree_are_told(tmp_path):
    folder = write(tmp_path / "run")
    path = folder / "problems.parquet"
    table = pyarrow.parquet.read_table(path)
    correct = table["correct"].to_numpy().copy()
    correct[(table["step"].to_numpy() == 30)] = 0
    table = table.set_column(3, "correct", pyarrow.array(correct))
    pyarrow.parquet.write_table(table, path)
    figure = learning_curve.data([folder], resamples=2)
    (note,) = figure.notes
    assert note.startswith("at step 30")


def test_too_few_evaluations_are_drawn_without_a_law(tmp_path):
    folder = write(tmp_path / "run", compute_E=folders.COMPUTE[:3])
    figure = learning_curve.data([folder])
    assert figure.law is None and figure.base is not None
    assert "2 usable points" in learning_curve.describe(figure)
    assert len(texts(figure)[1]) == 2


def test_an_undetermined_asymptote_is_marked(tmp_path):
    folder = write(tmp_path / "run", compute_E=np.r_[0, np.geomspace(1e12, 1.5e13, 12)])
    figure = learning_curve.data([folder], resamples=20)
    assert any("not determined by these points" in entry for entry in texts(figure)[1])
    assert "Warning: " in learning_curve.describe(figure)


def test_description_gives_every_parameter_with_its_interval(one):
    says = learning_curve.describe(one)
    for name, (low, high) in one.bands.theta.items():
        assert f" = {one.law.theta[name]:.4g} [{low:.4g}, {high:.4g}]" in says
    assert "measured and not fitted" in says and "\n" not in says
    assert "95%, 60 held-out problems resampled 40 times" in says


@pytest.mark.parametrize(
    ("lines", "says"), [([], "no values"), ([0], "no evaluation after training")]
)
def test_a_run_without_evaluations_is_named(tmp_path, lines, says):
    folder = write(tmp_path / "run")
    path = folder / "eval.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(rows[i] for i in lines))
    with pytest.raises(ValueError, match=f"run/eval.jsonl has {says}"):
        learning_curve.data([folder])


def test_wrong_axes_and_no_runs_are_refused(run):
    with pytest.raises(ValueError, match="watts"):
        learning_curve.data([run], "watts")
    with pytest.raises(ValueError, match="no run folders"):
        learning_curve.data([])


def test_the_command_writes_a_png_and_a_paragraph(run, tmp_path):
    out = tmp_path / "figures" / "curve.png"
    command = [sys.executable, "-m", "experiments.learning_curve"]
    command += [f"--runs={run}", f"--out={out}", "--axis=rollouts", "--pdf"]
    command += ["--resamples=5"]
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 run(s)") and "rollouts" in done.stdout
    png = out.read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and 20_000 < len(png) < 500_000
    assert out.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_a_pdf_is_written_only_if_asked(one, tmp_path):
    learning_curve.write(one, tmp_path / "curve.png")
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def test_import_neither_draws_nor_defines_flags():
    root = pathlib.Path(__file__).parents[2]
    code = (
        "import sys; from absl import flags; import experiments.learning_curve;"
        "assert 'matplotlib' not in sys.modules and 'jax' not in sys.modules;"
        "assert 'runs' not in flags.FLAGS and 'out' not in flags.FLAGS"
    )
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
