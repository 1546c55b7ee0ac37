"""Tests for jaxrl/tasks/files.py: splits, repeats, ids, real files if present."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from jaxrl.config import TaskConfig
from jaxrl.tasks import answers, records
from jaxrl.tasks.records import Row
from jaxrl.tasks.registry import make_task

REAL = pathlib.Path(__file__).parents[4] / "shared" / "data" / "problems"


def write(path, prompts):
    """A file of problems whose answers are their line numbers."""
    lines = [
        json.dumps({"prompt": prompt, "answer": str(row)})
        for row, prompt in enumerate(prompts, 1)
    ]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture
def cfg(tmp_path):
    """Eight rows, of which rows 3 and 8 repeat earlier prompts."""
    path = write(tmp_path / "set.jsonl", ["a", "b", "a", "c", "d", "e", "f", "c"])
    return TaskConfig(name="jsonl", path=path, train_problems=0, heldout_problems=2)


def with_heldout(cfg, tmp_path, **changes):
    """Five rows, of which b and e are also in the training file, and b twice."""
    path = write(tmp_path / "held.jsonl", ["x", "b", "y", "b", "e"])
    return dataclasses.replace(cfg, heldout_path=path, **changes)


def test_split_is_disjoint_complete_and_keeps_first_rows(cfg):
    task = make_task(cfg)
    assert (len(task.train), len(task.heldout)) == (4, 2)
    assert task.train.duplicates + task.heldout.duplicates == 2
    ids = sorted([*task.train.id_P, *task.heldout.id_P])
    np.testing.assert_array_equal(ids, [1, 2, 4, 5, 6, 7])
    for part in (task.train, task.heldout):
        assert part.answers == tuple(map(str, part.id_P))
    prompts = sorted(task.train.prompts + task.heldout.prompts)
    assert prompts == [f"{letter}\n" for letter in "abcdef"]


def test_split_depends_on_the_seed_alone(cfg):
    made = [make_task(dataclasses.replace(cfg, data_seed=s)) for s in (0, 0, 1, 2, 3)]
    heldout = [task.heldout.prompts for task in made]
    assert heldout[0] == heldout[1] and len(set(heldout)) > 1
    fewer = make_task(dataclasses.replace(cfg, train_problems=2))
    assert fewer.heldout.prompts == heldout[0]
    assert len(fewer.train) == 2 and set(fewer.train.id_P) < set(made[0].train.id_P)


@pytest.mark.parametrize("count", [0, 6, 7])
def test_split_must_leave_both_sides_something(cfg, count):
    with pytest.raises(
        ValueError, match=f"6 distinct .*heldout_problems={count} leaves"
    ):
        make_task(dataclasses.replace(cfg, heldout_problems=count))


def test_heldout_file_is_kept_out_of_training(cfg, tmp_path):
    task = make_task(with_heldout(cfg, tmp_path, heldout_problems=0))
    assert task.heldout.prompts == ("x\n", "b\n", "y\n", "e\n")
    np.testing.assert_array_equal(task.heldout.id_P - 2**30, [1, 2, 3, 5])
    assert task.train.prompts == ("a\n", "c\n", "d\n", "f\n")
    assert (task.train.duplicates, task.heldout.duplicates) == (4, 1)


def test_training_set_does_not_depend_on_how_much_is_held_out(cfg, tmp_path):
    task = make_task(with_heldout(cfg, tmp_path, heldout_problems=1))
    assert len(task.heldout) == 1
    assert task.train.prompts == ("a\n", "c\n", "d\n", "f\n")


def test_all_training_problems_held_out(cfg):
    with pytest.raises(ValueError, match="every problem is also a held-out problem"):
        make_task(dataclasses.replace(cfg, heldout_path=cfg.path))


def test_long_prompts_are_dropped_with_their_answers(tmp_path):
    """Limit 4, newline included: prompts of 6 and 7 bytes go, exactly 4 stays."""
    path = write(tmp_path / "set", ["abcdef", "abc", "abcde", "ab"])
    held = write(tmp_path / "held", ["x"])
    cfg = TaskConfig(name="jsonl", path=path, heldout_path=held, max_prompt=4)
    train = make_task(cfg).train
    assert (train.prompts, train.answers, train.dropped) == (
        ("abc\n", "ab\n"),
        ("2", "4"),
        2,
    )
    with pytest.raises(
        ValueError, match="set, training problems: problem 1 .* 7 tokens"
    ):
        make_task(dataclasses.replace(cfg, long_prompts="error"))


def score_texts(task, part, index_P, texts_PG):
    ids = [[task.tokenizer.encode(text) for text in texts] for texts in texts_PG]
    width = max(len(i) for row in ids for i in row)
    tokens_PGT = np.array([[i + [0] * (width - len(i)) for i in row] for row in ids])
    return task.score(part, index_P, tokens_PGT, tokens_PGT > 0)


def test_rewards_belong_to_the_problems_asked_about(cfg):
    task = make_task(cfg)
    index_P = np.array([2, 0])
    right = [task.train.answers[i] for i in index_P]
    texts_PG = [
        ["so\n#### " + right[0], right[1]],
        [right[0], f"\\boxed{{{right[1]}.0}}"],
    ]
    reward_PG = score_texts(task, task.train, index_P, texts_PG)
    np.testing.assert_array_equal(reward_PG, [[1, 0], [0, 1]])
    assert task.extract("so\n#### 3 ") == "3" and task.score_tokens is None


def test_tfds_task(monkeypatch):
    """Splits train and test, and the two columns, reach the reader."""
    splits = {"train": ["a", "b"], "test": ["b", "c"]}

    def read(dataset, data_dir, split, question, answer):
        assert (dataset, data_dir, question, answer) == ("sums", "here", "q", "answer")
        return [Row(i, f"{text}\n", "1") for i, text in enumerate(splits[split], 1)]

    monkeypatch.setattr(records, "read_tfds", read)
    cfg = TaskConfig(name="tfds", dataset="sums", path="here", question_column="q")
    task = make_task(cfg)
    assert (task.train.prompts, task.heldout.prompts) == (("a\n",), ("b\n", "c\n"))


@pytest.mark.parametrize(
    "name, rows",
    [("amc2023", 40), ("gsm8k_test", 1319), ("math500", 500)],
)
def test_real_files(name, rows):
    """Every row is read, and every reference is right however it is given."""
    path = REAL / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"{path.name} is not in shared/data/problems")
    cfg = TaskConfig(
        name="parquet",
        path=str(path),
        train_problems=0,
        heldout_problems=10,
        max_prompt=10_000,
    )
    task = make_task(cfg)
    assert len(task.train) + 10 + task.train.duplicates == rows
    assert task.train.dropped == task.heldout.dropped == 0
    for answer in task.train.answers:
        for text in (answer, f"so \\boxed{{{answer}}}.", f"so\n#### {answer}"):
            assert answers.grade(text, answer) == 1
        assert answers.grade(answer + " no", answer) == 0
