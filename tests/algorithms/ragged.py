"""Rows with padding on both sides, holes, a lone token and an empty row.

The rules of a token see them through `Tokens`; what stands behind the mask must reach
none of them.
"""

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import tokens as tokens_lib

MASK = np.array(
    [
        [0, 1, 1, 0, 1, 1, 0],
        [1, 1, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 1],
        [1, 1, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 1],
    ],
    bool,
)
ADV = np.array([1.0, -1.0, 0.5, -0.5, 0.0, 0.25])
# Three problems, their rows apart from each other; numbers may be left out.
GROUP = np.array([4, 1, 4, 1, 4, 2])
N, T = MASK.shape


def draw(seed=0, spread=0.3):
    """logp, logo, logq and logref, float32 [N, T] each; some drawn near each other."""
    rng = np.random.default_rng(seed)
    near = -rng.exponential(size=(N, T))
    return [np.float32(near + spread * rng.normal(size=(N, T))) for _ in range(4)]


def make(fill=0.0, seed=0, spread=0.3):
    """Tokens and logref_NT, with `fill` behind the mask."""
    logs = [np.where(MASK, x, np.float32(fill)) for x in draw(seed, spread)]
    return of(*logs[:3]), jnp.asarray(logs[3])


def of(logp_NT, logo_NT, logq_NT, mask_NT=MASK, adv_N=ADV, group_N=GROUP):
    """Tokens of arrays in this order."""
    return tokens_lib.of(logp_NT, logo_NT, mask_NT, adv_N, logq_NT, group_N)


def row(d, adv=1.0, mask=None):
    """Tokens of one row whose log ratio is d, of policy over anchor = sampler."""
    d = jnp.asarray(d)[None]
    mask = jnp.ones(d.shape, bool) if mask is None else jnp.asarray(mask, bool)[None]
    return tokens_lib.of(d - 2.0, jnp.full_like(d, -2.0), mask, jnp.asarray([adv]))


def packed(x_NT):
    """Every row's tokens moved to its start, two columns of junk at the end."""
    out = np.full((N, T + 2), 77.0, np.float32)
    for n in range(N):
        kept = np.asarray(x_NT)[n, MASK[n]]
        out[n, : len(kept)] = kept
    return out


def check(rule):
    """What every rule (Tokens, logref_NT) -> arrays [N, T] owes to the mask.

    0 behind it; the same, bit for bit, whatever stands there; the same at each token
    once padding and holes are deleted; the same if rows change places; finite, with
    no NaN on the way, also where log-probabilities are far apart.
    """
    leaves = lambda *args, run=rule: [
        np.asarray(x) for x in jax.tree.leaves(run(*args))
    ]
    clean = leaves(*make())
    for run in (rule, jax.jit(rule)):
        same = leaves(*make(), run=run)
        for got, want in zip(same, clean, strict=True):
            assert got.shape == (N, T) and got.dtype == np.float32
            np.testing.assert_array_equal(got[~MASK], 0.0)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        for fill in (1e4, np.inf, -np.inf, np.nan):
            batch = make(fill)
            with jax.debug_nans(True):
                dirty = leaves(*batch, run=run)
            jax.tree.map(np.testing.assert_array_equal, dirty, same)
    with jax.debug_nans(True):
        for x in leaves(*make(spread=1e4)):
            assert np.isfinite(x).all()

    short = np.arange(T + 2)[None] < MASK.sum(1)[:, None]
    *logs, logref = map(packed, draw())
    for got, want in zip(leaves(of(*logs, short), logref), clean, strict=True):
        for n in range(N):
            np.testing.assert_allclose(
                got[n, short[n]], want[n, MASK[n]], rtol=1e-5, atol=1e-6
            )

    order = np.array([3, 0, 5, 2, 1, 4])
    *logs, logref = (x[order] for x in draw())
    moved = of(*logs, MASK[order], ADV[order], GROUP[order])
    for got, want in zip(leaves(moved, logref), clean, strict=True):
        np.testing.assert_allclose(got, want[order], rtol=1e-5, atol=1e-6)


def check_settings(part, run):
    """A traced setting gives what the same number gives."""
    fields = part.__dataclass_fields__
    numbers = {k: v for k in fields if isinstance(v := getattr(part, k), float)}
    want = run(part)
    got = jax.jit(lambda numbers: run(type(part)(**vars(part) | numbers)))(numbers)

    def same(a: jax.Array, b: jax.Array) -> None:
        # Small entries are differences of large ones, and round like those.
        atol = 1e-6 * float(np.abs(b).max())
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=atol)

    jax.tree.map(same, got, want)
