"""What every part that maps groups obeys, whatever its kind."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import baselines, groups, keeps, scales, transforms
from algorithms.baselines import BASELINES
from algorithms.keeps import KEEPS
from algorithms.scales import SCALES
from algorithms.shapes import SHAPES
from algorithms.transforms import TRANSFORMS
from tests.algorithms import scored

PARTS = [
    *SHAPES.values(),
    *BASELINES.values(),
    *SCALES.values(),
    *TRANSFORMS.values(),
    *KEEPS.values(),
    baselines.Shrunk(leave_one_out=True),
    baselines.IntervalMedian(mean=True),
    scales.Std(population=True),
    scales.TermsStd(population=True),
    scales.Mad(lower=True),
    transforms.Uniqueness(positives_only=True),
    keeps.Everything(drop_constant=True, drop_truncated=True),
    keeps.AllButPivot(drop_constant=True),
]
# Statistics of the batch by definition.
COUPLED = (baselines.BatchMean, scales.BatchStd)

every_part = pytest.mark.parametrize("part", PARTS, ids=str)


def same(got, want, **tolerance):
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6, **tolerance)


@every_part
def test_no_group_sees_another(part):
    batch = scored.random_groups()
    if isinstance(part, COUPLED):
        return
    whole = scored.run(part, batch)
    for p in range(batch.reward_PG.shape[0]):
        alone = scored.run(part, scored.take(batch, slice(p, p + 1)))
        for x, y in zip(alone, whole, strict=True):
            np.testing.assert_array_equal(x, y[..., p : p + 1, :])


@every_part
@pytest.mark.parametrize("seed", range(3))
def test_permuting_problems_and_slots_permutes_what_comes_out(part, seed):
    rng = np.random.default_rng(seed)
    batch = scored.random_groups(seed)
    rows, slots = rng.permutation(7), rng.permutation(6)
    got = scored.run(part, scored.take(batch, rows))
    same(got, [x[..., rows, :] for x in scored.run(part, batch)])
    got = scored.run(part, scored.take(batch, slots=slots))
    want = [x[..., slots] for x in scored.run(part, batch)]
    if getattr(part, "by_slot", False):
        assert not np.allclose(got[0], want[0], atol=1e-3)
    elif not isinstance(part, keeps.AllButPivot):  # Of ties it takes the lowest slot.
        same(got, want)


@every_part
@pytest.mark.parametrize("junk", [-99.0, np.nan, np.inf, -np.inf, 3e38])
def test_what_invalid_slots_hold_is_inert(part, junk):
    plain = scored.random_groups()
    other = scored.random_groups(junk=junk)
    assert (plain.length_PG != other.length_PG).any() or junk in (np.inf, 3e38)
    keep = lambda x: np.where(plain.valid_PG, x, 0)
    got, want = scored.run(part, other), scored.run(part, plain)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(keep(x), keep(y))
        assert np.isfinite(x).all()


@every_part
@pytest.mark.parametrize("run", [scored.run, scored.jitted])
def test_no_nan_arises_on_the_way(part, run):
    empty = scored.random_groups()
    never = jnp.zeros_like(empty.valid_PG)
    empty = empty._replace(valid_PG=never, reward_PG=0 * empty.reward_PG)
    zero = empty._replace(valid_PG=~never, terms_KPG=0 * empty.terms_KPG)
    with jax.debug_nans(True):
        for batch in (scored.random_groups(), empty, zero):
            for prior_P in (batch.prior_P, None):
                for x in run(part, batch._replace(prior_P=prior_P)):
                    assert np.isfinite(x).all()


@every_part
def test_double_precision_is_kept_and_half_is_widened(part):
    with jax.enable_x64(True):
        wide = scored.run(part, scored.random_groups(dtype=np.float64))
    half = scored.run(part, scored.random_groups(dtype=jnp.bfloat16))
    single = scored.run(part, scored.random_groups())
    for x, y, z in zip(wide, half, single, strict=True):
        assert x.dtype in (bool, jnp.float64) and y.dtype == z.dtype
        assert z.dtype in (bool, jnp.float32)
        np.testing.assert_allclose(x, z, rtol=1e-5, atol=2e-6)


def settings(part):
    return [
        f.name
        for f in dataclasses.fields(part)
        if isinstance(getattr(part, f.name), float)
    ]


@pytest.mark.parametrize(
    "part, name",
    [(part, name) for part in PARTS for name in settings(part)],
    ids=lambda x: str(x),
)
def test_a_setting_may_be_traced_and_mapped_over(part, name):
    batch = scored.random_groups(3)
    value = getattr(part, name)
    low, high = part.__dataclass_fields__[name].metadata["range"]
    values = [value, 0.5 * value + 0.25 * min(1.0, value)]
    assert all(low <= v <= high for v in values)
    at = lambda v: scored.run(dataclasses.replace(part, **{name: v}), batch)
    mapped = jax.jit(jax.vmap(at))(jnp.asarray(values))
    for i, v in enumerate(values):
        same([x[i] for x in mapped], at(v))


def test_terms_add_up_to_the_reward_and_leave_success_alone():
    for shape in SHAPES.values():
        batch = scored.random_groups()
        shaped = shape(batch)
        np.testing.assert_array_equal(shaped.reward_PG, shaped.terms_KPG.sum(axis=0))
        np.testing.assert_array_equal(shaped.success_PG, batch.success_PG)
        np.testing.assert_array_equal(shaped.terms_KPG[:, ~batch.valid_PG], 0)


def test_success_is_one_or_more_before_any_shaping():
    batch = groups.of(np.array([[0.0, 0.99, 1.0, 2.0, 5.0]]), np.arange(5)[None] < 4)
    assert batch.success_PG.tolist() == [[False, False, True, True, False]]
    assert batch.terms_KPG.shape == (1, 1, 5) and batch.reward_PG[0, 4] == 0


def test_groups_of_unlike_shapes_are_refused():
    reward, valid = np.ones((2, 3), np.float32), np.ones((2, 3), bool)
    for bad in (
        dict(valid_PG=reward),
        dict(valid_PG=valid[:1]),
        dict(length_PG=np.ones((2, 2), int)),
        dict(cluster_PG=np.ones((3, 2), int)),
        dict(prior_P=np.ones(3)),
    ):
        with pytest.raises(AssertionError):
            groups.of(**{"reward_PG": reward, "valid_PG": valid, **bad})
