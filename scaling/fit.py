"""Fitting a law to points, and saying how far the result can be trusted.

`fit` finds the least-squares parameters and says in words what the points do not
determine. `bootstrap` refits on resampled units. The unit is whatever is
independent of its like: a run, a seed, a held-out problem. It is never the row,
since the points of one run share its seed and its held-out problems, and an interval
that treats them as independent is several times too narrow (arXiv:2404.10102).
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np
from scipy import optimize, stats

from scaling import laws, runs

# Candidates evaluated, all at once, for each start that is then refined.
CANDIDATES = 32

# Below this many units a percentile interval is known to be too narrow.
FEW_UNITS = 10


class TooFewPoints(ValueError):
    """Fewer usable points than free parameters."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted law.

    Attributes:
      law: what was fitted.
      theta: value of every parameter by name, given ones included.
      given: names of the parameters that were not fitted.
      sse: weighted sum of squared residuals, in units of y squared.
      points: rows that entered.
      excluded: rule in words to the rows that it kept out (`runs.usable_rows`).
      starts: starts that were refined.
      near_best: how many of them ended within 1% of the best objective.
      active: bounds that the result lies on, such as "A high".
      warnings: sentences about what the points do not determine.
      search: free parameters in search space, the start of every refit.
      box: bounds in search space by name of free parameter.
      huber: residual beyond which the loss was linear, None for plain squares.
    """

    law: laws.Law
    theta: Mapping[str, float]
    given: tuple[str, ...]
    sse: float
    points: int
    excluded: Mapping[str, int]
    starts: int
    near_best: int
    active: tuple[str, ...]
    warnings: tuple[str, ...]
    search: np.ndarray
    box: Mapping[str, tuple[float, float]]
    huber: float | None

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The law's prediction at x."""
        return self.law.predict(self.theta, x)


@dataclasses.dataclass(frozen=True)
class Bands:
    """Percentile intervals over refits on resampled units.

    Attributes:
      unit: what was resampled, in words.
      units: how many there are.
      resamples: refits made.
      level: nominal coverage of every interval.
      theta: name to (low, high).
      draws: name to the value in each refit, [resamples].
      x: where predictions were made, [X].
      low: lower bound of the prediction, [X].
      high: upper bound.
      at_bound: bound, such as "A high", to the share of refits that lie on it.
      warnings: sentences.
    """

    unit: str
    units: int
    resamples: int
    level: float
    theta: Mapping[str, tuple[float, float]]
    draws: Mapping[str, np.ndarray]
    x: np.ndarray
    low: np.ndarray
    high: np.ndarray
    at_bound: Mapping[str, float]
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Objective:
    """Residuals of a law on clean points as a function of its search space.

    Residuals are divided by the spread of y, so that the tolerances of the search
    mean the same whatever the unit of y and the number of points. They are summed,
    never averaged: an average stops the search early.
    """

    law: laws.Law
    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    given: Mapping[str, float]
    box: Mapping[str, tuple[float, float]]
    huber: float | None
    pinned: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def free(self) -> list[str]:
        """Names of what is searched, in order."""
        return [name for name in self.box if name not in self.pinned]

    @functools.cached_property
    def spread(self) -> float:
        """Root of the weighted sum of squares of y about its mean, never 0."""
        mean = np.sum(self.weight * self.y) / np.sum(self.weight)
        total = float(np.sum(self.weight * (self.y - mean) ** 2))
        return float(np.sqrt(total)) if total > 0 else 1.0

    @functools.cached_property
    def scale(self) -> np.ndarray:
        """What a miss is multiplied by, [N]."""
        return np.sqrt(self.weight) / self.spread

    def theta(self, u: np.ndarray) -> dict[str, Any]:
        """Parameters from search space; u is [..., K], each value is [...]."""
        place = {name: u[..., k] for k, name in enumerate(self.free)}
        theta: dict[str, Any] = {}
        for p in self.law.parameters:
            if p.name in self.given:
                theta[p.name] = self.given[p.name]
            else:
                where = self.pinned.get(p.name, place.get(p.name, np.nan))
                theta[p.name] = p.value(where, theta)
        return theta

    def residuals(self, u: np.ndarray) -> np.ndarray:
        """Scaled residuals; u is [..., K], the result [..., N]."""
        theta = {k: np.asarray(v)[..., None] for k, v in self.theta(u).items()}
        return self.scale * (self.law.predict(theta, self.x) - self.y)

    def jacobian(self, u: np.ndarray) -> np.ndarray:
        """Central differences, [N, K], from one call of the law."""
        step = 1e-6 * np.eye(len(u))
        return (self.residuals(u + step) - self.residuals(u - step)).T / 2e-6

    def loss(self, square: np.ndarray) -> np.ndarray:
        """Loss of squared residuals [..., N] and two derivatives, [3, ..., N]."""
        if self.huber is None:
            return np.stack([square, np.ones_like(square), np.zeros_like(square)])
        # The weight moves the threshold, so that it counts rows and does not make
        # one row look further away.
        bend = self.weight * (self.huber / self.spread) ** 2
        inside = square <= bend
        square = np.where(inside, np.maximum(square, 1e-300), square)
        root = np.sqrt(bend / square)
        return np.stack(
            [
                np.where(inside, square, 2 * root * square - bend),
                np.where(inside, 1.0, root),
                np.where(inside, 0.0, -0.5 * root / square),
            ]
        )

    def cost(self, u: np.ndarray) -> np.ndarray:
        """What is minimised; u is [..., K], the result [...]."""
        return np.sum(self.loss(self.residuals(u) ** 2)[0], axis=-1)

    def starts(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """[count, K]: each the best of `CANDIDATES` in the middle of the box."""
        low, high = np.array([self.box[name] for name in self.free]).T
        share = rng.uniform(0.2, 0.8, (count, CANDIDATES, len(low)))
        u = low + (high - low) * share
        best = np.argmin(self.cost(u), axis=1)
        return u[np.arange(count), best]

    def minimise(self, start: np.ndarray) -> tuple[np.ndarray, float]:
        """The nearest minimum inside the box and its cost."""
        if not len(start):
            return start, float(self.cost(start))
        low, high = np.array([self.box[name] for name in self.free]).T
        result = optimize.least_squares(
            self.residuals,
            np.clip(start, low + 1e-9, high - 1e-9),
            jac=self.jacobian,
            bounds=(low, high),
            ftol=1e-10,
            xtol=1e-10,
            gtol=1e-10,
            max_nfev=200,
            loss="linear" if self.huber is None else self.loss,
        )
        return result.x, 2 * float(result.cost)


def fit(
    law: laws.Law,
    x: np.ndarray,
    y: np.ndarray,
    *,
    weight: np.ndarray | None = None,
    given: Mapping[str, float] | None = None,
    huber: float | None = None,
    starts: int = 16,
    seed: int = 0,
) -> Fit:
    """Least squares from several seeded starts, inside the law's bounds.

    Args:
      law: what to fit.
      x: compute, [N]. Rows where it is not finite and positive are excluded and
        counted: the base policy, at compute 0, belongs in `given` as R0.
      y: observations, [N]; rows that are not finite are excluded and counted.
      weight: of each squared residual, [N]; ones if None.
      given: parameters held fixed, by name.
      huber: residual, in units of y, beyond which the loss grows linearly, for when
        a bad run must not decide the fit; None for plain squares.
      starts: how many are refined. The result does not depend on their seed as long
        as several reach the best objective, which `near_best` says.
      seed: of the starts.

    Raises:
      TooFewPoints: fewer usable points than free parameters.
      ValueError: shapes differ, `given` names no parameter or a value outside its
        bounds, or nothing is left to fit.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    weight = np.ones_like(y) if weight is None else np.asarray(weight, np.float64)
    if x.ndim != 1 or not x.shape == y.shape == weight.shape:
        raise ValueError(f"x {x.shape}, y {y.shape}, weight {weight.shape}: not [N]")
    given = check_given(law, given or {})
    keep, excluded = runs.usable_rows({"x": x, "y": y, "weight": weight}, ["x"])
    x, y, weight = x[keep], y[keep], weight[keep]
    free = [p for p in law.parameters if p.name not in given]
    if not free:
        raise ValueError(f"every parameter of {law.name} is given: nothing to fit")
    if len(x) < len(free):
        raise TooFewPoints(
            f"{len(x)} usable points for {len(free)} free parameters of {law.name}"
            f" (excluded: {excluded or 'none'})"
        )
    box = {p.name: p.box(x.min(), x.max()) for p in free}
    objective = Objective(law, x, y, weight, given, box, huber)
    ends = [
        objective.minimise(start)
        for start in objective.starts(starts, np.random.default_rng(seed))
    ]
    u, cost = min(ends, key=lambda end: end[1])
    # The floor keeps rounding from telling apart starts that all fit exactly.
    near = sum(end[1] <= 1.01 * cost + 1e-12 for end in ends)
    theta = {name: float(value) for name, value in objective.theta(u).items()}
    return Fit(
        law=law,
        theta=theta,
        given=tuple(given),
        sse=float(np.sum(weight * (law.predict(theta, x) - y) ** 2)),
        points=len(x),
        excluded=excluded,
        starts=starts,
        near_best=near,
        active=tuple(active_bounds(law, u, box)),
        warnings=tuple(undetermined(objective, u, cost, starts, near)),
        search=u,
        box=box,
        huber=huber,
    )


def check_given(law: laws.Law, given: Mapping[str, float]) -> dict[str, float]:
    """The same, once every name and value is found to suit the law."""
    by_name = {p.name: p for p in law.parameters}
    for name, value in given.items():
        if name not in by_name:
            raise ValueError(f"{law.name} has no parameter {name!r}, only {[*by_name]}")
        low = by_name[name].low
        low = given.get(low, -np.inf) if isinstance(low, str) else low
        bounded = not by_name[name].times_x
        if not np.isfinite(value) or (
            bounded and not low <= value <= by_name[name].high
        ):
            raise ValueError(
                f"given {name} = {value} is outside [{low}, {by_name[name].high}]"
            )
    return {name: float(value) for name, value in given.items()}


def active_bounds(
    law: laws.Law, u: np.ndarray, box: Mapping[str, tuple[float, float]]
) -> list[str]:
    """Bounds that u lies on, such as "A high"."""
    by_name = {p.name: p for p in law.parameters}
    edges = [
        (name, by_name[name].edge(v, box[name])) for name, v in zip(box, u, strict=True)
    ]
    return [f"{name} {edge}" for name, edge in edges if edge]


def undetermined(
    objective: Objective, u: np.ndarray, cost: float, starts: int, near: int
) -> list[str]:
    """Sentences about what the points leave open."""
    law, theta = objective.law, objective.theta(u)
    says = []
    if near == 1 and starts > 1:
        says.append(
            f"only 1 of {starts} starts reached the best fit, so a better one may exist"
        )
    if len(objective.x) == len(u):
        says.append("there are no more points than parameters, so any scatter fits")
    for bound in active_bounds(law, u, objective.box):
        name, side = bound.split()
        says.append(
            f"{name} lies on its {'lower' if side == 'low' else 'upper'} bound,"
            f" {theta[name]:.4g}"
        )
    if law.midpoint and objective.x.max() < theta[law.midpoint]:
        says.append(
            f"all points lie below the fitted midpoint {law.midpoint} ="
            f" {theta[law.midpoint]:.3g}, so the asymptote is an extrapolation"
        )
    if law.limit is not None and law.limit in objective.box:
        low, high = profile(objective, u, cost, law.limit)
        change = abs(theta[law.limit] - float(law.predict(theta, objective.x.min())))
        if high - low > 0.5 * change:
            says.append(
                "the asymptote is not determined by these points: anything from"
                f" {low:.2f} to {high:.2f} fits about as well"
            )
    return says


def profile(
    objective: Objective, u: np.ndarray, cost: float, name: str
) -> tuple[float, float]:
    """How far one parameter can move while the others make up for it.

    The ends of the range in which the best cost stays below the 95% F threshold
    for independent residuals, or the bounds. It follows a curved valley, where a
    standard error from the Jacobian would not. The residuals of one run are not
    independent, so it serves to find what is undetermined, not as an interval.
    """
    n, k = len(objective.x), len(u)
    # The constant keeps rounding in the cost of an exact fit from being a rise.
    rise = stats.f.ppf(0.95, 1, n - k) / (n - k) if n > k else np.inf
    limit = cost * (1 + rise) + 1e-12
    ends = [reach(objective, u, name, edge, limit) for edge in objective.box[name]]
    return min(ends), max(ends)


def reach(
    objective: Objective, u: np.ndarray, name: str, edge: float, limit: float
) -> float:
    """The value nearest to the bound `edge` with a cost below the limit.

    Steps double until the cost is too high, then halve.
    """
    index = objective.free.index(name)
    rest, inside, outside = np.delete(u, index), u[index], None
    best = u
    step = np.sign(edge - inside) * 0.05
    while inside != edge and (outside is None or abs(outside - inside) > 0.05):
        trial = inside + step if outside is None else (inside + outside) / 2
        trial = min(trial, edge) if step > 0 else max(trial, edge)
        pinned = dataclasses.replace(objective, pinned={name: float(trial)})
        moved, height = pinned.minimise(rest)
        if height <= limit:
            rest, inside, step = moved, trial, 2 * step
            best = np.insert(rest, index, inside)
        else:
            outside = trial
    return float(objective.theta(best)[name])


def bootstrap(
    full: Fit,
    x: np.ndarray,
    y: np.ndarray,
    units: Sequence[Any] | np.ndarray,
    *,
    unit: str,
    given: Mapping[str, float | Mapping[Any, float]] | None = None,
    grid: np.ndarray | None = None,
    resamples: int = 200,
    level: float = 0.95,
    extra_starts: int = 2,
    seed: int = 0,
) -> Bands:
    """Percentile intervals from refits on units drawn with replacement.

    Under squared loss a refit sees the mean of the drawn rows at each x, weighted by
    their number, which has the same minimum as the rows themselves. It starts from
    the full fit and from a few seeded starts.

    Args:
      full: the fit to all units; its bounds and loss are used again.
      x: compute, [N], a row per unit and evaluation; unusable rows are left out.
      y: what the unit scored there, [N].
      units: which unit each row belongs to, [N]: ids of runs, of seeds or of
        held-out problems. Not row numbers: rows of one run are not independent.
      unit: what the ids are, in words, for figures: "held-out problems", say.
      given: the parameters that `full` was given; a mapping from unit id to value
        stands for its mean over the drawn units.
      grid: where to predict, [X]; the distinct x if None.
      resamples: how many refits.
      level: nominal coverage.
      extra_starts: seeded starts of each refit besides the full fit.
      seed: of the resampling and the starts.

    Raises:
      ValueError: no units, shapes that differ, fewer than two distinct units, or
        other given parameters than in `full`.
    """
    if units is None:
        raise ValueError(
            "bootstrap needs the unit of every row (run, seed or held-out problem):"
            " rows of one run are not independent"
        )
    x, y, units = (np.asarray(a) for a in (x, y, units))
    if x.ndim != 1 or not x.shape == y.shape == units.shape:
        raise ValueError(f"x {x.shape}, y {y.shape}, units {units.shape}: not [N]")
    given = given or {}
    if set(given) != set(full.given):
        raise ValueError(f"given {sorted(given)}, but the fit {sorted(full.given)}")
    keep, _ = runs.usable_rows({"x": x, "y": y}, ["x"])
    x, y, unit_N = x[keep], y[keep], units[keep]
    ids_U = np.unique(unit_N)
    if len(ids_U) < 2:
        raise ValueError(f"{len(ids_U)} {unit}: resampling needs at least 2")
    rng = np.random.default_rng(seed)
    drawn_BU = rng.multinomial(
        len(ids_U), np.full(len(ids_U), 1 / len(ids_U)), resamples
    )
    given_U = {name: per_unit(value, ids_U) for name, value in given.items()}
    given_B = {name: drawn_BU @ v / len(ids_U) for name, v in given_U.items()}
    # A robust loss must see the rows: a mean has already let an outlier in.
    cell_N = x if full.huber is None else np.arange(len(x))
    x_E, total_BE, count_BE = resample(drawn_BU, x, y, unit_N, cell_N)
    search_B, theta_B = [], []
    for b in range(resamples):
        seen = count_BE[b] > 0
        objective = Objective(
            law=full.law,
            x=x_E[seen],
            y=total_BE[b, seen] / count_BE[b, seen],
            weight=count_BE[b, seen],
            given={name: float(values[b]) for name, values in given_B.items()},
            box=full.box,
            huber=full.huber,
        )
        starts = [full.search, *objective.starts(extra_starts, rng)]
        u, _ = min(map(objective.minimise, starts), key=lambda end: end[1])
        search_B.append(u)
        theta_B.append(objective.theta(u))
    draws = {name: np.array([t[name] for t in theta_B]) for name in full.theta}
    grid = x_E if grid is None else np.asarray(grid, float)
    return summarise(full, draws, search_B, grid, level, unit, len(ids_U))


def per_unit(value: float | Mapping[Any, float], ids_U: np.ndarray) -> np.ndarray:
    """A given parameter as one number for each unit, [U]."""
    if not isinstance(value, Mapping):
        return np.full(len(ids_U), float(value))
    missing = [i for i in ids_U.tolist() if i not in value]
    if missing:
        raise ValueError(f"a given parameter has no value for unit {missing[0]!r}")
    return np.array([value[i] for i in ids_U.tolist()], float)


def resample(
    drawn_BU: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    unit_N: np.ndarray,
    cell_N: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of drawn units, summed within cells.

    Args:
      drawn_BU: how often each unit, in sorted order, was drawn.
      x: [N], equal within a cell.
      y: [N].
      unit_N: id of each row's unit.
      cell_N: rows with equal values are summed.

    Returns:
      (x_E, total_BE, count_BE): for each cell its x, and for each resample the sum
      of y and the number of rows.
    """
    _, who_N = np.unique(unit_N, return_inverse=True)
    _, first_E, at_N = np.unique(cell_N, return_index=True, return_inverse=True)
    total_UE, count_UE = np.zeros((2, drawn_BU.shape[1], len(first_E)))
    np.add.at(total_UE, (who_N, at_N), y)
    np.add.at(count_UE, (who_N, at_N), 1.0)
    return x[first_E], drawn_BU @ total_UE, drawn_BU @ count_UE


def summarise(
    full: Fit,
    draws: Mapping[str, np.ndarray],
    search_B: Sequence[np.ndarray],
    grid: np.ndarray,
    level: float,
    unit: str,
    units: int,
) -> Bands:
    """Percentiles of what the refits gave."""
    tails = [50 * (1 - level), 50 * (1 + level)]
    theta_B1 = {name: values[:, None] for name, values in draws.items()}
    low, high = np.percentile(full.law.predict(theta_B1, grid), tails, axis=0)
    on_bound = [b for u in search_B for b in active_bounds(full.law, u, full.box)]
    at_bound = {b: on_bound.count(b) / len(search_B) for b in dict.fromkeys(on_bound)}
    says = [
        f"{bound.split()[0]} lies on its"
        f" {'lower' if bound.endswith('low') else 'upper'} bound in {share:.0%} of the"
        " refits"
        for bound, share in at_bound.items()
        if share > 0.05
    ]
    if units < FEW_UNITS:
        says.append(f"{units} {unit} are few, so the intervals are likely too narrow")
    return Bands(
        unit=unit,
        units=units,
        resamples=len(search_B),
        level=level,
        theta={
            name: (float(a), float(b))
            for name, values in draws.items()
            for a, b in [np.percentile(values, tails)]
        },
        draws=draws,
        x=grid,
        low=low,
        high=high,
        at_bound=at_bound,
        warnings=tuple(says),
    )
