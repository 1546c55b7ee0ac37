"""Failures that samplers and trainers of language models have met, with their numbers.

tests/README.md says which test holds which failure.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import params, sampler, sampling, transformer
from models.config import ModelConfig

token_logprobs = jax.jit(transformer.token_logprobs, static_argnums=1)
logprobs = jax.jit(transformer.completion_logprobs, static_argnums=1)


def exact_model(logits_BV, **changes):
    """A model, and hidden states whose logits are these: a row of its head each.

    Hidden states are unit vectors, which the norm before the head scales by sqrt(D).
    """
    B, V = np.shape(logits_BV)
    shape = dict(layers=1, width=B, heads=1, kv_heads=1, head_dim=2, ffn=1)
    cfg = ModelConfig(**shape, vocab=V, tied=False, norm_eps=1e-12, **changes)
    tree = params.init(transformer.param_defs(cfg), jax.random.key(0))
    head = jnp.asarray(logits_BV, jnp.float32) / np.sqrt(B)
    return tree | {"unembed": head}, cfg, jnp.eye(B, dtype=cfg.dtype)


@pytest.mark.parametrize("temperature", [0.3, 0.5, 0.6, 1.0, 1.5])
def test_log_probs_of_an_update_are_tempered_as_those_of_the_sampler(temperature):
    """Untempered ones would make a ratio of 0.767 of token 0 at temperature 0.5."""
    logits = np.array([2.0, 1.0, 0.0])
    tree, cfg, x_BD = exact_model(np.tile(logits, (3, 1)))
    got = token_logprobs(tree, cfg, x_BD, jnp.arange(3), temperature)
    want = logits / temperature
    want = want - np.log(np.exp(want).sum())
    np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_allclose(np.exp(got).sum(), 1, rtol=1e-5)
    if temperature == 0.5:
        printed = [-0.142932, -2.142932, -4.142932]
        np.testing.assert_allclose(got, printed, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_bfloat16_logits_of_a_large_vocabulary_give_ratio_1(temperature):
    """20 draws from 151936 tokens with one peak; a softmax in bfloat16 is off by 4 %.

    The sampler and the update read the same hidden states.
    """
    B, V = 20, 151936
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(B, V)).astype(np.float32)
    logits[:, 17] = 12.0
    # Whatever the temperature, other tokens than the peak's are drawn.
    logits *= temperature
    # The head is stored as what it holds in bfloat16, hidden states are exact in it.
    tree, cfg, x_BD = exact_model(logits, dtype="bfloat16")
    logits_BV = transformer.unembed(tree, cfg, x_BD)
    assert logits_BV.dtype == jnp.float32
    uniform_B = jnp.asarray(rng.random(B), jnp.float32)
    no_filter = sampling.SamplingConfig()
    tokens_B, logq_B, logp_B = jax.jit(sampling.draw, static_argnums=0)(
        no_filter, temperature, logits_BV, uniform_B
    )
    got = token_logprobs(tree, cfg, x_BD, tokens_B, temperature)
    assert got.dtype == logp_B.dtype == jnp.float32
    np.testing.assert_allclose(got, logp_B, rtol=0, atol=2e-6)
    np.testing.assert_array_equal(logq_B, logp_B)
    rounded = jax.nn.log_softmax((logits_BV / temperature).astype(jnp.bfloat16))
    off = rounded[jnp.arange(B), tokens_B] - got
    assert np.abs(off).max() > 0.01


ENDS = [(2,), [2], np.array([2]), (2, 2)]
SEVERAL = [(1, 106), (106, 1), [106, 1], np.array([1, 106]), (7, 106, 1)]


@pytest.mark.parametrize(
    "ends, rows",
    [
        *[(ends, {(5, 6, 2, 2): 3, (5, 6, 7, 8): 4, (2, 2, 2, 2): 1}) for ends in ENDS],
        *[
            (ends, {(9, 106, 0, 0): 2, (9, 1, 106, 106): 2, (106, 1, 9, 9): 1})
            for ends in SEVERAL
        ],
        ((1,), {(9, 106, 0, 0): 4}),
    ],
    ids=str,
)
def test_any_of_several_ends_ends_a_completion(ends, rows):
    """Given as any sequence in any order; the mask is as long as the stop says."""
    tokens_NT = jnp.array(list(rows))
    mask_NT = np.asarray(sampler.completion_mask(tokens_NT, ends))
    assert mask_NT.sum(axis=1).tolist() == list(rows.values())
    assert (np.diff(mask_NT.astype(int), axis=1) <= 0).all()


def chain(ids, V=8):
    """A model that gives each id's successor in `ids` a logit of 20, others 0."""
    shape = dict(layers=1, width=V, heads=1, kv_heads=1, head_dim=2, ffn=1)
    cfg = ModelConfig(**shape, vocab=V, tied=False, norm_eps=1e-12)
    tree = params.init(transformer.param_defs(cfg), jax.random.key(0))
    # Layers that add nothing leave the embedding, a unit vector, as it is.
    layers = {
        name: x if "norm" in name else jnp.zeros_like(x)
        for name, x in tree["layers"].items()
    }
    head = np.zeros((V, V), np.float32)
    head[ids[:-1], ids[1:]] = 20 / np.sqrt(V)
    fixed = {"embed": jnp.eye(V), "layers": layers, "unembed": jnp.asarray(head)}
    return tree | fixed, cfg


def batch(*rows, S):
    """Prompts and completions of (prompt, completion) pairs; completions are whole."""
    prompt_PS = np.zeros((len(rows), S), int)
    mask_PS = np.zeros((len(rows), S), bool)
    for p, (prompt, _) in enumerate(rows):
        prompt_PS[p, S - len(prompt) :] = prompt
        mask_PS[p, S - len(prompt) :] = True
    tokens_NT = np.array([completion for _, completion in rows])
    return prompt_PS, mask_PS, tokens_NT, np.ones(tokens_NT.shape, bool)


def test_a_log_prob_is_read_where_its_token_is_predicted():
    """Logits at t say ids[t + 1]; one position off they would say -20."""
    model = chain([1, 3, 2, 5])
    got = logprobs(*model, *batch(([1], [3, 2, 5]), S=1))
    np.testing.assert_allclose(got, 0, atol=1e-5)
    off = logprobs(*model, *batch(([3], [3, 2, 5]), S=1))
    np.testing.assert_allclose(off, [[-20, 0, 0]], atol=1e-5)
    off = logprobs(*model, *batch(([1], [2, 5, 7]), S=1))
    np.testing.assert_allclose(off[0, :2], [-20, 0], atol=1e-5)


def test_prompts_of_unlike_length_shift_no_log_prob():
    """Two and three tokens in one batch, padded on the left, as each alone."""
    model = chain([6, 4, 1, 3, 2, 5])
    rows = ([4, 1], [3, 2, 5]), ([6, 4, 1], [3, 2, 5])
    for width in (3, 5):
        got = logprobs(*model, *batch(*rows, S=width))
        np.testing.assert_allclose(got, 0, atol=1e-5)
        for row, together in zip(rows, got, strict=True):
            alone = logprobs(*model, *batch(row, S=len(row[0])))
            np.testing.assert_allclose(alone[0], together, atol=1e-6)


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("which", ["tokens_NT", "mask_NT", "prompt_mask_PS"])
def test_a_mask_of_another_length_is_never_cut_to_fit(which, n):
    prompt_PS, mask_PS, tokens_NT, mask_NT = batch(([1] * 6, [3] * 6), S=6)
    arrays = dict(
        prompt_PS=prompt_PS,
        prompt_mask_PS=mask_PS,
        tokens_NT=tokens_NT,
        mask_NT=mask_NT,
    )
    arrays[which] = arrays[which][:, :n]
    with pytest.raises(AssertionError, match=rf"6\).*{n}\)|{n}\).*6\)"):
        transformer.completion_logprobs(*chain([1, 3]), **arrays)
