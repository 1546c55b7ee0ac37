r"""Problems as text, read from JSONL, Parquet and prepared TFDS sets.

A record of a file holds `prompt`, a chat list of {"role", "content"} or a string,
and the reference in `reward_model.ground_truth` or `answer`. A TFDS record holds
two text columns. What is no problem raises ValueError with file, row, field and
value; rows count from 1.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import importlib
import json
import math
from typing import Any

from jaxrl.tasks import answers

# Row, its place for errors, and the record there.
Records = Iterator[tuple[int, str, Any]]

COLUMNS = ("prompt", "reward_model", "answer")


@dataclasses.dataclass(frozen=True)
class Row:
    """One problem as read; `number` counts from 1."""

    number: int
    prompt: str
    answer: str


def _require(module: str, task: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"task={task} needs the {package} package: pip install {package}"
        ) from error


def _bad(at: str, field: str, value: object, need: str) -> ValueError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return ValueError(
        f"{at}: {field}={shown} of type {type(value).__name__} is not {need}"
    )


def _text(value: object, at: str, field: str) -> str:
    if not isinstance(value, str):
        raise _bad(at, field, value, "text")
    if not value.strip():
        raise _bad(at, field, value, "text with something in it")
    return value


def _prompt(record: Mapping[str, Any], at: str) -> str:
    """Contents of the chat, each closed by a newline."""
    if "prompt" not in record:
        raise ValueError(f"{at}: no prompt, only {', '.join(record) or 'nothing'}")
    prompt = record["prompt"]
    if isinstance(prompt, str):
        return _text(prompt, at, "prompt") + "\n"
    if not isinstance(prompt, list) or not prompt:
        raise _bad(at, "prompt", prompt, "text or a list of chat messages")
    contents = []
    for i, message in enumerate(prompt):
        if not isinstance(message, dict):
            raise _bad(at, f"prompt[{i}]", message, "a chat message")
        contents.append(_text(message.get("content"), at, f"prompt[{i}].content"))
    return "\n".join(contents) + "\n"


def _answer(record: Mapping[str, Any], at: str) -> str:
    """The reference as text; a number is spelled out."""
    field, value = "answer", record.get("answer")
    if record.get("reward_model") is not None:
        field, value = "reward_model.ground_truth", record["reward_model"]
        if not isinstance(value, dict):
            raise _bad(at, "reward_model", value, "an object with a ground_truth")
        value = value.get("ground_truth")
    elif value is None:
        raise ValueError(f"{at}: neither reward_model.ground_truth nor answer is there")
    if isinstance(value, float) and not math.isfinite(value):
        raise _bad(at, field, value, "a finite number")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = _text(str(value) if number else value, at, field)
    if not answers.extract(text):
        raise _bad(at, field, value, "an answer: nothing is left once it is extracted")
    return text


def _rows(records: Records, source: str) -> list[Row]:
    rows = [
        Row(number, _prompt(record, at), _answer(record, at))
        for number, at, record in records
    ]
    if not rows:
        raise ValueError(f"{source} has no problems")
    return rows


def _jsonl_records(path: str) -> Records:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            at = f"{path} row {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                record = json.loads(text) if text else {}
            except ValueError as error:
                raise ValueError(f"{at}: {line[:60]!r} is no JSON: {error}") from error
            if not isinstance(record, dict):
                raise _bad(at, "line", record, "a JSON object")
            if text:
                yield number, at, record


def read_jsonl(path: str) -> list[Row]:
    """Rows of a JSONL file, one JSON object a line; blank lines are passed over.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line is no JSON object or no problem, or there is none.
    """
    return _rows(_jsonl_records(path), path)


def _parquet_records(path: str) -> Records:
    parquet = _require("pyarrow.parquet", "parquet", "pyarrow")
    try:
        with parquet.ParquetFile(path) as file:
            have = file.schema_arrow.names
            table = file.read(columns=[name for name in COLUMNS if name in have])
    except FileNotFoundError:
        raise
    except Exception as error:  # pyarrow's own errors have no common base.
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from error
    if "prompt" not in have:
        raise ValueError(f"{path} has no column prompt, only {', '.join(have)}")
    for number, record in enumerate(table.to_pylist(), 1):
        yield number, f"{path} row {number}", record


def read_parquet(path: str) -> list[Row]:
    """Rows of a Parquet file; raises as `read_jsonl`, and ImportError."""
    return _rows(_parquet_records(path), path)


def _decoded(record: Mapping[str, Any], at: str, column: str) -> object:
    """A column's value, as text where TFDS gives bytes."""
    if column not in record:
        raise ValueError(f"{at}: no column {column!r}, only {', '.join(record)}")
    value = record[column]
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise _bad(at, column, value, "UTF-8 text") from error


def read_tfds(
    dataset: str, data_dir: str, split: str, question: str, answer: str
) -> list[Row]:
    """Rows of a split that was prepared under data_dir, from two of its columns.

    TensorFlow is not needed, and nothing is downloaded.

    Raises:
      ImportError: tensorflow-datasets is not installed.
      ValueError: the set, the split or a column is not there, a value is no text,
        or the split is empty.
    """
    tfds = _require("tensorflow_datasets", "tfds", "tensorflow-datasets")
    source = f"{dataset} in {data_dir}, split {split}"
    try:
        data = tfds.data_source(dataset, data_dir=data_dir, split=split, download=False)
    except Exception as error:  # Each way of not being there has its own error.
        raise ValueError(
            f"task=tfds cannot read {source}; prepare it there with"
            f' file_format="array_record": {type(error).__name__}: {error}'
        ) from error

    def records() -> Records:
        for number, record in enumerate(data, 1):
            at = f"{source}, row {number}"
            prompt = _text(_decoded(record, at, question), at, question)
            yield number, at, {"prompt": prompt, "answer": _decoded(record, at, answer)}

    return _rows(records(), source)
