"""Tests for models/flops.py: hand counts, and what XLA counts."""

import functools

import jax
import numpy as np
import pytest

from models import flops, transformer
from models.config import ModelConfig
from tests.models.shapes import N, P, S, T, abstract, config

FED = T - 1  # The last token of a row is not fed.

QWEN3_600M = ModelConfig(28, 1024, 16, 8, 128, 3072, 151936)


def counted_by_xla(fn, *args):
    lowered = jax.jit(fn).lower(*args)
    assert "while" not in lowered.as_text()
    return lowered.cost_analysis()["flops"]


def test_a_model_counted_by_hand():
    """Two layers of width 3; 2 heads of 4 on 1 kv head; ffn 5; vocabulary 7."""
    cfg = ModelConfig(2, 3, 2, 1, 4, 5, 7)
    weights = 2 * (3 * 8 + 3 * 4 + 3 * 4 + 8 * 3 + 3 * 5 + 3 * 5 + 5 * 3)
    assert flops.matmul_params(cfg) == weights == 234
    assert flops.causal_pairs(3) == 1 + 2 + 3
    assert flops.completion_pairs(4, 3) == 5 + 6 + 7
    np.testing.assert_array_equal(
        flops.completion_pairs(np.array([4, 0]), np.array([3, 2])), [18, 3]
    )
    pairs = 18 * 2 * 2 * (4 + 4) * 2  # Layers, heads, scores and mixtures, 2 each.
    assert flops.attention(cfg, 18) == pairs == 1152
    assert flops.head(cfg, 3) == 2 * 3 * 7 * 3 == 126
    once = flops.forward(cfg, 10, 18, 3)
    assert once == 2 * 234 * 10 + 1152 + 126 == 5958
    assert flops.backward(cfg, 10, 18, 3) == 2 * 5958
    for remat, again in (("none", 0), ("dots", 1152), ("block", 5958 - 126)):
        cfg = ModelConfig(2, 3, 2, 1, 4, 5, 7, remat=remat)
        assert flops.recompute(cfg, 10, 18, 3) == again + 126


def test_a_released_shape():
    """The head counts, the look-up does not; tying changes neither."""
    cfg = QWEN3_600M
    assert flops.matmul_params(cfg) == 440401920
    assert flops.head(cfg, 1) == 2 * 155582464
    training = flops.forward(cfg, 1, 0, 1) + flops.backward(cfg, 1, 0, 1)
    assert training == 6 * (440401920 + 155582464)
    np.testing.assert_allclose(training, 3.5759e9, rtol=1e-5)
    untied = ModelConfig(28, 1024, 16, 8, 128, 3072, 151936, tied=False)
    assert flops.forward(untied, 5, 7, 3) == flops.forward(cfg, 5, 7, 3)


@pytest.mark.parametrize(
    "changes", [{}, dict(tied=False, qk_norm=False, qkv_bias=True)], ids=str
)
def test_forward_equals_xlas_count(changes):
    cfg = config(unroll=2, **changes)
    tree, _, _, tokens, mask = abstract(cfg)
    got = counted_by_xla(
        lambda tree, *rows: transformer.forward(tree, cfg, *rows), tree, tokens, mask
    )
    np.testing.assert_allclose(
        flops.forward(cfg, N * T, N * T * T, N * T), got, rtol=0.05
    )


@pytest.mark.parametrize("remat", ["none", "dots", "block"])
def test_an_update_equals_xlas_count(remat):
    cfg = config(unroll=2, remat=remat)
    run = functools.partial(transformer.completion_logprobs, cfg=cfg)

    def loss(tree, prompt, mask, tokens, full):
        return run(
            tree,
            prompt_PS=prompt,
            prompt_mask_PS=mask,
            tokens_NT=tokens,
            mask_NT=full,
        ).sum()

    size = P * S + N * FED, P * S * S + N * FED * (S + FED), N * T
    once = flops.forward(cfg, *size)
    got = counted_by_xla(loss, *abstract(cfg))
    np.testing.assert_allclose(once, got, rtol=0.05)
    update = once + flops.backward(cfg, *size) + flops.recompute(cfg, *size)
    got = counted_by_xla(jax.value_and_grad(loss), *abstract(cfg))
    np.testing.assert_allclose(update, got, rtol=0.1)
