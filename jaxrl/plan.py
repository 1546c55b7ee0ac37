"""What a run will be, said before any of it is done: shapes, tokens, FLOPs, memory."""

import dataclasses

import jax
import numpy as np

from jaxrl import learn, ledger
from jaxrl.config import Config
from jaxrl.tasks.base import Task
from models import memory, params, transformer


@dataclasses.dataclass(frozen=True)
class Plan:
    """Predictions for one round at full length; bytes are per device.

    Attributes:
      parameters: scalars.
      prompt_width: S, the padded prompt width.
      rows_sampled: rollouts of a batch.
      rows_trained: rollouts that updates see.
      prompt_tokens: most prompt tokens a round prefills.
      new_tokens: most completion tokens a round samples.
      cost: ledger of a round that refills as often as it may and whose completions all
        run to the limit.
      state_bytes: weights and optimizer.
      sample_bytes: peak of the sampling step.
      learn_bytes: peak of the learning step.
    """

    parameters: int
    prompt_width: int
    rows_sampled: int
    rows_trained: int
    prompt_tokens: int
    new_tokens: int
    cost: ledger.Ledger
    state_bytes: int
    sample_bytes: int
    learn_bytes: int


def resolve(config: Config, task: Task) -> Config:
    """The config with the vocabulary that the task's tokenizer has.

    Raises:
      ValueError: the config names another size.
    """
    size = task.tokenizer.size
    if config.model.vocab not in (0, size):
        raise ValueError(
            f"model.vocab={config.model.vocab}, but task={task.name} has a tokenizer"
            f" of {size} ids; leave it 0"
        )
    return dataclasses.replace(
        config, model=dataclasses.replace(config.model, vocab=size)
    )


def predict(config: Config, task: Task) -> Plan:
    """Predictions for a resolved config."""
    model = config.model
    count = params.count(transformer.param_defs(model))
    P, S, T = config.problems, task.train.prompt_PS.shape[1], config.new_tokens
    length_PG = np.full((P, config.group), T)
    trained_PG = np.arange(config.group)[None] < np.full((P, 1), config.rollouts)
    prompt_P = np.full(P, task.train.mask_PS.sum(axis=1).max())
    phases = 1 + config.objective.refills
    sampled = ledger.sampling(model, prompt_P, length_PG)
    again = ledger.Ledger(discarded_tokens=(phases - 1) * int(length_PG.sum()))
    cost = sum((sampled for _ in range(phases)), again)
    cost += learn.cost(config, prompt_P, length_PG, trained_PG)
    weights = 4 * count // (config.mesh.fsdp * config.mesh.tensor)
    # Weights that the objective keeps beside those that are trained.
    copies = int(config.objective.kl.needs_reference)
    copies += int(config.objective.anchor.source == "average")
    rows = config.mesh.data * config.mesh.fsdp
    parts = config.minibatches * config.microbatches
    part_prompts = P // parts // rows
    batch_bytes = 9 * P * config.group * T // rows * 2
    drawn = P * config.group // rows
    logits = 4 * 4 * drawn * model.vocab
    cache = memory.cache(model, P // rows * S + drawn * (T - 1))
    prefill = memory.block(model, P // rows * S, P // rows * S * S)
    activations = (
        memory.update(model, part_prompts * config.rollouts, S, part_prompts, T)
        // config.mesh.tensor
    )
    # Gradients, and their running sum where microbatches add up.
    grads = weights * (2 if config.microbatches > 1 else 1)
    return Plan(
        parameters=count,
        prompt_width=S,
        rows_sampled=P * config.group,
        rows_trained=config.batch,
        prompt_tokens=phases * int(prompt_P.sum()),
        new_tokens=phases * P * config.group * T,
        cost=cost,
        state_bytes=(3 + copies) * weights,
        sample_bytes=(1 + copies) * weights + cache + prefill + logits + batch_bytes,
        learn_bytes=(3 + copies) * weights + grads + activations + batch_bytes,
    )


def si(value: float, unit: str) -> str:
    """1234567 -> '1.23 M' and so on, three figures and a decimal prefix."""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if abs(value) < 1000:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} Z{unit}"


def text(config: Config, task: Task) -> str:
    """The plan for people, a line each."""
    p = predict(config, task)
    model, cost = config.model, p.cost
    update = cost.flops_score + cost.flops_train + cost.flops_recompute
    phases = 1 + config.objective.refills
    lines = [
        f"task            {task.name}: {len(task.train)} training and"
        f" {len(task.heldout)} held-out problems,"
        f" {task.train.dropped + task.heldout.dropped} dropped over the prompt limit,"
        f" {task.train.duplicates + task.heldout.duplicates} as duplicates",
        f"model           {si(p.parameters, '').strip()} parameters: {model.layers}"
        f" layers, width {model.width}, {model.heads} heads over {model.kv_heads}"
        f" key-value heads of {model.head_dim}, ffn {model.ffn}, vocab {model.vocab},"
        f" {model.dtype}",
        f"mesh            data {config.mesh.data}, fsdp {config.mesh.fsdp}, tensor"
        f" {config.mesh.tensor}; {jax.device_count()} {jax.devices()[0].platform}"
        " device(s) present",
        f"round           {config.problems} problems x {config.group} rollouts ="
        f" {p.rows_sampled} completions, {p.rows_trained} reach the optimizer"
        + (f"; sampled up to {phases} times over to fill up" if phases > 1 else ""),
        f"updates         {config.updates} in {config.rounds} rounds:"
        f" {config.epochs} epoch(s) x {config.minibatches} minibatch(es) x"
        f" {config.microbatches} microbatch(es)",
        f"shapes          prompts [{config.problems}, {p.prompt_width}], completions"
        f" [{config.problems}, {config.group}, {config.new_tokens}], trained"
        f" [{config.batch}, {config.new_tokens}]",
        f"tokens a round  at most {p.prompt_tokens} prompt + {p.new_tokens} new",
        f"FLOPs a round   at most {si(cost.flops, 'FLOP')}: prefill"
        f" {si(cost.flops_prefill, '')}, decode {si(cost.flops_decode, '')}, update"
        f" {si(update, '')}",
        f"FLOPs a run     at most {si(cost.flops * config.rounds, 'FLOP')}",
        f"memory          weights and optimizer {si(p.state_bytes, 'B')}, sampling"
        f" peak {si(p.sample_bytes, 'B')}, update peak {si(p.learn_bytes, 'B')}"
        " per device",
    ]
    return "\n".join(lines)
