"""Parameters are declared once, as a tree of ParamDef; all else is derived.

A declaration gives an array's shape, a logical name for each of its dims and how
it starts. Initial values, abstract values, shardings and counts follow from it,
so they cannot drift apart.
"""

from collections.abc import Callable
import math
from typing import Any, NamedTuple
import zlib

import jax
import jax.numpy as jnp

from models import sharding

Params = Any  # A nested dict of arrays.


class ParamDef(NamedTuple):
    """One array: its shape, a logical name per dim, and how it starts."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: Callable[[jax.Array, tuple[int, ...], Any], jax.Array]


def is_def(x: Any) -> bool:
    """True for a leaf of a declaration."""
    return isinstance(x, ParamDef)


def init(defs: Any, key: jax.Array, dtype: Any = jnp.float32) -> Params:
    """Draws every array from a key folded with its own path.

    Adding or removing one entry leaves every other draw as it was, so two models
    that differ by a module still start from the same rest.
    """

    def draw(path: Any, d: ParamDef) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        leaf_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
        return d.init(leaf_key, d.shape, dtype)

    return jax.tree.map_with_path(draw, defs, is_leaf=is_def)


def shardings(defs: Any, mesh: jax.sharding.Mesh) -> Any:
    """Tree of NamedSharding with the structure of `init(defs, ...)`."""
    return jax.tree.map(lambda d: sharding.named(mesh, d.axes), defs, is_leaf=is_def)


def count(defs: Any) -> int:
    """Number of scalar parameters; allocates none of them."""
    return sum(math.prod(d.shape) for d in jax.tree.leaves(defs, is_leaf=is_def))


def check_divisible(defs: Any, mesh: jax.sharding.Mesh) -> None:
    """Raises ValueError naming every dim that its mesh axes do not divide.

    Inside jit such a dim is replicated without a word, so memory and time grow
    and nothing else shows it.
    """
    bad = []
    for path, d in jax.tree_util.tree_leaves_with_path(defs, is_leaf=is_def):
        for size, axis in zip(d.shape, d.axes, strict=True):
            parts = sharding.parts(mesh, axis)
            if size % parts:
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                bad.append(f"{name}: {axis}={size} does not divide by {parts}")
    if bad:
        raise ValueError("the mesh does not fit the model: " + "; ".join(bad))
