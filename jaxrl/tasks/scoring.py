"""From sampled tokens back to text, and from text to rewards on the host.

`host_score` and `host_score_lists` make the `base.Score` of a task that is judged by
reading: the first asks about one completion at a time, the second about all
completions of a problem at once. Sampled ids are decoded to be judged and never
encoded again.
"""

from collections.abc import Callable, Sequence
import math
import numbers

import numpy as np

from jaxrl.tasks.base import Problems, Score, Tokenizer

# A verdict that is None, NaN or infinite says that the text could not be scored.
Verdict = float | None

# (problems, index of the problem, completion) -> verdict.
ScoreText = Callable[[Problems, int, str], Verdict]

# (problems, index of the problem, its G completions) -> G verdicts. An exception in
# place of a verdict stands for having been raised by that completion alone.
ScoreTexts = Callable[[Problems, int, list[str]], Sequence[Verdict | Exception]]


def decode_completions(
    tokenizer: Tokenizer, tokens_PGT: np.ndarray, mask_PGT: np.ndarray
) -> list[list[str]]:
    """P lists of G texts, of the tokens where the mask is True."""
    tokens_PGT, mask_PGT = np.asarray(tokens_PGT), np.asarray(mask_PGT)
    if tokens_PGT.ndim != 3 or tokens_PGT.shape != mask_PGT.shape:
        raise ValueError(
            f"tokens_PGT {tokens_PGT.shape} and mask_PGT {mask_PGT.shape} must have"
            " the same three axes"
        )
    return [
        [
            tokenizer.decode(tokens_T[mask_T])
            for tokens_T, mask_T in zip(tokens_GT, mask_GT, strict=True)
        ]
        for tokens_GT, mask_GT in zip(tokens_PGT, mask_PGT.astype(bool), strict=True)
    ]


def _reward(name: str, verdict: object) -> float:
    """The verdict as a number that float32 holds, or NaN."""
    if verdict is None:
        return math.nan
    if not isinstance(verdict, numbers.Real | np.bool_):
        raise TypeError(
            f"task {name}: the scorer returned {verdict!r} of type"
            f" {type(verdict).__name__}; a number or None is needed"
        )
    try:
        value = float(verdict)
    except OverflowError:  # An int over the range of floats.
        return math.nan
    return value if abs(value) <= float(np.finfo(np.float32).max) else math.nan


def host_score_lists(name: str, tokenizer: Tokenizer, score_texts: ScoreTexts) -> Score:
    """A `base.Score` that asks `score_texts` once per problem.

    A completion whose verdict is None, NaN, infinite or an exception gets NaN, and
    so do all completions of a problem for which the scorer raises: that is what
    "could not be scored" looks like downstream, where it is counted and left out.

    The score raises:
      ValueError: as many verdicts as completions did not come back, or the arrays
        do not fit.
      TypeError: the verdicts are no sequence, or one is no number.
      RuntimeError: every completion of the batch met an exception. Such a scorer
        is broken, and the run must not go on without a reward.
    """

    def score(
        problems: Problems,
        index_P: np.ndarray,
        tokens_PGT: np.ndarray,
        mask_PGT: np.ndarray,
    ) -> np.ndarray:
        texts_PG = decode_completions(tokenizer, tokens_PGT, mask_PGT)
        reward_PG = np.full(np.shape(mask_PGT)[:2], np.nan, np.float32)
        raised: list[Exception] = []
        for p, (index, texts) in enumerate(zip(index_P, texts_PG, strict=True)):
            try:
                verdicts = score_texts(problems, int(index), texts)
            except Exception as error:
                raised.extend([error] * len(texts))
                continue
            if isinstance(verdicts, str) or not isinstance(
                verdicts, Sequence | np.ndarray
            ):
                raise TypeError(
                    f"task {name}: the scorer returned {verdicts!r} of type"
                    f" {type(verdicts).__name__}; a list of verdicts is needed"
                )
            if len(verdicts) != len(texts):
                raise ValueError(
                    f"task {name}: the scorer returned {len(verdicts)} verdicts for"
                    f" {len(texts)} completions of problem {problems.id_P[index]}"
                )
            for g, verdict in enumerate(verdicts):
                if isinstance(verdict, Exception):
                    raised.append(verdict)
                else:
                    reward_PG[p, g] = _reward(name, verdict)
        if raised and len(raised) == reward_PG.size:
            raise RuntimeError(
                f"task {name}: all {len(raised)} completions of a batch could not be"
                f" scored; the last one met {type(raised[-1]).__name__}: {raised[-1]}"
            ) from raised[-1]
        return reward_PG

    return score


def host_score(name: str, tokenizer: Tokenizer, score_text: ScoreText) -> Score:
    """A `base.Score` that asks `score_text` once per completion.

    As `host_score_lists`, but an exception costs one completion, not a problem.
    """

    def verdict(problems: Problems, index: int, text: str) -> Verdict | Exception:
        try:
            return score_text(problems, index, text)
        except Exception as error:
            return error

    return host_score_lists(
        name,
        tokenizer,
        lambda problems, index, texts: [verdict(problems, index, t) for t in texts],
    )
