"""Tests for models/transformer.py: every pass against one plain decoder.

The reference sees one row at a time, without padding or a cache. Gradients are
compared with central differences of the reference, taken in float64.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import transformer
from models.config import ModelConfig, RopeConfig
from models.transformer import Keys
from tests import references

S, T, G = 5, 4, 3
PROMPTS = (5, 2)  # Real tokens of each prompt, padded on the left to S,
LENGTHS = (4, 0, 2, 1, 4, 3)  # and of each completion, padded on the right to T.
P, N = len(PROMPTS), len(LENGTHS)

forward = jax.jit(transformer.forward, static_argnums=1)
prefill = jax.jit(transformer.prefill, static_argnums=1)
decode = jax.jit(transformer.decode, static_argnums=1)
logprobs = jax.jit(transformer.completion_logprobs, static_argnums=1)
families = pytest.mark.parametrize("family", references.FAMILIES)


def logp_and_grad(tree, cfg, batch, temperature, cotangent_NT):
    """Completion log-probs and the gradient of their weighted sum."""
    logp_NT, pull = jax.vjp(
        lambda tree: transformer.completion_logprobs(tree, cfg, *batch, temperature),
        tree,
    )
    return logp_NT, pull(cotangent_NT)[0]


jit_logp_and_grad = jax.jit(logp_and_grad, static_argnums=1)


def config(family, **changes):
    spec = references.FAMILIES[family] | changes
    return ModelConfig(**spec | {"rope": RopeConfig(**spec["rope"])})


@functools.cache
def weights(family):
    return references.weights(references.FAMILIES[family])


def make_batch(fill=0, seed=0):
    """Prompts, their mask, completions, their mask; padding holds `fill`."""
    rng = np.random.default_rng(seed)
    prompt_PS, tokens_NT = rng.integers(29, size=(P, S)), rng.integers(29, size=(N, T))
    prompt_mask_PS = np.arange(S) >= S - np.array(PROMPTS)[:, None]
    mask_NT = np.arange(T) < np.array(LENGTHS)[:, None]
    prompt_PS[~prompt_mask_PS] = fill
    tokens_NT[~mask_NT] = fill
    return prompt_PS, prompt_mask_PS, tokens_NT, mask_NT


COTANGENT = np.random.default_rng(1).normal(size=(N, T)).astype(np.float32)


def rows(batch):
    """Each rollout as (prompt, completion) without padding."""
    prompt_PS, prompt_mask_PS, tokens_NT, mask_NT = batch
    for n in range(N):
        p = n // G
        yield prompt_PS[p, prompt_mask_PS[p]], tokens_NT[n, mask_NT[n]]


def whole(batch):
    """Tokens and mask [N, S + T] of whole rows."""
    prompt_PS, prompt_mask_PS, tokens_NT, mask_NT = batch
    return (
        np.concatenate([np.repeat(prompt_PS, G, 0), tokens_NT], 1),
        np.concatenate([np.repeat(prompt_mask_PS, G, 0), mask_NT], 1),
    )


def close(got, want, tol=1e-5):
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def trees_close(got, want, tol=1e-5):
    jax.tree.map(lambda a, b: close(a, b, tol), got, want)


@families
def test_weights_have_the_released_shapes(family):
    declared = jax.tree.map(
        lambda d: d.shape,
        transformer.param_defs(config(family)),
        is_leaf=lambda x: isinstance(x, transformer.ParamDef),
    )
    assert declared == jax.tree.map(np.shape, weights(family))


@families
def test_passes_equal_the_reference_and_each_other(family):
    spec, batch, temperature = references.FAMILIES[family], make_batch(), 0.7
    prompt_PS, _, tokens_NT, mask_NT = batch
    tokens, mask = whole(batch)
    logits = forward(weights(family), config(family), tokens, mask)
    assert logits.dtype == jnp.float32
    for n, row in enumerate(rows(batch)):
        want = references.decoder(weights(family), spec, np.concatenate(row))
        close(logits[n][mask[n]], want, 3e-5)
    logp_NT = np.asarray(logprobs(weights(family), config(family), *batch, temperature))
    np.testing.assert_array_equal(logp_NT[~mask_NT], 0.0)
    for n, t in np.argwhere(mask_NT):
        same = jax.nn.log_softmax(logits[n, S + t - 1] / temperature)
        close(logp_NT[n, t], same[tokens_NT[n, t]])


# Two families that have every option on and off between them.
two_families = pytest.mark.parametrize("family", ["qwen2", "yarn"])


@two_families
def test_padding_width_is_inert(family):
    """Wider on both sides."""
    batch = make_batch()
    want = logprobs(weights(family), config(family), *batch, 1.0)
    wider = [
        np.pad(x, [(0, 0), side])
        for x, side in zip(batch, [(2, 0), (2, 0), (0, 1), (0, 1)], strict=True)
    ]
    close(logprobs(weights(family), config(family), *wider, 1.0)[:, :T], want)


@pytest.mark.parametrize("family, layers", [("qwen2", 2), ("yarn", 1)])
def test_gradient_equals_central_differences(family, layers):
    """Of each weight array, along a random direction."""
    spec = references.FAMILIES[family] | dict(layers=layers)
    tree, cfg = references.weights(spec), config(family, layers=layers)
    batch, temperature, step = make_batch(), 0.7, 1e-5
    _, grad = jit_logp_and_grad(tree, cfg, batch, temperature, COTANGENT)

    def loss(tree):
        return sum(
            COTANGENT[n, : len(completion)]
            @ references.completion_logprobs(
                tree, spec, prompt, completion, temperature
            )
            for n, (prompt, completion) in enumerate(rows(batch))
        )

    rng = np.random.default_rng(2)
    leaves, structure = jax.tree.flatten(tree)
    for i, (leaf, g) in enumerate(zip(leaves, jax.tree.leaves(grad), strict=True)):
        along = rng.normal(size=leaf.shape)
        sides = []
        for sign in (1, -1):
            moved = [*leaves[:i], leaf + sign * step * along, *leaves[i + 1 :]]
            sides.append(loss(structure.unflatten(moved)))
        want = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(np.sum(g * along), want, rtol=2e-4, atol=2e-4)


def test_a_shared_prompt_equals_a_prompt_for_every_row():
    prompt_PS, prompt_mask_PS, tokens_NT, mask_NT = make_batch()
    own = np.repeat(prompt_PS, G, 0), np.repeat(prompt_mask_PS, G, 0)
    args = weights("qwen2"), config("qwen2")
    shared = jit_logp_and_grad(*args, make_batch(), 0.7, COTANGENT)
    alone = jit_logp_and_grad(*args, (*own, tokens_NT, mask_NT), 0.7, COTANGENT)
    trees_close(alone, shared)


def test_completions_of_one_token_need_their_prompt_only():
    *prompts, tokens_NT, mask_NT = make_batch()
    args = weights("qwen2"), config("qwen2")
    one = logprobs(*args, *prompts, tokens_NT[:, :1], mask_NT[:, :1], 0.7)
    close(one, logprobs(*args, *prompts, tokens_NT, mask_NT, 0.7)[:, :1])


VARIANTS = {
    "unrolled": dict(unroll=2, logprob_chunk=5),  # Does not divide N * T.
    "dots": dict(remat="dots", logprob_chunk=8),
    "block": dict(remat="block", logprob_chunk=N * T),
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_memory_settings_change_no_result(changes):
    args = make_batch(), 0.7, COTANGENT
    want = jit_logp_and_grad(weights("qwen2"), config("qwen2"), *args)
    got = jit_logp_and_grad(weights("qwen2"), config("qwen2", **changes), *args)
    trees_close(got, want)


def program(cfg):
    """Text of the jaxpr of log-probs and gradient."""
    run = functools.partial(logp_and_grad, cfg=cfg)
    args = dict(batch=make_batch(), temperature=0.7, cotangent_NT=COTANGENT)
    return str(jax.make_jaxpr(lambda tree: run(tree, **args))(weights("qwen2")))


@pytest.mark.parametrize("chunk, held", [(4, False), (5, False), (N * T, True)])
def test_chunks_keep_all_logits_from_ever_being_held(chunk, held):
    text = program(config("qwen2", logprob_chunk=chunk))
    shapes = re.findall(r"\bb?f\d+\[([\d,]+)\]", text)
    sizes = [np.prod([int(n) for n in s.split(",")]) for s in shapes if "29" in s]
    assert (max(sizes) >= N * T * 29) == held


def test_bfloat16_keeps_weights_and_softmaxes_in_float32():
    cfg, args = config("qwen2", dtype="bfloat16"), (make_batch(), 0.7, COTANGENT)
    logp_NT, grad = jit_logp_and_grad(weights("qwen2"), cfg, *args)
    want, _ = jit_logp_and_grad(weights("qwen2"), config("qwen2"), *args)
    for x in jax.tree.leaves((logp_NT, grad)):
        assert x.dtype == jnp.float32 and np.isfinite(x).all()
    assert 1e-4 < np.max(np.abs(logp_NT - want)) < 0.1
    text = program(cfg)
    assert f"bf16[{P},{G},{T},16]" in text  # Activations,
    assert f"f32[{N * T},29]" in text and f"bf16[{N * T},29]" not in text  # logits,
    assert re.search(r":f32\[[\d,]+\] = exp ", text)  # and every softmax.
    assert not re.search(r":bf16\[[\d,]*\] = (exp|log|rsqrt|cos|sin) ", text)


def columns(f, embed, tokens):
    """|d f / d embedding of each token| along a random direction, [..., tokens]."""
    along = np.random.default_rng(0).normal(size=embed.shape[1]).astype(np.float32)

    def column(token):
        tangent = jnp.zeros_like(embed).at[token].set(along)
        return jax.jvp(f, (embed,), (tangent,))[1]

    return np.abs(jax.jit(jax.vmap(column, out_axes=-1))(np.asarray(tokens)))


def test_forward_sees_the_past_of_its_own_row_only():
    """By Jacobian: every position holds a token of its own, padding too."""
    tree, (B, W) = weights("llama3"), (2, 6)
    tokens = np.arange(B * W).reshape(B, W)
    mask = np.array([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0]], bool)
    weigh = np.random.default_rng(1).normal(size=29).astype(np.float32)

    def f(embed):
        logits = transformer.forward(
            tree | {"embed": embed}, config("llama3"), tokens, mask
        )
        return jnp.einsum("BTV,V->BT", logits, weigh)

    jac = columns(f, jnp.asarray(tree["embed"]), range(B * W))
    for b, t in np.argwhere(mask):
        seen = [tokens[b, s] for s in range(t + 1) if mask[b, s]]
        np.testing.assert_array_equal(np.flatnonzero(jac[b, t]), seen)


def test_completions_see_their_prompt_and_own_past_only():
    tree, cfg = weights("llama3"), config("llama3")
    prompt = np.arange(6).reshape(2, 3)
    prompt_mask = np.array([[1, 1, 1], [0, 1, 1]], bool)
    tokens = np.arange(6, 18).reshape(4, 3)
    full = np.ones_like(tokens, bool)

    def f(embed):
        return transformer.completion_logprobs(
            tree | {"embed": embed}, cfg, prompt, prompt_mask, tokens, full
        )

    jac = columns(f, jnp.asarray(tree["embed"]), range(18))
    for n, t in np.ndindex(4, 3):
        p = n // 2
        seen = [*prompt[p, prompt_mask[p]], *tokens[n, :t]]
        np.testing.assert_array_equal(np.flatnonzero(jac[n, t]), seen)


@pytest.mark.parametrize(
    "run", [logp_and_grad, jit_logp_and_grad], ids=["eager", "jit"]
)
def test_what_stands_in_the_padding_is_inert(run):
    """In value and gradient, bit for bit, without a NaN on the way."""
    with jax.debug_nans(True):
        clean, dirty = (
            run(weights("qwen2"), config("qwen2"), make_batch(fill), 0.7, COTANGENT)
            for fill in (0, 11)
        )
    jax.tree.map(np.testing.assert_array_equal, dirty, clean)


def test_decoding_token_by_token_fills_the_cache_that_prefill_makes():
    """Past the original length of the rope scaling, with every step's logits."""
    cfg, tree = config("llama3"), weights("llama3")
    prompt_PS, prompt_mask_PS, tokens_NT, _ = make_batch()
    batch = prompt_PS, prompt_mask_PS, tokens_NT, np.ones((N, T), bool)
    tokens, mask = whole(batch)
    logits, rows_prefix = prefill(tree, cfg, tokens, mask)
    every = forward(tree, cfg, tokens, mask)
    close(logits, every[:, -1])
    logits_PV, prefix = prefill(tree, cfg, prompt_PS, prompt_mask_PS)
    close(logits_PV, every[::G, S - 1])
    cache = transformer.init_cache(cfg, P, G, T)
    tokens_PGT = tokens_NT.reshape(P, G, T)
    for t in range(T):
        logits_PGV, cache = decode(
            tree, cfg, prefix, cache, tokens_PGT[:, :, t], jnp.int32(t)
        )
        close(logits_PGV.reshape(N, -1), every[:, S + t])
    shape = (cfg.layers, N, cfg.kv_heads)
    close(cache.k.reshape(*shape, -1, T), rows_prefix.k[..., S:])
    close(cache.v.reshape(*shape, T, -1), rows_prefix.v[..., S:, :])
    real = prompt_mask_PS[1]
    close(prefix.k[:, 1][..., real], rows_prefix.k[:, G, ..., :S][..., real])


def test_positions_count_real_tokens():
    got = transformer.positions(
        jnp.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 0, 0]], bool)
    )
    np.testing.assert_array_equal(
        got, [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [0, 0, 1, 1, 1]]
    )


@pytest.mark.parametrize("eps, want", [(1e-6, 0.707107), (1e-5, 0.301511)])
def test_rms_norm_worked_case(eps, want):
    x = jnp.array([1e-3, -1e-3, 1e-3, 1e-3])
    close(transformer.rms_norm(x, jnp.ones(4), eps), want * np.sign(x))
    assert transformer.rms_norm(x.astype("bfloat16"), jnp.ones(4), eps).dtype == (
        jnp.promote_types("bfloat16", "float32")
    )


@pytest.mark.parametrize(
    "Q, K, want", [(4, 2, [0, 0, 1, 1]), (6, 2, [0] * 3 + [1] * 3)]
)
def test_query_heads_share_kv_heads_in_runs(Q, K, want):
    H, length = 2, 3
    k = jnp.ones((1, 1, K, H, length))
    v = jnp.broadcast_to(
        jnp.arange(K, dtype=float)[None, None, :, None, None], (1, 1, K, length, H)
    )
    q = jnp.ones((1, 1, 1, Q, H))
    out = transformer.attention(q, [Keys(k, v, jnp.ones((1, 1, 1, length), bool))])
    np.testing.assert_array_equal(out[0, 0, 0, :, 0], want)


def test_parts_of_attention_form_one_softmax():
    """Shared and own keys, split, equal the same keys in one part."""
    rng = np.random.default_rng(0)
    P, G, T, Q, K, H = 2, 3, 2, 4, 2, 4
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    q, k0, v0 = draw(P, G, T, Q, H), draw(P, K, H, 3), draw(P, K, 3, H)
    k1, v1 = draw(P, G, K, H, 2), draw(P, G, K, 2, H)
    m0, m1 = rng.random((P, 1, 1, 3)) < 0.7, np.tril(np.ones((2, 2), bool))[None, None]
    split = transformer.attention(q, [Keys(k0, v0, m0), Keys(k1, v1, m1)])
    for p, g, t, i in np.ndindex(P, G, T, Q):
        j = i // (Q // K)
        keys = np.concatenate([k0[p, j], k1[p, g, j]], 1)
        values = np.concatenate([v0[p, j], v1[p, g, j]], 0)
        seen = np.r_[m0[p, 0, 0], m1[0, 0, t]]
        scores = np.where(seen, q[p, g, t, i] @ keys / H**0.5, -np.inf)
        want = np.exp(references.log_softmax(np.float64(scores))) @ values
        close(split[p, g, t, i], want)


def test_completion_logprobs_rejects_other_shapes():
    prompt_PS, prompt_mask_PS, tokens_NT, mask_NT = make_batch()
    run = functools.partial(
        transformer.completion_logprobs, weights("qwen2"), config("qwen2")
    )
    with pytest.raises(ValueError, match="5 rows are not a multiple of 2 prompts"):
        run(prompt_PS, prompt_mask_PS, tokens_NT[:5], mask_NT[:5])
    with pytest.raises(AssertionError):
        run(prompt_PS, prompt_mask_PS, tokens_NT, mask_NT.astype(np.float32))
    with pytest.raises(AssertionError):
        run(prompt_PS, prompt_mask_PS, tokens_NT, mask_NT[:, :1])
