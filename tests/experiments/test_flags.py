"""Tests for experiments/flags.py: values by type, sections, errors, the way back."""

import dataclasses
import itertools
import subprocess
import sys

from absl import app
from absl import flags as absl_flags
import pytest

from algorithms.methods import METHODS, Method
from algorithms.scales import Mad
from experiments import flags, presets
from jaxrl.config import Config, TaskConfig
from jaxrl.config_io import options, typed_fields
from models.config import ModelConfig, RopeConfig, field


@dataclasses.dataclass(frozen=True)
class Span:
    """Two values that only make sense together, and every type of leaf."""

    name: str = field("wide", "wide or thin")
    low: int = field(1, "smallest")
    high: int = field(2, "largest")
    rate: float = field(0.5, "step size")
    on: bool = field(True, "switch")
    layers: tuple[int, ...] = field((1,), "which layers")
    rates: tuple[float, ...] = field((), "a rate for each")
    depth: int = field(3, "of a thin one", only=("thin",))

    def __post_init__(self):
        if self.low >= self.high:
            raise ValueError(f"low={self.low} is not below high={self.high}")
        if self.rate == 0.25:
            raise ValueError("a quarter is refused in other words")


@dataclasses.dataclass(frozen=True)
class Box:
    """A section with a section in it, whose default differs from its class's."""

    size: int = field(7, "how large")
    span: Span = dataclasses.field(default_factory=lambda: Span(low=0))


@dataclasses.dataclass(frozen=True)
class Rule:
    """Options of a class each: the name is no field."""

    @property
    def name(self):
        return type(self).__name__.lower()


@dataclasses.dataclass(frozen=True)
class Off(Rule):
    """No rule. Not at all."""


@dataclasses.dataclass(frozen=True)
class Clip(Rule):
    """Cuts; hard.

    More of it.
    """

    low: float = field(0.2, "lower bound", range=(0.0, 1.0))
    high: float = field(0.3, "upper bound")

    def __post_init__(self):
        if self.low > 1:
            raise ValueError(f"clip.low={self.low} is above 1")


@dataclasses.dataclass(frozen=True)
class Mask(Rule):
    """Drops."""

    low: float = field(0.1, "least kept", range=(0.0, 1e9))
    budget: float = field(0.5, "room")
    strict: bool = field(True, "whole rows", range=(0.0, 1.0))
    layers: tuple[int, ...] = field((1,), "which layers")


@dataclasses.dataclass(frozen=True)
class Soft(Rule):
    """Bends"""

    budget: float = field(0.75, "room")


RULES = {rule.name: rule for rule in (Off(), Clip(), Mask(), Soft(0.5))}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Options of one class: the name is a field."""

    name: str = field("plain", "row of ROWS")
    rule: Rule = field(Clip(), "which rule", options=RULES)
    pull: Rule = field(Off(), "which pull", options=RULES)
    rule_cap: float = field(0.0, "largest value", range=(0.0, 9.0))

    def __post_init__(self):
        if (self.rule.name, self.pull.name) == ("off", "mask"):
            raise ValueError("recipe.rule=off leaves recipe.pull=mask nothing to drop")
        if self.pull == Clip(low=0.5):
            raise ValueError("recipe.pull.low=0.5 is refused")


ROWS = {
    "plain": Recipe(),
    "masked": Recipe("masked", rule=Mask(budget=0.25), rule_cap=2.0),
    "free": Recipe("free", rule=Off()),
}


@dataclasses.dataclass(frozen=True)
class Lab:
    """A section with a table of rows, whose fields have tables of classes."""

    seed: int = field(0, "root of keys")
    recipe: Recipe = field(ROWS["masked"], "what is done", options=ROWS)


def read(*args, config=None):
    """What a command line makes of a config, by the steps of a main."""
    config = Box() if config is None else config
    values = absl_flags.FlagValues()
    flags.define(type(config), values)
    flags.refuse_positional(flags.parse(["main", *args], values), values)
    return flags.override(config, values)


def message(*args, config=None):
    """The one sentence that a refused command line gives."""
    with pytest.raises((app.UsageError, SystemExit)) as caught:
        read(*args, config=config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "text, value",
    [("1000", 1000), ("1e3", 1000), ("8.0", 8), ("-3", -3), ("0", 0), ("2e0", 2)],
)
def test_int_flags_take_whole_numbers(text, value):
    got = read(f"--size={text}").size
    assert got == value and type(got) is int


@pytest.mark.parametrize(
    "text", ["8.5", "1e-3", "nan", "inf", "", "x", "1e999999999", "True", "1,2"]
)
def test_int_flags_refuse_other_values(text):
    said = message(f"--size={text}")
    assert f"--size={text}: " in said and "whole number" in said


@pytest.mark.parametrize(
    "text, value",
    [("1e-5", 1e-5), ("1e5", 1e5), ("3", 3.0), (".5", 0.5), ("1.0e-5", 1e-5)],
)
def test_float_flags_take_finite_numbers(text, value):
    got = read(f"--span.rate={text}").span.rate
    assert got == value and type(got) is float


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "", "1:30", "no"])
def test_float_flags_refuse_other_values(text):
    said = message(f"--span.rate={text}")
    assert f"--span.rate={text}: " in said and "number" in said


@pytest.mark.parametrize(
    "arg, value",
    [
        ("--span.on=False", False),
        ("--span.on=false", False),
        ("--span.on=0", False),
        ("--nospan.on", False),
        ("--span.on=True", True),
        ("--span.on", True),
    ],
)
def test_bool_flags(arg, value):
    off = Box(span=Span(on=not value))
    assert read(arg, config=off).span.on is value


@pytest.mark.parametrize("value", ["False", "false", "0", "True"])
def test_bool_flag_with_a_space_is_refused_with_the_way_to_write_it(value):
    assert f"write --span.on={value}" in message("--span.on", value)


@pytest.mark.parametrize("arg", ["--span.on=maybe", "--nospan.on=True", "--span.on="])
def test_bool_flags_refuse_other_values(arg):
    assert arg in message(arg)


@pytest.mark.parametrize("text", ["[1,2]", "1,2", "1, 2", "[1, 2]", "(1,2)", "1e0,2.0"])
def test_list_flags_give_typed_elements(text):
    got = read(f"--span.layers={text}").span.layers
    assert got == (1, 2) and {type(x) for x in got} == {int}
    got = read(f"--span.rates={text}").span.rates
    assert got == (1.0, 2.0) and {type(x) for x in got} == {float}


@pytest.mark.parametrize("text", ["", "[]", "()", " "])
def test_list_flags_may_be_empty(text):
    assert read(f"--span.layers={text}").span.layers == ()


@pytest.mark.parametrize("text", ["1,", "1,,2", "[1", "1,2.5", "a", "1;2", "[[1]]"])
def test_list_flags_refuse_other_values(text):
    said = message(f"--span.layers={text}")
    assert f"--span.layers={text}: " in said and "write lists as 1,2" in said


@pytest.mark.parametrize(
    "args, hint",
    [
        (["size=8"], "write --size=8"),
        (["lr=1e-2"], "write --lr=1e-2"),
        (["1"], "write --flag=value"),
        (["--size=3", "1"], "write --flag=value"),
        (["--span.layers=[1,2]", "3"], "write --flag=value"),
        (["--", "--size=8"], "write --size=8"),
        (["-"], "write --flag=value"),
    ],
)
def test_leftover_arguments_are_refused(args, hint):
    assert hint in message(*args)


def test_leftover_argument_of_no_flag_names_the_nearest():
    said = message("lr=1e-2", config=presets.arithmetic())
    assert "write --lr=1e-2" in said and "--optimizer.learning_rate" in said


@pytest.mark.parametrize(
    "arg, near",
    [
        ("--rollout=3", "rollouts"),
        ("--modle.layers=3", "model.layers"),
        ("--model.layer=3", "model.layers"),
        ("--layers=3", "model.layers"),
        ("--model.theta=3", "model.rope.theta"),
        ("--lr=3", "optimizer.learning_rate"),
        ("--learning_rate=3", "optimizer.learning_rate"),
        ("--objective.name=grpo", "objective"),
        ("--objective.gate.name=clip", "objective.gate"),
        ("--gate=clip", "objective.gate"),
        ("--floor=0.1", "objective.scale.floor"),
        ("--objective.scale.flor=0.1", "objective.scale.floor"),
        ("--task.name=sequence", "task"),
        ("--mesh=3", "mesh.data"),
        ("--eval.every=3", "evaluation.every"),
    ],
)
def test_unknown_flags_suggest_the_right_one(arg, near):
    said = message(arg, config=presets.arithmetic())
    assert f"Unknown command line flag '{arg[2:].split('=')[0]}'" in said
    assert near in said.split("Did you mean: ")[1].replace(",", "").split()


def test_nothing_like_the_unknown_flag_suggests_nothing():
    assert "Did you mean" not in message("--zzzzzz=3")


def test_flags_not_given_leave_the_config_alone():
    config = Box(size=1, span=Span(low=5, high=6))
    assert read(config=config) is config
    assert read("--size=2", config=config).span is config.span


@pytest.mark.parametrize("order", [1, -1])
def test_dependent_fields_may_be_set_in_any_order(order):
    args = ["--span.low=10", "--span.high=20"][::order]
    assert read(*args).span == Span(low=10, high=20)


def test_dependent_sections_are_checked_on_the_final_combination():
    args = ["--problems=6", "--mesh.data=3", "--minibatches=2"]
    got = read(*args, config=Config())
    assert (got.problems, got.mesh.data, got.minibatches) == (6, 3, 2)


def test_section_that_changes_is_built_once(monkeypatch):
    built = []
    check = Config.__post_init__
    monkeypatch.setattr(
        Config, "__post_init__", lambda self: (built.append(self), check(self))[1]
    )
    base = Config()
    built.clear()
    read(
        "--rollouts=8",
        "--seed=1",
        "--task.digits=3",
        "--model.rope.theta=7",
        config=base,
    )
    assert len(built) == 1


def test_a_section_takes_its_name_from_its_own_flag():
    got = read("--objective=grpo", "--task=sequence", config=presets.arithmetic())
    assert (got.objective.name, got.task.name) == ("grpo", "sequence")
    values = absl_flags.FlagValues()
    flags.define(Config, values)
    assert "objective" in values and "objective.name" not in values


def test_a_new_name_drops_the_fields_that_it_does_not_use():
    config = Config(task=TaskConfig(digits=4, reward="fraction", max_prompt=9))
    got = read("--task=jsonl", "--task.path=a", config=config).task
    assert got == TaskConfig(name="jsonl", path="a", max_prompt=9)


def test_a_field_given_for_another_name_is_refused():
    said = message("--task=sequence", "--task.digits=3", config=Config())
    assert "--task.digits=3" in said and "is not used by task=sequence" in said


@pytest.mark.parametrize(
    "args, blamed",
    [
        (["--task.digits=9", "--task=arithmetic"], "--task.digits=9"),
        (["--span.low=3"], "--span.low=3"),
        (["--span.low=3", "--size=1", "--span.rate=2"], "--span.low=3"),
        (["--sampling.temperature=-1", "--seed=2"], "--sampling.temperature=-1.0"),
        (
            ["--sampling.temperature=-1", "--evaluation.temperature=2"],
            "--sampling.temperature=-1.0",
        ),
        (["--span.rate=0.25", "--size=3"], "--span.rate=0.25"),
        (["--model.rope.scaling=x"], "--model.rope.scaling=x"),
        (["--rollouts=1", "--seed=2"], "--rollouts=1"),
        (["--mesh.data=5", "--seed=2"], "--mesh.data=5"),
        (["--initial=a", "--warmstart.steps=3"], "--initial=a --warmstart.steps=3"),
    ],
)
def test_errors_of_validators_name_the_flags_they_are_about(args, blamed):
    config = Box() if "span" in args[0] else Config()
    assert message(*args, config=config).startswith(f"{blamed}: ")


@pytest.mark.parametrize(
    "value, near",
    [("drgpro", "dr_grpo"), ("GRPO", "grpo"), ("mcgrpo", "mc_grpo")],
)
def test_unknown_choices_list_the_valid_names_and_the_nearest(value, near):
    said = message(f"--objective={value}", config=Config())
    assert said == (
        f"--objective={value}: objective={value!r} is not one of"
        f" {', '.join(sorted(METHODS))}; did you mean {near}?"
    )


@pytest.mark.parametrize("value", ["", "None", "none"])
def test_empty_and_none_are_no_choices(value):
    said = message(f"--objective={value}", config=Config())
    assert f"objective={value!r} is not one of" in said


@pytest.mark.parametrize("name", presets.PRESETS)
@pytest.mark.parametrize("base", presets.PRESETS)
def test_arguments_of_a_config_give_it_back(name, base):
    config = presets.load(name)
    assert read(*flags.to_args(config), config=presets.load(base)) == config


def test_arguments_give_back_unusual_values():
    config = Config(
        task=TaskConfig(
            name="reasoning_gym", dataset="a b", options='{"min": 2, "s": "x=--y,z"}'
        ),
        model=ModelConfig(qkv_bias=True, tied=False, rope=RopeConfig(theta=10 / 3)),
        objective=dataclasses.replace(METHODS["grpo"], scale=Mad(eps=1e-7)),
        run_dir="-runs/ünï",
        seed=2**32 - 1,
    )
    assert read(*flags.to_args(config), config=Config()) == config
    box = Box(span=Span(layers=(), rates=(1e-7, 3.0), on=False))
    assert read(*flags.to_args(box)) == box


def test_help_holds_text_type_and_default():
    values = absl_flags.FlagValues()
    flags.define(Box, values)
    assert values["size"].help == "how large [int; default 7]"
    assert values["span.low"].help == "smallest [int; default 0]"
    assert values["span.layers"].help == (
        "which layers [ints as in 1,2 or [1,2]; default [1]]"
    )
    assert values["span"].help == "wide or thin [str; default 'wide']"


@pytest.mark.parametrize(
    "held", [ROWS["plain"], Recipe(rule=Mask(strict=False)), Recipe(rule=Mask())]
)
def test_a_named_option_has_the_settings_of_its_table(held):
    got = read("--recipe.rule=mask", config=Lab(recipe=held)).recipe
    assert got == dataclasses.replace(held, rule=Mask())


@pytest.mark.parametrize(
    "args, rule",
    [
        (["--recipe.rule.budget=0.04"], Mask(budget=0.04)),
        (["--recipe.rule.low=0.3"], Mask(low=0.3, budget=0.25)),
        (["--norecipe.rule.strict"], Mask(budget=0.25, strict=False)),
        (["--recipe.rule.layers=2,3"], Mask(budget=0.25, layers=(2, 3))),
        (["--recipe=plain", "--recipe.rule.low=0.3"], Clip(low=0.3)),
        (["--recipe.rule=soft", "--recipe.rule.budget=1"], Soft(budget=1.0)),
        (["--recipe.rule=soft"], Soft(budget=0.5)),
    ],
)
def test_settings_change_the_option_that_is_held_or_named(args, rule):
    assert read(*args, config=Lab()).recipe.rule == rule


def test_a_row_is_a_whole_start_and_the_rest_goes_on_top_in_any_order():
    held = Lab(recipe=Recipe("free", rule=Soft(3.0), pull=Clip(0.9, 0.9), rule_cap=7.0))
    args = [
        "--recipe.pull.budget=0.5",
        "--recipe=masked",
        "--recipe.pull=mask",
        "--recipe.rule.low=0.75",
    ]
    want = Recipe("masked", Mask(low=0.75, budget=0.25), Mask(budget=0.5), 2.0)
    for order in itertools.permutations(args):
        assert read(*order, config=held).recipe == want
    assert read("--recipe=plain", config=held).recipe == ROWS["plain"]


def test_options_not_given_stay_as_they_are():
    lab = Lab(recipe=Recipe(pull=Mask(budget=3.0)))
    assert read(config=lab) is lab
    assert read("--seed=1", config=lab).recipe is lab.recipe
    assert read("--recipe.rule.low=0", config=lab).recipe.pull is lab.recipe.pull


def test_an_option_that_changes_is_built_once(monkeypatch):
    built = []
    check = Recipe.__post_init__
    monkeypatch.setattr(
        Recipe, "__post_init__", lambda self: (built.append(self), check(self))[1]
    )
    args = ["--recipe.rule=mask", "--recipe.rule.low=1", "--recipe.rule_cap=1"]
    read("--recipe=free", *args, "--recipe.pull=mask", config=Lab())
    assert len(built) == 1


@pytest.mark.parametrize(
    "args, said",
    [
        (
            ["--recipe.rule=clip", "--recipe.rule.budget=0.04"],
            "--recipe.rule.budget=0.04: recipe.rule=clip has no budget;"
            " mask, soft have it",
        ),
        (
            ["--recipe.rule.high=1"],
            "--recipe.rule.high=1.0: recipe.rule=mask has no high; clip has it",
        ),
        (
            ["--recipe.pull=mask", "--recipe=free", "--recipe.rule.strict"],
            "--recipe.rule.strict=true: recipe.rule=off has no strict; mask has it",
        ),
        (
            ["--recipe.pull=mas"],
            "--recipe.pull=mas: recipe.pull='mas' is not one of clip, mask, off, soft;"
            " did you mean mask?",
        ),
        (
            ["--recipe=Masked", "--recipe.rule_cap=1"],
            "--recipe=Masked: recipe='Masked' is not one of free, masked, plain;"
            " did you mean masked?",
        ),
        (
            ["--recipe.rule=", "--seed=1"],
            "--recipe.rule=: recipe.rule='' is not one of clip, mask, off, soft",
        ),
        (
            ["--recipe.rule=clip", "--recipe.rule.low=2", "--recipe.pull=mask"],
            "--recipe.rule.low=2.0: clip.low=2.0 is above 1",
        ),
        (
            [
                "--recipe.pull=mask",
                "--recipe.rule_cap=1",
                "--recipe.rule=off",
                "--seed=1",
            ],
            "--recipe.rule=off --recipe.pull=mask:"
            " recipe.rule=off leaves recipe.pull=mask nothing to drop",
        ),
        (
            ["--recipe=free", "--recipe.pull=mask"],
            "--recipe.pull=mask:"
            " recipe.rule=off leaves recipe.pull=mask nothing to drop",
        ),
        (
            ["--recipe.pull=clip", "--recipe.pull.low=0.5", "--recipe.rule.low=0.5"],
            "--recipe.pull.low=0.5: recipe.pull.low=0.5 is refused",
        ),
    ],
)
def test_errors_of_options_name_the_flags_they_are_about(args, said):
    for order in (args, args[::-1]):
        assert message(*order, config=Lab()) == said


@pytest.mark.parametrize(
    "arg, near",
    [
        ("--budget=1", "recipe.rule.budget"),
        ("--recipe.rule.name=clip", "recipe.rule"),
        ("--recipe.name=plain", "recipe"),
        ("--rule=clip", "recipe.rule"),
        ("--recipe.rule.budgt=1", "recipe.rule.budget"),
    ],
)
def test_unknown_flags_suggest_those_of_options(arg, near):
    said = message(arg, config=Lab()).split("Did you mean: ")[1]
    assert said.replace(",", " ").split()[0] == near


def test_help_of_options_says_who_has_what():
    values = absl_flags.FlagValues()
    flags.define(Lab, values)
    assert values["recipe"].help == "what is done [plain, masked, free; default masked]"
    assert values["recipe.rule"].help == (
        "which rule [off: No rule; clip: Cuts; hard; mask: Drops; soft: Bends;"
        " default mask]"
    )
    assert values["recipe.rule.low"].help == (
        "clip: lower bound [float in [0, 1]; default 0.2];"
        " mask: least kept [float in [0, 1e+09]; default 0.1]"
    )
    assert values["recipe.rule.budget"].help == "mask, soft: room [float; default 0.5]"
    assert values["recipe.rule.strict"].help == "mask: whole rows [bool; default True]"
    assert (
        values["recipe.rule_cap"].help == "largest value [float in [0, 9]; default 2.0]"
    )


def test_arguments_of_an_option_are_its_name_and_its_own_settings():
    assert flags.to_args(Lab(recipe=Recipe(pull=Soft(1e-7)))) == [
        "--seed=0",
        "--recipe=plain",
        "--recipe.rule=clip",
        "--recipe.rule.low=0.2",
        "--recipe.rule.high=0.3",
        "--recipe.pull=soft",
        "--recipe.pull.budget=1e-07",
        "--recipe.rule_cap=0.0",
    ]


@dataclasses.dataclass(frozen=True)
class Clipped(Rule):
    """In no table, though its name is."""

    name = "clip"


@pytest.mark.parametrize(
    "recipe, said",
    [
        (Recipe("mine"), "recipe='mine' is not one of free, masked, plain"),
        (Recipe(rule=Rule()), "recipe.rule='rule' is not one of clip, mask, off, soft"),
        (Recipe(rule=Clipped()), "recipe.rule='clip' is Clipped, expected Clip"),
    ],
)
def test_options_in_no_table_have_no_arguments(recipe, said):
    with pytest.raises(ValueError, match=said):
        flags.to_args(Lab(recipe=recipe))


@dataclasses.dataclass(frozen=True)
class Count(Rule):
    """Its low is of another type than that of Clip."""

    low: int = 1


def test_settings_of_one_name_and_several_types_are_refused():
    table = {"clip": Clip(), "count": Count()}
    cls = dataclasses.make_dataclass(
        "Odd", [("rule", Rule, field(Clip(), "", options=table))], frozen=True
    )
    with pytest.raises(
        TypeError, match="--rule.low would have several types: clip float, count int"
    ):
        flags.define(cls, absl_flags.FlagValues())


def holder(f, kind):
    """A config with one field only, so that nothing else objects to its value."""
    copy = dataclasses.field(default=f.default, metadata=f.metadata)
    return dataclasses.make_dataclass("Holder", [(f.name, kind, copy)], frozen=True)


def moved(part):
    """The part with every setting that can be moved off its default."""
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if isinstance(value, tuple):
            others = [value + value[-1:]]
        elif isinstance(value, bool):
            others = [not value]
        elif isinstance(value, int):
            others = [value + 1, value - 1]
        elif isinstance(value, float):
            others = [value * 0.9375, value + 0.0625, value + 2]
        else:
            others = [f"{value}x"]
        for other in others:
            if other != getattr(part, f.name) == value:
                try:
                    part = dataclasses.replace(part, **{f.name: other})
                except ValueError:
                    continue
    return part


SLOTS = {f.name: (f, kind) for f, kind in typed_fields(Method) if options(f)}


@pytest.mark.parametrize("slot", SLOTS)
def test_every_setting_of_every_part_has_a_flag_that_sets_it(slot):
    f, _ = SLOTS[slot]
    cls = holder(*SLOTS[slot])
    for part in options(f).values():
        texts_only = all(isinstance(value, str) for value in vars(part).values())
        assert moved(part) != part or texts_only
        for other in options(f).values():
            args = flags.to_args(cls(moved(part)))
            assert read(*args, config=cls(moved(other))) == cls(moved(part))


@pytest.mark.parametrize("row", METHODS)
@pytest.mark.parametrize("base", ["grpo", "mc_grpo"])
def test_arguments_of_a_method_give_it_back(row, base):
    cls = holder(Config.__dataclass_fields__["objective"], Method)
    config = cls(dataclasses.replace(METHODS[row], max_advantage=3.5))
    assert read(*flags.to_args(config), config=cls(METHODS[base])) == config
    assert read(f"--objective={row}", config=cls(METHODS[base])) == cls(METHODS[row])


@pytest.mark.parametrize("kind", [dict, int | None, tuple[int, int], tuple[str, ...]])
def test_types_without_a_flag_are_refused(kind):
    cls = dataclasses.make_dataclass("Odd", [("x", kind, None)], frozen=True)
    with pytest.raises(TypeError, match="no flag for type"):
        flags.define(cls, absl_flags.FlagValues())


MAIN = """
import dataclasses
from absl import app
from experiments import flags

@dataclasses.dataclass(frozen=True)
class Config:
    rollouts: int = 4
    tied: bool = True

    def __post_init__(self):
        if self.rollouts < 1:
            raise ValueError(f"rollouts={self.rollouts} must be >= 1")

def main(argv):
    flags.refuse_positional(argv)
    print(flags.override(Config()))

flags.define(Config)
app.run(main, flags_parser=flags.parse)
"""


def test_a_program_says_one_sentence_and_no_traceback():
    def run(*args):
        return subprocess.run(
            [sys.executable, "-c", MAIN, *args], capture_output=True, text=True
        )

    assert run("--rollouts=6").stdout == "Config(rollouts=6, tied=True)\n"
    for args, said in [
        (["--rollouts=0"], "--rollouts=0: rollouts=0 must be >= 1"),
        (["--rollout=3"], "Did you mean: rollouts ?"),
        (["--tied", "False"], "write --tied=False"),
    ]:
        done = run(*args)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert said in done.stderr.splitlines()[-1] and done.stdout == ""
