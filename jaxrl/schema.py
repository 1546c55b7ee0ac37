"""What a run folder holds, written down once; every run folder carries a copy.

Readers (scaling/runs.py, notebooks, other tools) rely on `schema.json` in the
folder and need nothing of this package.
"""

VERSION = 1

# Cumulative since step 0, on every row of metrics.jsonl and eval.jsonl. Padding is
# never counted; evaluation and warm start are apart and never part of these.
LEDGER = {
    "rollouts": "completions sampled, those that no update saw included",
    "prompt_tokens": "prompt tokens prefilled for sampling, once per problem",
    "generated_tokens": "completion tokens sampled, end tokens included",
    "scored_tokens": "completion tokens given anchor or reference log-probs",
    "trained_tokens": "completion tokens in updates, once per epoch",
    "discarded_tokens": "generated tokens that no update saw",
    "flops_prefill": "FLOPs of prefilling prompts for sampling",
    "flops_decode": "FLOPs of decoding completions",
    "flops_score": "FLOPs of anchor and reference log-probs",
    "flops_train": "FLOPs of forward and backward passes of updates",
    "flops_recompute": "FLOPs that rematerialisation repeats in updates",
    "flops": "sum of the flops_ columns",
}

# Apart from LEDGER, since wall clocks never repeat: metrics.jsonl and eval.jsonl of
# a killed and resumed run are byte for byte those of one that was not.
SECONDS = {
    "sample": "device-seconds in sampling",
    "score": "device-seconds while rewards are computed",
    "learn": "device-seconds in anchor log-probs and updates",
    "evaluate": "device-seconds in evaluation",
    "save": "device-seconds waiting for checkpoints",
}

METRICS = {
    "step": "optimizer updates done, 1 at the first row",
    "round": "sampling phase that fed this update, from 0",
    "phases": "sampling phases that this batch took",
    "reward": "mean reward of the batch's scored rollouts",
    "reward_std": "standard deviation of the same",
    "correct": "share of scored rollouts with reward >= 1",
    "length": "mean completion length, tokens",
    "truncated": "share of rollouts cut at new_tokens",
    "unscored": "rollouts whose reward was missing or not finite",
    "constant_groups": "share of groups whose task rewards are all equal",
    "silent_groups": "share of groups in which no kept rollout has an advantage",
    "loss": "value of the policy objective, to be minimised",
    "grad_norm": "global norm before clipping",
    "learning_rate": "step size of this update",
    "log_ratio": "weighted mean of log ratios to the anchor, nats",
    "log_ratio_sq": "weighted mean of their squares",
    "gated": "weight share of tokens that the trust region holds: advantage not 0,"
    " gate 0",
    "gated_up": "the same among tokens of positive advantage",
    "gated_down": "the same among tokens of negative advantage",
    "active": "weight share of tokens that neither gate nor correction drops",
    "correction": "weighted mean of the sampler correction",
    "k1_sampler": "k1 estimate of KL(sampler || policy), nats a token",
    "k3_sampler": "k3 estimate of the same",
    "effective_tokens": "(sum w)^2 / (n sum w^2), w = policy / sampler at each of n"
    " tokens: the share of them that as many equal weights would be",
    "effective_rollouts": "the same with w of whole completions",
    "entropy": "mean surprisal of sampled tokens under the policy, nats a token",
    "advantage_raw": "largest |advantage| before transform and cut",
    "advantage_high": "largest advantage that the update sees",
    "advantage_low": "smallest advantage that the update sees",
    "advantage_max": "largest |advantage| of the same",
    "scale_fallback": "share of groups that used the scale's fallback",
    "skipped": "updates skipped so far: not finite, or no signal in the batch",
    "nonfinite": "those of them that were not finite",
    **{f"ledger/{name}": text for name, text in LEDGER.items()},
}

# In metrics.jsonl as well, where the objective has such a term.
TERMS = {
    "kl": "value of the KL term",
    "k1_reference": "k1 estimate of KL(policy || reference), nats a token",
    "k3_reference": "k3 estimate of the same",
    "bonus": "value of the sampled entropy bonus",
    "full_entropy": "mean entropy of the policy at sampled tokens, nats a token",
}

TIMING = {
    "step": "as in metrics.jsonl",
    "time": "Unix time when the row was written",
    "attempt": "process that wrote it, counted from 0 over restarts",
    **{f"device_seconds/{name}": text for name, text in SECONDS.items()},
}

EVAL = {
    "step": "updates done before this evaluation, 0 at the base policy",
    "problems": "held-out problems",
    "samples": "completions per problem, the k of avg@k",
    "unscored": "problems left out since a completion of theirs has no reward",
    "reward": "mean reward",
    "avg": "avg@k: mean correctness",
    "avg_low": "2.5% bound; problems resampled, for this and every _low",
    "avg_high": "97.5% bound; problems resampled, for this and every _high",
    "pass@K": "unbiased chance that one of K is correct, K = 1, 2, 4 ... k",
    "best@K": "expected largest reward of K",
    "worst@K": "expected smallest reward of K",
    "maj@k": "share of problems whose most frequent answer is correct",
    "length": "mean completion length, tokens",
    "truncated": "share of completions cut at new_tokens",
    "tokens": "completion tokens sampled by evaluations so far",
    "flops": "FLOPs spent in evaluations so far",
    **{f"ledger/{name}": text for name, text in LEDGER.items()},
}

PROBLEMS = {
    "step": "int64, as in eval.jsonl",
    "problem": "int32, problem id",
    "samples": "int32, completions scored",
    "correct": "int32, of them correct",
    "reward_sum": "float32, sum of their rewards",
}

FILES = {
    "config.json": "resolved config, one object per section",
    "environment.json": "versions, devices, git state, command line; a list, one"
    " entry per attempt",
    "schema.json": "this description",
    "metrics.jsonl": METRICS | TERMS,
    "timing.jsonl": TIMING,
    "eval.jsonl": EVAL,
    "problems.parquet": PROBLEMS,
    "samples.jsonl": "sampled completions: step, problem, prompt, completion, reward",
    "summary.json": "status (running, finished, stopped, failed), last step, base and"
    " final evaluation, ledger, warm-start cost",
    "checkpoints/": "orbax checkpoints by step",
}


def document() -> dict[str, object]:
    """The content of schema.json."""
    return {"version": VERSION, "files": FILES}
