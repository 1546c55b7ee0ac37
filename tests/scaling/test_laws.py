"""Tests for scaling/laws.py: published values, limits, search space, bounds."""

import numpy as np
import pytest

from scaling import laws

THETA = {"R0": 0.2, "A": 0.61, "B": 1.92, "Cmid": 2542.0}


@pytest.mark.parametrize(
    ("x", "want"),
    [(500, 0.2173), (2542, 0.4050), (10000, 0.5824), (50000, 0.6087), (1e5, 0.6096)],
)
def test_sigmoid_gives_the_published_values(x, want):
    np.testing.assert_allclose(laws.sigmoid(THETA, np.array(x)), want, atol=5e-5)


def test_sigmoid_follows_its_formula():
    x = np.geomspace(1, 1e6, 50)
    want = 0.2 + (0.61 - 0.2) / (1 + (2542 / x) ** 1.92)
    np.testing.assert_allclose(laws.sigmoid(THETA, x), want, rtol=1e-12)


def test_sigmoid_is_exact_at_the_ends_and_undefined_below_zero():
    got = laws.sigmoid(THETA | {"B": 10.0}, np.array([0.0, 1e-300, 1e300, -1.0]))
    np.testing.assert_array_equal(got[:3], [0.2, 0.2, 0.61])
    assert np.isnan(got[3])


def test_sigmoid_broadcasts_over_draws():
    draws = {name: np.array([[value], [value]]) for name, value in THETA.items()}
    draws["A"] = np.array([[0.61], [0.9]])
    x = np.array([500.0, 2542.0, 1e4])
    got = laws.sigmoid(draws, x)
    assert got.shape == (2, 3)
    np.testing.assert_allclose(got[1], laws.sigmoid(THETA | {"A": 0.9}, x))


@pytest.mark.parametrize("parameter", laws.SIGMOID.parameters, ids=lambda p: p.name)
def test_search_stays_inside_the_bounds(parameter):
    box = parameter.box(10.0, 1000.0)
    theta = {"R0": 0.3}
    low = 0.3 if parameter.name == "A" else parameter.low
    low *= 10.0 if parameter.times_x else 1.0
    high = parameter.high * (1000.0 if parameter.times_x else 1.0)
    value = parameter.value(np.linspace(*box, 101), theta)
    assert (np.diff(value) > 0).all()
    assert low * (1 - 1e-12) <= value[0] <= low + 1e-3 * (high - low)
    assert high - 1e-3 * (high - low) <= value[-1] <= high * (1 + 1e-12)
    edges = [parameter.edge(u, box) for u in (box[0], sum(box) / 2, box[1])]
    assert edges == ["low", "", "high"]


def test_a_logit_parameter_is_on_its_bound_within_a_thousandth_of_the_range():
    asymptote = laws.SIGMOID.parameters[1]
    box = asymptote.box(1.0, 2.0)
    for share, want in [(0.9985, ""), (0.9995, "high"), (0.0005, "low")]:
        u = np.log(share / (1 - share))
        np.testing.assert_allclose(
            asymptote.value(u, {"R0": 0.2}), 0.2 + 0.8 * share, rtol=1e-12
        )
        assert asymptote.edge(u, box) == want


def test_a_log_parameter_is_on_its_bound_within_a_hundredth_of_it():
    steepness = laws.SIGMOID.parameters[2]
    box = steepness.box(1.0, 2.0)
    for value, want in [(9.85, ""), (9.95, "high"), (0.102, ""), (0.1005, "low")]:
        assert steepness.edge(np.log(value), box) == want


@pytest.mark.parametrize(
    "wrong",
    [
        {"parameters": laws.SIGMOID.parameters[::-1]},
        {"limit": "B0"},
        {"midpoint": "C"},
    ],
)
def test_a_law_that_contradicts_itself_is_refused(wrong):
    whole = {
        "name": "law",
        "formula": "",
        "parameters": laws.SIGMOID.parameters,
        "predict": laws.sigmoid,
        "source": "",
    }
    laws.Law(**whole)
    with pytest.raises(ValueError):
        laws.Law(**(whole | wrong))
