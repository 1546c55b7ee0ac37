"""Tests for jaxrl/tasks/scoring.py: decoding by mask, and what cannot be scored."""

import dataclasses
import warnings

import numpy as np
import pytest

from jaxrl.tasks import problems, scoring
from jaxrl.tasks.tokenizers import CharTokenizer

TOKENIZER = CharTokenizer("abcdefghi")
NAN = float("nan")


@dataclasses.dataclass(frozen=True)
class Pieces:
    """A tokenizer with two spellings of "hello", and padding that is also the end."""

    pieces = ("", "", "", "he", "llo", "hello")
    size = 6
    pad_id = 2
    end_ids = (2,)

    def encode(self, text):
        raise AssertionError("a completion was encoded again")

    def decode(self, ids):
        return "".join(self.pieces[i] for i in ids)


def some_problems(n=1):
    return problems.build(
        TOKENIZER, range(n), ["abc"[i] for i in range(n)], ["a"] * n, 8, "drop", "here"
    )


def batch(*groups):
    """tokens_PGT and mask_PGT of texts of one length."""
    tokens_PGT = np.array(
        [[TOKENIZER.encode(text) for text in group] for group in groups]
    )
    return tokens_PGT, np.ones(tokens_PGT.shape, bool)


def verdicts(values):
    """A scorer that gives one value after another, raising those that are errors."""
    left = iter(values)

    def score_text(_problems, _index, _text):
        value = next(left)
        if isinstance(value, Exception):
            raise value
        return value

    return score_text


def run(score, *groups):
    return score(some_problems(len(groups)), np.arange(len(groups)), *batch(*groups))


def test_masks_say_what_a_completion_is():
    """Padding equal to end, no end at all, end at once: tokens under the mask only."""
    tokens_PGT = np.array([[[5, 3, 2, 2, 2], [5, 3, 4, 5, 3], [2, 2, 2, 2, 2]]])
    mask_PGT = np.array([[[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]], bool)
    texts = scoring.decode_completions(Pieces(), tokens_PGT, mask_PGT)
    assert texts == [["hellohe", "hellohellohellohe", ""]]


def test_tokens_beyond_the_mask_do_not_show():
    tokens_PGT, mask_PGT = batch(["ab", "cd"], ["ef", "gh"])
    mask_PGT[0, 1, 1] = mask_PGT[1, 0, :] = False
    texts = scoring.decode_completions(TOKENIZER, tokens_PGT, mask_PGT)
    assert texts == [["ab", "c"], ["", "gh"]]


def test_scoring_reads_sampled_ids_and_never_encodes():
    seen = []
    score = scoring.host_score(
        "t", Pieces(), lambda _problems, _index, text: seen.append(text) or 1.0
    )
    score(
        some_problems(), np.array([0]), np.array([[[3, 4]]]), np.ones((1, 1, 2), bool)
    )
    assert seen == ["hello"]


def test_unscorable_completions_are_nan_and_cost_nothing_else():
    score = scoring.host_score("t", TOKENIZER, verdicts([1, 0, None, 0]))
    reward_PG = run(score, ["a", "b", "c", "d"])
    assert reward_PG.dtype == np.float32
    np.testing.assert_array_equal(reward_PG, [[1, 0, NAN, 0]])


@pytest.mark.parametrize(
    "value",
    [None, NAN, float("inf"), -float("inf"), 1e300, 10**400, ValueError("junk")],
    ids=str,
)
def test_one_unscorable_value(value):
    score = scoring.host_score("t", TOKENIZER, verdicts([0.5, value, True, np.int8(2)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reward_PG = run(score, ["a", "b"], ["c", "d"])
    np.testing.assert_array_equal(reward_PG, [[0.5, NAN], [1, 2]])


def test_a_whole_batch_may_be_unscorable_but_not_by_exceptions():
    every = scoring.host_score("t", TOKENIZER, verdicts([None] * 4))
    assert np.isnan(run(every, ["a", "b"], ["c", "d"])).all()
    raising = scoring.host_score("t", TOKENIZER, verdicts([KeyError("k")] * 4))
    with pytest.raises(RuntimeError, match="task t: all 4 .* KeyError: 'k'"):
        run(raising, ["a", "b"], ["c", "d"])
    almost = scoring.host_score("t", TOKENIZER, verdicts([KeyError("k")] * 3 + [None]))
    assert np.isnan(run(almost, ["a", "b"], ["c", "d"])).all()


def test_an_empty_batch_is_no_failure():
    score = scoring.host_score("t", TOKENIZER, verdicts([]))
    none = np.zeros((0, 4, 2), int)
    assert score(some_problems(), np.zeros(0, int), none, none > 0).shape == (0, 4)


@pytest.mark.parametrize("value", ["1.0", [1.0], {"score": 1}], ids=repr)
def test_a_verdict_of_another_type_is_named(value):
    score = scoring.host_score("t", TOKENIZER, verdicts([1.0, value]))
    with pytest.raises(TypeError, match=f"task t: .*{type(value).__name__}"):
        run(score, ["a", "b"])


def test_rewards_follow_index_P():
    """The scorer gets the problem that a row answers, not the row."""
    score = scoring.host_score(
        "t",
        TOKENIZER,
        lambda problems, index, text: problems.id_P[index] * 10 + len(text),
    )
    tokens_PGT, mask_PGT = batch(["ab", "cd"], ["ef", "gh"])
    mask_PGT[1, 1, 1] = False
    reward_PG = score(some_problems(3), np.array([2, 1]), tokens_PGT, mask_PGT)
    np.testing.assert_array_equal(reward_PG, [[22, 22], [12, 11]])


def test_list_scorer_sees_a_problem_at_a_time():
    seen = []

    def score_texts(_problems, index, texts):
        seen.append((index, texts))
        if index == 1:
            raise ValueError("junk")
        return [0.0, None]

    score = scoring.host_score_lists("t", TOKENIZER, score_texts)
    reward_PG = run(score, ["a", "b"], ["c", "d"])
    assert seen == [(0, ["a", "b"]), (1, ["c", "d"])]
    np.testing.assert_array_equal(reward_PG, [[0, NAN], [NAN, NAN]])


def test_list_scorer_that_always_raises_stops_the_run():
    def score_texts(*_):
        raise ValueError("junk")

    score = scoring.host_score_lists("t", TOKENIZER, score_texts)
    with pytest.raises(RuntimeError, match="task t: all 4 .* ValueError: junk"):
        run(score, ["a", "b"], ["c", "d"])


@pytest.mark.parametrize(
    "returned, error, message",
    [
        ([1.0, 0.0, 1.0], ValueError, "3 verdicts for 4 completions of problem 0"),
        ([1.0] * 5, ValueError, "5 verdicts for 4"),
        (1.0, TypeError, "float; a list"),
        ("1111", TypeError, "str; a list"),
        (None, TypeError, "NoneType; a list"),
    ],
)
def test_list_scorer_must_return_a_verdict_each(returned, error, message):
    score = scoring.host_score_lists("t", TOKENIZER, lambda *_: returned)
    with pytest.raises(error, match=message):
        run(score, ["a", "b", "c", "d"])


def test_arrays_that_do_not_fit_are_refused():
    score = scoring.host_score("t", TOKENIZER, lambda *_: 1.0)
    tokens_PGT, mask_PGT = batch(["a", "b"])
    with pytest.raises(ValueError, match="same three axes"):
        score(some_problems(), np.array([0]), tokens_PGT, mask_PGT[:, :1])
    with pytest.raises(ValueError):
        score(some_problems(2), np.array([0, 1]), tokens_PGT, mask_PGT)
