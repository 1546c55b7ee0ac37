"""Gradients against autodiff through losses as they were published.

Each loss below is differentiated as it stands, in float64, with stop_gradient only
where its source has it. Advantages and which rollouts are kept are taken from the
code under test, which other files check.
"""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.methods import METHODS
from tests.algorithms import batches

sg = jax.lax.stop_gradient


def token_mean(x, l_NT):
    return jnp.sum(jnp.where(x.m, l_NT, 0)) / jnp.sum(x.m)


def response_mean(x, l_NT):
    per_row = jnp.sum(jnp.where(x.m, l_NT, 0), axis=1) / jnp.maximum(x.L, 1)
    return jnp.sum(per_row) / x.rows


def response_sum(x, l_NT):
    return jnp.sum(jnp.where(x.m, l_NT, 0)) / x.rows


def over_constant(x, l_NT):
    return response_sum(x, l_NT) / batches.LIMIT


def clipped(ratio, adv, low, high, dual=None):
    l = -jnp.minimum(ratio * adv, jnp.clip(ratio, low, high) * adv)
    if dual is not None:
        l = jnp.where(adv < 0, jnp.minimum(l, -dual * adv), l)
    return l


def row_mean(x, y_NT):
    return (jnp.sum(jnp.where(x.m, y_NT, 0), axis=1) / jnp.maximum(x.L, 1))[:, None]


def ppo(low, high, aggregate, dual=None):
    def loss(x, new):
        ratio = jnp.exp(new - x.old)
        return aggregate(x, clipped(ratio, x.A, 1 - low, 1 + high, dual))

    return loss


def gspo(low, high, aggregate):
    def loss(x, new):
        s = jnp.exp(row_mean(x, new - x.old))
        l = clipped(s, x.A, 1 - low, 1 + high)
        return aggregate(x, jnp.broadcast_to(l, new.shape))

    return loss


def gspo_token(x, new):
    s = sg(jnp.exp(row_mean(x, new - x.old))) * jnp.exp(new - sg(new))
    return response_mean(x, clipped(s, x.A, 1 - 3e-4, 1 + 4e-4))


def gmpo(x, new):
    d = new - x.old
    z = jnp.where(x.A > 0, jnp.minimum(d, 0.4), jnp.maximum(d, -0.4))
    return -jnp.sum(x.A * jnp.exp(row_mean(x, z))) / x.rows


def cispo(x, new):
    weight = sg(jnp.clip(jnp.exp(new - x.old), 0.0, 5.0))
    return token_mean(x, -weight * x.A * new)


def sapo(x, new):
    tau = jnp.where(x.A > 0, 1.0, 1.05)
    f = jax.nn.sigmoid(tau * (jnp.exp(new - x.old) - 1)) * 4 / tau
    return response_mean(x, -f * x.A)


def vespo(x, new):
    lw = sg(jnp.sum(jnp.where(x.m, new - x.old, 0), axis=1, keepdims=True))
    lw = jnp.clip(lw, np.log(1e-8), 20)
    k, lam = jnp.where(x.A >= 0, 2.0, 3.0), jnp.where(x.A >= 0, 3.0, 2.0)
    phi = jnp.exp(lam + k * lw - lam * jnp.exp(lw))
    return token_mean(x, -phi * x.A * new)


def pnpo(x, new):
    """Position by position: a running mean and a gate that widens towards the start."""
    total = jnp.zeros(new.shape[0])
    seen = jnp.zeros(new.shape[0])
    out = 0.0
    for t in range(new.shape[1]):
        on = x.m[:, t]
        total += jnp.where(on, sg(new - x.old)[:, t], 0)
        seen += on
        w = jnp.exp(total / jnp.maximum(seen, 1))
        # Widths as published at 8192 tokens; strictness goes with width * sqrt(L).
        h = jnp.sqrt(8192 / jnp.maximum(x.L, 1)) * jnp.sqrt(x.L / jnp.maximum(seen, 1))
        ok = on & (w >= 1 - 7e-4 * h) & (w <= 1 + 9.5e-4 * h)
        l = jnp.where(ok, w * x.A[:, 0], 0) * jnp.where(on, new[:, t], 0)
        out -= jnp.sum(l / jnp.maximum(x.L, 1)) / x.rows
    return out


def harmful(x):
    """Tokens that PPO's clip could hold, and their log ratios."""
    d = np.where(x.m, x.now - x.old, 0)
    return np.asarray(x.m) & (np.sign(d) == np.sign(np.asarray(x.A))) & (d != 0), d


def m2po(x, new):
    """Algorithm 1: drop the largest square until the mean of the rest fits."""
    keep, d = harmful(x)
    mask = np.asarray(x.m).copy()
    while keep.any() and np.mean(np.square(d[keep])) > 0.04:
        worst = np.unravel_index(np.argmax(np.where(keep, np.square(d), -1)), d.shape)
        keep[worst] = mask[worst] = False
    return token_mean(x, -jnp.where(mask, jnp.exp(new - x.old) * x.A, 0))


def m2po_winsor(x, new):
    """Released code: bounds from a winsorised mean, then PPO's clip."""
    keep, d = harmful(x)
    v = np.sort(np.square(d[keep]))
    low, high = -np.inf, np.inf
    if v.size and v.mean() > 0.04:
        n = v.size
        k = next(
            k for k in range(n) if v[k] * (n - k - 1) + v[: k + 1].sum() >= 0.04 * n
        )
        # The token at theta itself is inside; the minimum has no gradient there.
        theta = np.sqrt(v[k - 1]) * (1 + 1e-12)
        low, high = np.exp(-theta), np.exp(theta)
    return token_mean(x, clipped(jnp.exp(new - x.old), x.A, low, high))


def sat(x, new):
    d = sg(new - x.old)
    size = jnp.abs(d)
    q = np.quantile(np.abs(np.asarray(x.now - x.old))[np.asarray(x.m)], 0.9)
    c = jnp.where((size > q) & (q > 0), 1 / (1 + (size / q) ** 2), 1)
    high = 1 + 0.2 * jnp.where(d > 0, c, 1)
    low = 1 - 0.2 * jnp.where(d < 0, c, 1)
    return response_mean(x, clipped(jnp.exp(new - x.old), x.A, low, high))


def dppo(x, new):
    p, q = sg(jnp.exp(new)), jnp.exp(x.old)
    bad = ((x.A > 0) & (p - q > 0.15)) | ((x.A <= 0) & (p - q < -0.15))
    weight = sg(jnp.minimum(jnp.exp(new - x.old), 20))
    return over_constant(x, jnp.where(bad, 0, -x.A * weight * new))


def ctpo(x, new):
    c = jnp.cumsum(jnp.where(x.m, sg(new - x.old), 0), axis=1)
    rho = jnp.exp(c + new - sg(new))
    h = jnp.sqrt(jnp.maximum(jnp.cumsum(x.m, axis=1), 1))
    low, high = jnp.exp(-0.025 * h), jnp.exp(0.05 * h)
    l = clipped(rho, x.A, low, high, dual=high)
    mismatch = jnp.sum(jnp.where(x.m, x.old - x.mu, 0), axis=1, keepdims=True)
    return token_mean(x, jnp.minimum(jnp.exp(mismatch), 5) * l)


def mini_rl(x, new):
    ratio = sg(jnp.exp(new - x.old))
    held = ((x.A > 0) & (ratio > 1.2)) | ((x.A < 0) & (ratio < 0.8))
    weight = jnp.minimum(sg(jnp.exp(new - x.mu)), 10) * jnp.where(held, 0, 1)
    return response_sum(x, -weight * x.A * new)


def decoupled(x, new):
    weight = jnp.minimum(jnp.exp(x.old - x.mu), 2)
    l = clipped(jnp.exp(new - x.old), x.A, 0.8, 1.2)
    return response_mean(x, weight * l)


def tba(x, new):
    """Squared distance to log Z, times b / 2; rows without tokens stand aside."""
    b = 0.012
    l = jnp.sum(jnp.where(x.m, new, 0), axis=1)
    l0 = jnp.sum(jnp.where(x.m, x.ref, 0), axis=1)
    out = 0.0
    for p in range(int(x.group.max()) + 1):
        rows = np.flatnonzero((np.asarray(x.group) == p) & (np.asarray(x.L) > 0))
        if len(rows):
            # Rewards enter through what they differ from their group's mean by.
            r = x.A[rows, 0] / b + l0[rows] - l[rows]
            shift = sg(jnp.mean(l0[rows] - l[rows]))
            out += jnp.sum(jnp.square(shift - r))
    return out / x.rows * b / 2


PUBLISHED = {
    "grpo": ppo(0.2, 0.2, response_mean),
    "mc_grpo": ppo(0.2, 0.2, response_mean),
    "dr_grpo": ppo(0.2, 0.2, over_constant),
    "rloo": ppo(0.2, 0.2, response_sum),
    "dapo": ppo(0.2, 0.28, token_mean),
    "gapo": ppo(0.2, 0.28, response_mean, dual=10),
    "gspo": gspo(3e-4, 4e-4, response_mean),
    "luspo": gspo(2e-3, 2.5e-3, response_sum),
    "gspo_token": gspo_token,
    "gmpo": gmpo,
    "cispo": cispo,
    "sapo": sapo,
    "vespo": vespo,
    "pnpo": pnpo,
    "m2po": m2po,
    "m2po_winsor": m2po_winsor,
    "sat_grpo": sat,
    "dppo_tv": dppo,
    "ctpo": ctpo,
    "mini_rl": mini_rl,
    "decoupled_ppo": decoupled,
    "tba": tba,
}


@pytest.mark.parametrize("spread", [0.003, 0.3])
@pytest.mark.parametrize("name", PUBLISHED)
def test_gradient_is_that_of_the_published_loss(name, spread):
    method = METHODS[name]
    with jax.enable_x64(True):
        data = batches.cast(batches.draw(method, spread=spread), jnp.float64)
        batch, adv = batches.prepare(method, data)
        _, _, got = batches.evaluate(method, data)
        flat = lambda v: jnp.reshape(v, batch.mask_NT.shape)
        x = types.SimpleNamespace(
            A=batch.adv_N[:, None],
            m=batch.mask_NT,
            L=jnp.sum(batch.mask_NT, axis=1),
            rows=jnp.sum(adv.keep_PG),
            old=flat(data.logo_PGT),
            mu=flat(data.logq_PGT),
            ref=flat(data.logref_PGT),
            now=flat(data.logp_PGT),
            group=batch.group_N,
        )
        new = flat(data.logp_PGT)
        want = jax.grad(lambda new: PUBLISHED[name](x, new))(new)
    assert np.abs(want).max() > 0
    np.testing.assert_allclose(
        got.reshape(want.shape), want, rtol=1e-9, atol=1e-12 * np.abs(want).max()
    )
