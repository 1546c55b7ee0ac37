"""From logits to one token: which tokens may be drawn, and the draw.

Filters act in one fixed order, each on the renormalised outcome of the one before:

  temperature -> top_k -> top_p -> min_p

Temperature comes first, so what top_p and min_p keep depends on it. Every filter
keeps the most likely token; tokens tied with the last one kept are kept as well.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from models.config import field


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """The distribution that completions are drawn from."""

    temperature: float = field(1.0, "divides the logits; 0 takes the likeliest token")
    top_k: int = field(0, "keep the k likeliest tokens; 0 keeps all")
    top_p: float = field(1.0, "keep the fewest tokens holding this much probability")
    min_p: float = field(0.0, "keep tokens at least this fraction of the likeliest")

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature={self.temperature} must be finite and >= 0")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k} must be >= 0 (0 keeps all)")
        for name in ("top_p", "min_p"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is not in [0, 1]")

    @property
    def truncates(self) -> bool:
        """Whether any filter can remove a token."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def truncate(cfg: SamplingConfig, logits_BV: jax.Array) -> jax.Array:
    """Tempered logits with -inf at the tokens that the filters remove.

    top_k beyond V keeps all.
    """
    V = logits_BV.shape[-1]
    if 0 < cfg.top_k < V:
        kth_B1 = jax.lax.top_k(logits_BV, cfg.top_k)[0][..., -1:]
        logits_BV = jnp.where(logits_BV >= kth_B1, logits_BV, -jnp.inf)
    if cfg.top_p < 1:
        ordered_BV = -jnp.sort(-logits_BV, axis=-1)
        p_BV = jax.nn.softmax(ordered_BV, axis=-1)
        # Probability of everything likelier than a token; 0 for the likeliest.
        above_BV = jnp.cumsum(p_BV, axis=-1) - p_BV
        kept_BV = (above_BV < cfg.top_p) & (p_BV > 0)
        kept_BV = kept_BV.at[..., 0].set(True)
        last_B1 = jnp.min(
            jnp.where(kept_BV, ordered_BV, jnp.inf), axis=-1, keepdims=True
        )
        logits_BV = jnp.where(logits_BV >= last_B1, logits_BV, -jnp.inf)
    if cfg.min_p > 0:
        top_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
        floor_B1 = top_B1 + math.log(cfg.min_p)
        logits_BV = jnp.where(logits_BV >= floor_B1, logits_BV, -jnp.inf)
    return logits_BV


def invert(logits_BV: jax.Array, uniform_B: jax.Array) -> jax.Array:
    """The token at which the cumulative distribution passes `uniform_B`, int32 [B].

    One uniform a row in place of the V Gumbel draws of `jax.random.categorical`,
    which take longer than the model on a CPU. Two levels, so that the running sum
    over V is short in both. A token of probability 0 is never returned.
    """
    B, V = logits_BV.shape
    width = math.ceil(math.sqrt(V))
    p_BV = jnp.exp(logits_BV - jnp.max(logits_BV, axis=-1, keepdims=True))
    p_BCW = jnp.pad(p_BV, ((0, 0), (0, -V % width))).reshape(B, -1, width)
    upto_BC = jnp.cumsum(jnp.sum(p_BCW, axis=-1), axis=-1)
    target_B1 = uniform_B[:, None] * upto_BC[:, -1:]

    def crossing(upto: jax.Array, p: jax.Array, target: jax.Array) -> jax.Array:
        # Rounding can leave the target below the sum before an entry of probability
        # 0, or at or past the last sum, so only entries that hold some are eligible
        # and the last of them stands in where none is passed.
        last = p.shape[-1] - 1 - jnp.argmax(p[:, ::-1] > 0, axis=-1)
        passed = (upto > target) & (p > 0)
        first = jnp.argmax(passed, axis=-1)
        return jnp.where(jnp.any(passed, axis=-1), first, last)

    c_B = crossing(upto_BC, jnp.sum(p_BCW, axis=-1), target_B1)
    c_B1 = c_B[:, None]
    p_BW = jnp.take_along_axis(p_BCW, c_B1[..., None], axis=1)[:, 0]
    before_B1 = jnp.take_along_axis(upto_BC, c_B1, axis=1) - jnp.sum(
        p_BW, axis=-1, keepdims=True
    )
    w_B = crossing(before_B1 + jnp.cumsum(p_BW, axis=-1), p_BW, target_B1)
    return (c_B * width + w_B).astype(jnp.int32)


def draw(
    cfg: SamplingConfig,
    temperature: jax.Array | float,
    logits_BV: jax.Array,
    uniform_B: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One token a row, with its log-probability twice.

    Args:
      cfg: static; its filters apply, its temperature does not.
      temperature: may be traced, so that sweeping it does not recompile.
      logits_BV: float32.
      uniform_B: in [0, 1).

    Returns:
      token_B: int32.
      logq_B: nats under the distribution drawn from, filters included; 0 at
        temperature 0, where that distribution is a point.
      logp_B: nats under softmax(logits / temperature), untruncated; at
        temperature 0 under softmax(logits).
    """
    greedy = jnp.asarray(temperature) == 0
    tempered_BV = logits_BV / jnp.where(greedy, 1.0, temperature)
    kept_BV = truncate(cfg, tempered_BV) if cfg.truncates else tempered_BV
    token_B = jnp.where(
        greedy,
        jnp.argmax(logits_BV, axis=-1).astype(jnp.int32),
        invert(kept_BV, uniform_B),
    )

    def logprob(x_BV: jax.Array) -> jax.Array:
        chosen_B = jnp.take_along_axis(x_BV, token_B[:, None], axis=-1)[:, 0]
        return chosen_B - jax.nn.logsumexp(x_BV, axis=-1)

    logp_B = logprob(tempered_BV)
    logq_B = logprob(kept_BV) if cfg.truncates else logp_B
    return token_B, jnp.where(greedy, 0.0, logq_B), logp_B
