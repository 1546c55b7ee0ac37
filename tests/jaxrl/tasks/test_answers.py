"""Tests for jaxrl/tasks/answers.py: a table of texts and what they answer."""

from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from jaxrl.tasks import answers


@pytest.mark.parametrize(
    "text, number",
    [
        ("7", 7),
        (" +7\n", 7),
        ("-3", -3),
        ("\u22123", -3),
        ("007", 7),
        ("7.", 7),
        (".5", "0.5"),
        ("1.50", "1.5"),
        ("1,234", 1234),
        ("1,234,567.8", "1234567.8"),
        ("2e3", 2000),
        ("1E-2", "0.01"),
    ],
)
def test_numbers(text, number):
    assert answers.number(text) == Decimal(number)


@pytest.mark.parametrize(
    "text",
    ["", ".", "-", "1,23", "1234,567", "12,34,567", "0,125", ",123", "1,2345", "1 2"]
    + ["1_000", "nan", "inf", "1/2", "9**9", "1e9999", "0x10", "\u0663", "--3", "$7"],
)
def test_not_numbers(text):
    assert answers.number(text) is None


@settings(deadline=None, max_examples=50)
@given(st.integers(-(10**12), 10**12))
def test_numbers_are_equal_however_grouped(number):
    assert answers.number(f"{number:,}") == answers.number(f"{number}.00") == number


@pytest.mark.parametrize(
    "text, answer",
    [
        ("  42 \n", "42"),
        ("5 + 5 = 10\n#### 10", "10"),
        ("#### 1\nno, #### 2 ", "2"),
        (r"so \boxed{3}.", "3"),
        (r"\boxed{1} or \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}} done", r"\frac{1}{2}"),
        (r"\boxed {x}", "x"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{a \\}", r"a \\"),
        (r"\boxed{7} and then \boxed{8", "7"),
        (r"\boxed{8", r"\boxed{8"),
        (r"\boxed{1} #### 2", "2"),
        (r"#### so \boxed{2}", "2"),
        (r"\boxed{}", ""),
        ("18\n####", ""),
        ("", ""),
    ],
)
def test_extract(text, answer):
    assert answers.extract(text) == answer


@pytest.mark.parametrize(
    "text, answer, reward",
    [
        ("+7", "7", 1),
        ("-3", "3", 0),
        ("\u22123", "-3", 1),
        ("1,000", "1000", 1),
        ("10,00", "1000", 0),
        ("18.0", "18", 1),
        ("0.1", "0.10", 1),
        ("0.30000000000000004", "0.3", 0),
        ("The answer is 18", "18", 0),
        ("48/2 = 24\n#### 24", "24", 1),
        ("24", "Natalia sold 48/2 = 24\n#### 24", 1),
        (r"\boxed{24}", "#### 24", 1),
        ("x", "X", 0),
        ("x ", " x", 1),
        ("1+1", "2", 0),
        ("1/2", "0.5", 0),
        ("", "7", 0),
        (r"\boxed{}", "7", 0),
    ],
)
def test_grade(text, answer, reward):
    assert answers.grade(text, answer) == reward
