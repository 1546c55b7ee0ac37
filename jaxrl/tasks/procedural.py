"""Tasks whose problems are drawn from a finite space and scored inside jit.

A problem is a row of `width` symbols from a base of `base`: the terms of a sum, or
the letters of a sequence. Rows are drawn without repeats from `data_seed`, held-out
problems first, so that a larger training set contains a smaller one and is measured
on the same problems.

Both rewards count the target's tokens, end token included, that a completion gets
right before its first mistake.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config import TaskConfig
from jaxrl.tasks.base import Problems, Score, ScoreTokens, Task
from jaxrl.tasks.problems import build, check_generated, prompt_ids
from jaxrl.tasks.tokenizers import CharTokenizer

DIGITS = "0123456789"
LETTERS = "abcdefghijklmnopqrstuvwxyz"

# Spaces up to this size are permuted; drawing until the rows differ would take long
# when nearly all of a space is asked for.
ENUMERABLE = 2**20
BLOCK = 1024

TRANSFORMS: dict[str, Callable[[str], str]] = {
    "copy": lambda text: text,
    "reverse": lambda text: text[::-1],
    "sort": lambda text: "".join(sorted(text)),
}


def leading_tokens(
    target_PX: jax.Array,
    target_mask_PX: jax.Array,
    tokens_PGT: jax.Array,
    mask_PGT: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Target tokens right before the first mistake, and how many there are.

    A completion that goes on after the whole target has not ended where it should,
    so its end token does not count: all tokens are right only if both are equal.

    Args:
      target_PX: int, right-padded.
      target_mask_PX: bool, True on the target, end token included.
      tokens_PGT: int, right-padded; T may be smaller or larger than X.
      mask_PGT: bool, True on the completion, its end token included.

    Returns:
      right_PG: int32.
      length_P1: int32, at least 1, so that a row with no target is never right.
    """
    chex.assert_rank([target_PX, target_mask_PX, tokens_PGT, mask_PGT], [2, 2, 3, 3])
    chex.assert_equal_shape([target_PX, target_mask_PX])
    chex.assert_equal_shape([tokens_PGT, mask_PGT])
    chex.assert_equal_shape_prefix([target_PX, tokens_PGT], 1)
    chex.assert_type([target_mask_PX, mask_PGT], bool)
    width = target_PX.shape[1]
    missing = max(width - tokens_PGT.shape[2], 0)
    spread = ((0, 0), (0, 0), (0, missing))
    tokens_PGX = jnp.pad(tokens_PGT, spread)[:, :, :width]
    mask_PGX = jnp.pad(mask_PGT, spread)[:, :, :width]
    same_PGX = tokens_PGX == target_PX[:, None, :]
    wrong_PGX = ~(same_PGX & mask_PGX & target_mask_PX[:, None, :])
    right_PG = jnp.sum(jnp.cumsum(wrong_PGX, axis=2) == 0, axis=2)
    length_P1 = jnp.maximum(jnp.sum(target_mask_PX, axis=1, keepdims=True), 1)
    longer_PG = jnp.sum(mask_PGT, axis=2) > length_P1
    right_PG = jnp.where(longer_PG, jnp.minimum(right_PG, length_P1 - 1), right_PG)
    return right_PG, length_P1


def exact_reward(
    target_PX: jax.Array,
    target_mask_PX: jax.Array,
    tokens_PGT: jax.Array,
    mask_PGT: jax.Array,
) -> jax.Array:
    """float32 reward_PG: 1 where a completion is its target, end token included."""
    right_PG, length_P1 = leading_tokens(
        target_PX, target_mask_PX, tokens_PGT, mask_PGT
    )
    return jnp.where(right_PG == length_P1, 1.0, 0.0).astype(jnp.float32)


def fraction_reward(
    target_PX: jax.Array,
    target_mask_PX: jax.Array,
    tokens_PGT: jax.Array,
    mask_PGT: jax.Array,
) -> jax.Array:
    """float32 reward_PG: share of the target's leading tokens that are right.

    It is 1 exactly where `exact_reward` is.
    """
    right_PG, length_P1 = leading_tokens(
        target_PX, target_mask_PX, tokens_PGT, mask_PGT
    )
    return (right_PG / length_P1).astype(jnp.float32)


REWARD_FNS: dict[str, ScoreTokens] = {
    "exact": exact_reward,
    "fraction": fraction_reward,
}


def token_score(score_tokens: ScoreTokens) -> Score:
    """The `base.Score` that runs `score_tokens` under jit."""
    jitted = jax.jit(score_tokens)

    def score(
        problems: Problems,
        index_P: np.ndarray,
        tokens_PGT: np.ndarray,
        mask_PGT: np.ndarray,
    ) -> np.ndarray:
        reward_PG = jitted(
            problems.target_PX[index_P],
            problems.target_mask_PX[index_P],
            np.asarray(tokens_PGT),
            np.asarray(mask_PGT),
        )
        return np.asarray(reward_PG)

    return score


def distinct_rows(seed: int, base: int, width: int, count: int) -> list[list[int]]:
    """`count` distinct rows of `width` numbers in [0, base), uniform over the space.

    With the same seed, base and width, fewer rows are the first of more rows. The
    caller makes sure that base ** width >= count.
    """
    rng = np.random.default_rng(seed)
    if base**width <= ENUMERABLE:
        index_C = rng.permutation(base**width)[:count]
        place_W = base ** np.arange(width)
        rows: list[list[int]] = (index_C[:, None] // place_W[None] % base).tolist()
        return rows
    seen: dict[tuple[int, ...], None] = {}
    while len(seen) < count:
        for row in rng.integers(base, size=(BLOCK, width)).tolist():
            seen[tuple(row)] = None
    return [list(row) for row in seen][:count]


def _rows(cfg: TaskConfig, base: int, width: int, fields: str) -> list[list[int]]:
    check_generated(cfg)
    count = cfg.heldout_problems + cfg.train_problems
    if base**width < count:
        raise ValueError(
            f"task={cfg.name} has {base**width} distinct problems, fewer than"
            f" task.train_problems={cfg.train_problems} plus"
            f" task.heldout_problems={cfg.heldout_problems}; lower these or raise"
            f" {fields}"
        )
    return distinct_rows(cfg.data_seed, base, width, count)


def _text(text: str) -> str:
    return text


def _task(
    cfg: TaskConfig, alphabet: str, prompts: list[str], answers: list[str]
) -> Task:
    """The first heldout_problems of the problems are held out."""
    tokenizer = CharTokenizer(alphabet)
    ids = prompt_ids(prompts)

    def part(rows: slice, where: str) -> Problems:
        return build(
            tokenizer,
            ids[rows],
            prompts[rows],
            answers[rows],
            cfg.max_prompt,
            cfg.long_prompts,
            f"task={cfg.name}, {where}",
        )

    score_tokens = REWARD_FNS[cfg.reward]
    return Task(
        name=cfg.name,
        tokenizer=tokenizer,
        train=part(slice(cfg.heldout_problems, None), "training problems"),
        heldout=part(slice(cfg.heldout_problems), "held-out problems"),
        score=token_score(score_tokens),
        extract=_text,
        score_tokens=score_tokens,
    )


def arithmetic(cfg: TaskConfig) -> Task:
    """Sums of `terms` numbers below 10 ** digits: "12+7=" has the answer "19".

    Terms are uniform, without leading zeros, so most have all `digits` digits. The
    order of terms counts: "12+7=" and "7+12=" are two problems.

    Raises:
      ValueError: fewer distinct problems exist than are asked for.
    """
    rows = _rows(cfg, 10**cfg.digits, cfg.terms, "task.terms or task.digits")
    prompts = ["+".join(map(str, row)) + "=" for row in rows]
    return _task(cfg, DIGITS + "+=", prompts, [str(sum(row)) for row in rows])


def sequence(cfg: TaskConfig) -> Task:
    """Copies, reverses or sorts `length` letters: "cab=" has the answer "bac".

    Letters are uniform over the first `symbols` of the alphabet and may repeat. The
    kind is the same for all problems, so prompts do not spell it out.

    Raises:
      ValueError: fewer distinct problems exist than are asked for.
    """
    rows = _rows(cfg, cfg.symbols, cfg.length, "task.length or task.symbols")
    letters = ["".join(LETTERS[symbol] for symbol in row) for row in rows]
    return _task(
        cfg,
        LETTERS[: cfg.symbols] + "=",
        [text + "=" for text in letters],
        [TRANSFORMS[cfg.kind](text) for text in letters],
    )
