r"""Whether a completion's final answer is the reference answer, from text alone.

Both sides go through `extract`, so that a reference with its working ("... #### 18")
and a bare one ("18") judge alike. Numbers are compared as decimals, everything else
as strings. Nothing is evaluated: "1/2" is not 0.5, and "9**9**9" is a string.
"""

from decimal import Decimal
import re

MINUS = "\u2212"
HASHES = "####"
_BOXED = re.compile(r"\\boxed\s*\{")
# Grouped digits do not start with 0, so that "0,125" stays what it is: no number.
# The exponent is short, so that no text can ask for a huge one.
_NUMBER = re.compile(
    r"[+-]?(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:[eE][+-]?[0-9]{1,3})?"
)


def _braced(text: str, start: int) -> str | None:
    """What stands between the brace before `start` and its partner, None without one.

    Escaped braces are characters of the text and have no partner.
    """
    depth, at = 1, start
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[start:at]
        at += 1
    return None


def extract(text: str) -> str:
    r"""The final answer, stripped: after the last "####" or in the last \boxed{...}.

    Where a text has both, the later one; where it has neither, the whole text. A
    \boxed whose brace never closes does not count.
    """
    tail = text[text.rfind(HASHES) + len(HASHES) :] if HASHES in text else text
    for match in reversed(list(_BOXED.finditer(tail))):
        boxed = _braced(tail, match.end())
        if boxed is not None:
            return boxed.strip()
    return tail.strip()


def number(text: str) -> Decimal | None:
    """The decimal that a text spells, None if it spells none.

    Signs + and - (also U+2212), commas between groups of exactly three digits, a
    decimal point, and an exponent of up to three digits are read.
    """
    plain = text.strip().replace(MINUS, "-")
    if _NUMBER.fullmatch(plain) is None:
        return None
    return Decimal(plain.replace(",", ""))


def grade(text: str, answer: str) -> float:
    """1.0 if a completion's final answer equals the reference's, else 0.0.

    Equal as numbers if both are numbers, else equal as strings, case-sensitive.
    """
    given, wanted = extract(text), extract(answer)
    given_number, wanted_number = number(given), number(wanted)
    if given_number is not None and wanted_number is not None:
        return float(given_number == wanted_number)
    return float(given == wanted)
