"""Tests for models/config.py: what no model can be is refused, by name and value."""

import pytest

from models.config import ModelConfig, RopeConfig

BAD = [
    (ModelConfig, dict(layers=0)),
    (ModelConfig, dict(width=0)),
    (ModelConfig, dict(ffn=-1)),
    (ModelConfig, dict(vocab=-1)),
    (ModelConfig, dict(kv_heads=3)),
    (ModelConfig, dict(head_dim=7)),
    (ModelConfig, dict(dtype="float16")),
    (ModelConfig, dict(remat="all")),
    (ModelConfig, dict(unroll=0)),
    (ModelConfig, dict(unroll=3)),
    (ModelConfig, dict(logprob_chunk=0)),
    (ModelConfig, dict(norm_eps=0.0)),
    (RopeConfig, dict(scaling="lama3")),
    (RopeConfig, dict(theta=1.0)),
    (RopeConfig, dict(factor=0.5)),
    (RopeConfig, dict(original_length=0)),
]


@pytest.mark.parametrize("kind, bad", BAD, ids=str)
def test_config_rejects(kind, bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"{name}='?{value}"):
        kind(**bad)


def test_defaults_are_a_model_that_is_hashable():
    assert hash(ModelConfig()) == hash(ModelConfig())
