"""Which problems a round trains on, from a position in an endless shuffled stream."""

import numpy as np

from jaxrl import keys


def take(seed: int, position: int, count: int, size: int) -> tuple[np.ndarray, int]:
    """Next `count` distinct problems and the position after them.

    The stream is one permutation of `size` problems per epoch. A batch never
    straddles two epochs, since a problem met twice in one batch would be sampled at
    the same address and give the same rollouts twice: what is left of an epoch that
    cannot fill a batch is skipped.

    Args:
      seed: the run's.
      position: problems passed so far, those skipped included.
      count: B_p.
      size: problems in the set.

    Returns:
      int indices [count] into the set, and the new position.

    Raises:
      ValueError: count > size.
    """
    if count > size:
        raise ValueError(
            f"problems={count} in a batch, but the training set has only {size}"
        )
    epoch, offset = divmod(position, size)
    if offset + count > size:
        epoch, offset = epoch + 1, 0
    order = keys.generator(seed, "order", epoch).permutation(size)
    return order[offset : offset + count], epoch * size + offset + count
