"""Which groups fill a batch."""

import numpy as np
import pytest

from algorithms import allocation, stats

NAN = np.nan


@pytest.mark.parametrize(
    "row, says",
    [
        ([0.0, 1.0, 0.0], True),
        ([1.0, 1.0, 1.0], False),
        ([0.0, 0.0, 0.0], False),
        ([NAN, NAN, NAN], False),
        ([NAN, 1.0, NAN], False),
        ([NAN, 1.0, 0.5], True),
        ([np.nextafter(np.float32(0.3), np.float32(1)), np.float32(0.3)], False),
        ([-2.0, -2.0], False),
    ],
)
def test_a_group_says_something_if_its_rewards_differ(row, says):
    reward_PG = np.array([row], np.float32)
    assert allocation.informative(reward_PG).tolist() == [says]
    valid_PG = np.isfinite(reward_PG)
    assert bool(stats.constant(np.nan_to_num(reward_PG), valid_PG)[0, 0]) == (not says)


@pytest.mark.parametrize(
    "says, want",
    [
        ([0, 1, 0, 1, 1], [1, 3, 4]),
        ([1, 1, 1, 1, 1], [0, 1, 2]),
        ([0, 0, 0, 1, 0], [0, 1, 3]),
        ([0, 0, 0, 0, 0], [0, 1, 2]),
    ],
)
def test_groups_that_say_something_come_first_and_in_order(says, want):
    assert allocation.fill(np.array(says, bool), 3).tolist() == want
