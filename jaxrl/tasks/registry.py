"""From a config to its task."""

from collections.abc import Callable

from jaxrl.config import TaskConfig
from jaxrl.tasks import files, procedural, reasoning
from jaxrl.tasks.base import Task

MAKERS: dict[str, Callable[[TaskConfig], Task]] = {
    "arithmetic": procedural.arithmetic,
    "sequence": procedural.sequence,
    "reasoning_gym": reasoning.reasoning_gym,
    "jsonl": files.jsonl,
    "parquet": files.parquet,
    "tfds": files.tfds,
}


def make_task(cfg: TaskConfig) -> Task:
    """The task that `cfg.name` stands for; the maker's errors pass through."""
    return MAKERS[cfg.name](cfg)
