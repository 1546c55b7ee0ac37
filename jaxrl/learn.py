"""The learning step: advantages for the whole batch, then epochs of updates.

Everything that compares rollouts (baselines, scales, which are kept, token weights)
is computed over the whole batch before it is split, and losses travel as sums, so
microbatches and devices are memory knobs and never change a number.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import keep, objective
from jaxrl import keys, optimizer
from jaxrl.config import Config
from jaxrl.types import Rollouts, TrainState
from models import transformer

Metrics = dict[str, jax.Array]

# (state, rollouts, reward_PG, round) -> (state, metrics, kept_PG)
Learn = Callable[
    [TrainState, Rollouts, jax.Array, jax.Array],
    tuple[TrainState, Metrics, jax.Array],
]


class _Rows(NamedTuple):
    """What updates read, split by problem; G here counts trained rollouts only."""

    prompt_PS: jax.Array
    prompt_mask_PS: jax.Array
    tokens_PGT: jax.Array
    mask_PGT: jax.Array
    logo_PGT: jax.Array
    weight_PGT: jax.Array
    adv_PG: jax.Array


def init_state(params: Any, config: Config) -> TrainState:
    """State before the first update."""
    return TrainState(
        params=params,
        opt_state=optimizer.make(config.optimizer).init(params),
        step=jnp.int32(0),
        skipped=jnp.int32(0),
        nonfinite=jnp.int32(0),
    )


def make_learn(config: Config) -> Learn:
    """Returns learn(...), pure; metrics have a leading axis of updates in a round."""
    tx = optimizer.make(config.optimizer)

    def learn(
        state: TrainState, rollouts: Rollouts, reward_PG: jax.Array, round: jax.Array
    ) -> tuple[TrainState, Metrics, jax.Array]:
        valid_PG = jnp.isfinite(reward_PG)
        adv = objective.advantages(config.objective.method, reward_PG, valid_PG)
        index_PG = keep.pack(adv.keep_PG, config.rollouts)
        rows = _rows(config, rollouts, adv, index_PG)
        if config.objective.anchor == "rescored":
            rows = rows._replace(logo_PGT=_rescore(config, state.params, rows))
        order = _order(config, round)

        def update(state: TrainState, parts: jax.Array) -> tuple[TrainState, Metrics]:
            grads, loss, sums = _gradient(config, state.params, rows, parts)
            signal = jnp.any(
                jnp.abs(rows.weight_PGT * rows.adv_PG[..., None])[parts] > 0
            )
            return _apply(config, tx, state, grads, signal, {"loss": loss, **sums})

        state, metrics = jax.lax.scan(update, state, order)
        batch = _batch_metrics(rollouts, reward_PG, valid_PG, adv)
        width = order.shape[0]
        spread = lambda x: jnp.broadcast_to(x[None], (width, *x.shape))
        metrics |= jax.tree.map(spread, batch)
        slot_G = jnp.arange(reward_PG.shape[1])
        trained_PG = jnp.any(index_PG[:, :, None] == slot_G[None, None], axis=1)
        return state, metrics, trained_PG & adv.keep_PG

    return learn


def _rows(
    config: Config, rollouts: Rollouts, adv: objective.Advantages, index_PG: jax.Array
) -> _Rows:
    """Gathers the rollouts that updates see and weighs their tokens, once."""
    pick = lambda x_PG: jnp.take_along_axis(x_PG, index_PG, axis=1)
    pick3 = lambda x_PGT: jnp.take_along_axis(x_PGT, index_PG[..., None], axis=1)
    mask_PGT, keep_PG = pick3(rollouts.mask_PGT), pick(adv.keep_PG)
    P, G, T = mask_PGT.shape
    weight_NT = config.objective.method.aggregate(
        mask_PGT.reshape(P * G, T), keep_PG.reshape(P * G), config.new_tokens
    )
    return _Rows(
        prompt_PS=rollouts.prompt_PS,
        prompt_mask_PS=rollouts.prompt_mask_PS,
        tokens_PGT=pick3(rollouts.tokens_PGT),
        mask_PGT=mask_PGT,
        logo_PGT=pick3(rollouts.logp_PGT),
        # Weights are shares of the whole batch. An update sees one minibatch of it,
        # and should be as large as if that were all there is.
        weight_PGT=weight_NT.reshape(P, G, T) * config.minibatches,
        adv_PG=pick(adv.adv_PG),
    )


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


def _logprobs(config: Config, params: Any, rows: _Rows) -> jax.Array:
    P, G, T = rows.tokens_PGT.shape
    logp_NT = transformer.completion_logprobs(
        params,
        config.model,
        rows.prompt_PS,
        rows.prompt_mask_PS,
        rows.tokens_PGT.reshape(P * G, T),
        rows.mask_PGT.reshape(P * G, T),
        config.sampling.temperature,
    )
    return logp_NT.reshape(P, G, T)


def _take(rows: _Rows, part: jax.Array) -> _Rows:
    return jax.tree.map(lambda x: x[part], rows)


def _rescore(config: Config, params: Any, rows: _Rows) -> jax.Array:
    """Log-probabilities of all rows under the policy as it is before any update."""
    P = rows.prompt_PS.shape[0]
    parts = jnp.arange(P).reshape(-1, config.minibatches * config.microbatches).T
    score = lambda part: _logprobs(config, params, _take(rows, part))
    logo = jax.lax.map(score, parts)
    return logo.swapaxes(0, 1).reshape(rows.logo_PGT.shape)


def _gradient(
    config: Config, params: Any, rows: _Rows, parts: jax.Array
) -> tuple[Any, jax.Array, Metrics]:
    """Gradient, loss and metric sums over `parts`, one microbatch alive at a time."""
    method = config.objective.method
    gate = method.gate(config.objective.clip_low, config.objective.clip_high)

    def loss(params: Any, part: jax.Array) -> tuple[jax.Array, Metrics]:
        some = _take(rows, part)
        flat = lambda x: x.reshape(-1, x.shape[-1])
        batch = objective.Batch(
            adv_N=some.adv_PG.reshape(-1),
            weight_NT=flat(some.weight_PGT),
            logo_NT=flat(some.logo_PGT),
            mask_NT=flat(some.mask_PGT),
        )
        return objective.loss(
            method, gate, flat(_logprobs(config, params, some)), batch
        )

    def one(part: jax.Array) -> tuple[Any, jax.Array, Metrics]:
        (value, sums), grads = jax.value_and_grad(loss, has_aux=True)(params, part)
        return grads, value, sums

    if parts.shape[0] == 1:
        return one(parts[0])
    like = jax.tree.map(jnp.zeros_like, jax.eval_shape(one, parts[0]))
    add = lambda acc, part: (jax.tree.map(jnp.add, acc, one(part)), None)
    return jax.lax.scan(add, like, parts)[0]


def _apply(
    config: Config,
    tx: optax.GradientTransformation,
    state: TrainState,
    grads: Any,
    signal: jax.Array,
    sums: Metrics,
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
    chosen = jax.tree.map(
        lambda new, old: jnp.where(go, new, old),
        (params, opt_state),
        (state.params, state.opt_state),
    )
    state = TrainState(
        params=chosen[0],
        opt_state=chosen[1],
        step=state.step + 1,
        skipped=state.skipped + ~go,
        nonfinite=state.nonfinite + ~finite,
    )
    weight = jnp.maximum(sums["weight"], 1e-30)
    return state, {
        "step": state.step,
        "loss": sums["loss"],
        "grad_norm": norm,
        "learning_rate": rate,
        "log_ratio": sums["log_ratio"] / weight,
        "log_ratio_sq": sums["log_ratio_sq"] / weight,
        "gated": sums["gated"] / weight,
        "entropy": sums["surprisal"] / jnp.maximum(sums["tokens"], 1.0),
        "skipped": state.skipped,
        "nonfinite": state.nonfinite,
    }


def _batch_metrics(
    rollouts: Rollouts,
    reward_PG: jax.Array,
    valid_PG: jax.Array,
    adv: objective.Advantages,
) -> Metrics:
    """Metrics of the batch as sampled, before any update."""
    scored = jnp.maximum(jnp.sum(valid_PG), 1)
    reward_PG = jnp.where(valid_PG, reward_PG, 0.0)
    mean = jnp.sum(reward_PG) / scored
    square_PG = jnp.where(valid_PG, jnp.square(reward_PG - mean), 0.0)
    length_PG = jnp.sum(rollouts.mask_PGT, axis=-1)
    return {
        "reward": mean,
        "reward_std": jnp.sqrt(jnp.sum(square_PG) / scored),
        "correct": jnp.sum(valid_PG & (reward_PG >= 1)) / scored,
        "length": jnp.mean(length_PG.astype(jnp.float32)),
        "truncated": jnp.mean((~rollouts.ended_PG).astype(jnp.float32)),
        "unscored": jnp.sum(~valid_PG),
        "constant_groups": jnp.mean(adv.constant_P.astype(jnp.float32)),
        "advantage_max": jnp.max(jnp.abs(adv.adv_PG)),
        "scale_fallback": jnp.mean(adv.fallback_P.astype(jnp.float32)),
    }
