"""Named methods: every row of METHODS.md, with its source and our departures.

To add a method, add a row. To add a part, add a class to its file and to the table at
that file's end. Nothing else in the repository asks which method is running.
"""

import dataclasses
from typing import Any, NamedTuple

from algorithms import (
    aggregates,
    anchors,
    baselines,
    corrections,
    gates,
    keeps,
    penalties,
    ratios,
    scales,
    shapes,
    transforms,
)
from algorithms.method import Method


class Row(NamedTuple):
    """A method and what is to be said of it.

    Attributes:
      method: its parts.
      source: where it was published and how well it is known to us.
      departs: where our rule is not the published one or that of a reference
        implementation, and why; empty where it is.
    """

    method: Method
    source: str
    departs: str = ""


GRPO = Method()


def _grpo(**parts: Any) -> Method:
    """GRPO with other parts."""
    return dataclasses.replace(GRPO, **parts)


_MEAN_ONLY = dict(scale=scales.NoScale())
_SUMMED = dict(scale=scales.NoScale(), aggregate=aggregates.SequenceSum())
_REINFORCE = dict(ratio=ratios.NoRatio(), gate=gates.NoGate())
_DAPO = dict(
    shape=shapes.Overlong(),
    keep=keeps.Everything(drop_constant=True),
    gate=gates.Clip(low=0.2, high=0.28),
    aggregate=aggregates.TokenMean(),
)
_MEDIAN = dict(baseline=baselines.Median(), scale=scales.Mad())

_ROWS: dict[str, Row] = {
    "reinforce": Row(
        _grpo(baseline=baselines.BatchMean(), **_SUMMED, **_REINFORCE),
        "Williams 1992, with the mean reward of the batch as baseline",
    ),
    "rloo": Row(
        _grpo(baseline=baselines.LeaveOneOut(), **_SUMMED),
        "arXiv:2402.14740; code",
        "In PPO's clipped form, as trainers run it; on policy it is the published"
        " REINFORCE. A lone rollout gets no advantage, where some keep its reward.",
    ),
    "grpo": Row(
        GRPO,
        "arXiv:2402.03300; code",
        "No KL term by default: --objective.kl=k3 --objective.kl.coef=0.04 is the"
        " published one. eps is 1e-6, and groups equal up to rounding get exactly 0.",
    ),
    "dr_grpo": Row(
        _grpo(scale=scales.NoScale(), aggregate=aggregates.Constant()),
        "arXiv:2503.20783; code",
        "Divides by the longest completion allowed, never by a padded width.",
    ),
    "dapo": Row(
        _grpo(**_DAPO, refills=9),
        "arXiv:2503.14476; code",
        "Draws as many problems again as a batch has, ten times at most, where the"
        " recipe draws three batches at once; short of informative groups it trains on"
        " those there are instead of stopping.",
    ),
    "gspo": Row(
        _grpo(ratio=ratios.SequenceMean(), gate=gates.Clip(low=3e-4, high=4e-4)),
        "arXiv:2507.18071; code",
    ),
    "gspo_token": Row(
        _grpo(ratio=ratios.SequenceToken(), gate=gates.Clip(low=3e-4, high=4e-4)),
        "arXiv:2507.18071; code",
        "The same gradient as gspo until something varies inside a response.",
    ),
    "luspo": Row(
        _grpo(
            ratio=ratios.SequenceMean(),
            gate=gates.Clip(low=2e-3, high=2.5e-3),
            aggregate=aggregates.SequenceSum(),
        ),
        "arXiv:2602.05261; code",
    ),
    "gmpo": Row(
        _grpo(ratio=ratios.ClippedMean(), gate=gates.Live()),
        "arXiv:2507.20673; code",
    ),
    "cispo": Row(
        _grpo(gate=gates.Cap(), aggregate=aggregates.TokenMean()),
        "arXiv:2506.13585; code",
        "The cap is absolute, 5; verl caps at 1 + epsilon.",
    ),
    "scalerl": Row(
        _grpo(
            scale=scales.BatchStd(),
            keep=keeps.Everything(drop_constant=True),
            gate=gates.Cap(),
            aggregate=aggregates.PromptMean(),
        ),
        "arXiv:2510.13786; full text",
        "The objective only: its asynchrony, curriculum and float32 head are not parts"
        " of it.",
    ),
    "sapo": Row(_grpo(gate=gates.Soft()), "arXiv:2511.20347; code"),
    "vespo": Row(
        _grpo(
            ratio=ratios.SequenceSum(),
            gate=gates.Gamma(),
            aggregate=aggregates.TokenMean(),
        ),
        "arXiv:2602.10693; code",
        "Defaults are those the authors' code runs, which its docstrings contradict.",
    ),
    "mc_grpo": Row(
        _grpo(**_MEDIAN, keep=keeps.AllButPivot()),
        "arXiv:2601.22582; abstract and code",
        "With two reward levels the published deviation is 0 and divides by 1e-3;"
        " ours falls back on the standard deviation, and counts it"
        " (--objective.scale.floor=0 is the published rule). Ties drop the lowest"
        " index. No rescaling by the number of non-zero advantages, which one of the"
        " two released trainers has (--objective.transform=nonzero_rescale).",
    ),
    "mc_dapo": Row(
        _grpo(
            **_DAPO | dict(keep=keeps.AllButPivot(drop_constant=True)),
            **_MEDIAN,
        ),
        "arXiv:2601.22582; abstract and code",
        "As mc_grpo and dapo.",
    ),
    "mc_dr_grpo": Row(
        _grpo(
            baseline=baselines.Median(),
            scale=scales.NoScale(),
            keep=keeps.AllButPivot(),
            aggregate=aggregates.Constant(),
        ),
        "arXiv:2601.22582; abstract and code",
        "Without a scale, as Dr. GRPO; the released trainers divide by the deviation"
        " under this loss as well (--objective.scale=mad).",
    ),
    "pnpo": Row(
        _grpo(ratio=ratios.PrefixMean(), gate=gates.Envelope()),
        "arXiv:2608.01418; full text",
        "Widths are the published ones at 8192 tokens and grow as 1 / sqrt(length) for"
        " shorter responses (--objective.gate.reference=0 takes them as they are).",
    ),
    "m2po": Row(
        _grpo(gate=gates.M2Mask(), aggregate=aggregates.TokenMean()),
        "arXiv:2510.01161; project page, figures, Algorithm 1",
        "Decided over a whole update; the released code decides per microbatch and"
        " device. Tokens tied at the threshold go or stay together.",
    ),
    "m2po_winsor": Row(
        _grpo(gate=gates.M2Winsor(), aggregate=aggregates.TokenMean()),
        "arXiv:2510.01161; released code",
        "The released code's rule, another algorithm than the paper's: a winsorised"
        " mean sets the bounds of a clip. Decided over a whole update.",
    ),
    "m2po_all": Row(
        _grpo(gate=gates.M2All(), aggregate=aggregates.TokenMean()),
        "AReaL's implementation; code",
        "Applied to the trained policy over the anchor, where AReaL looks at sampler"
        " over anchor.",
    ),
    "sat_grpo": Row(
        _grpo(gate=gates.Sat()),
        "arXiv:2607.18722; abstract and a third-party reading",
        "The kernel is inferred (Hill, exponent 2). The quantile is over a whole"
        " update, theirs over a microbatch.",
    ),
    "sat_gspo": Row(
        _grpo(ratio=ratios.SequenceMean(), gate=gates.Sat()),
        "arXiv:2607.18722; abstract and a third-party reading",
        "As sat_grpo.",
    ),
    "cppo": Row(
        _grpo(
            **_MEAN_ONLY,
            gate=gates.PrefixBudget(),
            aggregate=aggregates.Constant(),
        ),
        "arXiv:2606.10968; code",
    ),
    "dppo_tv": Row(
        _grpo(**_MEAN_ONLY, gate=gates.Tv(), aggregate=aggregates.Constant()),
        "arXiv:2602.04879; code",
    ),
    "dppo_kl": Row(
        _grpo(**_MEAN_ONLY, gate=gates.Kl(), aggregate=aggregates.Constant()),
        "arXiv:2602.04879; code",
    ),
    "dcpo": Row(
        _grpo(gate=gates.Probability()),
        "arXiv:2509.02333; code",
        "The clip only: advantages are not mixed over visits of a problem (see"
        " transforms.visit_mixing), and responses are averaged, not summed.",
    ),
    "bapo": Row(
        _grpo(gate=gates.Balanced(), aggregate=aggregates.TokenMean()),
        "arXiv:2510.18927; code",
        "The released search, which measures clipped values and so always ends at its"
        " bound once it starts; --objective.gate.gradient=true measures live tokens.",
    ),
    "ppo_ewma": Row(
        _grpo(
            anchor=anchors.Ewma(),
            correction=corrections.TokenReject(low=0.5, high=2.0),
        ),
        "arXiv:2605.12070; a third-party reading",
        "The band of the correction is not published; ours is 1/2 to 2.",
    ),
    "a3po": Row(
        _grpo(anchor=anchors.Loglinear()),
        "arXiv:2512.06547; documentation of AReaL",
        "Lag is counted in updates since the rollouts were sampled.",
    ),
    "decoupled_ppo": Row(
        _grpo(anchor=anchors.Rescored(), correction=corrections.TokenTruncate()),
        "arXiv:2505.24298; code",
    ),
    "icepop": Row(
        _grpo(anchor=anchors.Rescored(), correction=corrections.TokenMask()),
        "arXiv:2510.18855; code",
    ),
    "sequence_mis": Row(
        _grpo(anchor=anchors.Rescored(), correction=corrections.SequenceMask()),
        "TRL's default correction; code",
    ),
    "sparse_rl": Row(
        _grpo(anchor=anchors.Rescored(), correction=corrections.SparseReject()),
        "arXiv:2601.10079; third-party readings",
        "Threshold and cap are ours; rejected rollouts stay in the baseline.",
    ),
    "mini_rl": Row(
        _grpo(
            anchor=anchors.Rescored(),
            correction=corrections.TotalTruncate(),
            **_SUMMED,
        ),
        "arXiv:2512.01374; a third-party digest and code",
        "Clip bounds are not published; ours are PPO's.",
    ),
    "minpro": Row(
        _grpo(ratio=ratios.PrefixMin()),
        "arXiv:2601.22718; abstract",
        "Clip bounds and aggregation are not known to us; ours are GRPO's.",
    ),
    "ctpo": Row(
        _grpo(
            ratio=ratios.PrefixSum(),
            gate=gates.Widening(),
            correction=corrections.SequenceTruncate(cap=5.0),
            aggregate=aggregates.TokenMean(),
        ),
        "arXiv:2605.07331; code",
        "The exponent is capped once, at 20, where the code clips every log ratio at 20"
        " and the sum at 10.",
    ),
    "gapo": Row(
        _grpo(
            baseline=baselines.IntervalMedian(),
            scale=scales.Deviation(),
            gate=gates.Clip(low=0.2, high=0.28, dual=10.0),
        ),
        "arXiv:2510.21830; code",
        "Their launchers add --objective.kl=k3 --objective.kl.coef=0.01.",
    ),
    "v05": Row(
        _grpo(baseline=baselines.Shrunk(), scale=scales.NoScale()),
        "arXiv:2603.10848; a third-party reading",
        "The prior is the mean reward of the batch's other problems where no value"
        " model gives one; group sizes don't adapt.",
    ),
    "opo": Row(
        _grpo(
            baseline=baselines.LengthWeighted(),
            scale=scales.NoScale(),
            aggregate=aggregates.TokenMean(),
        ),
        "arXiv:2505.23585; code",
    ),
    "maxrl": Row(
        _grpo(scale=scales.GroupMean(), aggregate=aggregates.SequenceSum()),
        "arXiv:2602.02710; code",
    ),
    "tba": Row(
        _grpo(**_SUMMED, **_REINFORCE, kl=penalties.Balance()),
        "arXiv:2503.18929; code",
        "b / 2 times the published loss, so that b does not set the step size; no"
        " replay buffer.",
    ),
    "async_web": Row(
        _grpo(
            scale=scales.Std(population=True),
            keep=keeps.Everything(drop_constant=True),
            gate=gates.Clip(dual=3.0),
            anchor=anchors.Rescored(),
            correction=corrections.TokenMask(low=0.0, high=5.0),
            aggregate=aggregates.StepConstant(),
        ),
        "arXiv:2606.05597; design note",
        "A response is an episode of one step; see transforms.step_norm for more.",
    ),
    "uniqueness": Row(
        _grpo(transform=transforms.Uniqueness()),
        "arXiv:2601.08763; third-party readings",
        "alpha is not published. A cluster is a completion repeated token for token,"
        " where the paper asks a language model.",
    ),
    "dvao": Row(
        _grpo(shape=shapes.Within(), scale=scales.TermsStd()),
        "arXiv:2605.25604; a third-party reading",
    ),
    "alp": Row(
        _grpo(shape=shapes.SolveRateLength()),
        "arXiv:2506.05256; abstract and third-party restatements",
        "The penalty is taken per token; restatements disagree on that factor.",
    ),
    "apriel": Row(
        _grpo(shape=shapes.DifficultyLength()),
        "arXiv:2604.02007; abstract and training code",
        "The exponent of the solve rate is not published; ours is 1.",
    ),
    "hbpo": Row(
        _grpo(shape=shapes.HierarchicalBudget(), transform=transforms.BudgetPush()),
        "arXiv:2507.15844; full text",
        "alpha and beta are ours; prompts do not announce the budget.",
    ),
    "effort": Row(
        _grpo(shape=shapes.Effort()),
        "arXiv:2510.27042; abstract and a short summary",
        "One ratio for all prompts, not announced in them.",
    ),
    "r3l": Row(
        _grpo(scale=scales.NoScale(), transform=transforms.Amplify()),
        "arXiv:2601.03715; code",
        "Positive amplification only. A group whose rewards are all equal gets no"
        " advantage, where theirs trains on all-correct groups.",
    ),
}

METHODS: dict[str, Method] = {
    name: dataclasses.replace(row.method, name=name) for name, row in _ROWS.items()
}

NOTES: dict[str, Row] = {
    name: row._replace(method=METHODS[name]) for name, row in _ROWS.items()
}


def changes(method: Method) -> tuple[str, ...]:
    """Slots that differ from the row a method began as, as `slot=part(settings)`."""
    row = METHODS[method.name]
    return tuple(
        f"{f.name}={getattr(method, f.name)}"
        for f in dataclasses.fields(method)
        if getattr(method, f.name) != getattr(row, f.name)
    )


def label(method: Method) -> str:
    """The row's name, and what was changed in it."""
    return " ".join((method.name, *changes(method)))
