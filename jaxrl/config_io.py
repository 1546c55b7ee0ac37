"""A nested config dataclass as plain JSON values, and strictly back.

`to_dict` writes what `from_dict` reads: a section is an object, a tuple is a list,
every field is there. A field with "options" in its metadata, a table by name, holds
an instance of a class in that table, and its object says which: {"name": "clip",
"low": 0.2}. Nothing is converted on the way but a whole number where a float is
declared, so a text "1e-5" is an error and not a learning rate.
"""

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import difflib
import math
import typing
from typing import Any, TypeVar

C = TypeVar("C")


def typed_fields(cls: type) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """Every field of a dataclass with its type, annotations in quotes resolved."""
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        yield f, hints[f.name]


def item_type(kind: Any) -> Any:
    """T of tuple[T, ...]; None for any other type."""
    args = typing.get_args(kind)
    is_list = typing.get_origin(kind) is tuple and args[1:] == (...,)
    return args[0] if is_list else None


def options(f: dataclasses.Field[Any]) -> Mapping[str, Any] | None:
    """The table that a field's value is taken from; None for any other field.

    It holds dataclass instances by their `name`, which may be a field, as in a table
    of rows of one class, or a property, as in a table with one class a row.
    """
    return f.metadata.get("options")


def option_name(key: str, value: Any, table: Mapping[str, Any]) -> str:
    """The name by which a table gives back the class of `value`.

    Raises:
      ValueError: there is none.
    """
    name = getattr(value, "name", value)
    if name not in table:
        raise ValueError(not_one_of(key, name, sorted(table)))
    if type(table[name]) is not type(value):
        expected = _kind(table[name])
        raise ValueError(f"{key}={name!r} is {_kind(value)}, expected {expected}")
    return str(name)


def not_one_of(key: str, value: Any, valid: Iterable[str]) -> str:
    """What to say of an unknown name: the valid ones and the nearest of them."""
    valid = tuple(valid)
    near = difflib.get_close_matches(str(value).lower(), valid, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{key}={value!r} is not one of {', '.join(valid)}{hint}"


def to_dict(config: Any) -> dict[str, Any]:
    """The config as values that `json.dumps` takes.

    Raises:
      ValueError: a value is not of its field's declared type, not finite, or not
        of a class in its field's table.
    """
    return _section_to_dict(config, "")


def from_dict(cls: type[C], data: Any) -> C:
    """The config that `to_dict` wrote; validators run.

    Raises:
      ValueError: a key or name is unknown or missing, a value has another type than
        its field, or a validator objects. The message names key and value.
    """
    return _section_from_dict(cls, data, "")


def _section_to_dict(config: Any, prefix: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for f, kind in typed_fields(type(config)):
        key, value = prefix + f.name, getattr(config, f.name)
        table = options(f)
        if table is not None:
            name = {"name": option_name(key, value, table)}
            out[f.name] = name | _section_to_dict(value, f"{key}.")
        elif dataclasses.is_dataclass(kind):
            out[f.name] = _section_to_dict(value, f"{key}.")
        else:
            value = _checked(key, value, kind)
            out[f.name] = list(value) if isinstance(value, tuple) else value
    return out


def _section_from_dict(cls: type[C], data: Any, prefix: str) -> C:
    _check_object(data, prefix)
    fields = {f.name: (f, kind) for f, kind in typed_fields(cls)}
    for key, value in data.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"; did you mean {prefix}{near[0]}?" if near else ""
            raise ValueError(f"unknown key {prefix}{key}={value!r}{hint}")
    values = {}
    for name, (f, kind) in fields.items():
        if name not in data:
            raise ValueError(f"missing key {prefix}{name}, expected {_expected(kind)}")
        values[name] = _value_from_dict(f, kind, data[name], prefix + name)
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{_section_name(prefix)}: {error}") from error


def _value_from_dict(f: dataclasses.Field[Any], kind: Any, data: Any, key: str) -> Any:
    table = options(f)
    if table is not None:
        return _option_from_dict(table, data, f"{key}.")
    if dataclasses.is_dataclass(kind):
        return _section_from_dict(typing.cast(type[Any], kind), data, f"{key}.")
    return _checked(key, data, kind)


def _option_from_dict(table: Mapping[str, Any], data: Any, prefix: str) -> Any:
    _check_object(data, prefix)
    if "name" not in data:
        raise ValueError(f"missing key {prefix}name, expected str")
    name = _checked(f"{prefix}name", data["name"], str)
    if name not in table:
        raise ValueError(not_one_of(f"{prefix}name", name, sorted(table)))
    cls = type(table[name])
    if "name" not in cls.__dataclass_fields__:
        data = {key: value for key, value in data.items() if key != "name"}
    return _section_from_dict(cls, data, prefix)


def _check_object(data: Any, prefix: str) -> None:
    if not isinstance(data, dict):
        where = _section_name(prefix)
        raise ValueError(f"{where}={data!r} is {_kind(data)}, expected an object")


def _section_name(prefix: str) -> str:
    return prefix.rstrip(".") or "config"


def _checked(key: str, value: Any, kind: Any) -> Any:
    """`value` if it is a `kind`; a whole number becomes the float it stands for."""
    item = item_type(kind)
    if item is not None:
        if not isinstance(value, list | tuple):
            raise ValueError(_mismatch(key, value, kind))
        return tuple(_checked(f"{key}[{i}]", v, item) for i, v in enumerate(value))
    if kind not in (bool, int, float, str):
        raise TypeError(f"{key}: no JSON form for type {kind!r}")
    # bool is a subclass of int, and never meant where a number is declared.
    is_bool = isinstance(value, bool)
    if kind is float and isinstance(value, int) and not is_bool:
        value = float(value)
    if not isinstance(value, kind) or is_bool != (kind is bool):
        raise ValueError(_mismatch(key, value, kind))
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{key}={value!r} is not finite")
    return value


def _mismatch(key: str, value: Any, kind: Any) -> str:
    return f"{key}={value!r} is {_kind(value)}, expected {_expected(kind)}"


def _kind(value: Any) -> str:
    return type(value).__name__


def _expected(kind: Any) -> str:
    item = item_type(kind)
    if item is not None:
        return f"a list of {item.__name__}"
    return "an object" if dataclasses.is_dataclass(kind) else str(kind.__name__)
