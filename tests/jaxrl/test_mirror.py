"""Tests for jaxrl/mirror.py: rows in order, and failures that stop nothing."""

import logging
import subprocess
import sys
import types

import pytest

from jaxrl import mirror
from tests.jaxrl import small


class Fake:
    """A wandb run that refuses a smaller step, as the real one drops its row."""

    def __init__(self):
        self.steps, self.finished = [], False

    def log(self, row, step):
        assert not self.steps or step >= self.steps[-1]
        self.steps.append(step)

    def finish(self):
        self.finished = True


@pytest.fixture
def fake(monkeypatch):
    """Replaces wandb; holds the run, and what it was opened with."""
    run = Fake()
    module = types.SimpleNamespace(Settings=dict, calls=[], run=run)

    def init(**options):
        module.calls.append(options)
        return run

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_a_run_mirrors_every_row_in_order(fake, tmp_path):
    small.train(small.config(run_dir=str(tmp_path / "run"), updates=2, wandb="offline"))
    # The base policy, two updates, and the last evaluation.
    assert fake.run.steps == [0, 1, 2, 2] and fake.run.finished
    (options,) = fake.calls
    assert options["mode"] == "offline" and options["config"]["updates"] == 2


def test_attempts_at_one_folder_are_one_run(fake, tmp_path):
    for name in ("a", "a", "b"):
        mirror.Mirror("online", tmp_path / name, {}).close()
    first, second, other = (c["id"] for c in fake.calls)
    assert first == second != other


def broken(*args, **kwargs):
    raise OSError("no space left")


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_failure_is_told_once_and_stops_nothing(
    fake, monkeypatch, caplog, tmp_path, where
):
    monkeypatch.setattr(fake if where == "init" else fake.run, where, broken)
    with caplog.at_level(logging.WARNING, logger="jaxrl.mirror"):
        copy = mirror.Mirror("offline", tmp_path, {})
        copy.log(1, {"loss": 0.5})
        copy.log(2, {"loss": 0.5})
        copy.close()
        copy.close()
    assert caplog.text.count("no space left") == 1


def test_the_real_one_writes_offline(tmp_path):
    copy = mirror.Mirror("offline", tmp_path, {"updates": 2})
    for step in (1, 2):
        copy.log(step, {"loss": 0.5})
    assert copy._run is not None and copy._run.step >= 2
    copy.close()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert file.stat().st_size > 0


def test_off_does_not_import_it(tmp_path):
    code = (
        "import sys, pathlib; from jaxrl import mirror;"
        "m = mirror.Mirror('off', pathlib.Path('.'), {}); m.log(1, {}); m.close();"
        "sys.exit('wandb' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
