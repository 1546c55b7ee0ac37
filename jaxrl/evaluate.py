"""Measuring a policy on held-out problems."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import estimators, keys, ledger, rollout
from jaxrl.config import Config
from jaxrl.tasks.base import Problems, Task
from jaxrl.tasks.scoring import decode_completions
from models.sampling import SamplingConfig


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One look at the policy.

    Attributes:
      row: estimates by name, for eval.jsonl.
      problem_P: int32 problem ids.
      reward_PK: float32 rewards, NaN where a completion could not be scored.
      texts: completions, [P][K].
      index_P: which problems of the set were asked.
      tokens: completion tokens sampled.
      flops: FLOPs spent.
    """

    row: dict[str, float]
    problem_P: np.ndarray
    reward_PK: np.ndarray
    texts: list[list[str]]
    index_P: np.ndarray
    tokens: int
    flops: int


Evaluate = Callable[[Any, int], Evaluation]


def make_evaluate(
    config: Config, task: Task, problems: Problems | None = None
) -> Evaluate:
    """Returns evaluate(params, step); problems default to the task's held-out ones.

    Draws are addressed by (seed, step, problem, sample), apart from training's.
    """
    problems = task.heldout if problems is None else problems
    cfg = config.evaluation
    count = min(cfg.problems, len(problems))
    # Every call has the same width, so that it compiles once; a short last call is
    # filled up with its first problem, whose extra rows are dropped. Devices divide it.
    devices = config.mesh.data * config.mesh.fsdp
    width = -(-min(cfg.batch, count) // devices) * devices
    sample = jax.jit(
        rollout.make_sample(
            config.model,
            SamplingConfig(temperature=cfg.temperature),
            task.tokenizer,
            config.new_tokens,
            cfg.samples,
        )
    )

    def some(
        params: Any, key: jax.Array, index_P: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        real = len(index_P)
        index_P = np.concatenate([index_P, np.repeat(index_P[:1], width - real)])
        out = sample(
            params,
            jnp.asarray(problems.prompt_PS[index_P]),
            jnp.asarray(problems.mask_PS[index_P]),
            jnp.asarray(problems.id_P[index_P]),
            key,
        )
        tokens, mask, ended = jax.device_get(
            (out.tokens_PGT, out.mask_PGT, out.ended_PG)
        )
        return tokens[:real], mask[:real], ended[:real]

    def evaluate(params: Any, step: int) -> Evaluation:
        key = keys.key(config.seed, "evaluate", step)
        index_P = np.arange(count)
        chunks = [
            some(params, key, index_P[i : i + width]) for i in range(0, count, width)
        ]
        tokens, mask, ended = (np.concatenate(x) for x in zip(*chunks, strict=True))
        reward_PK = task.score(problems, index_P, tokens, mask)
        texts = decode_completions(task.tokenizer, tokens, mask)
        answers = [[task.extract(text) for text in row] for row in texts]
        length_PK = mask.sum(axis=-1)
        spent = ledger.sampling(
            config.model, problems.mask_PS[index_P].sum(axis=-1), length_PK
        )
        row = estimators.summarise(reward_PK, answers)
        row |= {
            "problems": count,
            "samples": cfg.samples,
            "length": float(length_PK.mean()),
            "truncated": float(1 - ended.mean()),
        }
        return Evaluation(
            row=row,
            problem_P=problems.id_P[index_P],
            reward_PK=reward_PK,
            texts=texts,
            index_P=index_P,
            tokens=spent.generated_tokens,
            flops=spent.flops,
        )

    return evaluate
