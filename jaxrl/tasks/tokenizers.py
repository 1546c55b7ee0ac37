"""Tokenizers that need no vocabulary file: one id per byte, or one per character.

Both keep id 0 for padding and id 1 for the end of a completion, and start their
own symbols at 2. Decoding skips those two, and turns an id outside the vocabulary
into U+FFFD: a model may have more rows than the tokenizer, and a sampled id must
never stop a run.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

PAD, END, FIRST = 0, 1, 2
REPLACEMENT = "\ufffd"


@dataclasses.dataclass(frozen=True)
class ByteTokenizer:
    """Byte b of the UTF-8 text is id b + 2, so every text has ids."""

    @property
    def size(self) -> int:
        """256 bytes, padding and end."""
        return 256 + FIRST

    @property
    def pad_id(self) -> int:
        """Id of padding."""
        return PAD

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The one end id."""
        return (END,)

    def encode(self, text: str) -> list[int]:
        """Ids of the UTF-8 bytes; ValueError for a lone surrogate, which has none."""
        return [byte + FIRST for byte in text.encode("utf-8")]

    def decode(self, ids: np.ndarray | Sequence[int]) -> str:
        """Text of the bytes; U+FFFD where they are not UTF-8 or not bytes at all."""
        # 0xFF occurs in no UTF-8 text, so it decodes to U+FFFD wherever it stands.
        return bytes(
            int(i) - FIRST if FIRST <= i < self.size else 0xFF
            for i in ids
            if i not in (PAD, END)
        ).decode("utf-8", errors="replace")


@dataclasses.dataclass(frozen=True)
class CharTokenizer:
    """The k-th character of the alphabet is id k + 2.

    Attributes:
      alphabet: distinct characters; ValueError if one repeats or there is none.
    """

    alphabet: str

    def __post_init__(self) -> None:
        if not self.alphabet or len(set(self.alphabet)) != len(self.alphabet):
            raise ValueError(
                f"alphabet={self.alphabet!r} must be one or more distinct characters"
            )

    @property
    def size(self) -> int:
        """Characters, padding and end."""
        return len(self.alphabet) + FIRST

    @property
    def pad_id(self) -> int:
        """Id of padding."""
        return PAD

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The one end id."""
        return (END,)

    def encode(self, text: str) -> list[int]:
        """Ids of the characters; ValueError names one outside the alphabet."""
        for character in text:
            if character not in self.alphabet:
                raise ValueError(
                    f"character {character!r} of {text!r} is not in the alphabet"
                    f" {self.alphabet!r}"
                )
        return [self.alphabet.index(character) + FIRST for character in text]

    def decode(self, ids: np.ndarray | Sequence[int]) -> str:
        """Text of the characters; U+FFFD for an id outside the vocabulary."""
        return "".join(
            self.alphabet[int(i) - FIRST] if FIRST <= i < self.size else REPLACEMENT
            for i in ids
            if i not in (PAD, END)
        )
