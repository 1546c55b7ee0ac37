"""Records that cross the borders between sampling, scoring and learning.

Axis letters: N rollouts (problem-major), T completion positions, P problems,
G rollout slots of a problem, S prompt positions. N = P * G.
"""

from typing import Any

from flax import struct
import jax


@struct.dataclass
class Rollouts:
    """A batch of completions.

    Attributes:
      prompt_PS: int32 ids, left-padded.
      prompt_mask_PS: bool.
      problem_P: int32 problem ids.
      tokens_PGT: int32 ids, right-padded.
      mask_PGT: bool, completion tokens, the end token included.
      logq_PGT: float32 nats under the distribution drawn from.
      logp_PGT: float32 nats under the untruncated policy at the same temperature.
      ended_PG: bool; the finish reason: True "end", False "length".
    """

    prompt_PS: jax.Array
    prompt_mask_PS: jax.Array
    problem_P: jax.Array
    tokens_PGT: jax.Array
    mask_PGT: jax.Array
    logq_PGT: jax.Array
    logp_PGT: jax.Array
    ended_PG: jax.Array


@struct.dataclass
class Average:
    """A running average of weights.

    Attributes:
      params: float32 weights.
      count: float32, what the newest weights' share is one over.
    """

    params: Any
    count: jax.Array


@struct.dataclass
class TrainState:
    """What the next update depends on, device side.

    Attributes:
      params: float32 weights.
      opt_state: of the optimizer.
      step: int32, updates done, skipped ones included.
      skipped: int32, updates that changed nothing.
      nonfinite: int32, of those, the ones whose gradient was not finite.
      reference: float32 weights that a KL term pulls towards, or None.
      average: running average of weights that is the anchor, or None.
    """

    params: Any
    opt_state: Any
    step: jax.Array
    skipped: jax.Array
    nonfinite: jax.Array
    reference: Any = None
    average: Average | None = None
