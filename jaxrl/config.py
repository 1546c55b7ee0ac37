"""The typed, frozen description of a run.

A field is a decision someone made. What follows from decisions is a property, so
that a config cannot contradict itself. Every class checks itself once, where it is
built. The `name` of a section is set by the section's own flag: --objective=grpo.
"""

import dataclasses
import math
from typing import Any

from algorithms.method import Method
from algorithms.methods import METHODS
from algorithms.parts import choice
from jaxrl.config_io import not_one_of, option_name
from models.config import ModelConfig, field
from models.sampling import SamplingConfig

TASKS = ("arithmetic", "sequence", "reasoning_gym", "jsonl", "parquet", "tfds")
SEQUENCE_KINDS = ("copy", "reverse", "sort")
REWARDS = ("exact", "fraction")
LONG_PROMPTS = ("drop", "error")
SCHEDULES = ("constant", "linear", "cosine", "uba")
WANDB = ("off", "offline", "online")


def _check_choice(section: str, config: Any, **choices: tuple[str, ...]) -> None:
    for name, valid in choices.items():
        value = getattr(config, name)
        if value not in valid:
            raise ValueError(not_one_of(f"{section}{name}", value, valid))


def _check_range(
    section: str, config: Any, low: float, high: float, *names: str
) -> None:
    """low <= value <= high and finite, for every name."""
    for name in names:
        value = getattr(config, name)
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(f"{section}{name}={value} is not in [{low}, {high}]")


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """Where problems come from and how completions are scored."""

    name: str = field("arithmetic", f"problem source, one of {', '.join(TASKS)}")
    train_problems: int = field(
        4096, "training problems; files: at most this many, 0 takes all"
    )
    heldout_problems: int = field(
        256, "held-out problems, disjoint from training; files: 0 takes all"
    )
    data_seed: int = field(0, "which problems are made and how sets are split")
    max_prompt: int = field(256, "longest prompt, tokens")
    long_prompts: str = field(
        "drop", f"prompts over max_prompt: {' (and count) or '.join(LONG_PROMPTS)}"
    )
    reward: str = field(
        "exact",
        "exact: 1 for the whole answer; fraction: share of its leading tokens right",
        only=("arithmetic", "sequence"),
    )
    terms: int = field(2, "numbers to add", only=("arithmetic",))
    digits: int = field(2, "largest number of digits of a term", only=("arithmetic",))
    kind: str = field(
        "reverse", f"one of {', '.join(SEQUENCE_KINDS)}", only=("sequence",)
    )
    length: int = field(6, "symbols in a sequence", only=("sequence",))
    symbols: int = field(10, "distinct symbols", only=("sequence",))
    dataset: str = field(
        "", "reasoning-gym or tfds dataset name", only=("reasoning_gym", "tfds")
    )
    options: str = field(
        "{}", "dataset options as JSON: '{\"min_terms\": 2}'", only=("reasoning_gym",)
    )
    path: str = field(
        "", "JSONL / Parquet file, or tfds data_dir", only=("jsonl", "parquet", "tfds")
    )
    heldout_path: str = field(
        "",
        "file of held-out problems; empty splits them off `path`",
        only=("jsonl", "parquet"),
    )
    question_column: str = field(
        "question", "tfds column of the prompt", only=("tfds",)
    )
    answer_column: str = field("answer", "tfds column of the answer", only=("tfds",))

    def __post_init__(self) -> None:
        _check_choice(
            "task.",
            self,
            name=TASKS,
            long_prompts=LONG_PROMPTS,
            reward=REWARDS,
            kind=SEQUENCE_KINDS,
        )
        _check_range("task.", self, 0, 10**9, "train_problems", "heldout_problems")
        _check_range("task.", self, 1, 10**6, "max_prompt")
        _check_range("task.", self, 0, 2**32 - 1, "data_seed")
        _check_range("task.", self, 1, 8, "digits")
        _check_range("task.", self, 2, 8, "terms")
        _check_range("task.", self, 1, 256, "length")
        _check_range("task.", self, 2, 26, "symbols")
        for f in dataclasses.fields(self):
            users = f.metadata.get("only", (self.name,))
            if self.name not in users and getattr(self, f.name) != f.default:
                raise ValueError(
                    f"task.{f.name}={getattr(self, f.name)!r} is not used by"
                    f" task={self.name}, only by {', '.join(users)}"
                )
        if self.name in ("reasoning_gym", "tfds") and not self.dataset:
            raise ValueError(f"task={self.name} needs task.dataset")
        if self.name in ("jsonl", "parquet", "tfds") and not self.path:
            raise ValueError(f"task={self.name} needs task.path")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW on float32 weights."""

    learning_rate: float = field(1e-3, "peak step size")
    schedule: str = field("constant", f"after warm-up, one of {', '.join(SCHEDULES)}")
    phi: float = field(
        1.0, "uba: 2 is cosine, and the smaller the longer the rate stays high"
    )
    warmup: int = field(0, "updates of linear warm-up")
    scale_batch: int = field(
        0, "0, or the batch at which learning_rate holds: it grows with sqrt(batch)"
    )
    b1: float = field(0.9, "decay of the first moment")
    b2: float = field(0.99, "decay of the second moment")
    eps: float = field(1e-8, "added to the root of the second moment")
    weight_decay: float = field(0.0, "decoupled weight decay, on matrices only")
    max_grad_norm: float = field(1.0, "gradients over this global norm are scaled down")

    def __post_init__(self) -> None:
        _check_choice("optimizer.", self, schedule=SCHEDULES)
        _check_range(
            "optimizer.", self, 0, 1e9, "warmup", "scale_batch", "weight_decay"
        )
        _check_range("optimizer.", self, 0, 0.999999, "b1", "b2")
        _check_range("optimizer.", self, 1e-30, 1.0, "eps")
        _check_range("optimizer.", self, 1e-3, 1e3, "phi")
        _check_range("optimizer.", self, 1e-30, 1e3, "learning_rate")
        _check_range("optimizer.", self, 1e-30, 1e30, "max_grad_norm")


@dataclasses.dataclass(frozen=True)
class WarmstartConfig:
    """Supervised steps on reference answers that give RL its base policy."""

    steps: int = field(0, "most supervised steps; 0 starts from random weights")
    batch: int = field(256, "problems a step")
    learning_rate: float = field(2e-3, "peak step size; decays linearly to 0")
    target: float = field(1.0, "stop once held-out avg@1 reaches this")
    every: int = field(25, "steps between looks at held-out avg@1")
    seed: int = field(0, "of the weights and the batches; apart from the run's seed")

    def __post_init__(self) -> None:
        _check_range("warmstart.", self, 0, 1e9, "steps")
        _check_range("warmstart.", self, 1, 1e9, "batch", "every")
        _check_range("warmstart.", self, 1e-30, 1e3, "learning_rate")
        _check_range("warmstart.", self, 0, 1, "target")


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """How the policy is measured on held-out problems."""

    every: int = field(20, "updates between evaluations; 0 only first and last")
    problems: int = field(256, "held-out problems used, at most")
    samples: int = field(4, "k, completions per problem")
    temperature: float = field(1.0, "of evaluation samples; filters are off")
    batch: int = field(256, "problems sampled at once; memory only")

    def __post_init__(self) -> None:
        _check_range("evaluation.", self, 0, 1e9, "every")
        _check_range("evaluation.", self, 1, 1e9, "problems", "samples", "batch")
        _check_range("evaluation.", self, 0, 1e3, "temperature")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis."""

    data: int = field(1, "devices along data: problems are split")
    fsdp: int = field(1, "devices along fsdp: problems and weights are split")
    tensor: int = field(1, "devices along tensor: heads and widths are split")

    def __post_init__(self) -> None:
        _check_range("mesh.", self, 1, 1e6, "data", "fsdp", "tensor")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sizes in the order of models.sharding.MESH_AXES."""
        return self.data, self.fsdp, self.tensor


def _section(cls: type) -> Any:
    return dataclasses.field(default_factory=cls)


@dataclasses.dataclass(frozen=True)
class Config:
    """One run. Fields marked `free` may change when a run is resumed."""

    problems: int = field(32, "B_p, problems per batch")
    rollouts: int = field(4, "n, rollouts per problem that reach the optimizer")
    updates: int = field(200, "M, optimizer updates in the run")
    new_tokens: int = field(16, "longest completion, tokens, end token included")
    epochs: int = field(1, "passes over each batch of rollouts")
    minibatches: int = field(1, "updates per pass over the batch")
    microbatches: int = field(
        1, "parts of a minibatch held at once; memory only, never a result"
    )
    seed: int = field(0, "root of every random key")
    run_dir: str = field("", "run folder; empty makes one under runs/", free=True)
    initial: str = field(
        "", "run folder or checkpoint folder to take starting weights from"
    )
    cache_dir: str = field(
        ".cache/jaxrl", "where warm-started policies are kept", free=True
    )
    save_every: int = field(50, "updates between checkpoints", free=True)
    keep_last: int = field(
        2, "newest checkpoints kept; the best is kept too", free=True
    )
    log_samples: int = field(4, "completions kept per evaluation", free=True)
    wandb: str = field("off", f"mirror to wandb: {', '.join(WANDB)}", free=True)
    task: TaskConfig = _section(TaskConfig)
    model: ModelConfig = _section(ModelConfig)
    objective: Method = choice(
        METHODS, METHODS["mc_grpo"], "policy objective, a row of METHODS.md"
    )
    sampling: SamplingConfig = _section(SamplingConfig)
    optimizer: OptimizerConfig = _section(OptimizerConfig)
    warmstart: WarmstartConfig = _section(WarmstartConfig)
    evaluation: EvaluationConfig = _section(EvaluationConfig)
    mesh: MeshConfig = _section(MeshConfig)

    def __post_init__(self) -> None:
        _check_choice("", self, wandb=WANDB)
        option_name("objective", self.objective, METHODS)
        names = ("problems", "rollouts", "updates", "new_tokens", "epochs")
        _check_range("", self, 1, 1e9, *names, "minibatches", "microbatches")
        _check_range("", self, 1, 1e9, "save_every", "keep_last")
        _check_range("", self, 0, 1e9, "log_samples")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed} is not in [0, 2**32)")
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature=0 draws the same rollout n times: there is"
                " nothing to learn from; use evaluation.temperature=0 to measure"
            )
        self._check_group()
        self._check_split()
        if self.initial and self.warmstart.steps:
            raise ValueError(
                f"initial={self.initial!r} and warmstart.steps={self.warmstart.steps}"
                " both set the starting weights; drop one"
            )

    def _check_group(self) -> None:
        method = self.objective
        if method.baseline.needs_group and self.rollouts < 2:
            raise ValueError(
                f"rollouts={self.rollouts} gives objective.baseline="
                f"{method.baseline.name} nothing to compare a rollout with; it needs"
                " at least 2"
            )
        if method.drops_median and self.group % 2 == 0:
            raise ValueError(
                f"rollouts={self.rollouts} makes a group of {self.group} for"
                f" objective={method.name}, whose median needs an odd"
                " group: use an even number of rollouts"
            )

    def _check_split(self) -> None:
        parts = self.minibatches * self.microbatches
        if self.problems % parts:
            raise ValueError(
                f"problems={self.problems} does not divide into minibatches"
                f" x microbatches = {self.minibatches} x {self.microbatches} parts"
            )
        devices = self.mesh.data * self.mesh.fsdp
        if (self.problems // parts) % devices:
            raise ValueError(
                f"{self.problems // parts} problems per microbatch do not divide over"
                f" mesh.data x mesh.fsdp = {self.mesh.data} x {self.mesh.fsdp} devices"
            )
        if self.updates % self.updates_per_round:
            raise ValueError(
                f"updates={self.updates} is not a multiple of epochs x minibatches"
                f" = {self.updates_per_round}, the updates that one batch feeds"
            )

    @property
    def group(self) -> int:
        """G, rollouts sampled per problem: n and what the method adds to it."""
        return self.rollouts + self.objective.keep.extra

    @property
    def batch(self) -> int:
        """Rollouts per batch that reach the optimizer."""
        return self.problems * self.rollouts

    @property
    def updates_per_round(self) -> int:
        """Optimizer updates that one batch of rollouts feeds."""
        return self.epochs * self.minibatches

    @property
    def rounds(self) -> int:
        """Sampling phases in the run."""
        return self.updates // self.updates_per_round
