"""Every objective's gradient on the very same rollouts of a real training run.

  python -m experiments.objective_atlas --config=sequence --out=runs/atlas

Trains a policy once and keeps its last versions. Versions of --lags updates ago each
sample a pool of rollouts of the same problems, once, and pools are stored. From each
pool every method draws the same batches of groups, no rollout twice; its gradient at
the newest version is compared with that version's own policy gradient, estimated from
very large groups on policy. Started again, it goes on where it stopped.

  cosine   of a draw's gradient to the on-policy one: mean over draws, and 95% over
           draws of that mean
  at limit cosine of the mean gradient over all draws: what is left with many rollouts
  held     share of tokens with an advantage that the trust region drops
  flipped  share of rollouts whose advantage has the wrong sign, by the mean reward of
           the whole pool; an advantage of 0 counts half
  SNR      squared norm of the mean gradient over the variance of a draw's, per TFLOP
           that a draw costs: what a fixed budget buys
"""

from experiments import launch  # isort: skip - must come before jax.

from collections.abc import Callable, Sequence
import functools
import pathlib
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags
import numpy as np

from algorithms.methods import METHODS
from experiments import flags, frozen, presets
from jaxrl import keys, runlog
from jaxrl.config import Config

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
RESAMPLES = 1000
FLAGS = absl_flags.FLAGS


def define_flags(values: absl_flags.FlagValues = absl_flags.FLAGS) -> None:
    """The command line. Not at import: another program may have flags of its own."""
    number = functools.partial(absl_flags.DEFINE_integer, flag_values=values)
    listed = functools.partial(absl_flags.DEFINE_list, flag_values=values)
    text = functools.partial(absl_flags.DEFINE_string, flag_values=values)
    names = ", ".join(presets.PRESETS)
    text("config", "sequence", f"one of {names}, or a Python file")
    text("out", "runs/atlas", "folder for all that is made")
    listed("lags", ["0", "8", "32"], "updates since sampling")
    listed("methods", [], "names; empty takes all")
    number("pool_problems", 32, "problems, from the first")
    number("on_policy", 512, "rollouts of a problem behind the on-policy gradient")
    number("draws", 32, "batches that each method draws")
    flags.define(Config, values)


def main(argv: list[str]) -> None:
    """Collects, measures, prints the table and draws the figure."""
    config = flags.override(presets.load(FLAGS.config))
    lags, names = _lags(), FLAGS.methods or list(METHODS)
    unknown = sorted(set(names) - set(METHODS))
    if unknown:
        raise ValueError(f"--methods={unknown[0]} is no method; METHODS.md lists them")
    out = pathlib.Path(FLAGS.out)
    out.mkdir(parents=True, exist_ok=True)
    run = frozen.Frozen(config, out, max(lags) + 1)
    halves = run.on_policy(FLAGS.pool_problems, FLAGS.on_policy)
    want = _mean(*halves)
    print(
        f"on-policy gradient from {FLAGS.on_policy} rollouts of"
        f" {FLAGS.pool_problems} problems; cosine of its two halves"
        f" {frozen.cosine(*halves):.3f}"
    )
    rows = []
    for lag in lags:
        group = FLAGS.draws * frozen.room(config)
        pool = run.pool(lag, FLAGS.pool_problems, group)
        for name in names:
            measure = functools.partial(
                run.measure, METHODS[name], lag, pool, want, FLAGS.draws
            )
            flips = run.sign_flips(METHODS[name], lag, pool, FLAGS.draws)
            found = _kept(out / "measured", name, lag, measure)
            rows.append(found | {"sign_flips": flips})
            print(line(rows[-1]), flush=True)
    runlog.write_json(out / "atlas.json", rows)
    print(table(rows))
    write(rows, out / "atlas.png")
    print(f"Figure: {out / 'atlas.png'}. Numbers: {out / 'atlas.json'}.")


def _lags() -> list[int]:
    bad = [v for v in FLAGS.lags if not v.strip().isdigit()]
    if bad or not FLAGS.lags:
        raise ValueError(f"--lags={','.join(FLAGS.lags)}: expected numbers, as 0,8,32")
    return [int(v) for v in FLAGS.lags]


def _kept(
    folder: pathlib.Path, name: str, lag: int, measure: Callable[[], frozen.Measured]
) -> dict[str, Any]:
    """A row from its file, or made and put there; the name says what it rests on."""
    sizes = (FLAGS.pool_problems, FLAGS.on_policy, FLAGS.draws)
    path = folder / f"{name}-lag{lag}-{'x'.join(map(str, sizes))}.json"
    if not path.exists():
        folder.mkdir(exist_ok=True)
        runlog.write_json(path, row(name, lag, measure()))
    return dict(runlog.read_json(path))


def _mean(a: Any, b: Any) -> Any:
    import jax

    return jax.tree.map(lambda x, y: (x + y) / 2, a, b)


def row(name: str, lag: int, measured: frozen.Measured) -> dict[str, Any]:
    """The figures of a method at a lag, by name."""
    cosine_R = measured.cosine_R
    rng = keys.generator(0, "evaluate", len(cosine_R))
    index = rng.integers(len(cosine_R), size=(RESAMPLES, len(cosine_R)))
    low, high = np.quantile(cosine_R[index].mean(axis=1), [0.025, 0.975])
    return {
        "method": name,
        "lag": lag,
        "draws": len(cosine_R),
        "cosine": float(cosine_R.mean()),
        "cosine_low": float(low),
        "cosine_high": float(high),
        "at_limit": measured.mean_cosine,
        "held": measured.gated,
        "noise": measured.noise,
        "signal": measured.signal,
        "flops": measured.flops,
        "snr_per_tflop": measured.signal / measured.noise / measured.flops * 1e12,
    }


def line(r: dict[str, Any]) -> str:
    """One row of the table."""
    return (
        f"{r['method']:<14} {r['lag']:>4}  {r['cosine']:6.3f}"
        f" [{r['cosine_low']:6.3f}, {r['cosine_high']:6.3f}]  {r['at_limit']:7.3f}"
        f"  {100 * r['held']:6.1f}%  {100 * r['sign_flips']:6.1f}%"
        f"  {r['snr_per_tflop']:9.3g}"
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """All rows, by lag and then by cosine."""
    head = (
        f"{'method':<14} {'lag':>4}  {'cosine':>6} {'[95% of the mean]':<16}"
        f"  {'at limit':>7}  {'held':>7}  {'flipped':>7}  {'SNR/TFLOP':>9}"
    )
    ordered = sorted(rows, key=lambda r: (r["lag"], -r["cosine"]))
    return "\n".join(["", head, *map(line, ordered)])


def draw(rows: Sequence[dict[str, Any]], axes: "Sequence[Axes]") -> None:
    """Three panels over one list of methods, the best at the largest lag on top."""
    lags = sorted({r["lag"] for r in rows})
    last = {r["method"]: r["cosine"] for r in rows if r["lag"] == lags[-1]}
    place = {name: i for i, name in enumerate(sorted(last, key=last.__getitem__))}
    panels = (
        ("cosine", "cosine to the on-policy gradient\n(bars: 95% of the mean)"),
        ("held", "tokens held by the trust region"),
        ("snr_per_tflop", "gradient signal to noise per TFLOP"),
    )
    for axis, (key, label) in zip(axes, panels, strict=True):
        for i, lag in enumerate(lags):
            some = [r for r in rows if r["lag"] == lag]
            y = [place[r["method"]] + 0.22 * (i - (len(lags) - 1) / 2) for r in some]
            x = np.array([r[key] for r in some])
            style: dict[str, Any] = dict(
                color=COLOURS[i % len(COLOURS)], label=f"lag {lag}"
            )
            if key == "cosine":
                ends = np.array([[r["cosine_low"], r["cosine_high"]] for r in some]).T
                error = np.abs(ends - x)
                axis.errorbar(x, y, xerr=error, fmt="o", markersize=3.5, **style)
            else:
                axis.plot(x, y, "o", markersize=3.5, **style)
        axis.set_xlabel(label, fontsize=11)
        axis.grid(axis="both", color="#e2e2e2", linewidth=0.5)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(list(place.values()), list(place), fontsize=9)
    axes[0].set_ylim(-0.7, len(place) - 0.3)
    axes[2].set_xscale("log")
    # Above the panel: there is no corner that no method is in.
    axes[0].legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, fontsize=10
    )


def write(rows: Sequence[dict[str, Any]], out: pathlib.Path) -> None:
    """Draws the figure into a PNG."""
    from matplotlib import figure

    methods = len({r["method"] for r in rows})
    canvas = figure.Figure(figsize=(12, 1.5 + 0.24 * methods))
    draw(rows, canvas.subplots(1, 3, sharey=True))
    canvas.tight_layout()
    canvas.savefig(out, dpi=150, bbox_inches="tight", format="png")


if __name__ == "__main__":
    define_flags()
    launch.run(main)
