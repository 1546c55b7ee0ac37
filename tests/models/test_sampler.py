"""Tests for models/sampler.py: agreement with the trainer, addressed draws, ends."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import sampler, transformer
from models.config import ModelConfig, RopeConfig
from models.sampling import SamplingConfig
from tests import references

P, G, S, T, V = 4, 3, 4, 5, 29
LENGTHS = (3, 4, 1, 2)  # Real tokens of each prompt, padded on the left to S.
ENDS = (0, 6, 12, 18, 24)
NEVER = (10**6,)  # An end that no model draws.
PROBLEM = np.array([7, 3, 1000, 4])

STATIC = dict(
    static_argnums=(1, 2), static_argnames=("new_tokens", "end_ids", "pad_id")
)
run = jax.jit(sampler.sample, **STATIC)
forward = jax.jit(transformer.forward, static_argnums=1)
logprobs = jax.jit(transformer.completion_logprobs, static_argnums=1)


def config(family, **changes):
    spec = references.FAMILIES[family] | changes
    return ModelConfig(**spec | {"rope": RopeConfig(**spec["rope"])})


@functools.cache
def weights(family, seed=0):
    return references.weights(references.FAMILIES[family], seed)


def prompts():
    mask_PS = np.arange(S) >= S - np.array(LENGTHS)[:, None]
    tokens_PS = np.random.default_rng(0).integers(V, size=(P, S))
    return np.where(mask_PS, tokens_PS, 0), mask_PS


def sample(
    tree=None,
    cfg=None,
    filters=SamplingConfig(),  # noqa: B008
    batch=None,
    key=0,
    problem=PROBLEM,
    index=None,
    call=run,
    **settings,
):
    """A run with the defaults of these tests, on the host."""
    settings = dict(new_tokens=T, end_ids=ENDS, pad_id=0, temperature=1.0) | settings
    prompt_PS, mask_PS = prompts() if batch is None else batch
    if index is None:
        index = np.tile(np.arange(G), (len(problem), 1))
    return jax.device_get(
        call(
            weights("qwen3") if tree is None else tree,
            config("qwen3") if cfg is None else cfg,
            filters,
            prompt_PS,
            mask_PS,
            jax.random.key(key),
            jnp.asarray(problem),
            jnp.asarray(index),
            **settings,
        )
    )


def rescored(tree, cfg, s, temperature):
    """What the trainer makes of a run's tokens, [P, G, T]."""
    flat = s.tokens_PGT.reshape(-1, T), s.mask_PGT.reshape(-1, T)
    logp_NT = logprobs(tree, cfg, *prompts(), *flat, temperature)
    return np.asarray(logp_NT).reshape(s.logp_PGT.shape)


def close(got, want, tol=1e-5):
    np.testing.assert_allclose(got, want, rtol=0, atol=tol)


def same(got, want):
    """The same rollouts; log-probs to rounding."""
    for name in ("tokens_PGT", "mask_PGT", "ended_PG"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
    close(got.logq_PGT, want.logq_PGT)
    close(got.logp_PGT, want.logp_PGT)


@pytest.fixture(scope="module")
def base():
    """The run that most tests vary."""
    return sample()


def pick(s, rows=slice(None), samples=slice(None)):
    return jax.tree.map(lambda x: x[rows][:, samples], s)


@pytest.mark.parametrize(
    "family, group", [*((f, G) for f in references.FAMILIES), ("qwen3", 1)]
)
def test_log_probs_equal_the_trainers(family, group):
    """At every temperature, for ragged prompts and rows that end early."""
    tree, cfg = weights(family), config(family)
    index = np.tile(np.arange(group), (P, 1))
    lengths = set()
    for temperature in (0.3, 0.6, 1.0, 1.5):
        s = sample(tree, cfg, index=index, temperature=temperature)
        close(s.logp_PGT, rescored(tree, cfg, s, temperature))
        np.testing.assert_array_equal(s.logq_PGT, s.logp_PGT)
        assert (s.logp_PGT[s.mask_PGT] < 0).all()
        lengths |= {*s.mask_PGT.sum(-1).flat}
    assert len(lengths) > 2


def test_filters_change_logq_and_not_logp():
    """logq is the reference's, of logits it computes itself."""
    spec, filters = references.FAMILIES["qwen3"], dict(top_k=9, top_p=0.8, min_p=0.1)
    prompt_PS, mask_PS = prompts()
    for temperature in (0.6, 1.5):
        s = sample(
            filters=SamplingConfig(**filters), temperature=temperature, end_ids=NEVER
        )
        close(s.logp_PGT, rescored(weights("qwen3"), config("qwen3"), s, temperature))
        assert (s.logq_PGT > s.logp_PGT).mean() > 0.9
        for p, g in np.ndindex(P, G):
            row = np.r_[prompt_PS[p, mask_PS[p]], s.tokens_PGT[p, g]]
            logits = references.decoder(weights("qwen3"), spec, row)[-T - 1 : -1]
            want = [
                references.truncated(x, temperature, **filters)[token]
                for x, token in zip(logits, s.tokens_PGT[p, g], strict=True)
            ]
            close(s.logq_PGT[p, g], want)


def test_a_full_cache_equals_an_uncached_run():
    """Greedy, to the last token that fits; every sample of a problem is the same."""
    s = sample(temperature=0.0, end_ids=NEVER)
    prompt_PS, mask_PS = prompts()
    tokens, mask = (np.pad(x, [(0, 0), (0, T)]) for x in (prompt_PS, mask_PS))
    for t in range(T):
        logits = forward(weights("qwen3"), config("qwen3"), tokens, mask)[:, S + t - 1]
        tokens[:, S + t], mask[:, S + t] = np.argmax(logits, -1), True
        logp = np.max(jax.nn.log_softmax(logits), -1)
        for g in range(G):
            np.testing.assert_array_equal(s.tokens_PGT[:, g, t], tokens[:, S + t])
            close(s.logp_PGT[:, g, t], logp)
    np.testing.assert_array_equal(s.logq_PGT, 0.0)
    assert s.mask_PGT.all() and not s.ended_PG.any()
    assert len({*tokens[:, S:].flat}) > P


def test_one_new_token_needs_no_cache(base):
    one = sample(new_tokens=1)
    same(
        one,
        base._replace(
            **{n: getattr(base, n)[..., :1] for n in base._fields[:4]},
            ended_PG=np.isin(base.tokens_PGT[..., 0], ENDS),
        ),
    )


def test_draws_have_an_address(base):
    """Order of problems and of samples, split and group size change nothing."""
    prompt_PS, mask_PS = prompts()
    order, swap = [2, 0, 3, 1], [1, 2, 0]
    permuted = sample(batch=(prompt_PS[order], mask_PS[order]), problem=PROBLEM[order])
    same(permuted, pick(base, order))
    same(sample(index=np.tile(swap, (P, 1))), pick(base, samples=swap))
    for half in (slice(0, 2), slice(2, 4)):
        part = sample(batch=(prompt_PS[half], mask_PS[half]), problem=PROBLEM[half])
        same(part, pick(base, half))
    same(sample(index=np.full((P, 1), 2)), pick(base, samples=[2]))


def test_padding_and_company_change_nothing(base):
    """Between them, the rows of both widths have 0 to 7 positions of padding."""
    prompt_PS, mask_PS = prompts()
    seen = set()
    for more in (0, 4):
        wider = [np.pad(x, [(0, 0), (more, 0)]) for x in (prompt_PS, mask_PS)]
        seen |= {*np.sum(~wider[1], -1)}
        same(sample(batch=wider), base)
    assert seen == set(range(8))
    bare = [x[:1, S - LENGTHS[0] :] for x in (prompt_PS, mask_PS)]
    alone = sample(batch=bare, problem=PROBLEM[:1], index=np.array([[1]]))
    same(alone, pick(base, slice(1), [1]))


def test_every_part_of_the_address_makes_another_stream():
    """Uniform logits: distinct tokens along each axis are as many as chance gives."""
    silent = jax.tree.map(np.zeros_like, weights("qwen3"))
    draw = functools.partial(sample, silent, end_ids=NEVER)
    tokens = np.stack([draw(key=k).tokens_PGT for k in range(20)])
    for axis, n in enumerate(tokens.shape):
        ordered = np.sort(tokens, axis)
        distinct = 1 + (np.diff(ordered, axis=axis) > 0).sum(axis)
        chance = V * (1 - (1 - 1 / V) ** n)
        np.testing.assert_allclose(distinct.mean(), chance, rtol=0.04)
    assert len({*map(tuple, tokens.reshape(-1, T))}) == 20 * P * G
    np.testing.assert_array_equal(draw(key=3).tokens_PGT, tokens[3])
    renamed = draw(problem=PROBLEM + 1).tokens_PGT
    assert (renamed != tokens[0]).mean() > 0.8


def test_rows_end_at_the_first_of_several_ends():
    """As the run without ends, cut; ends in the prompt and padding do not count."""
    batch, draw = prompts(), functools.partial(sample, key=5)
    last = draw(end_ids=NEVER).tokens_PGT[1, 1, T - 1]
    batch[0][0, -2] = last
    base = draw(batch=batch, end_ids=NEVER)
    ends = int(base.tokens_PGT[0, 0, 2]), int(last)
    got = draw(batch=batch, end_ids=ends, pad_id=ends[0])
    lengths = set()
    for p, g in np.ndindex(P, G):
        at = np.flatnonzero(np.isin(base.tokens_PGT[p, g], ends))
        n = at[0] + 1 if len(at) else T
        live = np.arange(T) < n
        lengths.add((n, bool(len(at))))
        assert got.ended_PG[p, g] == bool(len(at))
        np.testing.assert_array_equal(got.mask_PGT[p, g], live)
        np.testing.assert_array_equal(
            got.tokens_PGT[p, g], np.where(live, base.tokens_PGT[p, g], ends[0])
        )
        close(got.logq_PGT[p, g], np.where(live, base.logq_PGT[p, g], 0))
        close(got.logp_PGT[p, g], np.where(live, base.logp_PGT[p, g], 0))
    assert {(3, True), (T, True), (T, False)} <= lengths
    for order in (ends, ends[::-1]):
        np.testing.assert_array_equal(
            sampler.completion_mask(got.tokens_PGT.reshape(-1, T), order),
            got.mask_PGT.reshape(-1, T),
        )


MASKS = [
    ([5, 6, 2, 2, 2], (2,), [1, 1, 1, 0, 0]),
    ([5, 6, 7, 8, 9], (2,), [1, 1, 1, 1, 1]),
    ([2, 2, 2, 2, 2], (2,), [1, 0, 0, 0, 0]),
    ([5, 6, 7, 8, 2], (2,), [1, 1, 1, 1, 1]),
    ([9, 106, 0, 0], (1, 106), [1, 1, 0, 0]),
    ([9, 106, 0, 0], (106, 1), [1, 1, 0, 0]),
    ([9, 106, 0, 0], (1,), [1, 1, 1, 1]),
    ([9, 106, 1, 106], (1, 106), [1, 1, 0, 0]),
    ([4, 5, 6, 128009, 0], (128001, 128008, 128009), [1, 1, 1, 1, 0]),
]


@pytest.mark.parametrize("tokens, ends, want", MASKS)
def test_completion_mask_worked_cases(tokens, ends, want):
    got = sampler.completion_mask(jnp.array([tokens]), ends)
    assert got.dtype == bool
    np.testing.assert_array_equal(got, [want])


def test_one_program_serves_all_weights_and_temperatures():
    """Weights are arguments: others change the greedy output without a new trace."""
    call = jax.jit(chex.assert_max_traces(sampler.sample, n=1), **STATIC)
    greedy = [
        sample(weights("qwen3", seed), call=call, temperature=0.0).tokens_PGT
        for seed in (0, 1)
    ]
    assert (greedy[0] != greedy[1]).mean() > 0.5
    warm = [sample(call=call, temperature=t).tokens_PGT for t in (0.0, 0.5, 2.0)]
    np.testing.assert_array_equal(warm[0], greedy[0])
    assert (warm[1] != warm[2]).any()


def test_bfloat16_agrees_with_the_trainer_to_its_precision():
    cfg = config("qwen3", dtype="bfloat16")
    s = sample(cfg=cfg)
    assert s.logp_PGT.dtype == s.logq_PGT.dtype == np.float32
    close(s.logp_PGT, rescored(weights("qwen3"), cfg, s, 1.0), 0.05)


@pytest.mark.parametrize("bad", [dict(new_tokens=0), dict(end_ids=())], ids=str)
def test_sample_rejects_what_could_not_stop(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        sample(call=sampler.sample, **bad)
