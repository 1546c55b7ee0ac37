"""Rows of an update for tests of token rules, and how a gate is called on them."""

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import gates, ratios
from algorithms import tokens as tokens_lib

BOTH = np.array([1.0, -1.0])
TOKEN = ratios.Token()


def gate(logp_NT, logo_NT, mask_NT, adv_N, part, ratio=TOKEN):
    """A gate's factors on these rows; 1 off the mask, where they are of no account."""
    tokens = tokens_lib.of(logp_NT, logo_NT, mask_NT, adv_N)
    return jnp.where(mask_NT, part(ratio(tokens), tokens), 1.0)


def coef(logp_NT, logo_NT, mask_NT, adv_N, part, ratio=TOKEN):
    """gate * ratio * advantage, as the loss puts it together; 0 off the mask."""
    tokens = tokens_lib.of(logp_NT, logo_NT, mask_NT, adv_N)
    log_ratio_NT = ratio(tokens)
    gate_NT = part(log_ratio_NT, tokens)
    ratio_NT = jnp.exp(jnp.clip(log_ratio_NT, -20.0, 20.0))
    return jnp.where(mask_NT, gate_NT * ratio_NT * tokens.adv_N[:, None], 0.0)


def at(log_ratio, adv, mask=None):
    """Arguments of `gate` for these log ratios; the anchor's log-probability is 0."""
    log_ratio_NT = np.atleast_2d(np.asarray(log_ratio, float))
    adv_N = np.broadcast_to(np.asarray(adv, float), log_ratio_NT.shape[:1])
    mask_NT = np.ones(log_ratio_NT.shape, bool)
    if mask is not None:
        mask_NT = np.broadcast_to(np.asarray(mask, bool), log_ratio_NT.shape)
    return log_ratio_NT, np.zeros_like(log_ratio_NT), mask_NT, adv_N


def probabilities(new, old, adv):
    """Arguments of `gate` for rows that all hold these probabilities, one per adv."""
    adv_N = np.asarray(adv, float)
    shape = (adv_N.size, len(new))
    logp_NT, logo_NT = (np.log(np.broadcast_to(p, shape)) for p in (new, old))
    return logp_NT, logo_NT, np.ones(shape, bool), adv_N


def random(seed=0, n=6, width=9, scale=0.4):
    """Ragged rows with holes: one empty, one without advantage, one of one token."""
    rng = np.random.default_rng(seed)
    logo_NT = -rng.exponential(size=(n, width)) - 0.01
    logp_NT = np.minimum(logo_NT + scale * rng.normal(size=(n, width)), -1e-3)
    mask_NT = rng.random((n, width)) < 0.8
    mask_NT[0] = False
    mask_NT[-1] = np.arange(width) == 2
    adv_N = rng.normal(size=n)
    adv_N[-2] = 0.0
    return logp_NT, logo_NT, mask_NT, adv_N


def x64(fn, *args, **fixed):
    """fn in float64, as NumPy."""
    with jax.enable_x64(True):
        return np.asarray(fn(*map(jnp.asarray, args), **fixed))


NAMES = sorted(gates.GATES)
