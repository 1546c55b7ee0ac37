"""The demo end to end, on a model and a budget far too small to learn anything."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent

TINY = [
    "--updates=2",
    "--problems=4",
    "--rollouts=2",
    "--model.layers=1",
    "--model.width=16",
    "--model.ffn=16",
    "--task.train_problems=50",
    "--task.heldout_problems=8",
    "--warmstart.steps=2",
    "--evaluation.every=1",
    "--log_samples=2",
]


@pytest.mark.slow
def test_the_demo_shows_completions_a_table_a_law_and_a_figure(tmp_path):
    out = subprocess.run(
        [sys.executable, "-m", "experiments.demo", "--seeds=1,2", f"--out={tmp_path}"]
        + [f"--cache_dir={tmp_path}/cache", *TINY],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr
    for part in ("seed 1:", "seed 2:", "before", "after", "smallest gain", "avg@4"):
        assert part in out.stdout
    # A policy this small never gains, and the report says so in place of a law.
    assert "held-out 8 problems x 4 samples" in out.stdout
    assert (tmp_path / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
    assert "reward" in out.stderr and "tok/s" in out.stderr


def test_seeds_are_whole_numbers():
    from experiments import demo

    assert demo.seeds(["1", "20"]) == [1, 20]
    with pytest.raises(ValueError, match="--seeds=1,x: expected whole numbers"):
        demo.seeds(["1", "x"])
