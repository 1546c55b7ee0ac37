"""Parts: interchangeable pieces that an objective is put together from.

A part is a pure function with settings: a frozen dataclass that is called. Settings
are named, typed and checked once, so that a table can print them, a config can hold
them and a flag can change one of them. A traced array may stand in for a number,
which is how a sweep runs over settings without compiling again.
"""

from collections.abc import Mapping
import dataclasses
import math
import numbers
import re
from typing import Any, TypeVar

P = TypeVar("P", bound="Part")


def setting(default: Any, help: str, low: float = 0.0, high: float = 1e9) -> Any:
    """A field of a part: its default, its meaning, and the range it must lie in."""
    return dataclasses.field(
        default=default, metadata={"help": help, "range": (low, high)}
    )


def choice(options: Mapping[str, Any], default: Any, help: str) -> Any:
    """A field that holds one of the entries of a table."""
    return dataclasses.field(
        default=default, metadata={"help": help, "options": options}
    )


@dataclasses.dataclass(frozen=True)
class Part:
    """One choice for one slot of an objective.

    Subclasses are frozen dataclasses with a `__call__`; none overrides
    `__post_init__` without calling this one.
    """

    @property
    def name(self) -> str:
        """The class's name as flags and tables spell it.

        M2Mask is m2_mask, and the part of each kind that does nothing, NoGate, none.
        """
        return _snake(type(self).__name__)

    def __post_init__(self) -> None:
        check_ranges(self, f"{self.name}.")

    def __str__(self) -> str:
        settings = ", ".join(
            f"{f.name}={getattr(self, f.name)}" for f in dataclasses.fields(self)
        )
        return f"{self.name}({settings})" if settings else self.name


def check_ranges(settings: Any, prefix: str = "") -> None:
    """Refuses a number of a dataclass that is outside the range of its field.

    Raises:
      ValueError: names field and value.
    """
    for f in dataclasses.fields(settings):
        value = getattr(settings, f.name)
        # A traced array passes: what it will hold is not known here.
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            continue
        low, high = f.metadata["range"]
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(f"{prefix}{f.name}={value} is not in [{low}, {high}]")


def table(*classes: type[P]) -> dict[str, P]:
    """Parts of one kind by name, each with its default settings."""
    return {_snake(cls.__name__): cls() for cls in classes}


def _snake(name: str) -> str:
    if re.match("No[A-Z]", name):
        return "none"
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
