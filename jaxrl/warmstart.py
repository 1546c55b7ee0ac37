"""A base policy: a short supervised warm start on reference answers, made once.

RL needs a policy that solves some problems. This trains one from random weights by
maximum likelihood on the training problems, and keeps it in a cache under a hash of
all that decides it, so that runs that share a base share the very same weights.
"""

from collections.abc import Callable
import dataclasses
import functools
import hashlib
import json
import pathlib
import shutil
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl import checkpoint, config_io, evaluate, keys, ledger, optimizer, runlog
from jaxrl.config import Config, EvaluationConfig, OptimizerConfig
from jaxrl.tasks.base import Problems, Task
from models import transformer

# Change when the same config would no longer give the same weights.
_VERSION = 1

# (steps done, loss in nats a token, held-out avg@1) -> None
Report = Callable[[int, float, float], None]


@dataclasses.dataclass(frozen=True)
class Base:
    """Where the weights came from, for the run's summary.

    Attributes:
      steps: supervised steps made.
      avg: held-out avg@1 at their end.
      flops: FLOPs of the supervised steps.
      seconds: wall seconds they took when they were made.
      cached: whether they were found in the cache.
    """

    steps: int
    avg: float
    flops: int
    seconds: float
    cached: bool


def address(config: Config, task: Task) -> str:
    """Hash of all that decides the warm-started weights, problems in files included."""
    whole = config_io.to_dict(config)
    parts = {k: whole[k] for k in ("task", "model", "warmstart", "new_tokens")}
    # None of these changes a weight.
    for name in ("remat", "unroll", "logprob_chunk"):
        del parts["model"][name]
    problems = [(p.prompts, p.answers) for p in (task.train, task.heldout)]
    text = json.dumps([_VERSION, parts, problems], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def base_policy(
    config: Config, task: Task, params: Any, report: Report
) -> tuple[Any, Base]:
    """Warm-started weights, from the cache or made now and put there.

    Args:
      config: its task, model and warmstart sections decide the result.
      task: made from config.task.
      params: initial weights; their shardings are kept.
      report: told of progress.

    Returns:
      The weights, and where they came from.
    """
    folder = pathlib.Path(config.cache_dir) / address(config, task)
    if folder.is_dir():
        found = runlog.read_json(folder / "base.json")
        params = checkpoint.load_params(folder / "params", params)
        return params, Base(**found, cached=True)
    start = time.monotonic()
    params, steps, avg, flops = _train(config, task, params, report)
    base = Base(steps, avg, flops, round(time.monotonic() - start, 3), cached=False)
    record = dataclasses.asdict(base)
    del record["cached"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(tempfile.mkdtemp(".partial", folder.name, folder.parent))
    checkpoint.save_params(partial / "params", params)
    runlog.write_json(partial / "base.json", record)
    try:
        partial.rename(folder)
    except OSError:  # Another run has made the same base meanwhile.
        shutil.rmtree(partial)
    return params, base


def _train(
    config: Config, task: Task, params: Any, report: Report
) -> tuple[Any, int, float, int]:
    """Weights, steps made, held-out avg@1 and FLOPs."""
    cfg, problems = config.warmstart, task.train
    # Defaults, not the run's: what is not part of the address may not matter.
    tx = optimizer.make(OptimizerConfig())
    prompt_P = problems.mask_PS.sum(axis=1)
    length_P = problems.target_mask_PX.sum(axis=1)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, opt_state: Any, rate: jax.Array, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(_loss)(params, config, *batch)
        direction, opt_state = tx.update(grads, opt_state, params)
        params = jax.tree.map(lambda p, d: p - rate * d, params, direction)
        return params, opt_state, loss

    look = evaluate.make_evaluate(
        dataclasses.replace(
            config,
            seed=cfg.seed,
            evaluation=EvaluationConfig(samples=1, batch=config.evaluation.batch),
        ),
        task,
    )
    params = jax.tree.map(jnp.copy, params)  # The caller's are not donated.
    opt_state = tx.init(params)
    schedule = optax.linear_schedule(cfg.learning_rate, 0.0, cfg.steps)
    flops, avg, done = 0, 0.0, 0
    rng = keys.generator(cfg.seed, "warmstart")
    while done < cfg.steps:
        index = rng.integers(len(problems), size=cfg.batch)
        params, opt_state, loss = step(
            params, opt_state, jnp.float32(schedule(done)), _batch(problems, index)
        )
        done += 1
        flops += ledger.updating(
            config.model,
            prompt_P[index],
            length_P[index][:, None],
            np.ones((cfg.batch, 1), bool),
            epochs=1,
        ).flops
        if done % cfg.every == 0 or done == cfg.steps:
            avg = look(params, done).row["avg"]
            report(done, float(loss), avg)
            if avg >= cfg.target:
                break
    return params, done, avg, flops


def _batch(problems: Problems, index: np.ndarray) -> tuple[np.ndarray, ...]:
    return (
        problems.prompt_PS[index],
        problems.mask_PS[index],
        problems.target_PX[index],
        problems.target_mask_PX[index],
    )


def _loss(
    params: Any,
    config: Config,
    prompt_PS: jax.Array,
    prompt_mask_PS: jax.Array,
    target_PX: jax.Array,
    target_mask_PX: jax.Array,
) -> jax.Array:
    """Mean negative log-likelihood of answer tokens, nats."""
    logp_PX = transformer.completion_logprobs(
        params, config.model, prompt_PS, prompt_mask_PS, target_PX, target_mask_PX
    )
    return -jnp.sum(logp_PX) / jnp.sum(target_mask_PX)
