"""A base policy, RL with MC-GRPO, what changed, and the learning curve with its law.

  python -m experiments.demo                    one seed, a few minutes on 2 cores
  python -m experiments.demo --seeds=1,2,3,4,5  five seeds from the same base policy

Problems and verifier come from the reasoning-gym package; where it is not installed
the built-in arithmetic problems take its place. Every flag of the config works here
as well: --rollouts=8, --objective=grpo. Started again, it continues what was killed.
"""

from experiments import launch  # isort: skip - must come before jax.

import dataclasses
import importlib.util
import pathlib

from absl import flags as absl_flags

from experiments import flags, learning_curve, presets, report
from jaxrl.config import Config
from jaxrl.train import train

_SEEDS = absl_flags.DEFINE_list("seeds", ["1"], "seeds, one run each")
_OUT = absl_flags.DEFINE_string(
    "out", "runs/demo", "folder for the runs and the figure"
)


def start() -> Config:
    """The demo's preset, or arithmetic where reasoning-gym is not installed."""
    if importlib.util.find_spec("reasoning_gym"):
        return presets.load("spelling")
    print("reasoning-gym is not installed: using the built-in arithmetic problems")
    return presets.load("arithmetic")


def main(argv: list[str]) -> None:
    """Trains each seed, then shows completions, the curve and the law."""
    out = pathlib.Path(_OUT.value)
    config = flags.override(start())
    summaries = []
    for seed in seeds(_SEEDS.value):
        run_dir = str(out / f"{config.task.name}-{config.objective.name}-seed{seed}")
        print(f"\nseed {seed}: {run_dir}", flush=True)
        run = dataclasses.replace(config, seed=seed, run_dir=run_dir)
        summaries.append(train(run))
        print(report.outcome(summaries[-1]), flush=True)
    folders = [pathlib.Path(s["run_dir"]) for s in summaries]
    print("\nThe same held-out problems before and after:")
    print(report.before_after(folders[0]))
    if len(summaries) > 1:
        print("\n" + report.table(summaries))
    figure = learning_curve.data(folders)
    learning_curve.write(figure, out / "learning_curve.png")
    print("\n" + report.story(config, summaries))
    print(learning_curve.describe(figure))
    print(f"Figure: {out / 'learning_curve.png'}. Run folders: {out}.")


def seeds(values: list[str]) -> list[int]:
    """Seeds of the --seeds flag; ValueError names one that is not a whole number."""
    bad = [v for v in values if not v.strip().isdigit()]
    if bad or not values:
        raise ValueError(
            f"--seeds={','.join(values)}: expected whole numbers, as 1,2,3"
        )
    return [int(v) for v in values]


if __name__ == "__main__":
    flags.define(Config)
    launch.run(main)
