"""Rows of rollouts on their way to an update: gathered, weighed, scored."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algorithms import objective
from jaxrl.config import Config
from jaxrl.types import Rollouts, TrainState
from models import transformer


class Rows(NamedTuple):
    """What updates read, split by problem; G here counts trained rollouts only.

    Attributes:
      prompt_PS: int32 ids, left-padded.
      prompt_mask_PS: bool.
      tokens_PGT: int32 ids, right-padded.
      mask_PGT: bool, completion tokens; none in rows that are not trained on.
      logo_PGT: float32 nats under the anchor.
      logq_PGT: float32 nats under the distribution that sampled.
      weight_PGT: float32 share of each token in the loss of its minibatch.
      adv_PG: float32.
      logref_PGT: float32 nats under the reference policy, or None.
      gate_PGT: float32 gates decided beforehand, or None.
    """

    prompt_PS: jax.Array
    prompt_mask_PS: jax.Array
    tokens_PGT: jax.Array
    mask_PGT: jax.Array
    logo_PGT: jax.Array
    logq_PGT: jax.Array
    weight_PGT: jax.Array
    adv_PG: jax.Array
    logref_PGT: jax.Array | None = None
    gate_PGT: jax.Array | None = None


def gather(
    config: Config, rollouts: Rollouts, adv: objective.Advantages, index_PG: jax.Array
) -> Rows:
    """Gathers the rollouts that updates see and weighs their tokens, once."""
    pick = lambda x_PG: jnp.take_along_axis(x_PG, index_PG, axis=1)
    pick3 = lambda x_PGT: jnp.take_along_axis(x_PGT, index_PG[..., None], axis=1)
    keep_PG = pick(adv.keep_PG)
    # The tail of a group that kept fewer than others is filler: no tokens at all.
    mask_PGT = pick3(rollouts.mask_PGT) & keep_PG[..., None]
    P, G, T = mask_PGT.shape
    weight_NT = config.objective.aggregate(
        mask_PGT.reshape(P * G, T),
        keep_PG.reshape(P * G),
        _group(P, G),
        config.new_tokens,
    )
    return Rows(
        prompt_PS=rollouts.prompt_PS,
        prompt_mask_PS=rollouts.prompt_mask_PS,
        tokens_PGT=pick3(rollouts.tokens_PGT),
        mask_PGT=mask_PGT,
        logo_PGT=pick3(rollouts.logp_PGT),
        logq_PGT=pick3(rollouts.logq_PGT),
        # Weights are shares of the whole batch. An update sees one minibatch of it,
        # and should be as large as if that were all there is.
        weight_PGT=weight_NT.reshape(P, G, T) * config.minibatches,
        adv_PG=pick(adv.adv_PG),
    )


def with_scores(config: Config, state: TrainState, rows: Rows) -> Rows:
    """The rows with log-probabilities that stay the same over the round's updates."""
    method = config.objective
    if method.anchor.source == "start":
        rows = rows._replace(logo_PGT=score(config, state.params, rows))
    if method.kl.needs_reference and not method.kl.in_reward:
        rows = rows._replace(logref_PGT=score(config, state.reference, rows))
    return rows


def clusters(rollouts: Rollouts) -> jax.Array:
    """The first slot of its problem with the very same completion, int32 [P, G]."""
    shown_PGT = jnp.where(rollouts.mask_PGT, rollouts.tokens_PGT, -1)
    equal_PGG = jnp.all(shown_PGT[:, :, None] == shown_PGT[:, None], axis=-1)
    return jnp.argmax(equal_PGG, axis=-1).astype(jnp.int32)


def logprobs(config: Config, params: Any, rows: Any) -> jax.Array:
    """Log-probabilities of `rows`, which may be Rollouts as well, [P, G, T]."""
    return _forward(transformer.completion_logprobs, config, params, rows)


def logprobs_and_entropy(
    config: Config, params: Any, rows: Any
) -> tuple[jax.Array, jax.Array]:
    """The same, and the entropy of the policy at every token, [P, G, T]."""
    score = transformer.completion_logprobs_and_entropy
    return _forward(score, config, params, rows)


def _forward(read: Callable[..., Any], config: Config, params: Any, rows: Any) -> Any:
    """What a pass of the model reads off the completions of `rows`."""
    P, G, T = rows.tokens_PGT.shape
    out = read(
        params,
        config.model,
        rows.prompt_PS,
        rows.prompt_mask_PS,
        rows.tokens_PGT.reshape(P * G, T),
        rows.mask_PGT.reshape(P * G, T),
        config.sampling.temperature,
    )
    return jax.tree.map(lambda x_NT: x_NT.reshape(P, G, T), out)


def take(rows: Any, part: jax.Array) -> Any:
    """Rows or Rollouts of the problems at these places."""
    return jax.tree.map(lambda x: x[part], rows)


def score(config: Config, params: Any, rows: Any) -> jax.Array:
    """Log-probabilities of all rows, as many problems at a time as an update takes."""
    P = rows.prompt_PS.shape[0]
    parts = jnp.arange(P).reshape(-1, config.minibatches * config.microbatches).T
    one = lambda part: logprobs(config, params, take(rows, part))
    logp = jax.lax.map(one, parts)
    return logp.swapaxes(0, 1).reshape(rows.mask_PGT.shape)


def flat(x: jax.Array) -> jax.Array:
    """[P, G, T] as [N, T]."""
    return x.reshape(-1, x.shape[-1])


def batch(rows: Rows, logo_PGT: jax.Array, lag: jax.Array) -> objective.Batch:
    """Rows as the objective takes them."""
    P, G, _ = rows.mask_PGT.shape
    logref_PGT = rows.logref_PGT
    return objective.Batch(
        adv_N=rows.adv_PG.reshape(-1),
        weight_NT=flat(rows.weight_PGT),
        logo_NT=flat(logo_PGT),
        logq_NT=flat(rows.logq_PGT),
        mask_NT=flat(rows.mask_PGT),
        group_N=_group(P, G),
        lag=lag,
        logref_NT=None if logref_PGT is None else flat(logref_PGT),
    )


def _group(P: int, G: int) -> jax.Array:
    """Which problem each of P x G rows belongs to, int32 [N]."""
    return jnp.repeat(jnp.arange(P, dtype=jnp.int32), G)
