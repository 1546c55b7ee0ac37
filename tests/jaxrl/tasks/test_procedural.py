"""Tests for jaxrl/tasks/procedural.py: problems by their meaning, rewards by a loop."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from jaxrl import config
from jaxrl.config import TaskConfig
from jaxrl.tasks import procedural
from jaxrl.tasks.registry import make_task

END = 1
SUMS = TaskConfig(train_problems=60, heldout_problems=20)
LETTERS = TaskConfig(
    name="sequence", train_problems=60, heldout_problems=20, length=3, symbols=5
)
EVERY = [
    SUMS,
    dataclasses.replace(SUMS, terms=4, digits=8),
    *(dataclasses.replace(LETTERS, kind=kind) for kind in config.SEQUENCE_KINDS),
    dataclasses.replace(LETTERS, length=40, symbols=26),
]
ANSWERS = {
    "copy": lambda text: text,
    "reverse": lambda text: "".join(reversed(text)),
    "sort": lambda text: "".join(sorted(text)),
}
tasks = pytest.mark.parametrize("cfg", EVERY, ids=lambda c: f"{c.name}-{c.kind}")


def by_hand(target, completion):
    """Share of the target right before the first mistake, and whether all is.

    Sequences of tokens without padding; a completion that goes on after the target
    is one that has its end in the wrong place.
    """
    right = 0
    for wanted, given in zip(target, completion, strict=False):
        if wanted != given:
            break
        right += 1
    if len(completion) > len(target):
        right = min(right, len(target) - 1)
    return right / len(target), float(list(target) == list(completion))


def padded(rows, width, fill):
    out = np.full((len(rows), width), fill, np.int32)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out, np.arange(width)[None] < np.array([len(r) for r in rows])[:, None]


@tasks
def test_answers_are_right(cfg):
    task = make_task(cfg)
    assert (len(task.train), len(task.heldout)) == (60, 20)
    for part in (task.train, task.heldout):
        for prompt, answer in zip(part.prompts, part.answers, strict=True):
            body = prompt.removesuffix("=")
            assert body + "=" == prompt
            if cfg.name == "arithmetic":
                terms = body.split("+")
                assert len(terms) == cfg.terms
                assert all(t == str(int(t)) and len(t) <= cfg.digits for t in terms)
                assert sum(map(int, terms)) == int(answer)
            else:
                assert len(body) == cfg.length
                assert set(body) <= set(procedural.LETTERS[: cfg.symbols])
                assert ANSWERS[cfg.kind](body) == answer


def test_examples():
    assert procedural.TRANSFORMS["reverse"]("cab") == "bac"
    assert procedural.TRANSFORMS["sort"]("cab") == "abc"
    task = make_task(dataclasses.replace(LETTERS, kind="sort"))
    assert task.tokenizer.size == 2 + 5 + 1
    assert make_task(SUMS).tokenizer.size == 2 + 10 + 2


@tasks
def test_problems_and_ids_are_distinct(cfg):
    task = make_task(cfg)
    prompts = task.train.prompts + task.heldout.prompts
    assert len(set(prompts)) == 80
    assert len(set(task.train.id_P) | set(task.heldout.id_P)) == 80


@tasks
def test_more_training_problems_change_nothing_else(cfg):
    task, more = make_task(cfg), make_task(dataclasses.replace(cfg, train_problems=65))
    assert more.heldout.prompts == task.heldout.prompts
    assert more.train.prompts[:60] == task.train.prompts
    np.testing.assert_array_equal(more.train.id_P[:60], task.train.id_P)
    other = make_task(dataclasses.replace(cfg, data_seed=1))
    assert other.heldout.prompts != task.heldout.prompts


def test_whole_space_is_used_and_no_more():
    """Two terms of one digit make 100 sums."""
    cfg = TaskConfig(digits=1, train_problems=70, heldout_problems=30)
    task = make_task(cfg)
    every = {f"{a}+{b}=" for a in range(10) for b in range(10)}
    assert set(task.train.prompts + task.heldout.prompts) == every
    with pytest.raises(ValueError, match=r"100 distinct .*train_problems=71.*digits"):
        make_task(dataclasses.replace(cfg, train_problems=71))
    letters = dataclasses.replace(LETTERS, length=2, symbols=3, heldout_problems=2)
    with pytest.raises(ValueError, match=r"9 distinct .*task.length or task.symbols"):
        make_task(dataclasses.replace(letters, train_problems=8))


@pytest.mark.parametrize("base, width", [(3, 4), (10**8, 3)])
def test_rows_are_uniform(base, width):
    rows = np.array(procedural.distinct_rows(0, base, width, min(base**width, 500)))
    assert rows.min() >= 0 and rows.max() < base
    # The mean of base equally likely values; 5 standard errors, 0 for a whole space.
    whole = len(rows) == base**width
    error = 0 if whole else 5 * base / np.sqrt(12 * len(rows))
    assert (abs(rows.mean(axis=0) - (base - 1) / 2) <= error + 1e-9).all()
    # Columns are independent; 5 standard errors again.
    correlation = np.corrcoef(rows.T) - np.eye(width)
    assert abs(correlation).max() <= (1e-9 if whole else 5 / np.sqrt(len(rows)))


def test_reward_table_is_the_config_s():
    assert set(procedural.REWARD_FNS) == set(config.REWARDS)
    assert set(procedural.TRANSFORMS) == set(config.SEQUENCE_KINDS)


TARGETS = [(5, 6, END), (7, END), (5, 6, 7, END)]
COMPLETIONS = [
    (),
    (END,),
    (5,),
    (5, 6),
    (5, 6, END),
    (5, 6, 0, END),
    (7, END),
    (7, END, 7),
    (7, 7, END),
    (6, 6, END),
    (5, 6, 7, END),
    (5, 6, 7, 8),
    (5, 6, 7, 8, END),
]


@pytest.mark.parametrize("width", [5, 9], ids="T={}".format)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_rewards_follow_their_definition(width, wrap):
    """Every completion against every target; padding holds what must not count."""
    target_PX, target_mask_PX = padded(TARGETS, 4, 5)
    tokens_GT, mask_GT = padded(COMPLETIONS, width, END)
    tokens_PGT, mask_PGT = (np.stack([x] * 3) for x in (tokens_GT, mask_GT))
    args = (target_PX, target_mask_PX, tokens_PGT, mask_PGT)
    pairs = [[by_hand(t, c) for c in COMPLETIONS] for t in TARGETS]
    fraction_PG, exact_PG = np.moveaxis(np.array(pairs), 2, 0)
    assert exact_PG.sum() == 3
    exact, fraction = (wrap(fn)(*args) for fn in procedural.REWARD_FNS.values())
    np.testing.assert_array_equal(exact, exact_PG)
    np.testing.assert_allclose(fraction, fraction_PG, rtol=1e-6)
    assert exact.dtype == fraction.dtype == np.float32


def test_completions_narrower_than_the_target():
    """T=2: only the target of two tokens can be met."""
    target_PX, target_mask_PX = padded(TARGETS, 4, 0)
    tokens_PGT = np.array([[[5, 6]], [[7, END]], [[5, 8]]])
    args = (target_PX, target_mask_PX, tokens_PGT, np.ones((3, 1, 2), bool))
    np.testing.assert_array_equal(procedural.exact_reward(*args), [[0], [1], [0]])
    np.testing.assert_allclose(
        procedural.fraction_reward(*args), [[2 / 3], [1], [1 / 4]], rtol=1e-6
    )


@pytest.mark.parametrize("length", [0, 1])
def test_a_row_without_a_target_is_never_right(length):
    """Not even by a completion that happens to be the padding."""
    none = np.zeros((1, 3), np.int32)
    mask_PGT = np.arange(3)[None, None] < length
    for reward in procedural.REWARD_FNS.values():
        np.testing.assert_array_equal(
            reward(none, none > 0, none[None], mask_PGT), [[0]]
        )


@pytest.mark.parametrize("reward", config.REWARDS)
@tasks
def test_task_scores_its_own_answers(cfg, reward):
    """Reference answers get 1 in their own row and less in another's."""
    task = make_task(dataclasses.replace(cfg, reward=reward))
    part = task.heldout
    index_P = np.array([3, 0, 7])
    own, mask = (x[index_P][:, None] for x in (part.target_PX, part.target_mask_PX))
    reward_PG = task.score(part, index_P, own, mask)
    np.testing.assert_array_equal(reward_PG, np.ones((3, 1)))
    begun = task.score(part, index_P, own, mask & (np.arange(own.shape[2]) == 0))
    share = 1 / mask.sum(axis=2) if reward == "fraction" else np.zeros((3, 1))
    np.testing.assert_allclose(begun, share, rtol=1e-6)
    wrong = np.where(own == END, own, own ^ 1)
    assert (task.score(part, index_P, wrong, mask) < 1).all()
    others = {part.answers[i] for i in index_P}
    if len(others) == 3:
        rolled = task.score(part, np.roll(index_P, 1), own, mask)
        assert (rolled < 1).all()
    texts = [task.extract(task.tokenizer.decode(row)) for row in own[:, 0]]
    assert texts == [part.answers[i] for i in index_P]


def test_score_works_under_a_mesh():
    task = make_task(SUMS)
    part, index_P = task.train, np.arange(2)
    args = part.target_PX[:2, None], part.target_mask_PX[:2, None]
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        reward_PG = task.score(part, index_P, *args)
    assert isinstance(reward_PG, np.ndarray) and reward_PG.tolist() == [[1], [1]]


def test_rewards_reject_masks_of_another_type_or_shape():
    ok = [np.ones((2, 3), int), np.ones((2, 3), bool), *np.ones((2, 2, 1, 4), int)]
    ok[3] = ok[3].astype(bool)
    procedural.leading_tokens(*ok)
    for at, change in itertools.product((1, 3), (lambda m: m * 1.0, lambda m: m[:1])):
        bad = [change(x) if i == at else x for i, x in enumerate(ok)]
        with pytest.raises(AssertionError):
            procedural.leading_tokens(*bad)
