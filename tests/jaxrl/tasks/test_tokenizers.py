"""Tests for jaxrl/tasks/tokenizers.py: ids by hand, round trips, ids beyond the end."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from jaxrl.tasks.tokenizers import ByteTokenizer, CharTokenizer

TOKENIZERS = [ByteTokenizer(), CharTokenizer("0123456789+=")]
ids = pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda t: type(t).__name__)


def test_ids_of_bytes_are_the_bytes_plus_two():
    assert ByteTokenizer().size == 258
    assert ByteTokenizer().encode("A\u00e9") == [65 + 2, 0xC3 + 2, 0xA9 + 2]


def test_ids_of_characters_follow_the_alphabet():
    tokenizer = CharTokenizer("ba=")
    assert tokenizer.size == 5
    assert tokenizer.encode("=ab") == [4, 3, 2]


@ids
def test_padding_is_0_and_end_is_1(tokenizer):
    assert (tokenizer.pad_id, tokenizer.end_ids) == (0, (1,))
    text_ids = tokenizer.encode("1+2=")
    assert min(text_ids) >= 2 and max(text_ids) < tokenizer.size
    assert tokenizer.decode([0, *text_ids, 1, 0]) == "1+2="
    assert tokenizer.decode(np.array(text_ids, np.int32)) == "1+2="


@settings(deadline=None, max_examples=50)
@given(st.text())
def test_every_text_comes_back_from_bytes(text):
    assert ByteTokenizer().decode(ByteTokenizer().encode(text)) == text


@ids
def test_decode_never_raises(tokenizer):
    """A model's vocabulary may be padded beyond the tokenizer's."""
    beyond = [tokenizer.size, 151935, -1]
    assert tokenizer.decode(beyond) == "\ufffd" * 3
    mixed = tokenizer.decode([*tokenizer.encode("1"), 151935, *tokenizer.encode("2")])
    assert mixed == "1\ufffd2"
    tokenizer.decode(np.random.default_rng(0).integers(-10, 1000, 2000))


def test_bytes_that_are_not_utf8_become_replacements():
    assert ByteTokenizer().decode([0xC3 + 2, 65 + 2]) == "\ufffdA"


def test_unknown_character_is_named():
    with pytest.raises(ValueError, match="character 'x' of '1x'"):
        CharTokenizer("1").encode("1x")


@pytest.mark.parametrize("alphabet", ["", "aba"])
def test_alphabet_must_be_distinct_characters(alphabet):
    with pytest.raises(ValueError, match="distinct"):
        CharTokenizer(alphabet)
