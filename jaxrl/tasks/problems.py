"""From problems as text to `base.Problems`: ids, padding and the limit on prompts."""

from collections.abc import Sequence
import math
import zlib

import numpy as np

from jaxrl.config import TaskConfig
from jaxrl.tasks.base import Problems, Tokenizer

# Widths are rounded up to this, so that problem sets of nearly the same length
# share a compiled program.
WIDTH_MULTIPLE = 8

ID_RANGE = 2**31


def check_generated(cfg: TaskConfig) -> None:
    """ValueError if a generated task is asked for no problems; "all" has no end."""
    for name in ("train_problems", "heldout_problems"):
        if getattr(cfg, name) < 1:
            raise ValueError(
                f"task.{name}={getattr(cfg, name)}: task={cfg.name} makes its"
                " problems, so it needs a number of at least 1"
            )


def prompt_ids(prompts: Sequence[str]) -> list[int]:
    """A distinct id in [0, 2**31) per prompt: a hash, or the next free id after it.

    The id of a prompt depends on its text and, where two hashes collide, on the
    prompts before it; never on those after it.
    """
    taken: dict[int, None] = {}
    for prompt in prompts:
        number = zlib.crc32(prompt.encode("utf-8")) % ID_RANGE
        while number in taken:
            number = (number + 1) % ID_RANGE
        taken[number] = None
    return list(taken)


def _encode(tokenizer: Tokenizer, text: str, problem: str) -> list[int]:
    try:
        return tokenizer.encode(text)
    except ValueError as error:
        raise ValueError(f"{problem}: {error}") from error


def _kept(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    prompts: Sequence[str],
    max_prompt: int,
    long_prompts: str,
    where: str,
) -> tuple[list[int], list[list[int]]]:
    """Positions and tokens of the prompts that fit."""
    rows, encoded, lengths = [], [], []
    for row, (number, prompt) in enumerate(zip(ids, prompts, strict=True)):
        problem = f"{where}: problem {number} ({prompt[:40]!r})"
        tokens = _encode(tokenizer, prompt, problem)
        if not tokens:
            raise ValueError(f"{problem} has an empty prompt")
        lengths.append(len(tokens))
        if len(tokens) <= max_prompt:
            rows.append(row)
            encoded.append(tokens)
        elif long_prompts == "error":
            raise ValueError(
                f"{problem} has a prompt of {len(tokens)} tokens, over"
                f" task.max_prompt={max_prompt}; raise it, or drop such problems"
                " with task.long_prompts=drop"
            )
    if ids and not rows:
        raise ValueError(
            f"{where}: all {len(ids)} prompts are over task.max_prompt={max_prompt};"
            f" they have {min(lengths)} to {max(lengths)} tokens"
        )
    return rows, encoded


def _check_ids(ids: Sequence[int], where: str) -> None:
    if len(set(ids)) != len(ids):
        raise ValueError(f"{where}: {len(ids) - len(set(ids))} problem ids repeat")
    for number in ids:
        if not 0 <= number < ID_RANGE:
            raise ValueError(f"{where}: problem id {number} is not in [0, 2**31)")


def build(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    prompts: Sequence[str],
    answers: Sequence[str],
    max_prompt: int,
    long_prompts: str,
    where: str,
) -> Problems:
    """Problem arrays; a prompt is kept whole or not at all.

    Args:
      tokenizer: its first end id closes every target.
      ids: distinct, in [0, 2**31).
      prompts: as many as ids, none empty.
      answers: as many as ids.
      max_prompt: longest prompt kept, tokens.
      long_prompts: what a longer one does: "drop" leaves the problem out and
        counts it, "error" raises.
      where: names the source of the problems in errors.

    Returns:
      Problems in the order given. S is the longest kept prompt, rounded up to a
      multiple of 8 but not beyond max_prompt; X is the longest target.

    Raises:
      ValueError: a prompt is empty, has no ids, is too long under "error", or all
        are too long; an id repeats or is out of range; the lengths differ.
    """
    if long_prompts not in ("drop", "error"):
        raise ValueError(f"long_prompts={long_prompts!r} is not one of drop, error")
    if not len(ids) == len(prompts) == len(answers):
        raise ValueError(
            f"{where}: {len(ids)} ids, {len(prompts)} prompts, {len(answers)} answers"
        )
    _check_ids(ids, where)
    rows, encoded = _kept(tokenizer, ids, prompts, max_prompt, long_prompts, where)
    targets = [
        _encode(tokenizer, answers[row], f"{where}: answer of problem {ids[row]}")
        + [tokenizer.end_ids[0]]
        for row in rows
    ]
    longest = max(map(len, encoded), default=1)
    width = min(math.ceil(longest / WIDTH_MULTIPLE) * WIDTH_MULTIPLE, max_prompt)
    prompt_PS = np.full((len(rows), width), tokenizer.pad_id, np.int32)
    mask_PS = np.zeros((len(rows), width), bool)
    target_PX = np.full(
        (len(rows), max(map(len, targets), default=1)), tokenizer.pad_id, np.int32
    )
    target_mask_PX = np.zeros(target_PX.shape, bool)
    for p, (tokens, target) in enumerate(zip(encoded, targets, strict=True)):
        prompt_PS[p, width - len(tokens) :] = tokens
        mask_PS[p, width - len(tokens) :] = True
        target_PX[p, : len(target)] = target
        target_mask_PX[p, : len(target)] = True
    return Problems(
        id_P=np.array([ids[row] for row in rows], np.int32),
        prompt_PS=prompt_PS,
        mask_PS=mask_PS,
        target_PX=target_PX,
        target_mask_PX=target_mask_PX,
        prompts=tuple(prompts[row] for row in rows),
        answers=tuple(answers[row] for row in rows),
        dropped=len(ids) - len(rows),
    )
