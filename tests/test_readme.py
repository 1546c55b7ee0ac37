"""The README's commands parse, its links exist, its tables match the code."""

import importlib.util
import pathlib
import re
import shlex

from absl import flags as absl_flags
import pytest

from algorithms.methods import METHODS
from experiments import flags, method_table, presets
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


def test_methods_md_is_what_the_code_has():
    assert (ROOT / "METHODS.md").read_text() == method_table.text(), (
        "run python -m experiments.method_table"
    )


def test_methods_and_presets_that_are_named_exist():
    section = README.split("## Objectives")[1].split("##")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) >= 8 and named <= set(METHODS)
    for name in presets.PRESETS:
        assert f"`{name}`" in README


def test_the_run_folder_table_is_the_schema():
    rows = set(
        re.findall(
            r"^\| `([\w.]+(?:json|jsonl|parquet)|checkpoints/)` \|", README, re.M
        )
    )
    assert rows == set(schema.FILES)
