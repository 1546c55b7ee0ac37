"""Writes METHODS.md: every named method and every part, as the code has them.

python -m experiments.method_table
"""

from collections.abc import Iterator, Sequence
import dataclasses
import inspect
import pathlib
from typing import Any

from absl import app

from algorithms.method import Method
from algorithms.methods import NOTES
from algorithms.parts import Part

ADVANTAGE = ("shape", "baseline", "scale", "transform", "keep")
TOKEN = ("anchor", "ratio", "gate", "correction")
REST = ("aggregate", "kl", "entropy")

INTRO = """# Methods

Written by `python -m experiments.method_table` from
[algorithms/methods.py](algorithms/methods.py) and the files of the parts.

The policy term of every method has one gradient,

    sum over tokens of  weight * gate * ratio * correction * advantage * grad logp

with all but the last factor held constant, so a method is one part for each slot.
`--objective=NAME` takes a row, `--objective.SLOT=PART` changes a part of it and
`--objective.SLOT.SETTING=VALUE` one of its settings; a combination that contradicts
itself is refused with the reason. Slots not shown in a row are `none`; the anchor,
where not shown, is `sampler`, and all rollouts are kept. After a source stands how it
is known to us: `code` where an implementation was read, otherwise what was.
"""


def main(argv: Sequence[str]) -> None:
    """Writes the table, into the folder that it is run in."""
    if argv[1:]:
        raise app.UsageError(f"argument {argv[1]!r} belongs to no flag")
    pathlib.Path("METHODS.md").write_text(text())


def text() -> str:
    """The whole of METHODS.md."""
    return "\n".join([INTRO, *_methods(), "", *_parts()]) + "\n"


def _methods() -> Iterator[str]:
    yield "| `--objective` | advantage | token | weight and terms | source | departs |"
    yield "|---|---|---|---|---|---|"
    for name, row in NOTES.items():
        cells = [_cell(row.method, slots) for slots in (ADVANTAGE, TOKEN, REST)]
        if row.method.refills:
            cells[0] += f" `refills={row.method.refills}`"
        yield f"| `{name}` | {' | '.join(cells)} | {row.source} | {row.departs} |"


def _cell(method: Method, slots: Sequence[str]) -> str:
    """The parts of some slots that say anything."""
    parts = {slot: getattr(method, slot) for slot in slots}
    quiet = ("none", "sampler", "everything(drop_constant=False, drop_truncated=False)")
    return " ".join(f"`{p}`" for p in parts.values() if str(p) not in quiet) or "-"


def _parts() -> Iterator[str]:
    for f in dataclasses.fields(Method):
        options = f.metadata.get("options")
        if options is None:
            continue
        yield f"## `--objective.{f.name}`: {f.metadata['help']}\n"
        for name, part in options.items():
            yield f"- `{name}`: {_described(part)}"
            yield from (f"  - {line}" for line in _settings(part))
        yield ""


def _described(part: Part) -> str:
    """The docstring of a part, paragraphs joined."""
    doc = inspect.cleandoc(type(part).__doc__ or "")
    body = doc.split("\nAttributes:")[0]
    return " ".join(body.split())


def _settings(part: Part) -> Iterator[str]:
    for f in dataclasses.fields(part):
        default: Any = getattr(part, f.name)
        yield f"`{f.name}` = {default}: {f.metadata['help']}"


if __name__ == "__main__":
    app.run(main)
