"""Checkpoints: the whole state that decides a run's future, device and host side.

Orbax writes them asynchronously and atomically. The newest `keep_last` and the one
with the best evaluation are kept, as a union: a rule by metric alone would delete
the newest once the metric falls.
"""

from collections.abc import Iterator
import contextlib
import logging
import math
import pathlib
import shutil
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

HostState = dict[str, Any]

_log = logging.getLogger(__name__)


def _rank(metrics: dict[str, float]) -> float:
    return metrics["avg"]


@contextlib.contextmanager
def manager(folder: pathlib.Path, keep_last: int) -> Iterator[ocp.CheckpointManager]:
    """Checkpoints under `folder`; waits for pending saves on the way out."""
    keep = policies.AnyPreservationPolicy(
        [
            policies.LatestN(keep_last),
            policies.BestN(get_metric_fn=_rank, n=1),
        ]
    )
    # Without best_fn, orbax does not write the metric: the next process would not know
    # which checkpoint is the best, and delete it.
    options = ocp.CheckpointManagerOptions(
        preservation_policy=keep, best_fn=_rank, create=True
    )
    _set_aside(folder, [s for s in _steps(folder) if not _complete(folder / str(s))])
    saved = ocp.CheckpointManager(
        folder.absolute(), options=options, item_names=("state", "host")
    )
    try:
        yield saved
        saved.wait_until_finished()
    finally:
        saved.close()


def _steps(folder: pathlib.Path) -> list[int]:
    """Step numbers that have a folder, newest first."""
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())[::-1]


def _complete(step: pathlib.Path) -> bool:
    """Orbax renames a step into place only once it is whole; copies may not be."""
    return (step / "_CHECKPOINT_METADATA").is_file()


def _set_aside(folder: pathlib.Path, steps: list[int]) -> None:
    """Moves broken steps where no reader counts them as newest; deletes nothing."""
    for step in steps:
        aside = folder.parent / "incomplete" / f"{folder.name}-{step}"
        if aside.exists():
            shutil.rmtree(aside)
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / str(step), aside)
        _log.warning("checkpoint %d is incomplete: moved to %s", step, aside)


def save(
    saved: ocp.CheckpointManager,
    step: int,
    state: Any,
    host: HostState,
    avg: float | None,
) -> None:
    """Starts writing; `avg` is the evaluation at this very step, None without one."""
    saved.save(
        step,
        args=ocp.args.Composite(
            state=ocp.args.StandardSave(state), host=ocp.args.JsonSave(host)
        ),
        # A NaN compares with nothing, so it would make the best undefined.
        metrics={"avg": -math.inf if avg is None or math.isnan(avg) else avg},
        force=True,
    )


def abstract(tree: Any) -> Any:
    """Shapes, types and shardings of a tree, which is what restoring needs."""

    def leaf(x: jax.Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

    return jax.tree.map(leaf, tree)


def restore_newest(
    saved: ocp.CheckpointManager, like: Any
) -> tuple[Any, HostState] | None:
    """State and host state of the newest readable step, or None where none exists.

    Args:
      saved: from `manager`.
      like: a state with the structure, types and shardings to restore to.

    Raises:
      Exception: whatever reading the newest raised, where no step can be read.
    """
    first: Exception | None = None
    broken: list[int] = []
    for step in sorted(saved.all_steps(), reverse=True):
        try:
            out = saved.restore(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(abstract(like)),
                    host=ocp.args.JsonRestore(),
                ),
            )
        except Exception as error:  # noqa: BLE001 - whatever a damaged file raises.
            _log.warning("checkpoint %d cannot be read: %s", step, error)
            first = first or error
            broken.append(step)
            continue
        _set_aside(pathlib.Path(saved.directory), broken)
        if broken:
            saved.reload()
        return out["state"], out["host"]
    if first is not None:
        raise first
    return None


def save_params(folder: pathlib.Path, params: Any) -> None:
    """Weights alone, under `folder`, which appears only once it is whole."""
    with ocp.StandardCheckpointer() as writer:
        writer.save(folder.absolute(), params)


def load_params(folder: pathlib.Path, like: Any) -> Any:
    """Weights written by `save_params`, onto the shardings of `like`."""
    with ocp.StandardCheckpointer() as reader:
        return reader.restore(folder.absolute(), abstract(like))


def load_run_params(folder: pathlib.Path, like: Any, step: int | None = None) -> Any:
    """Weights of a checkpoint in a run folder or its checkpoints/, the newest if None.

    Raises:
      FileNotFoundError: the folder holds no checkpoint, or none of that step.
      ValueError: it holds other weights than `like`, or of other shapes.
    """
    inside = folder / "checkpoints"
    root = inside if inside.is_dir() else folder
    steps = [s for s in _steps(root) if _complete(root / str(s))]
    if not steps:
        raise FileNotFoundError(f"{folder} holds no complete checkpoint")
    if step is not None and step not in steps:
        raise FileNotFoundError(f"{folder} holds no complete checkpoint of {step=}")
    path = (root / str(steps[0] if step is None else step) / "state").absolute()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        # A partial restore passes over what only one side has.
        odd = _names(reader.metadata(path).item_metadata.tree["params"]) ^ _names(like)
        if odd:
            raise ValueError(
                f"{path}: {', '.join(sorted(odd))} in only one of checkpoint and model"
            )
        target = {"params": abstract(like)}
        out = reader.restore(
            path,
            args=ocp.args.PyTreeRestore(
                item=target,
                restore_args=ocp.checkpoint_utils.construct_restore_args(target),
                partial_restore=True,
            ),
        )
    return out["params"]


def _names(tree: Any) -> set[str]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves
    }
