"""Tests for jaxrl/config_io.py: there and back, and what is refused on the way."""

import copy
import dataclasses
import json
import math

import pytest

from algorithms.methods import METHODS, Method
from jaxrl import config_io
from jaxrl.config import Config, TaskConfig
from models.config import ModelConfig, RopeConfig, field


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


@dataclasses.dataclass(frozen=True)
class Rule:
    """Options of a class each: the name is no field."""

    @property
    def name(self):
        return type(self).__name__.lower()


@dataclasses.dataclass(frozen=True)
class Clip(Rule):
    low: float = 0.2
    layers: tuple[int, ...] = (1,)

    def __post_init__(self):
        if self.low > 1:
            raise ValueError(f"clip.low={self.low} is above 1")


@dataclasses.dataclass(frozen=True)
class Off(Rule):
    pass


RULES = {rule.name: rule for rule in (Off(), Clip())}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Options of one class: the name is a field."""

    name: str = "plain"
    rule: Rule = field(Clip(), "", options=RULES)
    cap: float = 0.0


@dataclasses.dataclass(frozen=True)
class Lab:
    """A table of rows, which have tables of classes in them."""

    recipe: Recipe = field(Recipe(), "", options={"plain": Recipe(), "b": Recipe("b")})


def rule_edited(**values):
    """Lab's data with values of its rule replaced, and without those that are ..."""
    data = config_io.to_dict(Lab())
    rule = data["recipe"]["rule"] | values
    data["recipe"]["rule"] = {k: v for k, v in rule.items() if v is not ...}
    return data


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
        Lab(),
        Lab(Recipe("b", rule=Off(), cap=1e-300)),
        Lab(Recipe(rule=Clip(low=0.75, layers=()))),
        *METHODS.values(),
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


def test_an_option_is_written_with_its_name_and_its_settings():
    assert config_io.to_dict(Lab(Recipe("b", rule=Clip(low=0)))) == {
        "recipe": {
            "name": "b",
            "rule": {"name": "clip", "low": 0.0, "layers": [1]},
            "cap": 0.0,
        }
    }
    assert config_io.to_dict(Recipe(rule=Off()))["rule"] == {"name": "off"}


PARTS = [
    (f.name, part)
    for f in dataclasses.fields(Method)
    for part in (config_io.options(f) or {}).values()
]


@pytest.mark.parametrize("slot, part", PARTS, ids=lambda x: getattr(x, "name", x))
def test_every_setting_of_every_part_is_written(slot, part):
    f = Method.__dataclass_fields__[slot]
    same = dataclasses.field(default=f.default, metadata=f.metadata)
    cls = dataclasses.make_dataclass("Holder", [(slot, object, same)])
    data = json.loads(json.dumps(config_io.to_dict(cls(part))))
    assert list(data[slot]) == ["name", *(s.name for s in dataclasses.fields(part))]
    assert config_io.from_dict(cls, data) == cls(part)


@pytest.mark.parametrize(
    "values, said",
    [
        (
            {"name": "Clipp"},
            "recipe.rule.name='Clipp' is not one of clip, off; did you mean clip?",
        ),
        ({"name": ""}, "recipe.rule.name='' is not one of clip, off"),
        ({"name": ["clip"]}, "recipe.rule.name=['clip'] is list, expected str"),
        ({"name": ...}, "missing key recipe.rule.name, expected str"),
        ({"low": ...}, "missing key recipe.rule.low, expected float"),
        ({"low": "0.2"}, "recipe.rule.low='0.2' is str, expected float"),
        ({"layers": [1.0]}, "recipe.rule.layers[0]=1.0 is float, expected int"),
        (
            {"lows": 1},
            "unknown key recipe.rule.lows=1; did you mean recipe.rule.low?",
        ),
        ({"name": "off", "layers": ...}, "unknown key recipe.rule.low=0.2"),
        ({"low": 2}, "recipe.rule: clip.low=2.0 is above 1"),
    ],
)
def test_options_are_read_strictly(values, said):
    data = rule_edited(**values)
    before = copy.deepcopy(data)
    assert message(data, Lab) == said
    assert data == before


@pytest.mark.parametrize(
    "recipe, said",
    [
        (None, "recipe=None is NoneType, expected an object"),
        ("plain", "recipe='plain' is str, expected an object"),
        ({"name": "c"}, "recipe.name='c' is not one of b, plain"),
        ({"name": "b"}, "missing key recipe.rule, expected an object"),
        (
            {"name": "b", "rule": "clip", "cap": 0.0},
            "recipe.rule='clip' is str, expected an object",
        ),
    ],
)
def test_an_option_is_a_whole_object(recipe, said):
    assert message({"recipe": recipe}, Lab) == said
    assert message({}, Lab) == "missing key recipe, expected an object"


@dataclasses.dataclass(frozen=True)
class Clipped(Rule):
    """In no table, though its name is."""

    name = "clip"


@pytest.mark.parametrize(
    "recipe, said",
    [
        (Recipe("c"), "recipe='c' is not one of b, plain"),
        (Recipe(rule=Rule()), "recipe.rule='rule' is not one of clip, off"),
        (Recipe(rule=Clipped()), "recipe.rule='clip' is Clipped, expected Clip"),
        (Recipe(rule=None), "recipe.rule=None is not one of clip, off"),
        (Recipe(rule=Clip(layers=3)), "recipe.rule.layers=3 is int, expected a list"),
    ],
)
def test_options_in_no_table_are_not_written(recipe, said):
    with pytest.raises(ValueError, match=said):
        config_io.to_dict(Lab(recipe))


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
