"""Tests for jaxrl/tasks/reasoning.py: the dataset's problems and scores, no repeats."""

import dataclasses
import random
import sys

import numpy as np
import pytest

from jaxrl.config import TaskConfig
from jaxrl.tasks.registry import make_task

rg = pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")

SUMS = TaskConfig(
    name="reasoning_gym",
    dataset="chain_sum",
    options='{"min_terms": 2, "max_terms": 2, "max_digits": 1}',
    train_problems=30,
    heldout_problems=10,
)


def replace(**changes):
    return dataclasses.replace(SUMS, **changes)


def score_one(task, part, index, *texts):
    width = max(map(len, texts)) or 1
    ids = [[*task.tokenizer.encode(text), *[0] * (width - len(text))] for text in texts]
    tokens_PGT = np.array([ids])
    return task.score(part, np.array([index]), tokens_PGT, tokens_PGT > 0)[0]


def test_problems_are_the_dataset_s_by_index():
    task = make_task(SUMS)
    dataset = rg.create_dataset(
        "chain_sum", size=500, seed=0, min_terms=2, max_terms=2, max_digits=1
    )
    for part in (task.heldout, task.train):
        for number, prompt, answer in zip(
            part.id_P, part.prompts, part.answers, strict=True
        ):
            entry = dataset[int(number)]
            assert (entry["question"] + "\n", entry["answer"]) == (prompt, answer)


def test_repeats_are_skipped_and_counted():
    """Sums and differences of two digits are 200, so 40 draws repeat some."""
    task = make_task(SUMS)
    assert (len(task.heldout), len(task.train)) == (10, 30)
    assert len(set(task.heldout.prompts + task.train.prompts)) == 40
    last = task.train.id_P.max()
    assert task.train.duplicates == last + 1 - 40 > 0


def test_more_training_problems_change_nothing_else():
    task, more = make_task(SUMS), make_task(replace(train_problems=35))
    assert more.heldout.prompts == task.heldout.prompts
    assert more.train.prompts[:30] == task.train.prompts
    assert make_task(replace(data_seed=99)).train.prompts != task.train.prompts


def test_exhausted_dataset_says_how_many_there_are():
    # The chance that one of 200 is not among 4140 draws is 2e-7.
    with pytest.raises(ValueError, match="only 200 distinct problems in 4140 draws"):
        make_task(replace(train_problems=1000))


def test_scores_are_the_dataset_s_own():
    task = make_task(SUMS)
    answer = task.train.answers[4]
    rewards = score_one(
        task, task.train, 4, answer, f" {answer}\n", f"{answer} ", answer + "12", ""
    )
    partial = len(answer) / (len(answer) + 2)
    np.testing.assert_allclose(rewards, [1, 1, 1, partial, 0], rtol=1e-6)
    other = next(i for i, a in enumerate(task.train.answers) if a not in answer)
    assert score_one(task, task.train, other, answer)[0] < 1
    assert task.extract(f" {answer}\n") == answer


def test_completions_are_scored_without_surrounding_space():
    """lcm compares strings: " 12" would get partial credit."""
    task = make_task(replace(dataset="lcm", options="{}"))
    answer = task.train.answers[0]
    rewards = score_one(task, task.train, 0, f" {answer}\n", answer + ".")
    np.testing.assert_allclose(rewards, [1, len(answer) / (len(answer) + 1)], rtol=1e-6)


def test_datasets_without_reference_answers_have_empty_ones():
    task = make_task(replace(dataset="graph_color", options="{}", max_prompt=2000))
    assert set(task.train.answers) == {""}


def test_a_dataset_may_know_its_own_end(monkeypatch):
    dataset_class = rg.factory.DATASETS["chain_sum"][0]
    item = dataset_class.__getitem__

    def ends(self, index):
        if index >= 20:
            raise IndexError(index)
        return item(self, index)

    monkeypatch.setattr(dataset_class, "__getitem__", ends)
    with pytest.raises(ValueError, match="distinct problems in 20 draws"):
        make_task(SUMS)


def test_a_scorer_that_raises_costs_one_completion():
    """prime_factorization raises on what is no list of factors."""
    task = make_task(
        replace(dataset="prime_factorization", options="{}", train_problems=3)
    )
    rewards = score_one(task, task.train, 0, task.train.answers[0], "junk")
    np.testing.assert_array_equal(rewards, [1, np.nan])


def test_generators_of_the_global_stream_are_seeded_and_leave_it_alone():
    """list_functions draws some of its numbers from the module `random`."""
    cfg = replace(dataset="list_functions", options="{}", max_prompt=2000)
    random.seed(1)
    before = random.getstate()
    first = make_task(cfg)
    assert random.getstate() == before
    random.seed(2)
    assert make_task(cfg).train.prompts == first.train.prompts


def test_composite_takes_its_parts_from_json():
    parts = [{"name": n, "weight": 1, "config": {}} for n in ("gcd", "chain_sum")]
    options = '{"datasets": ' + str(parts).replace("'", '"') + "}"
    task = make_task(replace(dataset="composite", options=options))
    found = [("Common Divisor" in p, "arithmetic" in p) for p in task.train.prompts]
    assert set(found) == {(True, False), (False, True)}


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(dataset="chain_summ"), "'chain_summ' .* did you mean chain_sum?"),
        (dict(options='{"min_term": 2}'), "'min_term', .* did you mean min_terms?"),
        (dict(options='{"min_terms": 0}'), "min_terms.* is refused by chain_sum"),
        (dict(options='{"min_terms": "x"}'), "min_terms.* is refused by chain_sum"),
        (dict(options='{"size": 3}'), "sets 'size'"),
        (dict(options='{"seed": 3}'), "sets 'seed'"),
        (dict(options="[1]"), "not a JSON object"),
        (dict(options="{"), "is no JSON"),
        (dict(train_problems=0), "task.train_problems=0"),
    ],
)
def test_bad_configs_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        make_task(replace(**changes))


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ImportError, match=r"pip install -e '.\[tasks\]'"):
        make_task(SUMS)
