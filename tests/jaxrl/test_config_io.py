"""Tests for jaxrl/config_io.py: there and back, and what is refused on the way."""

import copy
import dataclasses
import json
import math

import pytest

from jaxrl import config_io
from jaxrl.config import Config, TaskConfig
from models.config import ModelConfig, RopeConfig


@dataclasses.dataclass(frozen=True)
class Inner:
    """One leaf of each type; the annotation in quotes is resolved."""

    rate: "float" = 0.5
    steps: int = 3
    on: bool = True
    label: str = "a"
    layers: tuple[int, ...] = (1, 2)

    def __post_init__(self):
        if self.steps < 0:
            raise ValueError(f"steps={self.steps} is negative")


@dataclasses.dataclass(frozen=True)
class Outer:
    """A section and a leaf."""

    seed: int = 0
    inner: Inner = dataclasses.field(default_factory=Inner)


def edited(key, value):
    """Outer's data with one value of the inner section replaced."""
    data = config_io.to_dict(Outer())
    data["inner"][key] = value
    return data


def message(data, cls=Outer):
    with pytest.raises(ValueError) as caught:
        config_io.from_dict(cls, data)
    return str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        Outer(),
        Outer(seed=-1, inner=Inner(rate=1e-300, on=False, label="ü", layers=())),
        Config(),
        Config(
            task=TaskConfig(name="reasoning_gym", dataset="x", options='{"a": 1}'),
            model=ModelConfig(tied=False, rope=RopeConfig(theta=10 / 3)),
            seed=2**32 - 1,
        ),
    ],
)
def test_json_and_back_is_the_identity(config):
    text = json.dumps(config_io.to_dict(config), allow_nan=False)
    assert config_io.from_dict(type(config), json.loads(text)) == config


def test_every_field_is_written():
    assert config_io.to_dict(Outer()) == {
        "seed": 0,
        "inner": {
            "rate": 0.5,
            "steps": 3,
            "on": True,
            "label": "a",
            "layers": [1, 2],
        },
    }


def test_whole_number_is_the_float_it_stands_for():
    got = config_io.from_dict(Outer, edited("rate", 3)).inner.rate
    assert got == 3.0 and type(got) is float
    assert type(config_io.to_dict(Inner(rate=3))["rate"]) is float


@pytest.mark.parametrize(
    "key, value, expected",
    [
        *[("rate", v, "float") for v in ("1e-5", "3e-4", "1e5", "1:30", None, True)],
        *[("steps", v, "int") for v in ("3", 3.0, 3.5, None, True, [3])],
        *[("on", v, "bool") for v in ("no", "False", 0, 1, None)],
        *[("label", v, "str") for v in (3, None, True)],
        *[("layers", v, "a list of int") for v in (3, "1,2", None, {})],
    ],
)
def test_mistyped_value_names_key_value_and_type(key, value, expected):
    said = message(edited(key, value))
    assert f"inner.{key}={value!r}" in said and f"expected {expected}" in said


@pytest.mark.parametrize("item", ["2", 2.0, None, True])
def test_mistyped_item_names_its_place(item):
    said = message(edited("layers", [1, item]))
    assert f"inner.layers[1]={item!r}" in said and "expected int" in said


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_floats_are_finite_both_ways(value):
    assert "inner.rate=" in message(edited("rate", value))
    with pytest.raises(ValueError, match="rate=.* is not finite"):
        config_io.to_dict(Inner(rate=value))


def test_unknown_key_is_refused_with_the_nearest():
    said = message(edited("step", 4))
    assert "unknown key inner.step=4; did you mean inner.steps?" in said
    assert "unknown key zzz=1" in message({**config_io.to_dict(Outer()), "zzz": 1})


def test_missing_key_is_refused():
    data = config_io.to_dict(Outer())
    del data["inner"]["on"]
    assert "missing key inner.on, expected bool" in message(data)
    assert "missing key inner, expected an object" in message({"seed": 0})


@pytest.mark.parametrize("data", [None, [], "x", 3])
def test_section_that_is_no_object_is_refused(data):
    assert f"config={data!r}" in message(data)
    assert f"inner={data!r}" in message({"seed": 0, "inner": data})


def test_validators_run_and_the_section_is_named():
    assert message(edited("steps", -1)) == "inner: steps=-1 is negative"


def test_mistyped_config_is_not_written():
    with pytest.raises(ValueError, match="updates=200.0 is float, expected int"):
        config_io.to_dict(Config(updates=200.0))


def test_type_without_a_json_form_is_an_error_of_the_class():
    odd = dataclasses.make_dataclass("Odd", [("x", dict)])
    with pytest.raises(TypeError, match="x: no JSON form"):
        config_io.to_dict(odd({}))


def test_data_is_left_as_it_was():
    data = edited("rate", 3)
    before = copy.deepcopy(data)
    config_io.from_dict(Outer, data)
    assert data == before
