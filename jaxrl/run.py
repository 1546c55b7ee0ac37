"""One run: its state, and its steps in the order that the loop takes them.

Every step is a pure function of state and inputs; this file only orders them, times
them and charges the ledger.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import allocation
from jaxrl import data, keys, learn, ledger, rollout, schema
from jaxrl.config import Config
from jaxrl.evaluate import Evaluate, Evaluation, make_evaluate
from jaxrl.ledger import Ledger
from jaxrl.tasks.base import Task
from jaxrl.types import Rollouts, TrainState
from models import sharding


@dataclasses.dataclass
class Host:
    """What the next round depends on, host side; saved with every checkpoint.

    Attributes:
      round: sampling phases done.
      position: in the stream of problems.
      ledger: training compute so far.
      seconds: device-seconds so far, by phase.
      eval_tokens: completion tokens of evaluations so far.
      eval_flops: FLOPs of evaluations so far.
      base: estimates at step 0, or None before them.
      last: estimates at the newest evaluation.
      best: best avg after step 0, or None before one.
      warmstart: where the starting weights came from, or None without a warm start.
    """

    round: int = 0
    position: int = 0
    ledger: Ledger = Ledger()
    seconds: dict[str, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(schema.SECONDS, 0.0)
    )
    eval_tokens: int = 0
    eval_flops: int = 0
    base: dict[str, float] | None = None
    last: dict[str, float] | None = None
    best: float | None = None
    warmstart: dict[str, Any] | None = None

    @classmethod
    def restore(cls, value: dict[str, Any]) -> "Host":
        """From what `dataclasses.asdict` gave."""
        return cls(**(value | {"ledger": Ledger(**value["ledger"])}))


class Scored(NamedTuple):
    """Rollouts of a sampling phase with their rewards.

    Attributes:
      rollouts: on the devices.
      reward_PG: float32, NaN where there is none.
      prompt_P: int, prompt lengths.
      length_PG: int, completion lengths.
    """

    rollouts: Rollouts
    reward_PG: np.ndarray
    prompt_P: np.ndarray
    length_PG: np.ndarray


class Run:
    """A run's state and its steps, compiled when first called.

    Attributes:
      config: resolved.
      state: device side; every later state keeps the shardings of the first.
      host: host side.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        mesh: jax.sharding.Mesh,
        state: TrainState,
        host: Host,
    ) -> None:
        """Takes over `state`, whose buffers the first update donates."""
        self.config, self.state, self.host = config, state, host
        self._task, self._devices = task, mesh.size
        self._sample = jax.jit(
            rollout.make_sample(
                config.model,
                config.sampling,
                task.tokenizer,
                config.new_tokens,
                config.group,
            )
        )
        self._learn = jax.jit(
            learn.make_learn(config),
            donate_argnums=0,
            out_shardings=(jax.tree.map(lambda x: x.sharding, state), None, None),
        )
        self._evaluate: Evaluate = make_evaluate(config, task)
        self._rows = sharding.named(mesh, ("batch",))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charges the time inside to a phase of schema.SECONDS."""
        start = time.monotonic()
        yield
        self.host.seconds[name] += self._devices * (time.monotonic() - start)

    @property
    def step(self) -> int:
        """Updates done."""
        return self.host.round * self.config.updates_per_round

    def round(self) -> tuple[list[dict[str, Any]], int]:
        """One round: a metric row for each of its updates, and tokens sampled."""
        host, before = self.host, self.host.ledger
        # 1. to 3. Choose, sample and score, again while groups say too little.
        scored = [self._draw(0)]
        while self._lacks(scored) and len(scored) <= self.config.objective.refills:
            scored.append(self._draw(len(scored)))
        batch = self._fill(scored)
        # 4. Learn.
        with self.phase("learn"):
            self.state, metrics, trained_PG = self._learn(
                self.state,
                batch.rollouts,
                jax.device_put(batch.reward_PG, self._rows),
                jnp.int32(host.round),
            )
            metrics, trained_PG = jax.device_get((metrics, trained_PG))
        # 5. Record.
        host.ledger += learn.cost(
            self.config, batch.prompt_P, batch.length_PG, trained_PG
        )
        host.ledger += Ledger(
            discarded_tokens=sum(int(s.length_PG.sum()) for s in scored)
            - int(batch.length_PG.sum())
        )
        host.round += 1
        rows = self._metric_rows(metrics, len(scored))
        return rows, host.ledger.generated_tokens - before.generated_tokens

    def _draw(self, phase: int) -> Scored:
        """Steps 1 to 3: new problems, completions of each, and their rewards."""
        config, task, host = self.config, self._task, self.host
        index_P, host.position = data.take(
            config.seed, host.position, config.problems, len(task.train)
        )
        place = lambda x: jax.device_put(x[index_P], self._rows)
        prompts = (place(task.train.prompt_PS), place(task.train.mask_PS))
        # A problem that comes again within a round must not draw the same again.
        address = ("resample", host.round, phase) if phase else ("sample", host.round)
        with self.phase("sample"):
            rollouts = self._sample(
                self.state.params,
                *prompts,
                place(task.train.id_P),
                keys.key(config.seed, *address),
            )
            tokens, mask = jax.device_get((rollouts.tokens_PGT, rollouts.mask_PGT))
        with self.phase("score"):
            reward_PG = task.score(task.train, index_P, tokens, mask)
        prompt_P = task.train.mask_PS[index_P].sum(axis=-1)
        length_PG = mask.sum(axis=-1)
        host.ledger += ledger.sampling(config.model, prompt_P, length_PG)
        reward_PG = np.asarray(reward_PG, np.float32)
        return Scored(rollouts, reward_PG, prompt_P, length_PG)

    def _lacks(self, scored: list[Scored]) -> bool:
        """Whether fewer groups than a batch has say something."""
        said = sum(allocation.informative(s.reward_PG).sum() for s in scored)
        return bool(said < self.config.problems)

    def _fill(self, scored: list[Scored]) -> Scored:
        """One batch of what was drawn, groups that say something first."""
        if len(scored) == 1:
            return scored[0]
        merged = jax.tree.map(lambda *x: jnp.concatenate(x), *scored)
        says_C = allocation.informative(np.asarray(merged.reward_PG))
        index_P = allocation.fill(says_C, self.config.problems)
        rollouts, *others = jax.tree.map(lambda x: x[index_P], merged)
        return Scored(
            jax.device_put(rollouts, self._rows), *(np.asarray(x) for x in others)
        )

    def _metric_rows(
        self, metrics: dict[str, np.ndarray], phases: int
    ) -> list[dict[str, Any]]:
        """A row of plain numbers per update.

        Every row of a round carries the ledger at the round's end: its updates are
        one indivisible purchase.
        """
        config, host = self.config, self.host
        spent = {f"ledger/{k}": v for k, v in host.ledger.row().items()}
        rows = []
        for i in range(config.updates_per_round):
            row = {"step": int(metrics["step"][i]), "round": host.round - 1}
            row["phases"] = phases
            row |= {k: v[i].item() for k, v in metrics.items() if k != "step"}
            rows.append(row | spent)
        return rows

    def evaluate(self) -> tuple[dict[str, Any], Evaluation]:
        """Measures the policy as it is: a row for eval.jsonl, and all behind it."""
        host = self.host
        with self.phase("evaluate"):
            out = self._evaluate(self.state.params, self.step)
        host.eval_tokens += out.tokens
        host.eval_flops += out.flops
        row = {
            "step": self.step,
            **out.row,
            "tokens": host.eval_tokens,
            "flops": host.eval_flops,
            **{f"ledger/{k}": v for k, v in host.ledger.row().items()},
        }
        host.base = host.base or out.row
        host.last = out.row
        return row, out

    def is_best(self, avg: float | None) -> bool:
        """Whether this evaluation beats all since step 0, and remembers it."""
        if avg is None or math.isnan(avg):
            return False
        better = self.host.best is None or avg > self.host.best
        if better:
            self.host.best = avg
        return better

    def summary(self) -> dict[str, Any]:
        """Where the run stands, for summary.json."""
        host = self.host
        return {
            "step": self.step,
            "updates": self.config.updates,
            "base": host.base,
            "final": host.last,
            "best": host.best,
            "ledger": host.ledger.row(),
            "device_seconds": host.seconds,
            "evaluation": {"tokens": host.eval_tokens, "flops": host.eval_flops},
            "warmstart": host.warmstart,
        }
