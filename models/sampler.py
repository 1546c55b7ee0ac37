"""Generation: a prompt is prefilled once, and its rollouts read that shared prefix.

Randomness has an address. The draw at a position depends on (the key given, the
problem's id, the sample's index, the position) and on nothing else, so the same
rollout comes out whatever the order of the batch, its split or the mesh.
"""

from collections.abc import Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from models import sampling, transformer
from models.config import ModelConfig
from models.params import Params


class Samples(NamedTuple):
    """G completions of each of P prompts, T positions wide.

    Attributes:
      tokens_PGT: int32; `pad` after the end.
      mask_PGT: bool, True up to and including the end token.
      logq_PGT: float32 nats under the distribution drawn from; 0 off the mask.
      logp_PGT: float32 nats under the untruncated policy; 0 off the mask.
      ended_PG: bool, True where an end token was drawn: the finish reason is "end",
        otherwise "length".
    """

    tokens_PGT: jax.Array
    mask_PGT: jax.Array
    logq_PGT: jax.Array
    logp_PGT: jax.Array
    ended_PG: jax.Array


def row_keys(key: jax.Array, problem_P: jax.Array, sample_PG: jax.Array) -> jax.Array:
    """One key a rollout, folded from its problem's id and its own index."""

    def of_problem(problem: jax.Array, sample_G: jax.Array) -> jax.Array:
        folded = jax.random.fold_in(key, problem)
        return jax.vmap(lambda s: jax.random.fold_in(folded, s))(sample_G)

    return jax.vmap(of_problem)(problem_P, sample_PG)


def completion_mask(tokens_NT: jax.Array, end_ids: Sequence[int]) -> jax.Array:
    """bool [N, T], True up to and including the first end token, all True if none.

    Built from the position of the end, never from the value of padding, so an end
    id that doubles as padding is counted once.
    """
    end_NT = jnp.isin(tokens_NT, jnp.asarray(end_ids, tokens_NT.dtype))
    return jnp.cumsum(end_NT, axis=-1) - end_NT == 0


def sample(
    params: Params,
    cfg: ModelConfig,
    sampling_cfg: sampling.SamplingConfig,
    prompt_PS: jax.Array,
    prompt_mask_PS: jax.Array,
    key: jax.Array,
    problem_P: jax.Array,
    sample_PG: jax.Array,
    *,
    new_tokens: int,
    end_ids: Sequence[int],
    pad_id: int,
    temperature: jax.Array | float | None = None,
) -> Samples:
    """Draws completions; stops as soon as every row has ended.

    Args:
      params: tree of `transformer.param_defs(cfg)`.
      cfg: static.
      sampling_cfg: static.
      prompt_PS: int ids, left-padded, at least one real token a row.
      prompt_mask_PS: bool.
      key: names everything but problem, sample and position; consumed.
      problem_P: int, the problems' ids.
      sample_PG: int, index of each rollout within its problem.
      new_tokens: T, the most tokens a completion may have, its end token included.
      end_ids: drawing any of these ends a row.
      pad_id: fills the positions after the end.
      temperature: overrides sampling_cfg's, and may be traced.

    Returns:
      The completions.

    Raises:
      ValueError: new_tokens < 1 or no end id.
    """
    chex.assert_rank([prompt_PS, prompt_mask_PS, sample_PG], 2)
    chex.assert_type(prompt_mask_PS, bool)
    if new_tokens < 1:
        raise ValueError(f"{new_tokens=} must be >= 1")
    if not end_ids:
        raise ValueError("end_ids is empty: no completion could ever end")
    (P, _), (_, G) = prompt_PS.shape, sample_PG.shape
    T = new_tokens
    heat = sampling_cfg.temperature if temperature is None else temperature
    keys_N = row_keys(key, problem_P, sample_PG).reshape(P * G)
    ends = jnp.asarray(end_ids, jnp.int32)

    logits_PV, prefix = transformer.prefill(params, cfg, prompt_PS, prompt_mask_PS)
    logits_PGV = jnp.repeat(logits_PV[:, None], G, axis=1)

    def draw(t: jax.Array, logits_PGV: jax.Array, s: Samples) -> Samples:
        uniform_N = jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, t)))(
            keys_N
        )
        drawn = sampling.draw(
            sampling_cfg, heat, logits_PGV.reshape(P * G, -1), uniform_N
        )
        token_PG, logq_PG, logp_PG = (x.reshape(P, G) for x in drawn)
        live_PG = ~s.ended_PG
        return Samples(
            s.tokens_PGT.at[:, :, t].set(jnp.where(live_PG, token_PG, pad_id)),
            s.mask_PGT.at[:, :, t].set(live_PG),
            s.logq_PGT.at[:, :, t].set(jnp.where(live_PG, logq_PG, 0.0)),
            s.logp_PGT.at[:, :, t].set(jnp.where(live_PG, logp_PG, 0.0)),
            s.ended_PG | jnp.isin(token_PG, ends),
        )

    start = Samples(
        jnp.full((P, G, T), pad_id, jnp.int32),
        jnp.zeros((P, G, T), bool),
        jnp.zeros((P, G, T), jnp.float32),
        jnp.zeros((P, G, T), jnp.float32),
        jnp.zeros((P, G), bool),
    )
    # The prompt's own logits give the first token; the last one is never fed back.
    first = draw(jnp.int32(0), logits_PGV, start)
    cache = transformer.init_cache(cfg, P, G, T - 1) if T > 1 else None

    def go_on(state: tuple[jax.Array, transformer.Cache, Samples]) -> jax.Array:
        t, _, s = state
        return (t < T) & ~jnp.all(s.ended_PG)

    def advance(
        state: tuple[jax.Array, transformer.Cache, Samples],
    ) -> tuple[jax.Array, transformer.Cache, Samples]:
        t, cache, s = state
        logits_PGV, cache = transformer.decode(
            params, cfg, prefix, cache, s.tokens_PGT[:, :, t - 1], t - 1
        )
        return t + 1, cache, draw(t, logits_PGV, s)

    if cache is None:
        return first
    return jax.lax.while_loop(go_on, advance, (jnp.int32(1), cache, first))[2]
