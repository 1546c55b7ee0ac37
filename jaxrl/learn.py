"""The learning step: advantages for the whole batch, then epochs of updates.

Everything that compares rollouts (baselines, scales, which are kept, token weights)
is computed over the whole batch before it is split, and losses travel as sums, so
microbatches and devices are memory knobs and never change a number.
"""

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import anchors, diagnostics, keeps, objective
from algorithms import groups as groups_lib
from jaxrl import keys, ledger, optimizer
from jaxrl import rows as rows_lib
from jaxrl.config import Config
from jaxrl.ledger import Ledger
from jaxrl.types import Average, Rollouts, TrainState

Metrics = dict[str, jax.Array]

# (state, rollouts, reward_PG, round) -> (state, metrics, kept_PG)
Learn = Callable[
    [TrainState, Rollouts, jax.Array, jax.Array],
    tuple[TrainState, Metrics, jax.Array],
]


class Passes(NamedTuple):
    """Forward passes that a round's updates take beside their own, in rollouts."""

    sampled: int
    trained: int


def passes(config: Config) -> Passes:
    """How often all sampled and all trained rollouts are scored in a round.

    For an anchor or a reference that is not the sampler, and where a gate compares
    the rows of an update that is split.
    """
    method = config.objective
    reference = method.kl.needs_reference
    trained = int(method.anchor.source == "start")
    trained += config.epochs * int(method.anchor.source == "average")
    trained += config.epochs * int(_gates_first(config))
    trained += int(reference and not method.kl.in_reward)
    return Passes(int(reference and method.kl.in_reward), trained)


def cost(
    config: Config, prompt_P: np.ndarray, length_PG: np.ndarray, trained_PG: np.ndarray
) -> Ledger:
    """Cost of a round's updates and of what is scored for them.

    Args:
      config: the run.
      prompt_P: int, prompt lengths.
      length_PG: int, completion lengths.
      trained_PG: bool, rollouts that updates see.
    """
    batch, extra = (config.model, prompt_P, length_PG), passes(config)
    return (
        ledger.scoring(*batch, np.ones_like(trained_PG), extra.sampled)
        + ledger.scoring(*batch, trained_PG, extra.trained)
        + ledger.updating(*batch, trained_PG, config.epochs)
    )


def init_state(params: Any, config: Config) -> TrainState:
    """State before the first update."""
    method = config.objective
    # Copies, since the first update gives up the buffers of `params`.
    copy = lambda: jax.tree.map(jnp.copy, params)
    average = None
    if method.anchor.source == "average":
        average = Average(params=copy(), count=jnp.float32(1))
    return TrainState(
        params=params,
        opt_state=optimizer.make(config.optimizer).init(params),
        step=jnp.int32(0),
        skipped=jnp.int32(0),
        nonfinite=jnp.int32(0),
        reference=copy() if method.kl.needs_reference else None,
        average=average,
    )


def make_learn(config: Config) -> Learn:
    """Returns learn(...), pure; metrics have a leading axis of updates in a round."""
    tx = optimizer.make(config.optimizer)

    def learn(
        state: TrainState, rollouts: Rollouts, reward_PG: jax.Array, round: jax.Array
    ) -> tuple[TrainState, Metrics, jax.Array]:
        adv, index_PG, rows = _prepare(config, state, rollouts, reward_PG)
        order = _order(config, round)

        def update(
            state: TrainState, at: tuple[jax.Array, jax.Array]
        ) -> tuple[TrainState, Metrics]:
            parts, lag = at
            grads, loss, sums = _gradient(config, state, rows, parts, lag)
            signal = _signal(config, rows, parts)
            figures = {"loss": loss, **diagnostics.summarise(sums)}
            return _apply(config, tx, state, grads, signal, figures)

        lags = jnp.arange(order.shape[0])
        state, metrics = jax.lax.scan(update, state, (order, lags))
        batch = _batch_metrics(rollouts, reward_PG, adv)
        spread = lambda x: jnp.broadcast_to(x[None], (order.shape[0], *x.shape))
        metrics |= jax.tree.map(spread, batch)
        slot_G = jnp.arange(reward_PG.shape[1])
        trained_PG = jnp.any(index_PG[:, :, None] == slot_G[None, None], axis=1)
        return state, metrics, trained_PG & adv.keep_PG

    return learn


# (state, rollouts, reward_PG, lag) -> (gradient, metrics)
Gradient = Callable[[TrainState, Rollouts, jax.Array, jax.Array], tuple[Any, Metrics]]


def make_gradient(config: Config) -> Gradient:
    """Returns gradient(...), pure: that of a whole batch as one update, not taken.

    `lag` is the number of updates between the policy that sampled and state.params.
    """
    whole = dataclasses.replace(config, epochs=1, minibatches=1)

    def gradient(
        state: TrainState, rollouts: Rollouts, reward_PG: jax.Array, lag: jax.Array
    ) -> tuple[Any, Metrics]:
        adv, _, rows = _prepare(whole, state, rollouts, reward_PG)
        parts = _order(whole, jnp.int32(0))[0]
        grads, loss, sums = _gradient(whole, state, rows, parts, lag)
        figures = diagnostics.summarise(sums)
        batch = _batch_metrics(rollouts, reward_PG, adv)
        return grads, {"loss": loss, **figures, **batch}

    return gradient


def _prepare(
    config: Config, state: TrainState, rollouts: Rollouts, reward_PG: jax.Array
) -> tuple[objective.Advantages, jax.Array, rows_lib.Rows]:
    """Advantages, the slots that updates see, and their rows."""
    adv = advantages(config, state, rollouts, reward_PG)
    index_PG = keeps.pack(adv.keep_PG, config.rollouts)
    rows = rows_lib.gather(config, rollouts, adv, index_PG)
    return adv, index_PG, rows_lib.with_scores(config, state, rows)


def advantages(
    config: Config, state: TrainState, rollouts: Rollouts, reward_PG: jax.Array
) -> objective.Advantages:
    """Advantages of the whole batch."""
    method = config.objective
    clusters = method.transform.needs_clusters
    groups = groups_lib.of(
        reward_PG,
        jnp.isfinite(reward_PG),
        length_PG=jnp.sum(rollouts.mask_PGT, axis=-1),
        ended_PG=rollouts.ended_PG,
        limit=config.new_tokens,
        cluster_PG=rows_lib.clusters(rollouts) if clusters else None,
    )
    if not method.kl.in_reward:
        return objective.advantages(method, groups)
    logref_PGT = rows_lib.score(config, state.reference, rollouts)
    cost_PG = method.kl.cost(rollouts.logp_PGT, logref_PGT, rollouts.mask_PGT)
    return objective.advantages(method, groups, cost_PG)


def _order(config: Config, round: jax.Array) -> jax.Array:
    """Problems of every microbatch: int32 [updates, microbatches, problems].

    Part i of a split holds problems i, i + n, ...: contiguous parts would each sit
    on a fraction of the devices. Only minibatches need shuffling, since the order of
    rows within an update changes nothing.
    """

    def shuffled(epoch: jax.Array) -> jax.Array:
        key = keys.key(config.seed, "shuffle", round, epoch)
        return jax.random.permutation(key, config.problems)

    if config.minibatches > 1:
        order = jax.vmap(shuffled)(jnp.arange(config.epochs))
    else:
        order = jnp.tile(jnp.arange(config.problems)[None], (config.epochs, 1))
    parts = config.minibatches * config.microbatches
    order = order.reshape(config.epochs, -1, parts).swapaxes(1, 2)
    return order.reshape(config.updates_per_round, config.microbatches, -1)


def _gates_first(config: Config) -> bool:
    """Whether gates must be known for a whole update before its gradient is taken."""
    return config.objective.gate.compares_rows and config.microbatches > 1


def _anchor(config: Config, state: TrainState, rows: rows_lib.Rows) -> jax.Array:
    """The anchor's log-probabilities of an update's rows, [P, G, T]."""
    if state.average is None:
        return rows.logo_PGT
    return jax.lax.stop_gradient(rows_lib.logprobs(config, state.average.params, rows))


def _decided(
    config: Config,
    state: TrainState,
    rows: rows_lib.Rows,
    parts: jax.Array,
    lag: jax.Array,
) -> rows_lib.Rows:
    """The rows with the gates of one update's problems, `parts`, decided together."""

    def one(part: jax.Array) -> tuple[jax.Array, jax.Array]:
        some = rows_lib.take(rows, part)
        logp = rows_lib.logprobs(config, state.params, some)
        return logp, _anchor(config, state, some)

    merged = parts.reshape(-1)
    logp, logo = jax.lax.map(one, parts)
    join = lambda x: x.reshape(merged.shape[0], *x.shape[2:])
    batch = rows_lib.batch(rows_lib.take(rows, merged), join(logo), lag)
    gate_NT = objective.gates(config.objective, rows_lib.flat(join(logp)), batch)
    gate_PGT = jnp.ones_like(rows.weight_PGT)
    gate = gate_NT.reshape(merged.shape[0], *gate_PGT.shape[1:])
    return rows._replace(gate_PGT=gate_PGT.at[merged].set(gate))


def _gradient(
    config: Config,
    state: TrainState,
    rows: rows_lib.Rows,
    parts: jax.Array,
    lag: jax.Array,
) -> tuple[Any, jax.Array, Metrics]:
    """Gradient, loss and metric sums over `parts`, one microbatch alive at a time."""
    method = config.objective
    if _gates_first(config):
        rows = _decided(config, state, rows, parts, lag)

    def loss(params: Any, part: jax.Array) -> tuple[jax.Array, Metrics]:
        some = rows_lib.take(rows, part)
        batch = rows_lib.batch(some, _anchor(config, state, some), lag)
        gate_NT = None if some.gate_PGT is None else rows_lib.flat(some.gate_PGT)
        if not method.entropy.exact:
            logp_NT = rows_lib.flat(rows_lib.logprobs(config, params, some))
            return objective.loss(method, logp_NT, batch, gate_NT=gate_NT)
        both = rows_lib.logprobs_and_entropy(config, params, some)
        logp_NT, entropy_NT = map(rows_lib.flat, both)
        return objective.loss(method, logp_NT, batch, entropy_NT, gate_NT)

    def one(part: jax.Array) -> tuple[Any, jax.Array, Metrics]:
        grad = jax.value_and_grad(loss, has_aux=True)
        (value, sums), grads = grad(state.params, part)
        return grads, value, sums

    if parts.shape[0] == 1:
        return one(parts[0])
    like = jax.tree.map(jnp.zeros_like, jax.eval_shape(one, parts[0]))
    add = lambda acc, part: (jax.tree.map(jnp.add, acc, one(part)), None)
    return jax.lax.scan(add, like, parts)[0]


def _signal(config: Config, rows: rows_lib.Rows, parts: jax.Array) -> jax.Array:
    """Whether an update's rows say anything at all."""
    method = config.objective
    if (method.kl.active and not method.kl.in_reward) or method.entropy.active:
        return jnp.any(rows.weight_PGT[parts] > 0)
    pull_PGT = rows.weight_PGT * rows.adv_PG[..., None]
    return jnp.any(jnp.abs(pull_PGT[parts]) > 0)


def _apply(
    config: Config,
    tx: optax.GradientTransformation,
    state: TrainState,
    grads: Any,
    signal: jax.Array,
    figures: Metrics,
) -> tuple[TrainState, Metrics]:
    """One optimizer update, or none where the gradient is not finite or says nothing.

    Written out because optax.apply_if_finite lets bad updates through after a number
    of them, and knows nothing of a batch without signal, on which Adam's momentum
    would move the weights all the same.
    """
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(norm)
    go = finite & signal
    rate = optimizer.learning_rate(config, state.step)
    direction, opt_state = tx.update(grads, state.opt_state, state.params)
    params = jax.tree.map(lambda p, d: p - rate * d, state.params, direction)
    average = _averaged(config, state.average, params, figures["active"])
    params, opt_state, average = jax.tree.map(
        lambda new, old: jnp.where(go, new, old),
        (params, opt_state, average),
        (state.params, state.opt_state, state.average),
    )
    state = dataclasses.replace(
        state,
        params=params,
        opt_state=opt_state,
        step=state.step + 1,
        skipped=state.skipped + ~go,
        nonfinite=state.nonfinite + ~finite,
        average=average,
    )
    return state, {
        "step": state.step,
        "grad_norm": norm,
        "learning_rate": rate,
        **figures,
        "skipped": state.skipped,
        "nonfinite": state.nonfinite,
    }


def _averaged(
    config: Config, average: Average | None, params: Any, active: jax.Array
) -> Average | None:
    """The average with newer weights, or those alone if too little is active."""
    anchor = config.objective.anchor
    if average is None or not isinstance(anchor, anchors.Ewma):
        return None
    restart = active < anchor.reset
    count = jnp.where(restart, 1.0, 1.0 + anchor.beta * average.count)
    moved = jax.tree.map(
        lambda a, p: jnp.where(restart, p, a + (p - a) / count), average.params, params
    )
    return Average(params=moved, count=count)


def _batch_metrics(
    rollouts: Rollouts, reward_PG: jax.Array, adv: objective.Advantages
) -> Metrics:
    """Metrics of the batch as sampled, before any update."""
    valid_PG = jnp.isfinite(reward_PG)
    scored = jnp.maximum(jnp.sum(valid_PG), 1)
    reward_PG = jnp.where(valid_PG, reward_PG, 0.0)
    mean = jnp.sum(reward_PG) / scored
    square_PG = jnp.where(valid_PG, jnp.square(reward_PG - mean), 0.0)
    length_PG = jnp.sum(rollouts.mask_PGT, axis=-1)
    share = lambda flag: jnp.mean(flag.astype(jnp.float32))
    return {
        "reward": mean,
        "reward_std": jnp.sqrt(jnp.sum(square_PG) / scored),
        "correct": jnp.sum(valid_PG & (reward_PG >= 1)) / scored,
        "length": jnp.mean(length_PG.astype(jnp.float32)),
        "truncated": share(~rollouts.ended_PG),
        "unscored": jnp.sum(~valid_PG),
        "constant_groups": share(adv.constant_P),
        "silent_groups": share(adv.silent_P),
        "advantage_raw": adv.raw_max,
        "advantage_high": jnp.max(adv.adv_PG),
        "advantage_low": jnp.min(adv.adv_PG),
        "advantage_max": jnp.max(jnp.abs(adv.adv_PG)),
        "scale_fallback": share(adv.fallback_P),
    }
