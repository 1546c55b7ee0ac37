"""The README's commands parse, its links exist, its tables match the code."""

import importlib.util
import pathlib
import re
import shlex

from absl import flags as absl_flags
import pytest

from algorithms.methods import METHODS
from experiments import flags, presets
from jaxrl import schema
from jaxrl.config import Config

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^python -m (experiments\..*)$", README, re.MULTILINE)


def test_there_are_commands_to_check():
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_parses(command):
    module, *args = shlex.split(command, comments=True)
    assert importlib.util.find_spec(module) is not None
    if module != "experiments.train":
        return
    values = absl_flags.FlagValues()
    absl_flags.DEFINE_string("config", "arithmetic", "", flag_values=values)
    flags.define(Config, values)
    left = flags.parse(["train", *args], values)
    flags.refuse_positional(left, values)
    config = flags.override(presets.load(values.config), values)
    assert isinstance(config, Config)


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", README))
def test_a_link_within_the_repository_exists(target):
    if not target.startswith("https://"):
        assert (ROOT / target).exists()


def test_every_method_and_preset_is_listed():
    rows = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert set(METHODS) <= rows
    for name in presets.PRESETS:
        assert f"`{name}`" in README


def test_the_run_folder_table_is_the_schema():
    rows = set(
        re.findall(
            r"^\| `([\w.]+(?:json|jsonl|parquet)|checkpoints/)` \|", README, re.M
        )
    )
    assert rows == set(schema.FILES)
