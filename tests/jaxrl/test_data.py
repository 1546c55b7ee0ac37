"""Tests for jaxrl/data.py: whole epochs, distinct batches, a position that resumes."""

import numpy as np
import pytest

from jaxrl import data


def batches(count, size, rounds, position=0, seed=0):
    """Indices of some rounds, and the position after them."""
    out = []
    for _ in range(rounds):
        index_P, position = data.take(seed, position, count, size)
        out.append(index_P.tolist())
    return out, position


@pytest.mark.parametrize("count, size", [(2, 10), (3, 10), (4, 4), (1, 1), (7, 10)])
def test_a_batch_is_distinct_and_within_one_epoch(count, size):
    per_epoch = size // count
    out, _ = batches(count, size, 3 * per_epoch)
    orders = []
    for epoch in range(3):
        flat = np.concatenate(out[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert len(set(flat)) == len(flat) == per_epoch * count
        assert set(flat) <= set(range(size))
        orders.append(tuple(flat))
    if size > 2:
        assert len(set(orders)) == 3


@pytest.mark.parametrize("count, size", [(2, 10), (3, 10), (4, 7)])
def test_stopping_does_not_show(count, size):
    straight, end = batches(count, size, 10)
    before, position = batches(count, size, 3)
    after, same_end = batches(count, size, 7, position)
    assert before + after == straight and same_end == end
    assert batches(count, size, 10, seed=1)[0] != straight


def test_a_batch_larger_than_the_set_is_refused():
    with pytest.raises(ValueError, match=r"problems=5 .* only 4"):
        data.take(0, 0, 5, 4)
