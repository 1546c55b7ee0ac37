"""Where a run starts: a preset by name, or a Python file that defines `config()`.

Flags change what a preset leaves open; a preset that only differs in one or two
values is a line in a script, not an entry here.
"""

from collections.abc import Callable
import difflib
import os
import runpy

from absl import app

from jaxrl.config import (
    Config,
    EvaluationConfig,
    OptimizerConfig,
    TaskConfig,
    WarmstartConfig,
)
from models.config import ModelConfig


def arithmetic() -> Config:
    """Sums of two numbers of at most 2 digits, by a 2-layer model of width 128.

    Seed 1: held-out avg@4 from 0.49 to 0.65 for 0.25 TFLOP; 40 s on 2 cores.
    """
    return Config(
        problems=64,
        rollouts=4,
        updates=100,
        new_tokens=5,
        task=TaskConfig(name="arithmetic", digits=2, max_prompt=16),
        model=ModelConfig(layers=2, width=128),
        optimizer=OptimizerConfig(learning_rate=3e-4, warmup=5),
        warmstart=WarmstartConfig(steps=400, batch=128, every=20, target=0.4),
        evaluation=EvaluationConfig(every=10),
    )


def sequence() -> Config:
    """Reversing 6 of 10 symbols, by a 2-layer model of width 128.

    Seed 1: held-out avg@4 from 0.45 to 0.75 for 0.50 TFLOP; 45 s on 2 cores.
    """
    return Config(
        problems=64,
        rollouts=4,
        updates=100,
        new_tokens=8,
        task=TaskConfig(name="sequence", kind="reverse", length=6, max_prompt=24),
        model=ModelConfig(layers=2, width=128),
        optimizer=OptimizerConfig(learning_rate=3e-4, warmup=5),
        warmstart=WarmstartConfig(steps=400, batch=128, every=20, target=0.4),
        evaluation=EvaluationConfig(every=10),
    )


def spelling() -> Config:
    """Words spelt backward, from reasoning-gym: the demo.

    Seeds 1 to 5: held-out avg@4 from 0.26-0.30 to 0.73-0.80, for 3.8 TFLOP of
    training each after a warm start of 2.2 TFLOP; about 2 minutes a seed on 2 cores.
    """
    return Config(
        problems=64,
        rollouts=4,
        updates=200,
        new_tokens=8,
        task=TaskConfig(
            name="reasoning_gym",
            dataset="spell_backward",
            options='{"min_word_len": 3, "max_word_len": 6}',
            train_problems=4000,
            max_prompt=64,
        ),
        model=ModelConfig(layers=3, width=128),
        optimizer=OptimizerConfig(learning_rate=3e-4, warmup=5),
        warmstart=WarmstartConfig(steps=300, batch=128, every=10, target=0.25),
        evaluation=EvaluationConfig(every=10),
    )


PRESETS: dict[str, Callable[[], Config]] = {
    preset.__name__: preset for preset in (arithmetic, sequence, spelling)
}


def load(name_or_path: str) -> Config:
    """The config of a preset, or what `config()` of a Python file returns.

    What ends in .py or holds a path separator is a file, all else a name.

    Raises:
      app.UsageError: there is no such preset or file, the file defines no
        `config()`, or that does not return a valid Config. Other errors of the
        file are its own and pass through.
    """
    if name_or_path.endswith(".py") or os.sep in name_or_path:
        return _load_file(name_or_path)
    if name_or_path not in PRESETS:
        near = difflib.get_close_matches(name_or_path.lower(), PRESETS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise app.UsageError(
            f"config={name_or_path!r} is not one of {', '.join(PRESETS)}"
            f" or a Python file{hint}"
        )
    return PRESETS[name_or_path]()


def _load_file(path: str) -> Config:
    if not os.path.isfile(path):
        raise app.UsageError(f"config={path!r}: there is no such file")
    where = f"config={path!r}"
    try:
        # Unlike an import, this leaves neither a module nor a __pycache__ behind.
        config = runpy.run_path(path).get("config")
        if not callable(config):
            raise app.UsageError(f"{where} defines no function config()")
        result = config()
    except SyntaxError as error:
        raise app.UsageError(f"{where}, line {error.lineno}: {error.msg}") from error
    except ValueError as error:
        raise app.UsageError(f"{where}: {error}") from error
    if not isinstance(result, Config):
        kind = type(result).__name__
        raise app.UsageError(f"{where}: config() returned {kind}, not a Config")
    return result
