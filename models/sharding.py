"""The one table from logical axis names to mesh axes.

Models name the dims of their arrays; only this file knows where a name lives.
Trying another layout is an edit to RULES, and tests check that no layout changes
a result.
"""

from collections.abc import Mapping, Sequence
import math

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

MESH_AXES = ("data", "fsdp", "tensor")

RULES: Mapping[str, str | tuple[str, ...] | None] = {
    # Activations: problems are split, the rollouts of a problem stay together.
    "batch": ("data", "fsdp"),
    "group": None,
    "seq": None,
    "act_embed": None,
    # Weights.
    "layers": None,
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "ffn": "tensor",
    "vocab": "tensor",
}


def make_mesh(
    shape: Sequence[int], devices: Sequence[jax.Device] | None = None
) -> jax.sharding.Mesh:
    """Mesh over `devices` (all by default); `shape` gives MESH_AXES' sizes in order.

    Raises:
      ValueError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    if math.prod(shape) != len(devices):
        raise ValueError(
            f"mesh {dict(zip(MESH_AXES, shape, strict=True))} needs"
            f" {math.prod(shape)} devices, and there are {len(devices)}"
        )
    # Auto: the compiler propagates shardings from the two places that are pinned.
    types = (AxisType.Auto,) * len(MESH_AXES)
    return jax.make_mesh(tuple(shape), MESH_AXES, axis_types=types, devices=devices)


def spec(axes: Sequence[str]) -> PartitionSpec:
    """Partition spec of an array whose dims carry these names, in order."""
    unknown = [a for a in axes if a not in RULES]
    if unknown:
        raise ValueError(f"no sharding rule for {unknown}; known: {sorted(RULES)}")
    return PartitionSpec(*(RULES[a] for a in axes))


def parts(mesh: jax.sharding.Mesh, axis: str) -> int:
    """Into how many parts the mesh cuts a dim of this name."""
    rule = RULES[axis]
    names = (rule,) if isinstance(rule, str) else rule or ()
    return math.prod(mesh.shape[n] for n in names)


def named(mesh: jax.sharding.Mesh, axes: Sequence[str]) -> NamedSharding:
    """`spec` on a given mesh, for placing arrays outside jit."""
    return NamedSharding(mesh, spec(axes))


def constrain(x: jax.Array, *axes: str) -> jax.Array:
    """Pins an activation to its rule; does nothing where no mesh is set."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, spec(axes))
