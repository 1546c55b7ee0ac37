"""The entropy that the update reads beside its log-probabilities.

Against the plain decoder, and its gradient against central differences, in float64.
"""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import transformer
from tests import references
from tests.models.test_transformer import COTANGENT, N, T, config, make_batch, rows

TEMPERATURE = 0.7
weights = functools.cache(lambda name: references.weights(references.FAMILIES[name]))
families = pytest.mark.parametrize("family", ["qwen2", "yarn"])


@functools.partial(jax.jit, static_argnums=1)
def scored(tree, cfg, batch):
    """(log-probs, entropy), and the gradient of a weighted sum of the entropy."""

    def total(tree):
        logp_NT, entropy_NT = transformer.completion_logprobs_and_entropy(
            tree, cfg, *batch, TEMPERATURE
        )
        return jnp.sum(COTANGENT * entropy_NT), (logp_NT, entropy_NT)

    return jax.grad(total, has_aux=True)(tree)


def reference(tree, spec, prompt, completion):
    """Entropy of every completion token's distribution, float64."""
    logits = references.decoder(tree, spec, [*prompt, *completion])
    out = []
    for t in range(len(completion)):
        log = references.log_softmax(logits[len(prompt) + t - 1] / TEMPERATURE)
        out.append(-np.exp(log) @ log)
    return np.array(out)


@families
def test_entropy_and_logprobs_equal_the_reference(family):
    batch, cfg, tree = make_batch(), config(family), weights(family)
    mask_NT = batch[-1]
    _, (logp_NT, entropy_NT) = scored(tree, cfg, batch)
    assert logp_NT.dtype == entropy_NT.dtype == jnp.float32
    np.testing.assert_array_equal(np.asarray(entropy_NT)[~mask_NT], 0.0)
    for n, row in enumerate(rows(batch)):
        want = reference(tree, references.FAMILIES[family], *row)
        np.testing.assert_allclose(entropy_NT[n, mask_NT[n]], want, atol=3e-5)
    alone = jax.jit(transformer.completion_logprobs, static_argnums=1)
    want = alone(tree, cfg, *batch, TEMPERATURE)
    np.testing.assert_allclose(logp_NT, want, rtol=1e-6, atol=1e-6)


def test_gradient_equals_central_differences():
    """Of each weight array, along a random direction."""
    spec = references.FAMILIES["yarn"] | dict(layers=1)
    tree, cfg = references.weights(spec), config("yarn", layers=1)
    batch, step = make_batch(), 1e-5
    grad, _ = scored(tree, cfg, batch)

    def total(tree):
        return sum(
            COTANGENT[n, : len(row[1])] @ reference(tree, spec, *row)
            for n, row in enumerate(rows(batch))
        )

    rng = np.random.default_rng(3)
    leaves, structure = jax.tree.flatten(tree)
    for i, (leaf, g) in enumerate(zip(leaves, jax.tree.leaves(grad), strict=True)):
        along = rng.normal(size=leaf.shape)
        ends = []
        for sign in (1, -1):
            moved = [*leaves[:i], leaf + sign * step * along, *leaves[i + 1 :]]
            ends.append(total(structure.unflatten(moved)))
        want = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(np.sum(g * along), want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("chunk", [5, 8, N * T])
def test_chunks_change_no_result(chunk):
    want = scored(weights("qwen2"), config("qwen2"), make_batch())
    got = scored(weights("qwen2"), config("qwen2", logprob_chunk=chunk), make_batch())
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, got, want)


@pytest.mark.parametrize("chunk, held", [(4, False), (5, False), (N * T, True)])
def test_chunks_keep_all_logits_from_ever_being_held(chunk, held):
    cfg, batch = config("qwen2", logprob_chunk=chunk), make_batch()
    text = str(jax.make_jaxpr(lambda tree: scored(tree, cfg, batch))(weights("qwen2")))
    shapes = re.findall(r"\bb?f\d+\[([\d,]+)\]", text)
    sizes = [np.prod([int(n) for n in s.split(",")]) for s in shapes if "29" in s]
    assert (max(sizes) >= N * T * 29) == held


def test_logits_are_made_once():
    """As many products with the head as log-probabilities alone take."""
    cfg, batch = config("qwen2"), make_batch()

    def heads(f):
        text = str(jax.make_jaxpr(lambda tree: f(tree, cfg, *batch))(weights("qwen2")))
        return len(re.findall(rf"f32\[{N * T},29\] = dot_general", text))

    assert heads(transformer.completion_logprobs) == 1
    assert heads(transformer.completion_logprobs_and_entropy) == 1


def test_what_stands_in_the_padding_is_inert():
    with jax.debug_nans(True):
        clean, dirty = (
            scored(weights("qwen2"), config("qwen2"), make_batch(fill))
            for fill in (0, 11)
        )
    jax.tree.map(np.testing.assert_array_equal, dirty, clean)


def test_bfloat16_keeps_the_entropy_in_float32():
    cfg = config("qwen2", dtype="bfloat16")
    _, (_, got) = scored(weights("qwen2"), cfg, make_batch())
    _, (_, want) = scored(weights("qwen2"), config("qwen2"), make_batch())
    assert got.dtype == jnp.float32
    assert 1e-5 < np.max(np.abs(got - want)) < 0.1


INF = math.inf
CASES = {
    "three": ([0.3, -0.2, 0.9], 1.001753, [0.067202, 0.129211, -0.196413]),
    "shifted": ([1000.3, 999.8, 1000.9], 1.001753, [0.067202, 0.129211, -0.196413]),
    "uniform": ([2.0] * 4, math.log(4), [0.0] * 4),
    "filtered": ([2.0, -INF, 2.0, -INF], math.log(2), [0.0] * 4),
    "certain": ([0.0, -INF, -INF], 0.0, [0.0] * 3),
    "hidden": ([0.0, -1e30, 0.0], math.log(2), [0.0] * 3),
    "peaked": ([200.0, 0.0, 0.0], 0.0, [0.0] * 3),
}


@pytest.mark.parametrize("logits, want, gradient", CASES.values(), ids=CASES)
@pytest.mark.parametrize("jit", [False, True])
def test_entropy_of_logits(logits, want, gradient, jit):
    run = jax.value_and_grad(lambda z: jnp.sum(transformer.entropy(z[None])))
    with jax.debug_nans(True):
        got, slope = (jax.jit(run) if jit else run)(jnp.asarray(logits))
    # 1000.3 is off by 3e-5 in float32.
    np.testing.assert_allclose(got, want, atol=5e-5 if logits[0] > 900 else 2e-6)
    np.testing.assert_allclose(slope, gradient, atol=5e-5 if logits[0] > 900 else 2e-6)
