"""What a task is: problems as token arrays, and a scorer from completions to rewards.

Tasks are scored in one of two places behind the same `score`: on the host from
text, or inside jit from tokens, in which case `score_tokens` can be composed with
the sampler and the update into one compiled program.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Protocol

import jax
import numpy as np


class Tokenizer(Protocol):
    """Text to ids and back. Ids 0 and 1 are padding and end for our own ones."""

    @property
    def size(self) -> int:
        """Number of ids; every id is in [0, size)."""
        ...

    @property
    def pad_id(self) -> int:
        """Fills unused positions; what is padding is said by masks, not by it."""
        ...

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end a completion; targets carry the first."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with no end token; ValueError names what has no id."""
        ...

    def decode(self, ids: np.ndarray | Sequence[int]) -> str:
        """Text of ids; end and padding tokens give nothing, no id raises."""
        ...


@dataclasses.dataclass(frozen=True)
class Problems:
    """A finite set of problems, tokenised once.

    Attributes:
      id_P: int32, unique over train and held-out together; part of every random
        key, so it must not depend on the order or number of other problems drawn
        after it.
      prompt_PS: int32, left-padded.
      mask_PS: bool, True on prompt tokens.
      target_PX: int32 reference answers, end token included, right-padded.
      target_mask_PX: bool.
      prompts: the prompts as text.
      answers: the reference answers as text.
      dropped: problems left out because their prompt was over the limit.
      duplicates: problems left out because an earlier or a held-out one has the
        same prompt.
    """

    id_P: np.ndarray
    prompt_PS: np.ndarray
    mask_PS: np.ndarray
    target_PX: np.ndarray
    target_mask_PX: np.ndarray
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    dropped: int = 0
    duplicates: int = 0

    def __len__(self) -> int:
        return len(self.id_P)


# (target_PX, target_mask_PX, tokens_PGT, mask_PGT) -> reward_PG, inside jit.
ScoreTokens = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]

# (problems, index_P, tokens_PGT, mask_PGT) -> float32 reward_PG, NaN where a
# completion could not be scored. index_P says which problems the rows answer.
Score = Callable[[Problems, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Task:
    """Problems and their scorer.

    Attributes:
      name: for people.
      tokenizer: shared by prompts and completions.
      train: problems to learn on.
      heldout: problems to measure on; no prompt is in both.
      score: rewards of completions; a completion is correct at reward >= 1.
      extract: the answer in a completion's text, "" if none; for majority votes.
      score_tokens: the same rewards inside jit, or None if scored from text.
    """

    name: str
    tokenizer: Tokenizer
    train: Problems
    heldout: Problems
    score: Score
    extract: Callable[[str], str]
    score_tokens: ScoreTokens | None = None
