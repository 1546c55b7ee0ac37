"""A run killed at any moment and started again leaves what a straight one leaves."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from jaxrl import runlog
from tests.jaxrl import small

ROOT = pathlib.Path(__file__).parents[2]
UPDATES = 30
# The objective keeps weights beside those that it trains, and refills batches.
CONFIG = f"""
import dataclasses

from algorithms import anchors, penalties
from algorithms.methods import METHODS
from tests.jaxrl import small
from jaxrl.config import EvaluationConfig, WarmstartConfig

def config():
    return small.config(
        updates={UPDATES},
        epochs=2,
        save_every=3,
        objective=dataclasses.replace(
            METHODS["mc_grpo"],
            anchor=anchors.Ewma(),
            kl=penalties.Reverse(coef=0.1),
            refills=1,
        ),
        evaluation=EvaluationConfig(every=4, samples=3, problems=5),
        warmstart=WarmstartConfig(steps=4, batch=8),
    )
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Working folder of all processes, where they keep compiled programs."""
    place = tmp_path_factory.mktemp("resume")
    (place / "tiny.py").write_text(CONFIG)
    return place


def start(place, folder):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    env.pop("XLA_FLAGS", None)  # One device is enough.
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "experiments.train",
            "--config=tiny.py",
            f"--run_dir={folder}",
        ],
        cwd=place,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(place, folder):
    process = start(place, folder)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert runlog.read_json(folder / "summary.json")["status"] == "finished"


@pytest.fixture(scope="module")
def straight(place):
    folder = place / "straight"
    finish(place, folder)
    return folder


def updates(count):
    """After that many rows of metrics."""

    def reached(folder):
        path = folder / "metrics.jsonl"
        return path.exists() and path.read_bytes().count(b"\n") >= count

    return reached


def saving(after):
    """While a checkpoint is being written, that many updates in."""

    def reached(folder):
        return updates(after)(folder) and any(
            (folder / "checkpoints").glob("*.orbax-checkpoint-tmp*")
        )

    return reached


RANDOM = random.Random(0)
MOMENTS = {
    "before the first checkpoint": [updates(1)],
    "twice anywhere": [updates(RANDOM.randrange(4, 14)), updates(22)],
    "twice while saving": [saving(3), saving(RANDOM.randrange(14, 24))],
}


def kill(process, folder, reached):
    deadline = time.monotonic() + 300
    while not reached(folder):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("moments", MOMENTS)
def test_a_killed_run_ends_as_if_it_had_not_been(place, straight, moments):
    folder = place / moments.replace(" ", "-")
    for reached in MOMENTS[moments]:
        kill(start(place, folder), folder, reached)
        assert runlog.read_json(folder / "summary.json")["step"] < UPDATES
    finish(place, folder)
    for name in ("metrics.jsonl", "eval.jsonl", "samples.jsonl"):
        assert (folder / name).read_bytes() == (straight / name).read_bytes(), name
    rows = small.rows(folder / "timing.jsonl")
    steps = [row["step"] for row in rows]
    assert steps == list(range(2, UPDATES + 1, 2))
    attempts = {row["attempt"] for row in rows}
    assert max(attempts) == len(MOMENTS[moments])
    tables = [pq.read_table(f / "problems.parquet") for f in (folder, straight)]
    assert tables[0].equals(tables[1])
    weights = [
        small.final_params(small.resolved(run_dir=str(f))) for f in (folder, straight)
    ]
    small.assert_same_bits(*weights)
