"""Tests for scaling/fit.py: recovery, starts, what is undetermined, coverage."""

import dataclasses

import numpy as np
import pytest

from scaling import fit, laws
from tests.scaling import folders

TRUE = {"R0": 0.2, "A": 0.61, "B": 1.92, "Cmid": 2542.0}
X = np.geomspace(200, 1e5, 12)
GIVEN = {"R0": 0.2}

LINE = laws.Law(
    name="line",
    formula="a / (b x)",
    parameters=(
        laws.Parameter("a", 1e-3, 1e3, "log", "height"),
        laws.Parameter("b", 1e-3, 1e3, "log", "slope"),
    ),
    predict=lambda theta, x: theta["a"] - theta["b"] * x,
    source="a straight line that falls",
)


def noisy(seed, sigma=0.01, x=X, theta=TRUE):
    rng = np.random.default_rng(seed)
    return laws.sigmoid(theta, x) + sigma * rng.normal(size=len(x))


def early(high, seed, count=20):
    """Points up to `high` of a curve whose midpoint is 4000 and asymptote .65."""
    x = np.geomspace(100, high, count)
    theta = {"R0": 0.25, "A": 0.65, "B": 1.2, "Cmid": 4000.0}
    return x, noisy(seed, x=x, theta=theta)


@pytest.mark.parametrize("given", [GIVEN, {}], ids=["R0 given", "R0 free"])
@pytest.mark.parametrize("unit", [1.0, 1e12], ids=["hours", "FLOPs"])
def test_noiseless_points_give_back_the_parameters(given, unit):
    theta = TRUE | {"Cmid": TRUE["Cmid"] * unit}
    got = fit.fit(laws.SIGMOID, X * unit, laws.sigmoid(theta, X * unit), given=given)
    for name, value in theta.items():
        np.testing.assert_allclose(got.theta[name], value, rtol=1e-4)
    assert got.sse < 1e-10 and got.near_best > 1
    assert got.active == got.warnings == ()


@pytest.mark.parametrize("seed", range(3))
def test_noisy_points_are_fitted_at_least_as_well_as_by_the_truth(seed):
    y = noisy(seed)
    got = fit.fit(laws.SIGMOID, X, y, given=GIVEN)
    assert got.sse <= np.sum((laws.sigmoid(TRUE, X) - y) ** 2)
    np.testing.assert_allclose(got.sse, np.sum((got.predict(X) - y) ** 2))
    np.testing.assert_allclose(got.theta["A"], 0.61, atol=0.03)
    np.testing.assert_allclose(got.theta["Cmid"], 2542, rtol=0.2)


@pytest.mark.parametrize("high", [2e3, 1e5])
def test_the_best_objective_does_not_depend_on_the_seed_of_the_starts(high):
    x, y = early(high, seed=1)
    fits = [fit.fit(laws.SIGMOID, x, y, given={"R0": 0.25}, seed=s) for s in range(5)]
    best = np.array([f.sse for f in fits])
    assert np.ptp(best) < 1e-6 * best.min()
    assert min(f.near_best for f in fits) > 1


@pytest.mark.parametrize("seed", range(3))
def test_many_starts_find_the_best_of_many_minima(seed):
    wave = laws.Law(
        name="wave",
        formula="sin(k x)",
        parameters=(laws.Parameter("k", 0.1, 1e3, "log", "frequency"),),
        predict=lambda theta, x: np.sin(theta["k"] * x),
        source="a law with a minimum per period",
    )
    x = np.linspace(0.1, 3, 60)
    got = fit.fit(wave, x, np.sin(25 * x), seed=seed)
    np.testing.assert_allclose(got.theta["k"], 25, rtol=1e-6)
    assert 1 < got.near_best < got.starts


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_scale_of_the_loss_moves_nothing(scale):
    y = noisy(0)
    want = fit.fit(laws.SIGMOID, X, y, given=GIVEN)
    got = fit.fit(laws.SIGMOID, X, y, given=GIVEN, weight=np.full(len(X), scale))
    for name in TRUE:
        np.testing.assert_allclose(got.theta[name], want.theta[name], rtol=1e-5)
    np.testing.assert_allclose(got.sse, scale * want.sse)


@pytest.mark.parametrize("huber", [None, 0.01])
def test_a_weight_of_two_is_the_row_twice(huber):
    y = noisy(0, sigma=0.03)
    weight = np.where(np.arange(len(X)) % 3 == 0, 2, 1)
    got = fit.fit(laws.SIGMOID, X, y, given=GIVEN, weight=weight, huber=huber)
    twice = fit.fit(
        laws.SIGMOID,
        np.repeat(X, weight),
        np.repeat(y, weight),
        given=GIVEN,
        huber=huber,
    )
    for name in TRUE:
        np.testing.assert_allclose(got.theta[name], twice.theta[name], rtol=1e-4)


def test_unusable_rows_are_left_out_and_counted():
    bad_x = np.r_[0.0, -1.0, np.nan, np.inf, 500.0, X]
    y = noisy(0)
    got = fit.fit(laws.SIGMOID, bad_x, np.r_[np.ones(4), np.nan, y], given=GIVEN)
    assert got.theta == fit.fit(laws.SIGMOID, X, y, given=GIVEN).theta
    assert got.points == len(X)
    assert got.excluded == {"x not finite": 2, "x not positive": 2, "y not finite": 1}


def test_one_outlier_does_not_decide_a_robust_fit():
    x, y = np.arange(10.0), 2.0 - np.arange(10.0)
    y[-1] = 5.0
    plain, robust = (fit.fit(LINE, x + 1, y + 10, huber=h) for h in (None, 0.05))
    assert robust.theta["b"] == pytest.approx(1, abs=0.05)
    assert plain.theta["b"] < 0.7


@pytest.mark.parametrize("seed", range(10))
def test_early_points_do_not_determine_the_asymptote(seed):
    x, y = early(2e3, seed)
    got = fit.fit(laws.SIGMOID, x, y, given={"R0": 0.25})
    assert any("not determined" in warning for warning in got.warnings)


@pytest.mark.parametrize("seed", range(5))
def test_late_points_do(seed):
    got = fit.fit(laws.SIGMOID, *early(1e5, seed), given={"R0": 0.25})
    assert got.warnings == ()


def test_points_below_the_midpoint_are_told_even_if_exact():
    x = np.geomspace(100, 2e3, 20)
    got = fit.fit(laws.SIGMOID, x, laws.sigmoid(TRUE, x), given=GIVEN)
    assert any("below the fitted midpoint" in warning for warning in got.warnings)


def test_the_interval_of_early_points_is_wide_and_holds_the_truth():
    x = np.tile(np.geomspace(100, 2e3, 20), 12)
    y = np.concatenate([early(2e3, seed)[1] for seed in range(12)])
    full = fit.fit(laws.SIGMOID, x, y, given={"R0": 0.25})
    bands = fit.bootstrap(
        full,
        x,
        y,
        np.repeat(np.arange(12), 20),
        unit="runs",
        given={"R0": 0.25},
        resamples=40,
        extra_starts=1,
    )
    low, high = bands.theta["A"]
    assert low < 0.65 < high and high - low > 0.3
    assert any("upper bound" in warning for warning in bands.warnings)


@pytest.mark.parametrize("seed", range(5))
def test_the_asymptote_stays_between_the_start_and_one(seed):
    rng = np.random.default_rng(seed)
    rising = fit.fit(laws.SIGMOID, X, np.linspace(0.3, 1.2, 12), given=GIVEN)
    falling = fit.fit(laws.SIGMOID, X, 0.1 + 0.05 * rng.random(12), given=GIVEN)
    assert "A high" in rising.active and rising.theta["A"] <= 1
    assert "A low" in falling.active and falling.theta["A"] >= 0.2
    assert any("lower bound" in warning for warning in falling.warnings)


@pytest.mark.parametrize("y", [np.full(12, 0.2), np.zeros(12)], ids=["flat", "zero"])
def test_a_curve_without_gain_is_flagged(y):
    got = fit.fit(laws.SIGMOID, X, y, given={"R0": y[0]})
    assert got.warnings and np.isfinite(list(got.theta.values())).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"given": {"R1": 0.2}}, "R1"),
        ({"given": {"R0": 1.2}}, "R0 = 1.2"),
        ({"given": {"R0": 0.5, "A": 0.4}}, "A = 0.4"),
        ({"given": {"R0": np.nan}}, "R0 = nan"),
        ({"given": TRUE}, "nothing to fit"),
        ({"y": np.ones(3)}, "not \\[N\\]"),
        ({"x": np.zeros(12)}, "0 usable points for 3"),
    ],
)
def test_wrong_arguments_are_named(change, says):
    arguments = {"x": X, "y": noisy(0), "given": GIVEN} | change
    with pytest.raises(ValueError, match=says):
        fit.fit(laws.SIGMOID, **arguments)


def test_as_many_points_as_parameters_are_told():
    got = fit.fit(laws.SIGMOID, X[::4], noisy(0)[::4], given=GIVEN)
    assert any("no more points than parameters" in w for w in got.warnings)


def test_a_best_fit_that_one_start_found_is_told():
    y = noisy(0)
    got = fit.fit(laws.SIGMOID, X, y, given=GIVEN)
    objective = fit.Objective(
        laws.SIGMOID, X, y, np.ones(12), GIVEN, got.box, got.huber
    )
    cost = float(objective.cost(got.search))
    says = fit.undetermined(objective, got.search, cost, starts=16, near=1)
    assert says == [
        "only 1 of 16 starts reached the best fit, so a better one may exist"
    ]


@pytest.mark.parametrize("huber", [None, 0.01])
def test_jacobian_and_loss_are_derivatives(huber):
    got = fit.fit(laws.SIGMOID, X, noisy(0), given=GIVEN)
    weight = np.linspace(0.5, 2, 12)
    objective = fit.Objective(
        laws.SIGMOID, X, noisy(0, sigma=0.05), weight, GIVEN, got.box, huber
    )
    u, step = got.search, 1e-5 * np.eye(3)
    slope = [(objective.cost(u + h) - objective.cost(u - h)) / 2e-5 for h in step]
    square = objective.residuals(u) ** 2
    gradient = (
        2
        * (objective.loss(square)[1] * objective.residuals(u))
        @ (objective.jacobian(u))
    )
    np.testing.assert_allclose(gradient, slope, rtol=1e-5)
    moved = (objective.loss(square * 1.0001) - objective.loss(square * 0.9999))[:2]
    np.testing.assert_allclose(
        moved / (2e-4 * square), objective.loss(square)[1:], rtol=1e-3, atol=1e-8
    )
    if huber:
        assert (objective.loss(square)[1] < 1).any()


def by_problem(seed, problems=80, samples=4, compute=X):
    """Rows (x, y, unit), the score before training by unit, and the curve."""
    correct_EP = folders.successes(np.r_[0.0, compute], problems, samples, seed, TRUE)
    rate_EP = correct_EP / samples
    x = np.repeat(compute, problems)
    unit = np.tile(np.arange(problems), len(compute))
    base = dict(enumerate(rate_EP[0].tolist()))
    return x, rate_EP[1:].ravel(), unit, base, rate_EP.mean(axis=1)


def problem_bands(population, **options):
    x, y, unit, base, mean = by_problem(population)
    full = fit.fit(laws.SIGMOID, X, mean[1:], given={"R0": mean[0]}, starts=4)
    return full, fit.bootstrap(
        full, x, y, unit, unit="problems", given={"R0": base}, **options
    )


def test_resampled_problems_cover_the_truth():
    """Nominal 90%; 60 repetitions, so 75% is three standard errors below."""
    grid = np.array([1e3, 4e3, 1e5])
    truth = laws.sigmoid(TRUE, grid)
    inside = []
    for seed in range(60):
        _, bands = problem_bands(
            seed, grid=grid, resamples=24, extra_starts=0, level=0.9, seed=seed
        )
        held = bands.theta["R0"]
        hits = (bands.low <= truth) & (truth <= bands.high)
        inside.append([*hits, held[0] <= 0.2 <= held[1]])
    assert (np.mean(inside, axis=0) >= 0.75).all()
    assert np.mean(inside) < 0.99


def test_resampled_runs_cover_the_truth_and_rows_would_not():
    """Six runs whose points share an offset: what rows miss and runs do not."""
    hits = {"runs": [], "rows": []}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        y = 5 + np.repeat(0.05 * rng.normal(size=6), 12) - np.tile(X, 6) * 1e-3
        y += 0.01 * rng.normal(size=72)
        full = fit.fit(LINE, np.tile(X, 6), y, given={"b": 1e-3}, starts=2)
        for name, unit in [("runs", np.repeat(range(6), 12)), ("rows", range(72))]:
            bands = fit.bootstrap(
                full,
                np.tile(X, 6),
                y,
                unit,
                unit=name,
                given={"b": 1e-3},
                resamples=30,
                extra_starts=0,
            )
            low, high = bands.theta["a"]
            hits[name].append(low <= 5 <= high)
    assert np.mean(hits["runs"]) >= 0.75
    assert np.mean(hits["rows"]) <= 0.6


@pytest.mark.parametrize("huber", [None, 0.05])
def test_a_refit_is_the_fit_to_the_drawn_rows(huber):
    """Also where some units have rows at more x than others."""
    x, y, unit, base, _ = by_problem(0, problems=12)
    kept = (unit < 2) | (x < 3e3)
    x, y, unit = x[kept], y[kept], unit[kept]
    full = fit.fit(laws.SIGMOID, x, y, given={"R0": 0.2}, huber=huber)
    bands = fit.bootstrap(
        full, x, y, unit, unit="problems", given={"R0": base}, resamples=1, seed=0
    )
    drawn = np.random.default_rng(0).multinomial(12, np.full(12, 1 / 12))
    ids = np.repeat(range(12), drawn)
    rows = np.concatenate([np.flatnonzero(unit == i) for i in ids])
    given = {"R0": float(np.mean([base[i] for i in ids]))}
    want = fit.fit(laws.SIGMOID, x[rows], y[rows], given=given, huber=huber)
    got = {name: values[0] for name, values in bands.draws.items()}
    seen = np.unique(x[rows])
    np.testing.assert_allclose(
        laws.sigmoid(got, seen), laws.sigmoid(want.theta, seen), atol=1e-3
    )


def test_bands_hold_the_curve_and_tighten_with_problems():
    full, bands = problem_bands(0, resamples=40)
    assert bands.units == 80 and bands.resamples == 40 and bands.unit == "problems"
    assert (bands.low <= full.predict(bands.x)).all()
    assert (full.predict(bands.x) <= bands.high).all()
    np.testing.assert_array_equal(bands.x, X)
    x, y, unit, base, mean = by_problem(0, problems=1280)
    many = fit.fit(laws.SIGMOID, X, mean[1:], given={"R0": mean[0]})
    tight = fit.bootstrap(
        many, x, y, unit, unit="problems", given={"R0": base}, resamples=40
    )
    ratio = (tight.high - tight.low) / (bands.high - bands.low)
    np.testing.assert_allclose(np.median(ratio), 0.25, atol=0.1)


def test_the_same_seed_gives_the_same_bands():
    one, two = (problem_bands(0, resamples=10, seed=3)[1] for _ in range(2))
    np.testing.assert_array_equal(one.low, two.low)
    assert one.theta == two.theta
    assert problem_bands(0, resamples=10, seed=4)[1].theta != one.theta


def test_bootstrap_refuses_rows_without_units():
    x, y, unit, base, mean = by_problem(0)
    full = fit.fit(laws.SIGMOID, X, mean[1:], given={"R0": mean[0]})

    def run(units, given=None):
        given = {"R0": base} if given is None else given
        return fit.bootstrap(full, x, y, units, unit="problems", given=given)

    with pytest.raises(TypeError):
        fit.bootstrap(full, x, y, unit="problems", given={"R0": base})
    with pytest.raises(ValueError, match="unit of every row"):
        run(None)
    with pytest.raises(ValueError, match="not \\[N\\]"):
        run(unit[:-1])
    with pytest.raises(ValueError, match="at least 2"):
        run(np.zeros_like(unit))
    with pytest.raises(ValueError, match="given"):
        run(unit, given={})
    with pytest.raises(ValueError, match="unit 79"):
        run(unit, given={"R0": {u: 0.2 for u in range(79)}})


def test_few_units_are_told():
    y = np.concatenate([noisy(seed) for seed in range(3)])
    x, unit = np.tile(X, 3), np.repeat(["a", "b", "c"], 12)
    full = fit.fit(laws.SIGMOID, x, y, given=GIVEN)
    bands = fit.bootstrap(
        full, x, y, unit, unit="seeds", given=GIVEN, resamples=10, extra_starts=0
    )
    assert any("3 seeds are few" in warning for warning in bands.warnings)


def test_results_are_frozen():
    got = fit.fit(laws.SIGMOID, X, noisy(0), given=GIVEN)
    with pytest.raises(dataclasses.FrozenInstanceError):
        got.sse = 0.0
