"""The policy that an update's ratio is taken against.

Which log-probabilities stand in `Batch.logo_NT` is decided where a model is at hand;
a part here says which ones it wants, and may bend them once the current ones are
known.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from algorithms.parts import Part, setting, table


@dataclasses.dataclass(frozen=True)
class Anchor(Part):
    """(logp_NT, logo_NT, lag) -> logo_NT.

    Attributes:
      source: "sampler" for the sampler's own log-probabilities, "start" for the
        trainer's at the start of the round, "average" for those of a running average
        of weights.
    """

    source: ClassVar[str] = "sampler"

    def __call__(
        self, logp_NT: jax.Array, logo_NT: jax.Array, lag: jax.Array
    ) -> jax.Array:
        """The anchor's log-probabilities as the update uses them."""
        return logo_NT


@dataclasses.dataclass(frozen=True)
class Sampler(Anchor):
    """The sampler's own log-probabilities, untruncated: no forward pass."""


@dataclasses.dataclass(frozen=True)
class Rescored(Anchor):
    """The trainer's log-probabilities before the round's first update: one pass."""

    source: ClassVar[str] = "start"


@dataclasses.dataclass(frozen=True)
class Ewma(Anchor):
    """Log-probabilities under a running average of weights: one pass an update.

    With beta = window / (window + 2) the mean age of the average is window / 2
    updates, the middle of the window; window 0 is the current weights. The average
    restarts from the current weights once a smaller share of tokens than `reset`
    still passes gate and correction. Source: PPO-EWMA as revised in arXiv:2605.12070;
    known from a detailed third-party reading.
    """

    source: ClassVar[str] = "average"

    window: float = setting(4.0, "W, updates that rollouts may be old")
    reset: float = setting(0.9, "share of active tokens that restarts it", high=1.0)

    @property
    def beta(self) -> jax.Array | float:
        """Decay of a version's weight per update."""
        return self.window / (self.window + 2.0)


@dataclasses.dataclass(frozen=True)
class Loglinear(Anchor):
    """Between sampler and trainer in log space, by version: no forward pass.

    log prox = logq' + a (logp - logq'), a = (lag - 1) / lag, logq' the sampler's
    untruncated log-probability. It adds no information: the ratio is the total ratio
    to the power 1 / lag, so it widens the clip as rollouts age.
    Source: A-3PO, arXiv:2512.06547, and AReaL's documentation.
    """

    def __call__(
        self, logp_NT: jax.Array, logo_NT: jax.Array, lag: jax.Array
    ) -> jax.Array:
        """logo moved (lag - 1) / lag of the way to logp; unmoved at lag 0."""
        share = jnp.maximum(lag - 1, 0) / jnp.maximum(lag, 1)
        return logo_NT + share * (logp_NT - logo_NT)


ANCHORS: dict[str, Anchor] = table(Sampler, Rescored, Ewma, Loglinear)
