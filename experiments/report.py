"""Run summaries in words and tables for people."""

import json
import pathlib
from typing import Any

from jaxrl import plan
from jaxrl.config import Config

Summary = dict[str, Any]  # The content of a run folder's summary.json.


def accuracy(estimates: dict[str, float]) -> str:
    """avg@k with its 95% interval, which resamples problems."""
    return "{avg:.3f} [{avg_low:.3f}, {avg_high:.3f}]".format(**estimates)


def outcome(summary: Summary) -> str:
    """A finished or stopped run in a few words."""
    base, final = summary["base"], summary["final"]
    k = int(final["samples"])
    return (
        f"{summary['status']} at update {summary['step']} of {summary['updates']}:"
        f" held-out avg@{k} {accuracy(base)} -> {accuracy(final)}"
        f" (95%, problems resampled) for"
        f" {plan.si(summary['ledger']['flops'], 'FLOP')},"
        f" {summary['ledger']['rollouts']} rollouts\nrun folder: {summary['run_dir']}"
    )


def before_after(folder: pathlib.Path) -> str:
    """Prompt, completion of the base policy and of the trained one, a block each."""
    rows = [json.loads(line) for line in (folder / "samples.jsonl").open()]
    last = max(row["step"] for row in rows)
    after = {row["problem"]: row for row in rows if row["step"] == last}
    blocks = []
    for row in (row for row in rows if row["step"] == 0):
        new = after[row["problem"]]
        show = lambda r: f"{r['completion'].strip()!r} (reward {r['reward']:.2f})"
        blocks.append(
            f"  {row['prompt'].strip()}\n    before {show(row)}\n    after  {show(new)}"
        )
    return "\n".join(blocks)


def table(summaries: list[Summary]) -> str:
    """A row a seed: held-out accuracy before and after, with intervals."""
    lines = [f"{'run':36} {'before':22} after"]
    for s in summaries:
        name = pathlib.Path(s["run_dir"]).name
        lines.append(f"{name:36} {accuracy(s['base'])}  {accuracy(s['final'])}")
    gains = [s["final"]["avg"] - s["base"]["avg"] for s in summaries]
    lines.append(
        f"smallest gain {min(gains):.3f}, mean {sum(gains) / len(gains):.3f},"
        f" over {len(gains)} seeds; 95% intervals resample problems within a seed"
    )
    return "\n".join(lines)


def story(config: Config, summaries: list[Summary]) -> str:
    """What happened, in a few sentences."""
    first = summaries[0]
    warm, ledger = first["warmstart"], first["ledger"]
    k = config.evaluation.samples
    mean = lambda when: sum(s[when]["avg"] for s in summaries) / len(summaries)
    says = []
    if warm:
        says.append(
            f"A supervised warm start of {warm['steps']} steps gave a base policy that"
            f" answers held-out problems right {mean('base'):.0%} of the time"
            f" ({warm['flops']:.2g} FLOPs)."
        )
    says.append(
        f"{config.updates} updates of {config.objective.name} on {config.problems}"
        f" problems x {config.rollouts} rollouts"
        + (
            f" (and {config.group - config.rollouts} more per problem for the median)"
            if config.group > config.rollouts
            else ""
        )
        + f" took avg@{k} from {mean('base'):.3f} to {mean('final'):.3f}"
        f" for {ledger['flops']:.2g} FLOPs of sampling and updates a run"
        f" ({ledger['rollouts']} rollouts, {ledger['generated_tokens']} tokens)."
    )
    return " ".join(says)
