"""A run folder as arrays.

The layout is the one that the folder's own `schema.json` documents, so nothing of
the code that wrote the folder is needed here. What a killed or resumed run leaves
behind (a torn last line, steps written twice, missing files) is repaired and
counted; anything else that does not fit the layout is an error that names file,
line and field.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

VERSION = 1

# Every field that this package and the figures rely on. A reader may look at other
# columns, but only these are checked against the folder's schema.
FIELDS = {
    "metrics.jsonl": ("step",),
    "eval.jsonl": (
        "step",
        "problems",
        "samples",
        "avg",
        "avg_low",
        "avg_high",
        "ledger/flops",
        "ledger/rollouts",
        "ledger/generated_tokens",
    ),
    "problems.parquet": ("step", "problem", "samples", "correct", "reward_sum"),
}

Table = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
      folder: where it was read from.
      config: config.json, one mapping per section.
      metrics: columns of metrics.jsonl, each [U] for U distinct steps in increasing
        order; "step" is int64, the others float64 with NaN where a row has no such
        field or null. Empty if the file is missing or has no whole row.
      evals: columns of eval.jsonl, [E], likewise.
      problems: columns of problems.parquet, flat over (step, problem) in increasing
        order; None if the file is missing.
      summary: summary.json; empty if missing (the run was killed early).
      torn: files whose last line was cut and therefore dropped.
      repeated: file to the number of rows that a later row of the same step (and
        problem) replaced.
    """

    folder: pathlib.Path
    config: Mapping[str, Any]
    metrics: Table
    evals: Table
    problems: Table | None
    summary: Mapping[str, Any]
    torn: tuple[str, ...]
    repeated: Mapping[str, int]

    @property
    def status(self) -> str:
        """What summary.json says the run ended as; "unknown" without one."""
        return str(self.summary.get("status", "unknown"))


def read_run(folder: str | pathlib.Path) -> Run:
    """Reads a run folder.

    Raises:
      FileNotFoundError: schema.json or config.json is missing.
      ValueError: the schema is newer than this reader or lacks a field of `FIELDS`;
        or a file does not hold what the schema says. The message names file, line
        and field.
    """
    folder = pathlib.Path(folder)
    check_schema(folder / "schema.json")
    tables, torn, repeated = {}, [], {}
    for name in ("metrics.jsonl", "eval.jsonl"):
        tables[name], was_torn, repeated[name] = read_jsonl(folder / name)
        torn += [name] if was_torn else []
    problems, repeated["problems.parquet"] = read_problems(folder / "problems.parquet")
    summary = folder / "summary.json"
    return Run(
        folder=folder,
        config=read_object(folder / "config.json"),
        metrics=tables["metrics.jsonl"],
        evals=tables["eval.jsonl"],
        problems=problems,
        summary=read_object(summary) if summary.exists() else {},
        torn=tuple(torn),
        repeated=repeated,
    )


def usable_rows(
    columns: Mapping[str, np.ndarray], positive: Sequence[str] = ()
) -> tuple[np.ndarray, dict[str, int]]:
    """Which rows a fit may use, and how many it may not and why.

    Args:
      columns: name to [N]. A row is usable if all of them are finite.
      positive: names of columns that must also be > 0, compute on a log axis say.

    Returns:
      (keep_N bool, counts). counts maps a rule in words to the rows that it
      excludes; a row counts once, under the first rule it breaks.
    """
    keep_N = np.ones(len(next(iter(columns.values()))), bool)
    counts = {}
    for name, values_N in columns.items():
        rules_N = [("not finite", np.isfinite(values_N))]
        if name in positive:
            rules_N.append(("not positive", ~(values_N <= 0)))
        for rule, holds_N in rules_N:
            if excluded := int(np.sum(keep_N & ~holds_N)):
                counts[f"{name} {rule}"] = excluded
            keep_N &= holds_N
    return keep_N, counts


def check_schema(path: pathlib.Path) -> None:
    """Refuses a folder whose layout this reader does not know."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: {path.parent} is no run folder")
    schema = read_object(path)
    version = schema.get("version")
    if not isinstance(version, int):
        raise ValueError(f"{path}, field 'version': {version!r} is not an integer")
    if version > VERSION:
        raise ValueError(
            f"{path}, field 'version': {version} is newer than {VERSION}, the newest"
            " layout that this reader knows"
        )
    for file, fields in FIELDS.items():
        documented = schema.get("files", {}).get(file, {})
        for field in fields:
            if field not in documented:
                raise ValueError(f"{path} documents no field {field!r} of {file}")


def read_object(path: pathlib.Path) -> dict[str, Any]:
    """One JSON object; ValueError names the file if it holds anything else."""
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, not an object")
    return value


def read_jsonl(path: pathlib.Path) -> tuple[Table, bool, int]:
    """Columns of a file of rows with a step, whether it was torn, rows replaced.

    A last line that does not parse is what a killed process leaves, and is dropped;
    the same anywhere else is an error. Of several rows of one step the last in the
    file stays: it is from the attempt that went on.
    """
    if not path.exists():
        return {}, False, 0
    lines = path.read_bytes().splitlines()
    rows: dict[int, dict[str, float]] = {}
    total, torn = 0, False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            if number < len(lines):
                raise ValueError(
                    f"{path}, line {number} is not JSON: {error}"
                ) from error
            torn = True
            break
        step, values = check_row(row, f"{path}, line {number}")
        rows[step] = values
        total += 1
    if not rows:
        return {}, torn, 0
    steps = sorted(rows)
    names = dict.fromkeys(name for step in steps for name in rows[step])
    columns = {"step": np.array(steps, np.int64)}
    for name in names:
        columns[name] = np.array([rows[step].get(name, np.nan) for step in steps])
    return columns, torn, total - len(rows)


def check_row(row: object, where: str) -> tuple[int, dict[str, float]]:
    """Step and other fields of a row; null becomes NaN, what is no number raises."""
    if not isinstance(row, dict):
        raise ValueError(f"{where}: {row!r} is not an object")
    values = {}
    for name, value in row.items():
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise ValueError(f"{where}, field {name!r}: {value!r} is not a number")
        values[name] = np.nan if value is None else float(value)
    step = row.get("step")
    if not isinstance(step, int) or step < 0:
        raise ValueError(f"{where}, field 'step': {step!r} is not a step number")
    del values["step"]
    return step, values


def read_problems(path: pathlib.Path) -> tuple[Table | None, int]:
    """Columns of problems.parquet, one row per (step, problem), and rows replaced."""
    if not path.exists():
        return None, 0
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not readable as parquet: {error}") from error
    columns = {}
    for name in FIELDS["problems.parquet"]:
        if name not in table.column_names:
            raise ValueError(f"{path}, field {name!r} is missing")
        columns[name] = table.column(name).to_numpy()
    total = len(columns["step"])
    # np.unique keeps the first of equal rows, and the last written is the one to
    # keep, so the rows are turned round.
    keys_N2 = np.stack([columns["step"], columns["problem"]], axis=1)[::-1]
    _, first_N = np.unique(keys_N2, axis=0, return_index=True)
    kept = {name: values[::-1][first_N] for name, values in columns.items()}
    return kept, total - len(first_N)
