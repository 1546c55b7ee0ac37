"""Tasks from problem files, judged by comparing the final answer with the reference.

The row of a problem is its id, plus 2**30 where held-out problems come from a source
of their own. Of rows with the same prompt the first is kept, and no held-out prompt
is trained on.
"""

from collections.abc import Callable
import dataclasses

import numpy as np

from jaxrl.config import TaskConfig
from jaxrl.tasks import answers, records
from jaxrl.tasks.base import Problems, Task
from jaxrl.tasks.problems import build
from jaxrl.tasks.records import Row
from jaxrl.tasks.scoring import host_score
from jaxrl.tasks.tokenizers import ByteTokenizer

HELDOUT_ID = 2**30


def _distinct(rows: list[Row], others: list[Row]) -> list[Row]:
    """First row of each prompt, but none whose prompt is among the others'."""
    seen = {row.prompt for row in others}
    kept = []
    for row in rows:
        if row.prompt not in seen:
            seen.add(row.prompt)
            kept.append(row)
    return kept


def _select(rows: list[Row], count: int, seed: list[int]) -> list[Row]:
    """`count` rows at random, in their order; 0 takes all. Fewer are among more."""
    if count == 0 or count >= len(rows):
        return rows
    chosen = np.random.default_rng(seed).permutation(len(rows))[:count]
    return [rows[i] for i in sorted(chosen)]


def _grade(problems: Problems, index: int, text: str) -> float:
    return answers.grade(text, problems.answers[index])


def _task(
    cfg: TaskConfig, source: str, rows: list[Row], heldout_rows: list[Row] | None
) -> Task:
    """A task from the rows of a source and of its held-out counterpart, if any."""
    tokenizer = ByteTokenizer()

    def part(kept: list[Row], shift: int, duplicates: int, where: str) -> Problems:
        problems = build(
            tokenizer,
            [row.number + shift for row in kept],
            [row.prompt for row in kept],
            [row.answer for row in kept],
            cfg.max_prompt,
            cfg.long_prompts,
            f"{source}, {where}",
        )
        return dataclasses.replace(problems, duplicates=duplicates)

    if heldout_rows is None:
        train_rows = _distinct(rows, [])
        if not 0 < cfg.heldout_problems < len(train_rows):
            raise ValueError(
                f"{source} has {len(train_rows)} distinct problems and"
                f" task.heldout_problems={cfg.heldout_problems} leaves none to train"
                " on or none to measure on; change it, or name a file in"
                " task.heldout_path"
            )
        kept = _select(train_rows, cfg.heldout_problems, [cfg.data_seed, 0])
        left = _distinct(train_rows, kept)
        repeats, shift, heldout_repeats = len(rows) - len(train_rows), 0, 0
    else:
        all_heldout = _distinct(heldout_rows, [])
        kept = _select(all_heldout, cfg.heldout_problems, [cfg.data_seed, 0])
        left = _distinct(rows, all_heldout)
        if not left:
            raise ValueError(f"{source}: every problem is also a held-out problem")
        repeats, shift = len(rows) - len(left), HELDOUT_ID
        heldout_repeats = len(heldout_rows) - len(all_heldout)
    train = _select(left, cfg.train_problems, [cfg.data_seed, 1])
    return Task(
        name=f"{cfg.name} {source}",
        tokenizer=tokenizer,
        train=part(train, 0, repeats, "training problems"),
        heldout=part(kept, shift, heldout_repeats, "held-out problems"),
        score=host_score(f"{cfg.name} {source}", tokenizer, _grade),
        extract=answers.extract,
    )


def _from_files(cfg: TaskConfig, read: Callable[[str], list[Row]]) -> Task:
    held = cfg.heldout_path
    return _task(cfg, cfg.path, read(cfg.path), read(held) if held else None)


def jsonl(cfg: TaskConfig) -> Task:
    """Problems of the JSONL file `cfg.path`; `records.read_jsonl` says what it holds.

    Held-out problems come from `cfg.heldout_path`, or are split off at random.

    Raises:
      FileNotFoundError: no such file.
      ValueError: file, row, field and value of a record that is no problem; an
        empty file; or a split that leaves a side empty.
    """
    return _from_files(cfg, records.read_jsonl)


def parquet(cfg: TaskConfig) -> Task:
    """As `jsonl`, from Parquet files; ImportError without pyarrow."""
    return _from_files(cfg, records.read_parquet)


def tfds(cfg: TaskConfig) -> Task:
    """Splits train and test of a TFDS set; raises as `records.read_tfds`."""
    train, test = (
        records.read_tfds(
            cfg.dataset, cfg.path, split, cfg.question_column, cfg.answer_column
        )
        for split in ("train", "test")
    )
    return _task(cfg, cfg.dataset, train, test)
