"""Run folders written as jaxrl/schema.py says, for tests of what reads them."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet

from jaxrl import schema
from scaling import laws

TRUE = {"R0": 0.2, "A": 0.61, "B": 1.5, "Cmid": 3e13}
COMPUTE = np.r_[0.0, np.geomspace(1e12, 1e15, 12)]


def successes(compute_E, problems, samples, seed=0, theta=TRUE, offset=0.0):
    """[E, P] correct completions of problems drawn from a population.

    Half of a problem's success rate is the law itself and half is whether the law
    has passed the problem's difficulty, so that the population's mean is the law.
    """
    rng = np.random.default_rng(seed)
    law_E1 = np.clip(laws.sigmoid(theta, compute_E) + offset, 0, 1)[:, None]
    rate_EP = 0.5 * law_E1 + 0.5 * (rng.random(problems) < law_E1)
    return rng.binomial(samples, rate_EP)


def rows(compute_E, correct_EP, samples):
    """Every row of eval.jsonl, every column of the schema."""
    problems = correct_EP.shape[1]
    ks = [2**i for i in range(samples.bit_length())]
    for e, compute in enumerate(compute_E):
        rate_P = correct_EP[e] / samples
        half = 1.96 * rate_P.std() / np.sqrt(problems)
        row = dict.fromkeys(schema.EVAL, 0.0)
        for name in [name for name in row if name.endswith("@K")]:
            del row[name]
            row |= {name.replace("K", str(k)): rate_P.mean() for k in ks}
        yield row | {
            "step": 10 * e,
            "problems": problems,
            "samples": samples,
            "avg": rate_P.mean(),
            "avg_low": rate_P.mean() - half,
            "avg_high": rate_P.mean() + half,
            "ledger/flops": compute,
            "ledger/rollouts": 640 * e,
            "ledger/generated_tokens": 640 * 12 * e,
        }


def lines(path, table):
    """Writes rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in table))


def write_run(folder, correct_EP, samples=8, compute_E=COMPUTE, status="finished"):
    """A whole run folder; returns its path."""
    folder.mkdir(parents=True)
    steps_E = 10 * np.arange(len(compute_E))
    (folder / "schema.json").write_text(json.dumps(schema.document()))
    (folder / "config.json").write_text(json.dumps({"train": {"rollouts": 8}}))
    (folder / "summary.json").write_text(json.dumps({"status": status}))
    metrics = [
        dict.fromkeys(schema.METRICS, 0.5) | {"step": s}
        for s in range(1, int(steps_E[-1]) + 1)
    ]
    lines(folder / "metrics.jsonl", metrics)
    lines(folder / "eval.jsonl", rows(compute_E, correct_EP, samples))
    evals, problems = correct_EP.shape
    columns = {
        "step": np.repeat(steps_E, problems).astype(np.int64),
        "problem": np.tile(np.arange(problems), evals).astype(np.int32),
        "samples": np.full(correct_EP.size, samples, np.int32),
        "correct": correct_EP.ravel().astype(np.int32),
        "reward_sum": correct_EP.ravel().astype(np.float32),
    }
    assert list(columns) == list(schema.PROBLEMS)
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "problems.parquet")
    return folder
