"""Trains one policy: sample, score, update, log, repeat.

  python -m experiments.train --config=arithmetic --objective=grpo --rollouts=8

--config names a preset or a Python file that defines config(); every field of the
config is a flag (--helpfull lists them). The same command started again continues a
killed run.
"""

from experiments import launch  # isort: skip - must come before jax.

import json

from absl import flags as absl_flags

from experiments import flags, presets, report
from jaxrl import config_io, plan
from jaxrl.config import Config
from jaxrl.tasks.registry import make_task
from jaxrl.train import train

_CONFIG = absl_flags.DEFINE_string(
    "config", "arithmetic", f"one of {', '.join(presets.PRESETS)}, or a Python file"
)
_PRINT = absl_flags.DEFINE_bool(
    "print_config", False, "show the config and what a step will be, and do nothing"
)
flags.define(Config)


def main(argv: list[str]) -> None:
    """Builds the config from the preset and the flags, then trains."""
    config = flags.override(presets.load(_CONFIG.value))
    if _PRINT.value:
        task = make_task(config.task)
        config = plan.resolve(config, task)
        print(json.dumps(config_io.to_dict(config), indent=2))
        print(plan.text(config, task))
        return
    print(report.outcome(train(config)))


if __name__ == "__main__":
    launch.run(main)
