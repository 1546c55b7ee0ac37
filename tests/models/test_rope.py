"""Tests for models/rope.py: closed forms, worked cases, relative positions."""

import jax.numpy as jnp
import numpy as np
import pytest

from models import rope
from models.config import RopeConfig
from tests import references

SCALED = [f for f in references.FAMILIES.values() if f["rope"]["scaling"] != "none"]


@pytest.mark.parametrize("spec", references.FAMILIES.values(), ids=references.FAMILIES)
def test_angles_follow_the_closed_form(spec):
    """Far positions too; float32 angles of up to 8192 radians are good to 1e-3."""
    H, position = spec["head_dim"], np.array([[0, 1, 7], [100, 4096, 8192]])
    cos, sin = rope.angles(RopeConfig(**spec["rope"]), H, jnp.asarray(position))
    assert cos.dtype == sin.dtype == jnp.float32
    for at in np.ndindex(position.shape):
        one_two = np.repeat([1.0, 2.0], H // 2)
        want = references.turn(one_two, position[at], spec["rope"])
        got = rope.rotate(jnp.asarray(one_two)[None], cos[at], sin[at])[0]
        np.testing.assert_allclose(got, want, atol=3e-3 if position[at] > 100 else 3e-5)


@pytest.mark.parametrize("spec", SCALED, ids=lambda s: s["rope"]["scaling"])
def test_scaling_slows_the_slow_pairs_by_its_factor(spec):
    cfg, H = RopeConfig(**spec["rope"]), spec["head_dim"]
    ratio = rope.frequencies(cfg, H) / rope.frequencies(RopeConfig(cfg.theta), H)
    first = 1 / cfg.factor if cfg.scaling == "linear" else 1.0
    np.testing.assert_allclose(ratio[[0, -1]], [first, 1 / cfg.factor])
    assert (np.diff(ratio) <= 1e-12).all()


LLAMA3 = [
    (64, 32.0, 15, [0.605573, 0.303743, 0.103448]),
    (128, 8.0, 29, [0.828168, 0.643743, 0.493507, 0.371122, 0.271425, 0.190211]),
]


@pytest.mark.parametrize("head_dim, factor, kept, between", LLAMA3)
def test_llama3_worked_case(head_dim, factor, kept, between):
    cfg = RopeConfig(theta=5e5, scaling="llama3", factor=factor)
    ratio = rope.frequencies(cfg, head_dim) / rope.frequencies(
        RopeConfig(5e5), head_dim
    )
    scaled = head_dim // 2 - kept - len(between)
    want = np.r_[np.ones(kept), between, np.full(scaled, 1 / factor)]
    np.testing.assert_allclose(ratio, want, atol=1e-6)


MAGNITUDES = [
    ("yarn", 4.0, 0.0, 0.0, 1.138629),
    ("yarn", 32.0, 0.0, 0.0, 1.346574),
    ("yarn", 64.0, 0.0, 0.0, 1.415888),
    ("yarn", 128.0, 0.0, 0.0, 1.485203),
    ("yarn", 16.0, 1.0, 1.0, 1.0),
    ("yarn", 40.0, 0.707, 0.707, 1.0),
    ("yarn", 40.0, 1.0, 0.0, 1.368888),
    ("yarn", 1.0, 0.0, 0.0, 1.0),
    ("llama3", 64.0, 0.0, 0.0, 1.0),
    ("linear", 64.0, 0.0, 0.0, 1.0),
]


@pytest.mark.parametrize("scaling, factor, mscale, all_dim, want", MAGNITUDES)
def test_magnitude_scales_cos_and_sin(scaling, factor, mscale, all_dim, want):
    cfg = RopeConfig(
        scaling=scaling, factor=factor, mscale=mscale, mscale_all_dim=all_dim
    )
    np.testing.assert_allclose(rope.magnitude(cfg), want, atol=1e-6)
    cos, sin = rope.angles(cfg, 8, jnp.array([3]))
    np.testing.assert_allclose(cos**2 + sin**2, np.full((1, 4), want**2), rtol=1e-5)


HALVES = [([1.0, 0, 0, 0], [0.5403, 0, 0.8415, 0]), ([0, 1.0, 0, 0], [0, 1, 0, 0.01])]


@pytest.mark.parametrize("x, want", HALVES)
def test_pairs_are_half_a_head_apart(x, want):
    cos, sin = rope.angles(RopeConfig(theta=1e4), 4, jnp.array([1]))
    got = rope.rotate(jnp.array([[x]]), cos, sin)[0, 0]
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("spec", references.FAMILIES.values(), ids=references.FAMILIES)
def test_scores_depend_on_the_distance_only(spec):
    q, k = np.random.default_rng(0).normal(size=(2, spec["head_dim"]))
    cfg = RopeConfig(**spec["rope"])

    def turned(x, position):
        cos, sin = rope.angles(cfg, spec["head_dim"], jnp.asarray(position))
        return rope.rotate(jnp.broadcast_to(x, (3, 1, len(x))), cos, sin)[:, 0]

    start = np.array([0, 2, 50])
    near, far = (np.sum(turned(q, start + d) * turned(k, start), -1) for d in (3, 4))
    np.testing.assert_allclose(near, np.full(3, near[0]), rtol=1e-4, atol=1e-5)
    assert abs(near[0] - far[0]) > 1e-2
