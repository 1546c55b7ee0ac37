"""What every part is: named, in range, hashable, printed as a flag would set it."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from algorithms import (
    aggregates,
    anchors,
    baselines,
    corrections,
    entropies,
    gates,
    keeps,
    parts,
    penalties,
    ratios,
    scales,
    shapes,
    transforms,
)

TABLES = {
    "shape": shapes.SHAPES,
    "baseline": baselines.BASELINES,
    "scale": scales.SCALES,
    "transform": transforms.TRANSFORMS,
    "keep": keeps.KEEPS,
    "anchor": anchors.ANCHORS,
    "ratio": ratios.RATIOS,
    "gate": gates.GATES,
    "correction": corrections.CORRECTIONS,
    "aggregate": aggregates.AGGREGATES,
    "kl": penalties.PENALTIES,
    "entropy": entropies.ENTROPIES,
}
EVERY = [part for table in TABLES.values() for part in table.values()]


@dataclasses.dataclass(frozen=True)
class NoThing(parts.Part):
    """Does nothing."""


@dataclasses.dataclass(frozen=True)
class NormThing(parts.Part):
    """A name that begins with No and is none."""


@dataclasses.dataclass(frozen=True)
class Deep2Thing(parts.Part):
    """A setting of every kind."""

    share: float = parts.setting(0.5, "in [0, 1]", high=1.0)
    shift: float = parts.setting(0.0, "in [-2, 1e9]", low=-2.0)
    on: bool = parts.setting(False, "a switch", low=2.0)
    free: float = parts.setting(0.0, "no end", low=-math.inf, high=math.inf)
    word: str = parts.setting("x", "a name")
    several: tuple[float, ...] = parts.setting((1.0, 7.0), "more than one", high=2.0)


def test_names_are_those_of_classes():
    assert NoThing().name == "none"
    assert NormThing().name == "norm_thing"
    assert Deep2Thing().name == "deep2_thing"
    assert gates.M2Mask().name == "m2_mask"
    assert ratios.SequenceMean().name == "sequence_mean"
    assert transforms.NonzeroRescale().name == "nonzero_rescale"


def test_a_table_holds_defaults_by_name():
    table = parts.table(NoThing, Deep2Thing)
    assert table == {"none": NoThing(), "deep2_thing": Deep2Thing()}
    for name in TABLES:
        options = TABLES[name]
        assert all(key == part.name for key, part in options.items())
        assert all(part == type(part)() for part in options.values())
    # One of each kind does nothing, but where there is no such thing.
    without = {name for name, table in TABLES.items() if "none" not in table}
    assert without == {"keep", "anchor", "aggregate"}


def test_parts_print_as_name_and_settings():
    assert str(NoThing()) == "none"
    assert str(gates.Clip(high=0.28)) == "clip(low=0.2, high=0.28, dual=0.0)"
    assert (
        str(Deep2Thing(on=True)) == "deep2_thing(share=0.5, shift=0.0, on=True,"
        " free=0.0, word=x, several=(1.0, 7.0))"
    )


def test_a_setting_keeps_default_meaning_and_range():
    fields = {f.name: f for f in dataclasses.fields(Deep2Thing)}
    assert fields["share"].default == 0.5
    assert fields["share"].metadata == {"help": "in [0, 1]", "range": (0.0, 1.0)}
    assert fields["shift"].metadata["range"] == (-2.0, 1e9)
    field = parts.choice({"none": NoThing()}, NoThing(), "which")
    assert field.default == NoThing()
    assert field.metadata == {"help": "which", "options": {"none": NoThing()}}


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(share=1.001), r"deep2_thing\.share=1\.001 is not in \[0\.0, 1\.0\]"),
        (dict(share=-0.001), r"share=-0\.001 is not in"),
        (dict(share=2), r"share=2 is not in"),
        (dict(shift=-3.0), r"shift=-3\.0 is not in \[-2\.0, 1000000000\.0\]"),
        (dict(shift=math.nan), "shift=nan is not in"),
        (dict(shift=math.inf), "shift=inf is not in"),
        (dict(shift=2e9), "shift=2"),
        (dict(free=math.inf), r"free=inf is not in \[-inf, inf\]"),
        (dict(free=math.nan), "free=nan is not in"),
    ],
)
def test_numbers_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Deep2Thing(**settings)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Deep2Thing(), **settings)


def test_what_is_no_number_has_no_range():
    """Ends of a range belong to it; switches, words, tuples and arrays are let be."""
    for share in (0, 0.0, 1, 1.0):
        assert Deep2Thing(share=share).share == share
    assert Deep2Thing(shift=-2.0).shift == -2.0
    assert Deep2Thing(on=True).on is True
    assert Deep2Thing(several=(-5.0, 1e12)).several == (-5.0, 1e12)


def test_traced_settings_pass_and_are_used():
    tokens_of = lambda low: gates.Clip(low=low).low * 2
    # Far outside the range, which a number would not be let in with.
    assert jax.jit(tokens_of)(jnp.float32(-3.0)) == -6.0
    both = jax.vmap(lambda x: Deep2Thing(share=x).share)(jnp.array([0.1, 5.0]))
    assert both.tolist() == pytest.approx([0.1, 5.0])


@pytest.mark.parametrize("part", EVERY, ids=lambda part: type(part).__name__)
def test_every_part_is_a_hashable_value_with_checked_settings(part):
    same = type(part)(**vars(part))
    assert same == part and hash(same) == hash(part) and same is not part
    with pytest.raises(dataclasses.FrozenInstanceError):
        part.low = 1.0
    assert callable(part) and type(part).__doc__
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        low, high = f.metadata["range"]
        assert f.metadata["help"] and low < high
        if isinstance(value, bool | tuple):
            continue
        assert isinstance(value, float) and low <= value <= high
        for bad in (low - 1.0, 2 * high + 1.0, math.nan):
            with pytest.raises(ValueError, match=f"{part.name}.{f.name}={bad} is not"):
                dataclasses.replace(part, **{f.name: bad})


def test_parts_of_unlike_classes_are_unlike():
    """Equal settings are not enough: a compiled function must not be taken twice."""
    assert ratios.SequenceMean() != ratios.SequenceToken()
    assert len({type(part) for part in EVERY}) == len(EVERY) == len(set(EVERY))
