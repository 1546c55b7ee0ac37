"""Which groups of what was sampled make up a batch. Host side, NumPy."""

import numpy as np

from algorithms import stats


def informative(reward_PG: np.ndarray) -> np.ndarray:
    """bool [P]: groups whose rewards are not all equal; NaN marks a missing reward.

    By the task's reward, not a shaped one, which hardly ever is constant.
    """
    scored_PG = np.isfinite(reward_PG)
    high_P = np.max(np.where(scored_PG, reward_PG, -np.inf), axis=1)
    low_P = np.min(np.where(scored_PG, reward_PG, np.inf), axis=1)
    size_P = np.max(np.where(scored_PG, np.abs(reward_PG), 0.0), axis=1)
    # An empty group has high - low = -inf.
    return high_P - low_P > stats.SAME * size_P


def fill(informative_C: np.ndarray, wanted: int) -> np.ndarray:
    """Indices of `wanted` candidate groups: informative ones first, each in order.

    DAPO's dynamic sampling (arXiv:2503.14476) draws until there are enough of them.
    Where they run short, groups that say nothing fill up the batch, so that its shape
    never changes; `keep.drop_constant` leaves their tokens out of every weight.
    """
    order_C = np.argsort(~informative_C, kind="stable")
    return np.sort(order_C[:wanted])
