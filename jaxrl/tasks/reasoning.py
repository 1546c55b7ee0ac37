"""Any dataset of the reasoning-gym package, scored by the dataset itself.

Problems are drawn in the order of the dataset's indices, which are the problem ids;
one whose question was seen before is skipped. Held-out problems come first, so that
they stay the same when the number of training problems changes.
"""

import dataclasses
import difflib
import importlib
import json
import random
from typing import Any

from jaxrl.config import TaskConfig
from jaxrl.tasks.base import Problems, Task
from jaxrl.tasks.problems import build, check_generated
from jaxrl.tasks.scoring import host_score
from jaxrl.tasks.tokenizers import ByteTokenizer

# Indices looked at: this many per problem wanted, and so many more.
DRAWS_PER_PROBLEM = 4
EXTRA_DRAWS = 100


def _library() -> Any:
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise ImportError(
            "task=reasoning_gym needs the reasoning-gym package:"
            " pip install -e '.[tasks]'"
        ) from error


def _nearest(word: str, words: list[str]) -> str:
    near = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {near[0]}?" if near else f"; one of {', '.join(words)}"


def _options(library: Any, cfg: TaskConfig) -> dict[str, Any]:
    """task.options as keyword arguments of the dataset's config class."""
    try:
        options = json.loads(cfg.options)
    except json.JSONDecodeError as error:
        raise ValueError(f"task.options={cfg.options!r} is no JSON: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"task.options={cfg.options!r} is not a JSON object")
    _, config_class = library.factory.DATASETS[cfg.dataset]
    known = [field.name for field in dataclasses.fields(config_class)]
    for name in options:
        if name in ("seed", "size"):
            raise ValueError(
                f"task.options sets {name!r}, which follows from task.data_seed and"
                " the numbers of problems"
            )
        if name not in known:
            raise ValueError(
                f"task.options sets {name!r}, which {cfg.dataset} does not have"
                f"{_nearest(name, known)}"
            )
    return options


def _dataset(library: Any, cfg: TaskConfig, size: int) -> Any:
    names = sorted(library.factory.DATASETS)
    if cfg.dataset not in names:
        raise ValueError(
            f"task.dataset={cfg.dataset!r} is no reasoning-gym dataset"
            f"{_nearest(cfg.dataset, names)}"
        )
    options = _options(library, cfg)
    try:
        if cfg.dataset == "composite":
            spec = library.composite.DatasetSpec
            options["datasets"] = [spec(**part) for part in options["datasets"]]
        return library.create_dataset(
            cfg.dataset, size=size, seed=cfg.data_seed, **options
        )
    except Exception as error:
        raise ValueError(
            f"task.options={cfg.options} is refused by {cfg.dataset}:"
            f" {type(error).__name__}: {error}"
        ) from error


def _draw(dataset: Any, cfg: TaskConfig, size: int) -> tuple[dict[int, Any], int]:
    """Entries by index, questions distinct, and how many repeats were skipped."""
    count = cfg.heldout_problems + cfg.train_problems
    entries: dict[int, Any] = {}
    seen: set[str] = set()
    draws = 0
    state = random.getstate()
    # Some generators draw from the global stream; without this their problems would
    # differ between a run and its continuation.
    random.seed(cfg.data_seed)
    try:
        for index in range(size):
            try:
                entry = dataset[index]
            except IndexError:  # A dataset that knows its own end.
                break
            draws += 1
            if entry["question"] not in seen:
                seen.add(entry["question"])
                entries[index] = entry
            if len(entries) == count:
                return entries, draws - count
    finally:
        random.setstate(state)
    raise ValueError(
        f"task.dataset={cfg.dataset} gave only {len(entries)} distinct problems in"
        f" {draws} draws, fewer than task.train_problems={cfg.train_problems} plus"
        f" task.heldout_problems={cfg.heldout_problems}; lower these or widen"
        " task.options"
    )


def _stripped(text: str) -> str:
    return text.strip()


def reasoning_gym(cfg: TaskConfig) -> Task:
    """Problems of `create_dataset(cfg.dataset, seed=cfg.data_seed, **cfg.options)`.

    The reward is the dataset's own `score_answer` of the stripped completion, which
    may give partial credit; only a reward of 1 is a correct answer. A reference
    answer is "" where the dataset has none.

    Raises:
      ImportError: the package is not installed.
      ValueError: no such dataset; options that are no JSON object, unknown or
        refused; or too few distinct problems.
    """
    check_generated(cfg)
    size = DRAWS_PER_PROBLEM * (cfg.heldout_problems + cfg.train_problems) + EXTRA_DRAWS
    dataset = _dataset(_library(), cfg, size)
    entries, duplicates = _draw(dataset, cfg, size)
    name = f"reasoning_gym/{cfg.dataset}"
    tokenizer = ByteTokenizer()

    def score_text(problems: Problems, index: int, text: str) -> float:
        entry = entries[int(problems.id_P[index])]
        verdict: float = dataset.score_answer(answer=text.strip(), entry=entry)
        return verdict

    def part(ids: list[int], where: str) -> Problems:
        return build(
            tokenizer,
            ids,
            [entries[i]["question"] + "\n" for i in ids],
            [entries[i]["answer"] or "" for i in ids],
            cfg.max_prompt,
            cfg.long_prompts,
            f"task={name}, {where}",
        )

    ids = list(entries)
    train = part(ids[cfg.heldout_problems :], "training problems")
    return Task(
        name=name,
        tokenizer=tokenizer,
        train=dataclasses.replace(train, duplicates=duplicates),
        heldout=part(ids[: cfg.heldout_problems], "held-out problems"),
        score=host_score(name, tokenizer, score_text),
        extract=_stripped,
    )
