"""One line of progress: reward, evaluation, tokens/s, compute spent, time left."""

import sys
import time
from typing import Any

import tqdm

from jaxrl.plan import si


class Progress:
    """A bar over updates on standard error, or a plain line now and then in a log."""

    def __init__(self, total: int, label: str, enabled: bool = True) -> None:
        """Shows nothing but what is said until `start`."""
        self._total, self._label, self._enabled = total, label, enabled
        self._bar: tqdm.tqdm[Any] = tqdm.tqdm(disable=True)
        self._shown: dict[str, str] = {}
        self._tokens = 0
        self._since = time.monotonic()

    def start(self, done: int) -> None:
        """Begins the bar and its clock, `done` updates in."""
        tty = sys.stderr.isatty()
        self._bar = tqdm.tqdm(
            total=self._total,
            initial=done,
            desc=self._label,
            unit="update",
            dynamic_ncols=True,
            disable=not self._enabled,
            # A log file wants few lines, a terminal a smooth bar.
            mininterval=0.2 if tty else 10.0,
            maxinterval=10.0 if tty else 60.0,
            bar_format="{desc} {percentage:3.0f}%|{bar:12}| {n_fmt}/{total_fmt}"
            "{postfix} [{elapsed}<{remaining}]",
        )
        self._since = time.monotonic()

    def update(self, updates: int, row: dict[str, Any], tokens: int) -> None:
        """After a round of `updates` that sampled and trained on `tokens`."""
        self._tokens += tokens
        rate = self._tokens / max(time.monotonic() - self._since, 1e-9)
        self._shown |= {
            "reward": f"{row['reward']:.3f}",
            "tok/s": si(rate, ""),
            "spent": si(row["ledger/flops"], "FLOP"),
        }
        self._bar.set_postfix_str(self._text(), refresh=False)
        self._bar.update(updates)

    def evaluated(self, row: dict[str, Any]) -> None:
        """After an evaluation."""
        self._shown[f"avg@{row['samples']}"] = f"{row['avg']:.3f}"
        self._bar.set_postfix_str(self._text(), refresh=False)

    def say(self, message: str) -> None:
        """A line above the bar."""
        if self._enabled:
            tqdm.tqdm.write(message, file=sys.stderr)

    def close(self) -> None:
        """Leaves the finished bar on screen."""
        self._bar.close()

    def _text(self) -> str:
        return " ".join(f"{k} {v}" for k, v in self._shown.items())
