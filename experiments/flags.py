"""One absl flag per leaf of a nested frozen dataclass, and back.

A leaf's flag is its path: --model.rope.theta. A section's field `name` gets the
section's own flag: --objective=grpo. A flag that is not given is None and leaves the
value as it is in the preset. Names and values are case-sensitive.

    def main(argv):
        flags.refuse_positional(argv)
        config = flags.override(presets.load(CONFIG.value))

    flags.define(Config)
    app.run(main, flags_parser=flags.parse)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import decimal
import difflib
import math
import re
from typing import Any, TypeVar, cast

from absl import app, flags

from jaxrl.config_io import item_type, typed_fields

C = TypeVar("C")

BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def define(cls: type, flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flag of every leaf.

    Raises:
      TypeError: a leaf's type is not bool, int, float, str or a tuple of numbers.
    """
    for name, f, kind, default in _leaves(cls):
        text = f.metadata.get("help", f.name.replace("_", " "))
        shown = f"[{_text(default)}]" if item_type(kind) else repr(default)
        if default is dataclasses.MISSING:
            shown = "none"
        flags.DEFINE(
            _Parser(kind),
            name,
            None,
            f"{text} [{_spelling(kind)}; default {shown}]",
            flag_values,
            _Serializer(),
            boolean=kind is bool,
        )


def parse(
    argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS
) -> list[str]:
    """Sets flags and returns what is left of argv; for app.run's flags_parser.

    Unlike absl's own it finds the section that an unknown flag belongs to.

    Raises:
      SystemExit: a flag is unknown or its value is malformed; carries the message.
    """
    try:
        return flag_values(argv)
    except flags.UnrecognizedFlagError as unknown:
        near = nearest(unknown.flagname, flag_values)
        message = flags.UnrecognizedFlagError(unknown.flagname, suggestions=near)
        raise SystemExit(f"FATAL Flags parsing error: {message}") from unknown
    # absl raises a plain ValueError on --noflag=value.
    except (flags.Error, ValueError) as error:
        raise SystemExit(f"FATAL Flags parsing error: {error}") from error


def refuse_positional(
    argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS
) -> None:
    """Call first in `main`: whatever absl left in argv is a mistyped flag.

    `--model.tied False` sets model.tied to true and leaves False behind, and
    `lr=1e-2` sets nothing.

    Raises:
      app.UsageError: argv holds more than the program's name.
    """
    if not argv[1:]:
        return
    argument = argv[1]
    key, equals, value = argument.lstrip("-").partition("=")
    given = [
        name
        for name in flag_values
        if flag_values[name].boolean and flag_values[name].present
    ]
    if equals and re.fullmatch(r"[\w.]+", key):
        hint = f"write --{key}={value}"
        if key not in flag_values:
            near = " or ".join(f"--{name}" for name in nearest(key, flag_values))
            hint += f", though there is no flag --{key}"
            hint += f": did you mean {near}?" if near else ""
    elif argument.lower() in BOOLS and given:
        hint = "write " + " or ".join(f"--{name}={argument}" for name in given)
    else:
        hint = "write --flag=value"
    raise app.UsageError(f"argument {argument!r} belongs to no flag; {hint}")


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Up to three flags that an unknown name may stand for, best first.

    `layers` stands for model.layers, `lr` for every learning_rate, `task.name` for
    task, `mesh` for flags of that section, and a misspelling for what is spelt almost
    like it.
    """
    names = list(names)
    if name.endswith(".name") and name.removesuffix(".name") in names:
        return [name.removesuffix(".name")]
    inside = [other for other in names if other.startswith(f"{name}.")]
    if inside:
        return inside[:3]
    last = name.rpartition(".")[2]

    def closeness(other: str) -> float:
        other_last = other.rpartition(".")[2]
        initials = "".join(word[:1] for word in other_last.split("_"))
        if last == other_last or (len(last) > 1 and last == initials):
            return 1.0
        return max(_ratio(name, other), _ratio(last, other_last))

    score = {other: closeness(other) for other in names}
    best = max(score.values(), default=0.0)
    near = [other for other in names if score[other] >= max(0.7, best - 0.05)]
    return sorted(near, key=lambda other: -_ratio(name, other))[:3]


def override(config: C, flag_values: flags.FlagValues = flags.FLAGS) -> C:
    """Returns `config` with every flag the user gave.

    All flags of a section are applied together, inner sections first, and each
    section that changes is rebuilt and so checked once. Where a section's name
    changes, fields that only other names use return to their defaults, unless given.

    Raises:
      app.UsageError: a validator objects; the message names the flags it is about.
    """
    given = {
        name: flag_values[name].value
        for name, *_ in _leaves(type(config))
        if flag_values[name].value is not None
    }
    return cast(C, _rebuilt(config, "", given))


def to_args(config: Any) -> list[str]:
    """Arguments for every leaf: parsed on top of any config, they give this one."""
    return [f"--{name}={_text(value)}" for name, value in _values(config, "")]


def _leaves(
    cls: type, prefix: str = "", default: Any = dataclasses.MISSING
) -> Iterator[tuple[str, dataclasses.Field[Any], Any, Any]]:
    """(flag name, field, type, default) of every leaf."""
    for f, kind in typed_fields(cls):
        value = _default(f, default)
        if dataclasses.is_dataclass(kind):
            yield from _leaves(kind, f"{prefix}{f.name}.", value)  # type: ignore[arg-type]
        else:
            yield _flag_name(prefix, f.name), f, kind, value


def _values(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for f, kind in typed_fields(type(config)):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(kind):
            yield from _values(value, f"{prefix}{f.name}.")
        else:
            yield _flag_name(prefix, f.name), value


def _default(f: dataclasses.Field[Any], section: Any) -> Any:
    """A field's default: what its section's default holds, else the class's."""
    if section is not dataclasses.MISSING:
        return getattr(section, f.name)
    return f.default_factory() if callable(f.default_factory) else f.default


def _flag_name(prefix: str, field: str) -> str:
    return prefix.rstrip(".") if prefix and field == "name" else prefix + field


def _rebuilt(section: Any, prefix: str, given: Mapping[str, Any]) -> Any:
    changes = {}
    for f, kind in typed_fields(type(section)):
        name = _flag_name(prefix, f.name)
        if dataclasses.is_dataclass(kind):
            old = getattr(section, f.name)
            new = _rebuilt(old, f"{prefix}{f.name}.", given)
            if new is not old:
                changes[f.name] = new
        elif name in given:
            changes[f.name] = given[name]
    if not changes:
        return section
    changes = {**_unused_defaults(section, changes), **changes}
    try:
        return dataclasses.replace(section, **changes)
    except ValueError as error:
        raise app.UsageError(f"{_blamed(error, prefix, given)}: {error}") from error


def _unused_defaults(section: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of the fields that the section's new name does not use."""
    name = changes.get("name")
    if name is None:
        return {}
    return {
        f.name: f.default
        for f in dataclasses.fields(section)
        if name not in f.metadata.get("only", (name,))
    }


def _blamed(error: ValueError, prefix: str, given: Mapping[str, Any]) -> str:
    """The given flags of a section whose fields an error mentions, else all."""
    inside = {
        name: value for name, value in given.items() if f"{name}.".startswith(prefix)
    }
    # `task` is mentioned in task=x and task.name=x, but not in task.digits=9.
    mentioned = {
        name: value
        for name, value in inside.items()
        if re.search(rf"\b{name.rpartition('.')[2]}(\.name)?\b(?!\.\w)", str(error))
    }
    blamed = mentioned or inside
    return " ".join(f"--{name}={_text(value)}" for name, value in blamed.items())


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def _text(value: Any) -> str:
    """A value as its flag takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(_text(item) for item in value)
    return repr(value) if isinstance(value, float) else str(value)


def _spelling(kind: Any) -> str:
    item = item_type(kind)
    return kind.__name__ if item is None else f"{item.__name__}s as in 1,2 or [1,2]"


class _Serializer(flags.ArgumentSerializer[Any]):
    def serialize(self, value: Any) -> str:
        return _text(value)


class _Parser(flags.ArgumentParser[Any]):
    """Text to a value of one type; every error is a ValueError saying what fits."""

    def __init__(self, kind: Any) -> None:
        self.item = item_type(kind)
        self.kind = kind
        if kind not in _PARSE and self.item not in (int, float):
            raise TypeError(f"no flag for type {kind!r}")

    def parse(self, argument: Any) -> Any:
        if self.item is None:
            return _PARSE[self.kind](str(argument))
        text = str(argument).strip()
        if text[:1] + text[-1:] in ("[]", "()"):
            text = text[1:-1]
        items = text.split(",") if text.strip() else []
        try:
            return tuple(_PARSE[self.item](item) for item in items)
        except ValueError as error:
            hint = "write lists as 1,2 or [1,2], in quotes if there are spaces"
            raise ValueError(f"{error}; {hint}") from error

    def flag_type(self) -> str:
        return _spelling(self.kind)


def _parse_bool(text: str) -> bool:
    try:
        return BOOLS[text.lower()]
    except KeyError:
        raise ValueError("expected true or false") from None


def _parse_int(text: str) -> int:
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise ValueError("expected a whole number, as in 1000 or 1e3") from None
    # Without the bound 1e999999999 would become a number of a billion digits.
    if not number.is_finite() or number.adjusted() > 18 or number % 1:
        raise ValueError("expected a whole number, as in 1000 or 1e3")
    return int(number)


def _parse_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("expected a number, as in 0.1, 3 or 1e-5") from None
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    return number


_PARSE: dict[Any, Any] = {
    bool: _parse_bool,
    int: _parse_int,
    float: _parse_float,
    str: str,
}
