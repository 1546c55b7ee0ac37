"""Tests for jaxrl/ledger.py: by hand, against XLA, and that costs add up."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import ledger
from jaxrl.ledger import Ledger
from models import params, transformer
from models.config import ModelConfig

MODEL = ModelConfig(
    layers=1, width=8, heads=2, kv_heads=1, head_dim=4, ffn=16, vocab=10
)
# Weights of a block: q, k, v: 8 * (2 + 2 * 1) * 4; out: 2 * 4 * 8; ffn: 3 * 8 * 16.
TOKEN = 2 * (128 + 64 + 384)
PAIR = 4 * 2 * 4
HEAD = 2 * 8 * 10

# Two problems: prompts of 3 and 5 tokens, completions of 2, 4 and of 1, 3.
PROMPT = np.array([3, 5])
LENGTH = np.array([[2, 4], [1, 3]])
ALL = np.ones((2, 2), bool)
# Prompts: 1 + 2 + 3 and 1 + ... + 5 pairs. Completions but for their last tokens, each
# of which sees its prompt and its past: 4, 4 + 5 + 6, none, and 6 + 7.
PREFILL = TOKEN * 8 + PAIR * (6 + 15) + HEAD * 2
DECODE = TOKEN * 6 + PAIR * (4 + 15 + 13) + HEAD * 6
FORWARD = TOKEN * 14 + PAIR * (21 + 32) + HEAD * 10


def test_sampling_by_hand():
    assert ledger.sampling(MODEL, PROMPT, LENGTH) == Ledger(
        rollouts=4,
        prompt_tokens=8,
        generated_tokens=10,
        flops_prefill=PREFILL,
        flops_decode=DECODE,
    )


@pytest.mark.parametrize("epochs", [1, 3])
def test_updating_by_hand(epochs):
    assert ledger.updating(MODEL, PROMPT, LENGTH, ALL, epochs) == Ledger(
        trained_tokens=10 * epochs,
        flops_train=3 * FORWARD * epochs,
        flops_recompute=HEAD * 10 * epochs,
    )


@pytest.mark.parametrize(
    "trained, tokens, discarded, forward",
    [
        # Without the completion of 4, 3 of whose tokens are fed.
        ([[1, 0], [1, 1]], 6, 4, TOKEN * 11 + PAIR * (53 - 15) + HEAD * 6),
        # A problem of which nothing is trained on costs no prompt either.
        ([[1, 1], [0, 0]], 6, 4, TOKEN * 7 + PAIR * (6 + 4 + 15) + HEAD * 6),
        ([[0, 0], [0, 0]], 0, 10, 0),
    ],
)
def test_what_no_update_saw_is_discarded(trained, tokens, discarded, forward):
    trained_PG = np.array(trained, bool)
    got = ledger.updating(MODEL, PROMPT, LENGTH, trained_PG, 2)
    assert got.trained_tokens == 2 * tokens and got.flops_train == 6 * forward
    assert got.discarded_tokens == discarded
    scored = ledger.scoring(MODEL, PROMPT, LENGTH, trained_PG, 3)
    assert scored == Ledger(scored_tokens=3 * tokens, flops_score=3 * forward)
    assert ledger.scoring(MODEL, PROMPT, LENGTH, trained_PG, 0) == Ledger()


def test_the_extra_rollout_of_a_group_is_paid_for():
    """Three sampled, two trained: all three are rollouts and decoded tokens."""
    length_PG = np.array([[2, 4, 3], [1, 3, 2]])
    trained_PG = np.array([[True, False, True], [True, True, False]])
    total = ledger.sampling(MODEL, PROMPT, length_PG) + ledger.updating(
        MODEL, PROMPT, length_PG, trained_PG, 1
    )
    assert total.rollouts == 6 and total.generated_tokens == 15
    assert total.discarded_tokens == 6 and total.trained_tokens == 9
    without = ledger.sampling(MODEL, PROMPT, LENGTH)
    assert total.flops_decode > without.flops_decode


@pytest.mark.parametrize(
    "remat, again", [("block", FORWARD), ("dots", PAIR * 53 + HEAD * 10)]
)
def test_recomputation_is_its_own_column(remat, again):
    model = dataclasses.replace(MODEL, remat=remat)
    got = ledger.updating(model, PROMPT, LENGTH, ALL, 2)
    assert got.flops_recompute == 2 * again and got.flops_train == 6 * FORWARD


def test_columns_add_up():
    parts = [
        ledger.sampling(MODEL, PROMPT[i : i + 1], LENGTH[i : i + 1])
        + ledger.updating(MODEL, PROMPT[i : i + 1], LENGTH[i : i + 1], ALL[:1], 2)
        for i in (0, 1)
    ]
    whole = ledger.sampling(MODEL, PROMPT, LENGTH) + ledger.updating(
        MODEL, PROMPT, LENGTH, ALL, 2
    )
    assert parts[0] + parts[1] == whole == whole + Ledger()
    row = whole.row()
    assert (
        row.pop("flops")
        == whole.flops
        == sum(v for k, v in row.items() if k.startswith("flops_"))
    )
    assert row == dataclasses.asdict(whole)


def test_counts_stay_exact_where_floats_do_not():
    model = dataclasses.replace(MODEL, layers=80, width=8192, ffn=28673, vocab=128256)
    # A prompt and a length for each of 512 x 16 rollouts, and int32 as jax gives them.
    prompt_P = np.full(512, 4097, np.int32)
    length_PG = np.full((512, 16), 131073, np.int32)
    got = ledger.sampling(model, prompt_P, length_PG)
    fed = 512 * 16 * 131072
    pairs = 512 * 16 * (4097 * 131072 + 131072 * 131073 // 2)
    block = 8192 * (2 + 2) * 4 + 2 * 4 * 8192 + 3 * 8192 * 28673
    want = 2 * 80 * block * fed + 4 * 80 * 2 * 4 * pairs + 2 * 8192 * 128256 * fed
    assert got.flops_decode == want > 2**53
    many = sum([got] * 3, Ledger())
    assert many.flops_decode == 3 * want and type(many.flops) is int


def counted_by_xla(fn, *args):
    return jax.jit(fn).lower(*args).cost_analysis()["flops"]


def test_costs_are_near_what_xla_counts():
    """Without padding, the rest is element-wise work, which the convention leaves out,
    and the masked half of the attention products, which XLA computes all the same."""
    cfg = ModelConfig(
        layers=2,
        width=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        ffn=192,
        vocab=64,
        unroll=2,
    )
    P, S, G, T = 2, 4, 3, 5
    shape = jax.ShapeDtypeStruct
    weights = jax.eval_shape(
        lambda key: params.init(transformer.param_defs(cfg), key), jax.random.key(0)
    )
    prompt, prompt_mask = shape((P, S), jnp.int32), shape((P, S), bool)
    tokens, mask = shape((P * G, T), jnp.int32), shape((P * G, T), bool)
    length_PG = np.full((P, G), T)
    sampled = ledger.sampling(cfg, np.full(P, S), length_PG)
    batch = cfg, np.full(P, S), length_PG, np.ones((P, G), bool)
    updated = ledger.updating(*batch, 1) + ledger.scoring(*batch, 1)

    prefill = lambda w, *x: transformer.prefill(w, cfg, *x)
    _, prefix = jax.eval_shape(prefill, weights, prompt, prompt_mask)
    cache = jax.eval_shape(lambda: transformer.init_cache(cfg, P, G, T - 1))
    decode = lambda w, *x: transformer.decode(w, cfg, *x)
    score = lambda w, *x: transformer.completion_logprobs(w, cfg, *x)
    total = lambda *x: jnp.sum(score(*x))
    rollouts = prompt, prompt_mask, tokens, mask
    pairs = {
        "prefill": (
            sampled.flops_prefill,
            counted_by_xla(prefill, weights, prompt, prompt_mask),
        ),
        "decode": (
            sampled.flops_decode,
            (T - 1)
            * counted_by_xla(
                decode,
                weights,
                prefix,
                cache,
                shape((P, G), jnp.int32),
                shape((), jnp.int32),
            ),
        ),
        "score": (updated.flops_score, counted_by_xla(score, weights, *rollouts)),
        "train": (
            updated.flops_train + updated.flops_recompute,
            counted_by_xla(jax.value_and_grad(total), weights, *rollouts),
        ),
    }
    ratios = {name: xla / ours for name, (ours, xla) in pairs.items()}
    assert all(1 < r < 1.1 for r in ratios.values()), ratios
