"""Named methods: each is one choice for each of several independent parts.

To add a method, add an entry. To add a part, add a function to its file. Nothing
else in the repository asks which method is running.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax

from algorithms import aggregate, baselines, gates, keep, ratios, scales


class Method(NamedTuple):
    """The parts, and how many rollouts they need.

    Attributes:
      baseline: (reward_PG, valid_PG) -> baseline_PG.
      scale: (centred_PG, valid_PG) -> Scale.
      keep: (centred_PG, valid_PG) -> keep_PG.
      ratio: (logp_NT, logo_NT, mask_NT) -> log_ratio_NT.
      gate: (clip_low, clip_high) -> gate.
      aggregate: (mask_NT, keep_N, limit) -> weight_NT.
      extra_rollouts: sampled per problem beyond those that reach the optimizer.
      needs_group: whether a lone rollout has nothing to be compared with.
    """

    baseline: Callable[[jax.Array, jax.Array], jax.Array]
    scale: scales.ScaleFn
    ratio: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    gate: Callable[[float, float], gates.Gate]
    aggregate: aggregate.Aggregate
    keep: Callable[[jax.Array, jax.Array], jax.Array] = keep.everything
    extra_rollouts: int = 0
    needs_group: bool = True


GRPO = Method(  # arXiv:2402.03300
    baseline=baselines.mean,
    scale=scales.std(),
    ratio=ratios.token,
    gate=gates.clip,
    aggregate=aggregate.sequence_mean,
)

METHODS: dict[str, Method] = {
    "grpo": GRPO,
    "dr_grpo": GRPO._replace(  # arXiv:2503.20783
        scale=scales.none, aggregate=aggregate.constant
    ),
    "rloo": GRPO._replace(  # arXiv:2402.14740; in PPO's clipped form.
        baseline=baselines.leave_one_out,
        scale=scales.none,
        aggregate=aggregate.sequence_sum,
    ),
    "mc_grpo": GRPO._replace(  # arXiv:2601.22582; see scales.mad for its fallback.
        baseline=baselines.median,
        scale=scales.mad(),
        keep=keep.all_but_pivot,
        extra_rollouts=1,
    ),
}
