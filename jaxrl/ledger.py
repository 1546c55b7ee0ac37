"""The compute ledger: what a run has spent, counted from token lengths.

Counts are Python integers, so they are exact at any size and the same on any mesh.
What counts is what the method needed: real tokens, no padding, prompts once per
problem where their states are shared. models/flops.py states the FLOP convention.
Wall-clock device-seconds are kept beside the counts, since they never repeat.
"""

import dataclasses

import numpy as np

from models import flops
from models.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Ledger:
    """Cumulative cost of training; schema.LEDGER says what each count means."""

    rollouts: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    scored_tokens: int = 0
    trained_tokens: int = 0
    discarded_tokens: int = 0
    flops_prefill: int = 0
    flops_decode: int = 0
    flops_score: int = 0
    flops_train: int = 0
    flops_recompute: int = 0

    @property
    def flops(self) -> int:
        """All FLOPs."""
        return sum(
            getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name.startswith("flops_")
        )

    def __add__(self, other: "Ledger") -> "Ledger":
        pairs = {
            f.name: getattr(self, f.name) + getattr(other, f.name)
            for f in dataclasses.fields(self)
        }
        return Ledger(**pairs)

    def row(self) -> dict[str, int]:
        """Counts and their FLOP total, by name."""
        return dataclasses.asdict(self) | {"flops": self.flops}


def sampling(model: ModelConfig, prompt_P: np.ndarray, length_PG: np.ndarray) -> Ledger:
    """Cost of sampling completions of given lengths, the end token included.

    A prompt is prefilled once for its group; its last position's logits give the
    first token. The last token of a completion is never fed back.

    Args:
      model: the decoder.
      prompt_P: int, prompt lengths.
      length_PG: int, completion lengths, >= 1.
    """
    prompt_P, length_PG = _int64(prompt_P), _int64(length_PG)
    fed_PG = length_PG - 1
    fed = int(fed_PG.sum())
    pairs = int(flops.completion_pairs(prompt_P[:, None], fed_PG).sum())
    prefill_pairs = int(flops.causal_pairs(prompt_P).sum())
    prompt = int(prompt_P.sum())
    return Ledger(
        rollouts=length_PG.size,
        prompt_tokens=prompt,
        generated_tokens=int(length_PG.sum()),
        flops_prefill=flops.forward(model, prompt, prefill_pairs, len(prompt_P)),
        flops_decode=flops.forward(model, fed, pairs, fed),
    )


def _teacher_forced(
    prompt_P: np.ndarray, length_PG: np.ndarray, used_PG: np.ndarray
) -> tuple[int, int, int]:
    """(tokens, pairs, head tokens) of one pass over the used rollouts."""
    prompt_P = np.where(used_PG.any(axis=1), prompt_P, 0)
    heads = int(length_PG[used_PG].sum())
    fed_PG = np.where(used_PG, length_PG - 1, 0)
    pairs_PG = flops.completion_pairs(prompt_P[:, None], fed_PG)
    pairs = int(flops.causal_pairs(prompt_P).sum() + pairs_PG.sum())
    return int(prompt_P.sum() + fed_PG.sum()), pairs, heads


def _int64(x: np.ndarray) -> np.ndarray:
    """Wide enough for the pairs of any batch."""
    return np.asarray(x, np.int64)


def scoring(
    model: ModelConfig,
    prompt_P: np.ndarray,
    length_PG: np.ndarray,
    scored_PG: np.ndarray,
    passes: int,
) -> Ledger:
    """Cost of log-probabilities beside those of an update's own forward pass.

    Args:
      model: the decoder.
      prompt_P: int, prompt lengths.
      length_PG: int, completion lengths.
      scored_PG: bool, rollouts that were scored.
      passes: forward passes over them, whatever the policy.
    """
    prompt_P, length_PG = _int64(prompt_P), _int64(length_PG)
    shape = _teacher_forced(prompt_P, length_PG, scored_PG)
    return Ledger(
        scored_tokens=passes * int(length_PG[scored_PG].sum()),
        flops_score=passes * flops.forward(model, *shape),
    )


def updating(
    model: ModelConfig,
    prompt_P: np.ndarray,
    length_PG: np.ndarray,
    trained_PG: np.ndarray,
    epochs: int,
) -> Ledger:
    """Cost of a batch's updates.

    Args:
      model: the decoder.
      prompt_P: int, prompt lengths.
      length_PG: int, completion lengths.
      trained_PG: bool, rollouts that updates saw; the others are discarded.
      epochs: passes over the batch.
    """
    prompt_P, length_PG = _int64(prompt_P), _int64(length_PG)
    shape = _teacher_forced(prompt_P, length_PG, trained_PG)
    trained = int(length_PG[trained_PG].sum())
    forward = flops.forward(model, *shape)
    return Ledger(
        trained_tokens=epochs * trained,
        discarded_tokens=int(length_PG.sum()) - trained,
        flops_train=epochs * (forward + flops.backward(model, *shape)),
        flops_recompute=epochs * flops.recompute(model, *shape),
    )
