"""Which parts may stand together, and what a method says of itself."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import pytest

from algorithms import (
    aggregates,
    anchors,
    baselines,
    corrections,
    gates,
    keeps,
    methods,
    ratios,
    scales,
    shapes,
    transforms,
)
from algorithms.method import Method

GRPO = methods.METHODS["grpo"]

# Written out, so that a part that changes its mind is noticed here.
WITHOUT_RATIO = {"none", "live", "tv", "kl", "ipo", "prefix_budget"}
WHOLE = {"sequence_mean", "sequence_sum"}
VARYING_GATES = {"envelope", "widening", "live", "tv", "kl", "ipo"}
VARYING_GATES |= {"probability", "prefix_budget"}
VARYING_CORRECTIONS = {"token_truncate", "token_mask", "token_reject"}
VARYING_CORRECTIONS |= {"sparse_reject", "total_truncate"}
ACROSS = {"none", "batch_mean", "shrunk"}
WITHIN = {"std", "terms_std", "group_mean"}


def refused(**parts):
    """The message, or None."""
    try:
        dataclasses.replace(GRPO, **parts)
    except ValueError as error:
        return str(error)
    return None


def test_a_default_method_is_grpo():
    assert Method() == GRPO
    assert GRPO.baseline == baselines.Mean() and GRPO.scale == scales.Std()
    assert GRPO.gate == gates.Clip(0.2, 0.2) and GRPO.ratio == ratios.Token()
    assert GRPO.aggregate == aggregates.SequenceMean()
    assert not GRPO.kl.active and not GRPO.entropy.active
    assert GRPO.max_advantage == 0 and GRPO.refills == 0


def test_ratios_gates_and_corrections_that_contradict_each_other():
    """Every triple: refused for one of three reasons, and otherwise not."""
    triples = itertools.product(
        ratios.RATIOS.values(),
        gates.GATES.values(),
        corrections.CORRECTIONS.values(),
    )
    for ratio, gate, correction in triples:
        got = refused(ratio=ratio, gate=gate, correction=correction)
        if ratio.name == "none" and gate.name not in WITHOUT_RATIO:
            assert got == (
                f"objective.gate={gate.name} never acts where objective.ratio=none is"
                " 1 everywhere; use objective.gate=none or another ratio"
            )
            continue
        slot = None
        if ratio.name in WHOLE and gate.name in VARYING_GATES:
            slot, part = "gate", gate
        elif ratio.name in WHOLE and correction.name in VARYING_CORRECTIONS:
            slot, part = "correction", correction
        if slot is None:
            assert got is None, (ratio, gate, correction)
            continue
        assert got == (
            f"objective.{slot}={part.name} varies inside a response, but"
            f" objective.ratio={ratio.name} weighs a response as a whole; use"
            f" objective.ratio=sequence_token, or a {slot} that treats a response's"
            " tokens alike"
        )


def test_baselines_and_scales_that_contradict_each_other():
    for baseline, scale in itertools.product(
        baselines.BASELINES.values(), scales.SCALES.values()
    ):
        got = refused(baseline=baseline, scale=scale)
        if baseline.name not in ACROSS or scale.name not in WITHIN:
            assert got is None, (baseline, scale)
            continue
        assert got == (
            f"objective.scale={scale.name} is a deviation within a group, 0 where its"
            f" rewards are equal, but objective.baseline={baseline.name} gives such a"
            " group advantages all the same; use objective.scale=none or batch_std"
        )


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(max_advantage=-1.0), r"max_advantage=-1.0 is not in [0.0, 1000000000.0]"),
        (dict(max_advantage=float("nan")), "max_advantage=nan is not in"),
        (dict(refills=-1), "refills=-1 is not in"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    assert refused(**settings).startswith(message)
    assert refused(max_advantage=0.0, refills=0) is None


def test_a_limit_on_advantages_may_be_traced():
    cut = lambda x: dataclasses.replace(GRPO, max_advantage=x).max_advantage
    assert jax.jit(cut)(jnp.float32(-2.0)) == -2.0


def test_a_method_is_a_value():
    """Hashable, so that one compiled function serves equal methods and no others."""
    same = dataclasses.replace(GRPO, gate=gates.Clip())
    assert same == GRPO and hash(same) == hash(GRPO) and same is not GRPO
    other = dataclasses.replace(GRPO, ratio=ratios.SequenceMean())
    assert dataclasses.replace(GRPO, ratio=ratios.SequenceToken()) != other
    assert len(set(methods.METHODS.values())) == len(methods.METHODS)
    width = jax.jit(lambda x, method: x * method.gate.low, static_argnums=1)
    for method in (GRPO, same, dataclasses.replace(GRPO, gate=gates.Clip(low=0.3))):
        assert width(1.0, method) == pytest.approx(method.gate.low)
    assert width._cache_size() == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        GRPO.refills = 1


def test_labels_tell_a_method_from_its_row():
    """Changed slots in the order they act, with the settings they came to have."""
    label = lambda **parts: methods.label(dataclasses.replace(GRPO, **parts))
    assert label() == "grpo"
    assert label(aggregate=aggregates.TokenMean()) == "grpo aggregate=token_mean"
    assert (
        label(gate=gates.Clip(high=0.28), anchor=anchors.Rescored(), max_advantage=5.0)
        == "grpo anchor=rescored gate=clip(low=0.2, high=0.28, dual=0.0)"
        " max_advantage=5.0"
    )
    # What GRPO has may be a change to another row; what equals the row is none.
    dapo = methods.METHODS["dapo"]
    assert methods.changes(dataclasses.replace(dapo, refills=0)) == ("refills=0",)
    assert methods.changes(dataclasses.replace(dapo, gate=gates.Clip(high=0.28))) == ()


def test_every_row_has_a_source_and_its_own_name():
    assert methods.NOTES.keys() == methods.METHODS.keys()
    for name, row in methods.NOTES.items():
        assert row.method is methods.METHODS[name] and row.method.name == name
        assert row.source and not row.departs.endswith(" ")


@pytest.mark.parametrize(
    "parts, want",
    [
        (dict(), False),
        (dict(baseline=baselines.Median()), False),
        (dict(keep=keeps.AllButPivot()), False),
        (dict(baseline=baselines.Median(), keep=keeps.AllButPivot()), True),
        (dict(baseline=baselines.LowerMedian(), keep=keeps.AllButPivot()), False),
    ],
)
def test_only_a_median_that_is_dropped_must_exist(parts, want):
    assert dataclasses.replace(GRPO, **parts).drops_median is want


@pytest.mark.parametrize(
    "parts, want",
    [
        (dict(), False),
        (dict(shape=shapes.Overlong(), transform=transforms.Amplify()), False),
        (dict(shape=shapes.HierarchicalBudget()), True),
        (dict(transform=transforms.BudgetPush()), True),
    ],
)
def test_slots_differ_by_shape_or_transform(parts, want):
    assert dataclasses.replace(GRPO, **parts).by_slot is want


@pytest.mark.parametrize("value", ["tokn", None, ""])
def test_what_is_no_part_is_refused(value):
    with pytest.raises(ValueError, match="objective.ratio=.* is no part; .* token, "):
        Method(ratio=value)
