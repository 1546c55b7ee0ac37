"""What k samples of each problem say, with intervals that resample problems.

Samples of one problem are not independent evidence about the next problem, so the
unit of every interval is the problem. All in float64 NumPy.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from jaxrl import keys

RESAMPLES = 1000


def subset_extreme(reward_PK: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Expected largest and smallest of k of a problem's K rewards, each [P].

    The mean over all subsets of size k, without drawing any: in increasing order the
    i-th of K rewards (from 1) is the largest of C(i - 1, k - 1) subsets. For 0/1
    rewards with c successes this is 1 - C(K - c, k) / C(K, k), the unbiased pass@k,
    and C(c, k) / C(K, k). NaN rewards are not allowed; 1 <= k <= K.
    """
    K = reward_PK.shape[1]
    if not 1 <= k <= K:
        raise ValueError(f"k={k} is not in 1..{K}")
    # Ratio C(i - 1, k - 1) / C(K, k), built up without large numbers.
    weight_K = np.zeros(K)
    weight_K[K - 1] = k / K
    for i in range(K - 1, 0, -1):
        weight_K[i - 1] = weight_K[i] * max(i - k + 1, 0) / i
    ordered_PK = np.sort(reward_PK, axis=1)
    return ordered_PK @ weight_K, ordered_PK[:, ::-1] @ weight_K


def majority(answers: Sequence[str], correct: Sequence[bool]) -> float:
    """Chance that the most frequent answer is correct, ties broken at random.

    Empty answers do not vote. Two completions with one answer may be scored apart
    (a scorer that reads more than the answer); the answer counts as their share.
    """
    votes = Counter(a for a in answers if a)
    if not votes:
        return 0.0
    top = max(votes.values())
    winners = {a for a, n in votes.items() if n == top}
    share = {
        w: np.mean([c for a, c in zip(answers, correct, strict=True) if a == w])
        for w in winners
    }
    return float(np.mean(list(share.values())))


def interval(
    value_P: np.ndarray,
    statistic: Callable[..., np.ndarray] = np.mean,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap over problems; the same draws for every statistic."""
    if len(value_P) == 0:
        return float("nan"), float("nan")
    rng = keys.generator(0, "evaluate", len(value_P))
    index_RP = rng.integers(len(value_P), size=(RESAMPLES, len(value_P)))
    low, high = np.quantile(
        statistic(value_P[index_RP], axis=1), [(1 - level) / 2, (1 + level) / 2]
    )
    return float(low), float(high)


def sizes(samples: int) -> list[int]:
    """The k of pass@k that `samples` completions support: 1, 2, 4 ... and all."""
    powers = [2**i for i in range(samples.bit_length()) if 2**i <= samples]
    return sorted({*powers, samples})


def summarise(
    reward_PK: np.ndarray, answers: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Every estimate of a table of rewards, with 95% bounds under _low and _high.

    Args:
      reward_PK: rewards; NaN where a completion could not be scored. Such problems
        are left out and counted as `unscored`.
      answers: extracted answers, [P][K], for maj@K.

    Returns:
      reward, avg, pass@k, best@k, worst@k, maj@K and bounds; NaN if nothing scored.
    """
    scored_P = np.isfinite(reward_PK).all(axis=1)
    reward_PK = reward_PK[scored_P].astype(np.float64)
    kept = [a for a, ok in zip(answers, scored_P, strict=True) if ok]
    correct_PK = (reward_PK >= 1).astype(np.float64)
    K = reward_PK.shape[1]
    per_problem = {"reward": reward_PK.mean(axis=1), "avg": correct_PK.mean(axis=1)}
    for k in sizes(K):
        per_problem[f"pass@{k}"], _ = subset_extreme(correct_PK, k)
        best_P, worst_P = subset_extreme(reward_PK, k)
        per_problem[f"best@{k}"], per_problem[f"worst@{k}"] = best_P, worst_P
    per_problem[f"maj@{K}"] = np.array(
        [majority(a, c > 0) for a, c in zip(kept, correct_PK, strict=True)]
    )
    out: dict[str, float] = {"unscored": int((~scored_P).sum())}
    for name, value_P in per_problem.items():
        out[name] = float(value_P.mean()) if len(value_P) else float("nan")
        out[f"{name}_low"], out[f"{name}_high"] = interval(value_P)
    return out
