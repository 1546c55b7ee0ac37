"""Tests for jaxrl/tasks/registry.py: the table covers what a config may name."""

import pytest

from jaxrl import config
from jaxrl.tasks import registry


def test_every_task_has_a_maker_and_no_other():
    assert set(registry.MAKERS) == set(config.TASKS)


@pytest.mark.parametrize("name", ["Arithmetic", "sums", "", None])
def test_other_names_never_reach_a_maker(name):
    with pytest.raises((ValueError, TypeError)):
        config.TaskConfig(name=name)


def test_make_task_dispatches_on_the_name():
    for name, maker in registry.MAKERS.items():
        assert maker.__name__ == name
    few = dict(train_problems=3, heldout_problems=2)
    sums = registry.make_task(config.TaskConfig(name="arithmetic", **few))
    letters = registry.make_task(config.TaskConfig(name="sequence", **few))
    assert "+" in sums.train.prompts[0] and "+" not in letters.train.prompts[0]
