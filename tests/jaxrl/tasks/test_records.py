"""Tests for jaxrl/tasks/records.py: accepted layouts, and errors that say where."""

import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxrl.tasks import records
from jaxrl.tasks.records import Row

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
GOOD = {
    "data_source": "made up",
    "prompt": CHAT,
    "reward_model": {"ground_truth": "2", "style": "rule"},
}


def write_jsonl(path, *lines):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return str(path)


def write_parquet(path, *rows):
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return str(path)


FORMATS = {
    "jsonl": (write_jsonl, records.read_jsonl),
    "parquet": (write_parquet, records.read_parquet),
}
formats = pytest.mark.parametrize("write, read", FORMATS.values(), ids=FORMATS)


@formats
def test_chat_layout(tmp_path, write, read):
    path = write(tmp_path / "set", GOOD)
    assert read(path) == [Row(1, "Be brief.\n1+1?\n", "2")]


@formats
@pytest.mark.parametrize(
    "answer, text", [("4\u00e9", "4\u00e9"), (4, "4"), (0.5, "0.5")]
)
def test_plain_layout(tmp_path, write, read, answer, text):
    path = write(tmp_path / "set", {"prompt": "2+2?", "answer": answer, "extra": 1})
    assert read(path) == [Row(1, "2+2?\n", text)]


def test_jsonl_rows_are_lines(tmp_path):
    other = {"prompt": "2\u2028+2?", "answer": "4"}
    raw = json.dumps(other, ensure_ascii=False)
    path = write_jsonl(tmp_path / "set", "\ufeff" + json.dumps(GOOD), "", raw)
    assert [(row.number, row.answer) for row in records.read_jsonl(path)] == [
        (1, "2"),
        (3, "4"),
    ]


BAD = {
    "no prompt": ({"answer": "2"}, "row 2: no prompt, only answer"),
    "no answer": ({"prompt": "q"}, "row 2: neither reward_model.ground_truth nor"),
    "prompt type": ({"prompt": 3, "answer": "2"}, r"row 2: prompt=3 of type int"),
    "empty chat": ({"prompt": [], "answer": "2"}, r"row 2: prompt=\[\]"),
    "blank": ({"prompt": " ", "answer": "2"}, "row 2: prompt=' '"),
    "message": ({"prompt": ["q"], "answer": "2"}, r"row 2: prompt\[0\]='q'"),
    "content": (
        {"prompt": [{"role": "user"}], "answer": "2"},
        r"row 2: prompt\[0\].content=None",
    ),
    "truth": ({"prompt": "q", "reward_model": {}}, "ground_truth=None"),
    "truth type": (
        {"prompt": "q", "reward_model": {"ground_truth": [2]}},
        r"row 2: reward_model.ground_truth=\[2\] of type list",
    ),
    "model": ({"prompt": "q", "reward_model": "2"}, "row 2: reward_model='2'"),
    "bool": ({"prompt": "q", "answer": True}, "row 2: answer=True of type bool"),
    "empty answer": ({"prompt": "q", "answer": ""}, "row 2: answer=''"),
    "no final": ({"prompt": "q", "answer": "x ####"}, "row 2: answer='x ####'"),
    "nan": ('{"prompt": "q", "answer": NaN}', "row 2: answer=nan"),
    "json": ('{"prompt": "q"', 'row 2: b\'{"prompt": "q"\\\\n\' is no JSON'),
    "no object": ("[1]", "row 2: line=\\[1\\] of type list"),
    "null": ("null", "row 2: line=None"),
    "long": ({"prompt": "q", "answer": ["x" * 999]}, r"answer=\['x{75}\.\.\. of"),
}


@pytest.mark.parametrize("line, message", BAD.values(), ids=BAD)
def test_bad_lines_are_named(tmp_path, line, message):
    path = write_jsonl(tmp_path / "set.jsonl", GOOD, line)
    with pytest.raises(ValueError, match=f"set.jsonl .*{message}"):
        records.read_jsonl(path)


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "set").write_bytes(
        json.dumps(GOOD).encode() + b'\n{"prompt": "\xff"}\n'
    )
    with pytest.raises(ValueError, match="set row 2: .* is no JSON"):
        records.read_jsonl(str(tmp_path / "set"))


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_jsonl(tmp_path, text):
    (tmp_path / "set").write_text(text)
    with pytest.raises(ValueError, match="set has no problems"):
        records.read_jsonl(str(tmp_path / "set"))


def test_bad_parquet(tmp_path):
    with pytest.raises(ValueError, match="set has no problems"):
        empty = pa.table({"prompt": pa.array([], pa.string()), "answer": pa.array([])})
        pq.write_table(empty, tmp_path / "set")
        records.read_parquet(str(tmp_path / "set"))
    path = write_parquet(tmp_path / "none", {"question": "q", "answer": "2"})
    with pytest.raises(
        ValueError, match="none has no column prompt, only question, ans"
    ):
        records.read_parquet(path)
    path = write_parquet(
        tmp_path / "null", {"prompt": "q", "answer": "2"}, {"prompt": "r"}
    )
    with pytest.raises(ValueError, match="null row 2: neither"):
        records.read_parquet(path)
    (tmp_path / "text").write_text("not a table")
    with pytest.raises(ValueError, match="text cannot be read as Parquet"):
        records.read_parquet(str(tmp_path / "text"))


@pytest.mark.parametrize("read", [records.read_jsonl, records.read_parquet])
def test_missing_file(tmp_path, read):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "module, read, message",
    [
        ("pyarrow.parquet", lambda: records.read_parquet("x"), "pip install pyarrow"),
        (
            "tensorflow_datasets",
            lambda: records.read_tfds("x", "y", "train", "q", "a"),
            "task=tfds needs the tensorflow-datasets package",
        ),
    ],
)
def test_missing_package(monkeypatch, module, read, message):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=message):
        read()


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A set of five sums, prepared once without TensorFlow and without network."""
    tfds = pytest.importorskip("tensorflow_datasets")
    text = tfds.features.Text()
    columns = {"question": text, "answer": text, "level": np.int32}

    class TinySums(tfds.core.GeneratorBasedBuilder):
        """Sums."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.FeaturesDict(columns)
            return tfds.core.DatasetInfo(
                builder=self, features=features, description="Sums."
            )

        def _split_generators(self, dl_manager):
            return {
                "train": self._generate_examples(3),
                "test": self._generate_examples(2),
            }

        def _generate_examples(self, count):
            for i in range(count):
                row = {"question": f"{i}+{count}\u00e9?", "answer": f"{i + count}"}
                yield i, row | {"level": i}

    path = str(tmp_path_factory.mktemp("tfds"))
    TinySums(data_dir=path, file_format="array_record").download_and_prepare()
    return path


def read_sums(data_dir, split="train", question="question", answer="answer"):
    return records.read_tfds("tiny_sums", data_dir, split, question, answer)


@pytest.mark.parametrize("split, count", [("train", 3), ("test", 2)])
def test_tfds_rows(data_dir, split, count):
    rows = read_sums(data_dir, split)
    # TFDS shuffles by key, so the order is its own.
    assert {row.number for row in rows} == set(range(1, count + 1))
    assert {(row.prompt, row.answer) for row in rows} == {
        (f"{i}+{count}\u00e9?\n", f"{i + count}") for i in range(count)
    }


def test_tfds_number_columns_are_answers_too(data_dir):
    rows = read_sums(data_dir, answer="level")
    assert sorted(row.answer for row in rows) == ["0", "1", "2"]


def test_tfds_names_what_is_not_there(data_dir, tmp_path):
    with pytest.raises(ValueError, match="row 1: no column 'text', only .*question"):
        read_sums(data_dir, question="text")
    with pytest.raises(ValueError, match="cannot read tiny_sums .* split valid"):
        read_sums(data_dir, split="validation")
    with pytest.raises(ValueError, match="cannot read other in .*split train"):
        records.read_tfds("other", str(tmp_path), "train", "question", "answer")
    with pytest.raises(ValueError, match="row 1: level=.* is not text"):
        read_sums(data_dir, question="level")
