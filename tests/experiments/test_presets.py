"""Tests for experiments/presets.py: every preset, config files, what is refused."""

import dataclasses
import sys

from absl import app
import pytest

from experiments import presets
from jaxrl.config import Config

FILE = """
from __future__ import annotations
import dataclasses
from experiments import presets

@dataclasses.dataclass
class Local:
    x: int = 3

def config():
    return dataclasses.replace(presets.arithmetic(), rollouts=2 * Local().x)
"""


def write(folder, text):
    path = folder / "mine.py"
    path.write_text(text)
    return str(path)


def message(name):
    with pytest.raises(app.UsageError) as caught:
        presets.load(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_preset_is_a_config_that_says_what_to_expect(name):
    assert type(presets.load(name)) is Config
    assert presets.PRESETS[name].__name__ == name
    assert presets.PRESETS[name].__doc__


def test_presets_are_what_their_names_say():
    assert presets.load("arithmetic").task.name == "arithmetic"
    assert presets.load("sequence").task.name == "sequence"


@pytest.mark.parametrize(
    "name, near",
    [("arithmetics", "arithmetic"), ("Sequence", "sequence"), ("SEQUENCE", "sequence")],
)
def test_unknown_preset_lists_the_others_and_the_nearest(name, near):
    said = message(name)
    assert f"config={name!r}" in said and f"did you mean {near}?" in said
    assert all(preset in said for preset in presets.PRESETS)


@pytest.mark.parametrize("name", ["", "None", "zzz"])
def test_no_preset_is_a_default(name):
    said = message(name)
    assert f"config={name!r} is not one of" in said and "did you mean" not in said


def test_file_gives_its_config_and_leaves_nothing_behind(tmp_path):
    before = dict(sys.modules)
    got = presets.load(write(tmp_path, FILE))
    assert got == dataclasses.replace(presets.arithmetic(), rollouts=6)
    assert sys.modules == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_file_is_read_anew_each_time(tmp_path):
    presets.load(write(tmp_path, FILE))
    path = write(tmp_path, FILE.replace("2 *", "4 *"))
    assert presets.load(path).rollouts == 12


def test_file_may_be_named_without_a_folder(tmp_path, monkeypatch):
    write(tmp_path, FILE)
    monkeypatch.chdir(tmp_path)
    assert presets.load("mine.py").rollouts == 6


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "defines no function config()"),
        ("config = 3", "defines no function config()"),
        ("def config(): return 3", "returned int, not a Config"),
        ("def config(): pass", "returned NoneType, not a Config"),
        ("x = 1\ndef config(: pass", "line 2: "),
        (
            "from jaxrl.config import Config\ndef config(): return Config(problems=0)",
            "problems=0 is not in",
        ),
    ],
)
def test_file_without_a_valid_config_is_refused_in_a_sentence(tmp_path, text, said):
    path = write(tmp_path, text)
    assert f"config={path!r}" in message(path) and said in message(path)


@pytest.mark.parametrize("name", ["missing.py", "folder.py", "no/such/preset"])
def test_what_is_no_file_is_refused(tmp_path, name):
    (tmp_path / "folder.py").mkdir()
    assert "there is no such file" in message(str(tmp_path / name))


def test_errors_that_are_the_files_own_pass_through(tmp_path):
    with pytest.raises(ZeroDivisionError):
        presets.load(write(tmp_path, "def config(): return 1 / 0"))
