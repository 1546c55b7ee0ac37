"""Tests for jaxrl/config.py: bad values by name, derived sizes, no dead options."""

import ast
import dataclasses
import itertools
import pathlib

import pytest

from algorithms.gates import Clip
from algorithms.method import Method
from algorithms.methods import METHODS
from jaxrl import config
from jaxrl.config import (
    Config,
    EvaluationConfig,
    MeshConfig,
    OptimizerConfig,
    TaskConfig,
    WarmstartConfig,
)
from models.config import ModelConfig, RopeConfig
from models.sampling import SamplingConfig

NAN, INF = float("nan"), float("inf")
GRPO = METHODS["grpo"]


BAD = [
    *[(TaskConfig, "name", value) for value in ("addition", "Sequence", "", None)],
    (TaskConfig, "train_problems", -1),
    (TaskConfig, "heldout_problems", -1),
    (TaskConfig, "max_prompt", 0),
    (TaskConfig, "long_prompts", "cut"),
    (TaskConfig, "reward", "Exact"),
    (TaskConfig, "digits", 0),
    (TaskConfig, "digits", 9),
    (TaskConfig, "terms", 1),
    (TaskConfig, "kind", "shuffle"),
    (TaskConfig, "length", 0),
    (TaskConfig, "symbols", 1),
    (TaskConfig, "symbols", 27),
    (Method, "max_advantage", -1.0),
    (Clip, "low", -0.1),
    (Clip, "low", 1.5),
    (Clip, "high", NAN),
    (OptimizerConfig, "schedule", "warmup"),
    *[(OptimizerConfig, "learning_rate", value) for value in (0, -1e-3, NAN, INF)],
    (OptimizerConfig, "warmup", -1),
    (OptimizerConfig, "scale_batch", -1),
    (OptimizerConfig, "phi", 0.0),
    (OptimizerConfig, "b1", 1.0),
    (OptimizerConfig, "b2", -0.1),
    (OptimizerConfig, "eps", 0.0),
    (OptimizerConfig, "weight_decay", -0.1),
    (OptimizerConfig, "max_grad_norm", 0.0),
    (WarmstartConfig, "steps", -1),
    (WarmstartConfig, "batch", 0),
    (WarmstartConfig, "learning_rate", 0.0),
    (WarmstartConfig, "target", 1.1),
    (EvaluationConfig, "every", -1),
    (EvaluationConfig, "problems", 0),
    (EvaluationConfig, "samples", 0),
    (EvaluationConfig, "batch", 0),
    (EvaluationConfig, "temperature", -0.5),
    *[(MeshConfig, name, 0) for name in ("data", "fsdp", "tensor")],
    *[(SamplingConfig, "temperature", value) for value in (-1.0, NAN, INF)],
    (SamplingConfig, "top_k", -1),
    (SamplingConfig, "top_p", 1.5),
    (SamplingConfig, "min_p", NAN),
    *[
        (ModelConfig, name, 0)
        for name in ("layers", "width", "heads", "kv_heads", "head_dim", "ffn")
    ],
    (ModelConfig, "vocab", -1),
    (ModelConfig, "heads", 3),
    (ModelConfig, "head_dim", 3),
    (ModelConfig, "norm_eps", 0.0),
    (ModelConfig, "dtype", "float16"),
    (ModelConfig, "remat", "all"),
    (ModelConfig, "unroll", 3),
    (ModelConfig, "logprob_chunk", 0),
    (RopeConfig, "theta", 1.0),
    (RopeConfig, "scaling", "ntk"),
    (RopeConfig, "factor", 0.5),
    (RopeConfig, "original_length", 0),
    *[
        (Config, name, 0)
        for name in (
            "problems",
            "rollouts",
            "updates",
            "new_tokens",
            "epochs",
            "minibatches",
            "microbatches",
            "save_every",
            "keep_last",
        )
    ],
    (Config, "log_samples", -1),
    (Config, "seed", -1),
    (Config, "seed", 2**32),
    (Config, "wandb", "on"),
]


@pytest.mark.parametrize("cls, field, value", BAD)
def test_bad_value_is_refused_by_field_and_value(cls, field, value):
    with pytest.raises(ValueError) as caught:
        cls(**{field: value})
    assert f"{field}={value!r}" in str(caught.value)


@pytest.mark.parametrize(
    "value, near",
    [("arithmetics", "arithmetic"), ("Sequence", "sequence"), ("parket", "parquet")],
)
def test_unknown_choice_lists_all_and_suggests_the_nearest(value, near):
    with pytest.raises(ValueError) as caught:
        TaskConfig(name=value)
    said = str(caught.value)
    assert ", ".join(config.TASKS) in said
    assert said.endswith(f"did you mean {near}?")


@pytest.mark.parametrize("value", ["", None, "zzz"])
def test_unlike_choice_suggests_nothing(value):
    with pytest.raises(ValueError) as caught:
        TaskConfig(name=value)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_makes_a_config(name):
    made = Config(objective=METHODS[name])
    assert made.group == made.rollouts + made.objective.keep.extra


@pytest.mark.parametrize("name, near", [("drgpro", "dr_grpo"), ("MC-GRPO", "mc_grpo")])
def test_a_method_of_no_known_name_is_refused(name, near):
    with pytest.raises(ValueError, match=f"{name}.* did you mean {near}?"):
        Config(objective=dataclasses.replace(GRPO, name=name))


NEEDS = {
    "arithmetic": {},
    "sequence": {},
    "reasoning_gym": {"dataset": "basic_arithmetic"},
    "jsonl": {"path": "a.jsonl"},
    "parquet": {"path": "a.parquet"},
    "tfds": {"dataset": "gsm8k", "path": "data"},
}

OTHER = {
    "reward": "fraction",
    "terms": 3,
    "digits": 3,
    "kind": "sort",
    "length": 7,
    "symbols": 11,
    "dataset": "other",
    "options": '{"a": 1}',
    "path": "other",
    "heldout_path": "other",
    "question_column": "q",
    "answer_column": "a",
}


def test_tables_above_cover_every_task_and_field():
    assert tuple(NEEDS) == config.TASKS
    restricted = [f for f in dataclasses.fields(TaskConfig) if "only" in f.metadata]
    assert [f.name for f in restricted] == list(OTHER)
    assert all(set(f.metadata["only"]) < set(config.TASKS) for f in restricted)


@pytest.mark.parametrize("task", NEEDS)
@pytest.mark.parametrize("field", OTHER)
def test_field_that_a_task_does_not_use_is_refused(task, field):
    only = TaskConfig.__dataclass_fields__[field].metadata["only"]
    values = {"name": task, **NEEDS[task], field: OTHER[field]}
    if task in only:
        assert getattr(TaskConfig(**values), field) == OTHER[field]
        return
    with pytest.raises(ValueError) as caught:
        TaskConfig(**values)
    said = str(caught.value)
    assert f"task.{field}={OTHER[field]!r} is not used by task={task}" in said
    assert ", ".join(only) in said


@pytest.mark.parametrize(
    "task, missing",
    [
        ("reasoning_gym", "dataset"),
        ("jsonl", "path"),
        ("parquet", "path"),
        ("tfds", "dataset"),
        ("tfds", "path"),
    ],
)
def test_task_without_its_data_is_refused(task, missing):
    values = {**NEEDS[task], missing: ""}
    with pytest.raises(ValueError, match=f"task={task} needs task.{missing}"):
        TaskConfig(name=task, **values)


@pytest.mark.parametrize(
    "values, said",
    [
        ({"sampling": SamplingConfig(temperature=0.0)}, "sampling.temperature=0"),
        (
            {"rollouts": 1, "objective": GRPO},
            "rollouts=1 gives objective.baseline=mean",
        ),
        ({"rollouts": 3}, "rollouts=3 makes a group of 4 for objective=mc_grpo"),
        ({"problems": 30, "minibatches": 4}, "problems=30 does not divide"),
        (
            {"problems": 8, "minibatches": 2, "microbatches": 3},
            "minibatches x microbatches = 2 x 3",
        ),
        (
            {"problems": 8, "microbatches": 2, "mesh": MeshConfig(data=4, fsdp=2)},
            "4 problems per microbatch do not divide over mesh.data x mesh.fsdp"
            " = 4 x 2 devices",
        ),
        ({"updates": 9, "epochs": 2}, "updates=9 is not a multiple"),
        ({"updates": 9, "minibatches": 2}, "updates=9 is not a multiple"),
        (
            {"initial": "runs/a", "warmstart": WarmstartConfig(steps=3)},
            "initial='runs/a' and warmstart.steps=3",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(values, said):
    with pytest.raises(ValueError) as caught:
        Config(**values)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "values, group, batch, per_round, rounds",
    [
        ({}, 5, 128, 1, 200),
        ({"rollouts": 8}, 9, 256, 1, 200),
        ({"rollouts": 8, "objective": GRPO}, 8, 256, 1, 200),
        ({"rollouts": 3, "objective": GRPO, "problems": 5}, 3, 15, 1, 200),
        ({"epochs": 2, "minibatches": 4, "updates": 24}, 5, 128, 8, 3),
        ({"microbatches": 8}, 5, 128, 1, 200),
    ],
)
def test_derived_sizes(values, group, batch, per_round, rounds):
    got = Config(**values)
    assert got.group == group
    assert got.batch == batch
    assert got.updates_per_round == per_round
    assert got.rounds == rounds


def test_mesh_shape_is_data_fsdp_tensor():
    assert MeshConfig(data=2, fsdp=3, tensor=5).shape == (2, 3, 5)


def test_configs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().rollouts = 3


# From here on the source is read, not run.

ROOT = pathlib.Path(config.__file__).resolve().parent.parent
PACKAGES = ("models", "algorithms", "jaxrl", "scaling", "experiments")
SECTIONS = (
    Config,
    *[
        f.default_factory
        for f in dataclasses.fields(Config)
        if callable(f.default_factory)
    ],
    RopeConfig,
)


def sources():
    """(path, syntax tree) of every file of the five packages."""
    paths = itertools.chain(*(sorted((ROOT / p).rglob("*.py")) for p in PACKAGES))
    return [(path, ast.parse(path.read_text())) for path in paths]


def attributes(node):
    """Names read as `.name` under a node."""
    return {
        n.attr
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)
    }


def uses():
    """Names read outside config classes, and {(class, function): names} inside."""
    names = {cls.__name__ for cls in SECTIONS}
    outside, inside = set(), {}
    for _, tree in sources():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                for function in node.body:
                    if isinstance(function, ast.FunctionDef):
                        inside[node.name, function.name] = attributes(function)
            else:
                outside |= attributes(node)
    return outside, inside


def unread():
    """Config fields that nothing reads but checks.

    A property of a config class counts as far as it is itself read outside.
    """
    read, inside = uses()
    # Properties use properties; a round for each link of the longest chain.
    for _ in range(3):
        for (_, function), names in inside.items():
            read |= names if function in read else set()
    return [
        f"{cls.__name__}.{f.name}"
        for cls in SECTIONS
        for f in dataclasses.fields(cls)
        if f.name not in read
    ]


def test_every_field_is_read_somewhere():
    assert unread() == []


def test_registries_are_looked_up_without_a_default():
    """METHODS.get(name, grpo) would train something for every misspelling."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("get", "setdefault", "pop")
        and ast.unparse(node.func.value).rpartition(".")[2].isupper()
    ]
    assert found == []


def is_choice(test):
    """Whether a condition compares something with a text."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.Eq)
        and isinstance(test.comparators[0], ast.Constant)
        and isinstance(test.comparators[0].value, str)
    )


def test_no_chain_of_choices_ends_in_a_silent_else():
    """if a == "x" ... elif a == "y" ... else: the else takes every misspelling."""
    found = []
    for path, tree in sources():
        for node in ast.walk(tree):
            links = 0
            while isinstance(node, ast.If) and is_choice(node.test):
                links, last = links + 1, node.orelse
                node = last[0] if len(last) == 1 else None
            if links >= 2 and last and not isinstance(last[-1], ast.Raise):
                found.append(f"{path}:{last[0].lineno}")
    assert found == []
