"""One absl flag per leaf of a nested frozen dataclass, and back.

A leaf's flag is its path: --model.rope.theta. A section's field `name` gets the
section's own flag: --task=sequence. A flag that is not given is None and leaves the
value as it is in the preset. Names and values are case-sensitive.

A field with a table of options takes one of them, with the settings it has there, by
the field's own flag; flags of single settings apply on top, in any order:
--objective=gspo --objective.gate=m2_mask --objective.gate.budget=0.04.

    def main(argv):
        flags.refuse_positional(argv)
        config = flags.override(presets.load(CONFIG.value))

    flags.define(Config)
    app.run(main, flags_parser=flags.parse)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import decimal
import difflib
import math
import re
from typing import Any, NamedTuple, TypeVar, cast

from absl import app, flags

from jaxrl.config_io import (
    item_type,
    not_one_of,
    option_name,
    options,
    typed_fields,
)

C = TypeVar("C")

BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class Leaf(NamedTuple):
    """What one flag sets."""

    name: str
    kind: Any
    help: str


def define(cls: type, flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flag of every leaf.

    Raises:
      TypeError: a leaf's type is not bool, int, float, str or a tuple of numbers, or
        two options of a field have a setting of one name and different types.
    """
    for name, kind, text in _leaves(cls):
        flags.DEFINE(
            _Parser(kind),
            name,
            None,
            text,
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
    Where an option is named, nothing of the old one is left.

    Raises:
      app.UsageError: a validator objects, an option is unknown or has no such
        setting; the message names the flags it is about.
    """
    given = {
        leaf.name: flag_values[leaf.name].value
        for leaf in _leaves(type(config))
        if flag_values[leaf.name].value is not None
    }
    return cast(C, _rebuilt(config, "", given))


def to_args(config: Any) -> list[str]:
    """Arguments for every leaf: parsed on top of any config, they give this one."""
    return [f"--{name}={_text(value)}" for name, value in _values(config, "")]


def _leaves(
    cls: type, prefix: str = "", default: Any = dataclasses.MISSING
) -> Iterator[Leaf]:
    """Every leaf, with the defaults of a section's default."""
    for f, kind in typed_fields(cls):
        name, value = _flag_name(prefix, f.name), _default(f, default)
        table = options(f)
        if table is not None:
            yield Leaf(name, str, _options_help(f, table, value))
            yield from _settings(name, table, value)
        elif dataclasses.is_dataclass(kind):
            yield from _leaves(cast(type, kind), f"{name}.", value)
        else:
            yield Leaf(name, kind, _help(f, kind, value))


def _settings(name: str, table: Mapping[str, Any], default: Any) -> Iterator[Leaf]:
    """Each setting of any option once; its help says which options have it."""
    if _is_one_class(table):
        yield from _inside(name, type(next(iter(table.values()))), default)
        return
    owners: dict[str, dict[str, Leaf]] = {}
    for option, part in table.items():
        for leaf in _inside(name, type(part), part):
            owners.setdefault(leaf.name, {})[option] = leaf
    for flag, leaves in owners.items():
        yield _merged(flag, leaves)


def _inside(name: str, cls: type, default: Any = dataclasses.MISSING) -> Iterator[Leaf]:
    """An option's leaves but for its name, whose flag is the table's own."""
    return (leaf for leaf in _leaves(cls, f"{name}.", default) if leaf.name != name)


def _merged(flag: str, leaves: Mapping[str, Leaf]) -> Leaf:
    kinds = {leaf.kind for leaf in leaves.values()}
    if len(kinds) > 1:
        each = ", ".join(
            f"{who} {_spelling(leaf.kind)}" for who, leaf in leaves.items()
        )
        raise TypeError(f"--{flag} would have several types: {each}")
    owners: dict[str, list[str]] = {}
    for option, leaf in leaves.items():
        owners.setdefault(leaf.help, []).append(option)
    text = "; ".join(f"{', '.join(who)}: {what}" for what, who in owners.items())
    return Leaf(flag, kinds.pop(), text)


def _is_one_class(table: Mapping[str, Any]) -> bool:
    return len({type(option) for option in table.values()}) == 1


def _help(f: dataclasses.Field[Any], kind: Any, default: Any) -> str:
    text = f.metadata.get("help", f.name.replace("_", " "))
    within = ""
    if "range" in f.metadata and kind in (int, float):
        low, high = f.metadata["range"]
        within = f" in [{low:g}, {high:g}]"
    shown = f"[{_text(default)}]" if item_type(kind) else repr(default)
    if default is dataclasses.MISSING:
        shown = "none"
    return f"{text} [{_Parser(kind).flag_type()}{within}; default {shown}]"


def _options_help(
    f: dataclasses.Field[Any], table: Mapping[str, Any], default: Any
) -> str:
    """Names, each with the first sentence of its class unless all are of one."""
    names = ", ".join(table)
    if not _is_one_class(table):
        about = {o: (type(x).__doc__ or "").split("\n")[0] for o, x in table.items()}
        names = "; ".join(
            f"{option}: {text.split('. ')[0].rstrip('.')}"
            for option, text in about.items()
        )
    shown = "none" if default is dataclasses.MISSING else default.name
    return f"{f.metadata.get('help', f.name)} [{names}; default {shown}]"


def _values(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for f, kind in typed_fields(type(config)):
        name, value = _flag_name(prefix, f.name), getattr(config, f.name)
        table = options(f)
        if table is not None:
            yield name, option_name(name, value, table)
            yield from (item for item in _values(value, f"{name}.") if item[0] != name)
        elif dataclasses.is_dataclass(kind):
            yield from _values(value, f"{name}.")
        else:
            yield name, value


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
        name, old = _flag_name(prefix, f.name), getattr(section, f.name)
        table = options(f)
        if table is not None:
            new = _chosen(old, name, table, given)
        elif dataclasses.is_dataclass(kind):
            new = _rebuilt(old, f"{name}.", given)
        else:
            new = given.get(name, old)
        if new is not old:
            changes[f.name] = new
    if not changes:
        return section
    changes = {**_unused_defaults(section, changes), **changes}
    try:
        return dataclasses.replace(section, **changes)
    except ValueError as error:
        raise app.UsageError(f"{_blamed(error, prefix, given)}: {error}") from error


def _chosen(
    old: Any, name: str, table: Mapping[str, Any], given: Mapping[str, Any]
) -> Any:
    """The named option, else the old one, with the settings that are given."""
    choice = given.get(name)
    if choice is not None and choice not in table:
        said = not_one_of(name, choice, sorted(table))
        raise app.UsageError(f"--{name}={choice}: {said}")
    part = old if choice is None else table[choice]
    has = lambda option: {leaf.name for leaf in _inside(name, type(option))}
    for flag in given:
        if flag.startswith(f"{name}.") and flag not in has(part):
            owners = [other for other, option in table.items() if flag in has(option)]
            raise app.UsageError(
                f"--{flag}={_text(given[flag])}: {name}={part.name} has no"
                f" {flag.removeprefix(f'{name}.')}; {', '.join(owners)}"
                f" {'has' if len(owners) == 1 else 'have'} it"
            )
    return _rebuilt(part, f"{name}.", given)


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
    """The given flags of a section whose fields an error mentions, else all.

    A part calls itself by its name, as in clip.low, so the last names are looked for
    where no path is found.
    """
    inside = [name for name in given if f"{name}.".startswith(prefix)]

    def mentioned(pattern: Callable[[str], str]) -> list[str]:
        return [name for name in inside if re.search(pattern(name), str(error))]

    blamed = mentioned(_path) or mentioned(_last_name) or inside
    return " ".join(f"--{name}={_text(given[name])}" for name in blamed)


def _path(flag: str) -> str:
    """Matches a flag or an end of it, but not the end of another one."""
    sections = [rf"({name}\.)?" for name in flag.split(".")[:-1]]
    return rf"(?<![\w.]){''.join(sections)}{_last_name(flag)}"


def _last_name(flag: str) -> str:
    # `task` is mentioned in task=x and task.name=x, but not in task.digits=9.
    return rf"\b{flag.rpartition('.')[2]}(\.name)?\b(?!\.\w)"


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
