"""A nested config dataclass as plain JSON values, and strictly back.

`to_dict` writes what `from_dict` reads: a section is an object, a tuple is a list,
every field is there. Nothing is converted on the way but a whole number where a
float is declared, so a text "1e-5" is an error and not a learning rate.
"""

from collections.abc import Iterator
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


def to_dict(config: Any) -> dict[str, Any]:
    """The config as values that `json.dumps` takes.

    Raises:
      ValueError: a value is not of its field's declared type, or not finite.
    """
    return _section_to_dict(config, "")


def from_dict(cls: type[C], data: Any) -> C:
    """The config that `to_dict` wrote; validators run.

    Raises:
      ValueError: a key is unknown or missing, a value has another type than its
        field, or a validator objects. The message names key and value.
    """
    return _section_from_dict(cls, data, "")


def _section_to_dict(config: Any, prefix: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for f, kind in typed_fields(type(config)):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(kind):
            out[f.name] = _section_to_dict(value, f"{prefix}{f.name}.")
        else:
            value = _checked(prefix + f.name, value, kind)
            out[f.name] = list(value) if isinstance(value, tuple) else value
    return out


def _section_from_dict(cls: type[C], data: Any, prefix: str) -> C:
    where = prefix.rstrip(".") or "config"
    if not isinstance(data, dict):
        raise ValueError(f"{where}={data!r} is {_kind(data)}, expected an object")
    kinds = {f.name: kind for f, kind in typed_fields(cls)}
    for key, value in data.items():
        if key not in kinds:
            near = difflib.get_close_matches(str(key), kinds, n=1)
            hint = f"; did you mean {prefix}{near[0]}?" if near else ""
            raise ValueError(f"unknown key {prefix}{key}={value!r}{hint}")
    values = {}
    for name, kind in kinds.items():
        if name not in data:
            raise ValueError(f"missing key {prefix}{name}, expected {_expected(kind)}")
        if dataclasses.is_dataclass(kind):
            section = typing.cast(type[Any], kind)
            values[name] = _section_from_dict(section, data[name], f"{prefix}{name}.")
        else:
            values[name] = _checked(prefix + name, data[name], kind)
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


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
