"""Random keys derived from their address: seed, purpose and coordinates.

No key is ever stored. A resumed run draws what it would have drawn, and nothing
replays or skips a stream, because no stream is consumed in order.
"""

import jax
import numpy as np

# A purpose's place is part of every address: new ones go to the end.
PURPOSES = (
    "weights",
    "sample",
    "shuffle",
    "evaluate",
    "warmstart",
    "order",
    "resample",
)


def key(seed: int, purpose: str, *coordinates: int | jax.Array) -> jax.Array:
    """The key at an address; coordinates are ints >= 0 and may be traced."""
    out = jax.random.fold_in(jax.random.key(seed), PURPOSES.index(purpose))
    for c in coordinates:
        out = jax.random.fold_in(out, c)
    return out


def generator(seed: int, purpose: str, *coordinates: int) -> np.random.Generator:
    """The same for host work: a NumPy generator at an address."""
    return np.random.default_rng([seed, PURPOSES.index(purpose), *coordinates])
