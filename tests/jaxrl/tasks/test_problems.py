"""Tests for jaxrl/tasks/problems.py: padding, the limit on prompts, ids."""

import numpy as np
import pytest

from jaxrl.config import TaskConfig
from jaxrl.tasks import problems
from jaxrl.tasks.tokenizers import CharTokenizer

TOKENIZER = CharTokenizer("abcdefghi")
END = 1


def build(prompts, answers=None, max_prompt=4, long_prompts="drop", ids=None):
    ids = list(range(10, 10 + len(prompts))) if ids is None else ids
    answers = ["a"] * len(prompts) if answers is None else answers
    return problems.build(
        TOKENIZER, ids, prompts, answers, max_prompt, long_prompts, "some file"
    )


def test_prompts_are_padded_left_and_targets_right():
    made = build(["ab", "cde"], ["b", "ba"])
    # The longest prompt has 3 tokens; rounded up to 8, but not over the limit of 4.
    np.testing.assert_array_equal(made.prompt_PS, [[0, 0, 2, 3], [0, 4, 5, 6]])
    np.testing.assert_array_equal(made.mask_PS, [[0, 0, 1, 1], [0, 1, 1, 1]])
    np.testing.assert_array_equal(made.target_PX, [[3, END, 0], [3, 2, END]])
    np.testing.assert_array_equal(made.target_mask_PX, [[1, 1, 0], [1, 1, 1]])
    np.testing.assert_array_equal(made.id_P, [10, 11])
    dtypes = (made.id_P, made.prompt_PS, made.target_PX)
    assert all(x.dtype == np.int32 for x in dtypes)
    assert made.mask_PS.dtype == made.target_mask_PX.dtype == bool
    assert (made.prompts, made.answers, len(made)) == (("ab", "cde"), ("b", "ba"), 2)


@pytest.mark.parametrize("longest, width", [(1, 8), (8, 8), (9, 16), (17, 20)])
def test_width_is_the_next_multiple_of_8_up_to_the_limit(longest, width):
    made = build(["a", "b" * longest], max_prompt=20)
    assert made.prompt_PS.shape == (2, width)
    np.testing.assert_array_equal(made.mask_PS.sum(axis=1), [1, longest])


def test_long_prompts_are_dropped_whole_and_counted():
    """Limit 4, prompts of 6 and exactly 4: the rest stays aligned."""
    made = build(["ab", "abcdef", "cdef"], ["a", "b", "c"])
    assert (made.prompts, made.answers, made.dropped) == (("ab", "cdef"), ("a", "c"), 1)
    np.testing.assert_array_equal(made.id_P, [10, 12])
    np.testing.assert_array_equal(made.target_PX[:, 0], [2, 4])
    np.testing.assert_array_equal(made.mask_PS.sum(axis=1), [2, 4])


def test_long_prompts_raise_if_asked_to():
    assert build(["cdef"], long_prompts="error").dropped == 0
    with pytest.raises(ValueError, match=r"some file: problem 11 \('abcdef'\).* 6 tok"):
        build(["ab", "abcdef"], long_prompts="error")


@pytest.mark.parametrize("long_prompts", ["drop", "error"])
def test_empty_prompt_raises(long_prompts):
    with pytest.raises(ValueError, match="some file: problem 11 .* empty prompt"):
        build(["ab", ""], long_prompts=long_prompts)


@pytest.mark.parametrize(
    "bad, message",
    [
        (dict(prompts=["abcde", "abcdef"]), "all 2 .*max_prompt=4; they have 5 to 6"),
        (dict(prompts=["ab", "aZ"]), "problem 11 .*character 'Z'"),
        (dict(prompts=["ab"], answers=["Z"]), "answer of problem 10: character 'Z'"),
        (dict(prompts=["ab"], answers=["a", "b"]), "1 ids, 1 prompts, 2 answers"),
        (dict(prompts=["ab", "b"], ids=[3, 3]), "1 problem ids repeat"),
        (dict(prompts=["ab"], ids=[2**31]), "id 2147483648"),
        (dict(prompts=["ab"], long_prompts="cut"), "long_prompts='cut'"),
    ],
)
def test_bad_problems_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        build(**bad)


def test_no_problems_are_an_empty_set():
    made = build([])
    assert len(made) == 0 and made.prompt_PS.ndim == made.target_PX.ndim == 2


def test_ids_follow_the_prompt_whatever_comes_after():
    # "plumless" and "buckeroo" have the same CRC-32.
    prompts = ["plumless", "a", "buckeroo", "b"]
    made = problems.prompt_ids(prompts)
    assert made[0] == 0x4DDB0C25 and made[2] == 0x4DDB0C26
    assert len(set(made)) == 4 and all(0 <= i < 2**31 for i in made)
    assert problems.prompt_ids(prompts[:2]) == made[:2]
    assert problems.prompt_ids(["b", "a"]) == [made[3], made[1]]


@pytest.mark.parametrize("name", ["train_problems", "heldout_problems"])
def test_generated_tasks_need_a_number_of_problems(name):
    with pytest.raises(ValueError, match=f"task.{name}=0"):
        problems.check_generated(TaskConfig(**{name: 0}))
