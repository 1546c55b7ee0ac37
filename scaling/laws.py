"""Laws as data: parameters, the space they are searched in, and a formula.

A law maps an amount x (compute, in any unit) to a prediction. Adding one means
adding a `Law` here; fitting, bootstrap and figures ask nothing about which it is.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math
from typing import Literal

import numpy as np
from scipy import special

Values = Mapping[str, np.ndarray | float]

# A logit-searched parameter stays this far, as a share of its range, from its
# bounds: nearer, the objective is flat to rounding and a search would wander off.
MARGIN = 1e-4


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a law.

    Attributes:
      name: as in the formula.
      low: smallest value, or the name of an earlier parameter that bounds it.
      high: largest value.
      search: the space in which it is searched: its log, or the logit of its place
        between low and high.
      meaning: in words, unit included.
      times_x: low and high are multiples of the smallest and largest x fitted, so
        that one law serves every unit of compute.
    """

    name: str
    low: float | str
    high: float
    search: Literal["log", "logit"]
    meaning: str
    times_x: bool = False

    def box(self, x_low: float, x_high: float) -> tuple[float, float]:
        """Bounds in search space, given the smallest and largest x."""
        if self.search == "logit":
            edge = math.log((1 - MARGIN) / MARGIN)
            return -edge, edge
        assert isinstance(self.low, float), f"{self.name}: log search needs a number"
        low, high = self.low, self.high
        if self.times_x:
            low, high = low * x_low, high * x_high
        return math.log(low), math.log(high)

    def value(self, u: np.ndarray | float, theta: Values) -> np.ndarray:
        """From search space to the parameter; theta holds the earlier ones."""
        if self.search == "log":
            return np.exp(u)
        low = theta[self.low] if isinstance(self.low, str) else self.low
        return low + (self.high - low) * special.expit(u)

    def edge(self, u: float, box: tuple[float, float]) -> str:
        """ "low" or "high" if u is as good as on that bound, else "".

        As good as: within 1% of the bound for a log search, within 0.1% of the range
        for a logit search.
        """
        near = 0.01 if self.search == "log" else box[1] - math.log(999)
        return "low" if u < box[0] + near else "high" if u > box[1] - near else ""


@dataclasses.dataclass(frozen=True)
class Law:
    """A law.

    Attributes:
      name: for people.
      formula: as text, in the parameters' names and the letter of x.
      parameters: in an order in which each comes after those that bound it.
      predict: (theta, x) to the prediction; values of theta broadcast against x.
      source: where it is from.
      limit: the parameter that the law tends to as x grows, if any.
      midpoint: the parameter on the scale of x at which half of the change to the
        limit is done, if any.
    """

    name: str
    formula: str
    parameters: tuple[Parameter, ...]
    predict: Callable[[Values, np.ndarray], np.ndarray]
    source: str
    limit: str | None = None
    midpoint: str | None = None

    def __post_init__(self) -> None:
        known: set[str] = set()
        for parameter in self.parameters:
            if isinstance(parameter.low, str) and parameter.low not in known:
                raise ValueError(
                    f"{self.name}: {parameter.name} is bounded by {parameter.low!r},"
                    " which no earlier parameter is called"
                )
            known.add(parameter.name)
        for name in (self.limit, self.midpoint):
            if name is not None and name not in known:
                raise ValueError(f"{self.name}: no parameter is called {name!r}")


def sigmoid(theta: Values, x: np.ndarray) -> np.ndarray:
    """R0 + (A - R0) / (1 + (Cmid / x)^B); R0 at x = 0, NaN below.

    Args:
      theta: R0, A, B, Cmid.
      x: compute, any shape, in the unit of Cmid.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        log_x = np.log(x)
    # expit and not a power: (Cmid / x)^B overflows long before the prediction does.
    done = special.expit(theta["B"] * (log_x - np.log(theta["Cmid"])))
    return theta["R0"] + (theta["A"] - theta["R0"]) * done


SIGMOID = Law(
    name="sigmoid",
    formula="R0 + (A - R0) / (1 + (Cmid / C)^B)",
    parameters=(
        Parameter("R0", 0.0, 1.0, "logit", "pass rate before training"),
        Parameter("A", "R0", 1.0, "logit", "asymptotic pass rate"),
        Parameter("B", 0.1, 10.0, "log", "steepness"),
        Parameter(
            "Cmid", 1e-3, 1e3, "log", "compute at half of the gain", times_x=True
        ),
    ),
    predict=sigmoid,
    source="ScaleRL, arXiv:2510.13786",
    limit="A",
    midpoint="Cmid",
)
