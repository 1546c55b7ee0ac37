"""Figure: held-out accuracy over training compute, with a fitted law.

    python -m experiments.learning_curve --runs=RUN[,RUN...] --out=curve.png

One run: the law's interval is over held-out problems, resampled from the run's
per-problem successes, so it says how well this run's curve is known, not how much
another seed would differ. Several runs: it is over runs. Runs that failed are drawn
but never fitted.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import TYPE_CHECKING

from absl import app, flags
import numpy as np

from scaling import fit, laws, runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Column of the ledger to (its unit in numbers, the label of the axis).
AXES = {
    "flops": ("FLOPs", "training compute, FLOPs (sampling + update)"),
    "rollouts": ("rollouts", "training compute, rollouts sampled"),
    "generated_tokens": ("tokens", "training compute, tokens generated"),
}

# Okabe and Ito's colours, which survive every common kind of colour blindness.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
RUNS = (BLUE, "#009E73", "#CC79A7", "#56B4E9")


@dataclasses.dataclass(frozen=True)
class Curve:
    """One run's evaluations after training began.

    Attributes:
      name: of its folder.
      compute: on the chosen axis, [E], increasing.
      avg: held-out avg@k, [E].
      low: 2.5% bound, problems resampled, [E].
      high: 97.5% bound.
      base: (avg, low, high) of the policy before training, or None.
      problems: held-out problems.
      samples: completions per problem, the k of avg@k.
      failed: whether the run ended as failed, and is left out of the law.
    """

    name: str
    compute: np.ndarray
    avg: np.ndarray
    low: np.ndarray
    high: np.ndarray
    base: tuple[float, float, float] | None
    problems: int
    samples: int
    failed: bool


@dataclasses.dataclass(frozen=True)
class Figure:
    """All that is drawn.

    Attributes:
      axis: key of `AXES`.
      curves: one a run.
      base: mean over runs of (avg, low, high) before training, or None.
      x: where the law is drawn, [X]; empty without a law.
      law: the fit, or None if the points are too few.
      bands: its intervals, or None if nothing independent can be resampled.
      notes: sentences about what was left out or does not agree.
    """

    axis: str
    curves: tuple[Curve, ...]
    base: tuple[float, float, float] | None
    x: np.ndarray
    law: fit.Fit | None
    bands: fit.Bands | None
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Rows:
    """What the bootstrap resamples.

    Attributes:
      name: of the units, in words.
      compute: [N].
      score: [N].
      unit: id of the row's unit, [N].
      base: unit id to its score before training; empty if not known.
    """

    name: str
    compute: np.ndarray
    score: np.ndarray
    unit: np.ndarray
    base: Mapping[int, float]


def data(
    run_folders: Sequence[str | pathlib.Path],
    axis: str = "flops",
    *,
    resamples: int = 200,
    seed: int = 0,
) -> Figure:
    """Reads the runs and fits the law to all that did not fail.

    R0 is held at the score before training if every run evaluated it, and is fitted
    otherwise.

    Args:
      run_folders: one or more.
      axis: key of `AXES`.
      resamples: refits for the intervals.
      seed: of starts and resampling.

    Raises:
      ValueError: an axis that is not known, no folder, or one without evaluations
        after training began.
    """
    if axis not in AXES:
        raise ValueError(f"axis {axis!r} is none of {[*AXES]}")
    if not run_folders:
        raise ValueError("no run folders")
    loaded = [runs.read_run(folder) for folder in run_folders]
    curves = tuple(read_curve(run, axis) for run in loaded)
    notes = [note for run in loaded for note in oddities(run)]
    kept = [i for i, curve in enumerate(curves) if not curve.failed]
    if not kept:
        notes.append("no law was fitted: every run failed")
        return Figure(axis, curves, None, np.empty(0), None, None, tuple(notes))
    fitted = [curves[i] for i in kept]
    bases = [curve.base for curve in fitted if curve.base is not None]
    base = tuple(np.mean(bases, axis=0)) if len(bases) == len(fitted) else None
    compute = np.concatenate([curve.compute for curve in fitted])
    avg = np.concatenate([curve.avg for curve in fitted])
    x = spaced(compute)
    try:
        given = {"R0": base[0]} if base else {}
        full = fit.fit(laws.SIGMOID, compute, avg, given=given, seed=seed)
    except fit.TooFewPoints as error:
        notes.append(f"no law was fitted: {error}")
        return Figure(axis, curves, base, x, None, None, tuple(notes))
    rows: Rows | None = None
    if len(fitted) > 1:
        rows = run_rows(fitted)
    else:
        rows, more = problem_rows(loaded[kept[0]], axis)
        notes += more
    bands = None
    if rows is not None:
        bands = fit.bootstrap(
            full,
            rows.compute,
            rows.score,
            rows.unit,
            unit=rows.name,
            given={"R0": rows.base or base[0]} if base else {},
            grid=x,
            resamples=resamples,
            seed=seed,
        )
    return Figure(axis, curves, base, x, full, bands, tuple(notes))


def spaced(compute: np.ndarray) -> np.ndarray:
    """Points at which to draw a law over this compute."""
    compute = compute[np.isfinite(compute) & (compute > 0)]
    if not len(compute):
        return np.empty(0)
    space = np.geomspace if is_wide(compute) else np.linspace
    return space(compute.min(), compute.max(), 200)


def is_wide(compute: np.ndarray) -> bool:
    """Whether a log axis suits: the compute spans more than a factor of 3."""
    compute = compute[np.isfinite(compute) & (compute > 0)]
    return bool(len(compute)) and compute.max() > 3 * compute.min()


def read_curve(run: runs.Run, axis: str) -> Curve:
    """The part of a run that is drawn; ValueError if there is none."""
    path = run.folder / "eval.jsonl"
    for name in runs.FIELDS["eval.jsonl"]:
        if name not in run.evals:
            raise ValueError(f"{path} has no values of {name!r}")
    trained = run.evals["step"] > 0
    if not trained.any():
        raise ValueError(f"{path} has no evaluation after training began")
    rows_3E = np.stack([run.evals[name] for name in ("avg", "avg_low", "avg_high")])
    base = None
    if not trained[0] and np.isfinite(rows_3E[0, 0]):
        avg, low, high = rows_3E[:, 0].tolist()
        base = (avg, low, high)
    return Curve(
        name=run.folder.name,
        compute=run.evals[f"ledger/{axis}"][trained],
        avg=rows_3E[0, trained],
        low=rows_3E[1, trained],
        high=rows_3E[2, trained],
        base=base,
        problems=int(run.evals["problems"][-1]),
        samples=int(run.evals["samples"][-1]),
        failed=run.status == "failed",
    )


def oddities(run: runs.Run) -> list[str]:
    """What a reader of the figure should know about the folder."""
    name = run.folder.name
    says = []
    if run.status == "failed":
        says.append(f"{name} failed, and is drawn but not fitted")
    elif run.status not in ("finished", "stopped"):
        says.append(f"{name} has not ended (status {run.status})")
    says += [f"the last line of {name}/{file} was cut and dropped" for file in run.torn]
    if repeated := run.repeated["eval.jsonl"]:
        says.append(f"{repeated} evaluations of {name} were repeated; the last stands")
    return says


def run_rows(curves: Sequence[Curve]) -> Rows:
    """Every evaluation, by run."""
    return Rows(
        name="runs",
        compute=np.concatenate([curve.compute for curve in curves]),
        score=np.concatenate([curve.avg for curve in curves]),
        unit=np.repeat(range(len(curves)), [len(curve.compute) for curve in curves]),
        base={i: c.base[0] for i, c in enumerate(curves) if c.base is not None},
    )


def problem_rows(run: runs.Run, axis: str) -> tuple[Rows | None, list[str]]:
    """Every held-out problem's score at every evaluation, by problem; and notes."""
    table = run.problems
    if table is None or len(np.unique(table["problem"])) < 2:
        return None, ["there are no per-problem results, so the law has no interval"]
    scored = table["samples"] > 0
    step, problem = table["step"][scored], table["problem"][scored]
    score = table["correct"][scored] / table["samples"][scored]
    says = []
    for at, avg in zip(run.evals["step"], run.evals["avg"], strict=True):
        mean = np.mean(score[step == at]) if np.any(step == at) else np.nan
        if np.isfinite(avg) and not abs(mean - avg) < 1e-4:
            says.append(
                f"at step {at} eval.jsonl says {avg:.4f} and problems.parquet"
                f" {mean:.4f}"
            )
    compute = dict(zip(run.evals["step"], run.evals[f"ledger/{axis}"], strict=True))
    base = dict(zip(problem[step == 0].tolist(), score[step == 0], strict=True))
    later = (step > 0) & np.isin(step, run.evals["step"])
    if base:
        later &= np.isin(problem, list(base))
    rows = Rows(
        name="held-out problems",
        compute=np.array([compute[at] for at in step[later]]),
        score=score[later],
        unit=problem[later],
        base=base,
    )
    return rows, says


def draw(figure: Figure, axes: "Axes") -> None:
    """Draws onto empty axes; every mark is explained in the legend below them."""
    draw_curves(figure.curves, axes)
    if figure.law is not None:
        draw_law(figure, axes)
    if figure.base is not None:
        avg, low, high = figure.base
        axes.axhspan(low, high, color=GREY, alpha=0.15, linewidth=0, zorder=0)
        axes.axhline(
            avg,
            color=GREY,
            linestyle="--",
            linewidth=1.5,
            zorder=1,
            label=f"before training: {avg:.3f} [{low:.3f}, {high:.3f}]",
        )
    if is_wide(np.concatenate([curve.compute for curve in figure.curves])):
        from matplotlib import ticker

        axes.set_xscale("log")
        # The default labels every minor tick, and over one decade they collide.
        axes.xaxis.set_minor_locator(ticker.LogLocator(subs=(2.0, 5.0)))
        axes.xaxis.set_minor_formatter(
            ticker.LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf))
        )
    samples = sorted({curve.samples for curve in figure.curves})
    axes.set_xlabel(AXES[figure.axis][1], fontsize=12)
    axes.set_ylabel(f"held-out avg@{'/'.join(map(str, samples))}", fontsize=12)
    axes.tick_params(which="both", labelsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    entries = list(zip(*axes.get_legend_handles_labels(), strict=True))
    entries.sort(key=lambda entry: entry[0] not in axes.containers)  # Runs first.
    axes.legend(
        *zip(*entries, strict=True),
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.15),
        fontsize=10.5,
        frameon=False,
        borderpad=0,
    )


def draw_curves(curves: Sequence[Curve], axes: "Axes") -> None:
    """Points with bars; several runs as thin lines, in one colour if they are many."""
    several, many = len(curves) > 1, len(curves) > len(RUNS)
    what = f"{' or '.join(counts(curves))} (bars: 95%, problems resampled)"
    shown: set[bool] = set()
    for i, curve in enumerate(curves):
        label = "failed, not fitted" if curve.failed else "runs" if many else curve.name
        if curve.failed and not many:
            label = f"{curve.name}, {label}"
        if not shown:
            label = f"{label}: {what}" if several else what
        axes.errorbar(
            curve.compute,
            curve.avg,
            yerr=np.maximum([curve.avg - curve.low, curve.high - curve.avg], 0),
            fmt="x" if curve.failed else "o",
            linestyle="-" if several else "none",
            linewidth=0.9,
            elinewidth=0.6 if several else 1.3,
            alpha=0.8 if several else 1.0,
            markersize=3.5 if several else 6,
            color=GREY if curve.failed else RUNS[0 if many else i % len(RUNS)],
            label="_" if many and curve.failed in shown else label,
            zorder=3,
        )
        shown.add(curve.failed)


def counts(curves: Sequence[Curve]) -> list[str]:
    """How much each run's evaluations measure, in words, distinct ones."""
    return sorted({f"{c.problems} problems x {c.samples} samples" for c in curves})


def draw_law(figure: Figure, axes: "Axes") -> None:
    """The law over the range of the points, its limit, and their intervals."""
    law, bands = figure.law, figure.bands
    assert law is not None
    label = f"fitted law: {law.law.formula}"
    if bands is not None:
        axes.fill_between(
            figure.x, bands.low, bands.high, color=ORANGE, alpha=0.2, linewidth=0
        )
        label += f"\nband: {bands.level:.0%}, {bands.units} {bands.unit} resampled"
    axes.plot(figure.x, law.predict(figure.x), color=ORANGE, linewidth=2, label=label)
    name = law.law.limit
    if name is None:
        return
    open_end = "" if is_determined(law) else ", not determined by these points"
    label = f"asymptote {name} = {law.theta[name]:.3f}"
    if bands is not None:
        low, high = bands.theta[name]
        axes.axhspan(low, high, color=ORANGE, alpha=0.08, linewidth=0, zorder=0)
        label += f" [{low:.3f}, {high:.3f}]"
    axes.axhline(
        law.theta[name],
        color=ORANGE,
        linestyle=":",
        linewidth=1.5,
        label=label + open_end,
        zorder=1,
    )


def is_determined(law: fit.Fit) -> bool:
    """Whether the points say where the curve ends."""
    return not any("asymptote" in warning for warning in law.warnings)


def describe(figure: Figure) -> str:
    """The figure in one paragraph: parameters, their intervals, what to doubt."""
    says = [
        f"{len(figure.curves)} run(s), held-out {' or '.join(counts(figure.curves))},"
        f" compute in {AXES[figure.axis][0]}."
    ]
    if figure.law is not None:
        says += describe_law(figure.law, figure.bands)
    if figure.notes:
        says.append(f"Note: {'; '.join(figure.notes)}.")
    return " ".join(says)


def describe_law(law: fit.Fit, bands: fit.Bands | None) -> list[str]:
    """Sentences: parameters with intervals, what the intervals are, what to doubt."""
    values = []
    for parameter in law.law.parameters:
        name = parameter.name
        text = f"{name} ({parameter.meaning}) = {law.theta[name]:.4g}"
        if bands is not None:
            low, high = bands.theta[name]
            text += f" [{low:.4g}, {high:.4g}]"
        values.append(text + (", measured and not fitted" * (name in law.given)))
    says = [f"The law {law.law.formula} has {'; '.join(values)}."]
    if bands is not None:
        says.append(
            f"Intervals: {bands.level:.0%}, {bands.units} {bands.unit} resampled"
            f" {bands.resamples} times."
        )
    doubts = [*law.warnings, *(bands.warnings if bands else ())]
    doubts += [f"{n} rows left out: {rule}" for rule, n in law.excluded.items()]
    if doubts:
        says.append(f"Warning: {'; '.join(doubts)}.")
    return says


def write(figure: Figure, out: pathlib.Path, pdf: bool = False) -> None:
    """Draws and writes a PNG, and beside it a PDF if asked."""
    from matplotlib import figure as mpl_figure

    canvas = mpl_figure.Figure(figsize=(7, 4.6))
    draw(figure, canvas.add_subplot())
    out.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(out, dpi=150, bbox_inches="tight", format="png")
    if pdf:
        canvas.savefig(out.with_suffix(".pdf"), bbox_inches="tight")


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import: another program may have flags of its own."""
    flags.DEFINE_list("runs", None, "Run folders.", flag_values=values, required=True)
    flags.DEFINE_string("out", None, "PNG to write.", flag_values=values, required=True)
    flags.DEFINE_enum("axis", "flops", [*AXES], "Compute.", flag_values=values)
    flags.DEFINE_bool("pdf", False, "Also write a PDF beside it.", flag_values=values)
    flags.DEFINE_integer("resamples", 200, "Refits.", flag_values=values)


def main(argv: Sequence[str]) -> None:
    """Draws the figure that the flags ask for and prints what it says."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    values = flags.FLAGS
    figure = data(values.runs, values.axis, resamples=values.resamples)
    write(figure, pathlib.Path(values.out), values.pdf)
    print(describe(figure))


if __name__ == "__main__":
    define_flags(flags.FLAGS)
    app.run(main)
