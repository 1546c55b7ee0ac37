"""The run folder, written as jaxrl/schema.py says.

Rows are appended and flushed one by one, so a killed run keeps all but the row it
was writing. On resume every file is cut back to the checkpoint's step: rows of
updates that will be made again are dropped, and the result is byte for byte what an
uninterrupted run would have written.
"""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jaxrl import config_io, schema
from jaxrl.config import Config
from jaxrl.evaluate import Evaluation
from jaxrl.mirror import Mirror
from jaxrl.tasks.base import Problems

_STREAMS = ("metrics", "timing", "eval", "samples")
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
_PROBLEMS = pa.schema(
    [
        ("step", pa.int64()),
        ("problem", pa.int32()),
        ("samples", pa.int32()),
        ("correct", pa.int32()),
        ("reward_sum", pa.float32()),
    ]
)


def environment() -> dict[str, Any]:
    """Versions, devices, git state and command line of this process."""

    def git(*args: str) -> str:
        root = pathlib.Path(__file__).parent
        try:
            out = subprocess.run(
                ["git", *args], cwd=root, capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return out.stdout.strip()

    return {
        "started": time.time(),
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {p: importlib.metadata.version(p) for p in _PACKAGES},
        "devices": [str(d) for d in jax.devices()],
        "git_commit": git("rev-parse", "HEAD"),
        "git_changed": git("status", "--porcelain").splitlines(),
    }


def write_json(path: pathlib.Path, value: Any) -> None:
    """Replaces a file in one go: readers see the old one or the new one, whole."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(partial, path)


def read_json(path: pathlib.Path) -> Any:
    """A file's value; ValueError names the file where it is not JSON."""
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from error


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Fields in which a resumed run may not differ, as 'field: was a, now b'.

    Fields marked free may. So may `updates` where it grows and the learning rate does
    not depend on it: the run is then made longer.
    """
    out = []
    for f in dataclasses.fields(new):
        a, b = getattr(old, f.name), getattr(new, f.name)
        if dataclasses.is_dataclass(b):
            out += differences(a, b, f"{prefix}{f.name}.")
            continue
        longer = (
            prefix + f.name == "updates"
            and b > a
            and new.optimizer.schedule == "constant"
        )
        if a != b and not (f.metadata.get("free") or longer):
            out.append(f"{prefix}{f.name}: was {a!r}, now {b!r}")
    return out


def finished(folder: pathlib.Path, config: Config) -> dict[str, Any] | None:
    """The summary of this very run if it has made all its updates, else None.

    Raises:
      ValueError: the folder holds a run with another config.
    """
    path = folder / "config.json"
    if not path.exists():
        return None
    try:
        old = config_io.from_dict(Config, read_json(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    changed = differences(old, config)
    if changed:
        raise ValueError(
            f"{folder} holds a run with another config ({'; '.join(changed)});"
            " give another --run_dir"
        )
    path = folder / "summary.json"
    summary = read_json(path) if path.exists() else {}
    whole = summary.get("status") == "finished" and summary["step"] >= config.updates
    return summary if whole else None


class RunLog:
    """Writes one run folder; `start` before rows, `close` after."""

    def __init__(self, folder: pathlib.Path, config: Config) -> None:
        """Creates the folder, or goes on with it: `finished` says if it may."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", config_io.to_dict(config))
        write_json(folder / "schema.json", schema.document())
        attempts_path = folder / "environment.json"
        attempts = read_json(attempts_path) if attempts_path.exists() else []
        self.attempt = len(attempts)
        write_json(attempts_path, [*attempts, environment()])
        self._mirror = Mirror(config.wandb, folder, config_io.to_dict(config))
        self._files: dict[str, Any] = {}

    def start(self, step: int) -> None:
        """Cuts every file back to rows of `step` and before, then appends to them.

        A run that has no checkpoint starts at -1: nothing is kept.
        """
        for name in _STREAMS:
            path = self.folder / f"{name}.jsonl"
            _cut(path, step)
            self._files[name] = path.open("a")
        path = self.folder / "problems.parquet"
        if path.exists():
            table = pq.read_table(path)
            self._write_problems(table.filter(pc.field("step") <= step))

    def _append(self, name: str, row: dict[str, Any]) -> None:
        self._files[name].write(json.dumps(row) + "\n")
        self._files[name].flush()

    def metrics(self, row: dict[str, Any]) -> None:
        """One update."""
        self._append("metrics", row)
        self._mirror.log(row["step"], row)

    def timing(self, step: int, seconds: dict[str, float]) -> None:
        """Device-seconds so far, by phase."""
        row = {"step": step, "time": time.time(), "attempt": self.attempt}
        row |= {f"device_seconds/{k}": v for k, v in seconds.items()}
        self._append("timing", row)

    def evaluation(self, row: dict[str, Any], out: Evaluation) -> None:
        """One evaluation: its row, and every problem's successes."""
        self._append("eval", row)
        self._mirror.log(row["step"], {f"eval/{k}": v for k, v in row.items()})
        scored_PK = np.isfinite(out.reward_PK)
        reward_PK = np.where(scored_PK, out.reward_PK, 0)
        new = pa.table(
            {
                "step": np.full(len(out.problem_P), row["step"]),
                "problem": out.problem_P,
                "samples": scored_PK.sum(axis=1),
                "correct": (reward_PK >= 1).sum(axis=1),
                "reward_sum": reward_PK.sum(axis=1),
            }
        ).cast(_PROBLEMS)
        path = self.folder / "problems.parquet"
        if path.exists():
            new = pa.concat_tables([pq.read_table(path), new])
        self._write_problems(new)

    def _write_problems(self, table: pa.Table) -> None:
        path = self.folder / "problems.parquet"
        partial = path.with_name(path.name + ".partial")
        pq.write_table(table, partial)
        os.replace(partial, path)

    def samples(
        self, step: int, problems: Problems, out: Evaluation, count: int
    ) -> None:
        """First completion of the first `count` problems."""
        for i in range(min(count, len(out.index_P))):
            reward = float(out.reward_PK[i, 0])
            self._append(
                "samples",
                {
                    "step": step,
                    "problem": int(out.problem_P[i]),
                    "prompt": problems.prompts[out.index_P[i]],
                    "completion": out.texts[i][0],
                    "reward": reward if np.isfinite(reward) else None,
                },
            )

    def summary(self, value: dict[str, Any]) -> None:
        """Replaces summary.json."""
        write_json(self.folder / "summary.json", value)

    def close(self) -> None:
        """Closes files and the mirror."""
        for file in self._files.values():
            file.close()
        self._mirror.close()


def _cut(path: pathlib.Path, step: int) -> None:
    """Keeps whole rows whose step is <= `step`; a torn last line goes too."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        if json.loads(line)["step"] <= step:
            kept.append(line)
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(kept))
    os.replace(partial, path)
