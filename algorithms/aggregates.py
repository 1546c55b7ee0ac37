"""How much each token counts: the weights that turn a sum over tokens into a mean.

An aggregation maps (mask_NT, keep_N, group_N, limit) to float weight_NT, 0 off the
mask and on rows not kept. It sees the whole batch once, before any split, so the
loss of a batch is the plain sum of the losses of its parts: microbatches, devices
and padding drop out of the mathematics. `limit` is the configured longest
completion, never a padded width.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from algorithms.parts import Part, setting, table


@dataclasses.dataclass(frozen=True)
class Aggregate(Part):
    """(mask_NT, keep_N, group_N, limit) -> weight_NT."""

    def __call__(
        self, mask_NT: jax.Array, keep_N: jax.Array, group_N: jax.Array, limit: int
    ) -> jax.Array:
        """Share of each token in the batch's loss."""
        raise NotImplementedError


def _counted(mask_NT: jax.Array, keep_N: jax.Array) -> jax.Array:
    chex.assert_rank([mask_NT, keep_N], [2, 1])
    chex.assert_type([mask_NT, keep_N], bool)
    return mask_NT & keep_N[:, None]


def _tokens(counted_NT: jax.Array) -> jax.Array:
    return jnp.maximum(jnp.sum(counted_NT), 1).astype(float)


def _rows(keep_N: jax.Array) -> jax.Array:
    return jnp.maximum(jnp.sum(keep_N), 1).astype(float)


@dataclasses.dataclass(frozen=True)
class TokenMean(Aggregate):
    """Every token of the batch alike: 1 / tokens. Source: DAPO, arXiv:2503.14476."""

    def __call__(
        self, mask_NT: jax.Array, keep_N: jax.Array, group_N: jax.Array, limit: int
    ) -> jax.Array:
        """1 / tokens."""
        counted_NT = _counted(mask_NT, keep_N)
        return jnp.where(counted_NT, 1.0 / _tokens(counted_NT), 0.0)


@dataclasses.dataclass(frozen=True)
class SequenceMean(Aggregate):
    """Every completion alike: 1 / (completions x its length). Source: GRPO."""

    def __call__(
        self, mask_NT: jax.Array, keep_N: jax.Array, group_N: jax.Array, limit: int
    ) -> jax.Array:
        """1 / (completions x length)."""
        counted_NT = _counted(mask_NT, keep_N)
        length_N1 = jnp.maximum(jnp.sum(counted_NT, axis=1, keepdims=True), 1)
        return jnp.where(counted_NT, 1.0 / (_rows(keep_N) * length_N1), 0.0)


@dataclasses.dataclass(frozen=True)
class SequenceSum(Aggregate):
    """Tokens summed, completions averaged: 1 / completions, as in REINFORCE."""

    def __call__(
        self, mask_NT: jax.Array, keep_N: jax.Array, group_N: jax.Array, limit: int
    ) -> jax.Array:
        """1 / completions."""
        return jnp.where(_counted(mask_NT, keep_N), 1.0 / _rows(keep_N), 0.0)


@dataclasses.dataclass(frozen=True)
class Constant(Aggregate):
    """1 / (completions x limit), whatever the lengths. Source: Dr. GRPO, 2503.20783."""

    def __call__(
        self, mask_NT: jax.Array, keep_N: jax.Array, group_N: jax.Array, limit: int
    ) -> jax.Array:
        """1 / (completions x limit)."""
        return jnp.where(_counted(mask_NT, keep_N), 1.0 / (_rows(keep_N) * limit), 0.0)


@dataclasses.dataclass(frozen=True)
class PromptMean(Aggregate):
    """Every problem alike, and every token of a problem: 1 / (problems x its tokens).

    A problem counts if any of its kept completions has a token. With one problem it
    is `token_mean`, with one completion a problem `sequence_mean` over completions
    that are not empty. Source: ScaleRL, arXiv:2510.13786 (full text read).
    """

    def __call__(
        self, mask_NT: jax.Array, keep_N: jax.Array, group_N: jax.Array, limit: int
    ) -> jax.Array:
        """1 / (problems x tokens of the problem)."""
        counted_NT = _counted(mask_NT, keep_N)
        chex.assert_equal_shape([keep_N, group_N])
        N = keep_N.shape[0]
        tokens_P = jax.ops.segment_sum(jnp.sum(counted_NT, axis=1), group_N, N)
        problems = jnp.maximum(jnp.sum(tokens_P > 0), 1).astype(float)
        tokens_N1 = jnp.maximum(tokens_P[group_N], 1)[:, None]
        return jnp.where(counted_NT, 1.0 / (problems * tokens_N1), 0.0)


@dataclasses.dataclass(frozen=True)
class StepConstant(Aggregate):
    """Token mean over a constant number of steps: 1 / (tokens x steps).

    For episodes of several turns, one row a turn: a constant in place of each
    episode's own number of turns, which would favour short episodes. Under Adam the
    constant is felt by the clip norm alone.
    Source: AsyncWebRL, arXiv:2606.05597 (read in the authors' design note; the paper
    divides by episodes and the constant, not by tokens).
    """

    steps: float = setting(10.0, "turns an episode is taken to have", low=1e-6)

    def __call__(
        self, mask_NT: jax.Array, keep_N: jax.Array, group_N: jax.Array, limit: int
    ) -> jax.Array:
        """1 / (tokens x steps)."""
        counted_NT = _counted(mask_NT, keep_N)
        return jnp.where(counted_NT, 1.0 / (_tokens(counted_NT) * self.steps), 0.0)


AGGREGATES: dict[str, Aggregate] = table(
    TokenMean, SequenceMean, SequenceSum, Constant, PromptMean, StepConstant
)
